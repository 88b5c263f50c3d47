{{/* SPDX-License-Identifier: Apache-2.0 */}}
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
{{- if and (hasPrefix "/etc/spotwatch/secrets/" (.Values.mailbox.credentialsFile | default "")) (not .Values.spotwatch.secretName) -}}
{{- fail "mailbox.credentialsFile lies in /etc/spotwatch/secrets, but spotwatch.secretName names no Secret" -}}
{{- end -}}
{{- if and (or .Values.mailbox.url .Values.webhook.enabled) .Values.cloud (ne .Values.cloud "digitalocean") -}}
{{- fail (printf "mailbox and webhook are for cloud: digitalocean; cloud is %q" .Values.cloud) -}}
{{- end -}}
{{- if and (eq .Values.cloud "digitalocean") (not .Values.mailbox.url) (not .Values.webhook.enabled) (eq (include "spotwatch.hearsByConfig" .) "false") -}}
{{- fail "cloud: digitalocean gives notice by mail alone: set mailbox.url and mailbox.publicKeys, or webhook.enabled (docs/fleet.md)" -}}
{{- end -}}
{{- if .Values.webhook.enabled -}}
{{- if eq (int .Values.webhook.port) 9475 -}}
{{- fail "webhook.port 9475 is the port of the metrics; take another, such as 8475" -}}
{{- end -}}
{{- range .Values.webhook.secretFiles -}}
{{- if and (hasPrefix "/etc/spotwatch/secrets/" .) (not $.Values.spotwatch.secretName) -}}
{{- fail (printf "webhook.secretFiles: %s lies in /etc/spotwatch/secrets, but spotwatch.secretName names no Secret" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (or (ne .Values.kind "Job") .Values.webhook.enabled) (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "spotwatch.name" .))) -}}
{{- fail (printf "release %q cannot name a Service: with kind %s, or a webhook, it has to begin with a letter and to have no dot" .Release.Name .Values.kind) -}}
{{- end -}}
{{- if and (eq .Values.sidecar "native") (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "sidecar: native needs Kubernetes 1.29 or later, this is %s; set sidecar to plain or exec" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "spotwatch.checkSettings" . -}}
{{- include "spotwatch.checkOnce" . -}}
{{- end }}

{{/* What the chart gives a name to, nobody else may: a server takes one of two, or none. */}}
{{- define "spotwatch.checkOnce" -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey ($.Values.pod.labels | default dict) . -}}
{{- fail (printf "pod.labels: %s is the chart's, which finds its pods by it" .) -}}
{{- end -}}
{{- end -}}
{{- $spec := (include "spotwatch.podTemplate" . | fromYaml).spec -}}
{{- $volumes := dict -}}
{{- range $spec.volumes -}}
{{- if hasKey $volumes .name -}}
{{- fail (printf "pod.volumes: the chart has a volume %q of its own; call yours otherwise" .name) -}}
{{- end -}}
{{- $_ := set $volumes .name true -}}
{{- end -}}
{{- range concat ($spec.initContainers | default list) $spec.containers -}}
{{- $container := .name -}}
{{- $variables := dict -}}
{{- range .env -}}
{{- if hasKey $variables .name -}}
{{- fail (printf "container %s: %s is set twice; leave it out of trainer.env and spotwatch.env, or set it once (the run's name is the value checkpoint.runId, its place checkpoint.url)" $container .name) -}}
{{- end -}}
{{- $_ := set $variables .name true -}}
{{- end -}}
{{- $mounts := dict -}}
{{- range .volumeMounts -}}
{{- $path := trimSuffix "/" .mountPath -}}
{{- if hasKey $mounts $path -}}
{{- fail (printf "trainer.volumeMounts: something of the chart's is mounted at %s; mount yours elsewhere" $path) -}}
{{- end -}}
{{- $_ := set $mounts $path true -}}
{{- end -}}
{{- end -}}
{{- end }}
