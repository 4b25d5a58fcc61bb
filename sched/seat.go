// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// A Seat is a request's right to go, as the gate gave it.
type Seat interface {
	// Place takes the request's place at an endpoint, if there is room.
	Place(e *fleet.Endpoint, now time.Time, prefill, output int64) (fleet.Hold, bool)
	// Kept is where the gate kept a place; nil for nowhere.
	Kept() *fleet.Load
	// Force takes a place whether or not there is room.
	Force(e *fleet.Endpoint, now time.Time, prefill, output int64) fleet.Hold
}

// Take reserves the pick's place, after [Profile.Decide] and in one step with it: where the pick has no more room, that of
// the next best that has. It puts the one that was taken first in Order.
func (c *Cycle) Take(s Seat) (*fleet.Endpoint, fleet.Hold) {
	i, hold := c.roomy(s)
	k := slices.Index(c.Order, i)
	if k < 0 {
		k = len(c.Order)
		c.Order = append(c.Order, i)
	}
	copy(c.Order[1:k+1], c.Order[:k])
	c.Order[0] = i
	return c.Candidates[i], hold
}

// roomy takes the place of the best that has room, and tells which candidate that is.
func (c *Cycle) roomy(s Seat) (int, fleet.Hold) {
	for _, i := range c.Order {
		prefill, output := c.Work(i)
		if hold, ok := s.Place(c.Candidates[i], c.Now, prefill, output); ok {
			return i, hold
		}
	}
	kept := s.Kept() // not among the best, but there is room
	i := slices.IndexFunc(c.Candidates, func(e *fleet.Endpoint) bool { return e.Load == kept })
	if i < 0 {
		i = c.Order[0]
	}
	prefill, output := c.Work(i)
	return i, s.Force(c.Candidates[i], c.Now, prefill, output)
}
