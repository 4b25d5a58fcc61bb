// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

func run(t *testing.T, f func(context.Context) error) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *told) take(source string, list []fleet.EndpointSpec) {
	w.note(func() {
		w.specs, w.fewest = list, min(w.fewest, len(list))
		if list == nil {
			delete(w.sources, source)
			return
		}
		w.sources[source] = []string{}
		for _, e := range list {
			w.sources[source] = append(w.sources[source], e.Name+"="+e.Address)
		}
	})
}

func (w *told) judge(_ context.Context, list []*Object) []Verdict {
	w.note(func() {
		if w.objects = list; w.look != nil {
			w.look()
		}
	})
	return nil
}

var single = Options{Pool: fleet.ID{Namespace: "a", Name: "p"}}

// Pods of the pool are endpoints while they are ready; one that comes back elsewhere is another.
func TestPodsComeAndGo(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPool, "a", "other", "y")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.put(aPod, "a", "e1", "u1", "x", "fd00:0::10", "True")
	s.put(aPod, "a", "e2", "u2", "y", "10.1.0.3", "True")
	w := follow(t, s, single)
	w.until("both", w.endpoints("a", "e0-rank-0=10.1.0.1:8000", "e1-rank-0=[fd00::10]:8000"))
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	if len(w.objects) != 1 || w.objects[0].String() != "InferencePool a/p" || strings.Contains(string(w.objects[0].Data), "managedFields") {
		t.Errorf("objects %v: %s", w.objects, w.objects[0].Data)
	}
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "False")
	w.until("the one that is ready", w.endpoints("a", "e1-rank-0=[fd00::10]:8000"))
	s.put(strings.Replace(aPod, `"uid"`, `"deletionTimestamp":"2026-01-01T00:00:00Z","uid"`, 1), "a", "e1", "u1", "x", "fd00:0::10", "True")
	w.until("none", w.endpoints("a"))
	s.remove(aPod, "a", "e1", "u1", "x", "", "False")
	s.put(aPod, "a", "e1", "u3", "x", "10.1.0.9", "True")
	w.until("the new one", w.endpoints("a", "e1-rank-0=10.1.0.9:8000"))
	s.put(strings.Replace(aPod, "Running", "Failed", 1), "a", "e1", "u3", "x", "10.1.0.9", "True")
	w.until("none again", w.endpoints("a"))
}

// Without its pool a picker has no endpoints and is not ready; with it both are as before.
func TestPoolGoesAndComes(t *testing.T) {
	s := newServer(t)
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("that the pool is missed", func() bool {
		err := w.c.Ready()
		return err != nil && err.Error() == "there is no InferencePool a/p"
	})
	w.until("that the log says so", func() bool {
		return len(w.log.of("level=WARN", "there is no such InferencePool", "pool=a/p")) == 1
	})
	s.put(aPool, "a", "p", "x")
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	w.until("that the log says so", func() bool { return len(w.log.of("the InferencePool is there")) == 1 })
	s.remove(aPool, "a", "p", "x")
	w.until("none", w.endpoints("a"))
	w.until("no objects", func() bool { return len(w.objects) == 0 && w.c.Ready() != nil })
	s.put(aPool, "a", "p", "x")
	w.until("the endpoint again", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
}

// Objectives count as soon as their kind is there, and no longer than that; the newest version is read, and all are
// told in one form. Those for other pools are nobody's business here.
func TestOptionalKinds(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPool, "a", "other", "y")
	w := follow(t, s, single)
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	s.put(anObjective, "llm-d.ai/v1alpha2", "high", 7, `"poolRef":{"name":"p"}`)
	s.put(anObjective, "llm-d.ai/v1alpha2", "theirs", 7, `"poolRef":{"name":"other"}`)
	s.put(anObjective, "llm-d.ai/v1alpha2", "lost", 7, `"poolRef":{"name":"nobody"}`)
	s.put(anObjective, "inference.networking.x-k8s.io/v1alpha2", "old", 7, `"poolRef":{"name":"p"}`)
	s.with(func() {
		s.groups["llm-d.ai/v1alpha2"] = []string{"inferenceobjectives"}
		s.groups["inference.networking.x-k8s.io/v1alpha2"] = []string{"inferenceobjectives"}
	})
	w.until("the objectives", func() bool { return len(w.objects) == 3 })
	want := `{"apiVersion":"llm-d.ai/v1","kind":"InferenceObjective","metadata":{"name":"high","namespace":"a"},"spec":{"poolRefs":[{"name":"p"}],"priority":7}}`
	if o := w.object("InferenceObjective a/high"); o == nil || string(o.Data) != want || o.Resource.Version != "v1alpha2" {
		t.Errorf("got %v %s", o, o.Data)
	}
	if w.object("InferenceObjective a/lost") == nil || w.object("InferenceObjective a/old") != nil || w.object("InferenceObjective a/theirs") != nil {
		t.Errorf("objects %v", w.objects)
	}
	s.with(func() {
		delete(s.groups, "llm-d.ai/v1alpha2")
		delete(s.groups, "inference.networking.x-k8s.io/v1alpha2")
	})
	w.until("no objectives", func() bool { return len(w.objects) == 1 })
	s.with(func() { s.groups["llm-d.ai/v1alpha2"] = []string{"inferenceobjectives"} })
	w.until("the objectives again", func() bool { return len(w.objects) == 3 })
}

// A permission that is missing is named, and costs only what needs it.
func TestForbidden(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives", "inferencemodelrewrites"}
	s.put(anObjective, "llm-d.ai/v1", "high", 7, `"poolRefs":[{"name":"p"}]`)
	s.forbidden["list inferenceobjectives"], s.forbidden["watch inferenceobjectives"] = true, true
	w := follow(t, s, single)
	w.until("readiness", func() bool { return w.c.Ready() == nil && w.failed["inferenceobjectives.llm-d.ai list Forbidden"] > 0 })
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	s.with(func() { clear(s.forbidden) })
	w.until("the objective", func() bool { return w.object("InferenceObjective a/high") != nil })
}

// Without the permission for pods nothing can be served, and readiness says why.
func TestForbiddenPods(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.forbidden["list pods"], s.forbidden["watch pods"] = true, true
	w := follow(t, s, single)
	w.until("the reason", func() bool {
		err := w.c.Ready()
		return err != nil && err.Error() == "may not list pods in namespace a"
	})
}

// forbid has nobody list and watch a resource of a namespace.
func (s *server) forbid(resource, namespace string) {
	s.with(func() {
		for _, verb := range []string{"list", "watch"} {
			s.forbidden[verb+" "+resource+" "+namespace] = true
		}
	})
}

// Of several namespaces one that may not be read is no hindrance to the others; where none may be, that is said.
func TestForbiddenElsewhere(t *testing.T) {
	for _, resource := range []string{"pods", "inferencepools"} {
		t.Run(resource, func(t *testing.T) {
			s := newServer(t)
			for _, namespace := range []string{"a", "b"} {
				s.put(aPool, namespace, "p", "x")
				s.put(aPod, namespace, "e", "u", "x", "10.1.0.1", "True")
				s.forbid(resource, namespace)
			}
			w := follow(t, s, Options{Namespaces: []string{"a", "b"}})
			w.until("the reason", func() bool {
				err := w.c.Ready()
				return err != nil && strings.HasPrefix(err.Error(), "may not list "+resource)
			})
			s.with(func() {
				for _, verb := range []string{"list", "watch"} {
					delete(s.forbidden, verb+" "+resource+" a")
				}
			})
			w.until("readiness", func() bool { return w.c.Ready() == nil && w.endpoints("a", "e-rank-0=10.1.0.1:8000")() })
			if len(w.sources) != 1 {
				t.Errorf("told %v", w.sources)
			}
		})
	}
}

// Nobody is ready before the pods are known, however soon he is asked.
func TestReadyEarly(t *testing.T) {
	for _, o := range []Options{{}, {PickerMaps: true}, {Namespaces: []string{"a"}}, single} {
		for range 2 {
			s := newServer(t)
			s.put(aPool, "a", "p", "x")
			s.forbid("pods", "a")
			w := follow(t, s, o)
			for deadline := time.Now().Add(limit); w.c.Ready() == nil || !strings.HasPrefix(w.c.Ready().Error(), "may not list pods"); runtime.Gosched() {
				if w.c.Ready() == nil || time.Now().After(deadline) {
					t.Fatalf("%+v: %v", o, w.c.Ready())
				}
			}
		}
	}
}

// A picker whose pool comes late is ready when the pods are known, too.
func TestReadyLate(t *testing.T) {
	s := newServer(t)
	s.forbid("pods", "a")
	w := follow(t, s, single)
	unready := func(why string) func() bool {
		return func() bool { err := w.c.Ready(); return err != nil && strings.Contains(err.Error(), why) }
	}
	w.until("the reason", unready("may not list pods"))
	s.put(aPool, "a", "p", "x")
	w.until("the pool", func() bool { return w.object("InferencePool a/p") != nil })
	if !unready("may not list pods")() {
		t.Errorf("got %v", w.c.Ready())
	}
	s.with(func() { clear(s.forbidden) })
	w.until("readiness", func() bool { return w.c.Ready() == nil })
}

// A namespace that comes while we run, and whose pods are not known, takes nothing from those that are.
func TestReadyStays(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e", "u", "x", "10.1.0.1", "True")
	w := follow(t, s, Options{Namespaces: []string{"a", "b"}})
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	s.forbid("pods", "b")
	s.put(aPool, "b", "p", "x")
	w.until("that it is refused", func() bool { return w.failed["pods list Forbidden"] > 0 })
	if err := w.c.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

// A stranger that finds nothing, such as a load balancer before an API server that is away, ends nothing, and what was known stays.
func TestStranger(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	served := s.groups
	w.note(func() { w.fewest = 1 })
	s.with(func() { s.groups = map[string][]string{} })
	asked := func() int { return w.failed["inferencepools.inference.networking.k8s.io discover Unreachable"] }
	w.until("failures", func() bool { return w.failed["pods list NotFound"] > 0 && asked() > int(absentAfter/absentPoll)+2 })
	if err := w.c.Ready(); err != nil || w.fewest != 1 {
		t.Errorf("ready: %v, and for a time %d endpoints", err, w.fewest)
	}
	s.put(aPod, "a", "e1", "u1", "x", "10.1.0.2", "True")
	s.with(func() { s.groups = served })
	w.until("the other endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000", "e1-rank-0=10.1.0.2:8000"))
}

// An API server that is starting may not know a definition for a moment: what was known stays. When it has none, nothing is left,
// though no event told so.
func TestDefinitionAway(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	const group = "inference.networking.k8s.io/v1"
	served := s.groups[group]
	away := func() {
		s.with(func() { delete(s.groups, group) })
		w.until("that it is missed", func() bool {
			return strings.Contains(w.feed("inferencepools.inference.networking.k8s.io").Error, "not installed")
		})
	}
	w.note(func() { w.fewest = 1 })
	away()
	if err := w.c.Ready(); err != nil {
		t.Errorf("for a moment: %v", err)
	}
	s.with(func() { s.groups[group] = served })
	w.until("it again", func() bool { return w.feed("inferencepools.inference.networking.k8s.io").State == Synced })
	if w.fewest != 1 {
		t.Error("for a moment it had no endpoint")
	}
	away()
	w.until("no endpoint", w.endpoints("a"))
	w.until("the reason", func() bool {
		err := w.c.Ready()
		return err != nil && strings.Contains(err.Error(), "not installed")
	})
}

// While the API server is away the last state stays; what changed meanwhile is seen afterwards, though no event tells of it.
func TestOutage(t *testing.T) {
	s := newServer(t)
	s.leave()
	w := follow(t, s, single)
	w.until("failures", func() bool { return len(w.failed) > 0 && w.c.Ready() != nil })
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.come(t)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("readiness", func() bool { return w.c.Ready() == nil })
	s.leave()
	w.until("failures", func() bool { return w.failed["pods watch Unreachable"]+w.failed["pods list Unreachable"] > 0 })
	if err := w.c.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	s.remove(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.put(aPod, "a", "e1", "u1", "x", "10.1.0.2", "True")
	s.drop()
	s.come(t)
	w.until("the other endpoint", w.endpoints("a", "e1-rank-0=10.1.0.2:8000"))
}

// All pools of some namespaces, each with its own endpoints; a namespace without a pool costs nothing.
func TestManyPools(t *testing.T) {
	s := newServer(t)
	for _, namespace := range []string{"a", "b", "c"} {
		s.put(aPod, namespace, "e", "u", "x", "10.1.0.1", "True")
	}
	s.put(aPool, "a", "p", "x")
	s.put(aPool, "b", "p", "x")
	w := follow(t, s, Options{PickerMaps: true})
	w.until("two", func() bool {
		return len(w.objects) == 2 && w.endpoints("a", "e-rank-0=10.1.0.1:8000")() && w.endpoints("b", "e-rank-0=10.1.0.1:8000")() && w.c.Ready() == nil
	})
	s.put(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"b","name":"pick"},"data":{"default-plugins.yaml":"no","mine.yaml":"yes"}}`)
	w.until("the text", func() bool { o := w.object("ConfigMap b/pick mine.yaml"); return o != nil && string(o.Data) == "yes" })
	s.remove(aPool, "b", "p", "x")
	w.until("one", func() bool {
		return len(w.sources) == 1 && len(w.objects) == 1 && slices.Equal(w.forgotten, []string{"b"})
	})
	// A pool that comes does not begin by another configuration than its own, unless that is not to be had.
	s.put(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"c","name":"pick"},"data":{"default-plugins.yaml":"its own"}}`)
	without := false
	w.note(func() {
		w.look = func() {
			without = without || w.object("InferencePool c/p") != nil && w.object("ConfigMap c/pick default-plugins.yaml") == nil
		}
	})
	s.put(aPool, "c", "p", "x")
	w.until("its text", func() bool { return w.object("ConfigMap c/pick default-plugins.yaml") != nil })
	if without {
		t.Error("the pool was told without its text")
	}
	w.until("the third", w.endpoints("c", "e-rank-0=10.1.0.1:8000"))
}

// Of several namespaces nothing is told of an object before it is known which pools its namespace has.
func TestPoolsBeforeWhatNamesThem(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.groups["llm-d.ai/v1"] = []string{"inferenceobjectives", "inferencemodelrewrites"}
	s.put(anObjective, "llm-d.ai/v1", "high", 7, `"poolRefs":[{"name":"p"}]`)
	s.forbidden["list inferencepools"], s.forbidden["watch inferencepools"] = true, true
	orphan := false
	w := followBy(t, s, Options{Namespaces: []string{"a", "b"}}, func(w *told) func(context.Context, []*Object) []Verdict {
		return func(_ context.Context, list []*Object) []Verdict {
			w.note(func() {
				w.objects = list
				orphan = orphan || w.object("InferenceObjective a/high") != nil && w.object("InferencePool a/p") == nil
			})
			return nil
		}
	})
	w.until("that the objective is known", func() bool {
		return slices.ContainsFunc(w.c.Feeds(), func(f Feed) bool {
			return f.Namespace == "a" && strings.HasPrefix(f.Resource, "inferenceobjectives") && f.Objects == 1
		})
	})
	s.with(func() { clear(s.forbidden) })
	w.until("both", func() bool {
		return w.object("InferenceObjective a/high") != nil && w.object("InferencePool a/p") != nil
	})
	if orphan {
		t.Error("the objective was told before its pool")
	}
}

// One ConfigMap for all: what it says is known before the first configuration is told.
func TestConfigMap(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	text := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"a","name":"conf"},"data":{"k":%q}}`
	s.put(text, "one")
	o := single
	o.ConfigMap = MapRef{ID: fleet.ID{Namespace: "a", Name: "conf"}}
	w := follow(t, s, o)
	w.until("the pool", func() bool { return len(w.objects) > 0 })
	if c := w.object("ConfigMap a/conf k"); c == nil || string(c.Data) != "one" {
		t.Errorf("objects %v", w.objects)
	}
	s.put(text, "two")
	w.until("the change", func() bool { c := w.object("ConfigMap a/conf k"); return c != nil && string(c.Data) == "two" })
	s.remove(text, "")
	w.until("that it is gone", func() bool { return len(w.objects) == 1 })
}

func TestConfigText(t *testing.T) {
	for _, c := range []struct {
		keys, key, want string
	}{
		{"a", "", "a"},
		{"a default-plugins.yaml", "", "a"},
		{"a b default-plugins.yaml", "", "default-plugins.yaml"},
		{"default-plugins.yaml payload-agnostic.yaml", "", "default-plugins.yaml"},
		{"a b", "b", "b"},
		{"a b", "", ""},
		{"a b", "c", ""},
		{"", "", ""},
	} {
		data := map[string]string{}
		for k := range strings.FieldsSeq(c.keys) {
			data[k] = "text of " + k
		}
		_, text, ok := ConfigText(data, c.key)
		if got := strings.TrimPrefix(text, "text of "); got != c.want || ok != (c.want != "") {
			t.Errorf("of %q with key %q: got %q, %v; want %q", c.keys, c.key, got, ok, c.want)
		}
	}
}

// A pod that no event told of is found by comparing, counted, and served.
func TestDifference(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	o := single
	o.compareEvery, o.compareAgain = time.Millisecond, time.Millisecond
	w := follow(t, s, o)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	s.with(func() { s.mute = true })
	s.put(aPod, "a", "e1", "u1", "x", "10.1.0.2", "True")
	w.until("the other one", w.endpoints("a", "e0-rank-0=10.1.0.1:8000", "e1-rank-0=10.1.0.2:8000"))
	w.until("that nothing differs", func() bool { return w.most == 1 && w.differs == 0 })
}
