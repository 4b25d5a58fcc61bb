// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// PrefixCacheAffinityFilter keeps endpoints that hold most of the prompt's prefix, unless they would answer too
// much later than the others.
//
// Endpoints with a cached share of affinityThreshold or more are sticky; without any, all are kept. The
// time to first token of an endpoint is estimated as the tokens of work in flight to it, divided by
// peakPrefillThroughput. Where the soonest of the sticky ones comes later than the soonest of the others by more than
// maxTTFTPenaltyMs, all are kept; else only the sticky ones.
type PrefixCacheAffinityFilter struct {
	// AffinityThreshold is the cached share of the prompt that makes an endpoint sticky, at most 1; 0 or less
	// keeps all.
	AffinityThreshold float64 `json:"affinityThreshold"`
	// ExplorationProbability is the share of requests for which all are kept, 0 to 1.
	ExplorationProbability float64 `json:"explorationProbability"`
	// MaxTTFTPenaltyMs is how much later sticky endpoints may answer, in milliseconds; 0 for any time.
	MaxTTFTPenaltyMs float64 `json:"maxTTFTPenaltyMs"`
	// TTFTSource is prefillThroughput or latencyPredictor. The latter wants predicted-latency-producer, which is not
	// active yet: until it is, latencyPredictor estimates with the speed of prefill that was measured of each endpoint, and
	// like prefillThroughput where none was.
	TTFTSource string `json:"ttftSource"`
	// PeakPrefillThroughput is how many tokens of prompts an endpoint computes in a second.
	PeakPrefillThroughput float64 `json:"peakPrefillThroughput"`
	// PrefixMatchInfoProducerName names the producer that knows of cached prefixes; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// LatencyPredictionInfoProducerName names the producer of predicted latencies.
	LatencyPredictionInfoProducerName string `json:"latencyPredictionInfoProducerName"`
	// InFlightLoadProducerName names the producer that counts requests in flight. The gateway counts them for all
	// plugins alike.
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
}

func newPrefixCacheAffinityFilter() sched.Filter {
	return &PrefixCacheAffinityFilter{AffinityThreshold: 0.8, MaxTTFTPenaltyMs: 18000, TTFTSource: "prefillThroughput", PeakPrefillThroughput: 15928}
}

// Validate reports shares and times that cannot be.
func (p *PrefixCacheAffinityFilter) Validate() error {
	switch {
	case !(p.AffinityThreshold <= 1):
		return errors.New("affinityThreshold: must be 1 or less")
	case !(p.ExplorationProbability >= 0 && p.ExplorationProbability <= 1):
		return errors.New("explorationProbability: must be between 0 and 1")
	case !(p.MaxTTFTPenaltyMs >= 0):
		return errors.New("maxTTFTPenaltyMs: must not be below 0")
	case p.TTFTSource != "prefillThroughput" && p.TTFTSource != "latencyPredictor":
		return fmt.Errorf("ttftSource: want prefillThroughput or latencyPredictor, got %q", p.TTFTSource)
	case !(p.PeakPrefillThroughput > 0):
		return errors.New("peakPrefillThroughput: must be above 0")
	}
	return nil
}

// Inactive tells which parameters have no effect yet.
func (p *PrefixCacheAffinityFilter) Inactive() []string {
	if p.TTFTSource == "latencyPredictor" {
		return []string{"ttftSource: latencyPredictor is accepted, not active yet: times are estimated from tokens in flight and measured speeds"}
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *PrefixCacheAffinityFilter) Filter(c *sched.Cycle, keep []bool) {
	if len(keep) <= 1 || p.AffinityThreshold <= 0 {
		return
	}
	if p.ExplorationProbability > 0 && c.Rand.Float64() < p.ExplorationProbability {
		return
	}
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	stuck, other := math.Inf(1), math.Inf(1) // the soonest of each kind
	for i, e := range c.Candidates {
		speed := p.PeakPrefillThroughput
		if p.TTFTSource == "latencyPredictor" {
			if measured, ok := e.Load.Rate(c.Now); ok {
				speed = measured
			}
		}
		ms := float64(e.Load.Tokens()) / speed * 1000
		if keep[i] = found.Share(i) >= p.AffinityThreshold; keep[i] {
			stuck = min(stuck, ms)
		} else {
			other = min(other, ms)
		}
	}
	late := p.MaxTTFTPenaltyMs > 0 && stuck-other > p.MaxTTFTPenaltyMs
	if math.IsInf(stuck, 1) || late {
		keepAll(keep)
	}
}

// Reason implements [sched.Reasoner].
func (p *PrefixCacheAffinityFilter) Reason() string {
	return fmt.Sprintf("less than %g%% of the prompt is cached, and one that holds more answers soon enough", 100*p.AffinityThreshold)
}
