// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
)

// Queued tells the observer what happens at a pool's gate. It is the gate's [flow.Listener].
type Queued struct {
	*observe.Queue
	// Detector names what finds the endpoints that have room.
	Detector string
}

var _ flow.Listener = Queued{}

// Entered implements [flow.Listener].
func (q Queued) Entered(a *flow.Ask, outcome flow.Outcome, took time.Duration) {
	q.Queue.Entered(labelsOf(a), string(outcome), took)
}

// Left implements [flow.Listener].
func (q Queued) Left(a *flow.Ask, outcome flow.Outcome, waited time.Duration) {
	q.Queue.Left(labelsOf(a), string(outcome), waited)
}

func labelsOf(a *flow.Ask) observe.Labels {
	return observe.Labels{Model: a.Model, Target: a.Target, Tenant: a.Tenant, Priority: a.Priority}
}

// queues looks at the queues of all pools. What still waits in one that was replaced counts with its successor.
func (g *Gateway) queues() []observe.QueueView {
	var out []observe.QueueView
	for _, l := range *g.lanes.Load() {
		if c, ok := l.Gate.(*flow.Controller); ok {
			out = append(out, queueView(c))
		}
	}
	for _, c := range g.replaced() {
		v := queueView(c)
		if i := slices.IndexFunc(out, func(o observe.QueueView) bool { return o.Pool == v.Pool }); i >= 0 {
			join(&out[i], &v)
		} else {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b observe.QueueView) int { return cmp.Compare(a.Pool.String(), b.Pool.String()) })
	return out
}

// replaced are the queues of before in which requests still wait.
func (g *Gateway) replaced() (out []*flow.Controller) {
	g.retiredMu.Lock()
	defer g.retiredMu.Unlock()
	for _, r := range g.retired {
		if c, ok := r.Gate.(*flow.Controller); ok && c.Waiting() > 0 {
			out = append(out, c)
		}
	}
	return out
}

// queueView says in the observer's words how a queue is.
func queueView(c *flow.Controller) observe.QueueView {
	s := c.State()
	v := observe.QueueView{
		Pool: s.Pool, Waiting: s.Requests, Bytes: s.Bytes, MaxRequests: s.MaxRequests, MaxBytes: s.MaxBytes, NoEndpoints: s.Empty,
		Saturation: s.Saturation, Stages: map[string]float64{}, Unknown: s.Unknown, Bands: make([]observe.BandView, 0, len(s.Bands)),
	}
	if q, ok := c.Listener().(Queued); ok {
		v.Detector = q.Detector
	}
	for _, st := range s.Stages {
		v.Stages[st.Stage] = st.Saturation
	}
	for _, b := range s.Bands {
		bv := observe.BandView{Priority: b.Priority, Waiting: b.Requests, MaxRequests: b.MaxRequests, Bytes: b.Bytes, MaxBytes: b.MaxBytes,
			Ceiling: b.Ceiling, MinShare: b.Share, OldestMS: float64(b.Oldest.Microseconds()) / 1e3, Flows: b.Flows}
		for _, f := range b.Longest {
			bv.Longest = append(bv.Longest, observe.FlowView{Tenant: f.Tenant, Waiting: f.Requests})
		}
		v.Bands = append(v.Bands, bv)
	}
	for _, q := range s.Queues {
		v.Waits = append(v.Waits, observe.WaitView{
			Labels:   observe.Labels{Model: q.Model, Target: q.Target, Tenant: q.Tenant, Priority: q.Priority},
			Requests: q.Requests, Bytes: q.Bytes,
		})
	}
	if s.Evict {
		v.Leases = &observe.LeaseView{Tracked: s.Tracked, Pending: s.Pending, Target: s.Target}
	}
	for _, m := range s.Measured {
		mv := observe.MeasureView{Evenness: m.Evenness, Known: m.Known}
		for _, p := range m.Programs {
			mv.Programs = append(mv.Programs, observe.ProgramView{Program: p.Program, WaitMS: float64(p.Wait.Microseconds()) / 1e3, Attained: p.Attained})
		}
		v.Measured = append(v.Measured, mv)
	}
	return v
}

// join adds what waits in a queue of before to what waits in its successor.
func join(v, old *observe.QueueView) {
	v.Waiting += old.Waiting
	v.Bytes += old.Bytes
	v.Waits = append(v.Waits, old.Waits...)
	for _, b := range old.Bands {
		if b.Waiting == 0 {
			continue
		}
		i := slices.IndexFunc(v.Bands, func(o observe.BandView) bool { return o.Priority == b.Priority })
		if i < 0 {
			v.Bands = append(v.Bands, b)
			continue
		}
		to := &v.Bands[i]
		to.Waiting += b.Waiting
		to.Bytes += b.Bytes
		to.Flows += b.Flows
		to.OldestMS = max(to.OldestMS, b.OldestMS)
		to.Longest = append(to.Longest, b.Longest...)
	}
	slices.SortStableFunc(v.Bands, func(a, b observe.BandView) int { return cmp.Compare(b.Priority, a.Priority) })
	if l := old.Leases; l != nil && v.Leases != nil {
		v.Leases.Tracked += l.Tracked
		v.Leases.Pending += l.Pending
		v.Leases.Target += l.Target
	}
}
