// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// PrebleScorer decides by E2 of Preble (ICLR 2025), exploitation and exploration, with the defaults of AIBrix' port,
// prefix-cache-preble.
//
// When more than matchThreshold of the prompt is held somewhere, the least loaded of those that hold most of it is
// taken. Otherwise it is the endpoint where load and this prompt's prefill together are least. The load is what was
// sent to an endpoint over the window: uncached tokens at its learned rate, and outputTokens × secondsPerOutputToken
// for each request; older requests fade with the window instead of dropping out at its end. Instead of curves measured
// on one GPU the rate is the one learned on line. The cost of evictions is left out: no tree of ours knows it. The
// choice scores 1; when the cache decides, endpoints that hold less score below 0.5.
type PrebleScorer struct {
	// PrefixMatchInfoProducerName names the producer to read; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// MatchThreshold is the cached share of the prompt above which the cache decides.
	MatchThreshold float64 `json:"matchThreshold"`
	// WindowSeconds is the time over which load is remembered.
	WindowSeconds float64 `json:"windowSeconds"`
	// OutputTokens is how many tokens an answer is taken to have.
	OutputTokens float64 `json:"outputTokens"`
	// SecondsPerOutputToken is what each of them is taken to cost.
	SecondsPerOutputToken float64 `json:"secondsPerOutputToken"`

	mu   sync.Mutex
	sent []recent // by slot
}

// recent is what was sent to an endpoint, as it counted at a time.
type recent struct {
	at               time.Time
	tokens, requests float64
}

// faded is r as it counts at now.
func (r recent) faded(now time.Time, window float64) recent {
	d := math.Exp(-max(0, now.Sub(r.at).Seconds()) / window)
	return recent{now, r.tokens * d, r.requests * d}
}

// Validate reports a threshold, a window or an output that cannot be.
func (p *PrebleScorer) Validate() error {
	switch {
	case !(p.MatchThreshold >= 0 && p.MatchThreshold <= 1):
		return errors.New("matchThreshold: must be between 0 and 1")
	case !(p.WindowSeconds > 0 && p.WindowSeconds <= 86400):
		return errors.New("windowSeconds: must be above 0 and at most 86400")
	case !(p.OutputTokens >= 0 && p.OutputTokens <= 1e6):
		return errors.New("outputTokens: must be between 0 and 1000000")
	case !(p.SecondsPerOutputToken >= 0 && p.SecondsPerOutputToken <= 1000):
		return errors.New("secondsPerOutputToken: must be between 0 and 1000")
	}
	return nil
}

// Score implements [sched.Scorer].
func (p *PrebleScorer) Score(c *sched.Cycle, score []float64) {
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	most := mostCached(found)
	exploit := found.Blocks > 0 && float64(most) > p.MatchThreshold*float64(found.Blocks)
	rates(c, score)
	p.mu.Lock()
	for i, e := range c.Candidates {
		var r recent
		if int(e.Load.Slot) < len(p.sent) {
			r = p.sent[e.Load.Slot].faded(c.Now, p.WindowSeconds)
		}
		if !exploit {
			r.tokens += uncached(c, found, i)
		}
		score[i] = r.tokens/score[i] + r.requests*p.OutputTokens*p.SecondsPerOutputToken
	}
	p.mu.Unlock()
	if !exploit {
		cheapest(score)
		return
	}
	least := math.Inf(1)
	for i, v := range score {
		if found.Match[i] == most {
			least = min(least, v)
		}
	}
	for i, v := range score {
		if found.Match[i] != most {
			score[i] = 0.5 * float64(found.Match[i]) / float64(most)
		} else if v <= least {
			score[i] = 1
		} else {
			score[i] = 0.5 + 0.5*least/v
		}
	}
}

// Placed implements [sched.Placer].
func (p *PrebleScorer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	tokens := float64(c.Tokens)
	for i, e := range c.Candidates {
		if e.Load == chosen.Load {
			tokens = uncached(c, found, i)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	slot := int(chosen.Load.Slot)
	for len(p.sent) <= slot {
		p.sent = append(p.sent, recent{})
	}
	if chosen.Load.Ended() { // it left meanwhile: the slot must be clean for another
		p.sent[slot] = recent{}
		return
	}
	r := p.sent[slot].faded(c.Now, p.WindowSeconds)
	r.tokens, r.requests = r.tokens+tokens, r.requests+1
	p.sent[slot] = r
}

// Gone implements [sched.Leaver].
func (p *PrebleScorer) Gone(loads []*fleet.Load) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range loads {
		if int(l.Slot) < len(p.sent) {
			p.sent[l.Slot] = recent{}
		}
	}
}

// Counts implements [sched.Counter].
func (*PrebleScorer) Counts() {}
