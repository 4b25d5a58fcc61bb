{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
What follows from the values. Decisions are made here, and templates look here alone:

  mode      gateway, alone (Penstock's own proxy), sidecar or service (Envoy)
  name      the picker's; pool, proxy, account and secret are other names
  replicas  of pickers
  priority  Envoy goes to them in their order
  elect     they elect a leader
  front     all of them are ready, and the leader itself writes where the Service leads
  lone      the leader alone is ready, in Kubernetes' eyes, too
  stood     they elect one, or have: who is told to end still gives back what it has, so that its permissions stay
  scraped   the Service by which Prometheus finds them
  http      the port that the proxy listens on
  auth      who reads metrics shows a token
  secure    ext_proc speaks TLS
*/}}
{{- define "penstock.facts" -}}
{{- $r := .Values.router -}}
{{- $flags := $r.epp.flags | default dict -}}
{{- $own := has ($r.proxy.proxyType | default "penstock") (list "penstock") -}}
{{- $mode := not $r.proxy.enabled | ternary "gateway" ($own | ternary "alone" $r.proxy.mode) -}}
{{- $priority := and (eq $mode "service") $r.proxy.priorityRouting.enabled -}}
{{- $replicas := $priority | ternary (add $r.proxy.priorityRouting.primaryReplicas $r.proxy.priorityRouting.standbyReplicas) $r.epp.replicas | int -}}
{{- $said := get $flags "ha-enable-leader-election" | toString -}}
{{- $elect := and (not $priority) (not $r.epp.autoscaling.enabled) (or (eq $said "true") (and (gt $replicas 1) (ne $mode "alone") (ne $said "false"))) -}}
{{- $front := and $elect (ne $mode "service") $r.epp.leaderService -}}
{{- $short := trunc 40 .Release.Name | trimSuffix "-" -}}
{{- $name := printf "%s-epp" $short -}}
{{- $http := 8081 -}}
{{- range $r.extraServicePorts -}}{{- if eq .name "http" -}}{{- $http = .targetPort | default .port -}}{{- end -}}{{- end -}}
mode: {{ $mode }}
name: {{ $name }}
pool: {{ .Release.Name }}
proxy: {{ $short }}-proxy
account: {{ $r.serviceAccount.name | default ($r.serviceAccount.create | ternary $name "default") }}
secret: {{ $r.monitoring.prometheus.auth.secretName | default (printf "%s-metrics-reader" $name) }}
host: {{ printf "%s.%s.svc.%s" $name .Release.Namespace $r.clusterDomain }}
replicas: {{ $replicas }}
priority: {{ $priority }}
elect: {{ $elect }}
front: {{ $front }}
lone: {{ and $elect (ne $mode "service") (not $front) }}
stood: {{ or $elect (not (or $priority (eq $mode "alone"))) }}
scraped: {{ $front | ternary (printf "%s-metrics" $name) $name }}
http: {{ $http | int }}
auth: {{ and $r.monitoring.prometheus.auth.enabled (ne "false" (get $flags "metrics-endpoint-auth" | toString)) }}
secure: {{ ne "false" (get $flags "secure-serving" | toString) }}
failOpen: {{ and $r.proxy.enabled (not $own) $r.proxy.failOpen }}
{{- end -}}

{{/* Labels by which pods are found: (list $ "component"). */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Labels of an object: (list $ "component"). */}}
{{- define "penstock.labels" -}}
{{- $ := first . -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ $.Chart.Name }}-{{ $.Chart.Version }}
{{- end -}}

{{/* Head of an object: (list $ "name" "component"). */}}
{{- define "penstock.meta" -}}
{{- $ := first . -}}
name: {{ index . 1 }}
namespace: {{ $.Release.Namespace }}
labels: {{- include "penstock.labels" (list $ (last .)) | nindent 2 }}
{{- end -}}

{{/* The command line: what the operator says goes before what the chart says. */}}
{{- define "penstock.args" -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
{{- $r := .Values.router -}}
{{- $file := printf "/config/%s" $r.epp.pluginsConfigFile -}}
{{- $drain := printf "%ds" (sub $r.epp.terminationGracePeriodSeconds 10) -}}
{{- $flags := dict "drain-timeout" $drain "metrics-endpoint-auth" $is.auth "tracing" $r.tracing.enabled -}}
{{- if eq $is.mode "alone" -}}
{{-   $flags = merge $flags (dict "kube" true "filename" $file "http" (printf ":%v" $is.http) "extproc" "off" "metrics" ":9090" "health" (printf ":%v" $r.epp.grpcHealthPort)) -}}
{{- else -}}
{{-   $flags = merge $flags (dict "config-file" $file "grpc-port" $r.epp.extProcPort "grpc-health-port" $r.epp.grpcHealthPort "metrics-port" 9090) -}}
{{-   if eq $is.mode "service" -}}{{- $flags = set $flags "health-checking" true -}}{{- end -}}
{{-   if $r.epp.tls.secretName -}}{{- $flags = set $flags "cert-path" "/tls" -}}{{- end -}}
{{- end -}}
{{- with $r.monitoring.tls -}}
{{-   if .secretName -}}{{- $flags = set $flags "metrics-cert-dir" "/metrics-tls" -}}{{- end -}}
{{-   if .clientSecretName -}}{{- $flags = set $flags "metrics-client-ca-file" "/metrics-client/ca.crt" -}}{{- end -}}
{{- end -}}
{{- if $r.pools.all -}}
{{-   $flags = set $flags "all-pools" true -}}
{{-   with $r.pools.namespaces -}}{{- $flags = set $flags "namespaces" (join "," .) -}}{{- end -}}
{{- else if $r.inferencePool.create -}}
{{-   $flags = merge $flags (dict "pool-name" $is.pool) -}}
{{- else -}}
{{-   $labels := list -}}{{- range $k, $v := $r.modelServers.matchLabels -}}{{- $labels = append $labels (printf "%s=%s" $k $v) -}}{{- end -}}
{{-   $ports := list -}}{{- range $r.modelServers.targetPorts -}}{{- $ports = append $ports (toString .number) -}}{{- end -}}
{{-   $flags = merge $flags (dict "endpoint-selector" (join "," $labels) "endpoint-target-ports" (join "," $ports)) -}}
{{- end -}}
{{- if $is.elect -}}{{- $flags = set $flags "ha-enable-leader-election" true -}}{{- end -}}
{{- if $is.front -}}{{- $flags = merge $flags (dict "ha-service" $is.name) -}}{{- end -}}
{{- range $k, $v := merge (deepCopy ($r.epp.flags | default dict)) $flags }}
- {{ printf "--%s=%v" $k $v | quote }}
{{- end -}}
{{- end -}}

{{/* What the picker may read and write, in each namespace that it looks at. */}}
{{- define "penstock.rules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [inference.networking.k8s.io{{ if .Values.router.pools.all }}, inference.networking.x-k8s.io{{ end }}]
  resources: [inferencepools]
  verbs: [get, list, watch]
- apiGroups: [llm-d.ai, inference.networking.x-k8s.io]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
- apiGroups: [llm-d.ai, inference.networking.x-k8s.io]
  resources: [inferenceobjectives/status, inferencemodelrewrites/status]
  verbs: [get, update, patch]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.router.pools.all }}
# The configuration of a pool, by the name of its endpointPickerRef.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
{{- end }}
{{- end -}}

{{/* What all our pods have: (list $ $epp-or-$proxy "component"). */}}
{{- define "penstock.pod" -}}
{{- $ := first . -}}{{- $v := index . 1 -}}
{{- with $.Values.router.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml $v.podSecurityContext | nindent 2 }}
{{- range $key := list "nodeSelector" "affinity" "tolerations" "priorityClassName" }}
{{- with get $v $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
topologySpreadConstraints:
{{- if $v.topologySpreadConstraints }}
{{ toYaml $v.topologySpreadConstraints | indent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "penstock.selector" (list $ (last .)) | nindent 8 }}
{{- end }}
{{- end -}}

{{/* The Envoy beside the picker, or away from it. */}}
{{- define "penstock.envoy" -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
{{- $p := .Values.router.proxy -}}
name: {{ $p.name }}
image: {{ $p.image }}
imagePullPolicy: {{ $p.imagePullPolicy }}
command: [envoy]
args: {{- toYaml $p.args | nindent 2 }}
{{- with $p.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: http, containerPort: {{ $is.http }}}
  - {name: envoy-stats, containerPort: 19001}
readinessProbe:
  httpGet: {path: /ready, port: envoy-stats}
  periodSeconds: 2
  failureThreshold: 2
resources: {{- toYaml $p.resources | nindent 2 }}
securityContext: {{- toYaml $p.securityContext | nindent 2 }}
volumeMounts:
  - {name: envoy, mountPath: /etc/envoy, readOnly: true}
{{- with .Values.router.epp.tls.secretName }}
  - {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- with $p.volumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end -}}

{{- define "penstock.envoyVolumes" -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
- name: envoy
  configMap: {name: {{ $is.proxy }}}
{{- with .Values.router.proxy.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Envoy's configuration: that of deploy/envoy, with the addresses of this release. */}}
{{- define "penstock.envoyConfig" -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
{{- $r := .Values.router -}}
{{- $text := .Files.Get "files/envoy.yaml" | replace "# render:" "#render:" -}}
{{- if $is.failOpen -}}
{{-   $text = regexReplaceAll "(?s)#render: fail-close begin.*?#render: fail-close end" $text "" | replace "false #render: failure-mode" "true" -}}
{{-   range regexFindAll "(?s)#render: fail-open begin.*?#render: fail-open end" $text -1 -}}
{{-     $text = replace . (regexReplaceAll "(?m)^( *)# " . "${1}") $text -}}
{{-   end -}}
{{- end -}}
{{- $envoy := fromYaml $text -}}
{{- $resources := $envoy.static_resources -}}
{{- $own := include "penstock.envoyOwn" . | fromYaml -}}
{{- $_ := set (first $resources.listeners) "address" $own.listen -}}
{{- range $cluster := $resources.clusters -}}
{{-   $_ := mergeOverwrite $cluster (get $own.clusters $cluster.name | default dict) -}}
{{-   if and (eq $cluster.name "picker") (not $is.secure) -}}{{- $_ := unset $cluster "transport_socket" -}}{{- end -}}
{{- end -}}
{{- $_ := set $resources "clusters" (append $resources.clusters $own.statsCluster) -}}
{{- $_ := set $resources "listeners" (append $resources.listeners $own.statsListener) -}}
{{- toYaml $envoy -}}
{{- end -}}

{{- define "penstock.address" -}}
endpoint: {address: {socket_address: {address: {{ first . | quote }}, port_value: {{ last . }}}}}
{{- end -}}

{{- define "penstock.envoyOwn" -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
{{- $r := .Values.router -}}
{{- $port := $r.epp.extProcPort -}}
{{- $all := printf "%s-all.%s.svc.%s" $is.name .Release.Namespace $r.clusterDomain -}}
listen: {socket_address: {address: {{ $r.proxy.address | quote }}, ipv4_compat: {{ contains ":" $r.proxy.address }}, port_value: {{ $is.http }}}}
clusters:
  picker:
    load_assignment:
      cluster_name: picker
      endpoints:
      {{- if $is.priority }}
        # The first pickers while one of them is there, the others while none is.
        - priority: 0
          lb_endpoints:
          {{- range $i := until (int $r.proxy.priorityRouting.primaryReplicas) }}
            - {{ include "penstock.address" (list (printf "%s-%d.%s" $is.name $i $all) $port) }}
          {{- end }}
        - priority: 1
          lb_endpoints:
          {{- range $i := untilStep (int $r.proxy.priorityRouting.primaryReplicas) (int $is.replicas) 1 }}
            - {{ include "penstock.address" (list (printf "%s-%d.%s" $is.name $i $all) $port) }}
          {{- end }}
      {{- else }}
        - lb_endpoints:
            - {{ include "penstock.address" (list (eq $is.mode "sidecar" | ternary "127.0.0.1" $all) $port) }}
      {{- end }}
    {{- if eq $is.mode "service" }}
    dns_refresh_rate: 1s
    dns_failure_refresh_rate: {base_interval: 0.5s, max_interval: 2s}
    # Which pickers serve they say themselves, on the port that is asked. While none says so all are asked.
    health_checks:
      - timeout: 1s
        interval: 1s
        no_traffic_interval: 1s
        unhealthy_threshold: 1
        healthy_threshold: 1
        grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}
    # A refused connection is believed at once.
    outlier_detection:
      split_external_local_origin_errors: true
      consecutive_local_origin_failure: 1
      base_ejection_time: 2s
      max_ejection_percent: 100
    {{- end }}
    {{- if $r.epp.tls.secretName }}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: {{ $is.host }}
        common_tls_context:
          alpn_protocols: [h2]
          validation_context:
            trusted_ca: {filename: /tls/ca.crt, watched_directory: {path: /tls}}
            match_typed_subject_alt_names:
              - {san_type: DNS, matcher: {exact: {{ $is.host }}}}
    {{- end }}
  fallback:
    load_assignment:
      cluster_name: fallback
      endpoints:
        - lb_endpoints:
          {{- range $r.modelServers.targetPorts }}
            - {{ include "penstock.address" (list (printf "%s-models.%s.svc.%s" $is.proxy $.Release.Namespace $r.clusterDomain) .number) }}
          {{- end }}
statsCluster:
  name: stats
  type: STATIC
  load_assignment:
    cluster_name: stats
    endpoints: [{lb_endpoints: [{{ print "{" (include "penstock.address" (list "127.0.0.1" 9901)) "}" }}]}]
statsListener:
  name: stats
  address: {socket_address: {address: {{ $r.proxy.address | quote }}, ipv4_compat: {{ contains ":" $r.proxy.address }}, port_value: 19001}}
  filter_chains:
    - filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            stat_prefix: stats
            route_config:
              virtual_hosts:
                - name: stats
                  domains: ["*"]
                  routes: [{match: {path: /stats/prometheus}, route: {cluster: stats}}, {match: {path: /ready}, route: {cluster: stats}}]
            http_filters:
              - name: envoy.filters.http.router
                typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
{{- end -}}

{{/* A horizontal autoscaler: (list $ "name" "component" "Deployment" $autoscaling). */}}
{{- define "penstock.hpa" -}}
{{- $a := last . -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{- include "penstock.meta" (slice . 0 3) | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ index . 1 }}}
  minReplicas: {{ $a.minReplicas }}
  maxReplicas: {{ $a.maxReplicas }}
  metrics:
  {{- range $resource := list "CPU" "Memory" }}
  {{- with get $a (printf "target%sUtilizationPercentage" $resource) }}
  {{- if not $a.metrics }}
    - type: Resource
      resource: {name: {{ lower $resource }}, target: {type: Utilization, averageUtilization: {{ . }}}}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with $a.metrics }}
{{ toYaml . | indent 4 }}
  {{- end }}
  {{- with $a.behavior }}
  behavior: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* What values cannot mean. */}}
{{- define "penstock.refuse" -}}
{{- $moved := dict
  "inferenceExtension" "router.epp (image, replicas, flags, env, pluginsConfigFile, pluginsCustomConfig), router.monitoring, router.tracing and router.latencyPredictor"
  "inferencePool" "router.inferencePool (create, failureMode) and router.modelServers (matchLabels, type, protocol, targetPorts)"
  "inferenceObjectives" "router.inferenceObjectives"
  "experimentalHttpRoute" "httpRoute, with create in place of enabled" -}}
{{- range $old, $new := $moved -}}
{{- if hasKey $.Values $old -}}{{- fail (printf "%s: has moved to %s" $old $new) -}}{{- end -}}
{{- end -}}
{{- $is := include "penstock.facts" . | fromYaml -}}
{{- $r := .Values.router -}}
{{- if and $r.pools.namespaces (not $r.pools.all) -}}
{{-   fail "router.pools.namespaces: are those of router.pools.all=true: set that, too" -}}
{{- end -}}
{{- if and (not $r.modelServers.matchLabels) (not $r.pools.all) -}}
{{-   fail "router.modelServers.matchLabels: is required: the labels of the engines' pods, such as --set router.modelServers.matchLabels.app=vllm-qwen3-32b" -}}
{{- end -}}
{{- if and (eq $is.mode "alone") (not $r.inferencePool.create) (not $r.pools.all) -}}
{{-   fail "router.proxy.proxyType=penstock: finds engines by an InferencePool: set router.inferencePool.create=true, or router.pools.all=true for pools that are there already" -}}
{{- end -}}
{{- if and $r.inferenceObjectives (or $r.pools.all (not $r.inferencePool.create)) -}}
{{-   fail "router.inferenceObjectives: belong to the pool of this release: set router.inferencePool.create=true and router.pools.all=false, or apply them by themselves" -}}
{{- end -}}
{{- if and $r.epp.pluginsConfig (hasKey $r.epp.pluginsCustomConfig $r.epp.pluginsConfigFile) -}}
{{-   fail (printf "router.epp.pluginsConfig and router.epp.pluginsCustomConfig both say what is in %s: remove one" $r.epp.pluginsConfigFile) -}}
{{- end -}}
{{- if not (or $r.epp.pluginsConfig (hasKey $r.epp.pluginsCustomConfig $r.epp.pluginsConfigFile) (has $r.epp.pluginsConfigFile (list "default-plugins.yaml" "llm-d-plugins.yaml"))) -}}
{{-   fail (printf "router.epp.pluginsConfigFile: there is no %s: write it under router.epp.pluginsCustomConfig, or take default-plugins.yaml or llm-d-plugins.yaml" $r.epp.pluginsConfigFile) -}}
{{- end -}}
{{- if and $r.proxy.priorityRouting.enabled (not $is.priority) -}}
{{-   fail "router.proxy.priorityRouting: is for router.proxy.enabled=true with proxyType=envoy and mode=service" -}}
{{- end -}}
{{- if and $r.monitoring.tls.clientSecretName (not $r.monitoring.tls.secretName) -}}
{{-   fail "router.monitoring.tls.clientSecretName: asks readers for certificates: set router.monitoring.tls.secretName, since only TLS has any" -}}
{{- end -}}
{{- if $is.front -}}
{{-   range $r.extraServicePorts -}}
{{-     if and (kindIs "string" .targetPort) (not (regexMatch "^[0-9]+$" .targetPort)) -}}
{{-       fail (printf "router.extraServicePorts: targetPort %s of port %s is a name: write its number, since the leader itself says where the Service leads (or set router.epp.leaderService=false)" .targetPort .name) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- if and $r.epp.autoscaling.enabled (or $is.priority (eq "true" (get ($r.epp.flags | default dict) "ha-enable-leader-election" | toString))) -}}
{{-   fail "router.epp.autoscaling: is for replicas that all serve: remove router.epp.flags.ha-enable-leader-election and router.proxy.priorityRouting" -}}
{{- end -}}
{{- if and $r.proxy.enabled (ne .Values.provider.name "none") -}}
{{-   fail (printf "provider.name=%s and router.proxy.enabled=true: either a Gateway is in front of the picker or a proxy" .Values.provider.name) -}}
{{- end -}}
{{- if and $r.proxy.enabled .Values.httpRoute.create -}}
{{-   fail "httpRoute.create: is for a Gateway in front of the picker: set router.proxy.enabled=false" -}}
{{- end -}}
{{- if and .Values.httpRoute.create (or $r.pools.all (not $r.inferencePool.create)) -}}
{{-   fail "httpRoute.create: leads to the pool of this release: set router.inferencePool.create=true and router.pools.all=false" -}}
{{- end -}}
{{- if and $r.modelServers.scaledObject.enabled (not $r.modelServers.scaledObject.scaleTargetRef.name) -}}
{{-   fail "router.modelServers.scaledObject.scaleTargetRef.name: is required: the Deployment of the engines" -}}
{{- end -}}
{{- if and $r.tokenizer.enabled (not $r.tokenizer.modelName) -}}
{{-   fail "router.tokenizer.modelName: is required: the model whose prompts are rendered" -}}
{{- end -}}
{{- if (($r.latencyPredictor).enabled) -}}
{{-   fail "router.latencyPredictor.enabled: Penstock has no sidecars for it: it learns the speed of each endpoint itself (priced-miss-scorer)" -}}
{{- end -}}
{{- if (((.Values.provider.gke).preferredBackends).enabled) -}}
{{-   fail "provider.gke.preferredBackends: is not supported: set router.epp.replicas=2 for a standby that takes over by itself" -}}
{{- end -}}
{{- end -}}
