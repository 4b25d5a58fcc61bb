// SPDX-License-Identifier: Apache-2.0

// Package run answers: what would this policy do to this work on this fleet?
//
// It is the gateway's own code under a clock that jumps: the same fleet.Store, flow.Controller, sched.Plan and kvcache,
// in the order of the room gateway, in front of engines of sim/engine. One goroutine does everything, event by event,
// so that the same setup gives the same run.
package run

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/sim/kind"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// Setup is what to rehearse.
type Setup struct {
	// Policy and Rate are for the report.
	Policy string
	Rate   float64
	// Lane builds what decides, once for each replica of the gateway and each time that one begins anew.
	Lane  func(flow.Options) (*Lane, error)
	Fleet []kind.Endpoint
	Work  work.Workload
	// Faults are sorted by their beginning.
	Faults []work.Fault
	Seed   uint64
	// Replicas is how many gateways share the work, without knowing of each other; 1 if 0.
	Replicas int
	// Scrape is how often a gateway looks at an engine's metrics, 50 ms if 0; Stale the age beyond which a signal
	// is unknown, 2 s if 0.
	Scrape, Stale time.Duration
	// Events is how long an engine's KV events are under way, 2 ms if 0.
	Events time.Duration
	// Duration is after which time no more requests are sent; 0 for the whole workload.
	Duration time.Duration
	Warmup   time.Duration
	SLO      report.SLO
	// Progress is called now and then with how many requests ended; nil for nobody.
	Progress func(ended int)
}

// The defaults of a Setup. A gateway scrapes every 50 ms and takes signals for stale after 2 s, too.
const (
	DefaultScrape = 50 * time.Millisecond
	DefaultStale  = 2 * time.Second
	DefaultEvents = 2 * time.Millisecond
)

const (
	sampled = 500 * time.Millisecond // how often the report looks
	endless = 24 * time.Hour         // after the last request was sent, what still waits will for ever
	often   = 1 << 10                // events between looks at the context
)

// run is a rehearsal.
type run struct {
	Setup
	loop
	ctx     context.Context
	rec     *report.Recorder
	engines []*instance
	byID    map[fleet.ID]*instance
	doors   []*door
	turn    int // which door is next
	text    writer
	chance  *rand.Rand // beside the gateways'
	batches []*batch   // spare ones

	under     []*exchange // those under way
	spare     []*exchange
	followers int // planned
	ended     int
	last      time.Duration // a request was sent
	err       error
}

// Do rehearses. An error is one of the setup, of the workload, or the context's.
func Do(ctx context.Context, s Setup) (report.Run, error) {
	r, err := begin(ctx, s)
	if err != nil {
		return report.Run{}, err
	}
	if err := r.play(); err != nil {
		return report.Run{}, err
	}
	return r.rec.Run(), nil
}

// begin sets everything up.
func begin(ctx context.Context, s Setup) (*run, error) {
	if s.Replicas == 0 {
		s.Replicas = 1
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&s.Scrape, DefaultScrape)
	def(&s.Stale, DefaultStale)
	def(&s.Events, DefaultEvents)
	r := &run{Setup: s, ctx: ctx, byID: map[fleet.ID]*instance{}, chance: rand.New(rand.NewPCG(s.Seed, 1<<32))}
	names, kinds := make([]string, len(s.Fleet)), make([]string, len(s.Fleet))
	for i, spec := range s.Fleet {
		n := &instance{r: r, i: i, spec: spec, slow: 1, loads: make([]*fleet.Load, s.Replicas), pages: make([]page, s.Replicas)}
		names[i], kinds[i] = fmt.Sprintf("engine-%0*d", len(fmt.Sprint(len(s.Fleet)-1)), i), spec.Kind
		n.id = fleet.ID{Namespace: poolID.Namespace, Name: names[i]}
		n.address = fmt.Sprintf("10.%d.%d.%d:8000", i>>16, i>>8&255, i&255)
		n.labels = map[string]string{"kind": spec.Kind}
		for k, v := range spec.Labels {
			n.labels[k] = v
		}
		n.missed = make([]uint64, s.Replicas)
		r.engines, r.byID[n.id] = append(r.engines, n), n
	}
	r.rec = report.NewRecorder(report.Setup{
		Policy: s.Policy, Workload: s.Work.Name(), Seed: s.Seed, Rate: s.Rate, Warmup: s.Warmup, SLO: s.SLO, Endpoints: names, Kinds: kinds,
	})
	for i := range s.Replicas {
		d := &door{r: r, i: i}
		r.doors = append(r.doors, d)
		if err := d.begin(); err != nil {
			return nil, err
		}
	}
	for _, n := range r.engines { // which say what they hold if somebody asks
		if err := n.begin(); err != nil {
			return nil, fmt.Errorf("%s (%s): %w", n.id.Name, n.spec.Kind, err)
		}
	}
	r.scrapes()
	r.planFaults()
	r.plan(0, call(r.sample), 0)
	return r, nil
}

// play is the loop.
func (r *run) play() error {
	next, more := r.arrival()
	for n := 0; more || len(r.under) > 0 || r.followers > 0; n++ {
		if n%often == 0 {
			if err := r.ctx.Err(); err != nil {
				return err
			}
		}
		if more && (len(r.heap) == 0 || next.At <= r.heap[0].at) {
			r.now = max(r.now, next.At)
			r.send(next)
			next, more = r.arrival()
		} else {
			r.step()
		}
		for _, d := range r.doors {
			d.settle()
		}
		if r.err != nil {
			return r.err
		}
		if !more && r.now-r.last > endless {
			break
		}
	}
	return r.Work.Err()
}

// arrival is the next request that begins by itself.
func (r *run) arrival() (*work.Request, bool) {
	q, ok := r.Work.Next()
	if !ok || r.Duration > 0 && q.At > r.Duration {
		return nil, false
	}
	return q, true
}

// send has a client send a request, to the gateways in turn.
func (r *run) send(q *work.Request) {
	r.last = r.now
	x := r.newExchange(q)
	r.rec.Sent(q.Index, q.At, q.Tenant, q.Class, x.promptLen)
	for range r.doors {
		d := r.doors[r.turn]
		r.turn = (r.turn + 1) % len(r.doors)
		if !d.down {
			x.d = d
			d.do(x, x.seat)
			return
		}
	}
	x.d = r.doors[0]
	x.fail("no-gateway")
}

// follower is a request that follows another.
type follower struct {
	r *run
	q *work.Request
}

func (f follower) happen(uint32) {
	f.r.followers--
	f.r.send(f.q)
}

// over is the end of a request, however it ended.
func (r *run) over(x *exchange, ok bool) {
	q := x.req
	x.forget()
	for _, f := range r.Work.Ended(q, r.now, ok) {
		if r.Duration > 0 && f.At > r.Duration {
			continue
		}
		r.followers++
		r.plan(f.At, follower{r, f}, 0)
	}
	if r.ended++; r.Progress != nil && r.ended%256 == 0 {
		r.Progress(r.ended)
	}
}

// gap counts n tokens that came d after the one before; x is whose, nil for several.
func (r *run) gap(x *exchange, d time.Duration, n int) {
	if n > 0 && r.now-d >= r.Warmup && (x == nil || x.sent >= r.Warmup) {
		r.rec.Gap(d, n)
	}
}

// heard reports whether some gateway listens to KV events.
func (r *run) heard() bool {
	return slices.ContainsFunc(r.doors, func(d *door) bool { return len(d.lane.Mirrors) > 0 })
}

// know finds the engines' loads by a door's newest snapshot.
func (r *run) know(d *door) {
	for _, n := range r.engines {
		n.loads[d.i], n.pages[d.i] = nil, page{}
	}
	for _, e := range d.pool().Endpoints {
		r.byID[e.ID].loads[d.i] = e.Load
	}
}

// scrape is one engine's place in the interval.
type scrape struct{ n *instance }

func (s scrape) happen(uint32) {
	n, r := s.n, s.n.r
	if reading, ok := n.read(); ok {
		for _, d := range r.doors {
			d.scraped(n, reading)
		}
	}
	r.plan(r.now+r.Scrape, s, 0)
}

// scrapes spreads the engines over the interval, as source/scrape does.
func (r *run) scrapes() {
	const golden = 0.6180339887498949
	for i, n := range r.engines {
		f := float64(i) * golden
		r.plan(time.Duration((f-float64(int64(f)))*float64(r.Scrape)), scrape{n}, 0)
	}
}

// sample has the report look at everything.
func (r *run) sample() {
	for _, n := range r.engines {
		if n.down {
			r.rec.Sample(r.now, n.i, 0, 0, 0)
			continue
		}
		s := n.engine.Stats()
		r.rec.Sample(r.now, n.i, s.Waiting, s.Running, s.KVUsage)
	}
	r.queues()
	r.plan(r.now+sampled, call(r.sample), 0)
}

// queues samples what waits at the gates, by priority.
func (r *run) queues() {
	waiting := map[int]int{}
	var order []int
	for _, d := range r.doors {
		c, ok := d.lane.Gate.(*flow.Controller)
		if !ok || d.down {
			continue
		}
		for _, b := range c.State().Bands {
			if _, ok := waiting[b.Priority]; !ok {
				order = append(order, b.Priority)
			}
			waiting[b.Priority] += int(b.Requests)
		}
	}
	for _, p := range order {
		r.rec.Queue(r.now, p, waiting[p])
	}
}
