// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/route"
	"github.com/penstock-project/penstock/sched"
)

// Lane is what decides: the gate and the plan of a pool, as the gateway has them.
type Lane struct {
	Gate flow.Gate
	Plan *sched.Plan
	// Queues tells that requests may wait at the gate.
	Queues bool
	// Waits tells that a producer waits for other requests.
	Waits bool
	// Tokens tells that prompts are read as tokens, and Mirrors are told the engines' KV events.
	Tokens  bool
	Mirrors []*kvcache.Mirror
}

// door is a replica of the gateway.
type door struct {
	r      *run
	i      int
	store  *fleet.Store
	lane   *Lane
	health fleet.HealthPolicy
	chance *rand.Rand
	down   bool
	keeps  bool // cycles until the answer begins

	fresh []*instance   // that were read and not told of
	told  time.Duration // when the store will publish those that were read last; 0 for never
	armed bool          // that is planned

	cycles    []*sched.Cycle
	ask       flow.Ask
	ready     []*exchange // the gate decided
	parked    []parked
	refreshes map[string]func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint
	headers   map[sessionKey]string
}

// sessionKey is a header that a session's client keeps.
type sessionKey struct {
	session int
	name    string
}

func sessionName(n int) string {
	if n < 0 {
		return ""
	}
	return fmt.Sprintf("session-%d", n)
}

// parked is a decision that waits for others.
type parked struct {
	done <-chan struct{}
	next func() (<-chan struct{}, bool)
}

var poolID = fleet.ID{Namespace: "sim", Name: "pool"}

// begin starts the replica, which knows nothing yet but the endpoints.
func (d *door) begin() error {
	r := d.r
	d.store = fleet.NewStoreBy(&r.loop)
	lane, err := r.Lane(flow.Options{Pool: poolID, Store: d.store, Stale: r.Stale, Clock: &r.loop})
	if err != nil {
		return err
	}
	d.lane, d.health = lane, fleet.DefaultHealth()
	d.keeps = lane.Plan.Answers() || len(r.Faults) > 0
	d.chance = rand.New(rand.NewPCG(r.Seed, uint64(d.i)))
	d.cycles, d.ready, d.parked = nil, nil, nil
	d.fresh, d.told, d.armed = nil, 0, false
	d.refreshes = map[string]func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint{}
	d.headers = map[sessionKey]string{}
	d.store.OnGone(lane.Plan.Gone)
	d.store.OnPublish(lane.Gate.Kick)
	d.store.Apply(fleet.Change{Pools: []fleet.PoolSpec{{ID: poolID}}, Endpoints: d.members()})
	r.know(d)
	return nil
}

// members are the endpoints that are there.
func (d *door) members() map[string][]fleet.EndpointSpec {
	list := []fleet.EndpointSpec{}
	for _, n := range d.r.engines {
		if !n.hidden {
			list = append(list, fleet.EndpointSpec{ID: n.id, Address: n.address, Labels: n.labels})
		}
	}
	return map[string][]fleet.EndpointSpec{"sim": list}
}

func (d *door) pool() *fleet.Pool { return d.store.Load().Pool(poolID) }

// page is what a gateway read of an engine's metrics and the store does not know yet. As in the store, a reading waits
// for others of [fleet.Coalesce] before it is published. But the store is told only when somebody looks at it: a
// simulation in which nobody does would do little else.
type page struct {
	next, shown fleet.Reading // that will be published at door.told, and that was
	waits, is   bool
}

// scraped is told what an engine's page says.
func (d *door) scraped(n *instance, reading fleet.Reading) {
	load := n.loads[d.i]
	if d.down || load == nil {
		return
	}
	d.turn()
	if d.told == 0 {
		d.told = d.r.now + fleet.Coalesce
	}
	p := &n.pages[d.i]
	if !p.waits && !p.is {
		d.fresh = append(d.fresh, n)
	}
	p.next, p.waits = reading, true
	p.next.Seen = load.Sent()
	d.arm()
}

// turn publishes what is due.
func (d *door) turn() {
	if d.told == 0 || d.told > d.r.now {
		return
	}
	d.told = 0
	for _, n := range d.fresh {
		if p := &n.pages[d.i]; p.waits {
			p.shown, p.is, p.waits = p.next, true, false
		}
	}
}

// look tells the store what was published, before anybody looks at it.
func (d *door) look() {
	d.turn()
	some, left := false, d.fresh[:0]
	for _, n := range d.fresh {
		p := &n.pages[d.i]
		if p.is {
			d.store.Tell(n.id, n.loads[d.i], p.shown)
			some, p.is = true, false
		}
		if p.waits {
			left = append(left, n)
		}
	}
	d.fresh = left
	if some {
		d.store.Flush()
	}
}

// arm has the store know in time what is read, because requests wait at the gate for news.
func (d *door) arm() {
	if d.armed || d.told == 0 || d.lane.Gate.Waiting() == 0 {
		return
	}
	d.armed = true
	d.r.plan(d.told, call(func() {
		d.armed = false
		if !d.down {
			d.look()
		}
	}), 0)
}

// eligible makes those endpoints candidates that serve the model and did not fail lately.
func (d *door) eligible(c *sched.Cycle, pool *fleet.Pool) bool {
	c.Begin(pool.Endpoints)
	if route.Serving(c.Candidates, c.Model, c.Mask()) > 0 {
		c.Drop(sched.NotServing)
	}
	if d.health.Fit(c.Candidates, c.Mask(), c.Now, c.Stale, c.Rand) > 0 {
		c.Drop(sched.Ejected)
	}
	return len(c.Candidates) > 0
}

// refresh lists the candidates for a model anew.
func (d *door) refresh(model string) func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint {
	f := d.refreshes[model]
	if f == nil {
		c := &sched.Cycle{Rand: d.chance, Stale: d.r.Stale, Context: d.r.ctx, Model: model}
		f = func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
			c.Now = d.r.Now()
			d.eligible(c, s.Pool(poolID))
			d.lane.Plan.Fix(c)
			return append(into, c.Candidates...)
		}
		d.refreshes[model] = f
	}
	return f
}

// do takes a request a step further. Where producers wait for others it does so in a coroutine, which is taken up again in
// [door.settle] when they need to wait no more.
func (d *door) do(x *exchange, f func()) {
	if !d.lane.Waits {
		f()
		return
	}
	next, _ := iter.Pull(func(yield func(<-chan struct{}) bool) {
		x.wait = func(done <-chan struct{}) bool { return yield(done) }
		if x.cycle != nil {
			x.cycle.Wait = x.wait
		}
		f()
	})
	if done, waits := next(); waits {
		d.parked = append(d.parked, parked{done, next})
	}
}

// settle goes on with whom the gate let go, and with those who waited for others.
func (d *door) settle() {
	for i := 0; i < len(d.ready); i++ { // which grows
		x := d.ready[i]
		d.do(x, x.enters)
	}
	clear(d.ready)
	d.ready = d.ready[:0]
	for i := 0; i < len(d.parked); {
		select {
		case <-d.parked[i].done:
		default:
			i++
			continue
		}
		done, waits := d.parked[i].next()
		if waits {
			d.parked[i].done = done
			i++
			continue
		}
		d.parked = append(d.parked[:i], d.parked[i+1:]...)
		if len(d.ready) > 0 {
			d.settle()
			return
		}
	}
}
