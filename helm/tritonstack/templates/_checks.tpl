{{/* What a schema cannot say: values that contradict each other. Each failure is a sentence. */}}
{{- define "tritonstack.fromObjectStorage" -}}
{{- if has .Values.modelRepository.type (list "s3" "gcs" "azure") -}}yes{{- end -}}
{{- end -}}

{{- define "tritonstack.check" -}}
{{- include "tritonstack.checkTimes" . -}}
{{- include "tritonstack.checkRepository" . -}}
{{- include "tritonstack.checkGpu" . -}}
{{- include "tritonstack.checkServer" . -}}
{{- include "tritonstack.checkScaling" . -}}
{{- end -}}

{{- define "tritonstack.checkTimes" -}}
{{- $drain := .Values.drain -}}
{{- $pre := include "tritonstack.leastPreStop" . | int -}}
{{- if lt (include "tritonstack.preStop" . | int) $pre -}}
{{- fail (printf "drain.preStopSeconds is %s but clients hold connections for %d s after a pod begins to stop (endpointPropagationSeconds + 1.1 × connectionAgeSeconds): leave it null or give at least %d" (include "tritonstack.preStop" .) $pre $pre) -}}
{{- end -}}
{{- $exit := include "tritonstack.leastExitTimeout" . | int -}}
{{- if lt (include "tritonstack.exitTimeout" . | int) $exit -}}
{{- fail (printf "drain.exitTimeoutSeconds is %s but Triton drains HTTP before gRPC on one countdown, which takes twice longestRequestSeconds and marginSeconds: leave it null or give at least %d" (include "tritonstack.exitTimeout" .) $exit) -}}
{{- end -}}
{{- $grace := include "tritonstack.leastGrace" . | int -}}
{{- if lt (include "tritonstack.grace" . | int) $grace -}}
{{- fail (printf "drain.terminationGracePeriodSeconds is %s but preStop (%s s), the exit timeout (%s s) and marginSeconds (%d s) need %d: leave it null or give at least that" (include "tritonstack.grace" .) (include "tritonstack.preStop" .) (include "tritonstack.exitTimeout" .) ($drain.marginSeconds | int) $grace) -}}
{{- end -}}
{{- end -}}

{{- define "tritonstack.checkRepository" -}}
{{- $repository := .Values.modelRepository -}}
{{- $kind := $repository.type -}}
{{- $version := include "tritonstack.text" $repository.version -}}
{{- $once := or (has "ReadWriteOnce" $repository.pvc.accessModes) (has "ReadWriteOncePod" $repository.pvc.accessModes) -}}
{{- if and (not $version) (not (has $kind (list "image" "baked"))) -}}
{{- fail "modelRepository.version is empty: give the last part of the path, which names one unchanging state of the repository" -}}
{{- end -}}
{{- if regexMatch "(^|/)\\.\\.?(/|$)" (printf "%s/%s" $repository.path $version) -}}
{{- fail "modelRepository.path and version must not contain . or .. as a part" -}}
{{- end -}}
{{- if and (eq $kind "pvc") (not $repository.pvc.claimName) -}}
{{- fail "modelRepository.pvc.claimName is empty: name the claim that holds the models, or choose another modelRepository.type" -}}
{{- end -}}
{{- if and (eq $kind "pvc") $once (not (has "ReadOnlyMany" $repository.pvc.accessModes)) (not (has "ReadWriteMany" $repository.pvc.accessModes)) (gt (include "tritonstack.mostPods" . | int) 1) -}}
{{- fail (printf "modelRepository.pvc is %s but there can be %s pods: on a second node they would wait for the volume forever (Multi-Attach); use ReadOnlyMany or ReadWriteMany, object storage, or one pod" (first $repository.pvc.accessModes) (include "tritonstack.mostPods" .)) -}}
{{- end -}}
{{- if and (include "tritonstack.fromObjectStorage" .) (not $repository.bucket) -}}
{{- fail (printf "modelRepository.bucket is empty, which modelRepository.type %s needs" $kind) -}}
{{- end -}}
{{- if and (eq $kind "azure") (not $repository.account) -}}{{- fail "modelRepository.account is empty, which modelRepository.type azure needs" -}}{{- end -}}
{{- if and (eq $kind "s3") (not $repository.region) -}}{{- fail "modelRepository.region is empty, which modelRepository.type s3 needs" -}}{{- end -}}
{{- if and (eq $kind "image") (not $repository.image) -}}{{- fail "modelRepository.image is empty, which modelRepository.type image needs" -}}{{- end -}}
{{- if and (eq $kind "image") (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "modelRepository.type image needs Kubernetes 1.36, where image volumes are stable; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $kind "baked") (not (hasPrefix "/" $repository.path)) -}}{{- fail "modelRepository.path has to be the absolute folder in the image, with modelRepository.type baked" -}}{{- end -}}
{{- range list .Values.modelRepository.sync.image .Values.modelRepository.image .Values.test.image -}}
{{- if and . (or (hasSuffix ":latest" .) (not (regexMatch "(:[^/]+|@sha256:[0-9a-f]{64})$" .))) -}}{{- fail (printf "the image %q has no fixed tag or digest" .) -}}{{- end -}}
{{- end -}}
{{- $engines := .Values.engines -}}
{{- if and $engines.enabled $engines.cache.claimName (not (has "ReadWriteMany" $engines.cache.accessModes)) (or $engines.gpuTypes (gt (include "tritonstack.mostPods" . | int) 1)) -}}
{{- fail "engines.cache is not ReadWriteMany but several pods use it: they would wait for the volume forever (Multi-Attach); use ReadWriteMany, or one pod and no engines.gpuTypes" -}}
{{- end -}}
{{- if and $engines.gpuTypes (not (and $engines.enabled $engines.cache.claimName)) -}}
{{- fail "engines.gpuTypes fill a shared cache: they need engines.enabled and engines.cache.claimName" -}}
{{- end -}}
{{- if and $engines.enabled (eq .Values.gpu.sharing "none") -}}{{- fail "engines.enabled needs a GPU, but gpu.sharing is none" -}}{{- end -}}
{{- end -}}

{{- define "tritonstack.checkGpu" -}}
{{- $gpu := .Values.gpu -}}
{{- $name := include "tritonstack.gpuResource" . -}}
{{- range $block := list .Values.resources.limits .Values.resources.requests -}}
{{- range $key, $_ := $block -}}
{{- if hasPrefix "nvidia.com/" $key -}}{{- fail (printf "resources has %s: GPUs are set by gpu.sharing and gpu.count, and a pod takes one kind only (here %s)" $key ($name | default "none")) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $gpu.sharing "mig") (not $gpu.migProfile) (not $gpu.resourceName) -}}{{- fail "gpu.migProfile is empty, which gpu.sharing mig needs, for example 1g.10gb" -}}{{- end -}}
{{- if and (contains "/mig-" $gpu.resourceName) (ne $gpu.sharing "mig") -}}{{- fail (printf "gpu.resourceName is %s: set gpu.sharing to mig, which also switches metrics and alerts" $gpu.resourceName) -}}{{- end -}}
{{- if and (eq $gpu.sharing "mig") $gpu.resourceName (not (contains "/mig-" $gpu.resourceName)) -}}{{- fail (printf "gpu.sharing is mig but gpu.resourceName is %s, which is no slice" $gpu.resourceName) -}}{{- end -}}
{{- if and (eq $gpu.sharing "mig") (gt ($gpu.count | int) 1) -}}{{- fail "gpu.count is above 1 with gpu.sharing mig: CUDA gives one slice to a process; ask for a larger profile or more pods" -}}{{- end -}}
{{- if and (has $gpu.sharing (list "timeSlicing" "mps")) (gt ($gpu.count | int) 1) -}}{{- fail (printf "gpu.count is above 1 with gpu.sharing %s: shares may be of one GPU and give no more of it; ask for one" $gpu.sharing) -}}{{- end -}}
{{- if and (eq $gpu.sharing "none") (or $gpu.resourceName $gpu.products $gpu.runtimeClassName) -}}{{- fail "gpu.sharing is none but gpu.resourceName, gpu.products or gpu.runtimeClassName is set" -}}{{- end -}}
{{- if and (eq $gpu.sharing "dra") (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}{{- fail (printf "gpu.sharing dra needs Kubernetes 1.34, where resource.k8s.io/v1 is stable; this is %s" .Capabilities.KubeVersion.Version) -}}{{- end -}}
{{- if and $gpu.compatibility.enabled (ne $gpu.sharing "none") (not $gpu.compatibility.minDriver) (not (include "tritonstack.compatibility" . | fromJson)) -}}
{{- fail (printf "the compatibility table does not know the image tag %q: give gpu.compatibility.minDriver (the image's release notes have it), or set gpu.compatibility.enabled to false" (include "tritonstack.text" .Values.image.tag)) -}}
{{- end -}}
{{- $shm := include "tritonstack.bytes" (include "tritonstack.shm" .) | int64 -}}
{{- if lt $shm (mul 1048576 (include "tritonstack.shmNeeded" . | int)) -}}
{{- fail (printf "shm.size is %s but the python backend needs 64Mi for each instance on each GPU: leave it null or give at least %sMi" .Values.shm.size (include "tritonstack.shmNeeded" .)) -}}
{{- end -}}
{{- with .Values.resources.limits -}}{{- with .memory -}}
{{- if ge $shm (include "tritonstack.bytes" . | int64) -}}
{{- fail (printf "/dev/shm (%s) counts against resources.limits.memory (%s) and has to be smaller" (include "tritonstack.shm" $) (include "tritonstack.text" .)) -}}
{{- end -}}
{{- end -}}{{- end -}}
{{- end -}}

{{- define "tritonstack.checkServer" -}}
{{- $server := .Values.server -}}
{{- if and (eq $server.modelControlMode "poll") (not $server.allowPoll) -}}
{{- fail "server.modelControlMode poll serves half-copied models: use another modelRepository.version and none, or set server.allowPoll" -}}
{{- end -}}
{{- $owned := regexFindAll "(?m)^--[a-z0-9-]+" (include "tritonstack.arguments" . | replace "- \"" "" | replace "- " "") -1 -}}
{{- range $server.extraArgs -}}
{{- $flag := regexFind "^--[a-z0-9-]+" . -}}
{{- if and (has $flag $owned) (not (has $flag (list "--backend-config" "--trace-config" "--metrics-config" "--load-model"))) -}}{{- fail (printf "server.extraArgs has %s, which the chart sets: use its value instead" $flag) -}}{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- if has .name $names -}}{{- fail (printf "models has %q twice" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $environment := keys $server.env -}}
{{- $reserved := list "TRITONSTACK_CONTROL_SECRET" "HOME" "TRITONSTACK_CACHE" -}}
{{- range $server.extraEnv -}}
{{- if or (has .name $environment) (has .name $reserved) -}}{{- fail (printf "server.extraEnv has %s, which is set already: names occur once" .name) -}}{{- end -}}
{{- $environment = append $environment .name -}}
{{- end -}}
{{- range $name, $_ := $server.env -}}{{- if has $name $reserved -}}{{- fail (printf "server.env has %s, which the chart sets" $name) -}}{{- end -}}{{- end -}}
{{- if and .Values.priorityClass.create (not .Values.priorityClass.name) -}}{{- fail "priorityClass.create needs priorityClass.name" -}}{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}{{- fail "gateway.enabled needs gateway.parentRefs: the gateway that the routes belong to" -}}{{- end -}}
{{- if .Values.multiNode.enabled -}}
{{- if not .Values.multiNode.workerCommand -}}{{- fail "multiNode.enabled needs multiNode.workerCommand: what the pods beside the leader run" -}}{{- end -}}
{{- if .Values.engines.gpuTypes -}}{{- fail "engines.gpuTypes build for one pod's GPUs and do not go with multiNode.enabled" -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tritonstack.checkScaling" -}}
{{- $scaling := .Values.autoscaling -}}
{{- $zero := $scaling.scaleToZero -}}
{{- if ne $scaling.type "none" -}}
{{- if gt ($scaling.minReplicas | int) ($scaling.maxReplicas | int) -}}{{- fail (printf "autoscaling.minReplicas (%d) is above autoscaling.maxReplicas (%d)" ($scaling.minReplicas | int) ($scaling.maxReplicas | int)) -}}{{- end -}}
{{- if gt ($scaling.fallback.replicas | int) ($scaling.maxReplicas | int) -}}{{- fail "autoscaling.fallback.replicas is above autoscaling.maxReplicas" -}}{{- end -}}
{{- if and (eq ($scaling.minReplicas | int) 0) (not $zero.enabled) -}}
{{- fail "autoscaling.minReplicas 0 would never wake: Triton's metrics end with its last pod; set autoscaling.scaleToZero.enabled, whose front holds requests, or at least 1" -}}
{{- end -}}
{{- if lt ($scaling.windowSeconds | int) (mul 4 (.Values.metrics.scrapeSeconds | int) | int) -}}{{- fail (printf "autoscaling.windowSeconds (%d) has to hold four scrapes (metrics.scrapeSeconds: %d)" ($scaling.windowSeconds | int) (.Values.metrics.scrapeSeconds | int)) -}}{{- end -}}
{{- if and (eq .Values.metrics.podMonitor "never") (eq .Values.metrics.serviceMonitor "never") -}}{{- fail "autoscaling reads Triton's metrics, but metrics.podMonitor and metrics.serviceMonitor are never; choose one, or autoscaling.type none" -}}{{- end -}}
{{- end -}}
{{- if and (ne .Values.metrics.podMonitor "never") (ne .Values.metrics.serviceMonitor "never") -}}{{- fail "metrics.podMonitor and metrics.serviceMonitor would scrape each pod twice and double the demand: set one to never" -}}{{- end -}}
{{- if $zero.enabled -}}
{{- if ne $scaling.type "keda" -}}{{- fail "autoscaling.scaleToZero needs autoscaling.type keda" -}}{{- end -}}
{{- if .Values.multiNode.enabled -}}{{- fail "autoscaling.scaleToZero does not go with multiNode.enabled" -}}{{- end -}}
{{- if not $zero.hosts -}}{{- fail "autoscaling.scaleToZero.hosts is empty: the interceptor has to know what it answers for" -}}{{- end -}}
{{- $cold := add (include "tritonstack.coldStart" . | int) ($zero.nodeSeconds | int) -}}
{{- if gt ($cold | int) ($zero.clientDeadlineSeconds | int) -}}
{{- fail (printf "a start from zero takes about %d s (node, copy, engines, loads) but clients give up after %d s (autoscaling.scaleToZero.clientDeadlineSeconds): shorten the start or keep a replica" $cold ($zero.clientDeadlineSeconds | int)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (eq .Values.metrics.rules "never") -}}{{- fail "autoscaling.type hpa reads recorded series: metrics.rules must not be never" -}}{{- end -}}
{{- /* Only with a cluster at hand is an absent CRD known to be absent. */ -}}
{{- if and (eq $scaling.type "keda") (lookup "v1" "Namespace" "" "kube-system") (not (.Capabilities.APIVersions.Has "keda.sh/v1alpha1/ScaledObject")) -}}
{{- fail "this cluster has no KEDA (keda.sh/v1alpha1 ScaledObject): install it, or set autoscaling.type to hpa or none" -}}
{{- end -}}
{{- end -}}
