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
	prompts  atomic.Int64 // tokens of prompts that are not worked off, of those in flight
	begun    atomic.Int64 // since when there are any, Unix nanoseconds
	held     atomic.Int64 // places that a gate keeps for requests that are on their way
	heldWork atomic.Int64 // and their tokens
	ended    atomic.Bool
	health   health
	pace     pace
	grade    grade
}

// Requests counts the requests in flight.
func (l *Load) Requests() int64 { return l.requests.Load() }

// Tokens sums the tokens of work that the requests in flight still bring: what of their prompts was not cached
// and, where the configuration says so, their estimated output.
func (l *Load) Tokens() int64 { return l.tokens.Load() }

// Reserve keeps a place for a request that is on its way, or with negative numbers gives it back.
func (l *Load) Reserve(requests, tokens int64) {
	l.held.Add(requests)
	l.heldWork.Add(tokens)
}

// Reserved counts the places kept, and the tokens of work that are coming.
func (l *Load) Reserved() (requests, tokens int64) { return l.held.Load(), l.heldWork.Load() }

// Sent counts all requests ever dispatched to this incarnation.
func (l *Load) Sent() int64 { return l.sent.Load() }

// Ended reports whether the incarnation is over; its slot may be another's.
func (l *Load) Ended() bool { return l.ended.Load() }

// Unseen counts requests in flight that the endpoint's signals do not show: those sent after its page was
// asked for and, where the page tells both queue and running requests, those of ours that it leaves out.
func (e *Endpoint) Unseen(now time.Time, stale time.Duration) int64 {
	flying := e.Load.requests.Load()
	if flying == 0 {
		return 0
	}
	unseen := e.Load.sent.Load() - e.Seen
	if e.Waiting.Fresh(now, stale) && e.Running.Fresh(now, stale) {
		unseen = max(unseen, flying-int64(e.Waiting.Value+e.Running.Value))
	}
	return max(0, min(flying, unseen))
}

// Take counts one request at now, with that many tokens of work before its answer can begin and work for its
// output, as in flight. The caller owns the Hold and ends it with Release on every exit path.
func (l *Load) Take(now time.Time, prefill, output int64) Hold {
	l.requests.Add(1)
	l.sent.Add(1)
	if l.prompts.Add(prefill) == prefill {
		l.begun.Store(now.UnixNano())
	}
	ahead := l.tokens.Add(prefill+output) - prefill - output
	return Hold{load: l, at: now, prefill: prefill, output: output, ahead: ahead}
}

// Hold is one request's share of an endpoint's [Load]. The zero Hold holds nothing.
type Hold struct {
	load            *Load
	at              time.Time
	prefill, output int64
	ahead           int64 // tokens of others that were in flight
	begun           bool
	wrote           int64 // tokens of output, when it was last learned from them
	wroteAt         time.Time
	worked          float64 // tokens of prompts that were worked off until then
}

// Output is learned from no fewer tokens than these, unless they took longer than that.
const (
	outputTokens = 16
	outputTime   = time.Second
)

// Wrote is told how many tokens of output the answer has had until now, in all: once after [Hold.Begun], and as often
// as is convenient after it. From the time between is learned what [Load.OutputTime] tells.
func (h *Hold) Wrote(now time.Time, total int64) {
	if h.load == nil {
		return
	}
	n, took := total-h.wrote, now.Sub(h.wroteAt)
	switch {
	case h.wroteAt.IsZero():
		h.worked = h.load.pace.worked()
	case n <= 0 || took <= 0 || n < outputTokens && took < outputTime:
		return
	default:
		h.worked = h.load.pace.noteOutput(now, took, n, h.worked, h.load)
	}
	h.wrote, h.wroteAt = total, now
}

// Begun is told that the first output came at now: the prompt is worked off. Further calls do nothing.
func (h *Hold) Begun(now time.Time) {
	if h.load == nil || h.begun {
		return
	}
	h.begun = true
	h.load.prompts.Add(-h.prefill)
	h.load.pace.learn(now, now.Sub(h.at), h.ahead, h.prefill)
	if h.output == 0 {
		h.load.tokens.Add(-h.prefill)
		h.prefill = 0
	}
}

// Release gives the share back. Further calls do nothing.
func (h *Hold) Release() {
	if h.load == nil {
		return
	}
	h.load.requests.Add(-1)
	if !h.begun {
		h.load.prompts.Add(-h.prefill)
	}
	h.load.tokens.Add(-h.prefill - h.output)
	h.load = nil
}
