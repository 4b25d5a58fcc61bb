// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync/atomic"
	"time"
)

// Load is what we count ourselves for one incarnation of an endpoint. It outlives the
// snapshots that share it, and its counters are raised and lowered by [Hold] alone.
type Load struct {
	// Slot numbers the incarnation, from 0, unique among those alive; indexes use it.
	Slot     uint32
	requests atomic.Int64
	tokens   atomic.Int64
	sent     atomic.Int64
	ended    atomic.Bool
	failed   atomic.Int64 // unix nanoseconds of the last failed connection, 0 for none
}

// Requests counts the requests in flight.
func (l *Load) Requests() int64 { return l.requests.Load() }

// Tokens sums the estimated prompt tokens in flight.
func (l *Load) Tokens() int64 { return l.tokens.Load() }

// Sent counts all requests ever dispatched to this incarnation.
func (l *Load) Sent() int64 { return l.sent.Load() }

// Ended reports whether the incarnation is over; its slot may be another's.
func (l *Load) Ended() bool { return l.ended.Load() }

// Unseen counts requests in flight that a reading taken when seen were sent cannot show.
func (l *Load) Unseen(seen int64) int64 {
	return max(0, min(l.requests.Load(), l.sent.Load()-seen))
}

// Fail records that no connection could be made at now.
func (l *Load) Fail(now time.Time) { l.failed.Store(now.UnixNano()) }

// Heal forgets a recorded failure.
func (l *Load) Heal() {
	if l.failed.Load() != 0 {
		l.failed.Store(0)
	}
}

// Failing reports whether a connection failed within the time d before now.
func (l *Load) Failing(now time.Time, d time.Duration) bool {
	f := l.failed.Load()
	return f != 0 && now.UnixNano()-f < int64(d)
}

// Take counts one request of that many prompt tokens as in flight. The caller owns the
// Hold and ends it with Release on every exit path.
func (l *Load) Take(tokens int64) Hold {
	l.requests.Add(1)
	l.tokens.Add(tokens)
	l.sent.Add(1)
	return Hold{load: l, tokens: tokens}
}

// Hold is one request's share of an endpoint's [Load]. The zero Hold holds nothing.
type Hold struct {
	load   *Load
	tokens int64
}

// Release gives the share back. Further calls do nothing.
func (h *Hold) Release() {
	if h.load == nil {
		return
	}
	h.load.requests.Add(-1)
	h.load.tokens.Add(-h.tokens)
	h.load = nil
}
