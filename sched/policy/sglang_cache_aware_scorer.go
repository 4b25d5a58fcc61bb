// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// SGLangCacheAwareScorer decides as the policy cache_aware of SGLang's model gateway does (its documentation and its
// library's defaults; its command line has 0.3, 64 and 1.5).
//
// While the requests in flight differ by more than balanceAbsThreshold and by more than the factor
// balanceRelThreshold, the endpoint with the fewest is taken. Otherwise, when some endpoint holds more than
// cacheThreshold of the prompt, the one that holds most is; else the one with the fewest requests, where SGLang takes
// the one whose tree of prompts is smallest. The choice scores 0.5 or more, the others follow by requests in flight.
type SGLangCacheAwareScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// CacheThreshold is the cached share of the prompt above which the cache decides.
	CacheThreshold float64 `json:"cacheThreshold"`
	// BalanceAbsThreshold is the difference of requests in flight up to which loads count as balanced.
	BalanceAbsThreshold int64 `json:"balanceAbsThreshold"`
	// BalanceRelThreshold is the ratio of requests in flight up to which loads count as balanced.
	BalanceRelThreshold float64 `json:"balanceRelThreshold"`
}

// Validate reports thresholds that cannot be.
func (p *SGLangCacheAwareScorer) Validate() error {
	switch {
	case !(p.CacheThreshold >= 0 && p.CacheThreshold <= 1):
		return errors.New("cacheThreshold: must be between 0 and 1")
	case p.BalanceAbsThreshold < 0:
		return errors.New("balanceAbsThreshold: must not be below 0")
	case !(p.BalanceRelThreshold >= 1):
		return errors.New("balanceRelThreshold: must be 1 or more")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *SGLangCacheAwareScorer) Score(c *sched.Cycle, score []float64) {
	lo, hi := span(c)
	balanced := hi-lo <= p.BalanceAbsThreshold || float64(hi) <= p.BalanceRelThreshold*float64(lo)
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	most := mostCached(found)
	byCache := balanced && found.Blocks > 0 && float64(most) > p.CacheThreshold*float64(found.Blocks)
	for i, e := range c.Candidates {
		score[i] = 0.5 * float64(1+lo) / float64(1+e.Load.Requests())
		if !byCache || found.Match[i] == most {
			score[i] += 0.5
		}
	}
}

// span tells the fewest and the most requests in flight among the candidates.
func span(c *sched.Cycle) (lo, hi int64) {
	for i, e := range c.Candidates {
		n := e.Load.Requests()
		if i == 0 || n < lo {
			lo = n
		}
		hi = max(hi, n)
	}
	return lo, hi
}

// Counts implements [sched.Counter].
func (*SGLangCacheAwareScorer) Counts() {}
