// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
)

func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1, func(o *flow.Options) {
			o.MaxRequests, o.MaxBytes, o.Evict = 10, 4000, true
			hundred := o.Default
			hundred.MaxRequests, hundred.Share = 7, 0.25
			o.Bands = map[int]flow.BandSpec{100: hundred}
		})
		batch := r.ask("x", -10, nil)
		batch.ticket.Evictable(time.Now(), func() {})
		model := func(name string) func(*flow.Ask) { return func(a *flow.Ask) { a.Model, a.Target = name, name+"-base" } }
		time.Sleep(time.Second)
		var visits []*visit
		for _, w := range []struct {
			tenant, model string
			n             int
		}{{"b", "m", 2}, {"a", "m", 2}, {"a", "other", 1}} {
			for range w.n {
				visits = append(visits, r.ask(w.tenant, 0, model(w.model)))
			}
		}
		time.Sleep(2 * time.Second)
		s := r.State()
		if s.Pool != poolID || s.Requests != 5 || s.MaxRequests != 10 || s.Bytes != 500 || s.MaxBytes != 4000 || s.Saturation != 1 || s.Empty || s.Unknown != 0 {
			t.Errorf("got %+v", s)
		}
		if want := []flow.StageState{{Stage: "decode", Saturation: 1}}; !slices.Equal(s.Stages, want) {
			t.Errorf("stages: got %v, want %v", s.Stages, want)
		}
		var priorities []int
		for _, b := range s.Bands {
			priorities = append(priorities, b.Priority)
		}
		if want := []int{100, 0, -10}; !slices.Equal(priorities, want) {
			t.Fatalf("bands: got %v, want %v", priorities, want)
		}
		if b := s.Bands[0]; b.MaxRequests != 7 || b.MaxBytes != flow.DefaultBandBytes || b.Share != 0.25 || b.Requests != 0 || b.Ceiling != 1 {
			t.Errorf("band 100: got %+v", b)
		}
		b := s.Bands[1]
		if want := []flow.FlowState{{Tenant: "a", Requests: 3}, {Tenant: "b", Requests: 2}}; b.Requests != 5 || b.Bytes != 500 || b.Flows != 2 || b.Oldest != 2*time.Second || !slices.Equal(b.Longest, want) {
			t.Errorf("band 0: got %+v", b)
		}
		slices.SortFunc(s.Queues, func(a, b flow.QueueState) int {
			return strings.Compare(a.Tenant+a.Model, b.Tenant+b.Model)
		})
		want := []flow.QueueState{
			{Key: flow.Key{Tenant: "a"}, Model: "m", Target: "m-base", Requests: 2, Bytes: 200},
			{Key: flow.Key{Tenant: "a"}, Model: "other", Target: "other-base", Requests: 1, Bytes: 100},
			{Key: flow.Key{Tenant: "b"}, Model: "m", Target: "m-base", Requests: 2, Bytes: 200},
		}
		if !slices.Equal(s.Queues, want) {
			t.Errorf("queues:\n got %v\nwant %v", s.Queues, want)
		}
		// The batch request was asked back when the first one began to wait: five could use it, there is one.
		if !s.Evict || s.Pending != 1 || s.Tracked != 0 || s.Target != 1 {
			t.Errorf("reclaim: got pending %d, tracked %d, target %d; want 1, 0, 1", s.Pending, s.Tracked, s.Target)
		}
		batch.end()
		for len(visits) > 0 {
			i := slices.IndexFunc(visits, func(v *visit) bool { return v.done })
			visits[i].end()
			visits = slices.Delete(visits, i, i+1)
		}
		if s := r.State(); s.Requests != 0 || s.Bytes != 0 || len(s.Queues) != 0 || s.Bands[1].Flows != 0 || s.Saturation != 0 || s.Pending != 0 {
			t.Errorf("afterwards: got %+v", s)
		}
	})
}

// Stages are told where endpoints have roles; a signal nobody told is unknown, to the detector that reads signals.
func TestStateOfRolesAndSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, 1, func(o *flow.Options) {
			o.Detector = &policy.UtilizationDetector{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, UnknownConcurrency: 2}
		})
		if s := r.State(); !s.Empty || s.Saturation != 1 || len(s.Stages) != 0 {
			t.Errorf("empty pool: got %+v", s)
		}
		spec := func(name, role, address string) fleet.EndpointSpec {
			return fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: address, Labels: map[string]string{"llm-d.ai/role": role}}
		}
		r.store.SetEndpoints("test", []fleet.EndpointSpec{spec("p", "prefill", "10.0.0.1:1"), spec("d", "decode", "10.0.0.2:1"), spec("both", "prefill-decode", "10.0.0.3:1"), spec("e", "encode", "10.0.0.4:1")})
		r.Kick()
		for _, e := range r.store.Load().Pool(poolID).Endpoints {
			if e.Name == "d" {
				e.Load.Take(time.Now(), 0, 0) // half full
			}
		}
		s := r.State()
		if want := []flow.StageState{{Stage: "prefill", Saturation: 0}, {Stage: "decode", Saturation: 0.25}}; !slices.Equal(s.Stages, want) {
			t.Errorf("stages: got %v, want %v", s.Stages, want)
		}
		if s.Unknown != 4 || s.Empty || s.Saturation != 0.125 {
			t.Errorf("got %+v", s)
		}
	})
}

// A request is told where it stood when it began to wait, and how that ended.
func TestStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1, func(o *flow.Options) {
			o.MaxRequests = 3
			o.Bands = map[int]flow.BandSpec{5: o.Default}
		})
		stories := map[string]*flow.Story{}
		come := func(name, tenant string, priority int) *visit {
			stories[name] = &flow.Story{}
			return r.ask(tenant, priority, func(a *flow.Ask) { a.Story = stories[name] })
		}
		check := func(name string, want flow.Story) {
			t.Helper()
			if got := *stories[name]; got != want {
				t.Errorf("%s: got %+v, want %+v", name, got, want)
			}
		}
		first := come("first", "a", 0)
		check("first", flow.Story{Outcome: flow.Dispatched})
		second, high, third := come("second", "a", 0), come("high", "h", 5), come("third", "b", 0)
		check("second", flow.Story{Waited: true, For: flow.ForRoom, Flows: 1})
		check("high", flow.Story{Waited: true, For: flow.ForRoom, Flows: 1})
		check("third", flow.Story{Waited: true, For: flow.ForRoom, Ahead: 2, Flows: 2})
		come("full", "a", 0)
		check("full", flow.Story{Outcome: flow.RejectedCapacity})
		highest := come("highest", "h", 5) // it takes the place of one of those below
		check("highest", flow.Story{Waited: true, For: flow.ForRoom, Ahead: 1, Own: 1, Flows: 1})
		first.end()
		high.end()
		highest.end()
		last := third
		if second.reason == "" {
			last = second
		}
		last.end()
		check("high", flow.Story{Outcome: flow.Dispatched, Waited: true, For: flow.ForRoom, Flows: 1})
		r.Close()
		come("late", "a", 0)
		check("late", flow.Story{Outcome: flow.RejectedOther})
		if got := [2]flow.Outcome{stories["second"].Outcome, stories["third"].Outcome}; got != [2]flow.Outcome{flow.Dispatched, flow.RejectedCapacity} && got != [2]flow.Outcome{flow.RejectedCapacity, flow.Dispatched} {
			t.Errorf("second and third: got %v, want one to have made room", got)
		}
	})
}

func TestStoryOfCeilingsAndEmptyPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 1, func(o *flow.Options) {
			o.Limit = &policy.StaticUsageLimitPolicy{Threshold: 0.5}
			o.NoEndpointTTL = time.Second
		})
		first := r.ask("a", 0, nil)
		var held, lone flow.Story
		v := r.ask("b", 0, func(a *flow.Ask) { a.Story = &held })
		if want := (flow.Story{Waited: true, For: flow.ForCeiling, Flows: 1}); held != want {
			t.Errorf("got %+v, want %+v", held, want)
		}
		if got := r.State().Bands[0].Ceiling; got != 0.5 {
			t.Errorf("ceiling: got %g, want 0.5", got)
		}
		first.end()
		v.end()
		r.endpoints(0)
		r.ask("c", 0, func(a *flow.Ask) { a.Story = &lone })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if want := (flow.Story{Outcome: flow.EvictedNoEndpoints, Waited: true, For: flow.ForEndpoints, Flows: 1}); lone != want {
			t.Errorf("got %+v, want %+v", lone, want)
		}
	})
}
