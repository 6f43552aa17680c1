{{- define "effectonce.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a component: (list $ component) */}}
{{- define "effectonce.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: effectonce
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "effectonce.labels" -}}
{{- $top := index . 0 -}}
{{ include "effectonce.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ $top.Chart.Name }}-{{ $top.Chart.Version }}
{{- end }}

{{/* A setting's value as a variable has it. YAML's numbers are floats here, which would print as 1.6e+07. */}}
{{- define "effectonce.value" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if kindIs "float64" . }}{{ int64 . }}
{{- else }}{{ . }}{{ end }}
{{- end }}

{{/* Settings and secrets of a command: (dict "top" $ "of" values "kafka" bool), as YAML. */}}
{{- define "effectonce.merged" -}}
{{- $settings := merge (dict) (.of.settings | default dict) .top.Values.settings }}
{{- $secrets := merge (dict) (.of.secrets | default dict) .top.Values.secrets }}
{{- if not .kafka }}
{{- range $name, $_ := $settings }}{{ if hasPrefix "kafka-" $name }}{{ $_ := unset $settings $name }}{{ end }}{{ end }}
{{- range $name, $_ := $secrets }}{{ if hasPrefix "kafka-" $name }}{{ $_ := unset $secrets $name }}{{ end }}{{ end }}
{{- end }}
{{- toYaml (dict "settings" $settings "secrets" $secrets) }}
{{- end }}

{{/* Variables of what "effectonce.merged" returns. */}}
{{- define "effectonce.env" -}}
{{- range $name, $value := .settings }}
- name: RELAY_{{ $name | upper | replace "-" "_" }}
  value: {{ include "effectonce.value" $value | quote }}
{{- end }}
{{- range $name, $_ := .secrets }}
- name: RELAY_{{ $name | upper | replace "-" "_" }}_FILE
  value: /run/secrets/effectonce/{{ $name }}
{{- end }}
{{- end }}

{{/* The volume of a map from a file's name to a Secret's name and key. */}}
{{- define "effectonce.files" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- if not . }} []{{ end }}
      {{- range $path, $from := . }}
      - secret:
          name: {{ $from.name }}
          items: [{key: {{ $from.key | quote }}, path: {{ $path | quote }}}]
      {{- end }}
{{- end }}

{{/* What all pods have: (list $ component) */}}
{{- define "effectonce.pod" -}}
{{- $top := index . 0 -}}
automountServiceAccountToken: false
# A Service named relay would set RELAY_PORT and the like.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with $top.Values.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "effectonce.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "effectonce.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}

{{- define "effectonce.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Probes of what serves /healthz and /readyz at the port "http". */}}
{{- define "effectonce.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "effectonce.image" -}}
{{ .Values.image | default (printf "ghcr.io/effectonce/relay:v%s" .Chart.AppVersion) }}
{{- end }}

{{/* At most one pod is evicted at a time: (list $ component name) */}}
{{- define "effectonce.pdb" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 2 }}
  labels:
    {{- include "effectonce.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "effectonce.selector" . | nindent 6 }}
{{- end }}
