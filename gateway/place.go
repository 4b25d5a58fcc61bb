// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// Place chooses an endpoint, after the last piece of the body. It ends early when ctx does.
func (x *Exchange) Place(ctx context.Context) (*Placement, *Refusal) {
	bodyEnd := time.Now()
	x.out.Body = bodyEnd.Sub(x.out.Start)
	x.out.RequestBytes = x.body.Len()
	if r := x.decode(); r != nil {
		return nil, r
	}
	x.facts = x.scan.Finish()
	facts := x.facts
	x.out.Stream = facts.Stream
	snap := x.g.Store.Load()
	pool, model, refused := x.aim(snap)
	if pool != nil {
		x.pool, x.out.Pool = pool.ID, pool.ID.String()
		x.lane = x.g.Lanes()[pool.ID]
	}
	x.label(pool, facts.Model, model)
	if refused != nil {
		return nil, refused
	}
	if x.lane == nil {
		return nil, noEndpoints()
	}
	p, r := x.seat(ctx, pool, snap.Version, bodyEnd)
	x.out.Deciding = time.Since(bodyEnd) - x.out.Queue
	return p, r
}

// seat has the request wait for its turn, and finds its endpoint.
func (x *Exchange) seat(ctx context.Context, pool *fleet.Pool, version uint64, now time.Time) (*Placement, *Refusal) {
	c := x.newCycle(ctx, now)
	if !x.candidates(c, pool) && len(pool.Endpoints) > 0 {
		x.keepDecision(c, nil)
		return nil, noEndpoints()
	}
	if x.lane.Queues && len(c.Candidates) > 0 { // what the queue is to know; after a wait it is looked at again
		if x.lane.Plan.Fix(c); len(c.Candidates) == 0 {
			x.keepDecision(c, nil)
			return nil, nobodyLeft()
		}
		if r := x.prepare(c); r != nil {
			return nil, r
		}
	}
	if reason := x.enter(ctx, pool.ID, c, version); reason != "" {
		if x.cycle != nil {
			x.keepDecision(c, nil)
		}
		return nil, x.refusal(reason)
	}
	if ctx.Err() != nil {
		return nil, refusalOf(flow.Cancelled)
	}
	if x.cycle == nil { // it waited
		if pool = x.g.Store.Load().Pool(pool.ID); pool == nil {
			return nil, noEndpoints()
		}
		if c = x.newCycle(ctx, time.Now()); !x.candidates(c, pool) {
			x.keepDecision(c, nil)
			return nil, noEndpoints()
		}
	}
	if r := x.decide(c); r != nil {
		return nil, r
	}
	return x.placement(pool, c), nil
}

// label sets who the request is for in metrics, and counts it as running.
func (x *Exchange) label(pool *fleet.Pool, model, target string) {
	x.out.Labels = observe.Labels{Model: model, Target: target, Tenant: "default-flow"}
	if x.trusted {
		x.out.Tenant = cmp.Or(either(x.head.Headers, tenantHeader), x.identity(), x.out.Tenant)
		if v := either(x.head.Headers, objectiveHeader); v != "" && pool != nil {
			x.out.Priority = pool.Objectives[v]
		}
	}
	x.running = x.g.Observer.Running(x.out.Labels)
}

// identity is on whose behalf the request is by what plugins find, where no fairness id is named. Only callers who may
// name one are asked: others could have as many flows as they like.
func (x *Exchange) identity() string {
	if x.lane == nil {
		return ""
	}
	return x.lane.Plan.Identity(heeded{x})
}

func (x *Exchange) placement(pool *fleet.Pool, c *sched.Cycle) *Placement {
	p := &Placement{Pool: pool.ID, H2C: pool.H2C, Endpoint: x.order[0], Destination: x.order[0].Address, Evictable: x.evictee != nil && x.out.Priority < 0}
	x.placed = p
	if n := min(x.told, len(x.order)); n > 1 {
		var b strings.Builder
		for i, e := range x.order[:n] {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(e.Address)
		}
		p.Destination = b.String()
	}
	if x.body.Edited() {
		p.Body = x.body
	}
	if x.g.Scores {
		p.Scores = make([]Score, len(c.Candidates))
		for i, e := range c.Candidates {
			p.Scores[i] = Score{x.lane.target(e).Address, c.Total[i]}
		}
	}
	x.sets(c)
	if x.decoded != nil {
		p.Body = x.decoded
		p.Remove = append(p.Remove, "content-encoding")
	}
	x.head.Headers.Names(func(name string) bool {
		switch {
		case x.trusted && ours(name): // heeded, and of no use to an endpoint
		case !x.Drops(name):
			return true
		case name != x.proof:
			x.g.Observer.Dropped(x.door.Name)
			x.g.sayIgnored(x.door, name)
		}
		p.Remove = append(p.Remove, name)
		return true
	})
	return p
}

// sets lists the headers that the request gets on its way to the current endpoint.
func (x *Exchange) sets(c *sched.Cycle) {
	p := x.placed
	p.Set = p.Set[:0]
	for _, h := range c.Set {
		p.Set = append(p.Set, Header(h))
	}
	if x.madeID {
		p.Set = append(p.Set, Header{"x-request-id", x.out.ID})
	}
	if t := x.out.Trace; t != nil {
		p.Set = append(p.Set, Header{"traceparent", t.Header()})
	}
}
