// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// PricedMissScorer prefers the endpoint where the request costs least, in seconds, with a price on cache misses.
//
// The cost of an endpoint is
//
//	(tokens in flight + uncached tokens of this prompt × 1/(1−h) + requestTokens × (requests + 1)) / rate + kvBarrier × k/(1−k)
//
// or, with batch, where n is the number of requests, this one included,
//
//	((uncached tokens of this prompt × 1/(1−h) + requestTokens) × n + tokens in flight × √n) / rate / √(1−k)
//
// and its score the least cost divided by its own, so that the highest total is the cheapest. It needs no other
// scorer beside it and no tuning.
//
//   - Tokens in flight are those that we sent there and that are not worked off yet: no scrape is needed.
//   - h is the share of prompt tokens that the fleet could have served from its caches lately, by the best candidate
//     for each request. A miss does not only cost its own time. It also pushes out what others would have found:
//     about h/(1−h) tokens for each. The price makes a request wait for who holds its prefix as long as that is
//     worth it for all, and without reuse (h = 0) it is pure load balancing.
//   - The rate, in tokens a second, is learned for each endpoint from the first outputs of streamed answers. One
//     without samples takes the median of the others, so that mixed hardware is balanced without a table.
//   - k is the used share of the KV cache. One that is stale or absent takes the median of the others.
//   - Requests are ours in flight, or more where the endpoint's fresh signals show more, as behind another replica.
//   - With batch, a prompt pays for the requests that it makes wait: each of its chunks is a step in which all are
//     answered later. Tokens in flight are paid by √n: with few requests they are the wait for the first token, with
//     many they belong to requests that n counts already. That was tried, not derived; see design note 9.
type PricedMissScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// RequestTokens is what each request weighs beside its prompt, in tokens: for the steps of its output and the
	// block of its prompt that is computed in any case. It keeps a burst of equal prompts from piling up.
	RequestTokens float64 `json:"requestTokens"`
	// KVBarrier is the cost of a KV cache that is half full, in seconds; at 0.9 it is nine times as much. Batch does
	// without.
	KVBarrier float64 `json:"kvBarrier"`
	// MaxHitRate bounds the estimate of h and so the price, which is 20 at 0.95.
	MaxHitRate float64 `json:"maxHitRate"`
	// HitRate fixes h instead of estimating it. At 0 each request looks after itself alone.
	HitRate *float64 `json:"hitRate"`
	// Batch makes it the other cost, in which requests that are answered there count with all they slow down.
	Batch bool `json:"batch"`

	hit          atomic.Uint64 // float64 bits of the estimate
	mu           sync.Mutex
	cached, seen float64
}

// hitMemory is what an older request's tokens count in the estimate of h after each newer one: half after 200.
const hitMemory = 0.99654

// Validate reports rates that are none, and weights below 0.
func (p *PricedMissScorer) Validate() error {
	switch {
	case !(p.RequestTokens >= 0 && p.RequestTokens <= 1e6):
		return errors.New("requestTokens: must be between 0 and 1000000")
	case !(p.KVBarrier >= 0 && p.KVBarrier <= 1e6):
		return errors.New("kvBarrier: must be between 0 and 1000000 seconds")
	case !(p.MaxHitRate >= 0 && p.MaxHitRate <= 0.99):
		return errors.New("maxHitRate: must be between 0 and 0.99")
	case p.HitRate != nil && !(*p.HitRate >= 0 && *p.HitRate <= 0.99):
		return errors.New("hitRate: must be between 0 and 0.99, or left out to estimate it")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *PricedMissScorer) Score(c *sched.Cycle, score []float64) {
	if len(score) == 0 {
		return
	}
	found, price := c.Prefix(p.PrefixMatchInfoProducerName), 1/(1-p.h())
	rates(c, score)
	dark, fresh := 0, oldest(c)
	for i, e := range c.Candidates {
		n, flying := batch(e, fresh), float64(e.Load.Tokens())
		work := price*uncached(c, found, i) + p.RequestTokens
		if p.Batch {
			work = work*(n+1) + flying*math.Sqrt(n+1)
		} else {
			work += flying + p.RequestTokens*n
		}
		score[i] = work / score[i]
		if k := kvUse(e, fresh); k != unknown {
			score[i] = p.full(score[i], k)
		} else {
			dark++
		}
	}
	if dark > 0 && dark < len(score) {
		p.darkened(c, score)
	}
	cheapest(score)
}

// full is what a cost becomes where the share k of the KV cache is used.
func (p *PricedMissScorer) full(cost, k float64) float64 {
	if p.Batch {
		return cost / math.Sqrt(1-k)
	}
	return cost + p.KVBarrier*k/(1-k)
}

// darkened adds what the median KV cache costs to those of which nobody tells. Where nobody tells of any, it is the
// same for all and left out.
func (p *PricedMissScorer) darkened(c *sched.Cycle, cost []float64) {
	known, fresh := c.Keys()[:0], oldest(c)
	for _, e := range c.Candidates {
		if k := kvUse(e, fresh); k != unknown {
			known = append(known, k)
		}
	}
	k := median(known)
	for i, e := range c.Candidates {
		if kvUse(e, fresh) == unknown {
			cost[i] = p.full(cost[i], k)
		}
	}
}

// h is the fixed or estimated share of tokens that the fleet's caches could serve.
func (p *PricedMissScorer) h() float64 {
	if p.HitRate != nil {
		return *p.HitRate
	}
	return min(p.MaxHitRate, math.Float64frombits(p.hit.Load()))
}

// Placed implements [sched.Placer]: it learns what the fleet's caches could have served.
func (p *PricedMissScorer) Placed(c *sched.Cycle, _ *fleet.Endpoint) {
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	if found.Blocks == 0 || c.Tokens <= 0 {
		return
	}
	hit := min(c.Tokens, int64(mostCached(found))*int64(found.BlockTokens))
	p.mu.Lock()
	p.cached = p.cached*hitMemory + float64(hit)
	p.seen = p.seen*hitMemory + float64(c.Tokens)
	p.hit.Store(math.Float64bits(p.cached / p.seen))
	p.mu.Unlock()
}

// Counts implements [sched.Counter].
func (*PricedMissScorer) Counts() {}
