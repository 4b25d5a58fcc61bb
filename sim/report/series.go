// SPDX-License-Identifier: Apache-2.0

package report

import "time"

// series are means over steps of time. When there are more steps than it may hold, two become one.
type series struct {
	step time.Duration
	most int
	sum  []float64
	n    []uint32
}

func (s *series) add(at time.Duration, v float64) {
	i := int(max(0, at) / s.step)
	for i >= s.most {
		s.sum, s.n = halve(s.sum), halve(s.n)
		s.step *= 2
		i /= 2
	}
	s.sum, s.n = reach(s.sum, i), reach(s.n, i)
	s.sum[i] += v
	s.n[i]++
}

// reach makes a slice long enough for index i.
func reach[T any](s []T, i int) []T {
	if i >= len(s) {
		return append(s, make([]T, i+1-len(s))...)
	}
	return s
}

// halve adds each two neighbours.
func halve[T float64 | uint32](s []T) []T {
	for i := range (len(s) + 1) / 2 {
		v := s[2*i]
		if 2*i+1 < len(s) {
			v += s[2*i+1]
		}
		s[i] = v
	}
	return s[:(len(s)+1)/2]
}

// series with nothing sampled in a step carries the value of the step before.
func (s *series) done() Series {
	if len(s.sum) == 0 {
		return Series{}
	}
	out := Series{StepS: round(s.step.Seconds()), Values: make([]float64, len(s.sum))}
	last := 0.0
	for i := range s.sum {
		if s.n[i] > 0 {
			last = brief(s.sum[i] / float64(s.n[i]))
		}
		out.Values[i] = last
	}
	return out
}
