// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
)

// PriorityHoldbackPolicy lowers the ceiling with the priority: the fuller the pool, the higher the priority that
// a request needs, and what is above a ceiling is kept for those.
//
// The highest priority gets maxCeiling and the lowest minCeiling; a single one gets maxCeiling. A band whose
// ceiling is 0 never goes.
type PriorityHoldbackPolicy struct {
	// Shape is how ceilings fall between the two: linear.
	Shape string `json:"shape"`
	// Domain is what they fall with: rank for equal steps from band to band, value for the number of the priority.
	Domain string `json:"domain"`
	// MinCeiling is the ceiling of the lowest priority, at least 0 and below 1. It has no default.
	MinCeiling *float64 `json:"minCeiling"`
	// MaxCeiling is the ceiling of the highest priority, above 0 and at most 1.
	MaxCeiling float64 `json:"maxCeiling"`
}

// Validate reports ceilings that cannot be.
func (p *PriorityHoldbackPolicy) Validate() error {
	switch {
	case p.Shape != "linear":
		return fmt.Errorf("shape: want linear, got %q", p.Shape)
	case p.Domain != "rank" && p.Domain != "value":
		return fmt.Errorf("domain: want rank or value, got %q", p.Domain)
	case p.MinCeiling == nil:
		return errors.New("minCeiling: is missing: want the ceiling of the lowest priority, at least 0 and below 1")
	case !(*p.MinCeiling >= 0 && *p.MinCeiling < 1):
		return errors.New("minCeiling: must be at least 0 and below 1")
	case !(p.MaxCeiling > 0 && p.MaxCeiling <= 1):
		return errors.New("maxCeiling: must be above 0 and at most 1")
	case *p.MinCeiling > p.MaxCeiling:
		return errors.New("minCeiling: must not be above maxCeiling")
	}
	return nil
}

// Ceilings implements [flow.UsageLimit].
func (p *PriorityHoldbackPolicy) Ceilings(_ float64, priorities []int, into []float64) []float64 {
	into = into[:0]
	n := len(priorities)
	for i, priority := range priorities {
		fall := 0.0 // from the highest, as a share
		switch {
		case n == 1 || priorities[0] == priorities[n-1]:
		case p.Domain == "rank":
			fall = float64(i) / float64(n-1)
		default:
			fall = (float64(priorities[0]) - float64(priority)) / (float64(priorities[0]) - float64(priorities[n-1]))
		}
		into = append(into, p.MaxCeiling-fall*(p.MaxCeiling-*p.MinCeiling))
	}
	return into
}
