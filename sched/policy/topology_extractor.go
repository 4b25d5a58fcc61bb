// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"

	"github.com/penstock-project/penstock/fleet"
)

// TopologyExtractor says which labels of endpoints tell where they stand. It needs no source: labels are
// known as soon as an endpoint is. Two endpoints share a host also when they have the same node address and one of them
// lacks the label.
type TopologyExtractor struct {
	// Hostname is the label with the host.
	Hostname string `json:"hostname"`
	// Rack is the label with the rack.
	Rack string `json:"rack"`
	// Zone is the label with the zone.
	Zone string `json:"zone"`
	// Region is the label with the region.
	Region string `json:"region"`
}

func newTopologyExtractor() *TopologyExtractor {
	return &TopologyExtractor{
		Hostname: "kubernetes.io/hostname", Rack: "topology.kubernetes.io/rack",
		Zone: "topology.kubernetes.io/zone", Region: "topology.kubernetes.io/region",
	}
}

// Validate reports a level without a label.
func (p *TopologyExtractor) Validate() error {
	switch "" {
	case p.Hostname:
		return errors.New("hostname: is empty: want a label")
	case p.Rack:
		return errors.New("rack: is empty: want a label")
	case p.Zone:
		return errors.New("zone: is empty: want a label")
	case p.Region:
		return errors.New("region: is empty: want a label")
	}
	return nil
}

// The levels of nearness.
const (
	sameHost = iota
	sameRack
	sameZone
	sameRegion
	farAway
)

// nearness is the closest level that two endpoints share.
func (p *TopologyExtractor) nearness(a, b *fleet.Endpoint) int {
	x, y := a.Labels[p.Hostname], b.Labels[p.Hostname]
	if x == "" || y == "" {
		x, y = a.NodeAddress, b.NodeAddress
	}
	switch {
	case x != "" && x == y:
		return sameHost
	case shared(a, b, p.Rack):
		return sameRack
	case shared(a, b, p.Zone):
		return sameZone
	case shared(a, b, p.Region):
		return sameRegion
	}
	return farAway
}

func shared(a, b *fleet.Endpoint, label string) bool {
	v := a.Labels[label]
	return v != "" && v == b.Labels[label]
}

// Nearness is the parameter of those who read where endpoints stand.
type Nearness struct {
	// TopologyProducerName names the topology-extractor whose labels count; empty for the first, or for its default
	// labels where there is none.
	TopologyProducerName string `json:"topologyProducerName"`

	by *TopologyExtractor
}

// Topology names the plugin to read.
func (p *Nearness) Topology() string { return p.TopologyProducerName }

// SetTopology tells the plugin to read, before the first request.
func (p *Nearness) SetTopology(x *TopologyExtractor) { p.by = x }

// Labels are those by which the plugin tells where endpoints stand, but for the host.
func (p *Nearness) Labels() []string {
	by := cmp.Or(p.by, defaultTopology)
	return []string{by.Rack, by.Zone, by.Region}
}

var defaultTopology = newTopologyExtractor()

func (p *Nearness) of(a, b *fleet.Endpoint) int {
	return cmp.Or(p.by, defaultTopology).nearness(a, b)
}
