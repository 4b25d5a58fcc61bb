// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// activePorts are the annotations that limit on which of a pool's ports a pod serves.
var activePorts = []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// pod is a Pod manifest with a status, as kubectl prints it.
type pod struct {
	*document
	namespace, name, ip, node string
	labels                    map[string]string
	ports                     []string // empty for all
	broken                    bool
}

// readPod takes what makes a pod an endpoint; the rest of the manifest is Kubernetes' own.
func readPod(d *document) {
	meta, status := field(d.root, "metadata"), field(d.root, "status")
	p := pod{
		document: d, namespace: cmp.Or(text(meta, "namespace"), d.o.Namespace), name: text(meta, "name"),
		ip: text(status, "podIP"), node: text(status, "hostIP"),
	}
	if !d.named(p.name) {
		return
	}
	d.unique("Pod", p.namespace, p.name)
	strict(field(meta, "labels"), d.file, "metadata.labels", &p.labels, d.report)
	if why := notServing(meta, status); why != "" {
		d.problem(Note, "kind", "Pod %s is no endpoint: %s", p.name, why)
		d.endpointFile() // that it has none is what the file says
		return
	}
	if a, err := netip.ParseAddr(p.ip); err != nil || a.Zone() != "" {
		d.problem(Skipped, "status.podIP", "want an IP address, got %q", short(p.ip))
		p.broken = true
	} else {
		p.ip = a.Unmap().String()
	}
	if a, err := netip.ParseAddr(p.node); err == nil {
		p.node = a.Unmap().String()
	} else if p.node != "" {
		d.warn("status.hostIP", "is ignored: want an IP address, got %q", short(p.node))
		p.node = ""
	}
	for _, key := range activePorts {
		if s := text(field(meta, "annotations"), key); s != "" && p.ports == nil {
			p.ports = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	d.pods = append(d.pods, p)
}

// notServing tells why a pod gets no new requests; empty when it does. One that is being deleted still
// finishes what it has.
func notServing(meta, status *yaml.Node) string {
	switch phase := text(status, "phase"); {
	case text(meta, "deletionTimestamp") != "":
		return "it is being deleted"
	case phase == "Failed" || phase == "Succeeded":
		return "its phase is " + phase
	case text(status, "podIP") == "":
		return "its status has no podIP"
	}
	if conditions := field(status, "conditions"); conditions != nil {
		for _, c := range conditions.Content {
			if text(c, "type") == "Ready" && !strings.EqualFold(text(c, "status"), "true") {
				return "it is not ready"
			}
		}
	}
	return ""
}

// endpoints are one for each port of the pools that select the pod, named as llm-d names ranks.
func (p pod) endpoints(pools []*Pool) []EndpointEntry {
	var entries []EndpointEntry
	selected, known := false, map[string]bool{}
	for _, pool := range pools {
		if pool.Namespace != p.namespace || !selects(pool.Selector, p.labels) {
			continue
		}
		selected = true
		for rank, port := range pool.TargetPorts {
			known[strconv.Itoa(port)] = true
			if p.ports != nil && !slices.Contains(p.ports, strconv.Itoa(port)) {
				continue
			}
			e := EndpointEntry{
				Namespace: p.namespace, Name: fmt.Sprintf("%s-rank-%d", p.name, rank), Address: p.ip, Port: port,
				Pod: p.name, Node: p.node, Labels: p.labels, Line: p.root.Line,
			}
			i := slices.IndexFunc(entries, func(o EndpointEntry) bool { return o.Name == e.Name })
			if i < 0 {
				entries = append(entries, e)
			} else if entries[i].Port != port {
				p.warn("kind", "endpoint %s has port %d: another pool's selector and ports make it so, and port %d of pool %s is not used", e.id(), entries[i].Port, port, pool.Name)
			}
		}
	}
	if !selected && len(pools) > 0 {
		p.warn("metadata.labels", "Pod %s gets no requests: no pool here selects its labels in its namespace", p.name)
	}
	for _, port := range p.ports {
		if selected && !known[port] {
			p.warn("metadata.annotations", "%s: %q is no target port of the pools that select the pod", activePorts[0], short(port))
		}
	}
	if p.broken {
		p.endpointFile().add(EndpointFile{Broken: entries})
		return nil
	}
	return entries
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
