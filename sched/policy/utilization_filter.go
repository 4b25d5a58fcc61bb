// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// UtilizationFilter drops endpoints where a load signal is above its limit.
//
// A signal that is unknown, because it is stale or was never told, is neither low nor high: it cannot be above a
// limit, so the endpoint passes that condition.
type UtilizationFilter struct {
	// Conditions are the limits; an endpoint is kept when it is within all of them.
	Conditions []Limit `json:"conditions"`
	// FallbackOnEmpty keeps all endpoints when none is within its limits.
	FallbackOnEmpty bool `json:"fallbackOnEmpty"`
	// InFlightLoadProducerName names the producer that counts requests in flight. The gateway counts them for all
	// plugins alike.
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
}

// Limit is one condition of utilization-filter.
type Limit struct {
	// Metric is active-requests (ours in flight to the endpoint), running-requests, waiting-queue or
	// kv-cache-utilization (a share).
	Metric string `json:"metric"`
	// MaxValue is the highest value that is kept; of kv-cache-utilization at most 1.
	MaxValue *float64 `json:"maxValue"`
}

// Validate reports limits that cannot be.
func (p *UtilizationFilter) Validate() error {
	if len(p.Conditions) == 0 {
		return errors.New("conditions: is empty: want at least one {metric, maxValue}")
	}
	for i, l := range p.Conditions {
		at := fmt.Sprintf("conditions[%d]", i)
		switch l.Metric {
		case "active-requests", "running-requests", "waiting-queue", "kv-cache-utilization":
		default:
			return fmt.Errorf("%s.metric: want active-requests, running-requests, waiting-queue or kv-cache-utilization, got %q", at, l.Metric)
		}
		switch {
		case l.MaxValue == nil:
			return fmt.Errorf("%s.maxValue: is missing: want the highest value to keep", at)
		case !(*l.MaxValue >= 0):
			return fmt.Errorf("%s.maxValue: must not be below 0", at)
		case l.Metric == "kv-cache-utilization" && *l.MaxValue > 1:
			return fmt.Errorf("%s.maxValue: is a share of the KV cache: must be 1 or less", at)
		}
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *UtilizationFilter) Filter(c *sched.Cycle, keep []bool) {
	none := true
	for i, e := range c.Candidates {
		for _, l := range p.Conditions {
			keep[i] = keep[i] && l.holds(e, c.Now, c.Stale)
		}
		none = none && !keep[i]
	}
	if none && p.FallbackOnEmpty {
		keepAll(keep)
	}
}

func (l *Limit) holds(e *fleet.Endpoint, now time.Time, stale time.Duration) bool {
	var s fleet.Signal
	switch l.Metric {
	case "active-requests":
		s = fleet.Signal{Value: float64(e.Load.Requests()), At: now}
	case "running-requests":
		s = e.Running
	case "waiting-queue":
		s = e.Waiting
	case "kv-cache-utilization":
		s = e.KVUsage
	}
	return !s.Fresh(now, stale) || !(s.Value > *l.MaxValue)
}

// Reason implements [sched.Reasoner].
func (p *UtilizationFilter) Reason() string {
	var all []string
	for _, l := range p.Conditions {
		all = append(all, fmt.Sprintf("%s is above %g", l.Metric, *l.MaxValue))
	}
	return strings.Join(all, ", or ")
}
