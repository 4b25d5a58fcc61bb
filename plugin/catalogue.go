// SPDX-License-Identifier: Apache-2.0

package plugin

import "slices"

// Role is what a plugin does in the path of a request, or beside it.
type Role string

// The roles of the field.
const (
	Filter          Role = "filter"
	Scorer          Role = "scorer"
	Picker          Role = "picker"
	ProfileHandler  Role = "profile handler"
	Decider         Role = "decider"
	Producer        Role = "producer"
	Admitter        Role = "admitter"
	Screener        Role = "screener"
	HeaderProcessor Role = "header processor"
	Reporter        Role = "reporter"
	Source          Role = "source"
	Extractor       Role = "extractor"
	Discovery       Role = "discovery"
	Parser          Role = "parser"
	Fairness        Role = "fairness policy"
	Ordering        Role = "ordering policy"
	UsageLimit      Role = "usage limit policy"
	Detector        Role = "saturation detector"
	Eviction        Role = "eviction policy"
)

// Stability is what users may expect of a plugin from release to release.
type Stability string

// The stabilities of the field. Testing is for conformance suites.
const (
	Alpha      Stability = "alpha"
	Beta       Stability = "beta"
	Deprecated Stability = "deprecated"
	Testing    Stability = "testing"
	// Ours is of plugins that only Penstock has: as stable as its releases.
	Ours Stability = "Penstock's own"
)

// Entry describes one plugin type.
type Entry struct {
	// Type is the name in configuration.
	Type string
	// Roles are what it can be used as, the main one first.
	Roles []Role
	// Stability is as the field declares it.
	Stability Stability
	// ReplacedBy is the type to use instead of a deprecated one.
	ReplacedBy string
	// Produces is the data it tells others, Consumes what it reads of others.
	Produces []Data
	Consumes []Use
	// Doc says in one sentence what it does.
	Doc string
}

// Tells reports whether the plugin produces the data.
func (e Entry) Tells(d Data) bool { return slices.Contains(e.Produces, d) }

// Is reports whether the plugin can be used in that role.
func (e Entry) Is(r Role) bool { return slices.Contains(e.Roles, r) }

// Lookup finds a type in the catalogue or among our own.
func Lookup(typ string) (Entry, bool) {
	for _, list := range [][]Entry{catalogue, own} {
		for _, e := range list {
			if e.Type == typ {
				return e, true
			}
		}
	}
	return Entry{}, false
}

// Catalogue lists every plugin type of the field, by role and then in the order of the field's
// own documents. The slice is the caller's.
func Catalogue() []Entry { return slices.Clone(catalogue) }

// Own lists the plugin types that the field does not have. The slice is the caller's.
func Own() []Entry { return slices.Clone(own) }

// Types lists the names of the catalogue and of our own, sorted.
func Types() []string {
	types := make([]string, 0, len(catalogue)+len(own))
	for _, e := range slices.Concat(catalogue, own) {
		types = append(types, e.Type)
	}
	slices.Sort(types)
	return types
}

func entry(typ string, s Stability, doc string, roles ...Role) Entry {
	return Entry{Type: typ, Roles: roles, Stability: s, Doc: doc}
}

func old(typ, use string, doc string, roles ...Role) Entry {
	return Entry{Type: typ, Roles: roles, Stability: Deprecated, ReplacedBy: use, Doc: doc}
}

var catalogue = slices.Concat(scheduling, control, dataLayer, flowControl)

var scheduling = []Entry{
	entry("label-selector-filter", Beta, "Keeps endpoints whose labels match a Kubernetes label selector.", Filter),
	old("by-label", "label-selector-filter", "Keeps endpoints where one label has one of the given values.", Filter),
	old("by-label-selector", "label-selector-filter", "Keeps endpoints whose labels match a label selector.", Filter),
	entry("decode-filter", Beta, "Keeps endpoints that may decode: a decode role in llm-d.ai/role, or no role at all.", Filter),
	entry("prefill-filter", Beta, "Keeps endpoints whose llm-d.ai/role includes prefill.", Filter),
	entry("encode-filter", Beta, "Keeps endpoints whose llm-d.ai/role includes encode.", Filter),
	entry("endpoint-attribute-filter", Alpha, "Keeps endpoints where a scalar attribute passes a comparison with a constant.", Filter).reads(optional(ScalarMetric).by("producer")),
	entry("prefix-cache-affinity-filter", Beta, "Keeps endpoints that hold most of the prompt's prefix, unless they would answer too much later than the others.", Filter).reads(prefix, inflight.when("ttftSource", "", "prefillThroughput"), latency.when("ttftSource", "latencyPredictor")),
	entry("session-affinity-filter", Beta, "Keeps only the endpoint that served this session before, when it is a candidate.", Filter).reads(session, agent),
	entry("slo-headroom-tier-filter", Beta, "Prefers endpoints that are predicted to meet the latency targets, with a small chance for the others.", Filter).reads(latency),
	entry("topology-affinity-filter", Alpha, "Keeps endpoints near the request's peer: same host, rack, zone or region.", Filter).reads(optional(Topology).by("topologyProducerName"), optional(PeerEndpoint)),
	entry("utilization-filter", Alpha, "Drops endpoints where a load signal is above its limit.", Filter).reads(inflight.when("conditions.metric", "active-requests")),
	entry("context-length-aware", Beta, "Fits the request's length to the range of lengths an endpoint is labelled for.", Scorer, Filter).reads(tokens),
	entry("multicluster-session-affinity-filter", Alpha, "Is session-affinity-filter among clusters.", Filter).reads(session, agent),
	entry("header-based-testing-filter", Testing, "Keeps the endpoints that the header test-epp-endpoint-selection lists, in its order.", Filter, Scorer),

	entry("queue-scorer", Beta, "Prefers endpoints with fewer waiting requests, relative to the other candidates.", Scorer).reads(required(WaitingQueue)),
	entry("running-requests-size-scorer", Beta, "Prefers endpoints with fewer running requests, relative to the other candidates.", Scorer).reads(required(RunningRequests)),
	entry("kv-cache-utilization-scorer", Beta, "Prefers endpoints with more free KV cache.", Scorer).reads(required(KVCacheUsage)),
	entry("load-aware-scorer", Beta, "Prefers endpoints whose queue is short against a fixed threshold.", Scorer).reads(optional(WaitingQueue)),
	entry("active-request-scorer", Beta, "Prefers endpoints to which we have fewer requests in flight.", Scorer).reads(inflight),
	entry("token-load-scorer", Beta, "Prefers endpoints with fewer tokens in flight, this request's uncached ones included.", Scorer).reads(inflight, required(UncachedTokens).by("inFlightLoadProducerName")),
	entry("lora-affinity-scorer", Beta, "Prefers endpoints that have the request's LoRA adapter loaded, or room to load it.", Scorer).reads(required(LoRAModels)),
	entry("prefix-cache-scorer", Beta, "Prefers endpoints that hold more of the prompt's prefix in their KV cache.", Scorer).reads(prefix),
	old("precise-prefix-cache-scorer", "prefix-cache-scorer", "Scores cached prefixes known from KV events; now precise-prefix-cache-producer with prefix-cache-scorer.", Scorer).reads(required(PrefixMatch).from("precise-prefix-cache-producer")),
	entry("mm-embeddings-cache-scorer", Beta, "Prefers endpoints that have already encoded the request's images and other media.", Scorer).reads(required(EncoderMatch).by("producerName")),
	entry("no-hit-lru-scorer", Beta, "Spreads requests that nobody has cached to the endpoints that longest had none of them.", Scorer).reads(prefix),
	entry("latency-scorer", Beta, "Scores by the headroom between predicted latency and the latency targets.", Scorer).reads(latency, prefix),
	entry("endpoint-attribute-scorer", Alpha, "Scores a scalar attribute linearly, lower or higher being better.", Scorer).reads(optional(ScalarMetric).by("producer")),
	entry("header-label-affinity-scorer", Alpha, "Prefers endpoints where a label equals the value of a request header.", Scorer),
	entry("topology-affinity-scorer", Alpha, "Prefers endpoints near the request's peer: host, rack, zone, region.", Scorer).reads(optional(Topology).by("topologyProducerName"), optional(PeerEndpoint)),
	entry("session-affinity-scorer", Beta, "Prefers the endpoint that served this session before.", Scorer).reads(session, agent),
	entry("multicluster-queue-scorer", Alpha, "Is queue-scorer among clusters.", Scorer).reads(required(ClusterQueue)),
	entry("multicluster-kv-cache-utilization-scorer", Alpha, "Is kv-cache-utilization-scorer among clusters.", Scorer).reads(required(ClusterKVCache)),
	entry("multicluster-prefix-cache-scorer", Alpha, "Is prefix-cache-scorer among clusters.", Scorer).reads(prefix.from("multicluster-approx-prefix-cache-producer")),

	entry("max-score-picker", Beta, "Takes the candidate with the highest total; equals are decided at random.", Picker),
	entry("random-picker", Beta, "Takes any candidate, whatever its total.", Picker),
	entry("weighted-random-picker", Beta, "Draws a candidate with odds by the totals.", Picker),

	entry("single-profile-handler", Beta, "Runs the only profile there is.", ProfileHandler),
	entry("header-profile-handler", Alpha, "Runs the profile that a request header names.", ProfileHandler),
	entry("data-parallel-profile-handler", Beta, "Runs one profile and names the picked data-parallel rank in a header.", ProfileHandler),
	entry("disagg-profile-handler", Beta, "Runs decode, prefill and encode profiles for disaggregated serving.", ProfileHandler).reads(required(PrefixMatch), tokens).tells(PeerEndpoint),
	old("pd-profile-handler", "disagg-profile-handler", "Runs a decode and, when a decider wants it, a prefill profile.", ProfileHandler).reads(prefix, tokens),
	old("disagg-headers-handler", "disagg-profile-handler", "Writes the headers that name prefill and encode endpoints.", HeaderProcessor),
	old("prefill-header-handler", "disagg-profile-handler", "Writes the header that names the prefill endpoint.", HeaderProcessor),

	entry("always-disagg-pd-decider", Beta, "Sends every request through a separate prefill.", Decider),
	entry("prefix-based-pd-decider", Beta, "Asks for a separate prefill when enough of the prompt is not cached.", Decider),
	entry("always-disagg-multimodal-decider", Beta, "Asks for a separate encode when the request carries media.", Decider),
}

var control = []Entry{
	entry("approx-prefix-cache-producer", Beta, "Guesses who holds which prefix from the routing decisions made so far.", Producer).reads(tokens).tells(PrefixMatch),
	entry("multicluster-approx-prefix-cache-producer", Alpha, "Is approx-prefix-cache-producer among clusters.", Producer).reads(tokens).tells(PrefixMatch),
	entry("burst-prefix-cache-producer", Alpha, "Holds requests for a moment to send those with a common prefix to one endpoint.", Producer).reads(tokens).tells(PrefixMatch),
	entry("precise-prefix-cache-producer", Beta, "Knows who holds which prefix from the engines' KV events.", Producer).reads(tokens).tells(PrefixMatch),
	entry("token-producer", Beta, "Turns the prompt into tokens, or estimates them.", Producer).tells(TokenizedPrompt),
	old("tokenizer", "token-producer", "Turns the prompt into tokens.", Producer).tells(TokenizedPrompt),
	entry("inflight-load-producer", Beta, "Counts the requests and tokens in flight on each endpoint.", Producer).reads(tokens, optional(PrefixMatch).by("prefixMatchInfoProducerName")).tells(InFlightLoad, UncachedTokens),
	entry("session-id-producer", Beta, "Takes the session's id from a header or a cookie.", Producer).tells(SessionID),
	entry("mm-embeddings-cache-producer", Beta, "Remembers which endpoint has encoded which media.", Producer).reads(tokens).tells(EncoderMatch),
	entry("p2p-source-producer", Alpha, "Names a peer from which the engine can pull cached KV blocks.", Producer).reads(prefix),
	entry("predicted-latency-producer", Beta, "Asks the latency predictor for time to first token and time per token on each endpoint.", Producer).reads(prefix, inflight, tokens,
		required(EncoderMatch).by("encoderCacheMatchInfoProducerName").when("useEncoderCacheFeatures", "true")).tells(LatencyPrediction),

	entry("latency-slo-admitter", Beta, "Refuses sheddable requests that no endpoint is predicted to serve in time.", Admitter).reads(latency),
	entry("probabilistic-admitter", Beta, "Refuses sheddable requests with odds that rise with saturation.", Admitter),
	entry("disaggregatedset-rollout-screener", Alpha, "Keeps all legs of a request on one revision while a DisaggregatedSet rolls out.", Screener),
	entry("agent-identity", Alpha, "Derives the identity of an agent's session from the headers that agents send.", HeaderProcessor, Producer).tells(AgentIdentity),
	entry("request-attribute-reporter", Beta, "Reports a number computed from a response's usage as dynamic metadata.", Reporter),
	entry("destination-endpoint-served-verifier", Testing, "Copies the endpoint that served into a response header, for conformance tests.", Reporter),

	entry("openai-parser", Beta, "Reads OpenAI chat, completions, embeddings, responses, conversations and images.", Parser),
	entry("anthropic-parser", Beta, "Reads Anthropic messages.", Parser),
	entry("vllmhttp-parser", Beta, "Reads vLLM's tokens-in generate API.", Parser),
	entry("sglanghttp-parser", Beta, "Reads SGLang's generate API.", Parser),
	entry("vllmgrpc-parser", Beta, "Reads vLLM's gRPC engine API.", Parser),
	entry("vertexai-parser", Beta, "Reads Vertex AI's prediction service.", Parser),
	entry("passthrough-parser", Beta, "Takes any request without looking into it.", Parser),
}

var dataLayer = []Entry{
	entry("metrics-data-source", Beta, "Scrapes each endpoint's Prometheus page.", Source),
	entry("multicluster-metrics-data-source", Alpha, "Scrapes each cluster's Prometheus page.", Source),
	entry("models-data-source", Beta, "Asks each endpoint for its /v1/models.", Source),
	entry("dcgm-data-source", Alpha, "Scrapes NVIDIA's DCGM exporter beside each endpoint.", Source),
	entry("k8s-notification-source", Beta, "Tells of changes to Kubernetes objects of one kind.", Source),
	entry("endpoint-notification-source", Beta, "Tells of endpoints that come, change and go.", Source),
	entry("core-metrics-extractor", Beta, "Takes queue, KV cache and LoRA signals out of an engine's metrics.", Extractor).tells(WaitingQueue, RunningRequests, KVCacheUsage, LoRAModels, ScalarMetric),
	entry("multicluster-metrics-extractor", Alpha, "Takes a cluster's averages out of its metrics.", Extractor).tells(ClusterQueue, ClusterKVCache),
	entry("models-data-extractor", Beta, "Takes the list of models out of /v1/models.", Extractor).tells(Models),
	entry("dcgm-extractor", Alpha, "Takes GPU utilization out of DCGM's metrics.", Extractor).tells(ScalarMetric),
	entry("topology-extractor", Alpha, "Takes host, rack, zone and region out of labels.", Extractor).tells(Topology),
	entry("file-discovery", Beta, "Reads endpoints from a file.", Discovery),
	entry("k8s-peer-discovery", Alpha, "Finds the other replicas of the picker as Kubernetes pods.", Discovery),
	entry("multicluster-file-discovery", Alpha, "Reads clusters from a file.", Discovery),
}

var flowControl = []Entry{
	entry("global-strict-fairness-policy", Beta, "Serves the band's best head of queue, whoever owns it.", Fairness),
	entry("round-robin-fairness-policy", Beta, "Serves the flows of a band in turn.", Fairness),
	entry("program-aware-fairness", Beta, "Serves the flow that has attained the least service, weighed with how long it waits.", Fairness),
	entry("fcfs-ordering-policy", Beta, "Orders a flow by arrival.", Ordering),
	entry("edf-ordering-policy", Beta, "Orders a flow by the time at which a request expires.", Ordering),
	entry("slo-deadline-ordering-policy", Beta, "Orders a flow by the deadline that the TTFT target sets.", Ordering),
	entry("static-usage-limit-policy", Beta, "Gives every band the same ceiling of saturation.", UsageLimit),
	entry("priority-holdback-policy", Alpha, "Lowers the ceiling with the priority.", UsageLimit),
	entry("soft-reflective-ceiling-policy", Alpha, "Opens lower bands for a share of the time that falls with saturation.", UsageLimit),
	entry("utilization-detector", Beta, "Measures saturation by engines' queues and KV cache.", Detector, Filter),
	entry("concurrency-detector", Beta, "Measures saturation by requests or tokens in flight.", Detector, Filter).reads(required(InFlightLoad)),
	entry("sheddable-eviction-filter", Alpha, "Lets only running requests of negative priority be evicted.", Eviction),
	entry("priority-then-time-eviction-order-policy", Alpha, "Evicts the lowest priority first, then the youngest.", Eviction),
}
