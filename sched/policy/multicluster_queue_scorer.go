// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// MulticlusterQueueScorer prefers clusters whose engines' queues are short on average.
//
// It reads llm-d.ai/multicluster-queue-size. The shortest among the candidates scores 1 and the longest 0; when
// all are equal each scores 1. A cluster that does not tell scores 0.5. It takes no parameters.
type MulticlusterQueueScorer struct{}

// Score implements [sched.Scorer].
func (*MulticlusterQueueScorer) Score(c *sched.Cycle, score []float64) {
	least(c, score, func(e *fleet.Endpoint) fleet.Signal {
		s, _ := e.Attribute("llm-d.ai/multicluster-queue-size", "")
		return s
	})
}
