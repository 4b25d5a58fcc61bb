// SPDX-License-Identifier: Apache-2.0

// Package sched answers: where does it go?
//
// A [Profile] runs filters, scorers and a picker over the candidates of one [Cycle].
// Time and chance are fields of the Cycle, so a decision can be replayed, explained and
// simulated. The plugins are in sched/policy.
package sched

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
)

// Prompt feeds the prompt's normalized bytes to a hasher; nil when there is none.
type Prompt func(*kvcache.Hasher)

// Cycle is one decision: what is asked, who may serve it, and what was found on the way.
// Slices indexed by candidate are parallel to Candidates. A Cycle is reused; nobody keeps
// it or its slices after the decision.
type Cycle struct {
	// Now and Rand are the decision's time and chance.
	Now  time.Time
	Rand *rand.Rand
	// Stale is the age beyond which a signal counts as unknown.
	Stale time.Duration

	Model, Salt string
	Prompt      Prompt
	// Tokens estimates the prompt, in tokens; set by the first producer that knows.
	Tokens int64

	Candidates []*fleet.Endpoint
	// Match and Blocks tell the cached prefix of each candidate and the whole prompt, in blocks of
	// BlockTokens tokens. Blocks is 0 when nobody looked.
	Match       []int32
	Blocks      int
	BlockTokens int

	// Scores holds each scorer's scores in the order of the profile, Total their weighted sum.
	Scores [][]float64
	Total  []float64
	// Order lists candidates, the pick first; the first Ranked are in order from the best.
	Order []int

	Hasher  kvcache.Hasher
	scratch kvcache.Scratch
	keep    []bool
	slots   []uint32
	keys    []float64
}

// Keys is memory for a picker's sort keys, one for each candidate.
func (c *Cycle) Keys() []float64 {
	c.keys = sized(c.keys, len(c.Candidates))
	return c.keys
}

// A Filter clears keep for candidates that must not serve the request. It may be called
// from many goroutines with different cycles, as all plugins may.
type Filter interface {
	Filter(c *Cycle, keep []bool)
}

// A Scorer sets a score in [0,1] for each candidate. Scores outside are clamped; NaN counts as 0.
// A candidate whose signal is unknown must be scored neither as idle nor as full.
type Scorer interface {
	Score(c *Cycle, score []float64)
}

// A Picker puts the candidates of c.Total into order: the pick first, its fallbacks after it.
// It fills c.Order, which has room for all.
type Picker interface {
	Pick(c *Cycle)
}

// A Producer finds facts about candidates before they are filtered and scored, and learns
// from what was decided.
type Producer interface {
	Produce(c *Cycle)
	// Placed is told the endpoint that was chosen, while the cycle still holds what Produce found.
	Placed(c *Cycle, chosen *fleet.Endpoint)
	// Gone is told that incarnations ended; their slots may be given to others afterwards.
	Gone(loads []*fleet.Load)
}

// Weighted is a scorer with its name and its weight in a profile.
type Weighted struct {
	Name   string
	Scorer Scorer
	Weight float64
}

// Named is a plugin with its configured name.
type Named[T any] struct {
	Name   string
	Plugin T
}

// Profile is one way to choose: producers, filters, scorers and a picker in configured order.
type Profile struct {
	Name      string
	Producers []Producer
	Filters   []Named[Filter]
	Scorers   []Weighted
	Picker    Named[Picker]
}

// Ranked is how many candidates a picker puts into order: the pick and its fallbacks.
const Ranked = 16

// Reserve is what each request that was sent to an endpoint and cannot show in its signals
// yet takes off that endpoint's total, as a share of the sum of weights. It is small against
// any real difference and decides between equals, so that a burst between two scrapes does
// not pile onto one endpoint.
const Reserve = 0.01

// Produce runs the producers. It is apart from [Profile.Decide] because it may be long (a prompt is
// hashed here) and needs no lock.
func (p *Profile) Produce(c *Cycle) {
	c.Match, c.Blocks, c.Tokens = sized(c.Match, len(c.Candidates)), 0, 0
	clear(c.Match)
	for _, pr := range p.Producers {
		pr.Produce(c)
	}
}

// Decide filters, scores and picks. It reports false when no candidate is left. The caller
// reserves on the winner before the next decision on the same pool is made.
func (p *Profile) Decide(c *Cycle) bool {
	p.filter(c)
	n := len(c.Candidates)
	c.Total, c.Order = sized(c.Total, n), sized(c.Order, n)
	clear(c.Total)
	if n == 0 {
		return false
	}
	var sum float64
	for len(c.Scores) < len(p.Scorers) {
		c.Scores = append(c.Scores, nil)
	}
	c.Scores = c.Scores[:len(p.Scorers)]
	for k, s := range p.Scorers {
		c.Scores[k] = sized(c.Scores[k], n)
		clear(c.Scores[k])
		s.Scorer.Score(c, c.Scores[k])
		for i, v := range c.Scores[k] {
			v = clamp(v)
			c.Scores[k][i] = v
			c.Total[i] += v * s.Weight
		}
		sum += math.Abs(s.Weight)
	}
	if sum == 0 {
		sum = 1
	}
	for i, e := range c.Candidates {
		if u := e.Load.Unseen(e.Seen); u > 0 {
			c.Total[i] -= Reserve * sum * float64(u)
		}
	}
	p.Picker.Plugin.Pick(c)
	return true
}

// Placed tells the producers what was decided.
func (p *Profile) Placed(c *Cycle, chosen *fleet.Endpoint) {
	for _, pr := range p.Producers {
		pr.Placed(c, chosen)
	}
}

// Gone tells the producers that incarnations ended.
func (p *Profile) Gone(loads []*fleet.Load) {
	for _, pr := range p.Producers {
		pr.Gone(loads)
	}
}

func (p *Profile) filter(c *Cycle) {
	for _, f := range p.Filters {
		c.keep = sized(c.keep, len(c.Candidates))
		for i := range c.keep {
			c.keep[i] = true
		}
		f.Plugin.Filter(c, c.keep)
		k := 0
		for i, ok := range c.keep {
			if ok {
				c.Candidates[k], c.Match[k] = c.Candidates[i], c.Match[i]
				k++
			}
		}
		c.Candidates, c.Match = c.Candidates[:k], c.Match[:k]
	}
}

// LookUp fills c.Match from an index by the keys in c.Hasher.
func (c *Cycle) LookUp(x *kvcache.Index) {
	c.slots = c.slots[:0]
	for _, e := range c.Candidates {
		c.slots = append(c.slots, e.Load.Slot)
	}
	x.Match(c.Hasher.Keys, c.Hasher.Starts, c.slots, c.Match, &c.scratch)
	c.Blocks = len(c.Hasher.Keys)
}

func clamp(v float64) float64 {
	if v >= 0 { // false for NaN
		return min(v, 1)
	}
	return 0
}

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}
