// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched"
)

// Exchange is one request and the owner of all that it holds: memory, its place in a
// queue, its share of an endpoint. A door calls, in order: Write or Attach for each piece of
// the body, Place, then Answer, Pass for each piece of the answer, and End exactly once on
// every exit path (further calls do nothing). One goroutine at a time.
type Exchange struct {
	g       *Gateway
	door    *Door
	head    Head
	out     observe.Outcome
	api     request.API
	trusted bool
	proof   string // name of the header that holds a secret, which does not travel on
	ended   bool
	madeID  bool

	encoding request.Encoding
	badBody  *Refusal // what is wrong with the body, told by Place
	body     *request.Body
	decoded  *request.Body
	scan     *request.Scanner
	facts    *request.Facts

	lane    *Lane
	cycle   *sched.Cycle // of the decision, kept until an endpoint answers
	told    int          // how many endpoints the data plane is told: the pick and its fallbacks
	running observe.Running
	placed  *Placement
	order   []*fleet.Endpoint // the pick and its fallbacks, best first
	at      int               // the current one
	ticket  flow.Ticket       // from the gate
	waited  flow.Story        // at the gate
	hold    fleet.Hold
	answer  *request.Answer
	sse     bool
	rename  rename
}

// Begin starts an exchange. It never fails; what is wrong shows in Write or Place.
func (g *Gateway) Begin(door *Door, h Head) *Exchange {
	g.open.Add(1)
	x := &Exchange{g: g, door: door, head: h, api: request.APIOf(h.Path)}
	x.out = observe.Outcome{
		Door: door.Name, API: x.api.String(), Start: time.Now(),
		PromptTokens: observe.Unknown, OutputTokens: observe.Unknown, Cached: observe.Unknown,
	}
	x.out.Path, _, _ = strings.Cut(h.Path, "?")
	x.out.ID = h.Headers.Get("x-request-id")
	if !goodID(x.out.ID) {
		x.out.ID, x.madeID = uuid.NewString(), true
	}
	trust := door.Trust()
	x.trusted, x.proof = trust.Trusts(h.Peer, h.Headers), trust.Header
	var err error
	if x.encoding, err = request.EncodingOf(h.Headers.Get("content-encoding")); err != nil {
		x.badBody = bodyRefusal(err)
	}
	x.body = request.NewBody(g.Memory, g.MaxBody)
	x.scan = scanners.Get().(*request.Scanner)
	x.scan.Reset(x.api)
	return x
}

var (
	scanners = sync.Pool{New: func() any { return new(request.Scanner) }}
	answers  = sync.Pool{New: func() any { return new(request.Answer) }}
)

// goodID accepts what fits a log line: up to 128 printable ASCII characters without spaces.
func goodID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}

// ID is the request's id, taken from x-request-id or made.
func (x *Exchange) ID() string { return x.out.ID }

// API is the dialect of the path, which decides the form of errors.
func (x *Exchange) API() request.API { return x.api }

// Body is the body as it came, so far.
func (x *Exchange) Body() *request.Body { return x.body }

// Expect is told the length of the body before it comes, and refuses what would be too long.
func (x *Exchange) Expect(n int64) *Refusal {
	if x.g.MaxBody > 0 && n > x.g.MaxBody {
		return tooLarge(x.g.MaxBody)
	}
	x.body.Expect(n)
	return nil
}

// Write copies a piece of the body.
func (x *Exchange) Write(p []byte) *Refusal {
	if _, err := x.body.Write(p); err != nil {
		return bodyRefusal(err)
	}
	x.see(p)
	return nil
}

// Read reads the next piece of the body from r, without a copy of its own, until r ends with
// [io.EOF] or another error of r's, which is returned as it is.
func (x *Exchange) Read(r io.Reader) (*Refusal, error) {
	p, err := x.body.ReadOnce(r)
	x.see(p)
	if err != nil && (errors.Is(err, request.ErrTooLarge) || errors.Is(err, request.ErrMemory)) {
		return bodyRefusal(err), nil
	}
	return nil, err
}

// Attach takes a piece of the body without copying; owner.Free is called when it is done with.
func (x *Exchange) Attach(p []byte, owner request.Freer) *Refusal {
	if err := x.body.Attach(p, owner); err != nil {
		return bodyRefusal(err)
	}
	x.see(p)
	return nil
}

// see lets the scanner read a piece, unless it is encoded.
func (x *Exchange) see(p []byte) {
	if x.encoding == request.Identity && len(p) > 0 {
		x.scan.Feed(p)
	}
}

func bodyRefusal(err error) *Refusal {
	var large *request.TooLargeError
	switch {
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	case errors.Is(err, request.ErrMemory):
		return noMemory()
	case errors.Is(err, request.ErrEncoding):
		return badEncoding(http.StatusUnsupportedMediaType, err.Error())
	}
	return badEncoding(http.StatusBadRequest, err.Error())
}

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
		x.out.Pool = pool.ID.String()
	}
	if pool != nil {
		x.lane = x.g.Lanes()[pool.ID]
	}
	x.label(pool, facts.Model, model)
	if refused != nil {
		return nil, refused
	}
	if x.lane == nil {
		return nil, noEndpoints()
	}
	c := x.newCycle(ctx, bodyEnd)
	if !x.candidates(c, pool) && len(pool.Endpoints) > 0 {
		x.keepDecision(c, nil)
		return nil, noEndpoints()
	}
	if reason := x.enter(ctx, pool.ID, c, snap.Version); reason != "" {
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
	x.out.Deciding = time.Since(bodyEnd) - x.out.Queue
	return x.placement(pool, c), nil
}

// newCycle begins a decision.
func (x *Exchange) newCycle(ctx context.Context, now time.Time) *sched.Cycle {
	c := x.g.cycles.Get().(*sched.Cycle)
	x.cycle = c
	c.Context, c.Now, c.Stale = ctx, now, x.g.Stale
	c.ID, c.Model, c.Salt, c.Tenant, c.Priority = x.out.ID, x.out.Target, x.facts.Salt, x.out.Tenant, x.out.Priority
	c.Headers, c.MaxTokens = heeded{x}, x.facts.MaxTokens
	c.Prompt, c.Media = nil, nil
	if len(x.facts.Prompt) > 0 {
		c.Prompt, c.Media = x.feedPrompt, x.media
	}
	return c
}

// dropCycle lets the decision go.
func (x *Exchange) dropCycle() {
	if x.cycle != nil {
		x.g.putCycle(x.cycle)
		x.cycle = nil
	}
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

// decode undoes a content encoding, so that endpoints get what they can read.
func (x *Exchange) decode() *Refusal {
	if x.badBody != nil {
		return x.badBody
	}
	if x.encoding == request.Identity || x.body.Len() == 0 {
		return nil
	}
	plain, err := x.encoding.Decode(x.body)
	if err != nil {
		return bodyRefusal(err)
	}
	x.decoded = plain
	for p := range plain.Chunks {
		x.scan.Feed(p)
	}
	return nil
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

// candidates are the pool's endpoints that serve the model, that the data plane allows, and that did not
// fail lately. It reports whether there are any.
func (x *Exchange) candidates(c *sched.Cycle, pool *fleet.Pool) bool {
	x.g.eligible(c, pool, x.head.Subset, x.head.HasSubset && !x.g.AllSubsets)
	x.out.Candidates = len(c.Candidates)
	return len(c.Candidates) > 0
}

// decide screens, produces and admits; then it scores and reserves in one step.
func (x *Exchange) decide(c *sched.Cycle) *Refusal {
	start := time.Now()
	plan := x.lane.Plan
	plan.Screen(c)
	if len(c.Candidates) == 0 {
		x.keepDecision(c, nil)
		return noEndpoints()
	}
	plan.Produce(c)
	if c.Tokens == 0 {
		c.Tokens = x.sent().Len() / tokenBytes // nobody looked at the prompt
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
	x.lane.mu.Lock()
	plan.Refresh(c)
	ok := p.Decide(c)
	d := x.keepDecision(c, p)
	var pick *fleet.Endpoint
	miss := ok && x.conditional() && c.Cached("", c.Order[0]) == 0
	if ok && !miss {
		pick = x.take(c)
		pick.Load.Probe(c.Now)
		plan.Reserve(c, pick)
	}
	x.lane.mu.Unlock()
	x.out.Schedule = time.Since(start)
	if ok {
		keepScores(d, c)
	}
	x.g.trace(x, c, p, ok)
	if !ok {
		return refusalOf(flow.Saturated)
	}
	if miss {
		return notCached()
	}
	plan.Placed(c, pick)
	x.order = make([]*fleet.Endpoint, 0, len(c.Order))
	for _, i := range c.Order {
		x.order = append(x.order, x.lane.target(c.Candidates[i]))
	}
	x.record(p, c)
	return nil
}

// record keeps what the outcome tells of the decision.
func (x *Exchange) record(p *sched.Profile, c *sched.Cycle) {
	i := c.Order[0]
	x.out.Score, x.out.EstimatedTokens = c.Total[i], int(c.Tokens)
	x.out.PredictedCached = int(c.Cached("", i))
	for k, s := range p.Scorers {
		x.out.Parts = append(x.out.Parts, observe.Part{Scorer: s.Name, Score: c.Scores[k][i], Weight: s.Weight})
	}
	x.at, x.told = 0, p.Endpoints
	x.name(x.order[0])
}

func (x *Exchange) name(e *fleet.Endpoint) { x.out.Endpoint, x.out.Address = e.ID.String(), e.Address }

// media lists the hashes of the prompt's images, sounds and videos.
func (x *Exchange) media(into []uint64) []uint64 { return x.facts.MediaHashes(x.sent(), into) }

// feedPrompt lets the hasher read the prompt.
func (x *Exchange) feedPrompt(h *kvcache.Hasher) { x.facts.FeedPrompt(x.sent(), h) }

// sent is the body in the form that endpoints get.
func (x *Exchange) sent() *request.Body {
	if x.decoded != nil {
		return x.decoded
	}
	return x.body
}

func (x *Exchange) placement(pool *fleet.Pool, c *sched.Cycle) *Placement {
	p := &Placement{Pool: pool, Endpoint: x.order[0], Destination: x.order[0].Address}
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
}

// Drops reports whether a header or trailer of that lower-case name must not travel on: only we may
// set it, it holds a secret, or it steers us and its caller is not trusted.
func (x *Exchange) Drops(name string) bool {
	return outputHeader(name) || name == x.proof || !x.trusted && controlHeader(name)
}

// sayIgnored says once for each kind of header that it was ignored, and what would change that. Callers
// choose the names, so that what is remembered is the kind.
func (g *Gateway) sayIgnored(door *Door, name string) {
	kind := controlKind(name)
	if name = name[:min(len(name), 100)]; named[name] || outputs[name] {
		kind = name
	}
	if _, said := g.ignored.LoadOrStore(door.Name+" "+kind, true); said {
		return
	}
	if outputHeader(name) {
		g.Log.Warn("a caller's header that only the gateway may set was dropped", slog.String("header", name), slog.String("door", door.Name))
		return
	}
	g.Log.Warn("control header from an untrusted caller ignored", slog.String("header", name), slog.String("door", door.Name),
		slog.String("to change", "name the caller's network in spec.trust.cidrs, or a shared secret in spec.trust.header, of a Penstock document"))
}

// Next gives up the current endpoint, which failed before a byte of its answer, and moves the
// reservation to the next one. It returns nil when none is left.
func (x *Exchange) Next() *fleet.Endpoint {
	if x.order == nil || x.ended {
		return nil
	}
	x.failed(time.Now(), true, "the connection failed before an answer")
	x.hold.Release()
	if x.at+1 >= len(x.order) {
		return nil
	}
	x.at++
	x.out.Retries++
	e := x.order[x.at]
	x.move(e)
	return e
}

// failed records that the current endpoint failed.
func (x *Exchange) failed(now time.Time, hard bool, cause string) {
	e := x.order[x.at]
	x.out.Attempts = append(x.out.Attempts, observe.Attempt{Endpoint: e.ID.String(), Address: e.Address, Cause: cause})
	if e.Load.Fail(now, x.g.Health(), hard, cause) {
		x.g.Log.Warn("endpoint ejected: it is passed over for a while", slog.String("endpoint", e.ID.String()),
			slog.String("address", e.Address), slog.String("cause", cause), slog.String("id", x.out.ID))
		x.g.Observer.Ejected()
	}
}

// move gives the request's share to another endpoint, which also has its prompt from now on.
func (x *Exchange) move(e *fleet.Endpoint) {
	x.hold.Release()
	now := time.Now()
	work, output := int64(x.out.EstimatedTokens), int64(0)
	chosen := e // as plugins know it, at its own address
	if c := x.cycle; c != nil {
		if i := slices.IndexFunc(c.Candidates, func(o *fleet.Endpoint) bool { return o.Load == e.Load }); i >= 0 {
			chosen = c.Candidates[i]
			work, output = c.Work(i)
		}
	}
	x.hold = x.ticket.Force(e, now, work, output)
	e.Load.Probe(now)
	x.name(e)
	if x.cycle != nil {
		x.lane.Plan.Placed(x.cycle, chosen)
		x.sets(x.cycle)
	}
}

// Unavailable is the answer when no endpoint could be reached.
func (x *Exchange) Unavailable() *Refusal { return noEndpoints() }

// Served is told the address that the data plane says really served.
func (x *Exchange) Served(address string) {
	if address == "" || x.order == nil || address == x.out.Address {
		return
	}
	for i, e := range x.order {
		if e.Address == address {
			x.at = i
			x.move(e)
			return
		}
	}
	x.out.Address = address
}

// Answer is told the head of the answer, and returns headers to add to it. From here on the request goes
// nowhere else, so that its body is let go: an open stream costs little memory whatever its prompt was.
func (x *Exchange) Answer(status int, h Headers) []Header {
	x.out.Status = status
	var added []Header
	if x.order != nil {
		added = x.answered(status)
	}
	x.release()
	x.watch(h)
	return added
}

// answered judges the endpoint by its status, and collects what plugins add to the answer's head.
func (x *Exchange) answered(status int) (added []Header) {
	e, now := x.order[x.at], time.Now()
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		x.failed(now, false, fmt.Sprintf("it answered %d", status))
	default:
		if e.Load.Heal(now) {
			x.g.Log.Info("endpoint healed", slog.String("endpoint", e.ID.String()), slog.String("address", e.Address))
		}
	}
	if x.cycle != nil && x.lane.Plan.Answers() {
		x.lane.Plan.Answered(x.cycle, e, func(name, value string) {
			added = slices.DeleteFunc(added, func(h Header) bool { return h.Name == name }) // two may say the same
			added = append(added, Header{Name: name, Value: value})
		})
	}
	if x.trusted && x.head.Headers.Get(decisionHeader) != "" {
		if line := x.brief(); line != "" {
			added = append(added, Header{Name: decisionHeader, Value: line})
		}
	}
	return added
}

// watch prepares for reading the answer as it passes.
func (x *Exchange) watch(h Headers) {
	if e := h.Get("content-encoding"); e != "" && e != "identity" {
		return // passed on as it is; what it says is not ours to read
	}
	x.sse = strings.HasPrefix(strings.ToLower(h.Get("content-type")), "text/event-stream")
	x.out.Stream = x.out.Stream || x.sse
	if x.answer == nil {
		x.answer = answers.Get().(*request.Answer)
	}
	x.answer.Reset(x.api, x.sse)
	x.restores(h)
}

// Pass is told a piece of the answer's body as it goes by; p is not kept.
func (x *Exchange) Pass(p []byte) {
	x.out.ResponseBytes += int64(len(p))
	if x.answer == nil || len(p) == 0 {
		return
	}
	start := time.Now()
	x.answer.Feed(p)
	now := time.Now()
	x.out.Answering += now.Sub(start)
	if x.answer.Output || !x.sse {
		if x.sse {
			x.hold.Begun(now)
		}
		last := x.out.Last
		x.out.Last = start.Sub(x.out.Start)
		if last == 0 {
			x.out.TTFT = x.out.Last
		} else if x.sse {
			x.out.Gaps.Add(x.out.Last - last)
		}
	}
}

// Refuse records that the door answers r itself.
func (x *Exchange) Refuse(r *Refusal) {
	x.out.Status, x.out.Reason, x.out.Message = r.Status, r.Reason, r.Message
}

// Fail records why the endpoint broke off.
func (x *Exchange) Fail(err error) { x.out.Message = err.Error() }

// End releases everything and reports the outcome.
func (x *Exchange) End(end observe.End) {
	if x.ended {
		return
	}
	x.ended = true
	x.judge(end)
	x.hold.Release()
	if x.answer != nil {
		x.answer.Finish()
		u := x.answer.Usage
		x.out.PromptTokens, x.out.OutputTokens, x.out.Cached = u.Prompt, u.Output, u.Cached
		x.out.Events = x.answer.Events
		if end == observe.Complete && x.out.Status < 300 && x.sse && x.api != request.Unknown && !x.answer.Done {
			end, x.out.Message = observe.Broken, "the stream ended without its end marker"
		}
		answers.Put(x.answer)
		x.answer = nil
	}
	x.restored()
	x.ticket.End(x.work())
	scanners.Put(x.scan)
	x.scan, x.facts = nil, nil
	x.release()
	x.out.End = end
	x.out.Duration = time.Since(x.out.Start)
	x.running.Done()
	x.g.Observer.Done(&x.out)
	x.forget()
	x.g.open.Add(-1)
}

// tokenBytes is how many bytes of a body are taken for one token where nobody counts.
const tokenBytes = kvcache.TokenBytes

// work is what the request really brought, as far as the engine told, in tokens of uncached prompt and of
// output; below 0 for unknown.
func (x *Exchange) work() (uncached, output int64) {
	uncached, output = -1, int64(x.out.OutputTokens)
	if x.out.PromptTokens >= 0 {
		uncached = int64(x.out.PromptTokens - max(0, x.out.Cached))
	}
	return uncached, output
}

// judge holds the end of an answer for or against its endpoint.
func (x *Exchange) judge(end observe.End) {
	switch answered := x.order != nil && x.out.Status != 0 && x.out.Status < 500; {
	case answered && end == observe.Broken && !x.g.Draining():
		x.failed(time.Now(), false, cmp.Or(x.out.Message, "the answer broke off"))
	case answered && end == observe.Complete:
		x.order[x.at].Load.Well(time.Now(), x.g.Health())
	}
}

// release lets the bodies and the decision go; again does nothing.
func (x *Exchange) release() {
	if x.decoded != nil {
		x.decoded.Release()
	}
	x.body.Release()
	x.dropCycle()
}

func (g *Gateway) newCycle() *sched.Cycle {
	seed := g.seeds.Add(1)
	if g.Seed == 0 {
		seed = rand.Uint64()
	}
	return &sched.Cycle{Rand: rand.New(rand.NewPCG(seed, g.Seed))}
}

func (g *Gateway) putCycle(c *sched.Cycle) {
	clear(c.Candidates[:cap(c.Candidates)]) // no old snapshot is kept alive
	c.All, c.Peer, c.Source, c.Worker = nil, nil, sched.Source{}, nil
	c.Context, c.Headers, c.Prompt, c.Media = nil, nil, nil, nil
	g.cycles.Put(c)
}
