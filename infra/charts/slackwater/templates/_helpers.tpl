{{/* Names, labels, settings as variables, and the security that all pods have. */}}

{{- define "slackwater.name" -}}
{{- if eq .component "sidecar" }}{{ .release }}-{{ .name }}-sidecar{{ else }}{{ .release }}-{{ .name }}{{ end }}
{{- end }}

{{- define "slackwater.selector" -}}
app.kubernetes.io/name: slackwater
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .component }}
slackwater/{{ .component }}: {{ .name }}
{{- end }}

{{- define "slackwater.labels" -}}
{{ include "slackwater.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "slackwater.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The variable of a setting: kafka.bootstrap is SLACKWATER_KAFKA_BOOTSTRAP. */}}
{{- define "slackwater.variable" -}}
SLACKWATER_{{ . | replace "." "_" | upper }}
{{- end }}

{{/* The list of variables of settings, plain ones and references; those of the part win over those of all. */}}
{{- define "slackwater.env" -}}
{{- $own := .part.settings | default dict }}
{{- $ownSecret := .part.secretSettings | default dict }}
{{- range $key, $value := merge (dict) $own .root.Values.settings }}
{{- if not (or (hasKey $ownSecret $key) (and (hasKey $.root.Values.secretSettings $key) (not (hasKey $own $key)))) }}
- name: {{ include "slackwater.variable" $key }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- range $key, $from := merge (dict) $ownSecret .root.Values.secretSettings }}
{{- if or (hasKey $ownSecret $key) (not (hasKey $own $key)) }}
- name: {{ include "slackwater.variable" $key }}
  valueFrom:
    secretKeyRef: {name: {{ $from.name }}, key: {{ $from.key }}}
{{- end }}
{{- end }}
{{- end }}

{{/* How pages are asked for: with TLS if there is a certificate for them. */}}
{{- define "slackwater.scheme" -}}
{{- $settings := merge (dict) (.part.settings | default dict) .root.Values.settings }}
{{- if hasKey $settings "http.certificate" }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- define "slackwater.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "slackwater.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "slackwater.secretVolumes" -}}
{{- range $number, $from := .Values.secretFiles }}
- name: secret-{{ $number }}
  secret:
    secretName: {{ $from.secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "slackwater.secretMounts" -}}
{{- range $number, $from := .Values.secretFiles }}
- name: secret-{{ $number }}
  mountPath: {{ $from.path }}
  readOnly: true
{{- end }}
{{- end }}

{{/* Whatever else is closed, names can be looked up. */}}
{{- define "slackwater.dns" -}}
- to:
    - namespaceSelector: {}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{/* Scrapes the Service of a sidecar or a pipeline. */}}
{{- define "slackwater.serviceMonitor" -}}
{{- with .root.Values.serviceMonitor }}
{{- if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "slackwater.name" $ }}
  labels:
    {{- include "slackwater.labels" $ | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels: {{- include "slackwater.selector" $ | nindent 6 }}
  endpoints:
    - port: http
      path: /metrics
      scheme: {{ include "slackwater.scheme" $ | lower }}
      interval: {{ .interval }}
      {{- with .endpoint }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
