{{- define "outbox.name" -}}
{{- if contains "outbox-relay" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-outbox-relay" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "outbox.labels" -}}
app.kubernetes.io/name: outbox-relay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "outbox.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What every pod has: no rights, and neither a token of the cluster nor variables of its services. */}}
{{- define "outbox.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # The files of the secret belong to root and this group.
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "outbox.container" -}}
image: {{ include "outbox.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{/* The volume of a secret. 288 is 0440 in octal: for the group, which is `fsGroup`. */}}
{{- define "outbox.secret" -}}
- name: secrets
  secret: { secretName: {{ . | quote }}, defaultMode: 288 }
{{- end }}
