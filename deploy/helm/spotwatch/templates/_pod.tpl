{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The pod, the same in a Job and in a JobSet. */}}

{{- define "spotwatch.namesIn" -}}
{{- $names := list -}}
{{- range . -}}{{- $names = append $names .name -}}{{- end -}}
{{- toJson $names -}}
{{- end }}

{{- define "spotwatch.trainerContainer" -}}
{{- $isExec := eq .Values.sidecar "exec" -}}
- name: trainer
  image: {{ .Values.trainer.image | quote }}
  {{- with .Values.trainer.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- if $isExec }}
  command: [spotwatch, exec, --]
  args:
    {{- concat .Values.trainer.command .Values.trainer.args | toYaml | nindent 4 }}
  {{- else }}
  command:
    {{- toYaml .Values.trainer.command | nindent 4 }}
  {{- with .Values.trainer.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  env:
    {{- if $isExec }}
    {{- include "spotwatch.daemonEnv" . | nindent 4 }}
    {{- else }}
    - name: SPOTWATCH_RUNTIME_DIR
      value: /run/spotwatch/shared
    {{- end }}
    - name: SPOTWATCH_CHECKPOINT_URL
      value: {{ .Values.checkpoint.url | quote }}
    - name: SPOTWATCH_RUN_ID
      value: {{ .Values.checkpoint.runId | default (include "spotwatch.name" .) | quote }}
    {{- if not (has "HOME" (include "spotwatch.namesIn" .Values.trainer.env | fromJsonArray)) }}
    - name: HOME
      value: /tmp
    {{- end }}
    {{- with .Values.trainer.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or .Values.checkpoint.secretName .Values.trainer.envFrom }}
  envFrom:
    {{- with .Values.checkpoint.secretName }}
    - secretRef:
        name: {{ . | quote }}
        optional: true
    {{- end }}
    {{- with .Values.trainer.envFrom }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if .Values.trainer.flagOnStop }}
  lifecycle:
    preStop:
      exec:
        command:
          - sh
          - -c
          - f=$SPOTWATCH_RUNTIME_DIR/checkpoint-now; touch "$f"; while [ -e "$f" ]; do sleep 1; done
  {{- end }}
  {{- if $isExec }}
  ports:
    {{- include "spotwatch.daemonPorts" . | nindent 4 }}
  {{- end }}
  volumeMounts:
    {{- if $isExec }}
    {{- include "spotwatch.daemonMounts" . | nindent 4 }}
    {{- else }}
    - name: spotwatch-run
      mountPath: /run/spotwatch
    {{- end }}
    - name: tmp
      mountPath: /tmp
    - name: shm
      mountPath: /dev/shm
    {{- with .Values.trainer.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.trainer.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.trainer.securityContext | nindent 4 }}
{{- end }}

{{- define "spotwatch.podTemplate" -}}
metadata:
  labels:
    {{- include "spotwatch.selector" . | nindent 4 }}
    {{- with .Values.pod.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.pod.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: {{ include "spotwatch.grace" . }}
  serviceAccountName: {{ include "spotwatch.serviceAccountName" . | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- if and .Values.spotwatch.process (ne .Values.sidecar "exec") }}
  shareProcessNamespace: true
  {{- end }}
  {{- if eq .Values.kind "IndexedJob" }}
  subdomain: {{ include "spotwatch.name" . | quote }}
  {{- end }}
  {{- if eq (include "spotwatch.hostNetwork" .) "true" }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with .Values.pod.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.pod.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.pod.nodeSelector | default (include "spotwatch.spotNodes" . | fromYaml) }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with concat (.Values.pod.tolerations | default list) (include "spotwatch.spotTolerations" . | fromYamlArray) }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.pod.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.pod.securityContext | nindent 4 }}
  {{- if eq .Values.sidecar "native" }}
  initContainers:
    {{- include "spotwatch.daemonContainer" . | nindent 4 }}
  {{- end }}
  containers:
    {{- include "spotwatch.trainerContainer" . | nindent 4 }}
    {{- if eq .Values.sidecar "plain" }}
    {{- include "spotwatch.daemonContainer" . | nindent 4 }}
    {{- end }}
  volumes:
    - name: spotwatch-run
      emptyDir:
        medium: Memory
        sizeLimit: 16Mi
    - name: spotwatch-state
      emptyDir:
        sizeLimit: 64Mi
    - name: tmp
      emptyDir: {}
    - name: shm
      emptyDir:
        medium: Memory
        {{- with .Values.pod.shmSize }}
        sizeLimit: {{ . | quote }}
        {{- end }}
    {{- if .Values.spotwatch.config }}
    - name: spotwatch-config
      configMap:
        name: {{ include "spotwatch.name" . }}-config
    {{- end }}
    {{- with .Values.spotwatch.secretName }}
    - name: spotwatch-secrets
      secret:
        secretName: {{ . | quote }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.pod.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
