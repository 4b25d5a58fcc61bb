// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// A Blind detector tells of endpoints whose signals it takes for unknown.
type Blind interface{ Unknown(v View) bool }

// A Measured fairness policy tells how even its service was. It is asked under the gate's lock, with those of all bands at
// one moment; of those that share what they know one tells.
type Measured interface {
	// Evenness is Jain's index over the programs that it knows, 1 for equal shares; false when it knows none.
	Evenness(now time.Time) (float64, bool)
	// Programs yields each program, its mean wait, and the service that it attained, in weighted tokens.
	Programs(now time.Time, yield func(program string, wait time.Duration, attained float64))
}

// State is a Controller at one moment, for whoever looks. Nothing in it is the Controller's own.
type State struct {
	Pool fleet.ID
	// Requests and Bytes wait now; the bounds are 0 for none.
	Requests, MaxRequests, Bytes, MaxBytes int64
	// Empty tells that the pool has no endpoints.
	Empty bool
	// Saturation is what the ceilings are compared with: the mean of how full the endpoints are, 1 for all.
	// Stages are the same mean over the endpoints of a stage of disaggregated serving that has any.
	Saturation float64
	Stages     []StageState
	// Unknown counts the endpoints whose signals the detector takes for unknown.
	Unknown int
	// Bands are by falling priority.
	Bands []BandState
	// Queues are what waits, by all that metrics tell apart, in no order.
	Queues []QueueState
	// Evict tells whether requests are taken back. Tracked may be, Pending are and have not ended, and those who wait
	// could use Target of both.
	Evict                    bool
	Tracked, Pending, Target int
	// Measured is what policies tell of their service.
	Measured []Measure
}

// StageState is one stage's saturation.
type StageState struct {
	Stage      string
	Saturation float64
}

// BandState is one band.
type BandState struct {
	Priority                               int
	Requests, MaxRequests, Bytes, MaxBytes int64
	// Flows have requests that wait; Longest are some with the most of them.
	Flows   int
	Longest []FlowState
	// Ceiling is the saturation up to which the band dispatches, as it was when one last could; 1 for no limit.
	Ceiling float64
	Share   float64
	// Oldest is the longest wait so far.
	Oldest time.Duration
}

// FlowState is one flow.
type FlowState struct {
	Tenant   string
	Requests int
}

// QueueState counts the requests of a flow that ask for the same.
type QueueState struct {
	Key
	Model, Target   string
	Requests, Bytes int64
}

// Measure is what a policy told.
type Measure struct {
	Evenness float64
	Known    bool // whether there is an index
	Programs []ProgramState
}

// ProgramState is one program's service.
type ProgramState struct {
	Program  string
	Wait     time.Duration
	Attained float64
}

// mostPrograms bounds the programs of a Measure.
const mostPrograms = 1000

// longest is how many flows of a band State lists.
const longest = 10

// Listener is who is told what happens here, nil for nobody.
func (c *Controller) Listener() Listener { return c.opt.Listener }

// State looks at everything once, under the lock. It costs some nanoseconds for each request that waits.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	c.look(now, false)
	c.meter.valid = false
	s := State{
		Pool: c.opt.Pool, Requests: int64(c.count), MaxRequests: c.opt.MaxRequests, Bytes: c.bytes, MaxBytes: c.opt.MaxBytes,
		Empty: c.isEmpty(), Evict: c.opt.Evict, Pending: len(c.leases.pending), Tracked: len(c.leases.list), Bands: make([]BandState, 0, len(c.bands)),
	}
	if len(c.leases.list) > 0 {
		lowest := c.leases.list[len(c.leases.list)-1].w.ask.Priority
		for _, b := range c.bands {
			if b.priority > lowest {
				s.Target += b.count
			}
		}
	}
	s.Target = min(s.Pending+s.Target, s.Pending+s.Tracked)
	c.fills(&s, now)
	for _, b := range c.bands {
		bs := BandState{Priority: b.priority, Requests: int64(b.count), MaxRequests: b.MaxRequests, Bytes: b.bytes, MaxBytes: b.MaxBytes,
			Flows: len(b.flows), Share: b.Share, Ceiling: b.ceiling}
		for _, f := range b.flows {
			bs.Longest = append(bs.Longest, FlowState{f.Tenant, f.Len})
			for _, q := range f.classes {
				s.Queues = appendQueues(s.Queues, q)
				for _, w := range q.heap {
					bs.Oldest = max(bs.Oldest, now.Sub(w.entered))
				}
			}
		}
		slices.SortFunc(bs.Longest, func(a, b FlowState) int {
			return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Tenant, b.Tenant))
		})
		bs.Longest = slices.Clone(bs.Longest[:min(longest, len(bs.Longest))])
		s.Bands = append(s.Bands, bs)
		if m, ok := b.fair.(Measured); ok {
			s.Measured = append(s.Measured, measure(m, now))
		}
	}
	return s
}

// appendQueues counts a queue's requests by their models. Those of one class mostly ask for the same.
func appendQueues(list []QueueState, q *classQueue) []QueueState {
	from := len(list)
	at := from
	for _, w := range q.heap {
		a := &w.ask
		if at == len(list) || list[at].Model != a.Model || list[at].Target != a.Target {
			at = from
			for at < len(list) && (list[at].Model != a.Model || list[at].Target != a.Target) {
				at++
			}
			if at == len(list) {
				list = append(list, QueueState{Key: a.Key, Model: a.Model, Target: a.Target})
			}
		}
		list[at].Requests++
		list[at].Bytes += a.Bytes
	}
	return list
}

func measure(m Measured, now time.Time) (out Measure) {
	out.Evenness, out.Known = m.Evenness(now)
	m.Programs(now, func(program string, wait time.Duration, attained float64) {
		if len(out.Programs) < mostPrograms {
			out.Programs = append(out.Programs, ProgramState{program, wait, attained})
		}
	})
	return out
}

// roleLabel names an endpoint's role in disaggregated serving.
const roleLabel = "llm-d.ai/role"

// stages are those that a role belongs to, by prefill and decode; those of other roles to none.
var stages = map[string][2]bool{
	"prefill": {true, false}, "encode-prefill": {true, false}, "decode": {false, true}, "": {false, true},
	"prefill-decode": {true, true}, "both": {true, true}, "encode-prefill-decode": {true, true},
}

// fills tells how full the endpoints are, as [Controller.saturation] does.
func (c *Controller) fills(s *State, now time.Time) {
	s.Saturation = c.saturation(now)
	p := c.pool
	if p == nil {
		return
	}
	blind, _ := c.opt.Detector.(Blind)
	var sum, weights [2]float64
	for _, e := range p.Endpoints {
		v := c.view(e, now)
		if blind != nil && blind.Unknown(v) {
			s.Unknown++
		}
		fill, weight := c.opt.Detector.Fill(v)
		for i, in := range stages[e.Labels[roleLabel]] {
			if in {
				sum[i] += min(fill, 1) * weight
				weights[i] += weight
			}
		}
	}
	for i, name := range [2]string{"prefill", "decode"} {
		if weights[i] > 0 {
			s.Stages = append(s.Stages, StageState{name, sum[i] / weights[i]})
		}
	}
}

// Cause is what a request waits for.
type Cause string

// The causes.
const (
	ForEndpoints Cause = "endpoints" // the pool has none
	ForRoom      Cause = "room"      // none of its candidates has room
	ForCeiling   Cause = "ceiling"   // the pool is fuller than its priority may use
	ForTurn      Cause = "turn"      // others go first
)

// Story is what became of a request at the gate, for whoever asks why.
type Story struct {
	// Outcome is how the wait ended, also where there was none.
	Outcome Outcome
	// Waited tells whether it did not go at once. The rest is of the moment in which it began to wait.
	Waited bool
	For    Cause
	// Ahead are those that wait with its priority or a higher one, Own those of its flow; without itself.
	Ahead, Own int
	// Flows have requests in its band, its own included.
	Flows int
}

// stand tells where a request stands that begins to wait, after a dispatch that did not take it.
func (c *Controller) stand(w *waiter, b *band) {
	s := Story{Waited: true, For: ForTurn, Ahead: -1, Own: w.flow.Len - 1, Flows: len(b.flows)}
	for _, o := range c.bands {
		if o.priority < b.priority {
			break
		}
		s.Ahead += o.count
	}
	switch {
	case c.empty:
		s.For = ForEndpoints
	case b.held:
		s.For = ForCeiling
	case w.queue.lane.class.full:
		s.For = ForRoom
	}
	w.story = s
}
