// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// ownScorers and ownPickers are Penstock's own plugins, and those that decide as other projects' routers do.
var (
	ownScorers = plugin.Set[sched.Scorer]{
		"priced-miss-scorer": func() sched.Scorer {
			return &PricedMissScorer{RequestTokens: 64, KVBarrier: 0.15, MaxHitRate: 0.95}
		},
		"least-latency-scorer": func() sched.Scorer { return &LeastLatencyScorer{PendingFactor: 0.1} },
		"chwbl-scorer":         func() sched.Scorer { return &CHWBLScorer{PrefixTokens: 256, LoadBound: 1.25} },
		"sglang-cache-aware-scorer": func() sched.Scorer {
			return &SGLangCacheAwareScorer{CacheThreshold: 0.5, BalanceAbsThreshold: 32, BalanceRelThreshold: 1.1}
		},
		"dynamo-scorer":  func() sched.Scorer { return &DynamoScorer{OverlapScoreCredit: 1, PrefillLoadScale: 1} },
		"lmetric-scorer": func() sched.Scorer { return &LMetricScorer{} },
		"aibrix-prefix-cache-scorer": func() sched.Scorer {
			return &AIBrixPrefixCacheScorer{StandardDeviationFactor: 1, ImbalanceMinGap: 8, ImbalanceFactor: 2}
		},
		"preble-scorer": func() sched.Scorer {
			return &PrebleScorer{MatchThreshold: 0.5, WindowSeconds: 180, OutputTokens: 45, SecondsPerOutputToken: 0.15}
		},
	}
	ownPickers = plugin.Set[sched.Picker]{
		"power-of-two-picker": func() sched.Picker { return &PowerOfTwoPicker{Choices: 2} },
		"round-robin-picker":  func() sched.Picker { return &RoundRobinPicker{} },
		"softmax-picker":      func() sched.Picker { return &SoftmaxPicker{} },
	}
)
