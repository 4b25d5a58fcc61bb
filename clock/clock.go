// SPDX-License-Identifier: Apache-2.0

// Package clock answers: what time is it, and who calls when it is later?
//
// Rooms that look at the clock by themselves take a [Clock], so that the simulator can hand them one that jumps.
package clock

import "time"

// A Clock tells the time and calls back later.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once d has passed, in a goroutine of its own or, on a clock that is turned by an event loop, in
	// the loop.
	AfterFunc(d time.Duration, f func()) Timer
}

// A Timer is a call to come, as of [time.AfterFunc].
type Timer interface {
	// Reset has the call come after d, whether or not it came before.
	Reset(d time.Duration) bool
	// Stop takes the call back. It reports whether it was still to come.
	Stop() bool
}

// Wall is the clock on the wall.
type Wall struct{}

// Now implements [Clock].
func (Wall) Now() time.Time { return time.Now() }

// AfterFunc implements [Clock].
func (Wall) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Or is c, or the clock on the wall where c is nil.
func Or(c Clock) Clock {
	if c == nil {
		return Wall{}
	}
	return c
}
