// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// KVCacheUtilizationScorer prefers endpoints whose KV cache has room.
//
// The score is 1 less the used share of the cache. An endpoint whose use is unknown scores 0.5. It
// takes no parameters.
type KVCacheUtilizationScorer struct{}

// Score implements [sched.Scorer].
func (*KVCacheUtilizationScorer) Score(c *sched.Cycle, score []float64) {
	for i, e := range c.Candidates {
		if e.KVUsage.Fresh(c.Now, c.Stale) {
			score[i] = 1 - e.KVUsage.Value
		} else {
			score[i] = 0.5
		}
	}
}
