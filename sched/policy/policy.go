// SPDX-License-Identifier: Apache-2.0

// Package policy holds the scheduling plugins, one file each, under the names of the field.
package policy

import (
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// Filters are the filters by type name.
var Filters = plugin.Join(plugin.Set[sched.Filter]{
	"label-selector-filter": func() sched.Filter { return &LabelSelectorFilter{} },
}, choosingFilters)

// Scorers are the scorers by type name.
var Scorers = plugin.Join(loadScorers, ownScorers, choosingScorers, plugin.Set[sched.Scorer]{
	"queue-scorer":                func() sched.Scorer { return &QueueScorer{} },
	"kv-cache-utilization-scorer": func() sched.Scorer { return &KVCacheUtilizationScorer{} },
	"prefix-cache-scorer":         func() sched.Scorer { return &PrefixCacheScorer{MatchLengthScaleTokens: 8192} },
})

// Pickers are the pickers by type name.
var Pickers = plugin.Join(ownPickers, plugin.Set[sched.Picker]{
	"max-score-picker":       func() sched.Picker { return &MaxScorePicker{} },
	"random-picker":          func() sched.Picker { return &RandomPicker{} },
	"weighted-random-picker": func() sched.Picker { return &WeightedRandomPicker{} },
})

// Producers are the producers by type name.
var Producers = plugin.Join(loadProducers, identifying)

// Screeners are the screeners by type name.
var Screeners = plugin.Join(screening)

// Admitters are the admitters by type name.
var Admitters = plugin.Join(loadAdmitters)

// Handlers are the profile handlers by type name.
var Handlers = plugin.Join(plugin.Set[sched.Handler]{
	"single-profile-handler": func() sched.Handler { return &SingleProfileHandler{} },
}, handling)

// SingleProfileHandler runs the only profile there is. It takes no parameters.
type SingleProfileHandler struct{}

// Choose implements [sched.Handler].
func (*SingleProfileHandler) Choose(_ *sched.Cycle, profiles []*sched.Profile) (*sched.Profile, string) {
	return profiles[0], ""
}
