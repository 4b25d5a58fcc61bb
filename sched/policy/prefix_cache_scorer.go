// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/sched"
)

// PrefixCacheScorer prefers endpoints that already computed the start of the prompt.
//
// With weight w and scale s the score is (1-w)·match/total + w·min(1, match·blockSize/s)². A prompt
// without blocks scores 0 everywhere.
type PrefixCacheScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the default one.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// MatchLengthWeight is the share of the score that the length of the match decides, 0 to 1.
	MatchLengthWeight float64 `json:"matchLengthWeight"`
	// MatchLengthScaleTokens is the length of a match, in tokens, that earns that share in full.
	MatchLengthScaleTokens int `json:"matchLengthScaleTokens"`
}

// Validate reports a weight outside [0,1] and a scale that nothing can be measured against.
func (p *PrefixCacheScorer) Validate() error {
	if p.MatchLengthWeight < 0 || p.MatchLengthWeight > 1 {
		return errors.New("matchLengthWeight: must be between 0 and 1")
	}
	if p.MatchLengthScaleTokens <= 0 {
		return errors.New("matchLengthScaleTokens: must be above 0")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *PrefixCacheScorer) Score(c *sched.Cycle, score []float64) {
	p.score(c.Prefix(p.PrefixMatchInfoProducerName), score)
}

func (p *PrefixCacheScorer) score(found *sched.Prefix, score []float64) {
	if found.Blocks == 0 {
		return
	}
	for i, m := range found.Match {
		length := min(1, float64(m)*float64(found.BlockTokens)/float64(p.MatchLengthScaleTokens))
		score[i] = (1-p.MatchLengthWeight)*found.Share(i) + p.MatchLengthWeight*length*length
	}
}
