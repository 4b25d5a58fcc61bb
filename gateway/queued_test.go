// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// full is a detector for which no endpoint has room.
type full struct{}

func (full) Room(flow.View, int64) bool            { return false }
func (full) Fill(flow.View) (fill, weight float64) { return 1, 1 }

// TestQueuesThatWereReplaced looks at the queues while requests still wait in one that a reload replaced.
func TestQueuesThatWereReplaced(t *testing.T) {
	store := fleet.NewStore()
	o := observe.New(observe.Options{Store: store})
	g := New(Options{Store: store, Observer: o})
	a, b, off := fleet.ID{Namespace: "d", Name: "a"}, fleet.ID{Namespace: "d", Name: "b"}, fleet.ID{Namespace: "d", Name: "off"}
	store.SetPools([]fleet.PoolSpec{{ID: a}, {ID: b}, {ID: off}})
	lane := func(id fleet.ID) *Lane {
		spec := flow.BandSpec{Ordering: policy.Orderings["fcfs-ordering-policy"](), Fairness: policy.Fairness["round-robin-fairness-policy"]().New}
		return &Lane{Plan: &sched.Plan{}, Gate: flow.New(flow.Options{Default: spec, Negative: spec, Detector: full{}, Pool: id, Store: store,
			Evict: true, Listener: Queued{Queue: o.Queue(id), Detector: "full"}})}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	wait := func(l *Lane, tenant string, priority int) {
		waits := make(chan struct{})
		all.Go(func() {
			l.Gate.Enter(ctx, &flow.Ask{Key: flow.Key{Tenant: tenant, Priority: priority}, Model: "m", Target: "m", Bytes: 10, Waits: func() { close(waits) }})
		})
		<-waits
	}
	first := lane(a)
	g.SetLanes(Lanes{a: first, off: {Plan: &sched.Plan{}, Gate: flow.NewLegacy()}})
	wait(first, "x", 0)
	wait(first, "y", 3)
	second := lane(a)
	g.SetLanes(Lanes{a: second, b: lane(b), off: {Plan: &sched.Plan{}, Gate: flow.NewLegacy()}})
	wait(second, "x", 0)

	views := g.queues()
	if len(views) != 2 || views[0].Pool != a || views[1].Pool != b {
		t.Fatalf("got %+v", views)
	}
	v := views[0]
	if v.Waiting != 3 || v.Bytes != 30 || v.Detector != "full" || len(v.Waits) != 3 || v.Leases == nil || views[1].Waiting != 0 {
		t.Errorf("got %+v", v)
	}
	if len(v.Bands) != 2 || v.Bands[0].Priority != 3 || v.Bands[0].Waiting != 1 || v.Bands[1].Waiting != 2 || v.Bands[1].Flows != 2 {
		t.Errorf("bands: got %+v", v.Bands)
	}
	if pools := o.Fleet().Pools; pools[0].Queue == nil || pools[0].Queue.Waiting != 3 || pools[2].Queue != nil {
		t.Errorf("the page shows %+v and %+v", pools[0].Queue, pools[2].Queue)
	}
	// With the gate turned off, what still waits is shown all the same.
	g.SetLanes(Lanes{})
	if views := g.queues(); len(views) != 1 || views[0].Waiting == 0 {
		t.Errorf("got %+v", views)
	}
	cancel()
	all.Wait()
	if views := g.queues(); len(views) != 0 {
		t.Errorf("nobody waits: got %+v", views)
	}
}
