// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// SessionAffinityScorer prefers the endpoint that served this session before: it scores 1, all others 0. Without a
// session all score 0.
//
// A session that is bound to an endpoint moves when that one is no candidate any more, or when it failed and
// another served; not when another endpoint was preferred.
type SessionAffinityScorer struct {
	SessionAffinity
}

// Score implements [sched.Scorer].
func (p *SessionAffinityScorer) Score(c *sched.Cycle, score []float64) {
	if home := p.home(c); home >= 0 {
		score[home] = 1
	}
}
