{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What of spotwatch's settings the chart sets, so that nobody sets it elsewhere and is not heard. */}}

{{/* Settings that are variables of the container, and win over a file: each with what to write instead. */}}
{{- define "spotwatch.taken" -}}
{{- $taken := dict
    "runtime_dir" "leave it out, the pod's volume decides"
    "state_dir" "leave it out, the pod's volume decides"
    "http.listen" "leave it out, probes and PodMonitor want 0.0.0.0:9475"
    "log.format" "set the value spotwatch.logFormat instead"
    "policy.save_seconds" "set the value spotwatch.saveSeconds instead"
-}}
{{- if .Values.cloud -}}
{{- $_ := set $taken "providers" "set the value cloud instead, or leave that empty" -}}
{{- end -}}
{{- if ne .Values.sidecar "exec" -}}
{{- $_ := set $taken "policy.drain_seconds" "set the value terminationGracePeriodSeconds instead" -}}
{{- end -}}
{{- if and .Values.spotwatch.process (ne .Values.sidecar "exec") -}}
{{- $_ := set $taken "target" "set the value spotwatch.process instead, and its signal as SPOTWATCH_TARGET__0__SIGNAL in spotwatch.env" -}}
{{- $_ := set $taken "target.0.process" "set the value spotwatch.process instead" -}}
{{- end -}}
{{- if eq .Values.sidecar "native" -}}
{{- $_ := set $taken "pod.sidecar" "leave it out, the value sidecar decides" -}}
{{- end -}}
{{- if .Values.spotwatch.flagOwner -}}
{{- $_ := set $taken "flag.owner" "set the value spotwatch.flagOwner instead" -}}
{{- end -}}
{{- if .Values.mailbox.url -}}
{{- $_ := set $taken "provider.digitalocean.mailbox" "set the value mailbox.url instead" -}}
{{- $_ := set $taken "provider.digitalocean.mailbox_keys" "set the value mailbox.publicKeys instead" -}}
{{- $_ := set $taken "provider.digitalocean.mailbox_credentials_file" "set the value mailbox.credentialsFile instead" -}}
{{- end -}}
{{- if .Values.webhook.enabled -}}
{{- $_ := set $taken "webhook.listen" "set the value webhook.port instead" -}}
{{- $_ := set $taken "webhook.secret_files" "set the value webhook.secretFiles instead" -}}
{{- end -}}
{{- toJson $taken -}}
{{- end }}

{{/* The settings that `spotwatch.config` has, as table.key; by lines, since older helm reads no TOML. */}}
{{- define "spotwatch.configKeys" -}}
{{- $table := "" -}}
{{- $keys := list -}}
{{- range splitList "\n" (.Values.spotwatch.config | default "") -}}
{{- $line := regexReplaceAll "[\\s\"']" (regexReplaceAll "#.*" . "") "" -}}
{{- if regexMatch "^\\[+[A-Za-z0-9_.-]+\\]+$" $line -}}
{{- $table = trimAll "[]" $line -}}
{{- $keys = append $keys $table -}}
{{- else -}}
{{- $key := regexFind "^[A-Za-z0-9_.-]+=" $line | trimSuffix "=" -}}
{{- if $key -}}
{{- $full := printf "%s.%s" $table $key | trimPrefix "." -}}
{{- $keys = append $keys $full -}}
{{- if regexMatch "^[A-Za-z0-9_.-]+=[\\[]*\\{" $line -}}
{{- range regexFindAll "[{,][A-Za-z0-9_.-]+=" $line -1 -}}
{{- $keys = append $keys (printf "%s.%s" $full (. | trimAll "{,=")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end }}

{{- define "spotwatch.checkSettings" -}}
{{- range splitList "\n" (.Values.spotwatch.config | default "") -}}
{{- if regexMatch "^[^#\"']*\\{[^#\"']*\\{" . -}}
{{- fail (printf "spotwatch.config: a table in a table on one line cannot be looked into here; write [its.name] on a line of its own: %s" .) -}}
{{- end -}}
{{- end -}}
{{- $taken := include "spotwatch.taken" . | fromJson -}}
{{- range include "spotwatch.configKeys" . | fromJsonArray -}}
{{- if hasKey $taken . -}}
{{- fail (printf "spotwatch.config sets %s, which the chart sets as well: %s" . (get $taken .)) -}}
{{- end -}}
{{- end -}}
{{- range .Values.spotwatch.env -}}
{{- $key := .name | trimPrefix "SPOTWATCH_" | lower | replace "__" "." -}}
{{- if and (hasPrefix "SPOTWATCH_" .name) (hasKey $taken $key) -}}
{{- fail (printf "spotwatch.env sets %s, which the chart sets as well: %s" .name (get $taken $key)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether what is watched is said by settings that are not among the values. */}}
{{- define "spotwatch.namesProviders" -}}
{{- $found := has "providers" (include "spotwatch.configKeys" . | fromJsonArray) -}}
{{- range .Values.spotwatch.env -}}
{{- if eq .name "SPOTWATCH_PROVIDERS" -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/* Whether mail is heard by settings that are not among the values. */}}
{{- define "spotwatch.hearsByConfig" -}}
{{- $found := false -}}
{{- range include "spotwatch.configKeys" . | fromJsonArray -}}
{{- if or (hasPrefix "provider.digitalocean" .) (hasPrefix "webhook" .) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- range .Values.spotwatch.env -}}
{{- if or (hasPrefix "SPOTWATCH_PROVIDER__DIGITALOCEAN__" .name) (hasPrefix "SPOTWATCH_WEBHOOK__" .name) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}
