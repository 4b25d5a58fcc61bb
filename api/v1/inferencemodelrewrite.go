// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferenceModelRewrite gives requests for one model another, or one of several by weight.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=inferencemodelrewrites,singular=inferencemodelrewrite,shortName=infrewrite,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=".spec['poolRef','poolRefs']..name"
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].reason",priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].message",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type InferenceModelRewrite struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what is wanted.
	//
	// +required
	Spec InferenceModelRewriteSpec `json:"spec,omitzero"`

	// status is written by the picker.
	//
	// +optional
	// +kubebuilder:default={}
	Status Status `json:"status,omitzero"`
}

// InferenceModelRewriteList is a list of [InferenceModelRewrite].
//
// +kubebuilder:object:root=true
type InferenceModelRewriteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceModelRewrite `json:"items"`
}

// InferenceModelRewriteSpec is the spec of an [InferenceModelRewrite].
//
// +kubebuilder:validation:XValidation:rule="has(self.poolRef) || has(self.poolRefs)",message="names no pool: want poolRef"
type InferenceModelRewriteSpec struct {
	// poolRef is the pool.
	//
	// +optional
	PoolRef *PoolReference `json:"poolRef,omitempty"`

	// poolRefs are more pools, at most 16.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PoolRefs []PoolReference `json:"poolRefs,omitempty"`

	// rules are looked at in their order; one that matches the model by name goes before one for all models.
	//
	// +optional
	// +listType=atomic
	Rules []RewriteRule `json:"rules,omitempty"`
}

// RewriteRule gives requests that match it one of its targets.
type RewriteRule struct {
	// matches are the requests that are meant: those that fulfil any of them; without one, all requests.
	//
	// +optional
	// +listType=atomic
	Matches []RewriteMatch `json:"matches,omitempty"`

	// targets are the models that they get, by weight. Where any has a weight, those without get nothing.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	Targets []RewriteTarget `json:"targets"`
}

// RewriteMatch matches a request.
type RewriteMatch struct {
	// model matches the model that was asked for.
	//
	// +optional
	Model *ModelMatch `json:"model,omitempty"`
}

// ModelMatch matches a model's name.
type ModelMatch struct {
	// type is how it is compared.
	//
	// +optional
	// +kubebuilder:default=Exact
	// +kubebuilder:validation:Enum=Exact
	Type string `json:"type,omitempty"`

	// value is what it is compared with.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	Value string `json:"value"`
}

// RewriteTarget is a model and its share.
type RewriteTarget struct {
	// modelRewrite is the model to serve.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	ModelRewrite string `json:"modelRewrite"`

	// weight is its share beside the other targets' weights.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
}

// Normalize turns what may be said in two ways into one: poolRef becomes the first of poolRefs, which
// carry their group and kind.
func (s *InferenceModelRewriteSpec) Normalize() {
	s.PoolRefs = folded(s.PoolRef, s.PoolRefs)
	s.PoolRef = nil
}
