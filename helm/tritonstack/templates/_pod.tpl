{{/* The server's pod: flags, probes, volumes. */}}
{{- define "tritonstack.closedApis" -}}
{{- $closed := list -}}
{{- range list "model-repository" "shared-memory" "trace" "logging" -}}{{- if not (has . $.Values.control.open) -}}{{- $closed = append $closed . -}}{{- end -}}{{- end -}}
{{- join "," $closed -}}
{{- end -}}

{{/* Whether pods need a copy of the repository that they may write. */}}
{{- define "tritonstack.copied" -}}
{{- if or (include "tritonstack.fromObjectStorage" .) .Values.engines.enabled -}}yes{{- end -}}
{{- end -}}

{{- define "tritonstack.versionedPath" -}}
{{- printf "%s/%s" .Values.modelRepository.path (include "tritonstack.text" .Values.modelRepository.version) | trimAll "/" -}}
{{- end -}}

{{/* Where Triton reads. */}}
{{- define "tritonstack.modelsPath" -}}
{{- if and (eq .Values.modelRepository.type "baked") (not (include "tritonstack.copied" .)) -}}{{ .Values.modelRepository.path }}{{- else -}}/models{{- end -}}
{{- end -}}

{{- define "tritonstack.arguments" -}}
{{- $server := .Values.server -}}
{{- $closed := include "tritonstack.closedApis" . -}}
- --model-repository={{ include "tritonstack.modelsPath" . }}
- --model-control-mode={{ $server.modelControlMode }}
{{- if eq $server.modelControlMode "explicit" }}
{{- range .Values.models }}
- --load-model={{ .name }}
{{- end }}
{{- end }}
- --strict-readiness=true
- --disable-auto-complete-config
# A pod whose models do not load is not ready; leaving would only load the others again.
- --exit-on-error=false
- --exit-timeout-secs={{ include "tritonstack.exitTimeout" . }}
- --http-port=8000
- --grpc-port=8001
- --metrics-port=8002
- --grpc-max-connection-age={{ mul 1000 (.Values.drain.connectionAgeSeconds | int) }}
- --grpc-max-connection-age-grace={{ mul 1000 (.Values.drain.longestRequestSeconds | int) }}
- --allow-gpu-metrics={{ has .Values.gpu.sharing (list "whole" "timeSlicing" "mps" "dra") }}
- --metrics-config=counter_latencies=true
- --metrics-config=histogram_latencies={{ $server.histograms }}
- --log-verbose={{ $server.logVerbose | int }}
- --pinned-memory-pool-byte-size={{ include "tritonstack.text" $server.pinnedMemoryPoolBytes }}
{{- range $device := until (include "tritonstack.devices" . | int) }}
- --cuda-memory-pool-byte-size={{ $device }}:{{ include "tritonstack.text" $server.cudaMemoryPoolBytes }}
{{- end }}
{{- if $server.responseCacheBytes }}
- --cache-config=local,size={{ include "tritonstack.text" $server.responseCacheBytes }}
{{- end }}
{{- if $closed }}
- --http-restricted-api={{ $closed }}:tritonstack-control=$(TRITONSTACK_CONTROL_SECRET)
- --grpc-restricted-protocol={{ $closed }}:tritonstack-control=$(TRITONSTACK_CONTROL_SECRET)
{{- end }}
{{- if $server.tracing.endpoint }}
- --trace-config=mode=opentelemetry
- --trace-config=rate={{ $server.tracing.rate | int }}
- --trace-config=level=TIMESTAMPS
- {{ printf "--trace-config=opentelemetry,url=%s" $server.tracing.endpoint | quote }}
- {{ printf "--trace-config=opentelemetry,resource=service.name=%s" .Release.Name | quote }}
{{- end }}
{{- end -}}

{{/* Every model by its name: server-wide readiness is 200 with nothing loaded. */}}
{{- define "tritonstack.readyAction" -}}
{{- if eq (len .Values.models) 1 -}}
httpGet: {path: /v2/models/{{ (first .Values.models).name }}/ready, port: http}
{{- else -}}
exec:
  command:
    - python3
    - -c
    - "import sys, urllib.request as u; [u.urlopen(f'http://127.0.0.1:8000/v2/models/{m}/ready', timeout={{ sub (.Values.probes.timeoutSeconds | int) 1 }}) for m in sys.argv[1:]]"
    {{- range .Values.models }}
    - {{ .name }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "tritonstack.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tritonstack.podSecurity" -}}
{{ toYaml (merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) (deepCopy .Values.podSecurityContext)) }}
{{- end -}}

{{/* Init containers that fill /models. */}}
{{- define "tritonstack.initContainers" -}}
{{- $repository := .Values.modelRepository -}}
{{- $path := include "tritonstack.versionedPath" . -}}
{{- if include "tritonstack.fromObjectStorage" . -}}
- name: sync-models
  image: {{ $repository.sync.image }}
  args:
    - copy
    {{- if eq $repository.type "s3" }}
    - {{ printf ":s3,provider=AWS,env_auth=true,region=%s:%s/%s" $repository.region $repository.bucket $path | quote }}
    {{- else if eq $repository.type "gcs" }}
    - {{ printf ":gcs,env_auth=true:%s/%s" $repository.bucket $path | quote }}
    {{- else }}
    - {{ printf ":azureblob,env_auth=true,account=%s:%s/%s" $repository.account $repository.bucket $path | quote }}
    {{- end }}
    - /models
    - --config=/tmp/rclone.conf
    - --checksum
    - --error-on-no-transfer
    - --transfers=8
    - --stats-one-line
    - --stats=10s
    - --log-level=INFO
  env:
    - {name: HOME, value: /tmp}
  resources: {{- toYaml $repository.sync.resources | nindent 4 }}
  securityContext: {{- include "tritonstack.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- else if include "tritonstack.copied" . -}}
- name: copy-models
  image: {{ include "tritonstack.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq $repository.type "baked" }}
  command: [cp, -rL, {{ printf "%s/." $repository.path | quote }}, /models/]
  {{- else }}
  command: [cp, -rL, /repository/., /models/]
  {{- end }}
  resources: {requests: {cpu: 500m, memory: 256Mi}, limits: {memory: 1Gi}}
  securityContext: {{- include "tritonstack.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    {{- if eq $repository.type "pvc" }}
    - {name: repository, mountPath: /repository, subPath: {{ $path | quote }}, readOnly: true}
    {{- else if eq $repository.type "image" }}
    - {name: repository, mountPath: /repository, readOnly: true}
    {{- end }}
{{- end }}
{{- if .Values.engines.enabled }}
- name: build-engines
  image: {{ include "tritonstack.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  # What was built and what came from the cache is in this container's log.
  command: [tritonstack, build-engines, /models, --engine, {{ .Values.engines.policy }}, --timeout, {{ .Values.engines.buildSeconds | int | quote }}, --cache, /engine-cache]
  env:
    - {name: HOME, value: /tmp}
  resources: {{- include "tritonstack.gpuResources" . | nindent 4 }}
  securityContext: {{- include "tritonstack.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: engine-cache, mountPath: /engine-cache}
    - {name: tmp, mountPath: /tmp}
    - {name: shm, mountPath: /dev/shm}
{{- end }}
{{- end -}}

{{- define "tritonstack.volumes" -}}
{{- $repository := .Values.modelRepository -}}
- {name: tmp, emptyDir: {}}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ include "tritonstack.shm" . }}}}
{{- if include "tritonstack.copied" . }}
- {name: models, emptyDir: {sizeLimit: {{ $repository.copySize }}}}
{{- end }}
{{- if eq $repository.type "pvc" }}
- name: repository
  persistentVolumeClaim: {claimName: {{ $repository.pvc.claimName }}, readOnly: true}
{{- else if eq $repository.type "image" }}
- name: repository
  image: {reference: {{ $repository.image | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- if .Values.engines.enabled }}
{{- if .Values.engines.cache.claimName }}
- name: engine-cache
  persistentVolumeClaim: {claimName: {{ .Values.engines.cache.claimName }}}
{{- else }}
- {name: engine-cache, emptyDir: {}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tritonstack.modelsMount" -}}
{{- $repository := .Values.modelRepository -}}
{{- if include "tritonstack.copied" . -}}
- {name: models, mountPath: /models, readOnly: true}
{{- else if eq $repository.type "pvc" -}}
- {name: repository, mountPath: /models, subPath: {{ include "tritonstack.versionedPath" . | quote }}, readOnly: true}
{{- else if eq $repository.type "image" -}}
- {name: repository, mountPath: /models, readOnly: true}
{{- end -}}
{{- end -}}

{{/* What server pods, workers and engine builders have in common: everything that places a pod. */}}
{{- define "tritonstack.placement" -}}
serviceAccountName: {{ include "tritonstack.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "tritonstack.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.gpu.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.priorityClass.name }}
priorityClassName: {{ . }}
{{- end }}
{{- with include "tritonstack.tolerations" . }}
tolerations: {{- . | nindent 2 }}
{{- end }}
{{- with include "tritonstack.affinity" . }}
affinity: {{- . | nindent 2 }}
{{- end }}
{{- if eq .Values.gpu.sharing "dra" }}
resourceClaims:
  - {name: gpu, resourceClaimTemplateName: {{ include "tritonstack.fullname" . }}-gpu}
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "command" list): an empty command is tritonserver with the chart's flags. */}}
{{- define "tritonstack.serverContainer" -}}
{{- $root := .root -}}
{{- $period := $root.Values.probes.periodSeconds | int -}}
{{- $startup := include "tritonstack.startup" $root | int -}}
- name: triton
  image: {{ include "tritonstack.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  {{- if .command }}
  command: {{- toYaml .command | nindent 4 }}
  {{- else }}
  command: [tritonserver]
  args:
    {{- include "tritonstack.arguments" $root | nindent 4 }}
    {{- range $root.Values.server.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  {{- end }}
  env:
    - {name: HOME, value: /tmp}
    {{- if include "tritonstack.closedApis" $root }}
    - name: TRITONSTACK_CONTROL_SECRET
      valueFrom: {secretKeyRef: {name: {{ include "tritonstack.controlSecretName" $root }}, key: secret}}
    {{- end }}
    {{- range $name, $value := $root.Values.server.env }}
    - {name: {{ $name }}, value: {{ include "tritonstack.text" $value | quote }}}
    {{- end }}
    {{- with $root.Values.server.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: http, containerPort: 8000}
    - {name: grpc, containerPort: 8001}
    - {name: metrics, containerPort: 8002}
  resources: {{- include "tritonstack.gpuResources" $root | nindent 4 }}
  securityContext: {{- include "tritonstack.containerSecurity" $root | nindent 4 }}
  {{- if .probes }}
  # Loads were measured at {{ include "tritonstack.load" $root }} s in all, times startupFactor {{ $root.Values.probes.startupFactor }}: {{ $startup }} s in steps of {{ $period }} s.
  startupProbe:
    {{- include "tritonstack.readyAction" $root | nindent 4 }}
    periodSeconds: {{ $period }}
    timeoutSeconds: {{ $root.Values.probes.timeoutSeconds | int }}
    failureThreshold: {{ max 3 (ceil (divf $startup $period) | int) }}
  readinessProbe:
    {{- include "tritonstack.readyAction" $root | nindent 4 }}
    periodSeconds: {{ $period }}
    timeoutSeconds: {{ $root.Values.probes.timeoutSeconds | int }}
    failureThreshold: 2
  # Alive, not ready: a busy or loading server is not restarted.
  livenessProbe:
    {{- if eq $root.Values.probes.liveness "grpc" }}
    grpc: {port: 8001}
    {{- else }}
    httpGet: {path: /v2/health/live, port: http}
    {{- end }}
    periodSeconds: 10
    timeoutSeconds: {{ $root.Values.probes.timeoutSeconds | int }}
    failureThreshold: 6
  {{- end }}
  lifecycle:
    # Until the pod is out of every client's list and their gRPC connections have been recycled.
    preStop: {sleep: {seconds: {{ include "tritonstack.preStop" $root }}}}
  volumeMounts:
    {{- with include "tritonstack.modelsMount" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    - {name: shm, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Takes (dict "root" $ "command" list "probes" bool). */}}
{{- define "tritonstack.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "tritonstack.labels" $root | nindent 4 }}
    {{- with $root.Values.podLabels }}{{ include "tritonstack.textMap" . | indent 4 }}{{ end }}
  annotations:
    # Another state of the repository is another generation of pods.
    tritonstack/model-repository: {{ omit $root.Values.modelRepository "sync" "copySize" | toJson | sha256sum | trunc 32 | quote }}
    tritonstack/repository-version: {{ include "tritonstack.text" $root.Values.modelRepository.version | quote }}
    {{- with $root.Values.modelRepository.checksum }}
    tritonstack/repository-checksum: {{ . | quote }}
    {{- end }}
    {{- if and $root.Values.gpu.compatibility.enabled (ne $root.Values.gpu.sharing "none") }}
    {{- with include "tritonstack.compatibility" $root | fromJson }}
    tritonstack/cuda: {{ .cuda | quote }}
    tritonstack/built-for-driver: {{ .driver | quote }}
    {{- end }}
    {{- end }}
    {{- with $root.Values.podAnnotations }}{{ include "tritonstack.textMap" . | indent 4 }}{{ end }}
spec:
  {{- include "tritonstack.placement" $root | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "tritonstack.grace" $root }}
  {{- with $root.Values.nodeSelector }}
  nodeSelector: {{- include "tritonstack.textMap" . | indent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if $root.Values.topologySpreadConstraints }}
    {{- toYaml $root.Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "tritonstack.selectorLabels" $root | nindent 10 }}
    {{- end }}
  {{- with include "tritonstack.initContainers" $root | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    {{- include "tritonstack.serverContainer" . | nindent 4 }}
  volumes:
    {{- include "tritonstack.volumes" $root | nindent 4 }}
{{- end -}}
