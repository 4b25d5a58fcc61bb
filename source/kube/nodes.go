// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// nodes are the labels of nodes that say where they stand, as a [cache.ReflectorStore]. They are followed, by their metadata
// alone, while somebody asks for them: pods have had the labels of their zone and region themselves since Kubernetes 1.35.
type nodes struct {
	changed func()
	wake    chan struct{}

	mu     sync.Mutex
	wanted []string
	feed   *feed // nil while nobody asks
	all    map[string]map[string]string
}

func newNodes(changed func()) *nodes {
	return &nodes{changed: changed, wake: make(chan struct{}, 1), all: map[string]map[string]string{}}
}

// Topology has endpoints whose pods lack them have these labels of their nodes, from now on; none for nobody's need. Where
// nodes may not be listed, endpoints have what their pods have.
func (c *Cluster) Topology(labels []string) {
	labels = slices.Compact(slices.Sorted(slices.Values(labels)))
	n := c.nodes
	n.mu.Lock()
	news := !slices.Equal(n.wanted, labels)
	n.wanted = labels
	n.mu.Unlock()
	if news {
		signal(n.wake)
	}
}

// follow follows the nodes while their labels are wanted, until ctx ends.
func (n *nodes) follow(ctx context.Context, c *Cluster) {
	for {
		round, stop := context.WithCancel(ctx)
		var following sync.WaitGroup
		n.mu.Lock()
		n.feed, n.all = nil, map[string]map[string]string{}
		if len(n.wanted) > 0 {
			f := c.clients.nodeFeed()
			f.c, f.store, f.quiet = c, n, true
			n.feed = f
			following.Go(func() { _ = f.run(round) })
		}
		n.mu.Unlock()
		n.changed()
		select {
		case <-ctx.Done():
		case <-n.wake:
		}
		stop()
		following.Wait()
		if ctx.Err() != nil {
			return
		}
	}
}

// nodeFeed follows the metadata of all nodes.
func (c *clients) nodeFeed() *feed {
	f := &feed{resource: "nodes", cluster: true, example: &metav1.PartialObjectMetadata{}, empty: func() runtime.Object { return &metav1.PartialObjectMetadataList{} }}
	nodes := c.metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	f.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }
	f.watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) }
	return f
}

// placed are a pod's labels, with those that its node has and it lacks.
func (n *nodes) placed(node string, labels map[string]string) map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lacking := maps.Clone(n.all[node])
	maps.DeleteFunc(lacking, func(k, _ string) bool { return labels[k] != "" })
	if len(lacking) == 0 {
		return labels
	}
	for k, v := range labels {
		if v != "" || lacking[k] == "" {
			lacking[k] = v
		}
	}
	return lacking
}

// kept are the labels of a node that somebody wants; n.mu is held.
func (n *nodes) kept(labels map[string]string) map[string]string {
	out := map[string]string{}
	for _, k := range n.wanted {
		if v := labels[k]; v != "" {
			out[k] = v
		}
	}
	return out
}

// Add notes the labels of a node.
func (n *nodes) Add(o any) error {
	in, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("want a node, got %T", o)
	}
	n.mu.Lock()
	before := n.all[in.Name]
	now := n.kept(in.Labels)
	n.all[in.Name] = now
	n.mu.Unlock()
	if !maps.Equal(before, now) {
		n.changed()
	}
	return nil
}

// Update is Add.
func (n *nodes) Update(o any) error { return n.Add(o) }

// Delete forgets a node; its pods go with it, so nobody need be told.
func (n *nodes) Delete(o any) error {
	in, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("want a node, got %T", o)
	}
	n.mu.Lock()
	delete(n.all, in.Name)
	n.mu.Unlock()
	return nil
}

// Replace forgets all that are not in the list.
func (n *nodes) Replace(list []any, _ string) error {
	n.mu.Lock()
	n.all = make(map[string]map[string]string, len(list))
	for _, o := range list {
		if in, ok := o.(*metav1.PartialObjectMetadata); ok {
			n.all[in.Name] = n.kept(in.Labels)
		}
	}
	n.mu.Unlock()
	n.changed()
	return nil
}

// Resync has nothing to do.
func (n *nodes) Resync() error { return nil }

// Transformer keeps of a list only what counts.
func (n *nodes) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		in, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return o, nil
		}
		out := &metav1.PartialObjectMetadata{}
		out.Name, out.ResourceVersion = in.Name, in.ResourceVersion
		n.mu.Lock()
		out.Labels = n.kept(in.Labels)
		n.mu.Unlock()
		return out, nil
	}
}
