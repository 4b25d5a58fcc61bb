// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// TokenLoadScorer prefers endpoints that have few tokens of work in flight.
//
// The tokens are those of our requests in flight, as inflight-load-producer counts them, and what
// this request's prompt would add at that endpoint, which is less where more of it is cached. None scores
// 1, QueueThresholdTokens or more score 0. The numbers are our own count, so none is ever unknown.
type TokenLoadScorer struct {
	// QueueThresholdTokens is how many tokens score 0.
	QueueThresholdTokens int64 `json:"queueThresholdTokens"`
	// InFlightLoadProducerName names who counts; all read the one count that there is.
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
}

// Validate reports a threshold that no load can be measured against.
func (p *TokenLoadScorer) Validate() error {
	if p.QueueThresholdTokens <= 0 {
		return errors.New("queueThresholdTokens: must be above 0")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *TokenLoadScorer) Score(c *sched.Cycle, score []float64) {
	full := float64(p.QueueThresholdTokens)
	for i, e := range c.Candidates {
		own, _ := c.Work(i)
		score[i] = 1 - min(max(0, float64(e.Load.Tokens()+own)), full)/full
	}
}
