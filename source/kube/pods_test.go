// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

func ready(name, ip string, annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Labels, p.Annotations = name, map[string]string{"app": "x"}, annotations
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	return p
}

func TestEndpoints(t *testing.T) {
	x := labels.Set{"app": "x"}.AsSelector()
	one := []pool{{"p", x, []int{8000, 8001}}}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		pools []pool
		want  string // name=address@pools …
	}{
		{"ranks", ready("e", "10.0.0.1", nil), one, "e-rank-0=10.0.0.1:8000@p e-rank-1=10.0.0.1:8001@p"},
		{"IPv6", ready("e", "FD00:0:0::10", nil), one, "e-rank-0=[fd00::10]:8000@p e-rank-1=[fd00::10]:8001@p"},
		{"IPv4 in IPv6", ready("e", "::ffff:10.0.0.1", nil), one, "e-rank-0=10.0.0.1:8000@p e-rank-1=10.0.0.1:8001@p"},
		{"active ports", ready("e", "10.0.0.1", map[string]string{"llm-d.ai/active-ports": "8001, 9"}), one, "e-rank-1=10.0.0.1:8001@p"},
		{"the older annotation", ready("e", "10.0.0.1", map[string]string{"inference.networking.k8s.io/active-ports": "8000"}), one, "e-rank-0=10.0.0.1:8000@p"},
		{"the newer annotation wins", ready("e", "10.0.0.1", map[string]string{"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}), one, "e-rank-1=10.0.0.1:8001@p"},
		{"no active port", ready("e", "10.0.0.1", map[string]string{"llm-d.ai/active-ports": ""}), one, ""},
		{"no address", ready("e", "", nil), one, ""},
		{"no address at all", ready("e", "host", nil), one, ""},
		{"another's label", ready("e", "10.0.0.1", nil), []pool{{"p", labels.Set{"app": "y"}.AsSelector(), []int{8000}}}, ""},
		{"two pools with other ports", ready("e", "10.0.0.1", nil), []pool{{"q", x, []int{9000}}, {"p", x, []int{8000}}},
			"e-rank-0=10.0.0.1:8000@p e-rank-0-9000=10.0.0.1:9000@q"},
		{"two pools with a port in common", ready("e", "10.0.0.1", nil), []pool{{"p", x, []int{8000}}, {"q", x, []int{8001, 8000}}},
			"e-rank-0=10.0.0.1:8000@p,q e-rank-0-8001=10.0.0.1:8001@q"},
	} {
		p := newPods("a", func() {})
		if err := p.Add(c.pod); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range p.endpoints(c.pools, newNodes(nil).placed) {
			got = append(got, fmt.Sprintf("%s=%s@%s", e.Name, e.Address, strings.Join(e.In, ",")))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %s, want %s", c.name, s, c.want)
		}
	}
}

// An annotation that limits ports counts as far as it makes sense, and the rest of it is told once.
func TestPortsOf(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("8000,", 70), ",")
	for _, c := range []struct {
		text, odd string
		n         int
	}{
		{"8000,8001", "", 2},
		{" 8000 ,\t8001\n", "", 2},
		{"", "", 0},
		{",,", "", 0},
		{"8000;8001", `"8000;8001" is no port: want such as 8000,8001`, 0},
		{"8000,http,0", `"http" is no port: want such as 8000,8001`, 1},
		{"0", `"0" is no port: want such as 8000,8001`, 0},
		{"65536,1", `"65536" is no port: want such as 8000,8001`, 1},
		{"-1", `"-1" is no port: want such as 8000,8001`, 0},
		{strings.Repeat("9", 500), `"` + strings.Repeat("9", 40) + `" is no port: want such as 8000,8001`, 0},
		{many, "only the first 64 ports count", 64},
	} {
		if ports, odd := portsOf(c.text); len(ports) != c.n || odd != c.odd {
			t.Errorf("%.40q: %d ports, %q; want %d, %q", c.text, len(ports), odd, c.n, c.odd)
		}
	}
	p := newPods("a", func() {})
	var said []string
	p.warn = func(pod, problem string) { said = append(said, pod+": "+problem) }
	bad := ready("e", "10.0.0.1", map[string]string{"llm-d.ai/active-ports": "x"})
	_ = p.Add(bad)
	_ = p.Update(bad)
	_ = p.Replace([]any{bad}, "")
	if want := `e: llm-d.ai/active-ports: "x" is no port: want such as 8000,8001`; len(said) != 1 || said[0] != want {
		t.Errorf("it said %q", said)
	}
}

func FuzzPortsOf(f *testing.F) {
	for _, s := range []string{"8000,8001", " 1\u00a02", "0x10", "+1", "1e3", ",,,", "\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ports, odd := portsOf(s)
		if ports == nil || len(ports) > maxPorts || len(odd) > 500 {
			t.Fatalf("%d ports, %q", len(ports), odd)
		}
		for _, n := range ports {
			if n < 1 || n > 65535 {
				t.Fatalf("port %d", n)
			}
		}
	})
}

// Whatever an object holds, it is read or refused, in each group's way.
func FuzzObject(f *testing.F) {
	for _, s := range []string{
		`{"selector":{"app":"x"},"targetPortNumber":8000,"extensionRef":{"name":"e"}}`,
		`{"selector":{"matchLabels":{"app":"x"}},"targetPorts":[{"number":8000},{"number":"x"}]}`,
		`{"poolRefs":[{"name":"p"},1],"poolRef":{"name":2},"poolSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}`,
		`{"poolSelector":{"matchLabels":{"tier":"gold"}}}`, `[]`, `{"poolRefs":{},"poolSelector":[]}`,
	} {
		f.Add([]byte(s))
	}
	pool := &Object{Kind: "InferencePool", Namespace: "a", Name: "p", labels: labels.Set{"tier": "gold"}}
	f.Fuzz(func(t *testing.T, spec []byte) {
		var v any
		if json.Unmarshal(spec, &v) != nil {
			return
		}
		kinds := append(optionalKinds(), poolKind(""), poolKind(legacyGroup))
		for _, k := range kinds {
			s := newObjects(nil, k, "a")
			s.using = k.versions[len(k.versions)-1].WithResource(k.plural)
			u := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSONValue(v), "metadata": map[string]any{"namespace": "a", "name": "o"}}}
			o, err := s.object(u)
			if err != nil {
				continue
			}
			if !json.Valid(o.Data) {
				t.Fatalf("%s: %s", k.name, o.Data)
			}
			o.concerns(pool)
			_, _ = o.among([]*Object{pool})
			if p, err := poolOf(o); err == nil && (p.selector == nil || len(o.Data) == 0) {
				t.Fatal("a pool without selector")
			}
		}
	})
}

// What makes no difference to requests tells nobody.
func TestQuietUpdates(t *testing.T) {
	told := 0
	p := newPods("a", func() { told++ })
	one := ready("e", "10.0.0.1", nil)
	_ = p.Add(one)
	again := one.DeepCopy()
	again.Status.Conditions[0].LastProbeTime.Time = again.CreationTimestamp.Time.Add(1)
	again.ResourceVersion = "7"
	_ = p.Update(again)
	_ = p.Add(ready("pending", "", nil))
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
}
