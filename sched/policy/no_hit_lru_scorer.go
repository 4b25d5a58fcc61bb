// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"sync"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// NoHitLRUScorer spreads requests whose prompt no candidate has cached, so that new prefixes do not all grow
// on one endpoint.
//
// Where some candidate has cached a part of the prompt each scores 0.5. Else the candidates are ranked
// by when they last got such a request: those that never did score 1, and of n candidates the others,
// from the one that waited longest, score 1 - rank/(n-1). The rank is among the candidates of the
// request. It needs no signal of the engines.
type NoHitLRUScorer struct {
	// LRUSize is how many endpoints are remembered; one beyond is as if it never got a request.
	LRUSize int `json:"lruSize"`
	// PrefixMatchInfoProducerName names the producer to read; empty for the default one.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// PrefixPluginType is deprecated and has no effect.
	PrefixPluginType string `json:"prefixPluginType"`
	// PrefixPluginName is deprecated and has no effect: write prefixMatchInfoProducerName.
	PrefixPluginName string `json:"prefixPluginName"`

	mu    sync.Mutex
	turn  uint64
	last  []uint64 // by slot: the turn at which it last got a cold request, 0 for never
	known int      // slots with a turn
	ranks []uint64 // while scoring
}

// Validate reports a size at which nothing is remembered.
func (p *NoHitLRUScorer) Validate() error {
	if p.LRUSize <= 0 {
		return errors.New("lruSize: must be above 0")
	}
	return nil
}

// Inactive tells of deprecated parameters.
func (p *NoHitLRUScorer) Inactive() []string {
	var told []string
	for _, old := range [][2]string{{"prefixPluginType", p.PrefixPluginType}, {"prefixPluginName", p.PrefixPluginName}} {
		if old[1] != "" {
			told = append(told, old[0]+": is deprecated and has no effect: prefixMatchInfoProducerName names the producer to read")
		}
	}
	return told
}

// Score implements [sched.Scorer].
func (p *NoHitLRUScorer) Score(c *sched.Cycle, score []float64) {
	if p.warm(c) {
		for i := range score {
			score[i] = 0.5
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ranks = p.ranks[:0]
	for _, e := range c.Candidates {
		if t := p.turnOf(e.Load.Slot); t > 0 {
			p.ranks = append(p.ranks, t)
		}
	}
	slices.Sort(p.ranks)
	never, last := len(score)-len(p.ranks), float64(len(score)-1)
	for i, e := range c.Candidates {
		score[i] = 1
		if t := p.turnOf(e.Load.Slot); t > 0 && last > 0 {
			rank, _ := slices.BinarySearch(p.ranks, t)
			score[i] = 1 - float64(never+rank)/last
		}
	}
}

// warm reports whether some candidate has cached a part of the prompt.
func (p *NoHitLRUScorer) warm(c *sched.Cycle) bool {
	for _, m := range c.Prefix(p.PrefixMatchInfoProducerName).Match {
		if m > 0 {
			return true
		}
	}
	return false
}

// Placed implements [sched.Placer]. The peer, if there is one, gets the prompt too.
func (p *NoHitLRUScorer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	if p.warm(c) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Peer != nil {
		p.take(c.Peer.Load)
	}
	p.take(chosen.Load)
}

// take makes an endpoint the one that got a cold request last.
func (p *NoHitLRUScorer) take(l *fleet.Load) {
	if l.Ended() {
		return // Gone may have come first: the slot must be clean for another
	}
	for int(l.Slot) >= len(p.last) {
		p.last = append(p.last, 0)
	}
	if p.last[l.Slot] == 0 {
		if p.known >= p.LRUSize {
			p.forget()
		}
		p.known++
	}
	p.turn++
	p.last[l.Slot] = p.turn
}

// forget drops the endpoint that waited longest.
func (p *NoHitLRUScorer) forget() {
	oldest := -1
	for i, t := range p.last {
		if t > 0 && (oldest < 0 || t < p.last[oldest]) {
			oldest = i
		}
	}
	p.last[oldest] = 0
	p.known--
}

// Gone implements [sched.Leaver].
func (p *NoHitLRUScorer) Gone(loads []*fleet.Load) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range loads {
		if p.turnOf(l.Slot) > 0 {
			p.last[l.Slot] = 0
			p.known--
		}
	}
}

func (p *NoHitLRUScorer) turnOf(slot uint32) uint64 {
	if int(slot) >= len(p.last) {
		return 0
	}
	return p.last[slot]
}
