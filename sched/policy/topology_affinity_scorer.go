// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// TopologyAffinityScorer prefers endpoints near the one that does another leg of the same request: on the same host
// an endpoint scores 1, in the same rack 0.2, zone 0.05, region 0.02, elsewhere 0. Without such a leg all score 0.
type TopologyAffinityScorer struct {
	Nearness
}

var nearnessScores = [...]float64{sameHost: 1, sameRack: 0.2, sameZone: 0.05, sameRegion: 0.02, farAway: 0}

// Score implements [sched.Scorer].
func (p *TopologyAffinityScorer) Score(c *sched.Cycle, score []float64) {
	if c.Peer == nil {
		return
	}
	for i, e := range c.Candidates {
		score[i] = nearnessScores[p.of(e, c.Peer)]
	}
}
