{{- define "adriaticum.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "adriaticum.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "adriaticum.selector" . }}
{{- end }}

{{- define "adriaticum.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "adriaticum.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Privileges that no container here needs. */}}
{{- define "adriaticum.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "adriaticum.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* All runtimes: our own by the headless service's name, and others. */}}
{{- define "adriaticum.runtimeUrls" -}}
{{- $urls := .Values.runtimeUrls -}}
{{- if .Values.runtimes.enabled }}{{ $urls = prepend $urls (printf "http://%s-runtimes:8090/v1" (include "adriaticum.name" .)) }}{{ end -}}
{{- join "," $urls -}}
{{- end }}
