// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// EndpointAttributeFilter keeps endpoints where a scalar attribute passes a comparison with a constant.
//
// Attributes are what extractors find: a metric that core-metrics-extractor was told to keep, or GPUUtilization
// of dcgm-extractor. One that is stale, or no number, is missing.
type EndpointAttributeFilter struct {
	// Attribute is the attribute's name.
	Attribute string `json:"attribute"`
	// Producer is the plugin that finds it: core-metrics-extractor when left out, any when "".
	Producer *string `json:"producer"`
	// OnMissing says what becomes of endpoints without the attribute: Pass or Fail.
	OnMissing string `json:"onMissing"`
	// FallbackOnEmpty keeps all endpoints when none passes.
	FallbackOnEmpty bool `json:"fallbackOnEmpty"`
	// Algorithm is the comparison.
	Algorithm Comparison `json:"algorithm"`
}

// Comparison is how endpoint-attribute-filter judges a value.
type Comparison struct {
	// Type is threshold.
	Type string `json:"type"`
	// Threshold is what values are compared with.
	Threshold Threshold `json:"threshold"`
}

// Threshold is a comparison with a constant.
type Threshold struct {
	// Operator is LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual. The endpoint's
	// value stands on its left.
	Operator string `json:"operator"`
	// Value is the constant, on the operator's right.
	Value *float64 `json:"value"`
}

// The values of OnMissing.
const (
	pass = "Pass"
	fail = "Fail"
)

// operators are what a [Threshold] can be, with the sign of the opposite for people.
var operators = map[string]struct {
	holds   func(a, b float64) bool
	against string
}{
	"LessThan":           {func(a, b float64) bool { return a < b }, "≥"},
	"LessThanOrEqual":    {func(a, b float64) bool { return a <= b }, ">"},
	"GreaterThan":        {func(a, b float64) bool { return a > b }, "≤"},
	"GreaterThanOrEqual": {func(a, b float64) bool { return a >= b }, "<"},
	"Equal":              {func(a, b float64) bool { return a == b }, "≠"},
	"NotEqual":           {func(a, b float64) bool { return a != b }, "="},
}

// Validate reports a comparison that cannot be made.
func (p *EndpointAttributeFilter) Validate() error {
	t := p.Algorithm.Threshold
	switch {
	case p.Attribute == "":
		return errors.New("attribute: is missing: want the name of an attribute of endpoints")
	case p.Producer == nil && strings.Contains(p.Attribute, "/"):
		return errors.New(`attribute: has a /: write who finds it as producer, or producer: "" for anybody`)
	case p.OnMissing != pass && p.OnMissing != fail:
		return fmt.Errorf("onMissing: want Pass or Fail, got %q", p.OnMissing)
	case p.Algorithm.Type != "threshold":
		return fmt.Errorf("algorithm.type: want threshold, got %q", p.Algorithm.Type)
	case operators[t.Operator].holds == nil:
		return fmt.Errorf("algorithm.threshold.operator: want LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual, got %q", t.Operator)
	case t.Value == nil:
		return errors.New("algorithm.threshold.value: is missing: want a number")
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *EndpointAttributeFilter) Filter(c *sched.Cycle, keep []bool) {
	t := p.Algorithm.Threshold
	op := operators[t.Operator].holds
	if op == nil || t.Value == nil {
		return
	}
	producer := "core-metrics-extractor"
	if p.Producer != nil {
		producer = *p.Producer
	}
	none := true
	for i, e := range c.Candidates {
		s, ok := e.Attribute(p.Attribute, producer)
		if ok && s.Fresh(c.Now, c.Stale) && !math.IsNaN(s.Value) {
			keep[i] = op(s.Value, *t.Value)
		} else {
			keep[i] = p.OnMissing == pass
		}
		none = none && !keep[i]
	}
	if none && p.FallbackOnEmpty {
		keepAll(keep)
	}
}

// Reason implements [sched.Reasoner].
func (p *EndpointAttributeFilter) Reason() string {
	t := p.Algorithm.Threshold
	if t.Value == nil {
		return ""
	}
	why := fmt.Sprintf("%s is %s %g", p.Attribute, operators[t.Operator].against, *t.Value)
	if p.OnMissing == fail {
		why += ", or unknown"
	}
	return why
}

func keepAll(keep []bool) {
	for i := range keep {
		keep[i] = true
	}
}
