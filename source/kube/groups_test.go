// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// aLegacyPool is a pool of the group before.
const aLegacyPool = `{"apiVersion":"inference.networking.x-k8s.io/v1alpha2","kind":"InferencePool","metadata":{"namespace":"a","name":%q,"uid":"l","labels":{"tier":"gold"}},` +
	`"spec":{"selector":{"app":"x","matchLabels":"y"},"targetPortNumber":8000,"extensionRef":{"name":"pick"}}}`

// feed is how it stands with a resource.
func (w *told) feed(resource string) Feed {
	for _, f := range w.c.Feeds() {
		if f.Resource == resource {
			return f
		}
	}
	return Feed{}
}

// A pool of the group before is read as one of today: the labels alone are its selector, and it has one port.
func TestLegacyPool(t *testing.T) {
	s := newServer(t)
	s.groups["inference.networking.x-k8s.io/v1alpha2"] = []string{"inferencepools"}
	s.put(aLegacyPool, "p")
	s.put(strings.Replace(aPod, `"labels":{`, `"labels":{"matchLabels":"y",`, 1), "a", "e0", "u0", "x", "10.1.0.1", "True")
	o := single
	o.Group = legacyGroup
	w := follow(t, s, o)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("the pool", func() bool { return len(w.objects) == 1 })
	want := `{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool","metadata":{"labels":{"tier":"gold"},"name":"p","namespace":"a"},` +
		`"spec":{"endpointPickerRef":{"name":"pick","port":{"number":9002}},"selector":{"matchLabels":{"app":"x","matchLabels":"y"}},"targetPorts":[{"number":8000}]}}`
	if got := string(w.objects[0].Data); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if f := w.feed("inferencepools.inference.networking.x-k8s.io"); f.Version != "inference.networking.x-k8s.io/v1alpha2" || f.State != Synced || f.Objects != 1 {
		t.Errorf("got %+v", f)
	}
}

// What a legacy pool may hold besides.
func TestModern(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{`{"targetPortNumber":1,"extensionRef":{"name":"e","portNumber":9,"failureMode":"FailOpen"}}`, `{"endpointPickerRef":{"failureMode":"FailOpen","name":"e","port":{"number":9}},"targetPorts":[{"number":1}]}`},
		{`{"extensionRef":{"name":"e","kind":"Other"}}`, `{"endpointPickerRef":{"kind":"Other","name":"e"}}`},
		{`{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":1}],"targetPortNumber":2}`, `{"selector":{"matchLabels":{"a":"b"}},"targetPortNumber":2,"targetPorts":[{"number":1}]}`},
		{`{"selector":"no","extensionRef":[]}`, `{"extensionRef":[],"selector":"no"}`},
	} {
		var spec map[string]any
		if err := json.Unmarshal([]byte(c.spec), &spec); err != nil {
			t.Fatal(err)
		}
		modern(spec)
		if got, _ := json.Marshal(spec); string(got) != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.spec, got, c.want)
		}
	}
}

// All pools are those of the newer group where both are there, and those of the other are told so; without the newer the other counts.
func TestBothGroups(t *testing.T) {
	s := newServer(t)
	s.groups["inference.networking.x-k8s.io/v1alpha2"] = []string{"inferencepools", "inferenceobjectives"}
	s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives"}
	pools := s.groups["inference.networking.k8s.io/v1"]
	delete(s.groups, "inference.networking.k8s.io/v1")
	s.put(aLegacyPool, "old")
	s.put(strings.Replace(aPod, `"labels":{`, `"labels":{"matchLabels":"y",`, 1), "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, Options{seekEvery: time.Hour, betterEvery: 10 * time.Millisecond})
	w.until("the old pool", func() bool { return w.object("InferencePool a/old") != nil && len(w.sources[Source("a")]) == 1 })
	if len(w.log.of("is where InferencePool was before")) != 1 {
		t.Errorf("it said %v", w.log.text)
	}
	s.put(strings.Replace(anObjective, `"name"`, `"uid":"o","name"`, 1), "inference.networking.x-k8s.io/v1alpha2", "high", 7, `"poolRef":{"name":"new"}`)
	s.put(aPool, "a", "new", "x")
	s.with(func() { s.groups["inference.networking.k8s.io/v1"] = pools })
	w.until("the new pool alone", func() bool { return w.object("InferencePool a/new") != nil && w.object("InferencePool a/old") == nil })
	w.until("that both are told", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		text := strings.Join(s.writes, "\n")
		return strings.Contains(text, "event InferencePool old Superseded: inference.networking.x-k8s.io is not read where the API server has inference.networking.k8s.io") &&
			strings.Contains(text, "patch inferenceobjectives/status high")
	})
	if n := len(w.log.of("of two groups the newer is read", "resource=inferencepools")); n != 1 {
		t.Errorf("it said %v", w.log.text)
	}
}

// Only the definition of pools is there: all is served, and one warning for each kind names it; what comes while we run counts.
func TestOnlyPools(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	if f := w.feed("inferenceobjectives.llm-d.ai"); f.State != Absent || f.Since.IsZero() || f.Version != "" || !strings.Contains(f.Error, "not installed") {
		t.Errorf("got %+v", f)
	}
	for _, resource := range []string{"inferenceobjectives.llm-d.ai", "inferencemodelrewrites.llm-d.ai"} {
		if got := w.log.of("level=WARN", "cannot list "+resource, "CustomResourceDefinition is not installed"); len(got) != 1 {
			t.Errorf("of %s it said %v", resource, got)
		}
	}
	if got := w.log.of("level=WARN"); len(got) != 2 {
		t.Errorf("it warned %v", got)
	}
	s.put(anObjective, "llm-d.ai/v1", "high", 7, `"poolRefs":[{"name":"p"}]`)
	s.with(func() { s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives"} })
	w.until("the objective", func() bool { return w.object("InferenceObjective a/high") != nil })
	w.until("that it is shown", func() bool {
		f := w.feed("inferenceobjectives.llm-d.ai")
		return f.State == Synced && f.Version == "llm-d.ai/v1" && f.Objects == 1
	})
}

// The role lacks list on objectives: one warning names verb and resource, and all else is as with it.
func TestMayNotListObjectives(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives", "inferencemodelrewrites"}
	s.forbidden["list inferenceobjectives"] = true
	w := follow(t, s, single)
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("several refusals", func() bool { return w.failed["inferenceobjectives.llm-d.ai list Forbidden"] > 2 })
	if got := w.log.of("level=WARN"); len(got) != 1 || !strings.Contains(got[0], "does not let us list inferenceobjectives.llm-d.ai") {
		t.Errorf("it warned %q", got)
	}
	f := w.feed("inferenceobjectives.llm-d.ai")
	if f.State != Refused || f.Verb != "list" || f.Error != "may not list inferenceobjectives.llm-d.ai in namespace a" || f.Since.IsZero() {
		t.Errorf("got %+v", f)
	}
	if f := w.feed("inferencemodelrewrites.llm-d.ai"); f.State != Synced {
		t.Errorf("got %+v", f)
	}
}

// Feeds say since when the API server is away, and what was known stays.
func TestFeedsOutage(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	o := single
	o.ConfigMap = MapRef{ID: fleet.ID{Namespace: "a", Name: "conf"}}
	w := follow(t, s, o)
	w.until("pods", func() bool { f := w.feed("pods"); return f.State == Synced && f.Objects == 1 && f.Version == "v1" })
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	if f := w.feed("configmaps"); f.Name != "conf" || f.State != Synced || f.Objects != 0 {
		t.Errorf("got %+v", f)
	}
	left := time.Now()
	s.leave()
	w.until("that it is away", func() bool { return w.feed("pods").State == Away })
	if f := w.feed("pods"); f.Objects != 1 || f.Since.Before(left) || f.Error == "" {
		t.Errorf("got %+v", f)
	}
	s.come(t)
	w.until("that it is back", func() bool {
		return !slices.ContainsFunc(w.c.Feeds(), func(f Feed) bool { return f.State == Away })
	})
}
