{{/* The arithmetic of start and stop. All in seconds. */}}
{{- define "tritonstack.leastPreStop" -}}
{{- /* gRPC jitters the age of connections by 10 %. */ -}}
{{- add (.Values.drain.endpointPropagationSeconds | int) (ceil (mulf 1.1 (.Values.drain.connectionAgeSeconds | int)) | int) -}}
{{- end -}}
{{- define "tritonstack.preStop" -}}
{{- .Values.drain.preStopSeconds | default (include "tritonstack.leastPreStop" .) | int -}}
{{- end -}}

{{- define "tritonstack.leastExitTimeout" -}}
{{- add (mul 2 (.Values.drain.longestRequestSeconds | int)) (.Values.drain.marginSeconds | int) -}}
{{- end -}}
{{- define "tritonstack.exitTimeout" -}}
{{- .Values.drain.exitTimeoutSeconds | default (include "tritonstack.leastExitTimeout" .) | int -}}
{{- end -}}

{{- define "tritonstack.leastGrace" -}}
{{- add (include "tritonstack.preStop" . | int) (include "tritonstack.exitTimeout" . | int) (.Values.drain.marginSeconds | int) -}}
{{- end -}}
{{- define "tritonstack.grace" -}}
{{- .Values.drain.terminationGracePeriodSeconds | default (include "tritonstack.leastGrace" .) | int -}}
{{- end -}}

{{/* How long loading all models takes, as measured. */}}
{{- define "tritonstack.load" -}}
{{- $sum := 0 -}}
{{- range .Values.models -}}{{- $sum = add $sum (.loadSeconds | default 30 | int) -}}{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "tritonstack.startup" -}}
{{- ceil (mulf (include "tritonstack.load" . | int) (.Values.probes.startupFactor | float64)) | int -}}
{{- end -}}

{{/* Before the server starts: copying and building. */}}
{{- define "tritonstack.prepare" -}}
{{- $sum := 0 -}}
{{- if include "tritonstack.fromObjectStorage" . -}}{{- $sum = add $sum (.Values.modelRepository.sync.seconds | int) -}}{{- end -}}
{{- if .Values.engines.enabled -}}{{- $sum = add $sum (mul (len .Values.models) (.Values.engines.buildSeconds | int)) -}}{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Usual time until a scheduled pod serves: copies, engines from the cache, loads as measured. */}}
{{- define "tritonstack.coldStart" -}}
{{- $sum := include "tritonstack.load" . | int -}}
{{- if include "tritonstack.fromObjectStorage" . -}}{{- $sum = add $sum (.Values.modelRepository.sync.seconds | int) -}}{{- end -}}
{{- if and .Values.engines.enabled (not .Values.engines.cache.claimName) -}}{{- $sum = add $sum (mul (len .Values.models) (.Values.engines.buildSeconds | int)) -}}{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Pods there can be at once. */}}
{{- define "tritonstack.mostPods" -}}
{{- if eq .Values.autoscaling.type "none" -}}{{ .Values.replicaCount | int }}{{- else -}}{{ .Values.autoscaling.maxReplicas | int }}{{- end -}}
{{- end -}}
{{- define "tritonstack.fewestPods" -}}
{{- if eq .Values.autoscaling.type "none" -}}{{ .Values.replicaCount | int }}{{- else -}}{{ .Values.autoscaling.minReplicas | int }}{{- end -}}
{{- end -}}
