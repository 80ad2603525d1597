{{/* Names and labels. Selectors hold nothing that values can change. */}}
{{- define "tritonstack.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tritonstack.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "tritonstack.labels" -}}
{{ include "tritonstack.selectorLabels" . }}
{{ include "tritonstack.commonLabels" . }}
{{- end -}}

{{- define "tritonstack.commonLabels" -}}
app.kubernetes.io/version: {{ include "tritonstack.text" .Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels of what is no server pod: other component, same release. Takes (list root component). */}}
{{- define "tritonstack.otherLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{ include "tritonstack.commonLabels" $root }}
{{- end -}}

{{- define "tritonstack.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "tritonstack.fullname" .) "default") -}}
{{- end -}}

{{- define "tritonstack.controlSecretName" -}}
{{- .Values.control.existingSecret | default (printf "%s-control" (include "tritonstack.fullname" .)) -}}
{{- end -}}

{{/* A value as text. Helm reads whole numbers as floats, which would print as 1e+06. */}}
{{- define "tritonstack.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}

{{/* A map with all values as quoted text. */}}
{{- define "tritonstack.textMap" -}}
{{- range $key, $value := . }}
{{ $key }}: {{ include "tritonstack.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "tritonstack.image" -}}
{{- $tag := include "tritonstack.text" .Values.image.tag -}}
{{- .Values.image.repository }}:{{ $tag }}{{ with .Values.image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Namespace of monitors, rules and dashboards. */}}
{{- define "tritonstack.metricsNamespace" -}}
{{- .Values.metrics.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* Whether to render a monitoring.coreos.com object: (list root setting kind). Empty: no. */}}
{{- define "tritonstack.monitoring" -}}
{{- $root := index . 0 -}}
{{- $api := printf "monitoring.coreos.com/v1/%s" (index . 2) -}}
{{- if or (eq (index . 1) "always") (and (eq (index . 1) "auto") ($root.Capabilities.APIVersions.Has $api)) -}}yes{{- end -}}
{{- end -}}
