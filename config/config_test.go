// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"

	"github.com/penstock-project/penstock/plugin"
)

// queueScorer, prefixScorer and maxPicker stand for the plugins that a build is made of.
type queueScorer struct{}

type prefixScorer struct {
	MatchLengthWeight      float64 `json:"matchLengthWeight"`
	MatchLengthScaleTokens int     `json:"matchLengthScaleTokens"`
	Producer               string  `json:"prefixMatchInfoProducerName"`
}

func (p *prefixScorer) Validate() error {
	var errs []error
	if p.MatchLengthWeight < 0 || p.MatchLengthWeight > 1 {
		errs = append(errs, errors.New("matchLengthWeight: must be from 0 to 1"))
	}
	if p.MatchLengthScaleTokens <= 0 {
		errs = append(errs, errors.New("matchLengthScaleTokens: must be above 0"))
	}
	return errors.Join(errs...)
}

type count1 struct {
	MaxNumOfEndpoints int `json:"maxNumOfEndpoints"`
}

type maxPicker struct{ count1 }

var testSet = plugin.Set[any]{
	"queue-scorer":                 func() any { return &queueScorer{} },
	"kv-cache-utilization-scorer":  func() any { return &queueScorer{} },
	"prefix-cache-scorer":          func() any { return &prefixScorer{MatchLengthScaleTokens: 8192} },
	"max-score-picker":             func() any { return &maxPicker{} },
	"random-picker":                func() any { return &maxPicker{} },
	"single-profile-handler":       func() any { return &queueScorer{} },
	"approx-prefix-cache-producer": func() any { return &queueScorer{} },
}

// testOptions are those of a build that has testSet.
func testOptions() Options {
	return Options{
		Active: func(name string) bool { return testSet[name] != nil },
		Validate: func(typ string, decode func(any) error) error {
			_, err := testSet.New(typ, decode)
			return err
		},
	}
}
