// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// LMetricScorer decides by the product of LMetric (arXiv 2603.15202): the prompt's uncached tokens × the batch size,
// this request included. The score is the least product divided by the endpoint's. At least one token is computed
// wherever the prompt goes.
type LMetricScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// Queued adds the tokens in flight to the prompt's, as AIBrix' l-metric-local does.
	Queued bool `json:"queued"`
}

// Score implements [sched.Scorer].
func (p *LMetricScorer) Score(c *sched.Cycle, score []float64) {
	found, fresh := c.Prefix(p.PrefixMatchInfoProducerName), oldest(c)
	for i, e := range c.Candidates {
		tokens := uncached(c, found, i)
		if p.Queued {
			tokens += float64(e.Load.Tokens())
		}
		score[i] = max(1, tokens) * (batch(e, fresh) + 1)
	}
	cheapest(score)
}

// Counts implements [sched.Counter].
func (*LMetricScorer) Counts() {}
