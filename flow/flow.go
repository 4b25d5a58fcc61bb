// SPDX-License-Identifier: Apache-2.0

// Package flow answers: may it go now?
//
// A [Gate] stands between the parsed request and the scheduler. The queues in front of the
// fleet come to stand here; the gate of today is [Legacy], which is what the field does
// when flow control is off.
package flow

import (
	"context"
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

// Ask is what a gate sees of a request.
type Ask struct {
	// Priority comes from the request's objective; higher goes first, below 0 may be shed.
	Priority int
	// Tenant is the fairness id.
	Tenant string
	// Bytes is the memory that the request holds.
	Bytes int64
	// Candidates are the endpoints it could go to.
	Candidates []*fleet.Endpoint
	Now        time.Time
	// Stale is the age beyond which a signal counts as unknown.
	Stale time.Duration
}

// Gate admits requests.
type Gate interface {
	// Enter returns when the request may go, with an empty reason, or when it may not. It returns early
	// when ctx ends.
	Enter(ctx context.Context, a Ask) Reason
}

// Legacy sheds requests of negative priority while the pool is saturated and lets all others
// pass: no queue, no fairness.
type Legacy struct {
	// QueueDepth is the number of waiting requests that makes an endpoint full.
	QueueDepth float64
	// KVUsage is the used share of the KV cache that makes an endpoint full.
	KVUsage float64
}

// NewLegacy returns the gate with the field's thresholds.
func NewLegacy() *Legacy { return &Legacy{QueueDepth: 5, KVUsage: 0.8} }

// Enter implements [Gate].
func (g *Legacy) Enter(_ context.Context, a Ask) Reason {
	if a.Priority < 0 && g.Saturation(a) >= 1 {
		return Saturated
	}
	return ""
}

// Saturation is the mean over the candidates of max(waiting/QueueDepth, used/KVUsage); at 1 the
// pool is full. Candidates whose signals are unknown are left out: missing data alone never
// stops a pool. With none known it is 0.
func (g *Legacy) Saturation(a Ask) float64 {
	var sum float64
	known := 0
	for _, e := range a.Candidates {
		queue, kv := e.Waiting.Fresh(a.Now, a.Stale), e.KVUsage.Fresh(a.Now, a.Stale)
		if !queue && !kv {
			continue
		}
		var full float64
		if queue {
			full = e.Waiting.Value / g.QueueDepth
		}
		if kv {
			full = max(full, e.KVUsage.Value/g.KVUsage)
		}
		sum += full
		known++
	}
	if known == 0 {
		return 0
	}
	return sum / float64(known)
}
