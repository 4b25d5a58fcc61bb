// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
)

// Next gives up the current endpoint, which failed before a byte of its answer, and moves the
// reservation to the next one. It returns nil when none is left.
func (x *Exchange) Next() *fleet.Endpoint {
	if x.order == nil || x.ended {
		return nil
	}
	x.failed(time.Now(), true, "the connection failed before an answer")
	x.hold.Release()
	if x.at+1 >= len(x.order) {
		return nil
	}
	x.at++
	x.out.Retries++
	e := x.order[x.at]
	x.move(e)
	return e
}

// Served is told the address that the data plane says really served.
func (x *Exchange) Served(address string) {
	if address == "" || x.order == nil || x.ended || address == x.out.Address {
		return
	}
	for i, e := range x.order {
		if e.Address == address {
			x.at = i
			x.move(e)
			return
		}
	}
	x.out.Address = address
}

// move gives the request's share to another endpoint, which also has its prompt from now on.
func (x *Exchange) move(e *fleet.Endpoint) {
	x.hold.Release()
	now := time.Now()
	work, output := int64(x.out.EstimatedTokens), int64(0)
	chosen := e // as plugins know it, at its own address
	if c := x.cycle; c != nil {
		if i := slices.IndexFunc(c.Candidates, func(o *fleet.Endpoint) bool { return o.Load == e.Load }); i >= 0 {
			chosen = c.Candidates[i]
			work, output = c.Work(i)
			x.out.PredictedCached = int(c.Cached("", i))
		}
	}
	x.hold = x.ticket.Force(e, now, work, output)
	e.Load.Probe(now)
	x.name(e)
	if x.cycle != nil {
		x.tell(x.cycle, chosen)
		x.sets(x.cycle)
	}
}

// failed records that the current endpoint failed.
func (x *Exchange) failed(now time.Time, hard bool, cause string) {
	e := x.order[x.at]
	x.out.Attempts = append(x.out.Attempts, observe.Attempt{Endpoint: e.ID.String(), Address: e.Address, Cause: cause})
	if e.Load.Fail(now, x.g.Health(), hard, cause) {
		x.g.Log.Warn("endpoint ejected: it is passed over for a while", slog.String("endpoint", e.ID.String()),
			slog.String("address", e.Address), slog.String("cause", cause), slog.String("id", x.out.ID))
		x.g.Observer.Ejected()
	}
}

func (x *Exchange) name(e *fleet.Endpoint) { x.out.Endpoint, x.out.Address = e.ID.String(), e.Address }

// Unavailable is the answer when no endpoint could be reached.
func (x *Exchange) Unavailable() *Refusal { return noEndpoints() }
