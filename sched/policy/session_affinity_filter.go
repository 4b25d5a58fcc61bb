// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// SessionAffinityFilter keeps only the endpoint that served this session before, when it is a candidate. Without
// a session, or without that endpoint, it keeps all.
//
// A session that is bound to an endpoint moves when that one is no candidate any more, or when it failed and
// another served.
type SessionAffinityFilter struct {
	SessionAffinity
}

// Filter implements [sched.Filter].
func (p *SessionAffinityFilter) Filter(c *sched.Cycle, keep []bool) {
	if home := p.home(c); home >= 0 {
		clear(keep)
		keep[home] = true
	}
}

// Reason implements [sched.Reasoner].
func (*SessionAffinityFilter) Reason() string { return "another endpoint served this session before" }
