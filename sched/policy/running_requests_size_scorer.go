// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// RunningRequestsSizeScorer prefers endpoints whose engine runs few requests.
//
// The fewest among the candidates score 1 and the most 0; when all are equal each scores 1. An
// endpoint that does not tell scores 0.5. It takes no parameters.
type RunningRequestsSizeScorer struct{}

// Score implements [sched.Scorer].
func (*RunningRequestsSizeScorer) Score(c *sched.Cycle, score []float64) {
	least(c, score, func(e *fleet.Endpoint) fleet.Signal { return e.Running })
}
