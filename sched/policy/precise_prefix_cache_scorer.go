// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// PrecisePrefixCacheScorer is the deprecated scorer that was its own producer: prefix-cache-scorer on a
// precise-prefix-cache-producer that has these parameters.
type PrecisePrefixCacheScorer struct {
	KVIndexing
}

// Score implements [sched.Scorer].
func (*PrecisePrefixCacheScorer) Score(c *sched.Cycle, score []float64) {
	(&PrefixCacheScorer{MatchLengthScaleTokens: 8192}).score(c.Prefix("precise-prefix-cache-producer"), score)
}
