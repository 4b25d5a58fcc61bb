// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

var loadScorers = plugin.Set[sched.Scorer]{
	"running-requests-size-scorer": func() sched.Scorer { return &RunningRequestsSizeScorer{} },
	"load-aware-scorer":            func() sched.Scorer { return &LoadAwareScorer{Threshold: 128} },
	"active-request-scorer":        func() sched.Scorer { return &ActiveRequestScorer{MaxBusyScore: 1} },
	"token-load-scorer":            func() sched.Scorer { return &TokenLoadScorer{QueueThresholdTokens: 4194304} },
	"lora-affinity-scorer":         func() sched.Scorer { return &LoraAffinityScorer{} },
	"precise-prefix-cache-scorer":  func() sched.Scorer { return &PrecisePrefixCacheScorer{usualKVIndexing()} },
	"no-hit-lru-scorer":            func() sched.Scorer { return &NoHitLRUScorer{LRUSize: 1024} },
	"mm-embeddings-cache-scorer":   func() sched.Scorer { return &MMEmbeddingsCacheScorer{} },
	"endpoint-attribute-scorer":    func() sched.Scorer { return &EndpointAttributeScorer{} },
	"multicluster-queue-scorer":    func() sched.Scorer { return &MulticlusterQueueScorer{} },
	"multicluster-kv-cache-utilization-scorer": func() sched.Scorer {
		return &MulticlusterKVCacheUtilizationScorer{}
	},
	"multicluster-prefix-cache-scorer": func() sched.Scorer {
		return &MulticlusterPrefixCacheScorer{PrefixCacheScorer{MatchLengthScaleTokens: 8192}}
	},
}

var loadProducers = plugin.Set[sched.Producer]{
	"approx-prefix-cache-producer": func() sched.Producer {
		p := newApproxPrefixCacheProducer()
		return &p
	},
	multiclusterApprox: func() sched.Producer {
		return &MulticlusterApproxPrefixCacheProducer{newApproxPrefixCacheProducer()}
	},
	"precise-prefix-cache-producer": func() sched.Producer { return newPrecisePrefixCacheProducer() },
	"burst-prefix-cache-producer": func() sched.Producer {
		return &BurstPrefixCacheProducer{WindowDurationMs: 100, MaxPerReplica: -1, BlockSizeTokens: 64, MaxBatchSize: 1000, BalanceBy: "requests"}
	},
	"token-producer": func() sched.Producer { return &TokenProducer{} },
	"tokenizer":      func() sched.Producer { return &Tokenizer{} },
	"inflight-load-producer": func() sched.Producer {
		return &InflightLoadProducer{OutputRatio: 1.5, SyncCrossReplicaState: true}
	},
	"mm-embeddings-cache-producer": func() sched.Producer { return newMMEmbeddingsCacheProducer() },
	"p2p-source-producer": func() sched.Producer {
		return &P2PSourceProducer{MinCachedTokenDelta: 1, PrefillProfileName: "prefill"}
	},
}

var loadAdmitters = plugin.Set[sched.Admitter]{
	"probabilistic-admitter": func() sched.Admitter {
		return &ProbabilisticAdmitter{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, Power: 5, K: 300}
	},
}
