// SPDX-License-Identifier: Apache-2.0

// Package flow answers: may it go now?
//
// A [Gate] stands between the parsed request and the scheduler. [Legacy] is what the field does when
// flow control is off. A [Controller] holds requests while no endpoint has room for them: in bands of one
// priority each, in a queue for each tenant of a band, in an order within the queue. It is driven by
// events: a request that comes, leaves or expires, room that appears. Policies are in flow/policy.
package flow

import (
	"context"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Reason is the value of x-llm-d-request-dropped-reason: why a request was not served.
type Reason string

// The reasons. Those that begin with rejected cost no GPU work.
const (
	Saturated    Reason = "rejected-saturated"         // capacity exists and is contended: 429
	NoEndpoints  Reason = "rejected-no-endpoints"      // no capacity exists now: 503
	TTLExpired   Reason = "rejected-ttl-expired"       // waited too long: 429
	Cancelled    Reason = "rejected-context-cancelled" // the client left the queue: 503
	ShuttingDown Reason = "rejected-shutting-down"     // we are leaving: 503
	Internal     Reason = "rejected-internal"          // our fault: 500
	Evicted      Reason = "evicted"                    // taken back after dispatch: 429
)

// Key is a flow: the requests of one tenant with one priority.
type Key struct {
	Tenant   string
	Priority int
}

// Ask is what a gate sees of a request.
type Ask struct {
	// Key is the fairness id, and the priority of the request's objective: higher goes first, below 0
	// may be shed.
	Key
	// Model and Target label the request in metrics, before and after a rewrite.
	Model, Target string
	// Bytes is the memory that the request holds while it waits, headers and bookkeeping included.
	Bytes int64
	// Tokens estimates its prompt, Uncached what of it no endpoint holds, Output its answer; in tokens.
	Tokens, Uncached, Output int64
	// Received is when it came; TTFT is the latency that it asks for, 0 for none.
	Received time.Time
	TTFT     time.Duration
	// TTL shortens the time that it may wait; 0 leaves it to the configuration.
	TTL time.Duration
	// Candidates are the endpoints it could go to, by the snapshot of that version.
	Candidates []*fleet.Endpoint
	Version    uint64
	// Class tells requests apart that have other candidates; those of equal class have equal ones.
	Class string
	// Refresh lists the candidates of the class in a later snapshot. It is called while the request waits,
	// under the gate's lock, and must be quick.
	Refresh func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint
	// Waits is called when the request does not go at once; nil for nobody.
	Waits func()
	// Story is filled in before Waits is called and before Enter returns; nil for nobody.
	Story *Story
	Now   time.Time
	// Stale is the age beyond which a signal counts as unknown.
	Stale time.Duration
}

// Gate admits requests.
type Gate interface {
	// Enter returns when the request may go, with an empty reason, or when it may not. It returns early
	// when ctx ends. The ticket is the caller's to end.
	Enter(ctx context.Context, a *Ask) (Ticket, Reason)
	// Begin is Enter without a goroutine that waits: decided is told how the wait ended, once, perhaps before Begin
	// returns. It is called under the gate's lock, must be quick and not call the gate.
	Begin(a *Ask, decided func(Ticket, Reason))
	// Kick tells that there may be room: an endpoint was released, or told news.
	Kick()
	// Waiting is how many requests wait.
	Waiting() int
	// RetryAfter is when a refused request should come again.
	RetryAfter() time.Duration
	// Close refuses whoever waits and whoever comes: we are leaving.
	Close()
}

// Ticket is a request's right to go. The zero Ticket is one that no queue gave.
type Ticket struct {
	c *Controller
	w *waiter
}

// Legacy sheds requests of negative priority while the pool is saturated and lets all others
// pass: no queue, no fairness.
type Legacy struct {
	// QueueDepth is the number of waiting requests that makes an endpoint full.
	QueueDepth float64
	// KVUsage is the used share of the KV cache that makes an endpoint full.
	KVUsage float64
	// Detector says how full endpoints are instead, where it is not nil.
	Detector Detector

	mu sync.Mutex // under which the detector is asked
}

// NewLegacy returns the gate with the field's thresholds.
func NewLegacy() *Legacy { return &Legacy{QueueDepth: 5, KVUsage: 0.8} }

// Enter implements [Gate].
func (g *Legacy) Enter(_ context.Context, a *Ask) (Ticket, Reason) {
	switch {
	case len(a.Candidates) == 0:
		return Ticket{}, NoEndpoints
	case a.Priority < 0 && g.Saturation(a) >= 1:
		return Ticket{}, Saturated
	}
	return Ticket{}, ""
}

// Begin implements [Gate].
func (g *Legacy) Begin(a *Ask, decided func(Ticket, Reason)) {
	decided(g.Enter(context.Background(), a))
}

// Kick implements [Gate]; nobody waits here.
func (g *Legacy) Kick() {}

// Waiting implements [Gate].
func (g *Legacy) Waiting() int { return 0 }

// RetryAfter implements [Gate].
func (g *Legacy) RetryAfter() time.Duration { return time.Second }

// Close implements [Gate].
func (g *Legacy) Close() {}

// Saturation is the mean over the candidates of max(waiting/QueueDepth, used/KVUsage); at 1 the
// pool is full. Candidates whose signals are unknown are left out: missing data alone never
// stops a pool. With none known it is 0. A Detector has its own way with them.
func (g *Legacy) Saturation(a *Ask) float64 {
	if g.Detector != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		var sum, weights float64
		for _, e := range a.Candidates {
			fill, weight := g.Detector.Fill(View{Endpoint: e, Requests: e.Load.Requests(), Tokens: e.Load.Tokens(), Now: a.Now, Stale: a.Stale})
			sum, weights = sum+fill*weight, weights+weight
		}
		if weights == 0 {
			return 0
		}
		return sum / weights
	}
	mean, _ := fleet.Saturation(a.Candidates, a.Now, a.Stale, g.QueueDepth, g.KVUsage)
	return mean
}
