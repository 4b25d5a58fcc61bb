// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/fleet"
)

// written is what was written to the server since the last call.
func (s *server) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.writes
	s.writes = nil
	return out
}

// anew has pickers list everything anew, and waits until it was told.
func (s *server) anew(pickers []*told) {
	var judged []int
	for _, w := range pickers {
		w.mu.Lock()
		judged = append(judged, w.judged)
		w.mu.Unlock()
		for _, o := range slices.Concat(w.c.pools, w.c.others) {
			o.mu.Lock()
			if o.feed != nil {
				o.feed.anew()
			}
			o.mu.Unlock()
		}
	}
	for i, w := range pickers {
		w.until("another list", func() bool { return w.judged > judged[i] })
	}
}

// accepting judges all objects for pool p as in force.
func accepting(w *told, pool string) func(context.Context, []*Object) []Verdict {
	return func(_ context.Context, list []*Object) (out []Verdict) {
		w.note(func() { w.objects = list; w.judged++ })
		for _, o := range list {
			v := Verdict{Object: o}
			if slices.Contains(o.pools, pool) {
				v.Pools = []string{pool}
			}
			out = append(out, v)
		}
		return out
	}
}

// What became of objects is written once, by one of the pickers that they concern, whatever is listed anew; a conflict is tried again.
func TestWrites(t *testing.T) {
	s := newServer(t)
	s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives", "inferencemodelrewrites"}
	for _, pool := range []string{"p", "q"} {
		s.put(strings.Replace(aPool, `"name"`, `"uid":"pool-`+pool+`","name"`, 1), "a", pool, "x")
	}
	put := func(name, refs string) {
		s.put(strings.Replace(anObjective, `"name"`, `"generation":1,"uid":"`+name+`","name"`, 1), "llm-d.ai/v1", name, 7, refs)
	}
	put("both", `"poolRefs":[{"name":"q"},{"name":"p"}]`)
	put("half", `"poolRefs":[{"name":"p"},{"name":"nobody"}]`)
	put("lost", `"poolRefs":[{"name":"nobody"}]`)
	s.conflicts = 2
	var pickers []*told
	for _, pool := range []string{"p", "q"} {
		o := Options{Pool: fleet.ID{Namespace: "a", Name: pool}}
		pickers = append(pickers, followBy(t, s, o, func(w *told) func(context.Context, []*Object) []Verdict { return accepting(w, pool) }))
	}
	status := func(name string) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		st, _ := s.objects["llm-d.ai/v1 inferenceobjectives a "+name]["status"].(map[string]any)
		c := accepted(st)
		return fmt.Sprintf("%s %s of %d: %s", c.Status, c.Reason, c.ObservedGeneration, c.Message)
	}
	for name, want := range map[string]string{
		"both": "True Accepted of 1: counts for InferencePool q, p",
		"half": "True Accepted of 1: counts for InferencePool p; namespace a has no InferencePool nobody",
		"lost": "False PoolNotFound of 1: namespace a has no InferencePool nobody: create it, or name another in spec.poolRefs",
	} {
		pickers[0].until(name, func() bool { return status(name) == want })
	}
	pickers[0].until("events", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.writes, func(w string) bool { return strings.HasPrefix(w, "event InferenceObjective half") }) &&
			slices.ContainsFunc(s.writes, func(w string) bool { return strings.HasPrefix(w, "event InferenceObjective lost") })
	})
	s.anew(pickers) // what is on its way when all is as it should be
	counts := map[string]int{}
	for _, w := range s.written() {
		counts[w]++
	}
	events := 0
	for w, n := range counts {
		if strings.HasPrefix(w, "event") {
			events += n
		}
	}
	// the object that is for no pool is everybody's: both may say the same of it, and meet
	if events < 2 || events > 3 || counts["patch inferenceobjectives/status both"] > 3 {
		t.Errorf("written: %v", counts)
	}
	for range 10 {
		s.anew(pickers)
	}
	if got := s.written(); len(got) > 0 {
		t.Errorf("without a change it wrote %v", got)
	}
}
