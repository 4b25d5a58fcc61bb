// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// AIBrixPrefixCacheScorer decides as AIBrix' routing strategy prefix-cache does (its gateway's documentation and
// defaults).
//
// Among the endpoints that hold some of the prompt and have no more requests in flight than the mean of all plus
// standardDeviationFactor standard deviations, the longest match wins, of equals the one with fewer requests. When
// there is none, the fewest requests win. While loads are imbalanced only the endpoints with the fewest requests may
// be chosen for what they hold: when most and fewest differ by imbalanceMinGap or more, and the most are above
// imbalanceFactor × (mean + 1). Those chosen for what they hold score above 0.5.
type AIBrixPrefixCacheScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// StandardDeviationFactor is how far above the mean, in standard deviations, a holder's load may be.
	StandardDeviationFactor float64 `json:"standardDeviationFactor"`
	// ImbalanceMinGap is the difference of requests in flight from which loads may count as imbalanced.
	ImbalanceMinGap int64 `json:"imbalanceMinGap"`
	// ImbalanceFactor is how many times the mean the most loaded endpoint must have for that.
	ImbalanceFactor float64 `json:"imbalanceFactor"`
}

// Validate reports bounds that cannot be.
func (p *AIBrixPrefixCacheScorer) Validate() error {
	switch {
	case !(p.StandardDeviationFactor >= 0):
		return errors.New("standardDeviationFactor: must not be below 0")
	case p.ImbalanceMinGap < 0:
		return errors.New("imbalanceMinGap: must not be below 0")
	case !(p.ImbalanceFactor >= 0):
		return errors.New("imbalanceFactor: must not be below 0")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *AIBrixPrefixCacheScorer) Score(c *sched.Cycle, score []float64) {
	if len(score) == 0 {
		return
	}
	lo, hi := span(c)
	sum, squares := int64(0), int64(0) // whole numbers: the order does not matter
	for _, e := range c.Candidates {
		n := e.Load.Requests()
		sum, squares = sum+n, squares+n*n
	}
	size := float64(len(score))
	mean := float64(sum) / size
	most := mean + p.StandardDeviationFactor*math.Sqrt(max(0, float64(squares)/size-mean*mean))
	if hi-lo >= p.ImbalanceMinGap && float64(hi) > p.ImbalanceFactor*(mean+1) {
		most = float64(lo)
	}
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	for i, e := range c.Candidates {
		n := float64(e.Load.Requests())
		score[i] = 0.5 / (1 + n)
		if found.Match[i] > 0 && n <= most {
			score[i] = 0.5 + 0.5*(min(float64(found.Match[i]), float64(found.Blocks))+1/(2+n))/(float64(found.Blocks)+1)
		}
	}
}

// Counts implements [sched.Counter].
func (*AIBrixPrefixCacheScorer) Counts() {}
