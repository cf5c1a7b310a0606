{{- define "stepscope.labels" -}}
app.kubernetes.io/part-of: stepscope
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The pods of all pools. */}}
{{- define "stepscope.exporter" -}}
app.kubernetes.io/name: stepscope-exporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
`instance` is the node, and `job` is the same for all: the rules join by them. No label of the pod is kept, so a
replaced pod continues the series of its node.
*/}}
{{- define "stepscope.endpoint" -}}
port: metrics
interval: {{ .Values.monitor.interval }}
scheme: {{ .Values.monitor.scheme }}
{{- with .Values.monitor.tlsConfig }}
tlsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.monitor.basicAuth }}
basicAuth: {{- toYaml . | nindent 2 }}
{{- end }}
relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
  - targetLabel: job
    replacement: stepscope
  - action: labeldrop
    regex: namespace|pod|container|endpoint|service
{{- end }}

{{/* Rule files by name: your own, or those of the chart. */}}
{{- define "stepscope.rules" -}}
{{- $files := .Values.rules.files -}}
{{- if not $files -}}
{{- $files = dict -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yml" -}}
{{- $_ := set $files (trimSuffix ".yml" (base $path)) ($.Files.Get $path) -}}
{{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end }}

{{- define "stepscope.priorityClass" -}}
{{ .Values.exporter.priorityClassName | default (printf "%s-exporter" .Release.Name) }}
{{- end }}

{{- define "stepscope.image" -}}
{{ required "image.repository: build the image from the Dockerfile, push it to your registry, and name it here" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}
