// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// DynamoScorer decides by the cost of NVIDIA Dynamo's KV router (its documentation of routing concepts).
//
// In blocks, the cost is prefillLoadScale × max(active prefill + prompt − credit, 0) + active decode; the credit is
// overlapScoreCredit × matched blocks / (1 + overlapScoreCreditDecay × the active prefill above the least loaded
// endpoint's). The lowest cost scores 1 and the highest 0. Active prefill is what we sent there and is not worked off;
// active decode is what the engine's KV cache has in use, by its own signals. Where these are unknown it is the median
// of the others or, when nobody tells, as many such prompts as requests are in flight. Dynamo's router temperature is
// the softmax-picker's.
type DynamoScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// OverlapScoreCredit is the share of a matched block that is taken off the prompt, 0 to 1.
	OverlapScoreCredit float64 `json:"overlapScoreCredit"`
	// OverlapScoreCreditDecay lowers the credit of endpoints with more prefill ahead; 0 for never.
	OverlapScoreCreditDecay float64 `json:"overlapScoreCreditDecay"`
	// PrefillLoadScale is the weight of prefill against decode.
	PrefillLoadScale float64 `json:"prefillLoadScale"`
}

// Validate reports weights that cannot be.
func (p *DynamoScorer) Validate() error {
	switch {
	case !(p.OverlapScoreCredit >= 0 && p.OverlapScoreCredit <= 1):
		return errors.New("overlapScoreCredit: must be between 0 and 1")
	case !(p.OverlapScoreCreditDecay >= 0 && p.OverlapScoreCreditDecay <= 1e6):
		return errors.New("overlapScoreCreditDecay: must be between 0 and 1000000")
	case !(p.PrefillLoadScale >= 0 && p.PrefillLoadScale <= 1e6):
		return errors.New("prefillLoadScale: must be between 0 and 1000000")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *DynamoScorer) Score(c *sched.Cycle, score []float64) {
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	block := float64(found.BlockTokens)
	if block <= 0 {
		block = 64
	}
	prompt := float64(c.Tokens) / block
	told, ahead, fresh := false, math.Inf(1), oldest(c)
	for i, e := range c.Candidates {
		ahead = min(ahead, float64(e.Load.Tokens())/block)
		score[i] = unknown
		if k := kvUse(e, fresh); k != unknown && e.NumBlocks > 0 && e.BlockSize > 0 {
			score[i], told = k*float64(e.NumBlocks)*float64(e.BlockSize)/block, true
		}
	}
	if told {
		fill(c, score, 0)
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i, e := range c.Candidates {
		if !told {
			score[i] = float64(e.Load.Requests()) * prompt
		}
		active := float64(e.Load.Tokens()) / block
		credit := p.OverlapScoreCredit * float64(found.Match[i]) / (1 + p.OverlapScoreCreditDecay*(active-ahead))
		score[i] += p.PrefillLoadScale * max(0, active+prompt-credit)
		lo, hi = min(lo, score[i]), max(hi, score[i])
	}
	for i, v := range score {
		if hi > lo {
			score[i] = (hi - v) / (hi - lo)
		} else {
			score[i] = 1
		}
	}
}

// Counts implements [sched.Counter].
func (*DynamoScorer) Counts() {}
