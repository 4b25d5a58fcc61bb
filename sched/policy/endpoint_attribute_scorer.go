// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// EndpointAttributeScorer scores endpoints by a number that is known of each, such as a metric of their engines.
//
// The number is placed in a range: a fixed one, outside of which it counts as its nearer end, or that from the
// smallest to the largest number among the candidates; when these are equal each scores 1. An endpoint of
// which the number is unknown scores 0.5.
type EndpointAttributeScorer struct {
	// AttributeKey is the name of the number, as an extractor gives it.
	AttributeKey string `json:"attributeKey"`
	// Producer names who found the number: core-metrics-extractor when it is left out, anybody when it is empty.
	Producer *string `json:"producer"`
	// Algorithm says how the number becomes a score.
	Algorithm AttributeAlgorithm `json:"algorithm"`
}

// AttributeAlgorithm says how a number becomes a score.
type AttributeAlgorithm struct {
	// Type is linear_lower_is_better or linear_higher_is_better.
	Type string `json:"type"`
	// Normalization is the range in which the number is placed; adaptive when it is left out.
	Normalization Normalization `json:"normalization"`
}

// Normalization is a range; one of its fields at most is given.
type Normalization struct {
	// FixedRange is a range that does not change.
	FixedRange *FixedRange `json:"fixedRange"`
	// AdaptiveRange is the range of the candidates' numbers.
	AdaptiveRange *struct{} `json:"adaptiveRange"`
}

// FixedRange is a range of numbers.
type FixedRange struct {
	// Min and Max are its ends.
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// The types of [AttributeAlgorithm].
const (
	lowerIsBetter  = "linear_lower_is_better"
	higherIsBetter = "linear_higher_is_better"
)

// Validate reports what is missing, and ranges that are none.
func (p *EndpointAttributeScorer) Validate() error {
	r := p.Algorithm.Normalization
	switch {
	case p.AttributeKey == "":
		return errors.New("attributeKey: is missing: want the name of an attribute")
	case p.Producer == nil && strings.Contains(p.AttributeKey, "/"):
		return fmt.Errorf("producer: is missing: want the name of who finds %.100s, or an empty one for anybody", p.AttributeKey)
	case p.Algorithm.Type != lowerIsBetter && p.Algorithm.Type != higherIsBetter:
		return fmt.Errorf("algorithm.type: want %s or %s, got %.100q", lowerIsBetter, higherIsBetter, p.Algorithm.Type)
	case r.FixedRange != nil && r.AdaptiveRange != nil:
		return errors.New("algorithm.normalization: want fixedRange or adaptiveRange, got both")
	case r.FixedRange != nil && !(r.FixedRange.Min < r.FixedRange.Max):
		return errors.New("algorithm.normalization.fixedRange.max: must be above min")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *EndpointAttributeScorer) Score(c *sched.Cycle, score []float64) {
	producer := coreMetrics
	if p.Producer != nil {
		producer = *p.Producer
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i, e := range c.Candidates {
		s, ok := e.Attribute(p.AttributeKey, producer)
		if !ok || !s.Fresh(c.Now, c.Stale) {
			score[i] = math.NaN()
			continue
		}
		score[i] = s.Value
		lo, hi = min(lo, s.Value), max(hi, s.Value)
	}
	if r := p.Algorithm.Normalization.FixedRange; r != nil {
		lo, hi = r.Min, r.Max
	}
	for i, v := range score {
		switch {
		case math.IsNaN(v):
			score[i] = 0.5
		case lo == hi:
			score[i] = 1
		case p.Algorithm.Type == higherIsBetter:
			score[i] = (min(max(v, lo), hi) - lo) / (hi - lo)
		default:
			score[i] = (hi - min(max(v, lo), hi)) / (hi - lo)
		}
	}
}

// coreMetrics is who finds the attributes of engines' metrics.
const coreMetrics = "core-metrics-extractor"
