// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// unshown remembers placements until the index shows them to everybody. A prompt is looked up before
// the step in which decisions are made one at a time, and added to the index after it, since both take
// long; without this, requests that come at once would not know where the first of them went.
type unshown struct {
	mu     sync.Mutex
	clock  uint64 // placements that the index shows
	next   int
	places []place // a ring
}

// mostUnshown is far more than decisions are made while one request waits for its own.
const mostUnshown = 64

// place is a prompt that was sent to an endpoint, by samples of its chain of keys: each stands for its block and
// all before it, so that few are enough to compare two prompts.
type place struct {
	load    *fleet.Load
	shown   uint64 // the clock from which on the index shows it, 0 for not yet
	blocks  int
	last    uint64
	samples [20]uint64 // the keys of the blocks 1, 2, 4, 8 and so on
}

func (u *unshown) now() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.clock
}

// refresh raises matches to what was placed since the lookup.
func (u *unshown) refresh(c *sched.Cycle, found *sched.Prefix) {
	keys := firstPrompt(found)
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.places {
		p := &u.places[i]
		if p.load == nil || p.shown > 0 && p.shown <= found.Asked {
			continue
		}
		common := int32(p.common(keys))
		if common == 0 {
			continue
		}
		for k, e := range c.Candidates {
			if e.Load == p.load {
				found.Match[k] = max(found.Match[k], common)
			}
		}
	}
}

// reserve remembers a placement, once for equal prompts on one endpoint.
func (u *unshown) reserve(found *sched.Prefix, load *fleet.Load) {
	keys := firstPrompt(found)
	if len(keys) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.find(keys, load)
	switch {
	case p != nil:
		p.shown = 0
		return
	case len(u.places) < mostUnshown:
		u.places = append(u.places, place{})
		p = &u.places[len(u.places)-1]
	default:
		p = &u.places[u.next]
		u.next = (u.next + 1) % mostUnshown
	}
	*p = place{load: load, blocks: len(keys), last: keys[len(keys)-1]}
	for k := range p.samples {
		if 1<<k <= len(keys) {
			p.samples[k] = keys[1<<k-1]
		}
	}
}

// added is told that the index shows a placement from now on. One of an incarnation that ended is forgotten.
func (u *unshown) added(found *sched.Prefix, load *fleet.Load) {
	keys := firstPrompt(found)
	if len(keys) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clock++
	p := u.find(keys, load)
	switch {
	case p == nil:
	case load.Ended():
		*p = place{}
	default:
		p.shown = u.clock
	}
}

func (u *unshown) find(keys []uint64, load *fleet.Load) *place {
	for i := range u.places {
		if p := &u.places[i]; p.load == load && p.blocks == len(keys) && p.last == keys[len(keys)-1] {
			return p
		}
	}
	return nil
}

// common is how many blocks of a prompt the place has at least.
func (p *place) common(keys []uint64) int {
	if p.blocks <= len(keys) && keys[p.blocks-1] == p.last {
		return p.blocks
	}
	for k := len(p.samples) - 1; k >= 0; k-- {
		if n := 1 << k; n <= p.blocks && n <= len(keys) && keys[n-1] == p.samples[k] {
			return n
		}
	}
	return 0
}

// firstPrompt are the keys of a request's first prompt; its others are left to the index.
func firstPrompt(found *sched.Prefix) []uint64 {
	if found.Hash == nil || len(found.Hash.Keys) == 0 {
		return nil
	}
	if s := found.Hash.Starts; len(s) > 1 {
		return found.Hash.Keys[:s[1]]
	}
	return found.Hash.Keys
}
