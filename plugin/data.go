// SPDX-License-Identifier: Apache-2.0

package plugin

// Data is something that one plugin tells and others read, by the field's name for it.
type Data string

// The data of the field.
const (
	PrefixMatch       Data = "PrefixCacheMatchInfo"
	InFlightLoad      Data = "InFlightLoad"
	UncachedTokens    Data = "UncachedRequestTokens"
	LatencyPrediction Data = "LatencyPredictionInfo"
	EncoderMatch      Data = "EncoderCacheMatchInfo"
	TokenizedPrompt   Data = "TokenizedPrompt"
	SessionID         Data = "SessionID"
	AgentIdentity     Data = "AgentIdentity"
	PeerEndpoint      Data = "PeerEndpoint"
	Topology          Data = "Topology"
	Models            Data = "Models"
	ScalarMetric      Data = "ScalarMetricValue"
	WaitingQueue      Data = "WaitingQueueSize"
	RunningRequests   Data = "RunningRequestsSize"
	KVCacheUsage      Data = "KVCacheUsagePercent"
	LoRAModels        Data = "ActiveModels"
	ClusterQueue      Data = "llm-d.ai/multicluster-queue-size"
	ClusterKVCache    Data = "llm-d.ai/multicluster-kv-cache-utilization"
)

// tellers are the plugin types that tell data when nobody says who is to.
var tellers = map[Data]string{
	PrefixMatch:       "approx-prefix-cache-producer",
	InFlightLoad:      "inflight-load-producer",
	UncachedTokens:    "inflight-load-producer",
	LatencyPrediction: "predicted-latency-producer",
	EncoderMatch:      "mm-embeddings-cache-producer",
	TokenizedPrompt:   "token-producer",
	SessionID:         "session-id-producer",
	AgentIdentity:     "agent-identity",
	PeerEndpoint:      "disagg-profile-handler",
	Topology:          "topology-extractor",
	Models:            "models-data-extractor",
	ScalarMetric:      "core-metrics-extractor",
	WaitingQueue:      "core-metrics-extractor",
	RunningRequests:   "core-metrics-extractor",
	KVCacheUsage:      "core-metrics-extractor",
	LoRAModels:        "core-metrics-extractor",
	ClusterQueue:      "multicluster-metrics-extractor",
	ClusterKVCache:    "multicluster-metrics-extractor",
}

// Use is data that a plugin reads.
type Use struct {
	Data Data
	// Optional tells that the plugin works without, too. It still runs after whoever tells it.
	Optional bool
	// Parameter is the path of the parameter that names another plugin as the one who tells; lists
	// on the way are not counted. Empty when only the default is read.
	Parameter string
	// From is the type of the plugin that tells it unless the parameter says otherwise.
	From string
	// When and Is limit the use to plugins whose parameter When has one of the values Is; "" among
	// them stands for one that is not written. Without When it is always read.
	When string
	Is   []string
}

func required(d Data) Use { return Use{Data: d, From: tellers[d]} }

func optional(d Data) Use { return Use{Data: d, From: tellers[d], Optional: true} }

// by names the parameter that redirects the use.
func (u Use) by(parameter string) Use {
	u.Parameter = parameter
	return u
}

// from sets who tells by default.
func (u Use) from(typ string) Use {
	u.From = typ
	return u
}

// when limits the use.
func (u Use) when(parameter string, is ...string) Use {
	u.When, u.Is = parameter, is
	return u
}

// The uses that several plugins have.
var (
	prefix   = required(PrefixMatch).by("prefixMatchInfoProducerName")
	inflight = required(InFlightLoad).by("inFlightLoadProducerName")
	latency  = required(LatencyPrediction).by("latencyPredictionInfoProducerName")
	tokens   = required(TokenizedPrompt)
	session  = optional(SessionID).when("sessionIdConfig.sources.attribute")
	agent    = optional(AgentIdentity).when("sessionIdConfig.sources.attribute")
)

func (e Entry) reads(uses ...Use) Entry {
	e.Consumes = uses
	return e
}

func (e Entry) tells(data ...Data) Entry {
	e.Produces = data
	return e
}
