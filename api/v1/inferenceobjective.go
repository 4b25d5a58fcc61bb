// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferenceObjective is a priority that requests name in the header x-llm-d-inference-objective.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=inferenceobjectives,singular=inferenceobjective,shortName=infobj,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=".spec['poolRef','poolRefs']..name"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=".spec.priority"
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].status"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].reason",priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].message",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type InferenceObjective struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what is wanted.
	//
	// +required
	Spec InferenceObjectiveSpec `json:"spec,omitzero"`

	// status is written by the picker.
	//
	// +optional
	// +kubebuilder:default={}
	Status Status `json:"status,omitzero"`
}

// InferenceObjectiveList is a list of [InferenceObjective].
//
// +kubebuilder:object:root=true
type InferenceObjectiveList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceObjective `json:"items"`
}

// InferenceObjectiveSpec is the spec of an [InferenceObjective]. It applies to a pool that any of
// poolRef, poolRefs and poolSelector names.
//
// +kubebuilder:validation:XValidation:rule="has(self.poolRef) || has(self.poolRefs) || has(self.poolSelector)",message="names no pool: want poolRefs or poolSelector"
type InferenceObjectiveSpec struct {
	// priority is higher for what goes first; none is 0, and below 0 may be shed when the pool is saturated.
	//
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// poolRefs are the pools by name, at most 16.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PoolRefs []PoolReference `json:"poolRefs,omitempty"`

	// poolSelector are the pools of the namespace by their labels. It must ask for something.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="is empty: want matchLabels or matchExpressions"
	PoolSelector *metav1.LabelSelector `json:"poolSelector,omitempty"`

	// poolRef is the pool as v1alpha2 names it. Deprecated in v1: write poolRefs.
	//
	// +optional
	PoolRef *PoolReference `json:"poolRef,omitempty"`
}

// Normalize turns what either version may say into what v1 says: poolRef becomes the first of
// poolRefs, which carry their group and kind.
func (s *InferenceObjectiveSpec) Normalize() {
	s.PoolRefs = folded(s.PoolRef, s.PoolRefs)
	s.PoolRef = nil
}
