// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"

	"github.com/penstock-project/penstock/sched"
)

// QueueScorer prefers endpoints whose engine queue is short.
//
// The shortest queue among the candidates scores 1 and the longest 0; when all are equal each scores
// 1. An endpoint whose queue is unknown scores 0.5. It takes no parameters.
type QueueScorer struct{}

// Score implements [sched.Scorer].
func (*QueueScorer) Score(c *sched.Cycle, score []float64) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, e := range c.Candidates {
		if e.Waiting.Fresh(c.Now, c.Stale) {
			lo, hi = min(lo, e.Waiting.Value), max(hi, e.Waiting.Value)
		}
	}
	for i, e := range c.Candidates {
		switch {
		case !e.Waiting.Fresh(c.Now, c.Stale):
			score[i] = 0.5
		case hi == lo:
			score[i] = 1
		default:
			score[i] = (hi - e.Waiting.Value) / (hi - lo)
		}
	}
}
