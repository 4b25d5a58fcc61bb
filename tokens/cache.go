// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"hash/maphash"
	"sync"
)

// segments remembers the tokens of texts between added tokens: system prompts, messages, tool lists. No merge reaches over
// an added token, so a conversation's next turn costs its new messages and a look at each old one, whoever sent those before.
//
// A text is known by its hash under a seed of this process and its length; the text itself is not kept. What was not used
// since the clock's hand last passed makes room.
type segments struct {
	shards [16]segmentShard
}

type segmentShard struct {
	mu     sync.Mutex
	known  map[segmentKey]*segmentEntry
	ring   []*segmentEntry
	hand   int
	bytes  int
	budget int
}

type segmentKey struct {
	hash uint64
	size uint32
	at0  bool
}

type segmentEntry struct {
	key  segmentKey
	ids  []uint32
	used bool
}

const (
	minSegment    = 96
	segmentBudget = 64 << 20
	// segmentCost is what an entry takes beside its tokens: its own fields, and its places in the map and the ring.
	segmentCost = 160
)

func (c *segments) init(budget int) {
	for i := range c.shards {
		c.shards[i] = segmentShard{known: map[segmentKey]*segmentEntry{}, budget: budget / len(c.shards)}
	}
}

func (c *segments) key(seg string, front bool) segmentKey {
	return segmentKey{maphash.String(seed, seg), uint32(len(seg)), front}
}

func (c *segments) shard(k segmentKey) *segmentShard { return &c.shards[k.hash>>60] }

func (c *segments) get(k segmentKey, to []uint32) ([]uint32, bool) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.known[k]
	if e == nil {
		return to, false
	}
	e.used = true
	return append(to, e.ids...), true
}

func (c *segments) put(k segmentKey, ids []uint32) {
	s := c.shard(k)
	size := segmentCost + 4*len(ids)
	if size > s.budget/4 {
		return
	}
	e := &segmentEntry{key: k, ids: append(make([]uint32, 0, len(ids)), ids...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[k] != nil {
		return
	}
	for s.bytes+size > s.budget && len(s.ring) > 0 {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		old := s.ring[s.hand]
		if old.used {
			old.used = false
			s.hand++
			continue
		}
		delete(s.known, old.key)
		s.bytes -= segmentCost + 4*len(old.ids)
		last := len(s.ring) - 1
		s.ring[s.hand] = s.ring[last]
		s.ring[last] = nil
		s.ring = s.ring[:last]
	}
	s.known[k] = e
	s.ring = append(s.ring, e)
	s.bytes += size
}
