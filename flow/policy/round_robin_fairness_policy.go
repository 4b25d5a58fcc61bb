// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/penstock-project/penstock/flow"
)

// RoundRobinFairnessPolicy lets the tenants of a band go in turn, one request each, whatever each sends. A
// tenant that comes anew waits for the end of the round. It takes no parameters.
type RoundRobinFairnessPolicy struct{}

// New implements [FairnessMaker].
func (*RoundRobinFairnessPolicy) New() flow.Fairness { return &roundRobin{} }

// roundRobin is a ring; at is who is next.
type roundRobin struct{ ring flow.Ring }

func (r *roundRobin) Add(f *flow.Flow, _ time.Time)    { r.ring.Add(f) }
func (r *roundRobin) Remove(f *flow.Flow, _ time.Time) { r.ring.Remove(f) }
func (r *roundRobin) Headed(*flow.Flow, time.Time)     {}

func (r *roundRobin) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow {
	f := r.ring.Next()
	for range r.ring.Len() {
		if ok(f) {
			return f
		}
		f = r.ring.After(f)
	}
	return nil
}

func (r *roundRobin) Went(f *flow.Flow, _ time.Time) { r.ring.Turn(f) }

func (r *roundRobin) Charge(string, time.Time, int64, int64) {}
