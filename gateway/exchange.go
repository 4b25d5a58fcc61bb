// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
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

	encoding  request.Encoding
	unreached string   // why the data plane got no answer of the endpoint
	badBody   *Refusal // what is wrong with the body, told by Place
	body      *request.Body
	decoded   *request.Body
	scan      *request.Scanner
	facts     *request.Facts

	lane    *Lane
	cycle   *sched.Cycle // of the decision, kept until an endpoint answers
	told    int          // how many endpoints the data plane is told: the pick and its fallbacks
	running observe.Running
	placed  *Placement
	order   []*fleet.Endpoint // the pick and its fallbacks, best first
	at      int               // the current one
	pool    fleet.ID
	evictee Evictee
	// prepared tells that the cycle was screened, and its producers ran.
	prepared bool
	ticket   flow.Ticket // from the gate
	waited   flow.Story  // at the gate
	hold     fleet.Hold
	receipts []sched.Receipt // of plugins, for the placement in force
	answer   *request.Answer
	sse      bool
	rename   rename
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
	x.out.Trace = g.Observer.Trace(h.Headers)
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
	x.grade()
	x.ticket.Prompt(int64(x.out.PromptTokens))
	x.ticket.End(x.work())
	if x.scan != nil {
		scanners.Put(x.scan)
	}
	x.scan, x.facts = nil, nil
	x.release()
	x.out.End = end
	x.out.Duration = time.Since(x.out.Start)
	x.running.Done()
	x.g.Observer.Done(&x.out)
	x.forget()
	x.g.open.Add(-1)
}

// release lets the bodies and the decision go; again does nothing.
func (x *Exchange) release() {
	if x.decoded != nil {
		x.decoded.Release()
	}
	x.body.Release()
	x.dropCycle()
}
