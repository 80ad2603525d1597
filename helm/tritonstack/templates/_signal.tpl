{{/*
What is scaled by, in PromQL. Takes (dict "root" $ "model" entry). Triggers, recording rules and the test pod use these.
Samples that are NaN or Inf do not pass `< Inf`, so a sick pod is left out instead of spoiling the sum.
*/}}
{{- define "tritonstack.targets" -}}
namespace="{{ .Release.Namespace }}",job="{{ .Release.Name }}"
{{- end -}}

{{- define "tritonstack.series" -}}
{{ include "tritonstack.targets" .root }},model="{{ .model.name }}"
{{- end -}}

{{/* An ensemble has no backlog: its members' counts. */}}
{{- define "tritonstack.backlogSeries" -}}
{{- include "tritonstack.targets" .root -}}
{{- if .model.members -}},model=~"{{ range $i, $name := .model.members }}{{ if $i }}|{{ end }}{{ $name | replace "." "\\\\." }}{{ end }}"
{{- else -}},model="{{ .model.name }}"{{- end -}}
{{- end -}}

{{/* Whether there is anything to compute from: a target that is up, and samples over three quarters of the window. */}}
{{- define "tritonstack.guard" -}}
{{- $window := .Values.autoscaling.windowSeconds | int -}}
{{- $samples := div (mul 3 (div $window (.Values.metrics.scrapeSeconds | int))) 4 -}}
(max(count_over_time(up{ {{- include "tritonstack.targets" . -}} }[{{ $window }}s])) >= {{ max 2 $samples }}) and (sum(up{ {{- include "tritonstack.targets" . -}} }) >= 1)
{{- end -}}

{{- define "tritonstack.demand" -}}
{{- $window := printf "[%ds]" (.root.Values.autoscaling.windowSeconds | int) -}}
{{- $target := .model.target | default dict -}}
{{- $series := include "tritonstack.series" . -}}
(max(label_replace(sum(rate(nv_inference_request_duration_us{ {{- $series -}} }{{ $window }}) < Inf) / 1e6, "of", "flight", "", "") or label_replace(sum(avg_over_time(nv_inference_pending_request_count{ {{- include "tritonstack.backlogSeries" . -}} }[60s]) < Inf), "of", "backlog", "", "")) + (sum(rate(nv_inference_request_failure{ {{- $series -}},reason="REJECTED"}{{ $window }}) < Inf) * {{ $target.latencySeconds | default 0.2 }} or vector(0))) and ({{ include "tritonstack.guard" .root }})
{{- end -}}

{{- define "tritonstack.busy" -}}
{{- $window := printf "[%ds]" (.root.Values.autoscaling.windowSeconds | int) -}}
{{- $series := include "tritonstack.series" . -}}
((sum(rate(nv_inference_compute_input_duration_us{ {{- $series -}} }{{ $window }}) < Inf) + sum(rate(nv_inference_compute_infer_duration_us{ {{- $series -}} }{{ $window }}) < Inf) + sum(rate(nv_inference_compute_output_duration_us{ {{- $series -}} }{{ $window }}) < Inf)) / 1e6 * sum(rate(nv_inference_exec_count{ {{- $series -}} }{{ $window }}) < Inf) / clamp_min(sum(rate(nv_inference_request_success{ {{- $series -}} }{{ $window }}) < Inf), 1e-9)) and ({{ include "tritonstack.guard" .root }})
{{- end -}}

{{/* The same for a trigger. From zero pods the answer is 0, not an error, or the fallback would wake them. */}}
{{- define "tritonstack.orAsleep" -}}
{{- if .Values.autoscaling.scaleToZero.enabled }} or (0 * max(kube_deployment_spec_replicas{namespace="{{ .Release.Namespace }}",deployment="{{ include "tritonstack.fullname" . }}"} == 0)){{ end -}}
{{- end -}}

{{/* Triggers as a JSON list of {name, query, threshold}; two for each model, ensembles have demand alone. */}}
{{- define "tritonstack.triggers" -}}
{{- $root := . -}}
{{- $triggers := list -}}
{{- range $model := .Values.models -}}
{{- $target := $model.target | default dict -}}
{{- $scope := dict "root" $root "model" $model -}}
{{- $asleep := include "tritonstack.orAsleep" $root -}}
{{- $triggers = append $triggers (dict "kind" "demand" "model" $model.name "query" (printf "%s%s" (include "tritonstack.demand" $scope) $asleep) "threshold" (include "tritonstack.text" ($target.concurrency | default 4))) -}}
{{- if not $model.members -}}
{{- $instances := mul ($model.instances | default 1 | int) (include "tritonstack.gpusCounted" $root | int) -}}
{{- $triggers = append $triggers (dict "kind" "busy" "model" $model.name "query" (printf "%s%s" (include "tritonstack.busy" $scope) $asleep) "threshold" (include "tritonstack.text" (mulf ($target.busy | default 0.7) $instances))) -}}
{{- end -}}
{{- end -}}
{{- toJson $triggers -}}
{{- end -}}

{{/* What has the replicas. */}}
{{- define "tritonstack.scaleTarget" -}}
{{- if .Values.multiNode.enabled -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "tritonstack.fullname" . }}
{{- end -}}

{{/* Behaviour of the autoscaler. */}}
{{- define "tritonstack.behavior" -}}
{{- if .Values.autoscaling.behavior -}}
{{ toYaml .Values.autoscaling.behavior }}
{{- else -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
  selectPolicy: Max
scaleDown:
  # Longer than a cold start: a pod that goes too early has to come back.
  stabilizationWindowSeconds: {{ min 3600 (max 300 (include "tritonstack.coldStart" . | int)) }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}
{{- end -}}
