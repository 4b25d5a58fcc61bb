// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// QueueScorer prefers endpoints whose engine queue is short.
//
// The shortest queue among the candidates scores 1 and the longest 0; when all are equal each scores
// 1. An endpoint whose queue is unknown scores 0.5. It takes no parameters.
type QueueScorer struct{}

// Score implements [sched.Scorer].
func (*QueueScorer) Score(c *sched.Cycle, score []float64) {
	least(c, score, func(e *fleet.Endpoint) fleet.Signal { return e.Waiting })
}

// least scores the smallest signal among the candidates 1 and the largest 0, all 1 when they are equal.
// What is unknown scores 0.5 and does not stretch the range of the others.
func least(c *sched.Cycle, score []float64, of func(*fleet.Endpoint) fleet.Signal) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, e := range c.Candidates {
		if s := of(e); s.Fresh(c.Now, c.Stale) {
			lo, hi = min(lo, s.Value), max(hi, s.Value)
		}
	}
	for i, e := range c.Candidates {
		s := of(e)
		switch {
		case !s.Fresh(c.Now, c.Stale):
			score[i] = 0.5
		case hi == lo:
			score[i] = 1
		default:
			score[i] = (hi - s.Value) / (hi - lo)
		}
	}
}
