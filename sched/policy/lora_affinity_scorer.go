// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// LoraAffinityScorer prefers endpoints that have the request's LoRA adapter loaded, or room to load it.
//
// An endpoint that runs the adapter scores 1, one with room for another adapter 0.8, one where the adapter waits
// to be loaded 0.6, any other 0. An endpoint that does not tell of adapters, or did not lately, may
// have to make room for it: it scores 0.4, between one with room and one without. It takes no parameters.
type LoraAffinityScorer struct{}

// Score implements [sched.Scorer].
func (*LoraAffinityScorer) Score(c *sched.Cycle, score []float64) {
	for i, e := range c.Candidates {
		held := len(e.Adapters) + len(e.Queued)
		switch {
		case held == 0 && e.MaxAdapters == 0 || !heard(c, e):
			score[i] = 0.4
		case slices.Contains(e.Adapters, c.Model):
			score[i] = 1
		case held < e.MaxAdapters:
			score[i] = 0.8
		case slices.Contains(e.Queued, c.Model):
			score[i] = 0.6
		default:
			score[i] = 0
		}
	}
}

// heard reports whether the endpoint's page was read lately, by the signals that stand on it.
func heard(c *sched.Cycle, e *fleet.Endpoint) bool {
	return e.Waiting.Fresh(c.Now, c.Stale) || e.Running.Fresh(c.Now, c.Stale) || e.KVUsage.Fresh(c.Now, c.Stale)
}
