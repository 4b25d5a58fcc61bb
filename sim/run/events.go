// SPDX-License-Identifier: Apache-2.0

package run

import (
	"time"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/work"
)

// An engine's KV events come to the gateways in batches, one for each step, some time after it.

// word is one event: blocks that were stored, or that left, or that all did.
type word struct {
	stored         []uint64 // in the batch's hashes; nil for none
	removed        []uint64
	cleared        bool
	parent         uint64
	hasParent      bool
	tokens         []uint32
	adapter        string
	hashes, tokenN int // where they begin, while the batch grows
	count          int
}

// batch is what an engine said in one step.
type batch struct {
	n      *instance
	life   uint64 // of the engine
	words  []word
	hashes []uint64
	tokens []uint32
	lost   bool
}

// open is the batch that grows.
func (n *instance) open() *batch {
	if n.batch == nil {
		if last := len(n.r.batches) - 1; last >= 0 {
			n.batch, n.r.batches = n.r.batches[last], n.r.batches[:last]
		} else {
			n.batch = &batch{}
		}
		n.batch.n, n.batch.life, n.batch.lost = n, n.started, false
	}
	return n.batch
}

// Stored implements [engine.Events].
func (n *instance) Stored(s *engine.Seq, first int, parent uint64, hashes []uint64) {
	b, size := n.open(), n.spec.Config.BlockSize
	q, ended := s.Tag.(*work.Request)
	if !ended {
		q = s.Tag.(*exchange).req
	}
	w := word{hashes: len(b.hashes), tokenN: len(b.tokens), count: len(hashes), parent: parent, hasParent: first > 0, adapter: s.Adapter}
	w.stored = hashes // as a mark; set when the batch is whole
	b.hashes = append(b.hashes, hashes...)
	b.tokens = tokens(b.tokens, q, first*size, len(hashes)*size)
	b.words = append(b.words, w)
}

// Removed implements [engine.Events].
func (n *instance) Removed(hash uint64) {
	b := n.open()
	b.hashes = append(b.hashes, hash)
	if last := len(b.words) - 1; last >= 0 && b.words[last].stored == nil && !b.words[last].cleared {
		b.words[last].count++
		return
	}
	b.words = append(b.words, word{hashes: len(b.hashes) - 1, count: 1})
}

// Cleared implements [engine.Events].
func (n *instance) Cleared() {
	b := n.open()
	b.words = append(b.words, word{cleared: true})
}

// publish sends the batch on its way.
func (n *instance) publish() {
	b := n.batch
	if b == nil {
		return
	}
	n.batch = nil
	for i := range b.words {
		w := &b.words[i]
		list := b.hashes[w.hashes : w.hashes+w.count]
		switch {
		case w.cleared:
		case w.stored != nil:
			w.stored, w.tokens = list, b.tokens[w.tokenN:w.tokenN+w.count*n.spec.Config.BlockSize]
		default:
			w.removed = list
		}
	}
	b.lost = n.deaf > 0 && n.r.chance.Float64() < n.deaf
	n.r.plan(n.r.now+n.r.Events+n.late, b, 0)
}

// happen is that a batch arrives, or would have.
func (b *batch) happen(uint32) {
	n := b.n
	for _, d := range n.r.doors {
		if !d.down && b.life == n.started && !n.hidden {
			d.hear(n, b)
		}
	}
	b.words, b.hashes, b.tokens = b.words[:0], b.hashes[:0], b.tokens[:0]
	n.r.batches = append(n.r.batches, b)
}

// hear applies a batch, as the source of events does. That one is missing shows with the next that comes.
func (d *door) hear(n *instance, b *batch) {
	load := n.loads[d.i]
	if load == nil {
		return
	}
	if b.lost {
		n.missed[d.i]++
		return
	}
	now := d.r.Now()
	for _, m := range d.lane.Mirrors {
		f := m.Of(load.Slot)
		if f == nil {
			f = m.Follow(load.Slot, n.spec.Config.BlockSize)
		}
		if n.missed[d.i] > 0 {
			f.Gap(n.missed[d.i], now)
		}
		if ok, _ := f.Believe(now); !ok {
			continue
		}
		for i := range b.words {
			w := &b.words[i]
			switch {
			case w.cleared:
				f.Cleared(0)
			case w.stored != nil:
				f.Stored(&kvcache.Stored{Hashes: w.stored, Parent: w.parent, HasParent: w.hasParent, Tokens: w.tokens,
					BlockTokens: n.spec.Config.BlockSize, Adapter: w.adapter, Tier: kvcache.GPU})
			default:
				f.Removed(w.removed, kvcache.GPU, 0, 0)
			}
		}
	}
	n.missed[d.i] = 0
}

// tokens appends n token ids of a request's prompt and its answer, from that place on.
func tokens(into []uint32, q *work.Request, from, n int) []uint32 {
	add := func(s work.Segment) {
		size := int(s.Tokens)
		if from >= size {
			from -= size
			return
		}
		base := spread(s.ID)
		for i := from; i < size && n > 0; i++ {
			pair := base + uint64(i/2)*0x9e3779b97f4a7c15
			into = append(into, uint32(pair>>(i%2*32)))
			n--
		}
		from = 0
	}
	for _, s := range q.Prompt {
		if n <= 0 {
			break
		}
		add(s)
	}
	if n > 0 {
		add(work.Segment{ID: q.Answer, Tokens: int32(q.Output)})
	}
	return into
}

// hearing is how an engine is heard: by how much more its events are late, and which share of them is lost.
type hearing struct {
	late   time.Duration
	deaf   float64
	missed []uint64 // by each gateway, and not noticed yet
	batch  *batch
}
