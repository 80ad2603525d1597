{{/* The arithmetic of start and stop. All in seconds. */}}
{{- define "tritonstack.preStop" -}}
{{- $drain := .Values.drain -}}
{{- /* gRPC jitters the age of connections by 10 %. */ -}}
{{- $derived := add ($drain.endpointPropagationSeconds | int) (ceil (mulf 1.1 ($drain.connectionAgeSeconds | int)) | int) -}}
{{- $drain.preStopSeconds | default $derived | int -}}
{{- end -}}

{{- define "tritonstack.exitTimeout" -}}
{{- $drain := .Values.drain -}}
{{- $derived := add (mul 2 ($drain.longestRequestSeconds | int)) ($drain.marginSeconds | int) -}}
{{- $drain.exitTimeoutSeconds | default $derived | int -}}
{{- end -}}

{{- define "tritonstack.grace" -}}
{{- $drain := .Values.drain -}}
{{- $derived := add (include "tritonstack.preStop" . | int) (include "tritonstack.exitTimeout" . | int) ($drain.marginSeconds | int) -}}
{{- $drain.terminationGracePeriodSeconds | default $derived | int -}}
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
