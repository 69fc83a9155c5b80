{{- define "squire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "squire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains (include "squire.name" .) .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "squire.name" .) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "squire.selector" -}}
app.kubernetes.io/name: {{ include "squire.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "squire.labels" -}}
{{ include "squire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "squire.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "squire.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "squire.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "squire.nats" -}}
{{- if eq (dig "bus" "kind" "embedded" .Values.config) "nats" -}}true{{- end -}}
{{- end -}}

{{- /* The estate's name as streams have it: the same reduction as docs/bus.md. Names of other shapes hash there, and KEDA cannot name their stream. */ -}}
{{- define "squire.estateToken" -}}
{{- $name := dig "estate" "name" "default" .Values.config | lower -}}
{{- $token := regexReplaceAll "[^a-z0-9]+" $name "-" | trimAll "-" -}}
{{- if or (eq $token "") (gt (len $token) 40) -}}
{{- fail "autoscaling on the queue needs an estate.name of 1 to 40 letters, digits and dashes: longer names are hashed in the streams' names" -}}
{{- end -}}
{{- $token | upper -}}
{{- end -}}

{{- /* Seconds of a duration such as "5m" or "90s", for grace.drain. */ -}}
{{- define "squire.seconds" -}}
{{- $text := . -}}
{{- if not (regexMatch "^[0-9]+(s|m|h)$" $text) -}}
{{- fail (printf "config.grace.drain is %q: the chart reads 90s, 5m or 1h" $text) -}}
{{- end -}}
{{- $n := regexFind "^[0-9]+" $text | atoi -}}
{{- if hasSuffix "h" $text -}}{{- mul $n 3600 -}}{{- else if hasSuffix "m" $text -}}{{- mul $n 60 -}}{{- else -}}{{- $n -}}{{- end -}}
{{- end -}}

{{- define "squire.gracePeriod" -}}
{{- add (include "squire.seconds" (dig "grace" "drain" "5m" .Values.config) | atoi) .Values.terminationMarginSeconds -}}
{{- end -}}

{{- /* Whole numbers arrive as floating point from a values file; TOML and the binaries tell them apart. Changes the map in place. */ -}}
{{- define "squire.numbers" -}}
{{- $map := . -}}
{{- range $key, $value := $map -}}
{{- if kindIs "map" $value -}}
{{- $_ := include "squire.numbers" $value -}}
{{- else if kindIs "float64" $value -}}
{{- if eq (floor $value) $value -}}{{- $_ := set $map $key (int64 $value) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The configuration file: .Values.config and the paths of mounted secrets. */ -}}
{{- define "squire.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $bus := default dict $config.bus -}}
{{- if .Values.bus.credentialsSecret -}}{{- $_ := set $bus "credentials" "/etc/squire/nats/nats.creds" -}}{{- end -}}
{{- if .Values.bus.nkeySecret -}}{{- $_ := set $bus "nkey" "/etc/squire/nkey/nkey.seed" -}}{{- end -}}
{{- if .Values.bus.tlsSecret -}}
{{- $tls := dict "ca" "/etc/squire/tls/ca.crt" -}}
{{- if .Values.bus.tlsClient -}}
{{- $_ := set $tls "cert" "/etc/squire/tls/tls.crt" -}}{{- $_ := set $tls "key" "/etc/squire/tls/tls.key" -}}
{{- end -}}
{{- $_ := set $bus "tls" $tls -}}
{{- end -}}
{{- $_ := set $config "bus" $bus -}}
{{- $_ := include "squire.numbers" $config -}}
{{- toToml $config -}}
{{- end -}}

{{- define "squire.env" -}}
- name: TMPDIR
  value: /scratch
{{- range .root.Values.env }}
- name: {{ .name }}
  value: {{ .value | quote }}
{{- end }}
{{- range concat .root.Values.secretEnv (default list .own) }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}
{{- end -}}

{{- define "squire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "squire.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "squire.mounts" -}}
- name: config
  mountPath: /etc/squire/squire.toml
  subPath: squire.toml
  readOnly: true
- name: scratch
  mountPath: /scratch
{{- if .Values.bus.credentialsSecret }}
- name: nats
  mountPath: /etc/squire/nats
  readOnly: true
{{- end }}
{{- if .Values.bus.nkeySecret }}
- name: nkey
  mountPath: /etc/squire/nkey
  readOnly: true
{{- end }}
{{- if .Values.bus.tlsSecret }}
- name: tls
  mountPath: /etc/squire/tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "squire.volumes" -}}
- name: config
  configMap:
    name: {{ include "squire.fullname" . }}
- name: scratch
  emptyDir:
    sizeLimit: {{ .Values.scratch.sizeLimit }}
{{- with .Values.bus.credentialsSecret }}
- name: nats
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.bus.nkeySecret }}
- name: nkey
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.bus.tlsSecret }}
- name: tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- end -}}

{{- define "squire.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The daemons that run as Deployments: name, binary, port, values, consumer and stream for KEDA. */ -}}
{{- define "squire.daemons" -}}
{{- $daemons := list -}}
{{- if not (and (eq .Values.run "cron") (eq .Values.cron.kind "sweep")) -}}
{{- if .Values.maintenance.enabled -}}
{{- $daemons = append $daemons (dict "name" "maintenance" "binary" "squire-maintenance" "port" 9464 "values" .Values.maintenance "stream" "WORK" "consumer" "pass") -}}
{{- end -}}
{{- if .Values.reconcile.enabled -}}
{{- $daemons = append $daemons (dict "name" "reconcile" "binary" "squire-reconcile" "port" 9465 "values" .Values.reconcile) -}}
{{- end -}}
{{- if .Values.indexBuild.enabled -}}
{{- $daemons = append $daemons (dict "name" "index-build" "binary" "squire-index-build" "port" 9466 "values" .Values.indexBuild "stream" "INDEX" "consumer" "build") -}}
{{- end -}}
{{- end -}}
{{- dict "list" $daemons | toJson -}}
{{- end -}}
