// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"math"
	"slices"
)

// Regret is how much longer a policy's requests waited for their first token than those of the best policy
// for each workload and rate, the best not being the same everywhere. 1 is the best everywhere.
type Regret struct {
	Policy string  `json:"policy"`
	Mean   float64 `json:"mean"`  // geometric, over cells
	Worst  float64 `json:"worst"` // of a cell
	// Failed counts cells that say nothing or flatter, since a smaller share of the requests was completed
	// than with another policy.
	Failed int    `json:"failed,omitempty"`
	Cells  []Cell `json:"cells"`
}

// Cell is a policy on one workload and rate. TTFT is the mean over seeds of the mean, in milliseconds.
// Regret is (TTFT + 100 ms) / (the best's TTFT + 100 ms): what nobody feels is
// no regret. It is 0 where nothing was completed.
type Cell struct {
	Workload string  `json:"workload"`
	Rate     float64 `json:"rate"`
	TTFT     float64 `json:"ttft_ms"`
	Regret   float64 `json:"regret"`
	Best     bool    `json:"best,omitempty"`
	Failed   bool    `json:"failed,omitempty"` // completed a share of its requests that is under 99 % of another policy's; never the best
}

// grace is added to both sides of a regret, in milliseconds.
const grace = 100

// finish fills in what follows from the runs.
func (r *Report) finish() {
	r.Format = Format
	r.Workloads = nil
	for i := range r.Runs {
		if w := r.Runs[i].Workload; !slices.Contains(r.Workloads, w) {
			r.Workloads = append(r.Workloads, w)
		}
	}
	r.regrets()
}

// key is what runs have in common that are compared with each other.
type key struct {
	workload string
	rate     float64
	seed     uint64
}

func (r *Report) regrets() {
	// One run's regret is against the same seed.
	best := map[key]float64{}
	most := map[key]float64{}
	for i := range r.Runs {
		x := &r.Runs[i]
		k := key{x.Workload, x.Rate, x.Seed}
		most[k] = max(most[k], per(float64(x.Completed), float64(x.Requests)))
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		k := key{x.Workload, x.Rate, x.Seed}
		if b, ok := best[k]; x.TTFT.Count > 0 && enough(per(float64(x.Completed), float64(x.Requests)), most[k]) && (!ok || x.TTFT.Mean < b) {
			best[k] = x.TTFT.Mean
		}
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		x.Regret = 0
		if b, ok := best[key{x.Workload, x.Rate, x.Seed}]; ok && x.TTFT.Count > 0 {
			x.Regret = regret(x.TTFT.Mean, b)
		}
	}

	r.Regret = nil
	policies := r.policies()
	if len(policies) < 2 {
		return
	}
	rungs := r.rungs()
	for _, p := range policies {
		out := Regret{Policy: p}
		logs, n := 0.0, 0
		for _, g := range rungs {
			row, best := g.row(p), g.best()
			if row == nil {
				continue
			}
			c := Cell{Workload: g.workload, Rate: g.rate, TTFT: round(row.ttft.Mean), Best: row.best, Failed: row.failed}
			if best != nil && row.ttft.N > 0 {
				c.Regret = regret(row.ttft.Mean, best.ttft.Mean)
				logs += math.Log(c.Regret)
				n++
				out.Worst = max(out.Worst, c.Regret)
			}
			if c.Failed {
				out.Failed++
			}
			out.Cells = append(out.Cells, c)
		}
		if n > 0 {
			out.Mean = round(math.Exp(logs / float64(n)))
		}
		r.Regret = append(r.Regret, out)
	}
	slices.SortStableFunc(r.Regret, func(a, b Regret) int {
		return cmp.Or(cmp.Compare(a.Failed, b.Failed), cmp.Compare(a.Mean, b.Mean))
	})
}

// regret is at least 1: a policy that dropped requests may be quicker than the best, which is no merit.
func regret(ttft, best float64) float64 { return max(1, round((ttft+grace)/(best+grace))) }
