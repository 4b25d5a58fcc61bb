// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strconv"
)

// InferencePool is inference.networking.k8s.io/v1 InferencePool: endpoints that serve alike.
type InferencePool struct {
	Meta
	Spec   InferencePoolSpec `json:"spec"`
	Status Raw               `json:"status"`
}

// InferencePoolSpec is the spec of an [InferencePool].
type InferencePoolSpec struct {
	Selector          PoolSelector       `json:"selector"`
	TargetPorts       []TargetPort       `json:"targetPorts"`
	AppProtocol       string             `json:"appProtocol"`
	EndpointPickerRef *EndpointPickerRef `json:"endpointPickerRef"`
}

// PoolSelector picks a pool's endpoints: labels that must all match.
type PoolSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// TargetPort is a port on which each of a pool's pods serves.
type TargetPort struct {
	Number int32 `json:"number"`
}

// EndpointPickerRef names the Endpoint Picker of a pool.
type EndpointPickerRef struct {
	Group       string      `json:"group"`
	Kind        string      `json:"kind"`
	Name        string      `json:"name"`
	Port        *PickerPort `json:"port"`
	FailureMode string      `json:"failureMode"`
}

// PickerPort is the port of an Endpoint Picker: an object with a number; files may write the
// bare number.
type PickerPort struct {
	Number int32 `json:"number"`
	// Bare tells that the number was written without the object around it.
	Bare bool `json:"-"`
}

// UnmarshalText reads the bare number.
func (p *PickerPort) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("want {number: 9002}, got %q", text)
	}
	p.Number, p.Bare = int32(n), true
	return nil
}

// InferenceObjective is llm-d.ai/v1 and v1alpha2 InferenceObjective (and the older
// inference.networking.x-k8s.io/v1alpha2): a priority that requests can name.
type InferenceObjective struct {
	Meta
	Spec   InferenceObjectiveSpec `json:"spec"`
	Status Raw                    `json:"status"`
}

// InferenceObjectiveSpec is the spec of an [InferenceObjective].
type InferenceObjectiveSpec struct {
	// Priority is higher for what goes first; below 0 may be shed.
	Priority int32 `json:"priority"`
	// PoolRef is the pool in v1alpha2.
	PoolRef *PoolRef `json:"poolRef"`
	// PoolRefs and PoolSelector are the pools in v1: named by any of them.
	PoolRefs     []PoolRef      `json:"poolRefs"`
	PoolSelector *LabelSelector `json:"poolSelector"`
}

// PoolRef names a pool in the namespace of the object that holds it.
type PoolRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// InferenceModelRewrite is llm-d.ai/v1alpha2 and v1 InferenceModelRewrite (and the older
// inference.networking.x-k8s.io/v1alpha2): other model names for the ones that clients ask for.
type InferenceModelRewrite struct {
	Meta
	Spec   InferenceModelRewriteSpec `json:"spec"`
	Status Raw                       `json:"status"`
}

// InferenceModelRewriteSpec is the spec of an [InferenceModelRewrite].
type InferenceModelRewriteSpec struct {
	PoolRef *PoolRef `json:"poolRef"`
	// PoolRefs are the pools in v1, which may also be one under poolRef.
	PoolRefs []PoolRef     `json:"poolRefs"`
	Rules    []RewriteRule `json:"rules"`
}

// RewriteRule gives requests that match any of Matches (all, when empty) one of the targets.
type RewriteRule struct {
	Matches []RewriteMatch  `json:"matches"`
	Targets []RewriteTarget `json:"targets"`
}

// RewriteMatch matches the model that a client asked for.
type RewriteMatch struct {
	Model *ModelMatch `json:"model"`
}

// ModelMatch matches a model's name.
type ModelMatch struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// RewriteTarget is a model name and its share.
type RewriteTarget struct {
	ModelRewrite string `json:"modelRewrite"`
	Weight       *int32 `json:"weight"`
}

// ConfigMap is a core/v1 ConfigMap; with the label [ModelMappingLabel] it maps adapters to
// their base model.
type ConfigMap struct {
	Meta
	Data       map[string]string `json:"data"`
	BinaryData Raw               `json:"binaryData"`
	Immutable  bool              `json:"immutable"`
}

// ModelMappingLabel is "true" on the ConfigMaps that are model mappings.
const ModelMappingLabel = "inference.llm-d.ai/ipp-managed"

// ModelMapping is what a model mapping's data says.
type ModelMapping struct {
	BaseModel string
	Adapters  []string
}
