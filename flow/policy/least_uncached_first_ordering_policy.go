// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/flow"
)

// LeastUncachedFirstOrderingPolicy serves first, of those that came first, what brings least work: the request
// with the fewest prompt tokens that no endpoint holds.
//
// It looks at the oldest window requests of a flow. So that work that is not cached does not wait for ever, the oldest
// goes when others went before it oldestEvery − 1 times, and when it has waited maxWait.
type LeastUncachedFirstOrderingPolicy struct {
	// WindowSize is among how many of the oldest requests it chooses.
	WindowSize int `json:"window"`
	// MaxWait is the wait from which on the oldest goes first; 0s for never.
	MaxWait api.Duration `json:"maxWait"`
	// OldestEvery gives the oldest one of so many turns; 0 for none.
	OldestEvery int `json:"oldestEvery"`
}

// Validate reports a window or guards that cannot be.
func (p *LeastUncachedFirstOrderingPolicy) Validate() error {
	switch {
	case p.WindowSize < 1 || p.WindowSize > 1024:
		return errors.New("window: must be from 1 to 1024")
	case p.MaxWait < 0:
		return errors.New("maxWait: must not be below 0s")
	case p.OldestEvery < 0:
		return errors.New("oldestEvery: must not be below 0")
	}
	return nil
}

// Rank implements [flow.Ordering].
func (*LeastUncachedFirstOrderingPolicy) Rank(_ *flow.Ask, entered time.Time, _ time.Duration) time.Time {
	return entered
}

// Window implements [flow.Chooser].
func (p *LeastUncachedFirstOrderingPolicy) Window() int { return p.WindowSize }

// Choose implements [flow.Chooser].
func (p *LeastUncachedFirstOrderingPolicy) Choose(now time.Time, window []flow.Waiting) int {
	oldest := window[0]
	if p.OldestEvery > 0 && oldest.Passed >= p.OldestEvery-1 ||
		p.MaxWait > 0 && now.Sub(oldest.Entered) >= time.Duration(p.MaxWait) {
		return 0
	}
	best := 0
	for i, w := range window {
		if w.Uncached < window[best].Uncached {
			best = i
		}
	}
	return best
}
