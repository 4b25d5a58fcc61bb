// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// LeastLatencyScorer prefers endpoints that began their streamed answers soonest lately.
//
// The cost of an endpoint is its recent average time to first output × (1 + pendingFactor × requests in flight), and
// its score the least cost divided by its own. One without an answer in the last minute takes the median of the
// others, so that it is tried again; when nobody has one each score follows the requests in flight alone.
type LeastLatencyScorer struct {
	// PendingFactor is by how much each request in flight raises the latency that is expected.
	PendingFactor float64 `json:"pendingFactor"`
}

// Validate reports a factor that is none.
func (p *LeastLatencyScorer) Validate() error {
	if !(p.PendingFactor >= 0 && p.PendingFactor <= 1000) {
		return errors.New("pendingFactor: must be between 0 and 1000")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *LeastLatencyScorer) Score(c *sched.Cycle, score []float64) {
	for i, e := range c.Candidates {
		score[i] = unknown
		if d, ok := e.Load.Latency(c.Now); ok {
			score[i] = d.Seconds()
		}
	}
	fill(c, score, 1)
	for i, e := range c.Candidates {
		score[i] *= 1 + p.PendingFactor*float64(e.Load.Requests())
	}
	cheapest(score)
}

// Counts implements [sched.Counter].
func (*LeastLatencyScorer) Counts() {}
