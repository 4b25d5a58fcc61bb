// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// The detectors are filters, too: they keep the endpoints below their bounds, widened by the headroom. The place that
// the gate keeps for the request itself does not count against it.

// Filter implements [sched.Filter]. When no endpoint is below the bounds it keeps all.
func (d *UtilizationDetector) Filter(c *sched.Cycle, keep []bool) {
	stale := d.stale(c.Stale)
	none := true
	for i, e := range c.Candidates {
		keep[i] = keep[i] && d.fill(e, c.Now, stale, e.Load.Requests(), 0) < 1+d.Headroom
		none = none && !keep[i]
	}
	if none {
		for i := range keep {
			keep[i] = true
		}
	}
}

// Reason implements [sched.Reasoner].
func (d *UtilizationDetector) Reason() string {
	return fmt.Sprintf("%g or more wait, or %g of the KV cache is used", d.QueueDepthThreshold*(1+d.Headroom), d.KVCacheUtilThreshold*(1+d.Headroom))
}

// Filter implements [sched.Filter]. It may keep none.
func (d *ConcurrencyDetector) Filter(c *sched.Cycle, keep []bool) {
	for i, e := range c.Candidates {
		keep[i] = keep[i] && d.below(e.Load)
	}
}

// below reports whether what is in flight leaves room within the headroom.
func (d *ConcurrencyDetector) below(l *fleet.Load) bool {
	if d.ConcurrencyMode != "tokens" && l.Requests() >= int64(float64(d.MaxConcurrency)*(1+d.Headroom)) {
		return false
	}
	return d.ConcurrencyMode == "requests" || l.Tokens() < int64(float64(d.MaxTokenConcurrency)*(1+d.Headroom))
}

// Reason implements [sched.Reasoner].
func (d *ConcurrencyDetector) Reason() string {
	requests := fmt.Sprintf("%d requests are in flight", int64(float64(d.MaxConcurrency)*(1+d.Headroom)))
	tokens := fmt.Sprintf("%d tokens are in flight", int64(float64(d.MaxTokenConcurrency)*(1+d.Headroom)))
	switch d.ConcurrencyMode {
	case "requests":
		return requests
	case "tokens":
		return tokens
	}
	return requests + ", or " + tokens
}
