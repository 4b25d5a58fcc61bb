// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
)

func readPool(d *document) {
	var p api.InferencePool
	d.decode(&p)
	if !d.named(p.Metadata.Name) {
		return
	}
	pool := &Pool{
		Namespace: cmp.Or(p.Metadata.Namespace, d.o.Namespace), Name: p.Metadata.Name,
		Labels: p.Metadata.Labels, Selector: p.Spec.Selector.MatchLabels,
		H2C:  p.Spec.AppProtocol == "kubernetes.io/h2c",
		File: d.file, Line: d.root.Line,
	}
	d.unique("InferencePool", pool.Namespace, pool.Name)
	if len(pool.Selector) == 0 {
		d.warn("spec.selector", "matchLabels is empty, so all endpoints belong to the pool; an API server would refuse that")
	}
	d.oneOf("spec.appProtocol", p.Spec.AppProtocol, "http", "kubernetes.io/h2c")
	for i, t := range p.Spec.TargetPorts {
		at := index("spec.targetPorts", i) + ".number"
		d.port(at, int(t.Number))
		if slices.Contains(pool.TargetPorts, int(t.Number)) {
			d.fail(at, "%d is written twice: port numbers must be unique", t.Number)
		}
		pool.TargetPorts = append(pool.TargetPorts, int(t.Number))
	}
	if n := len(p.Spec.TargetPorts); n == 0 || n > 8 {
		d.warn("spec.targetPorts", "an API server would refuse %d ports: want 1 to 8", n)
	}
	if r := p.Spec.EndpointPickerRef; r != nil {
		d.pickerRef(r, pool)
	}
	d.cfg.Pools = append(d.cfg.Pools, pool)
}

func (d *document) pickerRef(r *api.EndpointPickerRef, pool *Pool) {
	const at = "spec.endpointPickerRef"
	if r.Name == "" {
		d.fail(at+".name", "is missing")
	}
	d.oneOf(at+".failureMode", r.FailureMode, "FailClose", "FailOpen")
	switch {
	case r.Port == nil && (r.Kind == "" || r.Kind == "Service"):
		d.warn(at+".port", "an API server would refuse a Service without port: write port: {number: 9002}")
	case r.Port != nil:
		if r.Port.Bare {
			d.warn(at+".port", "an API server would refuse a bare number here: write port: {number: %d}", r.Port.Number)
			d.port(at+".port", int(r.Port.Number))
		} else {
			d.port(at+".port.number", int(r.Port.Number))
		}
		pool.PickerPort = int(r.Port.Number)
	}
	pool.PickerRef, pool.FailOpen = r.Name, r.FailureMode == "FailOpen"
}

func (d *document) port(path string, n int) {
	if n < 1 || n > 65535 {
		d.fail(path, "want a port from 1 to 65535, got %d", n)
	}
}

func readObjective(d *document) {
	var o api.InferenceObjective
	d.decode(&o)
	if !d.named(o.Metadata.Name) {
		return
	}
	obj := Objective{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Priority: int(o.Spec.Priority),
		PoolSelector: o.Spec.PoolSelector, File: d.file, Line: d.root.Line,
	}
	d.unique("InferenceObjective", obj.Namespace, obj.Name)
	refs, v1 := o.Spec.PoolRefs, o.APIVersion == "llm-d.ai/v1"
	switch {
	case v1 && o.Spec.PoolRef != nil:
		d.fail("spec.poolRef", "belongs to v1alpha2: in %s write poolRefs: [{name: %s}]", o.APIVersion, o.Spec.PoolRef.Name)
		return
	case !v1 && field(field(d.root, "spec"), "poolRefs") != nil:
		d.fail("spec.poolRefs", "belongs to llm-d.ai/v1: in %s write poolRef", o.APIVersion)
		return
	case !v1 && o.Spec.PoolSelector != nil:
		d.fail("spec.poolSelector", "belongs to llm-d.ai/v1: in %s write poolRef", o.APIVersion)
		return
	case v1 && len(refs) == 0 && o.Spec.PoolSelector == nil:
		d.fail("spec", "names no pool: want poolRefs or poolSelector")
	case !v1 && o.Spec.PoolRef == nil:
		d.fail("spec", "names no pool: want poolRef")
	case !v1:
		d.poolRef("spec.poolRef", *o.Spec.PoolRef)
		obj.PoolRefs = []string{o.Spec.PoolRef.Name}
	}
	for i, r := range refs {
		at := index("spec.poolRefs", i)
		d.poolRef(at, r)
		if slices.Contains(obj.PoolRefs, r.Name) {
			d.fail(at+".name", "%s is written twice", r.Name)
		} else if r.Name != "" {
			obj.PoolRefs = append(obj.PoolRefs, r.Name)
		}
	}
	if len(refs) > 16 {
		d.warn("spec.poolRefs", "an API server would refuse %d pools: want at most 16", len(refs))
	}
	d.selector("spec.poolSelector", o.Spec.PoolSelector)
	d.cfg.Objectives = append(d.cfg.Objectives, obj)
}

func (d *document) poolRef(path string, r api.PoolRef) {
	if r.Name == "" {
		d.fail(path+".name", "is missing")
	}
	d.oneOf(path+".kind", r.Kind, "InferencePool")
	d.oneOf(path+".group", r.Group, "inference.networking.k8s.io", "inference.networking.x-k8s.io")
}

func (d *document) selector(path string, s *api.LabelSelector) {
	if s == nil {
		return
	}
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		d.fail(path, "is empty: want matchLabels or matchExpressions")
	}
	for i, r := range s.MatchExpressions {
		at := index(path+".matchExpressions", i)
		d.oneOf(at+".operator", cmp.Or(r.Operator, "nothing"), "In", "NotIn", "Exists", "DoesNotExist")
		if values := r.Operator == "In" || r.Operator == "NotIn"; values != (len(r.Values) > 0) {
			d.fail(at+".values", "want values with In and NotIn, and none with Exists and DoesNotExist")
		}
	}
}

func readRewrite(d *document) {
	var r api.InferenceModelRewrite
	d.decode(&r)
	if !d.named(r.Metadata.Name) {
		return
	}
	d.unique("InferenceModelRewrite", r.Metadata.Namespace, r.Metadata.Name)
	w := Rewrite{
		Namespace: r.Metadata.Namespace, Name: r.Metadata.Name, PoolRefs: d.rewritePools(&r),
		File: d.file, Line: d.root.Line,
	}
	if at := r.Metadata.CreationTimestamp; at != "" {
		var err error
		if w.Created, err = time.Parse(time.RFC3339, at); err != nil {
			d.warn("metadata.creationTimestamp", "want a time such as 2026-01-31T12:00:00Z, got %q: it does not count", short(at))
		}
	}
	for i, rule := range r.Spec.Rules {
		w.Rules = append(w.Rules, d.rewriteRule(index("spec.rules", i), w.Name, rule))
	}
	d.cfg.Rewrites = append(d.cfg.Rewrites, w)
}

// rewritePools reads the names of the pools that a rewrite is for.
func (d *document) rewritePools(r *api.InferenceModelRewrite) []string {
	refs, v1 := r.Spec.PoolRefs, r.APIVersion == "llm-d.ai/v1"
	if !v1 && field(field(d.root, "spec"), "poolRefs") != nil {
		d.fail("spec.poolRefs", "belongs to llm-d.ai/v1: in %s write poolRef", r.APIVersion)
		return nil
	}
	var names []string
	add := func(at string, ref api.PoolRef) {
		d.poolRef(at, ref)
		if slices.Contains(names, ref.Name) {
			d.fail(at+".name", "%s is written twice", ref.Name)
		} else if ref.Name != "" {
			names = append(names, ref.Name)
		}
	}
	if r.Spec.PoolRef != nil {
		add("spec.poolRef", *r.Spec.PoolRef)
	}
	for i, ref := range refs {
		add(index("spec.poolRefs", i), ref)
	}
	if r.Spec.PoolRef == nil && len(refs) == 0 {
		d.fail("spec", "names no pool: want poolRef")
	}
	return names
}

func (d *document) rewriteRule(at, name string, r api.RewriteRule) RewriteRule {
	rule := RewriteRule{Name: name, All: len(r.Matches) == 0, Line: line(d.root, at)}
	for k, m := range r.Matches {
		at := index(at+".matches", k) + ".model"
		switch {
		case m.Model == nil:
			rule.All = true
		case m.Model.Value == "":
			d.fail(at+".value", "is missing: a rule for all models has no matches")
		default:
			d.oneOf(at+".type", m.Model.Type, "Exact")
			rule.Models = append(rule.Models, m.Model.Value)
		}
	}
	if len(r.Targets) == 0 {
		d.fail(at+".targets", "want at least one target")
	}
	weighted := slices.ContainsFunc(r.Targets, func(t api.RewriteTarget) bool { return t.Weight != nil })
	for k, t := range r.Targets {
		at, weight := index(at+".targets", k), 1
		switch {
		case t.ModelRewrite == "":
			d.fail(at+".modelRewrite", "is missing")
		case t.Weight == nil && weighted:
			d.warn(at, "%s is never chosen: it has no weight, and others have one", t.ModelRewrite)
			weight = 0
		}
		if t.Weight != nil {
			if weight = int(*t.Weight); weight < 1 || weight > 1e6 {
				d.fail(at+".weight", "want 1 to 1000000, got %d", weight)
			}
		}
		rule.Targets = append(rule.Targets, RewriteTarget{Model: t.ModelRewrite, Weight: weight})
	}
	return rule
}

func readRoute(d *document) {
	var r api.HTTPRoute
	d.decode(&r)
	if !d.named(r.Metadata.Name) {
		return
	}
	d.unique("HTTPRoute", r.Metadata.Namespace, r.Metadata.Name)
	for i, rule := range r.Spec.Rules {
		at := index("spec.rules", i)
		for k, m := range rule.Matches {
			m1 := index(at+".matches", k)
			if m.Path != nil {
				d.oneOf(m1+".path.type", m.Path.Type, "Exact", "PathPrefix", "RegularExpression")
			}
			for j, h := range m.Headers {
				d.oneOf(index(m1+".headers", j)+".type", h.Type, "Exact", "RegularExpression")
			}
		}
		for k, b := range rule.BackendRefs {
			if b.Name == "" {
				d.fail(index(at+".backendRefs", k)+".name", "is missing")
			}
		}
	}
	d.inactive("kind", "HTTPRoute")
	d.cfg.Routes = append(d.cfg.Routes, &r)
}

func readGateway(d *document) {
	var g api.Gateway
	d.decode(&g)
	if !d.named(g.Metadata.Name) {
		return
	}
	d.unique("Gateway", g.Metadata.Namespace, g.Metadata.Name)
	d.inactive("kind", "Gateway")
	d.cfg.Gateways = append(d.cfg.Gateways, &g)
}

// readConfigMap reads model mappings; other ConfigMaps are somebody else's.
func readConfigMap(d *document) {
	if text(field(field(d.root, "metadata"), "labels"), api.ModelMappingLabel) != "true" {
		d.problem(Note, "kind", "ConfigMap is ignored: it has no label %s: \"true\"", api.ModelMappingLabel)
		return
	}
	var c api.ConfigMap
	d.decode(&c)
	if !d.named(c.Metadata.Name) {
		return
	}
	d.unique("ConfigMap", c.Metadata.Namespace, c.Metadata.Name)
	m := api.ModelMapping{BaseModel: c.Data["baseModel"]}
	if m.BaseModel == "" {
		d.fail("data.baseModel", "is missing")
	}
	if err := yaml.Unmarshal([]byte(c.Data["adapters"]), &m.Adapters); err != nil {
		d.fail("data.adapters", "want a list of names, written as YAML")
	}
	d.inactive("kind", "ConfigMap")
	d.cfg.Mappings = append(d.cfg.Mappings, m)
}
