// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// samples are durations: all of them up to a bound, beyond it counts in buckets whose width is at most
// 1/128 of their value.
type samples struct {
	exact  []int64 // nanoseconds; nil once there are counts
	counts []uint64
	n      uint64
	sum    float64
	max    int64
}

// add counts d as n values, of which no more than limit are kept exactly.
func (s *samples) add(d time.Duration, n uint64, limit int) {
	v := max(0, int64(d))
	s.n += n
	s.sum += float64(v) * float64(n)
	s.max = max(s.max, v)
	if s.counts == nil {
		if s.n <= uint64(limit) {
			for range n {
				s.exact = append(s.exact, v)
			}
			return
		}
		s.counts = make([]uint64, bucket(s.max)+1)
		for _, v := range s.exact {
			s.counts[bucket(v)]++
		}
		s.exact = nil
	}
	i := bucket(v)
	if i >= len(s.counts) {
		s.counts = append(s.counts, make([]uint64, i+1-len(s.counts))...)
	}
	s.counts[i] += n
}

// bucket is the place of v among counts: one each below 256, then 128 for each power of two.
func bucket(v int64) int {
	e := max(0, bits.Len64(uint64(v))-8)
	return e<<7 + int(v>>e)
}

// floor is the least value of a bucket.
func floor(i int) int64 {
	if i < 256 {
		return int64(i)
	}
	e := i>>7 - 1
	if e > 55 {
		return math.MaxInt64
	}
	return int64(i-e<<7) << e
}

// dist sums up in units of unit. A plot needs fewer buckets than quantiles do: 8 for each power of two.
func (s *samples) dist(unit time.Duration, plot bool) Dist {
	if s.n == 0 {
		return Dist{}
	}
	in := func(v float64) float64 { return round(v / float64(unit)) }
	d := Dist{Mean: in(s.sum / float64(s.n)), Max: in(float64(s.max)), Count: s.n}
	slices.Sort(s.exact)
	qs := []struct {
		q  float64
		to *float64
	}{{0.50, &d.P50}, {0.90, &d.P90}, {0.95, &d.P95}, {0.99, &d.P99}}
	for _, q := range qs {
		*q.to = in(s.quantile(q.q))
	}
	if !plot {
		return d
	}
	add := func(i int, n uint64) {
		le := in(float64(floor((i>>4 + 1) << 4)))
		if last := len(d.Histogram) - 1; last >= 0 && d.Histogram[last][0] == le {
			d.Histogram[last][1] += float64(n)
			return
		}
		d.Histogram = append(d.Histogram, [2]float64{le, float64(n)})
	}
	for _, v := range s.exact {
		add(bucket(v), 1)
	}
	for i, n := range s.counts {
		if n > 0 {
			add(i, n)
		}
	}
	return d
}

// quantile needs exact to be sorted.
func (s *samples) quantile(q float64) float64 {
	rank := max(1, uint64(math.Ceil(q*float64(s.n))))
	if s.counts == nil {
		return float64(s.exact[rank-1])
	}
	seen := uint64(0)
	for i, n := range s.counts {
		if seen += n; seen >= rank {
			return min(float64(s.max), (float64(floor(i))+float64(floor(i+1)-1))/2)
		}
	}
	return float64(s.max)
}
