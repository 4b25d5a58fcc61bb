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

// FlowControl is the queue in front of the endpoints.
type FlowControl struct {
	MaxBytes                    *Quantity      `json:"maxBytes"`
	MaxRequests                 *Quantity      `json:"maxRequests"`
	DefaultRequestTTL           *Duration      `json:"defaultRequestTTL"`
	NoEndpointRequestTTL        *Duration      `json:"noEndpointRequestTTL"`
	DefaultPriorityBand         *PriorityBand  `json:"defaultPriorityBand"`
	DefaultNegativePriorityBand *PriorityBand  `json:"defaultNegativePriorityBand"`
	PriorityBands               []PriorityBand `json:"priorityBands"`
	UsageLimitPolicyPluginRef   string         `json:"usageLimitPolicyPluginRef"`
	SaturationDetector          *PluginRef     `json:"saturationDetector"`
	EnableEviction              bool           `json:"enableEviction"`
}

// PriorityBand is all requests of one priority.
type PriorityBand struct {
	Priority          int32     `json:"priority"`
	MaxBytes          *Quantity `json:"maxBytes"`
	MaxRequests       *Quantity `json:"maxRequests"`
	FairnessPolicyRef string    `json:"fairnessPolicyRef"`
	OrderingPolicyRef string    `json:"orderingPolicyRef"`
	// RequestTTL, ours, bounds the wait in this band instead of defaultRequestTTL.
	RequestTTL *Duration `json:"requestTTL"`
	// MinShare, ours, is the share of all dispatches that the band gets at least while requests wait in it, 0 to 1.
	MinShare float64 `json:"minShare"`
}
