// SPDX-License-Identifier: Apache-2.0

package api

// EndpointPickerConfig is llm-d.ai/v1 EndpointPickerConfig and its predecessors: how a pool
// decides. Keys that v1 moved are here under both names.
type EndpointPickerConfig struct {
	// Metadata.Name is ours: it binds the document to the pools whose endpointPickerRef.name it is.
	Meta
	FeatureGates       []string            `json:"featureGates"`
	Plugins            []PluginSpec        `json:"plugins"`
	SchedulingProfiles []SchedulingProfile `json:"schedulingProfiles"`
	RequestHandler     *RequestHandler     `json:"requestHandler"`
	DataLayer          *DataLayer          `json:"dataLayer"`
	FlowControl        *FlowControl        `json:"flowControl"`
	// SaturationDetector and Parser are the deprecated places of
	// flowControl.saturationDetector and requestHandler.parsers.
	SaturationDetector *PluginRef `json:"saturationDetector"`
	Parser             *PluginRef `json:"parser"`
}

// PluginSpec declares a plugin.
type PluginSpec struct {
	// Name is by what others refer to it; Type when empty.
	Name       string `json:"name"`
	Type       string `json:"type"`
	Parameters Raw    `json:"parameters"`
}

// PluginRef refers to a declared plugin by its name.
type PluginRef struct {
	PluginRef string `json:"pluginRef"`
}

// SchedulingProfile is a named list of filters, scorers and a picker.
type SchedulingProfile struct {
	Name    string          `json:"name"`
	Plugins []ProfilePlugin `json:"plugins"`
}

// ProfilePlugin is a plugin's place in a profile.
type ProfilePlugin struct {
	PluginRef string `json:"pluginRef"`
	// Weight is a scorer's; nil is 1.
	Weight *float64 `json:"weight"`
}

// RequestHandler says how requests are read.
type RequestHandler struct {
	Parsers []PluginRef `json:"parsers"`
}

// DataLayer says where signals and endpoints come from.
type DataLayer struct {
	InjectDefaults *bool             `json:"injectDefaults"`
	Sources        []DataSource      `json:"sources"`
	Discovery      *DiscoverySpec    `json:"discovery"`
	CrossReplica   *CrossReplicaSpec `json:"crossReplica"`
	PeerDiscovery  *PluginRef        `json:"peerDiscovery"`               // before v1: discovery.peers
	Syncer         string            `json:"crossReplicaSyncerPluginRef"` // before v1: crossReplica.syncerPluginRef
	SyncInterval   *Duration         `json:"crossReplicaSyncInterval"`    // before v1: crossReplica.syncInterval
}

// DataSource is a source and the extractors that read what it brings.
type DataSource struct {
	PluginRef  string      `json:"pluginRef"`
	Extractors []PluginRef `json:"extractors"`
}

// DiscoverySpec says who tells of endpoints and peers.
type DiscoverySpec struct {
	PluginRef string     `json:"pluginRef"` // before v1: endpoints.pluginRef
	Endpoints *PluginRef `json:"endpoints"`
	Peers     *PluginRef `json:"peers"`
}

// CrossReplicaSpec says how replicas share state.
type CrossReplicaSpec struct {
	SyncerPluginRef string    `json:"syncerPluginRef"`
	SyncInterval    *Duration `json:"syncInterval"`
	PublishTimeout  *Duration `json:"publishTimeout"`
}

// FlowControl is the queue in front of the endpoints of a pool. It works where featureGates has flowControl; without the
// gate, requests of negative priority are refused while the pool is saturated, and all others go at once.
type FlowControl struct {
	// MaxBytes bounds the memory of all requests that wait: bodies, headers and what is kept of each, about 3Ki; 0 is no bound.
	MaxBytes *Quantity `json:"maxBytes"`
	// MaxRequests bounds how many requests wait; 0 is no bound. Beyond it, and beyond maxBytes, a request takes the place of
	// one of lower priority, or else is refused.
	MaxRequests *Quantity `json:"maxRequests"`
	// DefaultRequestTTL is how long a request waits; 0s is no bound. A caller who is trusted may ask for less in a header.
	DefaultRequestTTL *Duration `json:"defaultRequestTTL"`
	// NoEndpointRequestTTL is how long a request waits while the pool has no endpoints; 0s is no bound. It is defaultRequestTTL
	// where only that is written. Time that passed while there were endpoints does not count, nor the other way round.
	NoEndpointRequestTTL *Duration `json:"noEndpointRequestTTL"`
	// DefaultPriorityBand is how bands work that are not under priorityBands: there is one for each priority that comes.
	DefaultPriorityBand *PriorityBand `json:"defaultPriorityBand"`
	// DefaultNegativePriorityBand is the same for priorities below 0; where it is not written, defaultPriorityBand holds for them, too.
	DefaultNegativePriorityBand *PriorityBand `json:"defaultNegativePriorityBand"`
	// PriorityBands are the bands of single priorities, in any order, each priority once.
	PriorityBands []PriorityBand `json:"priorityBands"`
	// UsageLimitPolicyPluginRef names the policy that keeps room for higher priorities.
	UsageLimitPolicyPluginRef string `json:"usageLimitPolicyPluginRef"`
	// SaturationDetector names the detector that says which endpoints have room.
	SaturationDetector *PluginRef `json:"saturationDetector"`
	// EnableEviction lets requests of negative priority be taken back after dispatch when ones of higher priority wait: they end with
	// 429 and evicted, and their owner sends them again.
	EnableEviction bool `json:"enableEviction"`
}

// PriorityBand is all requests of one priority. Each tenant has a queue of its own in it.
type PriorityBand struct {
	// Priority is the band's, as InferenceObjectives give it; higher goes first, and below 0 may be shed.
	Priority int32 `json:"priority"`
	// MaxBytes bounds the memory of the requests that wait in the band; 0 is the default, too.
	MaxBytes *Quantity `json:"maxBytes"`
	// MaxRequests bounds how many requests wait in the band; 0 is the default, too.
	MaxRequests *Quantity `json:"maxRequests"`
	// FairnessPolicyRef names the policy that says which tenant is next.
	FairnessPolicyRef string `json:"fairnessPolicyRef"`
	// OrderingPolicyRef names the policy that orders the requests of one tenant.
	OrderingPolicyRef string `json:"orderingPolicyRef"`
	// RequestTTL, ours, is how long a request waits in this band, instead of defaultRequestTTL; 0s is no bound.
	RequestTTL *Duration `json:"requestTTL"`
	// MinShare, ours, is the share of all dispatches that the band gets at least while requests wait in it, 0 to 1; all bands together have
	// at most 1.
	MinShare float64 `json:"minShare"`
}
