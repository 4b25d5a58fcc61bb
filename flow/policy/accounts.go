// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-project/penstock/flow"
)

// Charges are what tenants are charged for their work.
type Charges struct {
	// OutputWeight is how many tokens of uncached prompt one token of output counts as.
	OutputWeight float64 `json:"outputWeight"`
	// Weights are the weights of tenants by fairness id: one of weight 2 gets twice the work of one of weight 1.
	Weights map[string]float64 `json:"weights"`
	// DefaultWeight is the weight of all other tenants.
	DefaultWeight float64 `json:"defaultWeight"`
}

// Validate reports weights that cannot be.
func (c *Charges) Validate() error {
	if !(c.OutputWeight >= 0) {
		return errors.New("outputWeight: must not be below 0")
	}
	if !(c.DefaultWeight > 0) {
		return errors.New("defaultWeight: must be above 0")
	}
	for tenant, w := range c.Weights {
		if !(w > 0) {
			return fmt.Errorf("weights[%s]: must be above 0", tenant)
		}
	}
	return nil
}

// perRequest is what a request is charged beside its tokens, so that one whose tokens nobody knows counts, too.
const perRequest = 1

// Bounds of what is remembered of tenants that have nothing waiting.
const (
	mostIdle = 4096
	idleFor  = 5 * time.Minute
)

// account is what one tenant was charged, in tokens by its weight.
type account struct {
	tenant string
	used   float64
	weight float64
	flow   *flow.Flow    // nil while it has nothing waiting
	owes   bool          // for dlpm-fairness-policy: it may not go before the next refill
	since  time.Time     // it has nothing waiting since
	idle   link[account] // among those that have nothing waiting
	spare  *account      // the next forgotten one
}

// accounts are the tenants' of one band. One that has nothing waiting is forgotten once it was charged no more
// than who comes anew begins with, after [idleFor], or as the first of more than [mostIdle].
type accounts struct {
	Charges
	by    map[string]*account
	floor float64 // what a tenant that comes has been charged at least
	idle  idle[account]
	spare *account // forgotten ones, for others
}

func newAccounts(c Charges) accounts { return accounts{Charges: c, by: map[string]*account{}} }

// get finds an account, or opens it at the floor, as one that has nothing waiting.
func (s *accounts) get(tenant string, now time.Time) *account {
	if a := s.by[tenant]; a != nil {
		return a
	}
	a := s.spare
	if a == nil {
		a = &account{}
	} else {
		s.spare = a.spare
	}
	weight, ok := s.Weights[tenant]
	if !ok {
		weight = s.DefaultWeight
	}
	*a = account{tenant: tenant, used: s.floor, weight: weight}
	a.idle.of = a
	s.by[tenant] = a
	s.rest(a, now)
	return a
}

// come is told that a tenant has requests from now on. The time in which it had none earns it nothing.
func (s *accounts) come(f *flow.Flow, now time.Time) *account {
	a := s.get(f.Tenant, now)
	s.idle.remove(&a.idle)
	a.flow, a.used = f, max(a.used, s.floor)
	return a
}

// rest is told that a tenant has none from now on.
func (s *accounts) rest(a *account, now time.Time) {
	a.flow, a.since = nil, now
	s.idle.add(&a.idle)
}

// charge adds work to what a tenant was charged, or takes it off. A tenant that was forgotten owed nothing, and
// gets nothing back. It returns nil for it.
func (s *accounts) charge(tenant string, now time.Time, uncached, output int64) *account {
	a, cost := s.by[tenant], float64(uncached)+s.OutputWeight*float64(output)
	if a == nil {
		if cost <= 0 {
			return nil
		}
		a = s.get(tenant, now)
	}
	a.used += cost / a.weight
	s.trim(now)
	return a
}

// trim forgets tenants that no longer matter.
func (s *accounts) trim(now time.Time) {
	for a := s.idle.first(); a != nil; a = s.idle.first() {
		if a.used > s.floor && now.Sub(a.since) < idleFor && s.idle.n <= mostIdle {
			return
		}
		s.idle.remove(&a.idle)
		delete(s.by, a.tenant)
		*a = account{spare: s.spare}
		s.spare = a
	}
}
