// SPDX-License-Identifier: Apache-2.0

package policy

import "math"

// SoftReflectiveCeilingPolicy closes lower bands softly: they go freely up to a ceiling that falls with the
// pool's saturation and with their rank, and above it every now and then, the more seldom the fuller the pool is.
//
// Band i of n has the ceiling 1 − i·S/(n − 1), S being the saturation. Above it the band is open once in
// round(S/(1 − S)) looks at the queue, closed in the others, and closed for good from S = 1 on. The highest
// band is always open. It takes no parameters.
type SoftReflectiveCeilingPolicy struct{ looks int }

// Ceilings implements [flow.UsageLimit].
func (p *SoftReflectiveCeilingPolicy) Ceilings(s float64, priorities []int, into []float64) []float64 {
	into = into[:0]
	n := len(priorities)
	s = max(0, s)
	period := 1
	if s < 1 {
		period = max(1, int(math.Round(min(s/(1-s+1e-9), 1e9))))
	}
	open := s < 1 && p.looks%period == 0
	if s >= 1-s && s < 1 {
		p.looks++
	}
	for i := range priorities {
		ceiling := 1.0
		if i > 0 && s >= 1-float64(i)*s/float64(n-1) && !open {
			ceiling = 0
		}
		into = append(into, ceiling)
	}
	return into
}
