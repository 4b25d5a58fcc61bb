// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// LoadAwareScorer prefers endpoints whose engine queue is short.
//
// An empty queue scores 0.5, one of Threshold or more scores 0, and between them the score falls linearly.
// Use it beside an affinity scorer, which on its own sends a whole session to one endpoint. An endpoint
// whose queue is unknown scores 0.25.
type LoadAwareScorer struct {
	// Threshold is the number of waiting requests that scores 0.
	Threshold int `json:"threshold"`
}

// Validate reports a threshold that no queue can be measured against.
func (p *LoadAwareScorer) Validate() error {
	if p.Threshold <= 0 {
		return errors.New("threshold: must be above 0")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *LoadAwareScorer) Score(c *sched.Cycle, score []float64) {
	full := float64(p.Threshold)
	for i, e := range c.Candidates {
		if !e.Waiting.Fresh(c.Now, c.Stale) {
			score[i] = 0.25
			continue
		}
		score[i] = 0.5 * (1 - min(e.Waiting.Value, full)/full)
	}
}
