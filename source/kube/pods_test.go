// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
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
