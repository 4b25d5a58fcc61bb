// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/work"
)

// exchange is one request on its way, as gateway.Exchange is. It is used again for others.
type exchange struct {
	d         *door
	req       *work.Request
	promptLen int
	sent      time.Duration
	place     int // among those under way

	cycle     *sched.Cycle
	prepared  bool
	ticket    flow.Ticket
	reason    flow.Reason
	entered   time.Duration
	queued    time.Duration
	waited    bool
	hold      fleet.Hold
	order     []*fleet.Endpoint // the pick and its fallbacks, best first
	at        int               // the current one
	estimate  int64             // of the prompt, in tokens
	receipts  []sched.Receipt
	predicted int64 // tokens that the current one holds

	engine   *instance
	seq      *engine.Seq
	blocks   []uint64
	began    bool // to be answered
	said     time.Duration
	requeued int
	turn     int  // how often it was used
	gone     bool // its gateway is

	feed    func(*kvcache.Hasher)
	decided func(flow.Ticket, flow.Reason)
	waits   func()
	evict   func()
	wait    func(done <-chan struct{}) bool
}

// newExchange takes a request.
func (r *run) newExchange(q *work.Request) *exchange {
	var x *exchange
	if n := len(r.spare); n > 0 {
		x, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		x = &exchange{}
		x.feed = func(h *kvcache.Hasher) { r.text.feed(x.req.Prompt, h) }
		x.decided = func(t flow.Ticket, reason flow.Reason) {
			if !x.gone {
				x.ticket, x.reason = t, reason
				x.d.ready = append(x.d.ready, x)
			}
		}
		x.waits = func() {
			x.waited = true
			x.dropCycle()
			x.d.arm()
		}
		x.evict = func() {
			turn := x.turn
			r.plan(r.now, call(func() {
				if x.turn == turn && x.engine != nil {
					x.evicted()
				}
			}), 0)
		}
	}
	x.req, x.promptLen, x.sent = q, q.PromptTokens(), r.now
	x.place = len(r.under)
	r.under = append(r.under, x)
	return x
}

// forget gives the exchange back for others, unless somebody may still know it.
func (x *exchange) forget() {
	r := x.d.r
	last := r.under[len(r.under)-1]
	r.under[x.place], last.place = last, x.place
	r.under = r.under[:len(r.under)-1]
	if x.gone {
		return
	}
	clear(x.order)
	*x = exchange{turn: x.turn + 1, blocks: x.blocks[:0], order: x.order[:0], receipts: x.receipts[:0], feed: x.feed, decided: x.decided, waits: x.waits, evict: x.evict}
	r.spare = append(r.spare, x)
}

// newCycle begins a decision.
func (x *exchange) newCycle() *sched.Cycle {
	d := x.d
	var c *sched.Cycle
	if n := len(d.cycles); n > 0 {
		c, d.cycles = d.cycles[n-1], d.cycles[:n-1]
	} else {
		c = &sched.Cycle{Rand: d.chance, Stale: d.r.Stale, Context: d.r.ctx, Clock: &d.r.loop}
	}
	x.cycle, x.prepared = c, false
	c.Now, c.Model, c.Tenant, c.Priority = d.r.Now(), x.model(), x.tenant(), x.req.Priority
	c.Prompt, c.Wait, c.Headers = x.feed, x.wait, x
	return c
}

func (x *exchange) dropCycle() {
	if c := x.cycle; c != nil {
		clear(c.Candidates[:cap(c.Candidates)]) // no old snapshot is kept alive
		c.All, c.Peer, c.Source, c.Worker, c.Headers, c.Prompt, c.Wait = nil, nil, sched.Source{}, nil, nil, nil, nil
		clear(c.Receipts)
		x.d.cycles = append(x.d.cycles, c)
		x.cycle = nil
	}
}

// The names of who does not say any.
const (
	baseModel = "base"
	noTenant  = "default-flow"
)

func (x *exchange) model() string  { return cmp.Or(x.req.Model, baseModel) }
func (x *exchange) tenant() string { return cmp.Or(x.req.Tenant, noTenant) }

// Get implements [sched.Headers].
func (x *exchange) Get(name string) string {
	switch name {
	case "x-session-id":
		return sessionName(x.req.Session)
	case "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id":
		return x.req.Tenant
	case "x-llm-d-inference-objective", "x-gateway-inference-objective":
		return x.req.Objective
	}
	return x.d.headers[sessionKey{x.req.Session, name}]
}

// seat has the request wait for its turn, in the order of gateway.Exchange's.
func (x *exchange) seat() {
	d := x.d
	d.look()
	pool := d.pool()
	c := x.newCycle()
	if !d.eligible(c, pool) && len(pool.Endpoints) > 0 {
		x.fail(string(flow.NoEndpoints))
		return
	}
	if d.lane.Queues && len(c.Candidates) > 0 {
		if d.lane.Plan.Fix(c); len(c.Candidates) == 0 {
			x.fail(nobodyLeft)
			return
		}
		if !x.prepare() {
			return
		}
	}
	a := &d.ask
	*a = flow.Ask{
		Key: flow.Key{Tenant: c.Tenant, Priority: c.Priority}, Model: c.Model, Target: c.Model,
		Bytes: int64(x.promptLen)*kvcache.TokenBytes + overhead, Tokens: c.Tokens, Output: usualOutput, Received: c.Now,
		Candidates: c.Candidates, Version: d.store.Load().Version, Now: c.Now, Stale: c.Stale,
		Class: c.Model, Refresh: d.refresh(c.Model), Waits: x.waits,
	}
	if a.Tokens == 0 {
		a.Tokens = int64(x.promptLen)
	}
	a.Uncached = a.Tokens - c.MostCached()
	x.entered, x.waited = d.r.now, false
	d.lane.Gate.Begin(a, x.decided)
}

// What the gateway takes a request for; see gateway.
const (
	overhead    = 3<<10 + 512
	usualOutput = 256
)

// The kinds of errors beside the gate's reasons.
const (
	nobodyLeft  = "nobody-left"
	notAdmitted = "not-admitted"
	noProfile   = "no-profile"
	broken      = "broken-answer"
)

// TooLong is the error of a request that no engine it was sent to could ever hold.
const TooLong = "too-long"

// prepare screens the candidates and finds what is known of them and the prompt; again does nothing.
func (x *exchange) prepare() bool {
	if x.prepared {
		return true
	}
	x.prepared = true
	c, plan := x.cycle, x.d.lane.Plan
	plan.Screen(c)
	if len(c.Candidates) == 0 {
		x.fail(nobodyLeft)
		return false
	}
	if x.d.lane.Tokens {
		c.Prompts.IDs = tokens(c.Prompts.IDs[:0], x.req, 0, x.promptLen)
		c.Prompts.Starts = append(c.Prompts.Starts[:0], 0)
		c.Tokens = int64(x.promptLen)
	}
	plan.Produce(c)
	if c.Tokens == 0 {
		c.Tokens = int64(x.promptLen)
	}
	return true
}

// enters is called once the gate decided.
func (x *exchange) enters() {
	d := x.d
	if x.waited {
		x.queued += d.r.now - x.entered
	}
	if x.reason != "" {
		x.fail(string(x.reason))
		return
	}
	if x.cycle == nil { // it waited
		d.look()
		if !d.eligible(x.newCycle(), d.pool()) {
			x.fail(string(flow.NoEndpoints))
			return
		}
	}
	x.decide()
}

// decide screens, produces and admits; then it reserves.
func (x *exchange) decide() {
	if !x.prepare() {
		return
	}
	c, plan := x.cycle, x.d.lane.Plan
	if _, why := plan.Admit(c); why != "" {
		x.fail(notAdmitted)
		return
	}
	p, _ := plan.Choose(c)
	if p == nil {
		x.fail(noProfile)
		return
	}
	plan.Refresh(c)
	if !p.Decide(c) {
		x.fail(nobodyLeft)
		return
	}
	var pick *fleet.Endpoint
	pick, x.hold = c.Take(&x.ticket)
	x.ticket.Evictable(c.Now, x.evict)
	pick.Load.Probe(c.Now)
	plan.Reserve(c, pick)
	x.estimate, x.at, x.order = c.Tokens, 0, x.order[:0]
	x.predicted = c.Cached("", c.Order[0])
	x.tell(c, pick)
	for _, i := range c.Order {
		x.order = append(x.order, c.Candidates[i])
	}
	if !x.d.keeps {
		x.dropCycle()
	}
	x.send()
}

// tell has the plugins know where the request goes, and keeps their receipts.
func (x *exchange) tell(c *sched.Cycle, chosen *fleet.Endpoint) {
	x.d.lane.Plan.Placed(c, chosen)
	x.receipts = append(x.receipts[:0], c.Receipts...)
}

// settle tells those who gave receipts how it ended; cached is below 0 where the engine did not say.
func (x *exchange) settle(served bool, cached int64) {
	if len(x.receipts) == 0 {
		return
	}
	e := sched.Ending{Now: x.d.r.Now(), Served: served, Prompt: int64(x.promptLen), Cached: cached}
	if cached < 0 {
		e.Prompt = -1
	}
	for _, r := range x.receipts {
		r.Settle(e)
	}
	clear(x.receipts)
	x.receipts = x.receipts[:0]
}

// endpoint is where it is.
func (x *exchange) endpoint() *fleet.Endpoint { return x.order[x.at] }

// send has the current endpoint work on it.
func (x *exchange) send() {
	n := x.d.r.byID[x.endpoint().ID]
	switch {
	case n.down:
		x.next()
	case !n.submit(x):
		x.fail(TooLong)
	default:
		x.engine = n
	}
}

// next gives up the current endpoint, which failed before a byte of its answer, and moves on.
func (x *exchange) next() {
	now := x.d.r.Now()
	x.endpoint().Load.Fail(now, &x.d.health, true, "the connection failed before an answer")
	x.hold.Release()
	x.engine, x.seq = nil, nil
	if x.at+1 >= len(x.order) {
		x.fail(string(flow.NoEndpoints))
		return
	}
	x.at++
	e, c := x.endpoint(), x.cycle
	work, output := x.estimate, int64(0)
	if c != nil {
		if i := slices.IndexFunc(c.Candidates, func(o *fleet.Endpoint) bool { return o.Load == e.Load }); i >= 0 {
			work, output = c.Work(i)
			x.predicted = c.Cached("", i)
		}
	}
	x.hold = x.ticket.Force(e, now, work, output)
	e.Load.Probe(now)
	if c != nil {
		x.tell(c, e)
	}
	x.send()
}

// token is told that the engine said one more.
func (x *exchange) token(t engine.Token) {
	d, now := x.d, x.d.r.Now()
	if !x.began {
		x.began = true
		d.r.rec.First(x.req.Index, d.r.now)
		x.endpoint().Load.Heal(now)
		if x.cycle != nil {
			if d.lane.Plan.Answers() {
				d.lane.Plan.Answered(x.cycle, x.endpoint(), x.answered)
			}
			x.dropCycle()
		}
		x.hold.Begun(now)
		x.hold.Wrote(now, 1)
		x.ticket.Eased()
	} else {
		x.hold.Wrote(now, int64(t.Seq.Generated))
	}
	if t.Last {
		x.done()
	}
}

// answered keeps a header of the answer for the session's next request, as a client does.
func (x *exchange) answered(name, value string) {
	if x.req.Session >= 0 {
		x.d.headers[sessionKey{x.req.Session, name}] = value
	}
}

// done is the end of a whole answer.
func (x *exchange) done() {
	r := x.d.r
	x.endpoint().Load.Well(r.Now(), &x.d.health)
	x.hold.Release()
	x.endpoint().Load.Graded(x.predicted, int64(x.seq.Cached), int64(x.promptLen))
	x.settle(true, int64(x.seq.Cached))
	x.ticket.Prompt(int64(x.promptLen))
	x.ticket.End(int64(x.promptLen-x.seq.Cached), int64(x.seq.Generated))
	r.rec.Done(x.req.Index, r.now, x.seq.Generated, x.seq.Cached, x.engine.i, x.queued)
	r.over(x, true)
}

// broke is told that its engine died.
func (x *exchange) broke() {
	if !x.began {
		x.next()
		return
	}
	x.endpoint().Load.Fail(x.d.r.Now(), &x.d.health, false, "the answer broke off")
	x.fail(broken)
}

// fail is the end of one that is not answered, or not fully.
func (x *exchange) fail(kind string) {
	x.hold.Release()
	x.settle(x.began, -1)
	x.ticket.End(-1, -1)
	x.dropCycle()
	r := x.d.r
	r.rec.Failed(x.req.Index, r.now, kind)
	r.over(x, false)
}

// mostRequeued is how often a request is taken back and waits again; see gateway.
const mostRequeued = 5

// evicted is told that the gate takes the request back.
func (x *exchange) evicted() {
	x.engine.abort(x)
	if x.began || x.requeued >= mostRequeued {
		x.fail(string(flow.Evicted))
		return
	}
	x.requeued++
	x.hold.Release()
	x.settle(false, -1)
	x.ticket.End(0, 0)
	x.ticket, x.engine, x.seq = flow.Ticket{}, nil, nil
	x.dropCycle()
	x.d.do(x, x.seat)
}
