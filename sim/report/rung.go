// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"slices"
)

// rung is one workload at one rate: what policies are compared on.
type rung struct {
	workload string
	rate     float64
	rows     []row // in order of appearance
}

// row is what one policy did on a rung, with each seed.
type row struct {
	policy string
	runs   []*Run
	ttft   Stat // of the mean, of the runs that have one
	best   bool // least mean TTFT of those that did not fail; alone on a rung nobody is the best
	failed bool // completed a share of its requests that is under 99 % of another policy's
}

// Stat is a figure over seeds.
type Stat struct {
	Mean, Min, Max float64
	N              int
}

func (s *Stat) add(v float64) {
	if s.N == 0 {
		s.Min, s.Max = v, v
	}
	s.Min, s.Max = min(s.Min, v), max(s.Max, v)
	s.N++
	s.Mean += (v - s.Mean) / float64(s.N)
}

// over is a figure over the runs that have it.
func (w *row) over(figure func(*Run) (float64, bool)) Stat {
	var s Stat
	for _, x := range w.runs {
		if v, ok := figure(x); ok {
			s.add(v)
		}
	}
	return s
}

// completed is the share of the requests. Their number says nothing: where requests follow answers, a slow
// policy gets fewer.
func (w *row) completed() float64 {
	n, of := 0, 0
	for _, x := range w.runs {
		n, of = n+x.Completed, of+x.Requests
	}
	return per(float64(n), float64(of))
}

// enough is 99 % of most.
func enough(completed, most float64) bool { return completed >= 0.99*most }

// policies are in order of appearance.
func (r *Report) policies() []string {
	var out []string
	for i := range r.Runs {
		if p := r.Runs[i].Policy; !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// rungs are by workload in order of appearance, then by rate.
func (r *Report) rungs() []*rung {
	var out []*rung
	for _, w := range r.Workloads {
		from := len(out)
		for i := range r.Runs {
			x := &r.Runs[i]
			if x.Workload != w {
				continue
			}
			at := slices.IndexFunc(out[from:], func(g *rung) bool { return g.rate == x.Rate })
			if at < 0 {
				at = len(out) - from
				out = append(out, &rung{workload: w, rate: x.Rate})
			}
			g := out[from+at]
			if w := g.row(x.Policy); w != nil {
				w.runs = append(w.runs, x)
			} else {
				g.rows = append(g.rows, row{policy: x.Policy, runs: []*Run{x}})
			}
		}
		slices.SortStableFunc(out[from:], func(a, b *rung) int { return cmp.Compare(a.rate, b.rate) })
	}
	for _, g := range out {
		g.judge(r.Baseline == "")
	}
	return out
}

func (g *rung) String() string { return at(g.workload, g.rate) }

// at names a workload at a rate; a closed loop has none.
func at(workload string, rate float64) string {
	if rate == 0 {
		return workload
	}
	return workload + ", rate " + exactly(rate)
}

func (g *rung) row(policy string) *row {
	for i := range g.rows {
		if g.rows[i].policy == policy {
			return &g.rows[i]
		}
	}
	return nil
}

// best is nil when nobody completed anything.
func (g *rung) best() *row {
	var best *row
	for i := range g.rows {
		if w := &g.rows[i]; !w.failed && w.ttft.N > 0 && (best == nil || w.ttft.Mean < best.ttft.Mean) {
			best = w
		}
	}
	return best
}

// judge finds who failed, and who is the best where there is one to be found.
func (g *rung) judge(compared bool) {
	most := 0.0
	for i := range g.rows {
		w := &g.rows[i]
		w.ttft = w.over(meanTTFT)
		most = max(most, w.completed())
	}
	for i := range g.rows {
		g.rows[i].failed = !enough(g.rows[i].completed(), most)
	}
	if best := g.best(); best != nil && compared && len(g.rows) > 1 {
		best.best = true
	}
}

func meanTTFT(x *Run) (float64, bool) { return x.TTFT.Mean, x.TTFT.Count > 0 }
