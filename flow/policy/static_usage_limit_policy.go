// SPDX-License-Identifier: Apache-2.0

package policy

import "errors"

// StaticUsageLimitPolicy gives all bands the same ceiling.
type StaticUsageLimitPolicy struct {
	// Threshold is the saturation of the pool up to which requests go, above 0 and at most 1.
	Threshold float64 `json:"threshold"`
}

// Validate reports a ceiling that lets nobody pass.
func (p *StaticUsageLimitPolicy) Validate() error {
	if !(p.Threshold > 0 && p.Threshold <= 1) {
		return errors.New("threshold: must be above 0 and at most 1")
	}
	return nil
}

// Ceilings implements [flow.UsageLimit].
func (p *StaticUsageLimitPolicy) Ceilings(_ float64, priorities []int, into []float64) []float64 {
	into = into[:0]
	for range priorities {
		into = append(into, p.Threshold)
	}
	return into
}
