// SPDX-License-Identifier: Apache-2.0

package work

import (
	"math"
	"math/rand/v2"
	"time"
)

// arrivals is when things begin in an open loop: a renewal process with gamma gaps, whose rate is
// shaped over time. Gaps are drawn at a rate of one and then laid over the shape, so that a shape
// changes when things come and not how they bunch.
type arrivals struct {
	rng   *rand.Rand
	rate  float64 // per second, of a factor of 1
	cv    float64 // of the gaps: 1 is Poisson, above it comes in bunches, 0 is regular
	shape shape
	t     float64 // seconds: of the last arrival
	until float64 // seconds
}

// next is the following arrival, false when there is none before the end.
func (a *arrivals) next() (time.Duration, bool) {
	need := gamma(a.rng, a.cv) / a.rate
	for a.t < a.until {
		factor, end := a.shape.at(a.t)
		end = min(end, a.until)
		if part := factor * (end - a.t); part < need {
			need -= part
			a.t = end
			continue
		}
		a.t += need / factor
		return time.Duration(a.t * float64(time.Second)), a.t < a.until
	}
	return 0, false
}

// shape multiplies a rate over time.
type shape struct {
	kind             string
	factor           float64
	from, hold, each float64 // seconds
}

const slices96 = 96 // steps in which a smooth shape is laid out, a quarter of an hour of a day

// at is the factor at t, and until when it holds.
func (s shape) at(t float64) (factor, until float64) {
	if t < 0 { // before the beginning
		switch s.kind {
		case "idle":
			return 0, 0
		case "diurnal":
			factor, _ = s.at(0)
			return factor, 0
		}
		return 1, 0
	}
	switch s.kind {
	case "step":
		return s.within(t, 1)
	case "idle":
		if t < s.from {
			return 0, s.from
		}
		return s.within(t, 1)
	case "burst":
		start := math.Floor(t/s.each) * s.each
		if t < start+s.hold {
			return s.factor, start + s.hold
		}
		return 1, max(start+s.each, math.Nextafter(t, math.Inf(1)))
	case "ramp":
		if t >= s.each {
			return s.factor, math.Inf(1)
		}
		return s.smooth(t, func(part float64) float64 { return 1 + (s.factor-1)*part })
	case "diurnal":
		swing := (s.factor - 1) / (s.factor + 1)
		return s.smooth(t, func(part float64) float64 { return 1 - swing*math.Cos(2*math.Pi*part) })
	}
	return 1, math.Inf(1)
}

// within is the factor from s.from for s.hold, and other before and after it.
func (s shape) within(t, other float64) (float64, float64) {
	switch {
	case t < s.from:
		return other, s.from
	case s.hold == 0:
		return s.factor, math.Inf(1)
	case t < s.from+s.hold:
		return s.factor, s.from + s.hold
	}
	return other, math.Inf(1)
}

// smooth lays f, of the part of a period that has passed, out in steps.
func (s shape) smooth(t float64, f func(part float64) float64) (float64, float64) {
	step := s.each / slices96
	n := math.Floor(t / step)
	end := (n + 1) * step
	if end <= t { // by rounding
		n, end = n+1, (n+2)*step
	}
	return f(math.Mod(n+0.5, slices96) / slices96), end
}

// mean is the mean factor over the first seconds.
func (s shape) mean(seconds float64) float64 {
	sum, t := 0.0, 0.0
	for t < seconds {
		f, end := s.at(t)
		end = min(end, seconds)
		sum += f * (end - t)
		t = end
	}
	return sum / seconds
}

// gamma draws a gap with the mean 1 and that coefficient of variation (the method of Marsaglia and
// Tsang).
func gamma(rng *rand.Rand, cv float64) float64 {
	switch cv {
	case 0:
		return 1
	case 1:
		return rng.ExpFloat64()
	}
	k, boost := 1/(cv*cv), 1.0
	scale := 1 / k
	if k < 1 {
		boost = math.Pow(1-rng.Float64(), 1/k)
		k++
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := 1 - rng.Float64(); math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v * boost * scale
		}
	}
}

// popularity picks one of n things, of which the i-th is asked for in proportion to 1/i^zipf.
type popularity struct {
	upTo []float64
}

func newPopularity(n int, zipf float64) popularity {
	p := popularity{upTo: make([]float64, n)}
	sum := 0.0
	for i := range p.upTo {
		sum += math.Pow(float64(i+1), -zipf)
		p.upTo[i] = sum
	}
	return p
}

func (p popularity) pick(rng *rand.Rand) int {
	x := rng.Float64() * p.upTo[len(p.upTo)-1]
	low, high := 0, len(p.upTo)-1
	for low < high {
		if mid := (low + high) / 2; p.upTo[mid] > x {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// share is what part of all falls to the i-th.
func (p popularity) share(i int) float64 {
	before := 0.0
	if i > 0 {
		before = p.upTo[i-1]
	}
	return (p.upTo[i] - before) / p.upTo[len(p.upTo)-1]
}
