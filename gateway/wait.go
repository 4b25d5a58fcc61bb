// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/route"
	"github.com/penstock-project/penstock/sched"
)

// overhead is what a waiting request costs beside its body: the gate's notes, the exchange, a goroutine.
const overhead = 3 << 10

// usualOutput is what an answer is taken for, in tokens, until it ends; a caller's cap says little where it is large.
const usualOutput = 256

// enter has the request wait until it may go. Its cycle does not wait with it: after a wait the fleet has
// other news.
func (x *Exchange) enter(ctx context.Context, pool fleet.ID, c *sched.Cycle, version uint64) flow.Reason {
	now := c.Now
	a := &flow.Ask{
		Key:   flow.Key{Tenant: x.out.Tenant, Priority: x.out.Priority},
		Model: x.out.Model, Target: x.out.Target, Bytes: x.body.Size() + x.headerBytes() + overhead,
		Tokens: c.Tokens, Output: min(cmp.Or(c.MaxTokens, usualOutput), 2*usualOutput), Received: x.out.Start, TTFT: x.millis(ttftHeader), TTL: x.millis(ttlHeader),
		Candidates: c.Candidates, Version: version, Now: now, Stale: c.Stale,
	}
	if a.Tokens == 0 {
		a.Tokens = x.sent().Len() / tokenBytes
	}
	a.Uncached = a.Tokens - c.MostCached()
	a.Class, a.Refresh = x.class(pool)
	a.Story = &x.waited
	waited := false
	a.Waits = func() {
		waited = true
		x.slim()
	}
	ticket, reason := x.lane.Gate.Enter(ctx, a)
	x.ticket = ticket
	s := &x.waited
	x.out.Wait = observe.Wait{Outcome: string(s.Outcome), For: string(s.For), Ahead: s.Ahead, Own: s.Own, Flows: s.Flows}
	if waited {
		x.out.Queue += time.Since(now)
	}
	return reason
}

// slim lets go of what a request that waits does without.
func (x *Exchange) slim() {
	x.dropCycle()
	x.body.Trim()
	if x.scan != nil {
		facts := *x.facts
		facts.Prompt = slices.Clone(facts.Prompt)
		x.facts = &facts
		scanners.Put(x.scan)
		x.scan = nil
	}
}

// class tells the request's candidates apart from others', and how to find them again: by the model, the
// subset and what failed lately.
func (x *Exchange) class(pool fleet.ID) (string, func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint) {
	g, plan, model, key := x.g, x.lane.Plan, x.out.Target, x.out.Target
	var subset []string
	limited := x.head.HasSubset && !g.AllSubsets
	if limited {
		subset = slices.Clone(x.head.Subset)
		key += "\x00" + strings.Join(subset, ",")
	}
	return key, func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
		p := s.Pool(pool)
		if p == nil {
			return into
		}
		c := g.cycles.Get().(*sched.Cycle)
		defer g.putCycle(c)
		c.Now, c.Stale, c.Model = time.Now(), g.Stale, model
		g.eligible(c, p, subset, limited)
		plan.Fix(c)
		return append(into, c.Candidates...)
	}
}

// eligible makes those endpoints candidates that serve the model, that the data plane allows, and that did not
// fail lately.
func (g *Gateway) eligible(c *sched.Cycle, pool *fleet.Pool, subset []string, limited bool) {
	c.Begin(pool.Endpoints)
	if route.Serving(c.Candidates, c.Model, c.Mask()) > 0 {
		c.Drop(sched.NotServing)
	}
	if limited {
		g.limit(c.Candidates, subset, c.Mask())
		c.Drop(sched.NotInSubset)
	}
	if g.Health().Fit(c.Candidates, c.Mask(), c.Now, c.Stale, c.Rand) > 0 {
		c.Drop(sched.Ejected)
	}
}

// millis reads a header of whole milliseconds from a trusted caller; 0 for none.
func (x *Exchange) millis(names [2]string) time.Duration {
	if !x.trusted {
		return 0
	}
	n, err := strconv.ParseInt(either(x.head.Headers, names), 10, 32)
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// headerBytes estimates what the request's headers hold.
func (x *Exchange) headerBytes() int64 {
	n := 0
	x.head.Headers.Names(func(name string) bool {
		n += len(name) + len(x.head.Headers.Get(name)) + 32
		return true
	})
	return int64(n)
}

// Evictee is told that its request is taken back: it must have the endpoint stop, and must neither wait nor
// call the exchange.
type Evictee interface{ Evict() }

// OnEvict says who is told when the request is taken back, which happens between Place and End, once at most.
func (x *Exchange) OnEvict(e Evictee) { x.evictee = e }

// evictable lets the gate take the request back, where it may.
func (x *Exchange) evictable(now time.Time) {
	if x.evictee != nil && x.out.Priority < 0 {
		x.ticket.Evictable(now, x.evictee.Evict)
	}
}

// maxRequeued is how often a request is taken back and waits again before it is refused.
const maxRequeued = 5

// Requeue has a request wait once more that was taken back before anything of an answer was sent, unless its caller said
// x-penstock-requeue: never.
func (x *Exchange) Requeue(ctx context.Context) (*Placement, *Refusal) {
	x.hold.Release()
	x.settle(false)
	x.ticket.End(0, 0)
	x.ticket, x.order, x.at = flow.Ticket{}, nil, 0
	x.dropCycle()
	pool := x.g.Store.Load().Pool(x.pool)
	if x.head.Headers.Get(requeueHeader) == "never" || x.out.Requeued >= maxRequeued || pool == nil {
		return nil, x.Evicted()
	}
	x.out.Requeued++
	if l := x.g.Lanes()[x.pool]; l != nil { // a reload may have come between
		x.lane = l
	}
	return x.seat(ctx, pool, 0, time.Now())
}

// Evicted is the answer to a request that was taken back.
func (x *Exchange) Evicted() *Refusal { return x.refusal(flow.Evicted) }

// refusal turns the gate's reason into an answer.
func (x *Exchange) refusal(reason flow.Reason) *Refusal {
	r := refusalOf(reason)
	if r.Status == http.StatusTooManyRequests || reason == flow.NoEndpoints {
		r.RetryAfter = x.lane.Gate.RetryAfter()
	}
	return r
}
