// SPDX-License-Identifier: Apache-2.0

// Package policy holds the policies of flow control, one file each, under the names of the field.
package policy

import (
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/plugin"
)

// A FairnessMaker makes the fairness policy of each band.
type FairnessMaker interface{ New() flow.Fairness }

// Fairness are the makers of fairness policies by type name.
var Fairness = plugin.Set[FairnessMaker]{
	"global-strict-fairness-policy": func() FairnessMaker { return &GlobalStrictFairnessPolicy{} },
	"round-robin-fairness-policy":   func() FairnessMaker { return &RoundRobinFairnessPolicy{} },
}

// Orderings are the ordering policies by type name.
var Orderings = plugin.Set[flow.Ordering]{
	"fcfs-ordering-policy":         func() flow.Ordering { return &FCFSOrderingPolicy{} },
	"edf-ordering-policy":          func() flow.Ordering { return &EDFOrderingPolicy{} },
	"slo-deadline-ordering-policy": func() flow.Ordering { return &SLODeadlineOrderingPolicy{} },
}

// Limits are the usage limit policies by type name.
var Limits = plugin.Set[flow.UsageLimit]{
	"static-usage-limit-policy": func() flow.UsageLimit { return &StaticUsageLimitPolicy{Threshold: 1} },
}

// Detectors are the saturation detectors by type name.
var Detectors = plugin.Set[flow.Detector]{
	"concurrency-detector": func() flow.Detector {
		return &ConcurrencyDetector{MaxConcurrency: 100, MaxTokenConcurrency: 1_000_000, ConcurrencyMode: "requests"}
	},
	"utilization-detector": func() flow.Detector { return &UtilizationDetector{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8} },
}
