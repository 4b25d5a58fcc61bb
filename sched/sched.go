// SPDX-License-Identifier: Apache-2.0

// Package sched answers: where does it go?
//
// A [Plan] is what decides for one pool: screeners, producers and admitters that look at each
// request once, and profiles of which a handler chooses one. A [Profile] runs filters, scorers and
// a picker over the candidates of one [Cycle]. Time and chance are fields of the Cycle, so a decision
// can be replayed, explained and simulated. The plugins are in sched/policy.
package sched

import (
	"math"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// A Filter clears keep for candidates that must not serve the request. It may be called
// from many goroutines with different cycles, as all plugins may. One whose signal is unknown
// must be treated neither as idle nor as full.
type Filter interface {
	Filter(c *Cycle, keep []bool)
}

// A Scorer sets a score in [0,1] for each candidate. Scores outside are clamped; NaN counts as 0.
// A candidate whose signal is unknown must be scored neither as idle nor as full.
type Scorer interface {
	Score(c *Cycle, score []float64)
}

// A Picker puts candidates of c.Total into c.Order: the pick first, its fallbacks after it, at most
// [Ranked] in all.
type Picker interface {
	Pick(c *Cycle)
}

// A Producer finds facts about the request and its candidates before they are filtered and scored.
// One that waits asks c.Context whether the caller is still there.
type Producer interface {
	Produce(c *Cycle)
}

// An Admitter may turn a request away once the facts are known. It returns why not, in a phrase for
// people, or nothing.
type Admitter interface {
	Admit(c *Cycle) (why string)
}

// A Handler chooses the profile that decides. Without one it returns nil and why, in a sentence for
// the caller.
type Handler interface {
	Choose(c *Cycle, profiles []*Profile) (p *Profile, why string)
}

// What a plugin may be beside its role.
type (
	// A Placer is told the endpoint that a request goes to, while the cycle still holds what was found, and
	// again when it moves on to another. It may add headers for the endpoint to c.Set.
	Placer interface {
		Placed(c *Cycle, chosen *fleet.Endpoint)
	}
	// A Reserver is a producer whose findings the placements of other requests change. In one step with the
	// decision, of which a pool makes one at a time, it first brings its findings up to date and then is
	// told the choice, so that requests that come at once know of each other. Both must be quick.
	Reserver interface {
		Refresh(c *Cycle)
		Reserve(c *Cycle, chosen *fleet.Endpoint)
	}
	// A Leaver is told that incarnations ended; their slots may be given to others afterwards.
	Leaver interface {
		Gone(loads []*fleet.Load)
	}
	// A Renewer is a Leaver that is told that the process of an engine began anew, and when the one before was last seen. Other Leavers are
	// told as if the endpoint had left.
	Renewer interface {
		Leaver
		Renewed(l *fleet.Load, seen time.Time)
	}
	// An Answerer adds headers to the answer of the endpoint that served.
	Answerer interface {
		Answered(c *Cycle, served *fleet.Endpoint, set func(name, value string))
	}
	// An Identifier tells on whose behalf a request is, where nobody named a fairness id; empty for nobody.
	Identifier interface {
		Identity(h Headers) string
	}
	// A Reasoner says why it drops candidates, as a phrase after "dropped:", such as "llm-d.ai/role is not decode".
	Reasoner interface {
		Reason() string
	}
	// A Fixed filter judges an endpoint by what does not change while it lives, such as its labels, and nothing else.
	Fixed interface {
		Filter
		Fixed()
	}
	// A Namer is told the name it has in the configuration.
	Namer interface {
		SetName(name string)
	}
	// A Counter is a scorer whose scores count by themselves what was sent and no signal shows yet: for its weight
	// nothing is taken off by [Reserve].
	Counter interface{ Counts() }
	// A Redirector sends requests to another address of the chosen endpoint than its own.
	Redirector interface {
		Address(e *fleet.Endpoint) string
	}
)

// Named is a plugin with its configured name.
type Named[T any] struct {
	Name   string
	Plugin T
	// Took is told how long each call lasted; nil for nobody.
	Took func(time.Duration)
}

// Weighted is a scorer with its name and its weight in a profile.
type Weighted struct {
	Named[Scorer]
	Weight float64
}

// Profile is one way to choose: filters, scorers and a picker in configured order.
type Profile struct {
	Name    string
	Filters []Named[Filter]
	Scorers []Weighted
	Picker  Named[Picker]
	// Endpoints is how many endpoints the data plane is told: the pick and its fallbacks.
	Endpoints int
}

// Ranked is how many candidates a picker puts into order at most: the pick and its fallbacks.
const Ranked = 16

// Reserve is what each request that was sent to an endpoint and cannot show in its signals
// yet takes off that endpoint's total, as a share of the sum of weights, those of a [Counter] left out. It is small against
// any real difference and decides between equals, so that a burst between two scrapes does
// not pile onto one endpoint.
const Reserve = 0.01

// Decide filters, scores and picks. It reports false when no candidate is left. The caller
// reserves on the winner before the next decision on the same pool is made.
func (p *Profile) Decide(c *Cycle) bool {
	c.Profile = p.Name
	for k := range p.Filters {
		f := &p.Filters[k]
		at := start(f.Took)
		f.Plugin.Filter(c, c.Mask())
		c.Drop(c.after + Fate(k))
		done(f.Took, at)
	}
	n := len(c.Candidates)
	c.Total, c.Order = sized(c.Total, n), c.Order[:0]
	clear(c.Total)
	if n == 0 {
		return false
	}
	for len(c.Scores) < len(p.Scorers) {
		c.Scores = append(c.Scores, nil)
	}
	c.Scores = c.Scores[:len(p.Scorers)]
	sum := 0.0
	if len(p.Scorers) == 0 {
		sum = 1
	}
	for k := range p.Scorers {
		s := &p.Scorers[k]
		score := sized(c.Scores[k], n)
		c.Scores[k] = score
		clear(score)
		at := start(s.Took)
		s.Plugin.Score(c, score)
		done(s.Took, at)
		for i, v := range score {
			v = clamp(v)
			score[i] = v
			c.Total[i] += v * s.Weight
		}
		if _, counts := s.Plugin.(Counter); !counts {
			sum += math.Abs(s.Weight)
		}
	}
	c.Unseen = sized(c.Unseen, n)
	for i, e := range c.Candidates {
		u := e.Unseen(c.Now, c.Stale)
		c.Unseen[i] = u
		if u > 0 {
			c.Total[i] -= Reserve * sum * float64(u)
		}
	}
	at := start(p.Picker.Took)
	p.Picker.Plugin.Pick(c)
	done(p.Picker.Took, at)
	return true
}

func start(took func(time.Duration)) (at time.Time) {
	if took != nil {
		at = time.Now()
	}
	return at
}

func done(took func(time.Duration), at time.Time) {
	if took != nil {
		took(time.Since(at))
	}
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
