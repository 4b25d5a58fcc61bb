// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock-project/penstock/fleet"
)

// activePorts are the annotations that limit on which of a pool's ports a pod serves, the newer first.
var activePorts = []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// hostname is the label that says on which node an endpoint is.
const hostname = "kubernetes.io/hostname"

// pod is what counts of a Pod.
type pod struct {
	name, uid string
	address   string // canonical, without brackets; empty while it gets no new requests
	node, on  string // address and name of its node
	labels    map[string]string
	ports     []int  // nil for all
	odd       string // what is wrong with the annotation that limits them
}

// podOf reads a Pod; the address is empty unless it may get requests. One that is being deleted finishes what it has.
func podOf(p *corev1.Pod) pod {
	out := pod{name: p.Name, uid: string(p.UID), labels: p.Labels}
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return out
	}
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	ip := p.Status.PodIP
	if ip == "" && len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	a, err := netip.ParseAddr(ip)
	if !ready || err != nil || a.Zone() != "" {
		return out
	}
	out.address = a.Unmap().String()
	if a, err := netip.ParseAddr(p.Status.HostIP); err == nil {
		out.node = a.Unmap().String()
	}
	out.on = p.Spec.NodeName
	if p.Spec.NodeName != "" && p.Labels[hostname] == "" {
		out.labels = maps.Clone(p.Labels)
		if out.labels == nil {
			out.labels = map[string]string{}
		}
		out.labels[hostname] = p.Spec.NodeName
	}
	for _, key := range activePorts {
		s, ok := p.Annotations[key]
		if !ok {
			continue
		}
		var odd string
		if out.ports, odd = portsOf(s); odd != "" {
			out.odd = key + ": " + odd
		}
		break
	}
	return out
}

// maxPorts is how many ports of an annotation count; a pool has 8.
const maxPorts = 64

// portsOf reads a list of ports. odd is the first word that is none, or tells of too many.
func portsOf(s string) (ports []int, odd string) {
	ports = []int{}
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		n, err := strconv.Atoi(word)
		switch {
		case err != nil || n < 1 || n > 65535:
			if odd == "" {
				odd = fmt.Sprintf("%.40q is no port: want such as 8000,8001", word)
			}
		case len(ports) == maxPorts:
			return ports, cmp.Or(odd, fmt.Sprintf("only the first %d ports count", maxPorts))
		default:
			ports = append(ports, n)
		}
	}
	return ports, odd
}

func (p *pod) equal(o *pod) bool {
	return p.uid == o.uid && p.address == o.address && p.node == o.node && p.on == o.on && p.odd == o.odd && slices.Equal(p.ports, o.ports) && (p.ports == nil) == (o.ports == nil) && maps.Equal(p.labels, o.labels)
}

// pods are the pods of one namespace, as a [cache.ReflectorStore].
type pods struct {
	namespace string
	changed   func()
	warn      func(pod, problem string)

	mu  sync.Mutex
	all map[string]pod // by name
}

func newPods(namespace string, changed func()) *pods {
	return &pods{namespace: namespace, all: map[string]pod{}, changed: changed, warn: func(string, string) {}}
}

// finished are pods that never serve again; we do not ask for them.
var finished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
).String()

// podFeed follows the pods of a namespace into p.
func podFeed(c *Cluster, p *pods) *feed {
	f := c.clients.feed(c.clients.core, "/api/v1", p.namespace, "pods", finished)
	f.filled = p.changed
	f.c, f.example, f.store, f.empty = c, &corev1.Pod{}, p, func() runtime.Object { return &corev1.PodList{} }
	return f
}

// Add notes what a pod is now.
func (p *pods) Add(o any) error {
	in, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("want a Pod, got %T", o)
	}
	now := podOf(in)
	p.mu.Lock()
	before, known := p.all[now.name]
	same := known && before.equal(&now)
	if !same {
		p.all[now.name] = now
	}
	p.mu.Unlock()
	if now.odd != "" && now.odd != before.odd {
		p.warn(now.name, now.odd)
	}
	if !same && (before.address != "" || now.address != "") {
		p.changed()
	}
	return nil
}

// Update is Add.
func (p *pods) Update(o any) error { return p.Add(o) }

// Delete forgets a pod.
func (p *pods) Delete(o any) error {
	in, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("want a Pod, got %T", o)
	}
	p.mu.Lock()
	before := p.all[in.Name]
	delete(p.all, in.Name)
	p.mu.Unlock()
	if before.address != "" {
		p.changed()
	}
	return nil
}

// Replace forgets all that are not in the list.
func (p *pods) Replace(list []any, _ string) error {
	all := make(map[string]pod, len(list))
	for _, o := range list {
		if in, ok := o.(*corev1.Pod); ok {
			all[in.Name] = podOf(in)
		}
	}
	p.mu.Lock()
	before := p.all
	p.all = all
	p.mu.Unlock()
	for name, now := range all {
		if now.odd != "" && now.odd != before[name].odd {
			p.warn(name, now.odd)
		}
	}
	p.changed()
	return nil
}

// Resync has nothing to do.
func (p *pods) Resync() error { return nil }

// Transformer keeps of a list that is streamed only what counts.
func (p *pods) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		in, ok := o.(*corev1.Pod)
		if !ok {
			return o, nil
		}
		return slim(in), nil
	}
}

func slim(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = p.Name, p.Namespace, p.UID, p.ResourceVersion
	out.Labels, out.Annotations, out.DeletionTimestamp = p.Labels, p.Annotations, p.DeletionTimestamp
	out.Spec.NodeName = p.Spec.NodeName
	out.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, HostIP: p.Status.HostIP, Conditions: p.Status.Conditions}
	return out
}

// pool is what counts of an InferencePool for finding its endpoints.
type pool struct {
	name     string
	selector labels.Selector
	ports    []int
}

// endpoints are the ports of the pods that pools select, one endpoint for each, named as llm-d names ranks. Pools that
// have a port in common share the endpoint; where the ranks of two pools have other ports, the endpoints of the pool
// whose name comes later have the port in their names.
//
// placed completes the labels of a pod on that node.
func (p *pods) endpoints(pools []pool, placed func(node string, labels map[string]string) map[string]string) []fleet.EndpointSpec {
	p.mu.Lock()
	all := make([]pod, 0, len(p.all))
	for _, one := range p.all {
		if one.address != "" {
			all = append(all, one)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b pod) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(pools, func(a, b pool) int { return cmp.Compare(a.name, b.name) })
	out := []fleet.EndpointSpec{}
	for i := range all {
		first := len(out)
		if out = all[i].endpoints(out, p.namespace, pools); len(out) > first && all[i].on != "" {
			labels := placed(all[i].on, all[i].labels)
			for k := first; k < len(out); k++ {
				out[k].Labels = labels
			}
		}
	}
	return out
}

// endpoints appends those of one pod.
func (p *pod) endpoints(out []fleet.EndpointSpec, namespace string, pools []pool) []fleet.EndpointSpec {
	first := len(out)
	for _, pool := range pools {
		if !pool.selector.Matches(labels.Set(p.labels)) {
			continue
		}
		for rank, port := range pool.ports {
			if p.ports != nil && !slices.Contains(p.ports, port) {
				continue
			}
			address := netip.AddrPortFrom(netip.MustParseAddr(p.address), uint16(port)).String()
			if i := slices.IndexFunc(out[first:], func(e fleet.EndpointSpec) bool { return e.Address == address }); i >= 0 {
				e := &out[first+i]
				e.In = append(e.In, pool.name)
				continue
			}
			name := p.name + "-rank-" + strconv.Itoa(rank)
			if slices.ContainsFunc(out[first:], func(e fleet.EndpointSpec) bool { return e.Name == name }) {
				name += "-" + strconv.Itoa(port)
			}
			out = append(out, fleet.EndpointSpec{
				ID: fleet.ID{Namespace: namespace, Name: name}, Address: address, Pod: p.name, NodeAddress: p.node,
				Labels: p.labels, In: []string{pool.name}, Life: p.uid,
			})
		}
	}
	return out
}
