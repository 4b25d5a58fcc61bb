// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var objectives = schema.GroupVersionResource{Group: ownGroup, Version: "v1", Resource: "inferenceobjectives"}

func pooled(name string, set labels.Set) *Object {
	return &Object{Kind: "InferencePool", Namespace: "ns", Name: name, UID: "pool-" + name, labels: set}
}

func objective(pools ...string) *Object {
	return &Object{Kind: "InferenceObjective", Namespace: "ns", Name: "o", UID: "1", Generation: 3, Resource: objectives, pools: pools}
}

// TestJudge says of an object what became of it.
func TestJudge(t *testing.T) {
	gold, err := labels.Parse("tier=gold")
	if err != nil {
		t.Fatal(err)
	}
	chosen := objective("b")
	chosen.choose = &gold
	only := objective()
	only.choose = &gold
	rewrite := &Object{Kind: "InferenceModelRewrite", Namespace: "ns", Name: "r", Data: []byte(`{"spec":{"poolRef":{"name":"a"}}}`), pools: []string{"a"}}
	a, b, c := pooled("a", labels.Set{"tier": "gold"}), pooled("b", nil), pooled("c", labels.Set{"tier": "gold"})
	for _, x := range []struct {
		name  string
		v     Verdict
		pools []*Object
		want  string
	}{
		{"accepted", Verdict{Object: objective("a"), Pools: []string{"a"}}, []*Object{a, b}, "True Accepted: counts for InferencePool a (a)"},
		{"one pool is missing", Verdict{Object: objective("x", "a"), Pools: []string{"a"}}, []*Object{a}, "True Accepted: counts for InferencePool a; namespace ns has no InferencePool x (a)"},
		{"no pool", Verdict{Object: objective("x", "y")}, []*Object{a}, "False PoolNotFound: namespace ns has no InferencePool x, y: create it, or name another in spec.poolRefs ()"},
		{"a pool of another namespace", Verdict{Object: objective("a")}, []*Object{{Kind: "InferencePool", Namespace: "other", Name: "a"}}, "False PoolNotFound: namespace ns has no InferencePool a: create it, or name another in spec.poolRefs ()"},
		{"named, then selected", Verdict{Object: chosen, Pools: []string{"a"}}, []*Object{c, b, a}, "True Accepted: counts for InferencePool b, a, c (b)"},
		{"selects nothing", Verdict{Object: only}, []*Object{b}, "False PoolNotFound: no InferencePool of namespace ns has the labels of spec.poolSelector: label one, or change the selector ()"},
		{"wrong", Verdict{Object: objective("a"), Errors: []string{"spec.rules[0]: one", "two"}}, []*Object{a}, "False Invalid: spec.rules[0]: one; two (a)"},
		{"conflicted", Verdict{Object: objective("a"), Warnings: []string{"rule 1 of older comes first"}}, []*Object{a}, "False Conflicted: rule 1 of older comes first (a)"},
		{"without rules", Verdict{Object: rewrite, Warnings: []string{"no"}}, []*Object{a}, "True Accepted: has no rules: it changes nothing; no (a)"},
		{"its pool is wrong", Verdict{Object: objective("a")}, []*Object{a}, "Unknown Pending: InferencePool a is not in force: its events say why (a)"},
		{"superseded", Verdict{Object: &Object{Kind: "InferenceObjective", Namespace: "ns", Resource: schema.GroupVersionResource{Group: legacyGroup}, pools: []string{"a"}}, Superseded: true}, []*Object{a}, "False Superseded: inference.networking.x-k8s.io is not read where the API server has llm-d.ai: write this as llm-d.ai/v1 (a)"},
		{"a ConfigMap", Verdict{Object: &Object{Kind: "ConfigMap", Namespace: "ns"}, Errors: []string{"3: plugins: no"}}, nil, "False Invalid: 3: plugins: no ()"},
		{"long", Verdict{Object: objective("a"), Errors: []string{strings.Repeat("é", 900)}}, []*Object{a}, "False Invalid: " + strings.Repeat("é", 500) + "… (a)"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, of, _ := judge(x.v, x.pools)
			first := ""
			if len(of) > 0 {
				first = of[0].Name
			}
			if got := fmt.Sprintf("%s %s: %s (%s)", c.Status, c.Reason, c.Message, first); got != x.want {
				t.Errorf("got  %s\nwant %s", got, x.want)
			}
			if c.ObservedGeneration != x.v.Generation || c.Type != "Accepted" {
				t.Errorf("%s of generation %d", c.Type, c.ObservedGeneration)
			}
		})
	}
}

// noticeboard is an API server with one object, which pickers report about.
type noticeboard struct {
	mu     sync.Mutex
	status map[string]any
	writes []string
	events []string
	fail   error
	denied error // to write status
	deaf   bool  // what is written is dropped
}

func (n *noticeboard) apply(_ context.Context, o *Object, c metav1.Condition) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := cmp.Or(n.fail, n.denied); err != nil {
		return err
	}
	n.writes = append(n.writes, fmt.Sprintf("%s %s at %s", c.Status, c.Reason, c.LastTransitionTime.UTC().Format("15:04:05")))
	if !n.deaf {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			return err
		}
		n.status = map[string]any{"conditions": []any{map[string]any{"type": "Other"}, m}}
	}
	return nil
}

func (n *noticeboard) event(_ context.Context, o *Object, warning bool, reason, message string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return n.fail
	}
	n.events = append(n.events, fmt.Sprint(reason, " ", warning))
	return nil
}

// post has a picker of a pool see the object as it is, and judge it.
func (n *noticeboard) post(r *reports, of string, v Verdict, pools ...*Object) {
	n.mu.Lock()
	o := *v.Object
	o.Status = n.status
	n.mu.Unlock()
	v.Object = &o
	r.take([]Verdict{v}, pools, func(p *Object) bool { return p.Name == of })
}

func reporter(t *testing.T, n *noticeboard, may func() bool) *reports {
	r := newReports(n, may, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return r
}

func (n *noticeboard) want(t *testing.T, writes, events string) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := strings.Join(n.writes, ", "); got != writes {
		t.Errorf("writes: got  %s\nwant %s", got, writes)
	}
	if got := strings.Join(n.events, ", "); got != events {
		t.Errorf("events: got  %s\nwant %s", got, events)
	}
	n.writes, n.events = nil, nil
}

// TestReports writes what became of objects, no more often than it must.
func TestReports(t *testing.T) {
	a, b := pooled("a", nil), pooled("b", nil)
	good := Verdict{Object: objective("a", "b"), Pools: []string{"a"}}
	lost := Verdict{Object: objective("x")}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, n *noticeboard)
	}{
		{"once, and again when it changes", func(t *testing.T, n *noticeboard) {
			r := reporter(t, n, nil)
			n.post(r, "a", lost, a)
			n.want(t, "False PoolNotFound at 00:00:00", "PoolNotFound true")
			for range 5 {
				n.post(r, "a", lost, a)
				time.Sleep(10 * time.Second)
			}
			n.want(t, "", "")
			later := lost
			o := *lost.Object
			o.Generation++
			later.Object = &o
			n.post(r, "a", later, a) // another generation, the same status: no transition
			n.want(t, "False PoolNotFound at 00:00:00", "")
			time.Sleep(time.Second)
			later.Object.pools = []string{"a"}
			later.Pools = []string{"a"}
			n.post(r, "a", later, a)
			n.want(t, "True Accepted at 00:00:51", "Accepted false")
		}},
		{"what is right makes no event", func(t *testing.T, n *noticeboard) {
			r := reporter(t, n, nil)
			n.post(r, "a", good, a, b)
			n.want(t, "True Accepted at 00:00:00", "")
		}},
		{"a restart says nothing again", func(t *testing.T, n *noticeboard) {
			n.post(reporter(t, n, nil), "a", lost, a)
			n.want(t, "False PoolNotFound at 00:00:00", "PoolNotFound true")
			n.post(reporter(t, n, nil), "a", lost, a)
			time.Sleep(time.Minute)
			n.want(t, "", "")
		}},
		{"one of two pools is missing", func(t *testing.T, n *noticeboard) {
			half := Verdict{Object: objective("a", "x"), Pools: []string{"a"}}
			r := reporter(t, n, nil)
			for range 5 {
				n.post(r, "a", half, a)
				time.Sleep(10 * time.Second)
			}
			n.want(t, "True Accepted at 00:00:00", "PoolNotFound true")
			n.post(reporter(t, n, nil), "a", half, a) // a restart
			time.Sleep(time.Minute)
			n.want(t, "", "")
			n.post(r, "a", half, a, pooled("x", nil))
			n.want(t, "True Accepted at 00:00:00", "Accepted false")
		}},
		{"a standby says nothing until it leads", func(t *testing.T, n *noticeboard) {
			var mu sync.Mutex
			leads := false
			r := reporter(t, n, func() bool { mu.Lock(); defer mu.Unlock(); return leads })
			n.post(r, "a", lost, a)
			time.Sleep(time.Minute)
			n.want(t, "", "")
			mu.Lock()
			leads = true
			mu.Unlock()
			time.Sleep(2 * time.Second)
			n.want(t, "False PoolNotFound at 00:01:01", "PoolNotFound true")
		}},
		{"the picker of the first pool speaks", func(t *testing.T, n *noticeboard) {
			ra, rb := reporter(t, n, nil), reporter(t, n, nil)
			other := Verdict{Object: good.Object, Errors: []string{"of another mind"}}
			n.post(rb, "b", other, a, b)
			n.want(t, "", "")
			n.post(ra, "a", good, a, b)
			n.want(t, "True Accepted at 00:00:00", "")
			for range 5 {
				n.post(ra, "a", good, a, b)
				n.post(rb, "b", other, a, b)
				time.Sleep(time.Minute)
			}
			n.want(t, "", "")
		}},
		{"when it says nothing, another does", func(t *testing.T, n *noticeboard) {
			r := reporter(t, n, nil)
			n.post(r, "b", good, a, b)
			time.Sleep(9 * time.Second)
			n.want(t, "", "")
			time.Sleep(3 * time.Second)
			n.want(t, "True Accepted at 00:00:10", "")
		}},
		{"two that contradict one another tire", func(t *testing.T, n *noticeboard) {
			r1, r2 := reporter(t, n, nil), reporter(t, n, nil)
			other := Verdict{Object: good.Object, Errors: []string{"of another mind"}}
			for range 3600 {
				n.post(r1, "a", good, a, b)
				n.post(r2, "a", other, a, b)
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if len(n.writes) > 40 || len(n.writes) < 10 {
				t.Errorf("%d writes in an hour", len(n.writes))
			}
		}},
		{"a definition that drops it", func(t *testing.T, n *noticeboard) {
			n.deaf = true
			r := reporter(t, n, nil)
			for range 3600 {
				n.post(r, "a", good, a, b)
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if len(n.writes) > 20 {
				t.Errorf("%d writes in an hour", len(n.writes))
			}
		}},
		{"without a status there are events", func(t *testing.T, n *noticeboard) {
			n.denied = apierrors.NewForbidden(objectives.GroupResource(), "o", errors.New("no"))
			r := reporter(t, n, nil)
			for range 100 {
				n.post(r, "a", lost, a)
				time.Sleep(time.Second)
			}
			n.want(t, "", "PoolNotFound true")
			n.post(r, "a", Verdict{Object: objective("a"), Pools: []string{"a"}}, a)
			n.want(t, "", "Accepted false")
		}},
		{"an API server that is away", func(t *testing.T, n *noticeboard) {
			n.fail = errors.New("connection refused")
			r := reporter(t, n, nil)
			n.post(r, "a", lost, a)
			time.Sleep(20 * time.Second)
			n.mu.Lock()
			n.fail = nil
			n.mu.Unlock()
			time.Sleep(20 * time.Second)
			n.want(t, "False PoolNotFound at 00:00:31", "PoolNotFound true")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t, &noticeboard{}) })
		})
	}
}

// TestReportsDenied is told once what it may not do, and does it when it may.
func TestReportsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		n := &noticeboard{denied: apierrors.NewForbidden(objectives.GroupResource(), "o", errors.New("no"))}
		r := reporter(t, n, nil)
		r.log = slog.New(slog.NewTextHandler(&text, nil))
		v := Verdict{Object: objective("x")}
		n.post(r, "a", v, pooled("a", nil))
		for range 100 {
			time.Sleep(10 * time.Second)
			n.post(r, "a", v, pooled("a", nil))
		}
		synctest.Wait()
		want := "the API server does not let us patch inferenceobjectives.llm-d.ai/status in namespace ns"
		if strings.Count(text.String(), want) != 1 || strings.Count(text.String(), "names a pool that is not there") != 1 || strings.Count(text.String(), "\n") != 2 {
			t.Errorf("it said: %s", text.String())
		}
		n.mu.Lock()
		n.denied = nil
		n.mu.Unlock()
		time.Sleep(reportDenied)
		n.want(t, "False PoolNotFound at 00:17:00", "PoolNotFound true")
	})
}
