// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

func (g *Gateway) newCycle() *sched.Cycle {
	seed := g.seeds.Add(1)
	if g.Seed == 0 {
		seed = rand.Uint64()
	}
	return &sched.Cycle{Rand: rand.New(rand.NewPCG(seed, g.Seed))}
}

// newCycle begins a decision.
func (x *Exchange) newCycle(ctx context.Context, now time.Time) *sched.Cycle {
	c := x.g.cycles.Get().(*sched.Cycle)
	x.cycle, x.prepared = c, false
	c.Context, c.Now, c.Stale = ctx, now, x.g.Stale
	c.ID, c.Model, c.Salt, c.Tenant, c.Priority = x.out.ID, x.out.Target, x.facts.Salt, x.out.Tenant, x.out.Priority
	c.Headers, c.MaxTokens, c.Recomputes = heeded{x}, x.facts.MaxTokens, x.facts.Recomputes
	c.Prompt, c.Media, c.API, c.Body = nil, nil, x.api.String(), nil
	if len(x.facts.Prompt) > 0 {
		c.Prompt, c.Media, c.Body = x.feedPrompt, x.media, sending{x}
	}
	return c
}

// heeded shows plugins the request's headers, without those that steer us when their caller is not trusted.
type heeded struct{ x *Exchange }

// Get implements [sched.Headers].
func (h heeded) Get(name string) string {
	if h.x.Drops(name) {
		return ""
	}
	return h.x.head.Headers.Get(name)
}

// dropCycle lets the decision go.
func (x *Exchange) dropCycle() {
	if x.cycle != nil {
		x.g.putCycle(x.cycle)
		x.cycle = nil
	}
}

func (g *Gateway) putCycle(c *sched.Cycle) {
	clear(c.Candidates[:cap(c.Candidates)]) // no old snapshot is kept alive
	c.All, c.Peer, c.Source, c.Worker = nil, nil, sched.Source{}, nil
	c.Context, c.Headers, c.Prompt, c.Media, c.Body = nil, nil, nil, nil, nil
	clear(c.Receipts)
	g.cycles.Put(c)
}

// candidates are the pool's endpoints that serve the model, that the data plane allows, and that did not
// fail lately. It reports whether there are any.
func (x *Exchange) candidates(c *sched.Cycle, pool *fleet.Pool) bool {
	x.g.eligible(c, pool, x.head.Subset, x.head.HasSubset && !x.g.AllSubsets)
	x.out.Candidates = len(c.Candidates)
	return len(c.Candidates) > 0
}

// conditional reports whether the caller wants an answer only from an endpoint that holds some of its prompt:
// Prefer: if-available (RFC 7240).
func (x *Exchange) conditional() bool {
	for p := range strings.SplitSeq(x.head.Headers.Get("prefer"), ",") {
		p, _, _ = strings.Cut(p, ";")
		if strings.EqualFold(strings.TrimSpace(p), "if-available") {
			return true
		}
	}
	return false
}

// prepare screens the candidates and finds what is known of them and the prompt; again does nothing.
func (x *Exchange) prepare(c *sched.Cycle) *Refusal {
	if x.prepared {
		return nil
	}
	x.prepared = true
	x.lane.Plan.Screen(c)
	if len(c.Candidates) == 0 {
		x.keepDecision(c, nil)
		return noEndpoints()
	}
	x.lane.Plan.Produce(c)
	if c.Tokens == 0 {
		c.Tokens = x.sent().Len() / tokenBytes // nobody looked at the prompt
	}
	return nil
}

// decide screens, produces and admits; then it reserves.
func (x *Exchange) decide(c *sched.Cycle) *Refusal {
	start := time.Now()
	plan := x.lane.Plan
	if r := x.prepare(c); r != nil {
		return r
	}
	if name, why := plan.Admit(c); why != "" {
		x.keepDecision(c, nil).Refused = name
		return notAdmitted(why)
	}
	p, why := plan.Choose(c)
	if p == nil {
		x.keepDecision(c, nil)
		return noProfile(why)
	}
	pick, refused := x.reserve(c, p)
	x.out.Schedule = time.Since(start)
	ranked := len(c.Order) > 0
	if ranked {
		keepScores(x.out.Decision, c)
	}
	x.g.trace(x, c, p, ranked)
	if refused != nil {
		return refused
	}
	x.tell(c, pick)
	x.order = make([]*fleet.Endpoint, 0, len(c.Order))
	for _, i := range c.Order {
		x.order = append(x.order, x.lane.target(c.Candidates[i]))
	}
	x.record(p, c)
	return nil
}

// tell has the plugins know where the request goes, and keeps their receipts.
func (x *Exchange) tell(c *sched.Cycle, chosen *fleet.Endpoint) {
	x.lane.Plan.Placed(c, chosen)
	x.receipts = append(x.receipts[:0], c.Receipts...)
}

// settle tells those who gave receipts how it ended.
func (x *Exchange) settle(served bool) {
	if len(x.receipts) == 0 {
		return
	}
	e := sched.Ending{Now: time.Now(), Served: served, Prompt: int64(x.out.PromptTokens), Cached: int64(x.out.Cached)}
	for _, r := range x.receipts {
		r.Settle(e)
	}
	clear(x.receipts)
	x.receipts = x.receipts[:0]
}

// reserve scores and reserves in one step, of which a pool makes one at a time.
func (x *Exchange) reserve(c *sched.Cycle, p *sched.Profile) (pick *fleet.Endpoint, refused *Refusal) {
	x.lane.mu.Lock()
	defer x.lane.mu.Unlock() // also when a plugin panics, so that one request fails and not its pool
	x.lane.Plan.Refresh(c)
	ok := p.Decide(c)
	x.keepDecision(c, p)
	switch {
	case !ok:
		return nil, nobodyLeft()
	case x.conditional() && c.Cached("", c.Order[0]) == 0:
		return nil, notCached()
	}
	pick, x.hold = c.Take(&x.ticket)
	x.evictable(c.Now)
	pick.Load.Probe(c.Now)
	x.lane.Plan.Reserve(c, pick)
	return pick, nil
}

// record keeps what the outcome tells of the decision.
func (x *Exchange) record(p *sched.Profile, c *sched.Cycle) {
	i := c.Order[0]
	x.out.Score, x.out.EstimatedTokens = c.Total[i], int(c.Tokens)
	x.out.Tokenizer, x.out.Untold = c.Tokenizer, c.Untold
	x.out.PredictedCached = int(c.Cached("", i))
	x.out.Parts = x.out.Parts[:0] // of an earlier turn
	for k, s := range p.Scorers {
		x.out.Parts = append(x.out.Parts, observe.Part{Scorer: s.Name, Score: c.Scores[k][i], Weight: s.Weight})
	}
	x.at, x.told = 0, p.Endpoints
	x.name(x.order[0])
}

// tokenBytes is how many bytes of a body are taken for one token where nobody counts.
const tokenBytes = kvcache.TokenBytes
