// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/penstock-project/penstock/flow"
)

// VTCFairnessPolicy shares work and not requests: of the tenants that wait the one goes that was charged least,
// by virtual token counters.
//
// A request costs 1 + uncached prompt tokens + outputWeight·output tokens, divided by its tenant's weight: when it goes
// by estimate, and once it ended by what it really was. A tenant that comes anew, or comes back, begins at the least
// of those that wait, so that it neither catches up on the time in which it wanted nothing nor pays for it. Each
// band counts for itself. A tenant without requests is forgotten when its counter no longer matters, and of
// very many the longest idle first.
type VTCFairnessPolicy struct{ Charges }

// New implements [FairnessMaker].
func (p *VTCFairnessPolicy) New() flow.Fairness { return &vtc{accounts: newAccounts(p.Charges)} }

// vtc is a heap of flows by their counters.
type vtc struct {
	accounts
	heap flow.Heap
}

func (v *vtc) Add(f *flow.Flow, now time.Time) {
	f.Score = v.come(f, now).used
	v.heap.Push(f)
	v.settle()
}

func (v *vtc) Remove(f *flow.Flow, now time.Time) {
	v.heap.Remove(f)
	v.rest(v.by[f.Tenant], now)
	v.settle()
}

func (v *vtc) Headed(f *flow.Flow, _ time.Time) { v.heap.Fix(f) }

func (v *vtc) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow { return v.heap.First(ok) }

func (v *vtc) Went(f *flow.Flow, now time.Time) { v.counted(v.charge(f.Tenant, now, perRequest, 0)) }

func (v *vtc) Charge(tenant string, now time.Time, uncached, output int64) {
	v.counted(v.charge(tenant, now, uncached, output))
}

// counted brings an account that changed into its place.
func (v *vtc) counted(a *account) {
	if a != nil && a.flow != nil {
		a.flow.Score = a.used
		v.heap.Fix(a.flow)
	}
	v.settle()
}

// settle sets the floor to the least of those that wait; when nobody does it stays.
func (v *vtc) settle() {
	if all := v.heap.All(); len(all) > 0 {
		v.floor = all[0].Score
	}
}
