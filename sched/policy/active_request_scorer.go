// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// ActiveRequestScorer prefers endpoints to which we have few requests in flight.
//
// Up to IdleThreshold requests score 1; above it the score is (most - own) / most · MaxBusyScore, where most
// is the largest number among the candidates. The numbers are our own count, so none is ever unknown.
type ActiveRequestScorer struct {
	// IdleThreshold is how many requests in flight still count as idle.
	IdleThreshold int `json:"idleThreshold"`
	// MaxBusyScore bounds the score of an endpoint that is not idle, 0 to 1.
	MaxBusyScore float64 `json:"maxBusyScore"`
	// InFlightLoadProducerName names who counts; all read the one count that there is.
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
	// RequestTimeout is accepted and has no effect: a request counts until it ends.
	RequestTimeout any `json:"requestTimeout"`
}

// Validate reports values that no count can be measured against.
func (p *ActiveRequestScorer) Validate() error {
	switch {
	case p.IdleThreshold < 0:
		return errors.New("idleThreshold: must not be below 0")
	case !(p.MaxBusyScore >= 0 && p.MaxBusyScore <= 1):
		return errors.New("maxBusyScore: must be between 0 and 1")
	}
	return nil
}

// Inactive tells of parameters without an effect.
func (p *ActiveRequestScorer) Inactive() []string {
	if p.RequestTimeout != nil {
		return []string{"requestTimeout: has no effect: a request counts until it ends"}
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *ActiveRequestScorer) Score(c *sched.Cycle, score []float64) {
	most := int64(0)
	for i, e := range c.Candidates {
		n := e.Load.Requests()
		score[i] = float64(n) // read once: it may change meanwhile
		most = max(most, n)
	}
	for i, n := range score {
		if n <= float64(p.IdleThreshold) {
			score[i] = 1
		} else {
			score[i] = (float64(most) - n) / float64(most) * p.MaxBusyScore
		}
	}
}
