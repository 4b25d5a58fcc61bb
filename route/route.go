// SPDX-License-Identifier: Apache-2.0

// Package route answers: which pool is it for?
//
// Today the model in the body decides, as the endpoints' /v1/models tell; hosts, paths,
// headers and weights come to stand here.
package route

import (
	"slices"

	"github.com/penstock-project/penstock/fleet"
)

// Ask is what a route is chosen by.
type Ask struct {
	// Model is the body's model, empty when there is none.
	Model string
	// Plain leaves the pools' rules aside: Model is what endpoints are to be asked for.
	Plain bool
	// Strict refuses a model that no endpoint serves also where there is only one pool.
	Strict bool
}

// Pool chooses the pool. When there is none it tells whether that is because nobody
// serves the model; else there is no pool at all.
//
// A request without a model goes to the first pool that has endpoints. So does one whose model is
// not known while some pool has not told what it serves, or may load adapters that it does not list. A pool's rules make models known, too: one for
// just that model when nobody serves it, one for all models when nobody could.
func Pool(s *fleet.Snapshot, a Ask) (pool *fleet.Pool, unknownModel bool) {
	if len(s.Pools) == 0 {
		return nil, false
	}
	if len(s.Pools) == 1 && (a.Model == "" || !a.Strict) {
		return s.Pools[0], false
	}
	var first, named, untold, all *fleet.Pool
	for _, p := range s.Pools {
		if first == nil && len(p.Endpoints) > 0 {
			first = p
		}
		if a.Model == "" {
			continue
		}
		if !a.Plain {
			if named == nil && p.Rewrites.Exact[a.Model] != nil {
				named = p
			}
			if all == nil && p.Rewrites.All != nil {
				all = p
			}
		}
		told := true
		for _, e := range p.Endpoints {
			if slices.Contains(e.Models, a.Model) || slices.Contains(e.Adapters, a.Model) {
				return p, false
			}
			if e.Models == nil || e.MaxAdapters > 0 { // it may load what nobody lists
				told = false
			}
		}
		if untold == nil && (!told || len(p.Endpoints) == 0) {
			untold = p
		}
	}
	switch {
	case a.Model == "" && first != nil:
		return first, false
	case a.Model == "":
		return s.Pools[0], false
	case named != nil:
		return named, false
	case untold != nil:
		return untold, false
	case all != nil:
		return all, false
	}
	return nil, true
}

// Serving clears keep for the endpoints that told what they serve and do not list the model, and returns how
// many those are. When none lists it, all stay: an engine knows best what it can load.
func Serving(endpoints []*fleet.Endpoint, model string, keep []bool) int {
	others, listed := 0, false
	for _, e := range endpoints {
		if slices.Contains(e.Models, model) {
			listed = true
		} else if e.Models != nil {
			others++
		}
	}
	if !listed || others == 0 {
		return 0
	}
	for i, e := range endpoints {
		if e.Models != nil && !slices.Contains(e.Models, model) {
			keep[i] = false
		}
	}
	return others
}
