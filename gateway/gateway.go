// SPDX-License-Identifier: Apache-2.0

// Package gateway answers: what happens to one request, end to end?
//
// It is the only place that knows the order of the stages: parse, route, enter flow
// control, schedule, forward, outcome. Both doors (gateway/extproc and gateway/proxy)
// run this code; they only translate their protocol.
package gateway

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/route"
	"github.com/penstock-project/penstock/sched"
)

// Headers reads a request's or an answer's headers by lower-case name. Several values of one
// name are joined by ", "; the empty string is "not there".
type Headers interface {
	Get(name string) string
	// Names calls yield with each name that is there, lower case, until it returns false.
	Names(yield func(name string) bool)
}

// Head is what a door knows of a request before its body.
type Head struct {
	Method, Path string // path with query
	Headers      Headers
	Peer         netip.Addr // who is connected to us: the client, or Envoy
	// Subset are the addresses (ip or ip:port) the data plane limits the choice to;
	// HasSubset tells an empty list, which allows none, from no list.
	Subset    []string
	HasSubset bool
}

// Header is one name and value.
type Header struct{ Name, Value string }

// Placement is where a request goes, and what to change on the way.
type Placement struct {
	Pool     fleet.ID
	H2C      bool            // the pool's endpoints speak HTTP/2 without TLS
	Endpoint *fleet.Endpoint // alone: the pool would keep its whole snapshot for as long as a stream is
	// Destination lists the chosen endpoint and its fallbacks, ip:port by comma, in order.
	Destination string
	// Evictable tells that the request may be taken back; see [Exchange.OnEvict].
	Evictable bool
	// Scores are the totals by address, where the lane says to tell them.
	Scores []Score
	// Set and Remove edit the request's headers; names are lower case. Remove comes first. What
	// is Set may change when the request moves on to another endpoint.
	// The destination header is the door's own business.
	Set    []Header
	Remove []string
	// Body is what to send, with edits applied; nil when it is to be sent as it came.
	Body *request.Body
}

// Score is an endpoint's total.
type Score struct {
	Address string
	Total   float64
}

// Door is what one door does differently.
type Door struct {
	// Name appears in logs.
	Name string
	// Strict refuses an unknown model also where there is one pool only.
	Strict bool

	trust atomic.Pointer[Trust]
}

// SetTrust says whose control headers are heeded, from the next request on. Until then nobody's are.
func (d *Door) SetTrust(t Trust) { d.trust.Store(&t) }

// Trust says whose control headers are heeded.
func (d *Door) Trust() *Trust {
	if t := d.trust.Load(); t != nil {
		return t
	}
	return &Trust{}
}

// Lane is what serves one pool: its gate, its plan, and the lock under which it scores and
// reserves in one step.
type Lane struct {
	Gate flow.Gate
	Plan *sched.Plan
	// Queues tells that requests may wait at the gate, which then wants to know what work they bring.
	Queues bool

	mu     sync.Mutex
	staged sync.Map // *sched.Profile to *observe.Stages
}

// stages names what a decision of the profile goes through; nil is before one was chosen.
func (l *Lane) stages(p *sched.Profile) *observe.Stages {
	if s, ok := l.staged.Load(p); ok {
		return s.(*observe.Stages)
	}
	s, _ := l.staged.LoadOrStore(p, stagesOf(l.Plan, p))
	return s.(*observe.Stages)
}

// target is the endpoint as it is dialled, and told to the data plane.
func (l *Lane) target(e *fleet.Endpoint) *fleet.Endpoint {
	r, ok := l.Plan.Handler.(sched.Redirector)
	if !ok {
		return e
	}
	other := *e
	other.Address = r.Address(e)
	return &other
}

// Lanes are the lanes by pool.
type Lanes map[fleet.ID]*Lane

// Options are what a Gateway is made of.
type Options struct {
	Store    *fleet.Store
	Observer *observe.Observer
	Log      *slog.Logger
	// Memory holds all request bodies.
	Memory *request.Memory
	// MaxBody bounds one request body, in bytes, also after decoding.
	MaxBody int64
	// Stale is the age beyond which a signal counts as unknown.
	Stale time.Duration
	// Seed makes chance repeatable; 0 takes a random one.
	Seed uint64
	// Scores tells the data plane the total of each candidate, AllSubsets to ignore its subset hints.
	Scores, AllSubsets bool
}

// retired is a gate in which requests of before a reload wait, or come to.
type retired struct {
	flow.Gate
	at time.Time
}

// retiredFor is for how long a gate in which nobody waits is looked after. A request that found its lane before a reload
// is at its gate long before that.
const retiredFor = time.Minute

// Gateway serves requests. Its methods may be called from any goroutine.
type Gateway struct {
	Options
	lanes    atomic.Pointer[Lanes]
	health   atomic.Pointer[fleet.HealthPolicy]
	choices  atomic.Uint64 // of a rewrite's targets
	seeds    atomic.Uint64
	open     atomic.Int64
	draining atomic.Bool

	retiredMu sync.Mutex
	retired   []retired // gates of lanes that were replaced
	ignored   sync.Map  // control headers that were ignored, said once
	cycles    sync.Pool
}

// poolRandom lets ids take their chance from a pool, for all gateways of the process.
var poolRandom = sync.OnceFunc(uuid.EnableRandPool)

// New returns a gateway without lanes, which refuses all.
func New(o Options) *Gateway {
	poolRandom() // request ids are no secrets
	g := &Gateway{Options: o}
	g.seeds.Store(o.Seed)
	g.lanes.Store(&Lanes{})
	g.SetHealth(fleet.DefaultHealth())
	g.cycles.New = func() any { return g.newCycle() }
	o.Store.OnGone(func(gone []*fleet.Load) {
		for _, l := range *g.lanes.Load() {
			l.Plan.Gone(gone)
		}
	})
	o.Store.OnRenewed(func(l *fleet.Load, seen time.Time) {
		for _, lane := range *g.lanes.Load() {
			lane.Plan.Renewed(l, seen)
		}
	})
	o.Store.OnPublish(g.kick)
	if o.Observer != nil {
		o.Observer.WatchQueues(g.queues)
	}
	return g
}

// SetLanes replaces the lanes, as a whole. Requests that entered one keep it, and go when it has room.
func (g *Gateway) SetLanes(l Lanes) {
	old := g.lanes.Swap(&l)
	g.retiredMu.Lock()
	defer g.retiredMu.Unlock()
	now := time.Now()
	g.retired = slices.DeleteFunc(g.retired, func(r retired) bool { return r.Waiting() == 0 && now.Sub(r.at) > retiredFor })
	for id, was := range *old {
		if l[id] != was {
			g.retired = append(g.retired, retired{was.Gate, now})
		}
	}
}

// kick tells all gates that endpoints told news.
func (g *Gateway) kick() { g.gates(flow.Gate.Kick) }

// gates calls f for each gate in which requests may wait.
func (g *Gateway) gates(f func(flow.Gate)) {
	for _, l := range *g.lanes.Load() {
		f(l.Gate)
	}
	g.retiredMu.Lock()
	defer g.retiredMu.Unlock()
	for _, r := range g.retired {
		f(r.Gate)
	}
}

// Refuse turns away whoever still waits, and whoever comes to a queue: we are leaving.
func (g *Gateway) Refuse() { g.gates(flow.Gate.Close) }

// SetHealth says when endpoints are passed over, from the next request on.
func (g *Gateway) SetHealth(p fleet.HealthPolicy) { g.health.Store(&p) }

// Health is the policy in force.
func (g *Gateway) Health() *fleet.HealthPolicy { return g.health.Load() }

// Lanes are the lanes in force; not to be changed.
func (g *Gateway) Lanes() Lanes { return *g.lanes.Load() }

// Models returns the models that clients may ask for, sorted.
func (g *Gateway) Models() []string { return route.Names(g.Store.Load()) }

// Open counts the exchanges that began and did not end.
func (g *Gateway) Open() int64 { return g.open.Load() }

// Drain says that we are leaving: readiness goes away, while requests are still served.
func (g *Gateway) Drain() { g.draining.Store(true) }

// Draining reports whether Drain was called.
func (g *Gateway) Draining() bool { return g.draining.Load() }
