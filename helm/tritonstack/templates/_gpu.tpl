{{/* Resource names, sizes and nodes. */}}
{{- define "tritonstack.gpuResource" -}}
{{- $gpu := .Values.gpu -}}
{{- if $gpu.resourceName -}}{{ $gpu.resourceName }}
{{- else if eq $gpu.sharing "mig" -}}nvidia.com/mig-{{ $gpu.migProfile }}
{{- else if has $gpu.sharing (list "whole" "timeSlicing" "mps") -}}nvidia.com/gpu
{{- end -}}
{{- end -}}

{{/* GPUs that Triton sees: 0 on a CPU. */}}
{{- define "tritonstack.devices" -}}
{{- if eq .Values.gpu.sharing "none" -}}0{{- else -}}{{ .Values.gpu.count | int }}{{- end -}}
{{- end -}}

{{/* GPUs that a pod counts for: at least 1. */}}
{{- define "tritonstack.gpusCounted" -}}
{{- max 1 (include "tritonstack.devices" . | int) -}}
{{- end -}}

{{/* Resources of a container that uses the GPU. */}}
{{- define "tritonstack.gpuResources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- with include "tritonstack.gpuResource" . -}}
{{- $_ := set $resources "limits" (merge (dict . ($.Values.gpu.count | int)) ($resources.limits | default dict)) -}}
{{- end -}}
{{- if eq .Values.gpu.sharing "dra" -}}{{- $_ := set $resources "claims" (list (dict "name" "gpu")) -}}{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* A quantity of memory (128Mi, 1.5Gi, 2G, 1000000) in bytes. */}}
{{- define "tritonstack.bytes" -}}
{{- $text := include "tritonstack.text" . -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexReplaceAll "^[0-9.]+" $text "" -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (hasKey $factors $unit) -}}{{- fail (printf "the quantity %q has an unknown unit: use Mi or Gi" $text) -}}{{- end -}}
{{- mulf $number (get $factors $unit) | int64 -}}
{{- end -}}

{{/* MiB of /dev/shm that the python backend needs: 64 for each instance on each device. */}}
{{- define "tritonstack.shmNeeded" -}}
{{- $instances := 0 -}}
{{- range .Values.models -}}{{- $instances = add $instances (.pythonInstances | default 0 | int) -}}{{- end -}}
{{- mul 64 $instances (include "tritonstack.gpusCounted" . | int) -}}
{{- end -}}
{{- define "tritonstack.shm" -}}
{{- .Values.shm.size | default (printf "%dMi" (add 64 (include "tritonstack.shmNeeded" . | int))) -}}
{{- end -}}

{{/* The row of the image in files/compatibility.yaml, as JSON; {} where unknown. */}}
{{- define "tritonstack.compatibility" -}}
{{- $table := .Files.Get "files/compatibility.yaml" | fromYaml -}}
{{- $release := regexFind "^[0-9]{2}\\.[0-9]{2}" (include "tritonstack.text" .Values.image.tag) -}}
{{- get $table $release | default dict | toJson -}}
{{- end -}}

{{/* Required node terms of the gate and of gpu.products, as a JSON list of matchExpressions lists (any of them). */}}
{{- define "tritonstack.nodeTerms" -}}
{{- $common := list -}}
{{- $terms := list -}}
{{- $gpu := .Values.gpu -}}
{{- if $gpu.products -}}
{{- $common = append $common (dict "key" "nvidia.com/gpu.product" "operator" "In" "values" $gpu.products) -}}
{{- end -}}
{{- if and $gpu.compatibility.enabled (ne $gpu.sharing "none") -}}
{{- $row := include "tritonstack.compatibility" . | fromJson -}}
{{- $driver := $gpu.compatibility.minDriver | default (get $row "minDriver") | int -}}
{{- $common = append $common (dict "key" "nvidia.com/cuda.driver-version.major" "operator" "Gt" "values" (list (sub $driver 1 | toString))) -}}
{{- with get $row "minCompute" -}}
{{- $parts := splitList "." . -}}
{{- $major := index $parts 0 | int -}}
{{- $terms = append $terms (list (dict "key" "nvidia.com/gpu.compute.major" "operator" "Gt" "values" (list (toString $major)))) -}}
{{- $terms = append $terms (list (dict "key" "nvidia.com/gpu.compute.major" "operator" "In" "values" (list (toString $major))) (dict "key" "nvidia.com/gpu.compute.minor" "operator" "Gt" "values" (list (sub (index $parts 1 | int) 1 | toString)))) -}}
{{- end -}}
{{- end -}}
{{- if not $terms -}}{{- $terms = list list -}}{{- end -}}
{{- $result := list -}}
{{- range $terms -}}
{{- $joined := concat $common . -}}
{{- if $joined -}}{{- $result = append $result $joined -}}{{- end -}}
{{- end -}}
{{- toJson $result -}}
{{- end -}}

{{/* Affinity: the user's, its node terms joined with ours (each with each, since terms are alternatives). */}}
{{- define "tritonstack.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $ours := include "tritonstack.nodeTerms" . | fromJsonArray -}}
{{- if $ours -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $theirs := $required.nodeSelectorTerms | default (list dict) -}}
{{- $terms := list -}}
{{- range $term := $theirs -}}
{{- range $expressions := $ours -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat ($term.matchExpressions | default list) $expressions)) $term) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- if $affinity -}}{{ toYaml $affinity }}{{- end -}}
{{- end -}}

{{- define "tritonstack.tolerations" -}}
{{- $ours := eq .Values.gpu.sharing "none" | ternary list (list (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule")) -}}
{{- with concat $ours .Values.tolerations -}}{{ toYaml . }}{{- end -}}
{{- end -}}
