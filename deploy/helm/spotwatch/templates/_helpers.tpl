{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* Small decisions, each made once. */}}

{{- define "spotwatch.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" | trimSuffix "." -}}
{{- end }}

{{- define "spotwatch.selector" -}}
app.kubernetes.io/name: spotwatch
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "spotwatch.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "spotwatch.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* AKS alone taints and labels its spot nodes by itself: learn.microsoft.com, "Add an Azure Spot node pool", 2026. */}}
{{- define "spotwatch.spotNodes" -}}
{{- if eq .Values.cloud "azure" -}}
kubernetes.azure.com/scalesetpriority: spot
{{- end -}}
{{- end }}

{{- define "spotwatch.spotTolerations" -}}
{{- if eq .Values.cloud "azure" -}}
- key: kubernetes.azure.com/scalesetpriority
  operator: Equal
  value: spot
  effect: NoSchedule
{{- else -}}
[]
{{- end -}}
{{- end }}

{{/* Before 1.29, where no native sidecar can be, every rule must have conditions, if none. */}}
{{- define "spotwatch.noConditions" -}}
{{- if ne .Values.sidecar "native" -}}
onPodConditions: []
{{- end -}}
{{- end }}
