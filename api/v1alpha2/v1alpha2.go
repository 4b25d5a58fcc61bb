// SPDX-License-Identifier: Apache-2.0

// Package v1alpha2 answers: what do objects of llm-d.ai/v1alpha2 look like to an API server?
//
// They have the fields of v1, so that an API server that serves both versions drops nothing.
//
// +kubebuilder:object:generate=true
// +groupName=llm-d.ai
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/penstock-project/penstock/api/v1"
)

// GroupVersion is llm-d.ai/v1alpha2.
var GroupVersion = schema.GroupVersion{Group: "llm-d.ai", Version: "v1alpha2"}

// AddToScheme makes the kinds of this version known to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &InferenceObjective{}, &InferenceObjectiveList{}, &InferenceModelRewrite{}, &InferenceModelRewriteList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// InferenceObjective is a priority that requests name in the header x-llm-d-inference-objective.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=inferenceobjectives,singular=inferenceobjective,shortName=infobj,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:deprecatedversion:warning="llm-d.ai/v1alpha2 InferenceObjective is deprecated: write llm-d.ai/v1, with poolRefs in place of poolRef"
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
	Spec v1.InferenceObjectiveSpec `json:"spec,omitzero"`

	// status is written by the picker.
	//
	// +optional
	// +kubebuilder:default={}
	Status v1.Status `json:"status,omitzero"`
}

// InferenceObjectiveList is a list of [InferenceObjective].
//
// +kubebuilder:object:root=true
type InferenceObjectiveList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceObjective `json:"items"`
}

// InferenceModelRewrite gives requests for one model another, or one of several by weight.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=inferencemodelrewrites,singular=inferencemodelrewrite,shortName=infrewrite,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
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
	Spec v1.InferenceModelRewriteSpec `json:"spec,omitzero"`

	// status is written by the picker.
	//
	// +optional
	// +kubebuilder:default={}
	Status v1.Status `json:"status,omitzero"`
}

// InferenceModelRewriteList is a list of [InferenceModelRewrite].
//
// +kubebuilder:object:root=true
type InferenceModelRewriteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceModelRewrite `json:"items"`
}
