// SPDX-License-Identifier: Apache-2.0

// Package policy holds the policies of flow control, one file each, under the names of the field.
package policy

import (
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/plugin"
)

// A FairnessMaker makes the fairness policy of each band.
type FairnessMaker interface{ New() flow.Fairness }

// Fairness are the makers of fairness policies by type name.
var Fairness = plugin.Set[FairnessMaker]{
	"global-strict-fairness-policy": func() FairnessMaker { return &GlobalStrictFairnessPolicy{} },
	"round-robin-fairness-policy":   func() FairnessMaker { return &RoundRobinFairnessPolicy{} },
	"program-aware-fairness": func() FairnessMaker {
		return &ProgramAwareFairness{Strategy: "las", LASWeightService: 0.8, LASWeightHeadWait: 0.2, LASHalfLifeSeconds: 60,
			EvictionTTLSeconds: 3600, EvictionSweepSeconds: 300}
	},
	"vtc-fairness-policy": func() FairnessMaker { return &VTCFairnessPolicy{defaultCharges()} },
	"dlpm-fairness-policy": func() FairnessMaker {
		return &DLPMFairnessPolicy{Charges: defaultCharges(), SlackTokens: 200_000}
	},
}

func defaultCharges() Charges { return Charges{OutputWeight: 2, DefaultWeight: 1} }

// Orderings are the ordering policies by type name.
var Orderings = plugin.Set[flow.Ordering]{
	"fcfs-ordering-policy":         func() flow.Ordering { return &FCFSOrderingPolicy{} },
	"edf-ordering-policy":          func() flow.Ordering { return &EDFOrderingPolicy{} },
	"slo-deadline-ordering-policy": func() flow.Ordering { return &SLODeadlineOrderingPolicy{} },
	"least-uncached-first-ordering-policy": func() flow.Ordering {
		return &LeastUncachedFirstOrderingPolicy{WindowSize: 64, MaxWait: api.Duration(time.Minute), OldestEvery: 8}
	},
}

// Limits are the usage limit policies by type name.
var Limits = plugin.Set[flow.UsageLimit]{
	"static-usage-limit-policy": func() flow.UsageLimit { return &StaticUsageLimitPolicy{Threshold: 1} },
	"priority-holdback-policy": func() flow.UsageLimit {
		return &PriorityHoldbackPolicy{Shape: "linear", Domain: "rank", MaxCeiling: 1}
	},
	"soft-reflective-ceiling-policy": func() flow.UsageLimit { return &SoftReflectiveCeilingPolicy{} },
}

// Detectors are the saturation detectors by type name.
var Detectors = plugin.Set[flow.Detector]{
	"concurrency-detector": func() flow.Detector {
		return &ConcurrencyDetector{MaxConcurrency: 100, MaxTokenConcurrency: 1_000_000, ConcurrencyMode: "requests"}
	},
	"adaptive-detector": func() flow.Detector {
		return &AdaptiveDetector{TargetTTFT: api.Duration(2 * time.Second), TargetTPOT: api.Duration(50 * time.Millisecond),
			StartRequests: 256, StartTokens: 65_536}
	},
	"utilization-detector": func() flow.Detector {
		return &UtilizationDetector{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, UnknownConcurrency: 100}
	},
}

// Evictions are the eviction policies by type name. What they say always happens; they have nothing to be called for.
var Evictions = plugin.Set[any]{
	"sheddable-eviction-filter":                func() any { return &SheddableEvictionFilter{} },
	"priority-then-time-eviction-order-policy": func() any { return &PriorityThenTimeEvictionOrderPolicy{} },
}
