// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// MulticlusterPrefixCacheScorer prefers clusters that already computed the start of the prompt. It is
// prefix-cache-scorer over what multicluster-approx-prefix-cache-producer finds.
type MulticlusterPrefixCacheScorer struct {
	PrefixCacheScorer
}

// Score implements [sched.Scorer].
func (p *MulticlusterPrefixCacheScorer) Score(c *sched.Cycle, score []float64) {
	name := p.PrefixMatchInfoProducerName
	if name == "" && c.Prefix(multiclusterApprox).Blocks > 0 {
		name = multiclusterApprox
	}
	p.score(c.Prefix(name), score)
}
