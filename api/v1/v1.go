// SPDX-License-Identifier: Apache-2.0

// Package v1 answers: what do objects of llm-d.ai/v1 look like to an API server?
//
// From these types and their markers `make generate` writes the custom resource definitions of
// deploy/crds. One definition serves v1 and v1alpha2 without a conversion webhook: an object is kept
// as it was written and served in either version with all its fields, so both versions have the
// fields of both. Readers call Normalize and see one form.
//
// +kubebuilder:object:generate=true
// +groupName=llm-d.ai
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is llm-d.ai/v1.
var GroupVersion = schema.GroupVersion{Group: "llm-d.ai", Version: "v1"}

// AddToScheme makes the kinds of this version known to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &InferenceObjective{}, &InferenceObjectiveList{}, &InferenceModelRewrite{}, &InferenceModelRewriteList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Group and kind of a pool whose reference names neither.
const (
	PoolGroup = "inference.networking.k8s.io"
	PoolKind  = "InferencePool"
)

// PoolReference names an InferencePool in the namespace of the object that holds it.
type PoolReference struct {
	// group of the pool.
	//
	// +optional
	// +kubebuilder:default="inference.networking.k8s.io"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group string `json:"group,omitempty"`

	// kind of the pool.
	//
	// +optional
	// +kubebuilder:default="InferencePool"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Kind string `json:"kind,omitempty"`

	// name of the pool.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Status is what a picker says about an object.
type Status struct {
	// conditions has one, Accepted: whether a picker heeds the object, and if not, what to do about it.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:default={{type: "Accepted", status: "Unknown", reason: "Pending", message: "no picker has read this yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Accepted is the type of the condition that tells whether an object is heeded.
const Accepted = "Accepted"

// Reasons of the condition [Accepted].
const (
	// ReasonAccepted is the reason when it is True.
	ReasonAccepted = "Accepted"
	// ReasonPending is the reason when it is Unknown: no picker has read the object yet.
	ReasonPending = "Pending"
	// ReasonPoolNotFound is the reason when none of the pools that it is for exists.
	ReasonPoolNotFound = "PoolNotFound"
	// ReasonInvalid is the reason when it says something that cannot be done.
	ReasonInvalid = "Invalid"
	// ReasonConflicted is the reason when it contradicts another object, which is heeded.
	ReasonConflicted = "Conflicted"
	// ReasonSuperseded is the reason when an object of the same name in a newer group or version is heeded in its place.
	ReasonSuperseded = "Superseded"
)

// folded is refs with ref in front, unless a pool of its name is there already. The default group and
// kind are filled in where none is written; a ref without a name counts for nothing.
func folded(ref *PoolReference, refs []PoolReference) []PoolReference {
	var all []PoolReference
	if ref != nil && ref.Name != "" {
		all = append(all, *ref)
	}
	for _, r := range refs {
		if ref == nil || r.Name != ref.Name {
			all = append(all, r)
		}
	}
	for i := range all {
		if all[i].Group == "" {
			all[i].Group = PoolGroup
		}
		if all[i].Kind == "" {
			all[i].Kind = PoolKind
		}
	}
	return all
}
