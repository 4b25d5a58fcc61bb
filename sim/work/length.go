// SPDX-License-Identifier: Apache-2.0

package work

import (
	"math"
	"math/rand/v2"
	"time"
)

// length is a number that may be random: anything between a and b, or log-normal with the median a.
type length struct {
	a, b, sigma float64
	min, max    float64
}

func (l length) random() bool { return l.sigma > 0 || l.b > l.a }

func (l length) draw(rng *rand.Rand) float64 {
	switch {
	case l.sigma > 0:
		return min(max(l.a*math.Exp(l.sigma*rng.NormFloat64()), l.min), l.max)
	case l.b > l.a:
		return l.a + (l.b-l.a)*rng.Float64()
	}
	return l.a
}

// whole draws a whole number of at least one.
func (l length) whole(rng *rand.Rand) int { return max(1, int(math.Round(l.draw(rng)))) }

// some draws a whole number that may be 0.
func (l length) some(rng *rand.Rand) int { return int(math.Round(l.draw(rng))) }

func (l length) span(rng *rand.Rand) time.Duration {
	return time.Duration(l.draw(rng) * float64(time.Second))
}

// mean is the mean of what draw gives.
func (l length) mean() float64 {
	if l.sigma == 0 || l.a <= 0 {
		return (l.a + l.b) / 2
	}
	mu, s := math.Log(l.a), l.sigma
	below := func(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }
	low, high := math.Inf(-1), (math.Log(l.max)-mu)/s
	if l.min > 0 {
		low = (math.Log(l.min) - mu) / s
	}
	return l.min*below(low) + math.Exp(mu+s*s/2)*(below(high-s)-below(low-s)) + l.max*(1-below(high))
}
