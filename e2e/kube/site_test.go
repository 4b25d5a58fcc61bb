// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// basics is what an operator of llm-d has in a namespace: the pool, the picker's account with the permissions that llm-d's
// chart gives it, and its configuration: requests to an empty pool may wait for ttl.
func basics(ttl string) string {
	return `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: epp}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: epp}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}
- {apiGroups: [llm-d.ai, inference.networking.x-k8s.io], resources: [inferenceobjectives, inferencemodelrewrites], verbs: [get, list, watch]}
- {apiGroups: [llm-d.ai, inference.networking.x-k8s.io], resources: [inferenceobjectives/status, inferencemodelrewrites/status], verbs: [get, update, patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: epp}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: epp}
subjects: [{kind: ServiceAccount, name: epp}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: epp}
data:
  default-plugins.yaml: |
    apiVersion: llm-d.ai/v1alpha1
    kind: EndpointPickerConfig
    featureGates: [flowControl]
    plugins:
    - type: queue-scorer
    - type: kv-cache-utilization-scorer
    - type: prefix-cache-scorer
    schedulingProfiles:
    - name: default
      plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
    flowControl:
      defaultRequestTTL: 60s
      noEndpointRequestTTL: ` + ttl + "\n"
}

// picker is the manifest of a pod with the Endpoint Picker, as llm-d's chart makes it.
func picker(name string, flags ...string) string {
	service, args := "inference-extension", []string{"--pool-name", "pool", "--pool-namespace", "$(NAMESPACE)", "--zap-encoder", "json",
		"--config-file", "/config/default-plugins.yaml", "--refresh-metrics-interval", "200ms"} // two cores are few for more
	if slices.Contains(flags, "--ha-enable-leader-election") {
		service = "readiness"
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: epp}}
spec:
  serviceAccountName: epp
  terminationGracePeriodSeconds: 130
  containers:
  - name: epp
    image: ghcr.io/llm-d/llm-d-router-endpoint-picker:v1.0.0
    args: [%s]
    env:
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    readinessProbe: {grpc: {port: 9003, service: %s}, periodSeconds: 2}
    volumeMounts: [{name: plugins, mountPath: /config}]
  volumes: [{name: plugins, configMap: {name: epp}}]
`, name, `"`+strings.Join(append(args, flags...), `", "`)+`"`, service)
}

// engine is the manifest of a pod with a simulated engine, as a deployment of vLLM would have it: it takes no new requests
// once it is to end, and has time for those it has. more is added to its metadata.
func engine(name, more string) string {
	host := "0.0.0.0"
	if strings.Contains(more, "IPv6") {
		host = "::"
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: vllm}, %s}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: vllm
    image: vllm-sim
    args: [--host, "%s", --port, "8000", --served-model-name, m, --shutdown-timeout, "25", --step-base, 25ms]
    ports: [{name: http, containerPort: 8000}]
    readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1}
    lifecycle: {preStop: {sleep: {seconds: 2}}}
`, name, more, host)
}

// site is a namespace in which a picker, Envoy and engines serve a pool.
type site struct {
	*Cluster
	t       *testing.T
	ns      string
	pickers []string // names of pods
	http    string   // Envoy's address
	admin   string   // of Envoy's own pages
}

// site starts engines with these names and pickers, and waits until they serve; in front of one picker it starts Envoy.
func (c *Cluster) site(t *testing.T, pickers []string, flags []string, engines ...string) *site {
	t.Helper()
	s := &site{Cluster: c, t: t, ns: c.Namespace(t), pickers: pickers}
	manifests := basics("60s")
	for _, name := range engines {
		manifests += engine(name, "")
	}
	for _, name := range pickers {
		manifests += picker(name, flags...)
	}
	c.Apply(t, s.ns, manifests)
	for _, name := range engines {
		c.Addr(t, s.ns, name)
	}
	if len(pickers) == 1 {
		s.envoy(c.Addr(t, s.ns, pickers[0]) + ":9002")
	}
	if len(pickers) == 1 && len(engines) > 0 {
		s.answers()
	}
	return s
}

// answers waits until a request is answered.
func (s *site) answers() {
	s.t.Helper()
	rig.Eventually(s.t, "the first answer", func() error { return Ask(s.http, "is anyone there").Err })
}

// envoy starts Envoy with the shipped configuration, between s.http and the picker; its answers say who gave them.
func (s *site) envoy(picker string, flags ...string) {
	s.t.Helper()
	s.http, s.admin = rig.Addr(s.t), rig.Addr(s.t)
	argv := append([]string{filepath.Join(rig.Root(), "deploy", "envoy", "render.sh"), "--listen", s.http, "--admin", s.admin, "--picker", picker}, flags...)
	const route = "route: { cluster: chosen, timeout: 0s }"
	text := rig.Run(s.t, nil, argv...)
	named := strings.Replace(text, route, route+"\n                          response_headers_to_add: [{ header: { key: x-penstock-endpoint, value: \"%UPSTREAM_HOST%\" } }]", 1)
	// A data plane's subset is what the header x-subset says.
	const filter = "                  - name: penstock\n"
	known := strings.Replace(named, filter, `                  - name: subset
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-subset
                          on_header_present: { metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: STRING }
                          remove: true
`+filter, 1)
	if named == text || known == named {
		s.t.Fatal("deploy/envoy/envoy.yaml has no such line: " + route + ", " + filter)
	}
	conf := filepath.Join(s.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(conf, []byte(known), 0o644); err != nil {
		s.t.Fatal(err)
	}
	program := filepath.Join(rig.Tool(s.t, "install-envoy.sh"), "venv", "bin", "envoy")
	rig.Start(s.t, "envoy", program, "-c", conf, "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id").Listening(s.t, s.http)
}

// retries is how often Envoy has asked a picker again.
func (s *site) retries() string {
	page, err := rig.Get("http://" + s.admin + "/stats?filter=^cluster.picker.upstream_rq_retry$")
	if err != nil {
		s.t.Error(err)
	}
	_, n, _ := strings.Cut(strings.TrimSpace(page), ": ")
	return n
}

// endpoint is where a ready pod's engine listens.
func (s *site) endpoint(name string) string {
	s.t.Helper()
	return net.JoinHostPort(s.Addr(s.t, s.ns, name), "8000")
}

// serves waits until the load is served by exactly the endpoints of these pods.
func (s *site) serves(l *Load, endpoints ...string) {
	s.t.Helper()
	slices.Sort(endpoints)
	rig.Eventually(s.t, fmt.Sprintf("%v to serve", endpoints), func() error {
		begin := time.Now()
		l.More(s.t, 40)
		since := l.Outcomes().Since(begin).Endpoints()
		if got := slices.Sorted(maps.Keys(since)); !slices.Equal(got, endpoints) {
			return fmt.Errorf("served by %v", since)
		}
		return nil
	})
}

// engine applies a new engine and returns its endpoint when it is ready.
func (s *site) engine(name, more string) string {
	s.t.Helper()
	s.Apply(s.t, s.ns, engine(name, more))
	return s.endpoint(name)
}

// page reads a page of a picker's metrics address, as the administrator, whom its authorization lets in.
func (s *site) page(picker, path string) (string, error) { return s.pageFor(picker, path, adminToken) }

// pageFor reads it as the bearer of a token, or of none. What is not a success is a [Refusal].
func (s *site) pageFor(picker, path, token string) (string, error) {
	p := s.pod(s.ns, picker)
	if p == nil {
		return "", errors.New("no pod " + picker)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+net.JoinHostPort(p.ip(), "9090")+path, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = Refusal{response.StatusCode, fmt.Sprintf("%s: %s: %s", path, response.Status, text)}
	}
	return string(text), err
}

// metric is the sum of the first picker's samples whose series contains all the labels.
func (s *site) metric(name string, labels ...string) (float64, error) {
	page, err := s.page(s.pickers[0], "/metrics")
	sum := 0.0
	for _, sample := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(\{.*\})? (\S+)`).FindAllStringSubmatch(page, -1) {
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(sample[1], l) }) {
			v, _ := strconv.ParseFloat(sample[2], 64)
			sum += v
		}
	}
	return sum, err
}

// priority waits until requests for an objective run with this priority.
func (s *site) priority(objective string, want int) {
	s.t.Helper()
	label := fmt.Sprintf(`priority="%d"`, want)
	rig.Eventually(s.t, fmt.Sprintf("objective %s to have priority %d", objective, want), func() error {
		before, err := s.metric("llm_d_epp_request_total", label)
		if err != nil {
			return err
		}
		body := rig.Body("with an objective", true)
		if o := stream(&http.Transport{DisableKeepAlives: true}, s.http, body, http.Header{"X-Llm-D-Inference-Objective": {objective}}); o.Err != nil {
			return o.Err
		}
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if after, err := s.metric("llm_d_epp_request_total", label); err == nil && after > before {
				return nil
			}
		}
		return errors.New("it ran with another")
	})
}

// objective applies an InferenceObjective for the pool.
func (s *site) objective(name string, priority int) {
	s.t.Helper()
	s.Apply(s.t, s.ns, fmt.Sprintf("apiVersion: llm-d.ai/v1\nkind: InferenceObjective\nmetadata: {name: %s}\nspec: {priority: %d, poolRefs: [{name: pool}]}\n", name, priority))
}

// condition waits until a condition of an object has this status.
func (s *site) condition(kind, name, condition, want string) {
	s.t.Helper()
	rig.Eventually(s.t, fmt.Sprintf("%s %s to be %s=%s", kind, name, condition, want), func() error {
		got, err := s.kubectl(s.t.Context(), "", "get", kind, name, "-n", s.ns, "-o", `jsonpath={.status.conditions[?(@.type=="`+condition+`")]}`)
		if err == nil && !strings.Contains(got, `"status":"`+want+`"`) {
			err = errors.New("it is " + got)
		}
		return err
	})
}

// ours installs the project's own CRDs.
func (c *Cluster) ours(t testing.TB) {
	t.Helper()
	crds := filepath.Join(rig.Root(), "deploy", "crds")
	c.Kubectl(t, "apply", "-f", crds)
	c.Kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	rig.Eventually(t, "the API to offer them", func() error {
		return c.Do(t.Context(), "GET", "/apis/llm-d.ai/v1/inferenceobjectives", nil, nil)
	})
}
