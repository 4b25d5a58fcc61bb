// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// What scorers that compare costs share.

// cheapest turns costs into scores in place: the least scores 1, one twice as high 0.5. Ratios keep small
// differences of large costs decisive, as far as they are not smaller than a float can tell.
func cheapest(cost []float64) {
	best := math.Inf(1)
	for _, v := range cost {
		if v < best {
			best = v
		}
	}
	for i, v := range cost {
		if v <= best {
			cost[i] = 1
		} else {
			cost[i] = best / v
		}
	}
}

// unknown marks a value that nobody knows, in a list that [fill] completes.
const unknown = -1

// fill replaces the unknown by the median of the known, the higher of two in the middle, or by other when none is
// known.
func fill(c *sched.Cycle, values []float64, other float64) {
	known := c.Keys()[:0]
	for _, v := range values {
		if v != unknown {
			known = append(known, v)
		}
	}
	switch len(known) {
	case len(values):
		return
	case 0:
	default:
		other = median(known)
	}
	for i, v := range values {
		if v == unknown {
			values[i] = other
		}
	}
}

// median finds the value in the middle by Hoare's selection; the order of v is lost.
func median(v []float64) float64 {
	k, lo, hi := len(v)/2, 0, len(v)-1
	for lo < hi {
		pivot, i, j := v[(lo+hi)/2], lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return v[k]
		}
	}
	return v[k]
}

// nominalRate is taken for the speed of prefill, in tokens a second, while no candidate's is known. It only sets
// tokens in a relation to seconds.
const nominalRate = 20_000

// rates writes the candidates' learned speeds of prefill, in tokens a second. One without samples takes the median.
func rates(c *sched.Cycle, rate []float64) {
	for i, e := range c.Candidates {
		r, ok := e.Load.Rate(c.Now)
		if !ok {
			r = unknown
		}
		rate[i] = r
	}
	fill(c, rate, nominalRate)
}

// oldest is the time from which on a signal is fresh. To compare with it costs a fraction of [fleet.Signal.Fresh],
// which counts where a signal of each of many endpoints is asked for.
func oldest(c *sched.Cycle) time.Time { return c.Now.Add(-c.Stale) }

func since(s fleet.Signal, oldest time.Time) bool { return !s.At.Before(oldest) && !s.At.IsZero() }

// kvUse is the used share of the KV cache, 0 to 0.99, or [unknown].
func kvUse(e *fleet.Endpoint, oldest time.Time) float64 {
	if k := e.KVUsage.Value; since(e.KVUsage, oldest) && !math.IsNaN(k) {
		return min(max(k, 0), 0.99)
	}
	return unknown
}

// batch counts the requests at an endpoint: ours in flight or, when there are more, those that its fresh signals show.
func batch(e *fleet.Endpoint, oldest time.Time) float64 {
	n := float64(e.Load.Requests())
	if told := e.Waiting.Value + e.Running.Value; told > n && since(e.Waiting, oldest) && since(e.Running, oldest) {
		n = min(told, 1e6)
	}
	return n
}

// uncached is how many tokens of the prompt candidate i does not hold.
func uncached(c *sched.Cycle, found *sched.Prefix, i int) float64 {
	return float64(max(0, c.Tokens-int64(found.Match[i])*int64(found.BlockTokens)))
}

// mostCached is the longest match among the candidates, in blocks.
func mostCached(found *sched.Prefix) int32 {
	most := int32(0)
	for _, m := range found.Match {
		most = max(most, m)
	}
	return most
}
