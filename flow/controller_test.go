// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
)

// rig is a gate over a pool of n endpoints that take per requests each. It needs a synctest bubble.
type rig struct {
	*flow.Controller
	t     testing.TB
	store *fleet.Store
	opt   flow.Options
	left  map[flow.Outcome]int
}

var poolID = fleet.ID{Namespace: "default", Name: "p"}

func spec(fairness, ordering string) flow.BandSpec {
	return flow.BandSpec{Ordering: policy.Orderings[ordering](), Fairness: policy.Fairness[fairness]().New}
}

func newRig(t testing.TB, n int, per int64, change func(*flow.Options)) *rig {
	r := &rig{t: t, store: fleet.NewStore(), left: map[flow.Outcome]int{}}
	r.store.SetPools([]fleet.PoolSpec{{ID: poolID}})
	r.endpoints(n)
	fair := spec("round-robin-fairness-policy", "fcfs-ordering-policy")
	r.opt = flow.Options{
		TTL: time.Minute, NoEndpointTTL: time.Minute, Default: fair, Negative: fair,
		Detector: &policy.ConcurrencyDetector{MaxConcurrency: per, MaxTokenConcurrency: 1 << 40, ConcurrencyMode: "requests"},
		Pool:     poolID, Store: r.store, Stale: 2 * time.Second, Listener: r,
	}
	if change != nil {
		change(&r.opt)
	}
	r.Controller = flow.New(r.opt)
	return r
}

func (r *rig) endpoints(n int) {
	specs := []fleet.EndpointSpec{}
	for i := range n {
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
	}
	r.store.SetEndpoints("test", specs)
}

func (r *rig) Entered(*flow.Ask, flow.Outcome, time.Duration)    {}
func (r *rig) Looked(time.Duration)                              {}
func (r *rig) Left(_ *flow.Ask, o flow.Outcome, _ time.Duration) { r.left[o]++ }
func (r *rig) Revoked(int)                                       { r.left["revoked"]++ }
func (r *rig) Reclaimed(ok bool, _ time.Duration) {
	if ok {
		r.left["reclaimed"]++
	} else {
		r.left["timed out"]++
	}
}

// visit is a request on its way.
type visit struct {
	ticket flow.Ticket
	hold   fleet.Hold
	at     *fleet.Endpoint
	reason flow.Reason
	done   bool
	took   time.Duration
	cancel context.CancelFunc
}

func candidates(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
	return append(into, s.Pool(poolID).Endpoints...)
}

// ask sends a request, and waits until it went, was refused, or waits.
func (r *rig) ask(tenant string, priority int, change func(*flow.Ask)) *visit {
	v := &visit{}
	s := r.store.Load()
	now := time.Now()
	a := &flow.Ask{Key: flow.Key{Tenant: tenant, Priority: priority}, Bytes: 100, Uncached: 10, Output: 5, Received: now, Now: now,
		Candidates: candidates(s, nil), Version: s.Version, Refresh: candidates, Stale: 2 * time.Second}
	if change != nil {
		change(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	go func() {
		began := time.Now()
		v.ticket, v.reason = r.Enter(ctx, a)
		v.took = time.Since(began)
		if v.reason == "" {
			for _, e := range r.store.Load().Pool(poolID).Endpoints {
				if e.Load == v.ticket.Kept() {
					v.at = e
				}
			}
			v.hold, _ = v.ticket.Place(v.at, time.Now(), 10, 0)
		}
		v.done = true
	}()
	synctest.Wait()
	return v
}

// end ends a request that went.
func (v *visit) end() {
	v.hold.Release()
	v.ticket.End(10, 5)
	synctest.Wait()
}

func (v *visit) String() string {
	switch {
	case !v.done:
		return "waits"
	case v.reason != "":
		return string(v.reason)
	}
	return "goes"
}

func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1, nil)
		first := r.ask("a", 0, nil)
		var order []string
		waits := map[string][]*visit{}
		for k := range 3 {
			for _, tenant := range []string{"a", "a", "b"} {
				v := r.ask(tenant, 0, nil)
				if v.done {
					t.Fatalf("%d %s: %v, want it to wait", k, tenant, v)
				}
				waits[tenant] = append(waits[tenant], v)
			}
		}
		running := first
		for range 9 {
			running.end()
			for tenant, list := range waits {
				if len(list) > 0 && list[0].done {
					running, waits[tenant] = list[0], list[1:]
					order = append(order, tenant)
				}
			}
		}
		if got := fmt.Sprint(order); got != "[a b a b a b a a a]" {
			t.Errorf("got %s", got)
		}
		running.end()
		if r.left[flow.Dispatched] != 10 {
			t.Errorf("got %v", r.left)
		}
		for _, e := range r.store.Load().Pool(poolID).Endpoints {
			held, work := e.Load.Reserved()
			if e.Load.Requests() != 0 || e.Load.Tokens() != 0 || held != 0 || work != 0 {
				t.Errorf("%s: %d requests, %d tokens, %d and %d kept", e.Name, e.Load.Requests(), e.Load.Tokens(), held, work)
			}
		}
	})
}
