// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	"github.com/penstock-project/penstock/fleet"
)

// Rule is the pool's rule for requests whose clients ask for the model, "" when they name none;
// nil when there is no rule. One for exactly that model comes before one for all.
func Rule(p *fleet.Pool, model string) *fleet.Rewrite {
	if p == nil {
		return nil
	}
	if r := p.Rewrites.Exact[model]; r != nil {
		return r
	}
	return p.Rewrites.All
}

// Target chooses one of a rule's models by their weights. Chance gives a number from 0 to n-1;
// it is not asked when there is only one.
func Target(r *fleet.Rewrite, chance func(n int) int) string {
	total := 0
	for _, t := range r.Targets {
		total += t.Weight
	}
	switch {
	case len(r.Targets) == 1:
		return r.Targets[0].Model
	case total == 0:
		return r.Targets[chance(len(r.Targets))].Model
	}
	at := chance(total)
	for _, t := range r.Targets {
		if at < t.Weight {
			return t.Model
		}
		at -= t.Weight
	}
	return "" // only for a chance outside its range
}

// Serves reports whether the pool may have the model: an endpoint lists it, or some endpoint has not
// told what it serves, or there is none.
func Serves(p *fleet.Pool, model string) bool {
	for _, e := range p.Endpoints {
		if e.Models == nil || slices.Contains(e.Models, model) {
			return true
		}
	}
	return len(p.Endpoints) == 0
}

// Names lists the models that clients may ask for, sorted: what endpoints serve and what rules name
// of which a target is served. As long as no endpoint has told its models there are none.
func Names(s *fleet.Snapshot) []string {
	names := s.Models()
	if len(names) == 0 {
		return nil
	}
	for _, p := range s.Pools {
		for name, r := range p.Rewrites.Exact {
			if slices.ContainsFunc(r.Targets, func(t fleet.Target) bool { return Serves(p, t.Model) }) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
