// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock-project/penstock/api/v1"
)

// ToV1 returns o as v1 says it: poolRef is the first of poolRefs. Nothing is lost.
func (o *InferenceObjective) ToV1() *v1.InferenceObjective {
	c := o.DeepCopy()
	c.Spec.Normalize()
	return &v1.InferenceObjective{TypeMeta: at(v1.GroupVersion.String(), o.TypeMeta), ObjectMeta: c.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

// FromV1 returns o as v1alpha2 says it: with poolRef, when it is for one pool by name and no other.
// Otherwise it keeps poolRefs and poolSelector, which readers of before v1 do not know: such a reader
// finds no pool, and leaves the object alone. Nothing is lost.
func (o *InferenceObjective) FromV1(from *v1.InferenceObjective) {
	c := from.DeepCopy()
	c.Spec.Normalize()
	if len(c.Spec.PoolRefs) == 1 && c.Spec.PoolSelector == nil {
		c.Spec.PoolRef, c.Spec.PoolRefs = &c.Spec.PoolRefs[0], nil
	}
	*o = InferenceObjective{TypeMeta: at(GroupVersion.String(), from.TypeMeta), ObjectMeta: c.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

// ToV1 returns r as v1 says it, in the form of [v1.InferenceModelRewriteSpec.Normalize]. Nothing is lost.
func (r *InferenceModelRewrite) ToV1() *v1.InferenceModelRewrite {
	c := r.DeepCopy()
	c.Spec.Normalize()
	return &v1.InferenceModelRewrite{TypeMeta: at(v1.GroupVersion.String(), r.TypeMeta), ObjectMeta: c.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

// FromV1 returns r as v1alpha2 says it: with poolRef, when it is for one pool. Of several pools a
// reader of before v1 knows none. Nothing is lost.
func (r *InferenceModelRewrite) FromV1(from *v1.InferenceModelRewrite) {
	c := from.DeepCopy()
	c.Spec.Normalize()
	if len(c.Spec.PoolRefs) == 1 {
		c.Spec.PoolRef, c.Spec.PoolRefs = &c.Spec.PoolRefs[0], nil
	}
	*r = InferenceModelRewrite{TypeMeta: at(GroupVersion.String(), from.TypeMeta), ObjectMeta: c.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

// at is a type's head in another version; one that says nothing goes on saying nothing.
func at(version string, t metav1.TypeMeta) metav1.TypeMeta {
	if t.APIVersion != "" {
		t.APIVersion = version
	}
	return t
}
