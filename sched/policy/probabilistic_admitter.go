// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// ProbabilisticAdmitter turns requests of a priority below 0 away with odds that rise with saturation.
//
// The saturation of an endpoint is the larger of queue/QueueDepthThreshold and use of the KV
// cache/KVCacheUtilThreshold; s is its mean over the candidates. A request is refused with the probability
// min(1, K·s^Power). What is unknown is left out: an endpoint of which only one of the two is known
// counts with that one, and when nothing is known of any the request is admitted.
type ProbabilisticAdmitter struct {
	// QueueDepthThreshold is the engine queue that counts as saturated.
	QueueDepthThreshold float64 `json:"queueDepthThreshold"`
	// KVCacheUtilThreshold is the used share of the KV cache that counts as saturated, above 0 and up to 1.
	KVCacheUtilThreshold float64 `json:"kvCacheUtilThreshold"`
	// Power is how steeply the odds rise.
	Power float64 `json:"power"`
	// K scales the odds.
	K float64 `json:"k"`
}

// Validate reports values that no saturation can be measured with.
func (p *ProbabilisticAdmitter) Validate() error {
	switch {
	case !(p.QueueDepthThreshold > 0):
		return errors.New("queueDepthThreshold: must be above 0")
	case !(p.KVCacheUtilThreshold > 0 && p.KVCacheUtilThreshold <= 1):
		return errors.New("kvCacheUtilThreshold: must be above 0 and not above 1")
	case !(p.Power > 0):
		return errors.New("power: must be above 0")
	case !(p.K >= 0):
		return errors.New("k: must not be below 0")
	}
	return nil
}

// Admit implements [sched.Admitter].
func (p *ProbabilisticAdmitter) Admit(c *sched.Cycle) (why string) {
	if c.Priority >= 0 {
		return ""
	}
	full, known := fleet.Saturation(c.Candidates, c.Now, c.Stale, p.QueueDepthThreshold, p.KVCacheUtilThreshold)
	if known == 0 || !(c.Rand.Float64() < math.Pow(full, p.Power)*p.K) {
		return ""
	}
	return "the endpoints are too busy for requests of a priority below 0"
}
