// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/e2e/rig"
)

// llmd are the objects that llm-d's chart makes for a pool "pool" with this configuration, but for Deployments, whose pods
// stand here: the permissions of the picker are those that the chart gives, and no others.
func llmd(config string, replicas int) string {
	ha, flags, probe := "", "", "inference-extension"
	if replicas > 1 {
		ha = `
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]}`
		flags, probe = "    - --ha-enable-leader-election\n", "readiness"
	}
	text := `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: pool-epp, port: {number: 9002}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: pool-epp}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pool-epp}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [inference.networking.x-k8s.io, llm-d.ai], resources: [inferenceobjectives, inferencemodelrewrites], verbs: [get, list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}` + ha + `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pool-epp}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pool-epp}
subjects: [{kind: ServiceAccount, name: pool-epp}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: pool-epp}
data:
  default-plugins.yaml: |
    ` + strings.ReplaceAll(strings.TrimSpace(config), "\n", "\n    ") + "\n"
	for i := range replicas {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: pool-epp-%d, labels: {inferencepool: pool-epp}}
spec:
  serviceAccountName: pool-epp
  terminationGracePeriodSeconds: 130
  containers:
  - name: epp
    image: ghcr.io/llm-d/llm-d-router-endpoint-picker:v1.0.0
    args:
    - --pool-name
    - pool
    - --pool-namespace
    - $(NAMESPACE)
    - --pool-group
    - inference.networking.k8s.io
    - --zap-encoder
    - json
    - --config-file
    - /config/default-plugins.yaml
%s    - --grpc-health-port
    - "9003"
    - --tracing=false
    - --metrics-endpoint-auth=false
    ports: [{name: grpc, containerPort: 9002}, {name: grpc-health, containerPort: 9003}, {name: metrics, containerPort: 9090}]
    readinessProbe: {grpc: {port: 9003, service: %s}, periodSeconds: 2}
    env:
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    volumeMounts: [{name: plugins-config-volume, mountPath: /config}]
  volumes: [{name: plugins-config-volume, configMap: {name: pool-epp}}]
`, i, flags, probe)
	}
	return text
}

// asLLMD runs the picker with what llm-d's chart makes: with each of the configurations of its examples it becomes ready,
// serves, logs no error, and says once what it may not do.
func (c *Cluster) asLLMD(t *testing.T) {
	// llm-d's chart lets pickers ask who reads their metrics only where that is on.
	c.Kubectl(t, "delete", "clusterrolebinding", "metrics")
	defer c.Kubectl(t, "create", "clusterrolebinding", "metrics", "--clusterrole=system:auth-delegator", "--group=system:serviceaccounts")
	configs := map[string]string{"none but a profile": "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n- type: kv-cache-utilization-scorer\n" +
		"- type: prefix-cache-scorer\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n    weight: 2\n  - pluginRef: kv-cache-utilization-scorer\n    weight: 2\n  - pluginRef: prefix-cache-scorer\n    weight: 3\n"}
	files, err := filepath.Glob(filepath.Join(rig.Root(), "config", "testdata", "seeds", "*-picker*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		configs[filepath.Base(f)] = string(text)
	}
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			s := &site{Cluster: c, t: t, ns: c.Namespace(t), pickers: []string{"pool-epp-0"}}
			s.Apply(t, s.ns, llmd(config, 1)+engine("a", "")+engine("b", ""))
			s.envoy(c.Addr(t, s.ns, "pool-epp-0") + ":9002")
			s.objective("premium", 100)
			s.Apply(t, s.ns, "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: stray}\nspec: {priority: 1, poolRef: {name: no-such-pool}}\n")
			s.answers()
			l := Traffic(t, s.http, 4, 8, nil)
			s.serves(l, s.endpoint("a"), s.endpoint("b"))
			s.priority("premium", 100)
			s.whole(l)
			s.quiet("pool-epp-0")
		})
	}
	t.Run("few permissions", c.fewPermissions)
	t.Run("two replicas", c.llmdStandby)
}

// oneScorer is a small configuration.
const oneScorer = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n"

// fewPermissions starts a picker that may not read objectives and rewrites, whose kinds are there: it serves with defaults, and
// says once for each what it may not do.
func (c *Cluster) fewPermissions(t *testing.T) {
	s := &site{Cluster: c, t: t, ns: c.Namespace(t), pickers: []string{"pool-epp-0"}}
	const rule = "- {apiGroups: [inference.networking.x-k8s.io, llm-d.ai], resources: [inferenceobjectives, inferencemodelrewrites], verbs: [get, list, watch]}\n"
	all := llmd(oneScorer, 1)
	fewer := strings.Replace(all, rule, "", 1)
	if fewer == all {
		t.Fatal("there is no such rule: " + rule)
	}
	s.Apply(t, s.ns, fewer+engine("a", ""))
	s.envoy(c.Addr(t, s.ns, "pool-epp-0") + ":9002")
	s.objective("premium", 100)
	s.answers()
	s.priority("premium", 0)
	said := s.Logs(s.ns, "pool-epp-0")
	for _, want := range []string{"does not let us list inferenceobjectives.llm-d.ai", "does not let us list inferencemodelrewrites.llm-d.ai"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	s.Apply(t, s.ns, all) // given later
	s.priority("premium", 100)
	s.quiet("pool-epp-0")
}

// quiet fails the test when a picker logged an error, or the same warning of a permission twice.
func (s *site) quiet(name string) {
	s.t.Helper()
	denied := map[string]int{}
	for line := range strings.Lines(s.Logs(s.ns, name)) {
		var l struct{ Level, Msg string }
		switch err := json.Unmarshal([]byte(line), &l); {
		case err != nil || l.Level == "ERROR":
			s.t.Errorf("%s logged: %s", name, line)
		case l.Level == "WARN" && strings.Contains(l.Msg, "does not let us"):
			denied[l.Msg]++
		case l.Level == "WARN":
			s.t.Log(strings.TrimSpace(line))
		}
	}
	for text, n := range denied {
		s.t.Log(text)
		if n != 1 {
			s.t.Errorf("%s said %d times: %s", name, n, text)
		}
	}
}

// llmdStandby is the chart's replicas: 2. One is ready, both are alive, and the other takes over.
func (c *Cluster) llmdStandby(t *testing.T) {
	s := &site{Cluster: c, t: t, ns: c.Namespace(t), pickers: []string{"pool-epp-0", "pool-epp-1"}}
	s.Apply(t, s.ns, llmd(oneScorer, 2)+engine("a", ""))
	s.endpoint("a")
	leader, other := s.leader()
	for _, name := range s.pickers {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := Health(ctx, net.JoinHostPort(s.running(t, s.ns, name).ip(), "9003"), "liveness"); err != nil {
			t.Error(err)
		}
		cancel()
	}
	s.Addr(t, s.ns, leader) // the kubelet says so, too
	if got := s.Kubectl(t, "get", "pod", "-n", s.ns, other, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`); got != "False" {
		t.Errorf("the pod that stands by is ready: %q", got)
	}
	s.Kubectl(t, "delete", "pod", "-n", s.ns, leader, "--wait=false")
	s.envoy(c.Addr(t, s.ns, other) + ":9002")
	s.answers()
	for _, name := range s.pickers {
		s.quiet(name)
	}
}

// deployments turns Deployments into pods, since nobody else does here, and returns all objects as one text.
func deployments(t *testing.T, files ...string) (text string, pods []string) {
	t.Helper()
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for documents := yaml.NewDecoder(f); ; {
			var o object
			if documents.Decode(&o) != nil {
				break
			}
			copies := 1
			if o["kind"] == "Deployment" {
				spec := o["spec"].(object)
				copies, _ = spec["replicas"].(int)
				name := o["metadata"].(object)["name"].(string)
				o = spec["template"].(object)
				o["apiVersion"], o["kind"] = "v1", "Pod"
				for i := range max(copies, 1) {
					pods = append(pods, fmt.Sprintf("%s-%d", name, i))
				}
			}
			for i := range max(copies, 1) {
				if o["kind"] == "Pod" {
					o["metadata"].(object)["name"] = pods[len(pods)-max(copies, 1)+i]
				}
				b, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				text += "---\n" + string(b)
			}
		}
	}
	return text, pods
}

// examples applies deploy/examples/fleet as they are, and asks for what its second pool serves.
func (c *Cluster) examples(t *testing.T) {
	s := &site{Cluster: c, t: t, ns: c.Namespace(t)}
	dir := filepath.Join(rig.Root(), "deploy", "examples", "fleet")
	text, pods := deployments(t, filepath.Join(dir, "inferencepool.yaml"), filepath.Join(dir, "objectives.yaml"), filepath.Join(dir, "model-servers.yaml"), filepath.Join(dir, "epp.yaml"))
	s.Apply(t, s.ns, text)
	var serve []string
	for _, p := range pods {
		addr := c.Addr(t, s.ns, p)
		if strings.HasPrefix(p, "deepseek") {
			serve = append(serve, addr+":8000")
		}
	}
	i := slices.IndexFunc(pods, func(p string) bool { return strings.HasPrefix(p, "r1-pool-epp") })
	if i < 0 || len(serve) != 2 {
		t.Fatalf("pods %v", pods)
	}
	s.pickers = pods[i : i+1]
	s.envoy(c.Addr(t, s.ns, pods[i]) + ":9002")
	l := TrafficFor(t, s.http, "deepseek/DeepSeek-r1", 4, 8, nil)
	s.serves(l, serve...)
	s.whole(l)
	s.condition("inferenceobjective", "premium-traffic", "Accepted", "False") // its pool is the chart's
	s.quiet(pods[i])
}
