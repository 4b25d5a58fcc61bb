// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// HealthPolicy says when an endpoint is passed over for what became of our requests, and how it comes back.
type HealthPolicy struct {
	// Failures in a row eject an endpoint: answers 500, 502, 503 and 504, and answers that break off. One
	// connection that cannot be made, or breaks before a byte of the answer, does so at once.
	Failures int
	// First is how long the first ejection lasts; each further one in a row twice as long, up to Longest. An endpoint whose
	// metrics page could be read and cannot stays out for Longest each time.
	First, Longest time.Duration
	// SlowStart is the time over which an endpoint that healed gets its share of requests back.
	SlowStart time.Duration
	// MinShare is the share of a pool that stays in use whatever fails, rounded up, at least one.
	MinShare float64
}

// DefaultHealth is the policy when nobody wrote one.
func DefaultHealth() HealthPolicy {
	return HealthPolicy{Failures: 5, First: time.Second, Longest: 30 * time.Second, SlowStart: 10 * time.Second, MinShare: 0.2}
}

// quick bounds an ejection unless the endpoint's metrics page, which was read once, cannot be either: then it lasts until
// that can, or Longest. It bounds the wait for a request that finds out, too.
const quick = 2 * time.Second

// HealthState is our judgement of an incarnation.
type HealthState string

// The states. An endpoint whose ejection is over is Probed: one request at a time finds out.
const (
	Healthy HealthState = "healthy"
	Ejected HealthState = "ejected"
	Probed  HealthState = "probed"
	Slowed  HealthState = "slow start"
)

// health is the judgement's memory. All of it is under mu but for troubled, which lets those that never
// failed pass without it.
type health struct {
	troubled atomic.Bool
	mu       sync.Mutex
	fails    int       // in a row
	rounds   int       // ejections in a row
	since    time.Time // ejected at; zero when not
	until    time.Time
	probe    time.Time // a request that finds out was sent at
	healed   time.Time
	cause    string
}

// Fail records that a request failed at now, and why. A hard failure is one of the connection. It reports
// whether the endpoint is ejected by it.
func (l *Load) Fail(now time.Time, p *HealthPolicy, hard bool, cause string) bool {
	h := &l.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.troubled.Store(true)
	h.fails++
	h.cause = cause
	probed := !h.probe.IsZero()
	if !hard && !probed && h.fails < p.Failures {
		return false
	}
	if !h.since.IsZero() && !probed && now.Before(h.until) {
		return false // it is ejected, and this request was sent before that
	}
	d := p.Longest
	if twice := min(h.rounds, 16); p.First <= p.Longest>>twice { // which, unlike First << twice, cannot overflow
		d = p.First << twice
	}
	h.rounds++
	h.since, h.until, h.probe, h.healed = now, now.Add(d), time.Time{}, time.Time{}
	return true
}

// Heal records that a request began to be answered at now. It reports whether the endpoint was ejected until
// now; it then gets its requests back in a slow start.
func (l *Load) Heal(now time.Time) bool {
	h := &l.health
	if !h.troubled.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() || now.Before(h.until) && h.probe.IsZero() {
		return false // in the second case it was sent before the ejection, and proves little
	}
	h.since, h.probe, h.healed = time.Time{}, time.Time{}, now
	return true
}

// Well records that an answer was whole at now: failures are counted anew.
func (l *Load) Well(now time.Time, p *HealthPolicy) {
	h := &l.health
	if !h.troubled.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.since.IsZero() {
		return
	}
	h.fails, h.cause = 0, ""
	if h.healed.IsZero() || now.Sub(h.healed) >= p.SlowStart {
		h.rounds, h.healed = 0, time.Time{}
		h.troubled.Store(false)
	}
}

// Probe records that a request is sent at now to an endpoint that is ejected or was: until it is answered
// or fails, no other is.
func (l *Load) Probe(now time.Time) {
	h := &l.health
	if !h.troubled.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.since.IsZero() {
		h.probe = now
	}
}

// HealthView is a [Load]'s health as one reads it.
type HealthView struct {
	State HealthState
	// Fails counts failures in a row; Until is when an ejection ends; Cause is of the last failure.
	Fails int
	Until time.Time
	Cause string
	// Share of its requests that it gets in a slow start, 0 to 1.
	Share float64
}

// Health tells how an incarnation is judged at now.
func (e *Endpoint) Health(now time.Time, p *HealthPolicy, stale time.Duration) HealthView {
	h := &e.Load.health
	if !h.troubled.Load() {
		return HealthView{State: Healthy, Share: 1}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v := HealthView{State: Healthy, Fails: h.fails, Cause: h.cause, Share: 1}
	if h.since.IsZero() {
		if d := now.Sub(h.healed); !h.healed.IsZero() && d < p.SlowStart {
			v.State, v.Share = Slowed, max(0.25, d.Seconds()/p.SlowStart.Seconds())
		}
		return v
	}
	v.State, v.Until = Ejected, h.until
	silent := !e.Waiting.At.IsZero() && !e.Waiting.Fresh(now, stale)
	switch soon, late := h.since.Add(quick), h.since.Add(p.Longest); {
	case silent && late.After(v.Until): // no request needs to find out what its page tells
		v.Until = late
	case !silent && soon.Before(v.Until):
		v.Until = soon
	}
	if !now.Before(v.Until) && (h.probe.IsZero() || now.Sub(h.probe) >= quick) {
		v.State = Probed
	}
	return v
}

// Fit clears keep for endpoints that are ejected, and for a part of those in a slow start, and returns how many it
// cleared. A share of the endpoints stays in any case, those first whose ejection ends first.
func (p *HealthPolicy) Fit(endpoints []*Endpoint, keep []bool, now time.Time, stale time.Duration, chance *rand.Rand) int {
	out, slow := 0, 0
	for i, e := range endpoints {
		if !e.Load.health.troubled.Load() {
			continue
		}
		switch v := e.Health(now, p, stale); v.State {
		case Ejected:
			keep[i] = false
			out++
		case Slowed:
			if chance.Float64() >= v.Share {
				keep[i] = false
				slow++
			}
		}
	}
	if out+slow == 0 {
		return 0
	}
	least := max(1, int(math.Ceil(p.MinShare*float64(len(endpoints)))))
	if len(endpoints)-out < least {
		p.readmit(endpoints, keep, now, stale, least)
	}
	n := 0
	for _, ok := range keep {
		if !ok {
			n++
		}
	}
	if n == len(keep) { // those in a slow start are all there is
		for i, e := range endpoints {
			if e.Health(now, p, stale).State == Slowed {
				keep[i] = true
				n--
			}
		}
	}
	return n
}

// readmit keeps so many of the ejected that least remain in all.
func (p *HealthPolicy) readmit(endpoints []*Endpoint, keep []bool, now time.Time, stale time.Duration, least int) {
	type ejected struct {
		i     int
		until time.Time
	}
	var all []ejected
	left := 0
	for i, e := range endpoints {
		if v := e.Health(now, p, stale); v.State == Ejected {
			all = append(all, ejected{i, v.Until})
		} else {
			left++
		}
	}
	slices.SortStableFunc(all, func(a, b ejected) int { return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.i, b.i)) })
	for _, e := range all[:max(0, min(len(all), least-left))] {
		keep[e.i] = true
	}
}
