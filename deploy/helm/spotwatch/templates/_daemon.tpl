{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What spotwatch itself is given, be it a container of its own or the trainer's first process. */}}

{{- define "spotwatch.daemonEnv" -}}
{{- if or .Values.cloud (eq (include "spotwatch.namesProviders" .) "false") }}
- name: SPOTWATCH_PROVIDERS
  value: {{ .Values.cloud | default "auto" }}
{{- end }}
- name: SPOTWATCH_RUNTIME_DIR
  value: /run/spotwatch/shared
- name: SPOTWATCH_STATE_DIR
  value: /var/lib/spotwatch
- name: SPOTWATCH_HTTP__LISTEN
  value: 0.0.0.0:9475
{{- if eq .Values.sidecar "native" }}
- name: SPOTWATCH_POD__SIDECAR
  value: native
{{- end }}
- name: SPOTWATCH_LOG__FORMAT
  value: {{ .Values.spotwatch.logFormat }}
- name: SPOTWATCH_POLICY__SAVE_SECONDS
  value: {{ .Values.spotwatch.saveSeconds | quote }}
{{- if ne .Values.sidecar "exec" }}
- name: SPOTWATCH_POLICY__DRAIN_SECONDS
  value: {{ include "spotwatch.grace" . | quote }}
{{- end }}
{{- if and .Values.spotwatch.process (ne .Values.sidecar "exec") }}
- name: SPOTWATCH_TARGET__0__PROCESS
  value: {{ .Values.spotwatch.process | quote }}
{{- end }}
{{- with .Values.spotwatch.flagOwner }}
- name: SPOTWATCH_FLAG__OWNER
  value: {{ . | quote }}
{{- end }}
{{- with .Values.mailbox }}
{{- if .url }}
- name: SPOTWATCH_PROVIDER__DIGITALOCEAN__MAILBOX
  value: {{ .url | quote }}
- name: SPOTWATCH_PROVIDER__DIGITALOCEAN__MAILBOX_KEYS
  value: {{ join "," .publicKeys | quote }}
{{- with .credentialsFile }}
- name: SPOTWATCH_PROVIDER__DIGITALOCEAN__MAILBOX_CREDENTIALS_FILE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.webhook.enabled }}
- name: SPOTWATCH_WEBHOOK__LISTEN
  value: {{ printf "0.0.0.0:%d" (int .Values.webhook.port) | quote }}
- name: SPOTWATCH_WEBHOOK__SECRET_FILES
  value: {{ join "," .Values.webhook.secretFiles | quote }}
{{- end }}
{{- with .Values.spotwatch.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "spotwatch.daemonPorts" -}}
- name: metrics
  containerPort: 9475
{{- if .Values.webhook.enabled }}
- name: webhook
  containerPort: {{ .Values.webhook.port | int }}
{{- end }}
{{- end }}

{{- define "spotwatch.daemonMounts" -}}
- name: spotwatch-run
  mountPath: /run/spotwatch
- name: spotwatch-state
  mountPath: /var/lib/spotwatch
{{- if .Values.spotwatch.config }}
- name: spotwatch-config
  mountPath: /etc/spotwatch/spotwatch.toml
  subPath: spotwatch.toml
  readOnly: true
{{- end }}
{{- if .Values.spotwatch.secretName }}
- name: spotwatch-secrets
  mountPath: /etc/spotwatch/secrets
  readOnly: true
{{- end }}
{{- end }}

{{- define "spotwatch.daemonContainer" -}}
- name: spotwatch
  image: {{ include "spotwatch.image" . | quote }}
  {{- with .Values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- if eq .Values.sidecar "native" }}
  restartPolicy: Always
  {{- end }}
  args:
    - run
    {{- if eq .Values.sidecar "plain" }}
    - --exit-with-trainer
    {{- end }}
  env:
    {{- include "spotwatch.daemonEnv" . | nindent 4 }}
  ports:
    {{- include "spotwatch.daemonPorts" . | nindent 4 }}
  {{- if eq .Values.sidecar "native" }}
  startupProbe:
    httpGet:
      path: /healthz
      port: metrics
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /healthz
      port: metrics
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
    terminationGracePeriodSeconds: 5
  readinessProbe:
    httpGet:
      path: /readyz
      port: metrics
    periodSeconds: 10
    timeoutSeconds: 5
  {{- end }}
  volumeMounts:
    {{- include "spotwatch.daemonMounts" . | nindent 4 }}
  resources:
    {{- toYaml .Values.spotwatch.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
{{- end }}
