{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* Small decisions, each made once. */}}

{{- define "spotwatch.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "spotwatch.selector" -}}
app.kubernetes.io/name: spotwatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spotwatch.labels" -}}
{{ include "spotwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "spotwatch.grace" -}}
{{- if not (kindIs "invalid" .Values.terminationGracePeriodSeconds) -}}
{{- .Values.terminationGracePeriodSeconds | int -}}
{{- else if eq .Values.cloud "digitalocean" -}}
900
{{- else -}}
120
{{- end -}}
{{- end }}

{{- define "spotwatch.hostNetwork" -}}
{{- if kindIs "invalid" .Values.hostNetwork -}}
{{- eq .Values.cloud "gcp" -}}
{{- else -}}
{{- .Values.hostNetwork -}}
{{- end -}}
{{- end }}

{{- define "spotwatch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "spotwatch.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "spotwatch.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* What must hold between values, beyond the schema. */}}
{{- define "spotwatch.check" -}}
{{- $least := addf (mulf .Values.spotwatch.saveSeconds 1.5) 15 -}}
{{- if lt (include "spotwatch.grace" . | float64) $least -}}
{{- fail (printf "terminationGracePeriodSeconds %s is less than spotwatch.saveSeconds x 1.5 + 15 = %v: the last save would be cut off; raise it, or save faster" (include "spotwatch.grace" .) $least) -}}
{{- end -}}
{{- if and .Values.webhook.enabled (not .Values.webhook.secretFiles) -}}
{{- fail "webhook.enabled needs webhook.secretFiles: spotwatch opens no listener without a secret" -}}
{{- end -}}
{{- if ne (empty .Values.mailbox.url) (empty .Values.mailbox.publicKeys) -}}
{{- fail "mailbox.url and mailbox.publicKeys belong together; `spotwatch relay --make-key FILE` says the key" -}}
{{- end -}}
{{- if and (hasPrefix "/etc/spotwatch/secrets/" .Values.mailbox.credentialsFile) (not .Values.spotwatch.secretName) -}}
{{- fail "mailbox.credentialsFile lies in /etc/spotwatch/secrets, but spotwatch.secretName names no Secret" -}}
{{- end -}}
{{- if and (or .Values.mailbox.url .Values.webhook.enabled) .Values.cloud (ne .Values.cloud "digitalocean") -}}
{{- fail (printf "mailbox and webhook are for cloud: digitalocean; cloud is %q" .Values.cloud) -}}
{{- end -}}
{{- end }}
