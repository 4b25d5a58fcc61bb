// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"strings"
	"testing"
)

const (
	zone  = "topology.kubernetes.io/zone"
	aNode = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":%q,"other":%q}}}`
)

func (s *server) node(zone, other string) { s.put(aNode, zone, other) }

// Where a pod does not say in which zone it is, its node does; where it does, it counts.
func TestNodes(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.put(strings.Replace(aPod, `"labels":{`, `"labels":{"topology.kubernetes.io/zone":"own",`, 1), "a", "e1", "u1", "x", "10.1.0.2", "True")
	s.node("z1", "1")
	w := follow(t, s, single)
	zones := func(want string) func() bool {
		return func() bool {
			var got []string
			for _, e := range w.specs {
				if e.Labels["other"] != "" {
					t.Error("a label that nobody wants")
				}
				got = append(got, e.Labels[zone]+"/"+e.Labels[hostname])
			}
			return strings.Join(got, " ") == want
		}
	}
	w.until("what pods say", zones("/n1 own/n1"))
	s.mu.Lock()
	if s.asked["list nodes"]+s.asked["watch nodes"] > 0 {
		t.Error("nodes are asked for that nobody wants")
	}
	s.mu.Unlock()
	w.c.Topology([]string{"rack", zone, zone})
	w.until("what the node says", zones("z1/n1 own/n1"))
	if f := w.feed("nodes"); f.State != Synced || f.Objects != 1 {
		t.Errorf("got %+v", f)
	}
	told := len(w.log.of(""))
	s.node("z2", "2")
	w.until("what it says now", zones("z2/n1 own/n1"))
	w.c.Topology(nil)
	w.until("what pods say, again", zones("/n1 own/n1"))
	if got := w.log.of("")[told:]; len(got) > 0 {
		t.Errorf("it said %v", got)
	}
}

// Without the permission one line says so, and all else is as with it.
func TestMayNotListNodes(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.forbidden["list nodes"], s.forbidden["watch nodes"] = true, true
	w := follow(t, s, single)
	w.c.Topology([]string{zone})
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("the refusal", func() bool { return w.feed("nodes").State == Refused && w.c.Ready() == nil })
	if f := w.feed("nodes"); !strings.HasPrefix(f.Error, "may not ") || !strings.HasSuffix(f.Error, " nodes in the cluster") || f.Verb == "" {
		t.Errorf("got %+v", f)
	}
	if got := w.log.of("nodes"); len(got) != 1 || !strings.Contains(got[0], "level=INFO") || !strings.Contains(got[0], " nodes: endpoints have the labels") {
		t.Errorf("it said %v", got)
	}
	for k := range w.failed {
		t.Errorf("it counted %s", k)
	}
}

// Labels of a pod that are empty are lacking, however many there are; a node's labels and a pod's own stay as they were.
func TestPlacedEmptyLabels(t *testing.T) {
	n := newNodes(func() {})
	n.all["n"] = map[string]string{"zone": "z", "rack": "r", "region": "e"}
	pod := map[string]string{"zone": "", "rack": "", "region": "own", "app": "x"}
	want := map[string]string{"zone": "z", "rack": "r", "region": "own", "app": "x"}
	for range 20 { // maps have no order
		if got := n.placed("n", pod); !maps.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	if len(n.all["n"]) != 3 || n.all["n"]["region"] != "e" || pod["zone"] != "" {
		t.Errorf("node %v, pod %v", n.all["n"], pod)
	}
}
