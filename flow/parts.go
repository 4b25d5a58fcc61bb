// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"time"

	"github.com/penstock-project/penstock/clock"
	"github.com/penstock-project/penstock/fleet"
)

// A Detector says how full an endpoint is. It is asked under the gate's lock and must be quick. What it
// remembers of endpoints it forgets when their incarnation ended.
type Detector interface {
	// Room reports whether the endpoint can take one more request, of that many uncached tokens. Where it can't, it can't
	// take one of more.
	Room(v View, tokens int64) bool
	// Fill tells how full the endpoint is: 1 is full. Weight is its share in the pool's mean.
	Fill(v View) (fill, weight float64)
}

// A Weigher is a [Detector] for which a request may count as less than its uncached tokens where room is asked for. Asked for 0
// tokens it has room as long as requests have.
type Weigher interface {
	Weight(uncached, prompt int64) int64
}

// View is an endpoint as a detector sees it: what it told, and what is in flight, reserved places included.
type View struct {
	*fleet.Endpoint
	Requests, Tokens int64
	Now              time.Time
	Stale            time.Duration
}

// An Ordering gives the order of requests within a flow.
type Ordering interface {
	// Rank is what requests are ordered by, lowest first; equals go in the order in which they came. It is asked once,
	// when the request enters.
	Rank(a *Ask, entered time.Time, ttl time.Duration) time.Time
}

// A Chooser is an [Ordering] that looks again at each dispatch: of the first Window requests by rank it
// takes any.
type Chooser interface {
	Ordering
	Window() int
	// Choose returns the place in the window of the one to go. It may be asked again before one goes.
	Choose(now time.Time, window []Waiting) int
}

// Waiting is a request in a queue, as policies see it.
type Waiting struct {
	*Ask
	Entered time.Time
	// Passed is how often a [Chooser] let another go while this one was first by rank.
	Passed int
}

// Flow is a queue of one tenant in one band, with room for its policy's notes.
type Flow struct {
	Key
	// Score orders flows in a policy, whose own it is.
	Score float64
	// Len is how many wait; it is above 0 while the policy knows the flow.
	Len int
	// Head is the request that would go next: after Next's ok accepted the flow, of those that have room.
	Head Waiting
	// Rank is by the band's ordering that of the first of all its requests.
	Rank time.Time

	seq             uint64  // of the request that Rank is of
	pick            *waiter // whom Head shows
	next, prev      *Flow   // in the round
	index           int     // in a heap of the policy
	shorter, longer *Flow   // in the list of its length
	newest          *waiter
	classes         []*classQueue
	b               *band
}

// A Fairness chooses among the flows of a band that have requests waiting. There is one for each band. All
// calls come under the gate's lock.
type Fairness interface {
	// Add is told of a flow that has requests from now on, Remove of one that has none left.
	Add(f *Flow, now time.Time)
	Remove(f *Flow, now time.Time)
	// Next returns the flow that should go next, of those that ok accepts; nil when it accepts none. It may be
	// asked again before one goes.
	Next(now time.Time, ok func(*Flow) bool) *Flow
	// Went is told that the flow's head goes, before it is taken out.
	Went(f *Flow, now time.Time)
	// Headed is told that a flow's head changed.
	Headed(f *Flow, now time.Time)
	// Charge is told what work a request of the tenant brings, at dispatch by estimate and at its end by the difference
	// to what it really was: tokens of uncached prompt and of output.
	Charge(tenant string, now time.Time, uncached, output int64)
}

// An Indifferent fairness policy does not tell tenants apart: where no more may wait, none of them gives way to another.
type Indifferent interface{ Indifferent() }

// A Finisher is a [Fairness] that counts what was served and not what was let go: it is told of each request
// that ran, at its end, the tokens of its whole prompt, cached or not, and of its output.
type Finisher interface {
	Finished(tenant string, now time.Time, prompt, output int64)
}

// A UsageLimit sets, for each priority in falling order, up to which saturation it may dispatch; 1 is no
// limit beside the endpoints' own.
type UsageLimit interface {
	Ceilings(saturation float64, priorities []int, into []float64) []float64
}

// BandSpec is how a band works.
type BandSpec struct {
	// MaxRequests and MaxBytes bound what waits in the band. Where a bound is reached, the newest request of the tenant with
	// most gives way to one of a tenant that has fewer, unless the policy is [Indifferent].
	MaxRequests, MaxBytes int64
	// TTL bounds the wait in this band; 0 leaves it to the gate.
	TTL time.Duration
	// Share of all dispatches that the band gets at least while it has requests waiting, 0 to 1.
	Share    float64
	Ordering Ordering
	// Fairness makes the band's policy.
	Fairness func() Fairness
}

// The limits of a band that names none.
const (
	DefaultBandRequests = 5000
	DefaultBandBytes    = 1_000_000_000
)

// Options are what a Controller is made of.
type Options struct {
	// MaxRequests and MaxBytes bound all that waits; 0 for no bound.
	MaxRequests, MaxBytes int64
	// TTL bounds the wait while the pool has endpoints, NoEndpointTTL while it has none; 0 for no bound.
	TTL, NoEndpointTTL time.Duration
	// Bands are those that always exist, by priority. Others are made by Default or, below 0, by Negative.
	Bands             map[int]BandSpec
	Default, Negative BandSpec
	Limit             UsageLimit
	Detector          Detector
	// Evict takes requests of negative priority back after dispatch when others wait for their place.
	Evict bool
	// Pool is the pool that requests wait for, Store tells of its endpoints.
	Pool  fleet.ID
	Store *fleet.Store
	Stale time.Duration
	// Listener is told what happens; nil for nobody.
	Listener Listener
	// Clock is what time it is; nil for the wall's.
	Clock clock.Clock
}

// Listener counts what happens at a gate. Calls come under the gate's lock, but for Entered.
type Listener interface {
	// Entered tells how long it took a request to enter, the wait for the lock included. Its outcome is empty where it
	// waits from now on.
	Entered(a *Ask, outcome Outcome, took time.Duration)
	// Looked tells how long it took to look for room and let those go that have it.
	Looked(took time.Duration)
	// Left tells that a request left the queue: its outcome, and how long it waited.
	Left(a *Ask, outcome Outcome, waited time.Duration)
	// Revoked tells of a request that was asked back for one of that priority, and later how that ended.
	Revoked(priority int)
	Reclaimed(confirmed bool, took time.Duration)
}

// Outcome is how a wait ended.
type Outcome string

// The outcomes, by the field's names.
const (
	Dispatched              Outcome = "Dispatched"
	RejectedCapacity        Outcome = "RejectedCapacity"
	RejectedNoEndpoints     Outcome = "RejectedNoEndpoints"
	RejectedOther           Outcome = "RejectedOther"
	EvictedTTL              Outcome = "EvictedTTL"
	EvictedNoEndpoints      Outcome = "EvictedNoEndpoints"
	EvictedContextCancelled Outcome = "EvictedContextCancelled"
	EvictedOther            Outcome = "EvictedOther"
)
