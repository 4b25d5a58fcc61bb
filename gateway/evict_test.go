// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	queue "github.com/penstock-project/penstock/flow/policy"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// queued gives the pool a queue: each endpoint takes one request.
func (r *rig) queued(change func(*flow.Options)) *flow.Controller {
	fair := flow.BandSpec{Ordering: queue.Orderings["fcfs-ordering-policy"](), Fairness: queue.Fairness["round-robin-fairness-policy"]().New}
	o := flow.Options{
		TTL: time.Minute, NoEndpointTTL: time.Minute, Default: fair, Negative: fair, Evict: true, Stale: r.Stale,
		Detector: &queue.ConcurrencyDetector{MaxConcurrency: 1, ConcurrencyMode: "requests"},
		Pool:     fleet.ID{Namespace: "default", Name: "p"}, Store: r.Store,
	}
	if change != nil {
		change(&o)
	}
	l := defaultLane()
	c := flow.New(o)
	l.Gate = c
	r.SetLanes(Lanes{o.Pool: l})
	return c
}

// evictee has its exchange wait once more when it is taken back, as a door would.
type evictee struct{ told chan struct{} }

func (e *evictee) Evict() { close(e.told) }

func TestTakenBackAndServedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		r.door.SetTrust(Trust{All: true})
		gate := r.queued(nil)
		e := &evictee{make(chan struct{})}
		batch := r.begin(headers{"x-llm-d-inference-objective": "batch"})
		batch.OnEvict(e)
		batch.Write([]byte(chat("x")))
		p, ref := batch.Place(context.Background())
		if ref != nil || !p.Evictable {
			t.Fatalf("got %+v, %v", p, ref)
		}
		var gold *Exchange
		placed := make(chan *Refusal)
		go func() {
			var ref *Refusal
			gold, _, ref = r.place(t, headers{"x-llm-d-inference-objective": "gold"}, chat("y"))
			placed <- ref
		}()
		synctest.Wait()
		select {
		case <-e.told:
		default:
			t.Fatal("the batch request was not taken back")
		}
		again := make(chan *Refusal)
		go func() {
			_, ref := batch.Requeue(context.Background())
			again <- ref
		}()
		if ref := <-placed; ref != nil {
			t.Fatal(ref)
		}
		synctest.Wait()
		if n := gate.Waiting(); n != 1 {
			t.Errorf("%d wait, want the batch request", n)
		}
		time.Sleep(3 * time.Second)
		gold.Answer(200, headers{})
		gold.End(observe.Complete)
		if ref := <-again; ref != nil {
			t.Errorf("the batch request was refused: %v", ref)
		}
		if batch.out.Requeued != 1 || batch.out.Queue < 3*time.Second {
			t.Errorf("waited again %d times, %v in all", batch.out.Requeued, batch.out.Queue)
		}
		if d := batch.out.Decision; len(batch.out.Parts) != len(d.Scorers) || len(d.Scores) != len(d.Scorers) || len(d.Order) != 1 {
			t.Errorf("got %d parts, %d scores, %d ranked, want those of the last decision alone", len(batch.out.Parts), len(d.Scores), len(d.Order))
		}
		batch.Answer(200, headers{})
		batch.End(observe.Complete)
	})
}

// What was decided before a request was taken back is not told of one that then finds no endpoint.
func TestTakenBackAndRefused(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	gone := false
	r.with(func(p *sched.Plan) {
		p.Screeners = []sched.Named[sched.Filter]{{Name: "s", Plugin: &stand{keep: func(_ *sched.Cycle, keep []bool) { keep[0] = !gone }}}}
	})
	x, _, ref := r.place(t, headers{}, chat("x"))
	if ref != nil || len(x.out.Decision.Order) != 1 {
		t.Fatal(ref)
	}
	gone = true
	if _, ref := x.Requeue(t.Context()); ref == nil || ref.Status != 503 {
		t.Errorf("got %v, want 503", ref)
	}
	if d := x.out.Decision; len(d.Order)+len(d.Total)+len(d.Scores) != 0 {
		t.Errorf("got an order of %v, want none", d.Order)
	}
	x.End(observe.Refused)
}

func TestTakenBackForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		r.door.SetTrust(Trust{All: true})
		r.queued(nil)
		x := r.begin(headers{"x-llm-d-inference-objective": "batch", "x-penstock-requeue": "never"})
		x.OnEvict(&evictee{make(chan struct{})})
		x.Write([]byte(chat("x")))
		if _, ref := x.Place(context.Background()); ref != nil {
			t.Fatal(ref)
		}
		_, ref := x.Requeue(context.Background())
		if ref == nil || ref.Status != 429 || !ref.Evicted() || ref.RetryAfter <= 0 {
			t.Errorf("got %v, want 429 evicted", ref)
		}
		x.End(observe.Evicted)
	})
}

// A request that waits holds no cycle and no endpoint, and gets the fleet as it is when its turn comes.
func TestWaitingSeesLaterNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		gate := r.queued(nil)
		first, _, _ := r.place(t, nil, chat("x"))
		got := make(chan *Placement)
		var second *Exchange
		go func() {
			x, p, _ := r.place(t, nil, chat("y"))
			second = x
			got <- p
		}()
		synctest.Wait()
		if gate.Waiting() != 1 {
			t.Fatal("it does not wait")
		}
		r.Store.SetEndpoints("more", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "new"}, Address: "10.0.0.9:8000"}})
		if p := <-got; p == nil || p.Endpoint.Name != "new" {
			t.Errorf("got %v, want the new endpoint", p)
		}
		second.End(observe.Complete)
		first.End(observe.Complete)
	})
}

// A request may find its lane before a reload and come to its gate after it: news still reach that gate.
func TestLateAtAGateThatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		old := r.queued(nil)
		r.queued(nil)
		r.queued(nil)
		first, _, ref := r.place(t, headers{}, chat("x"))
		if ref != nil {
			t.Fatal(ref)
		}
		reason := make(chan flow.Reason)
		go func() {
			_, why := old.Enter(t.Context(), &flow.Ask{Candidates: r.endpoints(), Now: time.Now(), Waits: func() {}})
			reason <- why
		}()
		synctest.Wait()
		if old.Waiting() != 1 {
			t.Fatal("want it to wait")
		}
		r.Refuse()
		if why := <-reason; why != flow.ShuttingDown {
			t.Errorf("got %q, want %q", why, flow.ShuttingDown)
		}
		first.End(observe.Complete)
		r.SetLanes(Lanes{})
		time.Sleep(2 * retiredFor)
		if r.SetLanes(Lanes{}); len(r.retired) != 0 {
			t.Errorf("%d gates are still looked after", len(r.retired))
		}
	})
}

// The room that counts is that of endpoints which the configuration's filters let serve: what is free elsewhere
// lets nobody go.
func TestRoomElsewhereDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, slog.LevelInfo)
		labels := func(i int, tier string) fleet.EndpointSpec {
			e := r.endpoints()[i]
			return fleet.EndpointSpec{ID: e.ID, Address: e.Address, Labels: map[string]string{"tier": tier}}
		}
		r.Store.SetEndpoints("test", []fleet.EndpointSpec{labels(0, "gold"), labels(1, "free")})
		gate := r.queued(nil)
		lane := r.Lanes()[fleet.ID{Namespace: "default", Name: "p"}]
		lane.Queues = true
		gold := policy.Filters["label-selector-filter"]().(*policy.LabelSelectorFilter)
		gold.MatchLabels = map[string]string{"tier": "gold"}
		lane.Plan.Profiles[0].Filters = []sched.Named[sched.Filter]{{Name: "gold", Plugin: gold}}
		first, p, ref := r.place(t, nil, chat("x"))
		if ref != nil || p.Endpoint.Name != "e0" {
			t.Fatalf("got %v, %v", p, ref)
		}
		done := make(chan *Exchange)
		go func() {
			x, _, _ := r.place(t, nil, chat("y"))
			done <- x
		}()
		synctest.Wait()
		if n := gate.Waiting(); n != 1 {
			t.Fatalf("%d wait, want the second: only e0 may serve it", n)
		}
		first.End(observe.Complete)
		second := <-done
		if second.out.Endpoint != "default/e0" {
			t.Errorf("went to %s", second.out.Endpoint)
		}
		second.End(observe.Complete)
		gold.MatchLabels = map[string]string{"tier": "none"}
		x, _, ref := r.place(t, nil, chat("z"))
		if ref == nil || ref.Status != 429 || ref.Reason != string(flow.Saturated) {
			t.Errorf("got %v, want 429: filters leave nobody", ref)
		}
		x.End(observe.Refused)
	})
}
