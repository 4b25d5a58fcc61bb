// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// MulticlusterKVCacheUtilizationScorer prefers clusters whose engines' KV caches have room on average.
//
// It reads llm-d.ai/multicluster-kv-cache-utilization; the score is 1 less that share. A cluster that does not
// tell scores 0.5. It takes no parameters.
type MulticlusterKVCacheUtilizationScorer struct{}

// Score implements [sched.Scorer].
func (*MulticlusterKVCacheUtilizationScorer) Score(c *sched.Cycle, score []float64) {
	for i, e := range c.Candidates {
		if used, ok := e.Attribute("llm-d.ai/multicluster-kv-cache-utilization", ""); ok && used.Fresh(c.Now, c.Stale) {
			score[i] = 1 - used.Value
		} else {
			score[i] = 0.5
		}
	}
}
