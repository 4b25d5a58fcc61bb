// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/penstock-project/penstock/sched"
)

// TopologyAffinityFilter keeps endpoints near the one that does another leg of the same request: on the same host, or
// at least in the same rack, zone or region. Without such a leg, and where no endpoint is as near, it keeps all.
type TopologyAffinityFilter struct {
	// MinAffinity is how near is near enough: host, rack, zone or region.
	MinAffinity string `json:"minAffinity"`
	Nearness
}

var levels = []string{"host", "rack", "zone", "region"}

// Validate reports a level that does not exist.
func (p *TopologyAffinityFilter) Validate() error {
	if !slices.Contains(levels, p.MinAffinity) {
		return fmt.Errorf("minAffinity: want host, rack, zone or region, got %q", p.MinAffinity)
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *TopologyAffinityFilter) Filter(c *sched.Cycle, keep []bool) {
	if c.Peer == nil {
		return
	}
	least, none := slices.Index(levels, p.MinAffinity), true
	for i, e := range c.Candidates {
		keep[i] = p.of(e, c.Peer) <= least
		none = none && !keep[i]
	}
	if none {
		keepAll(keep)
	}
}

// Reason implements [sched.Reasoner].
func (p *TopologyAffinityFilter) Reason() string {
	return "it is not in the " + p.MinAffinity + " of the endpoint that does another leg of the request"
}
