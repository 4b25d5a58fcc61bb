// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
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
	namespace, name, ip string
	labels              map[string]string
	ports               []string // empty for all
}

// readPod takes what makes a pod an endpoint; the rest of the manifest is Kubernetes' own.
func readPod(d *document) {
	meta, status := field(d.root, "metadata"), field(d.root, "status")
	p := pod{document: d, namespace: cmp.Or(text(meta, "namespace"), d.o.Namespace), name: text(meta, "name"), ip: text(status, "podIP")}
	if !d.named(p.name) {
		return
	}
	d.unique("Pod", p.namespace, p.name)
	if why := notServing(status); why != "" {
		d.problem(Note, "kind", "Pod %s is no endpoint: %s", p.name, why)
		return
	}
	if _, err := hostOf(p.ip); err != nil {
		d.fail("status.podIP", "%v", err)
		return
	}
	strict(field(meta, "labels"), d.file, "metadata.labels", &p.labels, d.report)
	for _, key := range activePorts {
		if s := text(field(meta, "annotations"), key); s != "" && p.ports == nil {
			p.ports = strings.Split(strings.ReplaceAll(s, " ", ""), ",")
		}
	}
	d.pods = append(d.pods, p)
}

// notServing tells why a pod with that status gets no requests; empty when it does.
func notServing(status *yaml.Node) string {
	if text(status, "podIP") == "" {
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
	for _, pool := range pools {
		if pool.Namespace != p.namespace || !selects(pool.Selector, p.labels) {
			continue
		}
		for rank, port := range pool.TargetPorts {
			e := EndpointEntry{Namespace: p.namespace, Name: fmt.Sprintf("%s-rank-%d", p.name, rank), Address: p.ip, Port: port, Labels: p.labels, Line: p.root.Line}
			known := slices.ContainsFunc(entries, func(o EndpointEntry) bool { return o.Name == e.Name })
			if !known && (p.ports == nil || slices.Contains(p.ports, strconv.Itoa(port))) {
				entries = append(entries, e)
			}
		}
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
