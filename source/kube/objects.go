// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
)

// Object is a custom resource, or one text of a ConfigMap, as the API server has it.
type Object struct {
	Kind, Namespace, Name string
	// Resource is what the API server calls it: group, version and plural.
	Resource schema.GroupVersionResource
	UID      string
	// Generation counts the versions of its spec.
	Generation int64
	// Data is what counts of it, as JSON in the version that we read: neither status nor managed fields. Of a ConfigMap it
	// is the text under Key.
	Data []byte
	Key  string
	// Status is its status as we last saw it; nil for none. It is not to be changed.
	Status map[string]any

	labels labels.Set
	pools  []string         // named as those that it is for
	choose *labels.Selector // of pools that it is for, nil for none
}

// String names the object, as problems do.
func (o *Object) String() string {
	s := o.Kind + " " + o.Namespace + "/" + o.Name
	if o.Key != "" {
		s += " " + o.Key
	}
	return s
}

// kind is a kind of custom resources.
type kind struct {
	name, plural string
	versions     []schema.GroupVersion // the best first; without a version those that the API server has
	as           schema.GroupVersion   // what objects of all of them are handed on as
	optional     bool
}

func version(group, version string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: version}
}

// The groups of our kinds; the experimental one is where they were before.
const (
	poolGroup   = "inference.networking.k8s.io"
	ownGroup    = "llm-d.ai"
	legacyGroup = "inference.networking.x-k8s.io"
)

// poolKind is InferencePool of a group; when it is empty, of the newest that there is.
func poolKind(group string) kind {
	newest := version(poolGroup, "v1")
	k := kind{"InferencePool", "inferencepools", []schema.GroupVersion{newest, version(legacyGroup, "")}, newest, false}
	switch group {
	case poolGroup:
		k.versions = k.versions[:1]
	case legacyGroup:
		k.versions = k.versions[1:]
	}
	return k
}

func optionalKinds() []kind {
	own := []schema.GroupVersion{version(ownGroup, "v1"), version(ownGroup, "v1alpha2"), version(legacyGroup, "v1alpha2")}
	return []kind{
		{"InferenceObjective", "inferenceobjectives", own, own[0], true},
		{"InferenceModelRewrite", "inferencemodelrewrites", own, own[0], true},
	}
}

// objects are the objects of one kind in one namespace, as a [cache.ReflectorStore].
type objects struct {
	kind
	c         *Cluster
	namespace string // empty for all

	mu      sync.Mutex
	using   schema.GroupVersionResource
	feed    *feed     // of using; nil while there is none
	absent  bool      // the API server does not have the kind
	known   bool      // it was listed since it was last absent
	lost    time.Time // since when the API server says that it has not what was known; zero while it has
	trouble string
	since   time.Time          // absent, or in trouble
	all     map[string]*Object // by namespace and name
}

func newObjects(c *Cluster, k kind, namespace string) *objects {
	return &objects{kind: k, c: c, namespace: namespace, all: map[string]*Object{}}
}

// state reports whether it is known what there is, and what is wrong now.
func (s *objects) state() (settled bool, why string) {
	s.mu.Lock()
	f, absent, known, trouble := s.feed, s.absent, s.known, s.trouble
	s.mu.Unlock()
	if f == nil {
		return absent || known, trouble
	}
	return f.state()
}

// run follows the kind in the best version that there is, until ctx ends.
func (s *objects) run(ctx context.Context) {
	for ctx.Err() == nil {
		best, found, err := s.best(ctx)
		if err != nil || !found {
			s.missing(ctx, err)
			sleep(ctx, absentPoll)
			continue
		}
		s.follow(ctx, best)
		sleep(ctx, firstRetry)
	}
}

// best is the best version that the API server has of the kind.
func (s *objects) best(ctx context.Context) (schema.GroupVersionResource, bool, error) {
	for _, v := range s.versions {
		served := []string{v.Version}
		if v.Version == "" {
			var err error
			if served, err = s.c.clients.versions(ctx, v.Group); err != nil {
				return schema.GroupVersionResource{}, false, fmt.Errorf("/apis/%s: %w", v.Group, err)
			}
		}
		for _, name := range served {
			v.Version = name
			switch ok, err := s.c.clients.has(ctx, v.String(), s.plural); {
			case err != nil:
				return schema.GroupVersionResource{}, false, fmt.Errorf("/apis/%s: %w", v, err)
			case ok:
				return v.WithResource(s.plural), true, nil
			}
		}
	}
	return schema.GroupVersionResource{}, false, nil
}

// missing notes that there is no such kind, or that we cannot know.
func (s *objects) missing(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	resource := s.plural + "." + s.versions[0].Group
	trouble := fmt.Sprintf("the API server has no %s: its CustomResourceDefinition is not installed", resource)
	if err != nil {
		s.c.opt.Metrics.Failed(resource, "discover", reason(err))
		trouble = fmt.Sprintf("the API server %s cannot be asked for %s: %v", s.c.clients.host, resource, err)
	}
	s.mu.Lock()
	news := s.trouble != trouble
	if news {
		s.since = time.Now()
	}
	if s.trouble, s.feed = trouble, nil; err != nil {
		s.lost = time.Time{}
	} else if s.lost.IsZero() {
		s.lost = time.Now()
	}
	s.absent = err == nil && (!s.known || time.Since(s.lost) >= absentAfter)
	forget := s.absent && s.known
	if forget {
		clear(s.all)
		s.known = false
	}
	s.mu.Unlock()
	if forget {
		s.changed()
	}
	switch {
	case !news:
		return
	case err != nil || !s.optional:
		s.c.opt.Log.Warn(trouble)
	default:
		s.c.opt.Log.Warn("cannot list " + resource + ": " + trouble + "; once it is, its objects count")
	}
	s.c.wakeObjects()
}

// follow follows the kind in one version, until there is a better one, or none.
func (s *objects) follow(ctx context.Context, r schema.GroupVersionResource) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := s.c.clients.feed(s.c.clients.custom, "/apis/"+r.GroupVersion().String(), s.namespace, r.Resource, "")
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(r.GroupVersion().WithKind(s.name))
	f.filled = s.changed
	f.c, f.example, f.store, f.empty = s.c, example, s, func() runtime.Object { return &unstructured.UnstructuredList{} }
	f.resource, f.custom = f.resource+"."+r.Group, true
	s.mu.Lock()
	if s.using != r {
		s.c.opt.Log.Info("following", slog.String("resource", f.resource), slog.String("version", r.Version), slog.String("in", f.where()))
		if r.Group == legacyGroup {
			s.c.opt.Log.Warn(r.Group + " is where " + s.name + " was before: write " + s.as.String())
		}
	}
	newer := s.using.Group == legacyGroup && r.Group != legacyGroup
	s.feed, s.using, s.absent, s.trouble, s.lost = f, r, false, "", time.Time{}
	s.mu.Unlock()
	if newer {
		signal(s.c.wake.older)
	}
	if len(s.versions) > 1 {
		var seeking sync.WaitGroup
		defer seeking.Wait()
		defer stop()
		seeking.Go(func() {
			for ctx.Err() == nil {
				sleep(ctx, s.c.opt.betterEvery)
				if best, found, err := s.best(ctx); err == nil && found && best != r {
					stop()
				}
			}
		})
	}
	_ = f.run(ctx) // whether the kind is gone is asked next
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Add notes what an object is now.
func (s *objects) Add(v any) error {
	o, err := s.object(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.all[o.Namespace+"/"+o.Name] = o
	s.mu.Unlock()
	s.changed()
	return nil
}

// Update is Add.
func (s *objects) Update(v any) error { return s.Add(v) }

// Delete forgets an object.
func (s *objects) Delete(v any) error {
	u, ok := v.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("want an object, got %T", v)
	}
	s.mu.Lock()
	delete(s.all, u.GetNamespace()+"/"+u.GetName())
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace forgets all that are not in the list.
func (s *objects) Replace(list []any, _ string) error {
	all := map[string]*Object{}
	for _, v := range list {
		o, err := s.object(v)
		if err != nil {
			return err
		}
		all[o.Namespace+"/"+o.Name] = o
	}
	s.mu.Lock()
	s.all, s.known = all, true
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync has nothing to do.
func (s *objects) Resync() error { return nil }

func (s *objects) changed() {
	if !s.optional {
		s.c.poolsChanged()
	}
	s.c.wakeObjects()
}

// list are the objects now, in no order.
func (s *objects) list() []*Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Object, 0, len(s.all))
	for _, o := range s.all {
		out = append(out, o)
	}
	return out
}

// object keeps what counts of an object, in the newest version: all versions of a kind hold the same fields.
func (s *objects) object(v any) (*Object, error) {
	u, ok := v.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("want an object, got %T", v)
	}
	s.mu.Lock()
	using := s.using
	s.mu.Unlock()
	o := &Object{
		Kind: s.name, Namespace: u.GetNamespace(), Name: u.GetName(), Resource: using, UID: string(u.GetUID()),
		Generation: u.GetGeneration(), labels: u.GetLabels(),
	}
	o.Status, _, _ = unstructured.NestedMap(u.Object, "status")
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	switch {
	case s.optional:
		o.refer(spec)
	case using.Group == legacyGroup:
		modern(spec)
	}
	meta := map[string]any{"namespace": o.Namespace, "name": o.Name}
	if len(o.labels) > 0 {
		meta["labels"] = o.labels
	}
	if at := u.GetCreationTimestamp(); !at.IsZero() {
		meta["creationTimestamp"] = at.UTC().Format(time.RFC3339)
	}
	var err error
	o.Data, err = json.Marshal(map[string]any{"apiVersion": s.as.String(), "kind": s.name, "metadata": meta, "spec": spec})
	return o, err
}

// modern turns the spec of an InferencePool of the group before into what v1 has: its selector was the labels alone, and it
// had one port. What v1 has no name for stays, so that the configuration names it.
func modern(spec map[string]any) {
	if selector, ok := spec["selector"].(map[string]any); ok {
		_, nested := selector["matchLabels"].(map[string]any)
		if !nested {
			spec["selector"] = map[string]any{"matchLabels": selector}
		}
	}
	if port, ok := spec["targetPortNumber"]; ok && spec["targetPorts"] == nil {
		spec["targetPorts"] = []any{map[string]any{"number": port}}
		delete(spec, "targetPortNumber")
	}
	ref, ok := spec["extensionRef"].(map[string]any)
	if !ok || spec["endpointPickerRef"] != nil {
		return
	}
	delete(spec, "extensionRef")
	spec["endpointPickerRef"] = ref
	kind, _ := ref["kind"].(string)
	switch port, ok := ref["portNumber"]; {
	case ok:
		ref["port"] = map[string]any{"number": port}
		delete(ref, "portNumber")
	case kind == "" || kind == "Service":
		ref["port"] = map[string]any{"number": servicePort}
	}
}

// servicePort is that of a picker's Service in the group before, when none was written.
const servicePort = 9002

// refer makes one list of the pools that a spec names, as the newest version has it.
func (o *Object) refer(spec map[string]any) {
	refs, _, _ := unstructured.NestedSlice(spec, "poolRefs")
	if one, ok := spec["poolRef"].(map[string]any); ok {
		if !slices.ContainsFunc(refs, func(r any) bool { m, ok := r.(map[string]any); return ok && m["name"] == one["name"] }) {
			refs = append(refs, any(one))
		}
		delete(spec, "poolRef")
		spec["poolRefs"] = refs
	}
	for _, r := range refs {
		if m, ok := r.(map[string]any); ok {
			if name, ok := m["name"].(string); ok {
				o.pools = append(o.pools, name)
			}
		}
	}
	raw, err := json.Marshal(spec["poolSelector"])
	if err != nil || spec["poolSelector"] == nil {
		return
	}
	var selector metav1.LabelSelector
	if json.Unmarshal(raw, &selector) != nil {
		return
	}
	if match, err := metav1.LabelSelectorAsSelector(&selector); err == nil {
		o.choose = &match
	}
}

// concerns reports whether the object is for a pool.
func (o *Object) concerns(pool *Object) bool {
	return o.Namespace == pool.Namespace && (slices.Contains(o.pools, pool.Name) || o.choose != nil && (*o.choose).Matches(pool.labels))
}

// sorted puts objects into one order.
func sorted(list []*Object) []*Object {
	slices.SortFunc(list, func(a, b *Object) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list
}

// poolOf reads what finding endpoints needs of an InferencePool.
func poolOf(o *Object) (pool, error) {
	var p inferencev1.InferencePool
	if err := json.Unmarshal(o.Data, &p); err != nil {
		return pool{}, err
	}
	if len(p.Spec.Selector.MatchLabels) == 0 {
		return pool{}, fmt.Errorf("%s: spec.selector.matchLabels is empty", o)
	}
	match := labels.Set{}
	for key, value := range p.Spec.Selector.MatchLabels {
		match[string(key)] = string(value)
	}
	out := pool{name: o.Name, selector: match.AsSelectorPreValidated()}
	for _, t := range p.Spec.TargetPorts {
		if n := int(t.Number); n > 0 && n < 1<<16 && !slices.Contains(out.ports, n) {
			out.ports = append(out.ports, n)
		}
	}
	return out, nil
}
