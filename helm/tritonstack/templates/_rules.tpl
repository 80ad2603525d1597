{{/* Recording rules and alerts. Series are chosen by namespace and job, which the monitors set to the release. */}}
{{- define "tritonstack.ruleGroups" -}}
{{- $root := . -}}
{{- $targets := include "tritonstack.targets" . -}}
{{- $devices := include "tritonstack.gpusCounted" . | int -}}
{{- $mine := printf "namespace: %s, release: %s" .Release.Namespace .Release.Name -}}
- name: {{ .Release.Namespace }}.{{ .Release.Name }}.scaling
  interval: 15s
  rules:
    {{- range $model := .Values.models }}
    {{- $scope := dict "root" $root "model" $model }}
    # Requests in flight, or waiting where that is more, plus what was shed.
    - record: tritonstack:model_demand:sum
      labels: { {{- $mine }}, model: {{ $model.name | quote }}}
      expr: {{ include "tritonstack.demand" $scope | quote }}
    {{- if not $model.members }}
    # Instances at work.
    - record: tritonstack:model_busy:sum
      labels: { {{- $mine }}, model: {{ $model.name | quote }}}
      expr: {{ include "tritonstack.busy" $scope | quote }}
    {{- end }}
    {{- end }}
- name: {{ .Release.Namespace }}.{{ .Release.Name }}.cost
  interval: 30s
  rules:
    {{- $own := printf "namespace=\"%s\",release=\"%s\"" .Release.Namespace .Release.Name }}
    {{- if ne .Values.gpu.sharing "none" }}
    # GPUs of pods that do not answer yet, at work, and idle. An instance at work counts for its whole GPU.
    - record: tritonstack:gpus:sum
      labels: { {{- $mine }}, state: loading}
      expr: {{ printf "%d * (count(up{%s} == 0) or 0 * count(up{%s}))" $devices $targets $targets | quote }}
    - record: tritonstack:gpus:sum
      labels: { {{- $mine }}, state: busy}
      expr: {{ printf "min(label_replace(sum(tritonstack:model_busy:sum{%s}), \"of\", \"busy\", \"\", \"\") or label_replace(%d * sum(up{%s}), \"of\", \"all\", \"\", \"\")) and sum(tritonstack:model_busy:sum{%s})" $own $devices $targets $own | quote }}
    - record: tritonstack:gpus:sum
      labels: { {{- $mine }}, state: idle}
      expr: {{ printf "%d * sum(up{%s}) - sum(tritonstack:gpus:sum{%s,state=\"busy\"})" $devices $targets $own | quote }}
    # What they cost an hour; the integral over time is the bill.
    - record: tritonstack:gpu_cost_per_hour:sum
      expr: {{ printf "sum by (namespace, release, state) (tritonstack:gpus:sum{%s}) * %s" $own (include "tritonstack.text" .Values.gpu.pricePerHour) | quote }}
    {{- end }}
    - record: tritonstack:inferences_per_second:sum
      labels: { {{- $mine }}}
      expr: {{ printf "sum(rate(nv_inference_count{%s}[5m]))" $targets | quote }}
- name: {{ .Release.Namespace }}.{{ .Release.Name }}.alerts
  rules:
    - alert: TritonScrapeMissing
      expr: {{ printf "(sum(up{%s}) or vector(0)) == 0" $targets | quote }}
      for: 5m
      labels: {severity: critical, {{ $mine }}}
      annotations:
        summary: No Triton of {{ .Release.Name }} is scraped
        description: The autoscaler has nothing to decide by and keeps its pods. Look for the monitor, the NetworkPolicy's prometheus peer, and the pods.
    {{- range $model := .Values.models }}
    {{- $scope := dict "root" $root "model" $model }}
    {{- $target := $model.target | default dict }}
    {{- $series := include "tritonstack.series" $scope }}
    - alert: TritonModelMissing
      expr: {{ printf "sum(up{%s}) - (count(nv_inference_request_success{%s}) or 0 * sum(up{%s})) > 0" $targets $series $targets | quote }}
      for: 2m
      labels: {severity: critical, {{ $mine }}, model: {{ $model.name | quote }}}
      annotations:
        summary: {{ $model.name }} is not loaded in every pod
        description: An engine of another TensorRT or GPU, a damaged file, or a name in `models` that the repository lacks. The log of the pod says which.
    - alert: TritonQueueGrowing
      expr: {{ printf "sum(avg_over_time(nv_inference_pending_request_count{%s}[5m])) > %s * sum(up{%s})" (include "tritonstack.backlogSeries" $scope) (include "tritonstack.text" (mulf ($target.concurrency | default 4) $root.Values.alerts.backlogFactor)) $targets | quote }}
      for: 5m
      labels: {severity: warning, {{ $mine }}, model: {{ $model.name | quote }}}
      annotations:
        summary: Requests pile up for {{ $model.name }}
        description: More wait than the pods are meant to carry, and scaling did not relieve it. GPUs or maxReplicas may be used up, or a pod cannot start.
    - alert: TritonRequestsRejected
      expr: {{ printf "sum(rate(nv_inference_request_failure{%s,reason=\"REJECTED\"}[5m])) > 0" $series | quote }}
      for: 2m
      labels: {severity: warning, {{ $mine }}, model: {{ $model.name | quote }}}
      annotations:
        summary: {{ $model.name }} turns requests away
        description: Its queue is full or their time ran out. The autoscaler counts them as demand.
    - alert: TritonRequestsFailing
      expr: {{ printf "sum(rate(nv_inference_request_failure{%s,reason!~\"REJECTED|CANCELED\"}[5m])) / clamp_min(sum(rate(nv_inference_request_failure{%s,reason!~\"REJECTED|CANCELED\"}[5m])) + sum(rate(nv_inference_request_success{%s}[5m])), 1e-9) > %s" $series $series $series (include "tritonstack.text" $root.Values.alerts.failureRatio) | quote }}
      for: 5m
      labels: {severity: critical, {{ $mine }}, model: {{ $model.name | quote }}}
      annotations:
        summary: {{ $model.name }} answers with errors
        description: The log of the pods has the reason.
    {{- end }}
    - alert: TritonPinnedMemoryFull
      expr: {{ printf "max(nv_pinned_memory_pool_used_bytes{%s} / clamp_min(nv_pinned_memory_pool_total_bytes{%s}, 1)) > 0.9" $targets $targets | quote }}
      for: 10m
      labels: {severity: warning, {{ $mine }}}
      annotations:
        summary: The pinned memory pool of a pod is nearly full
        description: Copies fall back to slow memory. Raise server.pinnedMemoryPoolBytes.
    {{- with .Values.resources.limits }}{{- with .memory }}
    - alert: TritonMemoryNearLimit
      expr: {{ printf "max(container_memory_working_set_bytes{namespace=\"%s\",container=\"triton\",pod=~\"%s-.*\"}) > %d" $root.Release.Namespace (include "tritonstack.fullname" $root) (mulf 0.9 (include "tritonstack.bytes" . | int64) | int64) | quote }}
      for: 5m
      labels: {severity: warning, {{ $mine }}}
      annotations:
        summary: A pod is near its memory limit
        description: What lies in /dev/shm ({{ include "tritonstack.shm" $root }}) counts as well. Python instances need 64 MiB of it each; clients' regions come on top.
    {{- end }}{{- end }}
    {{- if .Values.engines.enabled }}
    - alert: TritonEngineBuildFailing
      expr: {{ printf "sum(increase(kube_pod_init_container_status_restarts_total{namespace=\"%s\",container=\"build-engines\",pod=~\"%s-.*\"}[30m])) > 0" .Release.Namespace (include "tritonstack.fullname" .) | quote }}
      labels: {severity: warning, {{ $mine }}}
      annotations:
        summary: Engines cannot be built
        description: The log of the init container build-engines says for which model and why.
    {{- end }}
    {{- if ne .Values.gpu.sharing "none" }}
    - alert: TritonGpusIdle
      expr: {{ printf "avg_over_time(sum(tritonstack:gpus:sum{%s,state=\"idle\"})[2h:1m]) / clamp_min(avg_over_time(sum(tritonstack:gpus:sum{%s})[2h:1m]), 1e-9) > %s and sum(up{%s}) > %s" $own $own (include "tritonstack.text" .Values.alerts.idleRatio) $targets (include "tritonstack.fewestPods" .) | quote }}
      for: 30m
      labels: {severity: info, {{ $mine }}}
      annotations:
        summary: GPUs are paid for and idle
        description: tritonstack:gpu_cost_per_hour:sum says for how much. Targets may be too low, or scale-down blocked.
    {{- end }}
    {{- if eq .Values.gpu.sharing "whole" }}
    - alert: TritonGpuMemoryFull
      expr: {{ printf "max(nv_gpu_memory_used_bytes{%s} / clamp_min(nv_gpu_memory_total_bytes{%s}, 1)) > 0.97" $targets $targets | quote }}
      for: 10m
      labels: {severity: warning, {{ $mine }}}
      annotations:
        summary: GPU memory is nearly used up
        description: The next load or a larger batch may fail. Pools do not shrink, so this is no measure of load.
    {{- end }}
    {{- if eq .Values.gpu.sharing "mig" }}
    # Utilisation is not reported for slices; DCGM's engine activity is. dcgm-exporter names the pod in `exported_pod`
    # where Prometheus does not honour its labels, else in `pod`.
    - alert: TritonSliceSaturated
      expr: {{ printf "max(avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{exported_namespace=\"%s\",exported_pod=~\"%s-.*\"}[10m]) or avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{namespace=\"%s\",pod=~\"%s-.*\"}[10m])) > 0.95" .Release.Namespace (include "tritonstack.fullname" .) .Release.Namespace (include "tritonstack.fullname" .) | quote }}
      for: 10m
      labels: {severity: info, {{ $mine }}}
      annotations:
        summary: A MIG slice is saturated
        description: A larger profile or more pods would help.
    {{- end }}
{{- end -}}
