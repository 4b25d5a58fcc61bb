// SPDX-License-Identifier: Apache-2.0

// Package api answers: which documents do we carry, and what is in them?
//
// These are plain structs of the kinds that an operator writes, under the names of their
// Kubernetes schemas. Package config fills them strictly from files.
package api

import "go.yaml.in/yaml/v3"

// Meta is the head of every document.
type Meta struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
}

// ObjectMeta is a Kubernetes object's metadata. What an API server adds is accepted and not used.
type ObjectMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreationTimestamp string            `json:"creationTimestamp"`

	UID                        Raw `json:"uid"`
	ResourceVersion            Raw `json:"resourceVersion"`
	Generation                 Raw `json:"generation"`
	GenerateName               Raw `json:"generateName"`
	SelfLink                   Raw `json:"selfLink"`
	Finalizers                 Raw `json:"finalizers"`
	OwnerReferences            Raw `json:"ownerReferences"`
	ManagedFields              Raw `json:"managedFields"`
	DeletionTimestamp          Raw `json:"deletionTimestamp"`
	DeletionGracePeriodSeconds Raw `json:"deletionGracePeriodSeconds"`
}

// Raw is a part of a document that is kept as it was written, to be decoded later or not at all.
type Raw struct {
	// Node is nil when nothing was written.
	Node *yaml.Node
}

// LabelSelector selects objects by their labels; all of it must hold.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []Requirement     `json:"matchExpressions"`
}

// Requirement is one expression of a [LabelSelector].
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // In, NotIn, Exists or DoesNotExist
	Values   []string `json:"values"`
}

// Matches reports whether labels fulfil the selector. An empty selector matches everything.
func (s LabelSelector) Matches(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	have, ok := labels[r.Key]
	in := false
	for _, v := range r.Values {
		in = in || ok && v == have
	}
	switch r.Operator {
	case "In":
		return in
	case "NotIn":
		return !in
	case "Exists":
		return ok
	case "DoesNotExist":
		return !ok
	}
	return false
}
