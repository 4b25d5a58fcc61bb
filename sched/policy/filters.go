// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// What chooses by labels, limits, sessions and places, by type name.

var choosingFilters = plugin.Set[sched.Filter]{
	"by-label":                     func() sched.Filter { return &ByLabel{} },
	"by-label-selector":            func() sched.Filter { return &LabelSelectorFilter{} },
	"decode-filter":                func() sched.Filter { return &DecodeFilter{} },
	"prefill-filter":               func() sched.Filter { return &PrefillFilter{} },
	"encode-filter":                func() sched.Filter { return &EncodeFilter{} },
	"endpoint-attribute-filter":    func() sched.Filter { return &EndpointAttributeFilter{OnMissing: pass} },
	"prefix-cache-affinity-filter": newPrefixCacheAffinityFilter,
	"session-affinity-filter":      func() sched.Filter { return &SessionAffinityFilter{newSessionAffinity()} },
	"multicluster-session-affinity-filter": func() sched.Filter {
		return &SessionAffinityFilter{newSessionAffinity()}
	},
	"topology-affinity-filter":    func() sched.Filter { return &TopologyAffinityFilter{MinAffinity: "host"} },
	"utilization-filter":          func() sched.Filter { return &UtilizationFilter{} },
	"context-length-aware":        func() sched.Filter { return newContextLengthAware() },
	"header-based-testing-filter": func() sched.Filter { return &HeaderBasedTestingFilter{} },
}

var choosingScorers = plugin.Set[sched.Scorer]{
	"session-affinity-scorer":      func() sched.Scorer { return &SessionAffinityScorer{newSessionAffinity()} },
	"topology-affinity-scorer":     func() sched.Scorer { return &TopologyAffinityScorer{} },
	"context-length-aware":         func() sched.Scorer { return newContextLengthAware() },
	"header-label-affinity-scorer": func() sched.Scorer { return &HeaderLabelAffinityScorer{} },
}

var identifying = plugin.Set[sched.Producer]{
	"session-id-producer": func() sched.Producer { return &SessionIDProducer{} },
	"agent-identity":      func() sched.Producer { return &AgentIdentity{} },
}

var screening = plugin.Set[sched.Filter]{
	"disaggregatedset-rollout-screener": func() sched.Filter {
		return &DisaggregatedSetRolloutScreener{RevisionGating: RevisionGating{RevisionLabelKey: revisionLabel, RoleLabelKey: roleOfSetLabel}}
	},
}

var handling = plugin.Set[sched.Handler]{
	"header-profile-handler": func() sched.Handler {
		return &HeaderProfileHandler{HeaderName: "EPP-Profile", DefaultProfile: "decode"}
	},
	"data-parallel-profile-handler": func() sched.Handler { return &DataParallelProfileHandler{PrimaryPort: 8000} },
}

// Reporters are plugins that see nothing but answers, by type name.
var Reporters = plugin.Set[sched.Answerer]{
	"destination-endpoint-served-verifier": func() sched.Answerer { return &DestinationEndpointServedVerifier{} },
}

// Topologies are the plugins that say where endpoints stand, by type name.
var Topologies = plugin.Set[*TopologyExtractor]{
	"topology-extractor": func() *TopologyExtractor { return newTopologyExtractor() },
}
