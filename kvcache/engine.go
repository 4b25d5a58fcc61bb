// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// EngineOptions say how one endpoint's engine is followed.
type EngineOptions struct {
	// Slot is the endpoint's in the index.
	Slot uint32
	// Model is the name that requests for the engine's own model have; adapters go by theirs.
	Model string
	// BlockTokens is our block and CellTokens the cell of the chain ([Hasher.ResetTokens]), which divides it.
	BlockTokens, CellTokens int
	// MaxBlocks bounds the engine's blocks that are followed, MaxWaiting the tokens of blocks whose parent is not
	// known; 0 for 4,194,304 and 262,144.
	MaxBlocks, MaxWaiting int
}

// Validate reports sizes that cannot be.
func (o *EngineOptions) Validate() error {
	switch {
	case o.CellTokens <= 0:
		return fmt.Errorf("cellTokens: must be above 0, got %d", o.CellTokens)
	case o.BlockTokens <= 0 || o.BlockTokens%o.CellTokens != 0:
		return fmt.Errorf("blockTokens: must be a multiple of %d, got %d", o.CellTokens, o.BlockTokens)
	case o.BlockTokens/o.CellTokens > 1<<15:
		return fmt.Errorf("blockTokens: must be at most %d cells, got %d", 1<<15, o.BlockTokens/o.CellTokens)
	case o.MaxBlocks < 0 || o.MaxWaiting < 0:
		return fmt.Errorf("maxBlocks and maxWaiting: must not be below 0")
	}
	return nil
}

// Stored is an engine's word that it holds blocks which follow one another.
type Stored struct {
	// Hashes are the engine's names of the blocks. Parent is the block before the first; without HasParent it is
	// the start of a prompt.
	Hashes    []uint64
	Parent    uint64
	HasParent bool
	// Tokens are the ids in all the blocks, BlockTokens in each. Without Tokens known blocks came into one more tier.
	Tokens      []uint32
	BlockTokens int
	// Adapter is the adapter's name; empty for the engine's own model.
	Adapter string
	// Extras are what each block depends on besides its tokens: hashes of media, a salt. Nil for nothing.
	Extras [][]string
	Tier   Tier
	// Group is the number of the attention group, Kind its kind: only full attention is followed, for
	// in any other group a block that left does not end the prefix.
	Group int
	Kind  string
	Rank  int
}

// Counts tell what became of an engine's events.
type Counts struct {
	// Blocks are followed now, Waiting wait now for their parent.
	Blocks, Waiting int
	// Stored, Again (stored before), Removed and Unknown (removed or moved, but never seen) count engine blocks.
	Stored, Again, Removed, Unknown uint64
	// Orphans waited for a parent; Adopted found it and Lost did not.
	Orphans, Adopted, Lost uint64
	// Misfit blocks have sizes or token counts that do not fit, Skipped are of a group that is not followed,
	// Full came when MaxBlocks were followed.
	Misfit, Skipped, Full uint64
	// Clears, Restarts and Gaps count events; Missed the messages in the gaps.
	Clears, Restarts, Gaps, Missed uint64
}

// Engine follows the blocks of one endpoint by the events of its engine, and keeps the index true to them. The engine's
// names of blocks mean nothing elsewhere: our keys are computed from the tokens, on from the parent's, so that they equal
// those that [Hasher.ResetTokens] gives for the same tokens.
//
// The engine's blocks may be of any size that is a multiple of the cell. Where several make one of ours, it is held from
// the last of them on and until that leaves, which engines let go first; where one holds several of ours, they come and go
// together. A block that an engine holds twice, in two ranks or under two names leaves with the last. Blocks whose
// parent is not known wait for it, within a bound. An Engine may be used by many goroutines.
type Engine struct {
	mu     sync.Mutex
	index  *Index
	o      EngineOptions
	closed bool
	blocks map[uint64]block
	inner  map[uint64][]uint64 // our keys in a block, unless the state at its end is the only one
	also   map[place]uint32    // how often a key is held beyond once
	skip   map[int]bool        // groups that are not followed
	ranks  map[int]struct{}
	counts Counts

	waiting  map[uint64][]*waiter // by parent
	waits    map[uint64]*waiter   // by block
	queue    []*waiter            // oldest first
	waitsFor int                  // tokens

	chain      chain
	cell       []byte
	fresh, old []uint64
	next       []*waiter
}

// block is one of the engine's.
type block struct {
	state uint64 // of the chain at its end
	phase uint16 // cells since the last end of a block of ours
	rank  uint8
	count [tiers]uint8
}

type place struct {
	key  uint64
	tier Tier
}

type waiter struct {
	Stored
	ids  []uint64
	gone bool
}

// NewEngine follows an engine whose options are valid.
func NewEngine(x *Index, o EngineOptions) *Engine {
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 1 << 22
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 1 << 18
	}
	e := &Engine{index: x, o: o, skip: map[int]bool{}, ranks: map[int]struct{}{}}
	e.reset()
	return e
}

func (e *Engine) reset() {
	e.blocks, e.inner, e.also = map[uint64]block{}, map[uint64][]uint64{}, map[place]uint32{}
	e.counts.Lost += uint64(len(e.waits))
	e.waiting, e.waits, e.queue, e.waitsFor = map[uint64][]*waiter{}, map[uint64]*waiter{}, nil, 0
}

// name is a block's name among all ranks and groups.
func name(hash uint64, group, rank int) uint64 {
	if group == 0 && rank == 0 {
		return hash
	}
	return mix(hash^uint64(group+1)<<32) + mix(uint64(rank+1))
}

const mostRanks = 256

// follows tells whether a group matters.
func follows(kind string) bool {
	switch kind {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// Store applies an event. It keeps nothing of s.
func (e *Engine) Store(s *Stored) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := uint64(len(s.Hashes))
	switch {
	case e.closed || n == 0:
		return
	case !follows(s.Kind):
		if len(e.skip) < 1024 {
			e.skip[s.Group] = true
		}
		e.counts.Skipped += n
		return
	case e.skip[s.Group] && s.Kind == "":
		e.counts.Skipped += n
		return
	case s.Rank < 0 || s.Rank >= mostRanks || s.Tier >= tiers:
		e.counts.Misfit += n
		return
	}
	e.ranks[s.Rank] = struct{}{}
	if len(s.Tokens) == 0 {
		e.move(s)
		return
	}
	if s.BlockTokens <= 0 || s.BlockTokens%e.o.CellTokens != 0 || len(s.Tokens)/s.BlockTokens != len(s.Hashes) ||
		len(s.Tokens)%s.BlockTokens != 0 || s.BlockTokens > e.o.MaxWaiting {
		e.counts.Misfit += n
		return
	}
	e.next = e.next[:0]
	e.store(s)
	for len(e.next) > 0 {
		w := e.next[len(e.next)-1]
		e.next = e.next[:len(e.next)-1]
		if !w.gone {
			e.forget(w)
			e.counts.Adopted += uint64(len(w.Hashes))
			e.store(&w.Stored)
		}
	}
}

// store computes the keys of blocks and confirms them, or lets the blocks wait.
func (e *Engine) store(s *Stored) {
	at := block{}
	if s.HasParent {
		parent, ok := e.blocks[name(s.Parent, s.Group, s.Rank)]
		if !ok {
			e.wait(s)
			return
		}
		at = parent
	} else {
		model := s.Adapter
		if model == "" {
			model = e.o.Model
		}
		at.state = xxhash.Sum64String(model)
	}
	cells := uint16(e.o.BlockTokens / e.o.CellTokens)
	e.chain.state, e.chain.extras = at.state, e.chain.extras[:0]
	phase := at.phase
	e.fresh, e.old = e.fresh[:0], e.old[:0]
	for i, hash := range s.Hashes {
		id := name(hash, s.Group, s.Rank)
		b, known := e.blocks[id]
		if !known && len(e.blocks) >= e.o.MaxBlocks {
			e.counts.Full += uint64(len(s.Hashes) - i)
			break
		}
		if i < len(s.Extras) {
			for _, x := range s.Extras[i] {
				if x != s.Adapter || x == "" { // engines list the adapter as well
					e.chain.extra(x)
				}
			}
		}
		list := &e.fresh
		if known && b.count[s.Tier] > 0 {
			list = &e.old
		}
		first := len(*list)
		for t := range s.BlockTokens / e.o.CellTokens {
			e.cell = e.cell[:0]
			for _, token := range s.Tokens[i*s.BlockTokens+t*e.o.CellTokens:][:e.o.CellTokens] {
				e.cell = binary.LittleEndian.AppendUint32(e.cell, token)
			}
			e.chain.next(e.cell)
			if phase++; phase == cells {
				phase = 0
				*list = append(*list, e.chain.state)
			}
		}
		if known && (b.state != e.chain.state || b.phase != phase) { // the name means something else now
			keys := append([]uint64(nil), (*list)[first:]...)
			*list = (*list)[:first]
			e.flush(s.Tier)
			e.drop(id, b)
			list, first, b, known = &e.fresh, len(e.fresh), block{}, false
			*list = append(*list, keys...)
		}
		keys := (*list)[first:]
		if !known {
			b.state, b.phase, b.rank = e.chain.state, phase, uint8(s.Rank)
			if len(keys) > 1 || len(keys) == 1 && phase != 0 {
				e.inner[id] = append([]uint64(nil), keys...)
			}
		}
		if b.count[s.Tier] == 0 {
			e.counts.Stored++
		} else {
			e.counts.Again++
		}
		if b.count[s.Tier] < 255 {
			b.count[s.Tier]++
		}
		e.blocks[id] = b
		e.adopt(id)
	}
	e.flush(s.Tier)
}

// adopt lines up the blocks that waited for one.
func (e *Engine) adopt(id uint64) {
	if len(e.waiting) == 0 {
		return
	}
	e.next = append(e.next, e.waiting[id]...)
}

// flush confirms the keys gathered so far.
func (e *Engine) flush(tier Tier) {
	e.index.confirm(e.fresh, e.o.Slot, tier, func(key uint64) {
		if p := (place{key, tier}); e.also[p] > 0 || len(e.also) < e.o.MaxBlocks {
			e.also[p]++
		}
	})
	if len(e.old) > 0 {
		e.index.Confirm(e.old, e.o.Slot, tier)
	}
	e.fresh, e.old = e.fresh[:0], e.old[:0]
}

// move brings known blocks into one more tier.
func (e *Engine) move(s *Stored) {
	e.fresh, e.old = e.fresh[:0], e.old[:0]
	for _, hash := range s.Hashes {
		id := name(hash, s.Group, s.Rank)
		b, ok := e.blocks[id]
		if !ok {
			e.counts.Unknown++
			continue
		}
		if b.count[s.Tier] == 0 {
			e.fresh = e.keys(e.fresh, id, b)
			e.counts.Stored++
		} else {
			e.old = e.keys(e.old, id, b)
			e.counts.Again++
		}
		if b.count[s.Tier] < 255 {
			b.count[s.Tier]++
		}
		e.blocks[id] = b
	}
	e.flush(s.Tier)
}

// keys appends our keys that a block holds.
func (e *Engine) keys(list []uint64, id uint64, b block) []uint64 {
	if in, ok := e.inner[id]; ok {
		return append(list, in...)
	}
	if b.phase == 0 {
		return append(list, b.state)
	}
	return list
}

// wait keeps blocks until their parent is known. When there are too many, the oldest are lost.
func (e *Engine) wait(s *Stored) {
	first := name(s.Hashes[0], s.Group, s.Rank)
	if e.waits[first] != nil {
		e.counts.Again += uint64(len(s.Hashes))
		return
	}
	if len(s.Tokens) > e.o.MaxWaiting {
		e.counts.Lost += uint64(len(s.Hashes))
		return
	}
	w := &waiter{Stored: *s}
	w.Hashes = append([]uint64(nil), s.Hashes...)
	w.Tokens = append([]uint32(nil), s.Tokens...)
	w.Extras = nil
	for _, x := range s.Extras {
		w.Extras = append(w.Extras, append([]string(nil), x...))
	}
	for _, hash := range w.Hashes {
		id := name(hash, s.Group, s.Rank)
		w.ids = append(w.ids, id)
		if e.waits[id] == nil {
			e.waits[id] = w
		}
	}
	parent := name(s.Parent, s.Group, s.Rank)
	e.waiting[parent] = append(e.waiting[parent], w)
	e.queue = append(e.queue, w)
	e.waitsFor += len(w.Tokens)
	e.counts.Orphans += uint64(len(w.Hashes))
	for e.waitsFor > e.o.MaxWaiting {
		old := e.queue[0]
		e.queue[0] = nil
		e.queue = e.queue[1:]
		if !old.gone {
			e.counts.Lost += uint64(len(old.Hashes))
			e.forget(old)
		}
	}
	if len(e.queue) > 64 && len(e.queue) > 2*len(e.waits) { // mostly gone
		kept := e.queue[:0]
		for _, q := range e.queue {
			if !q.gone {
				kept = append(kept, q)
			}
		}
		clear(e.queue[len(kept):])
		e.queue = kept
	}
}

// forget takes blocks out of those that wait.
func (e *Engine) forget(w *waiter) {
	w.gone = true
	e.waitsFor -= len(w.Tokens)
	for _, id := range w.ids {
		if e.waits[id] == w {
			delete(e.waits, id)
		}
	}
	parent := name(w.Parent, w.Group, w.Rank)
	list := e.waiting[parent]
	for i, v := range list {
		if v == w {
			kept := append(list[:i:i], list[i+1:]...)
			if len(kept) == 0 {
				delete(e.waiting, parent)
			} else {
				e.waiting[parent] = kept
			}
			break
		}
	}
}

// Remove applies an event: these blocks left that tier.
func (e *Engine) Remove(hashes []uint64, tier Tier, group, rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return
	case e.skip[group]:
		e.counts.Skipped += uint64(len(hashes))
		return
	case tier >= tiers:
		e.counts.Misfit += uint64(len(hashes))
		return
	}
	gone := e.fresh[:0]
	for _, hash := range hashes {
		id := name(hash, group, rank)
		b, ok := e.blocks[id]
		switch w := e.waits[id]; {
		case ok && b.count[tier] > 0:
			e.counts.Removed++
			gone = e.release(gone, id, b, tier, 1)
		case !ok && w != nil:
			e.counts.Removed++
			e.cut(w, id)
		default:
			e.counts.Unknown++
		}
	}
	e.index.Remove(gone, e.o.Slot, tier)
	e.fresh = gone[:0]
}

// cut shortens what waits to before one block.
func (e *Engine) cut(w *waiter, id uint64) {
	for i, v := range w.ids {
		if v != id {
			continue
		}
		for _, gone := range w.ids[i:] {
			if e.waits[gone] == w {
				delete(e.waits, gone)
			}
		}
		e.counts.Lost += uint64(len(w.ids) - i - 1)
		if i == 0 {
			w.ids = nil
			e.forget(w)
			return
		}
		e.waitsFor -= len(w.Tokens) - i*w.BlockTokens
		w.ids, w.Hashes, w.Tokens = w.ids[:i], w.Hashes[:i], w.Tokens[:i*w.BlockTokens]
		return
	}
}

// release counts n holders of a block in a tier less and appends the keys that nobody of this engine holds there.
func (e *Engine) release(gone []uint64, id uint64, b block, tier Tier, n uint8) []uint64 {
	if b.count[tier] -= n; b.count[tier] == 0 {
		first := len(gone)
		gone = e.keys(gone, id, b)
		kept := gone[:first]
		for _, key := range gone[first:] {
			p := place{key, tier}
			switch e.also[p] {
			case 0:
				kept = append(kept, key)
			case 1:
				delete(e.also, p)
			default:
				e.also[p]--
			}
		}
		gone = kept
	}
	if b.count == [tiers]uint8{} {
		delete(e.blocks, id)
		delete(e.inner, id)
	} else {
		e.blocks[id] = b
	}
	return gone
}

// drop forgets a block whole.
func (e *Engine) drop(id uint64, b block) {
	for tier := range Tier(tiers) {
		if b.count[tier] > 0 {
			e.index.Remove(e.release(nil, id, b, tier, b.count[tier]), e.o.Slot, tier)
			b.count[tier] = 0
		}
	}
}

// Clear applies an event: one rank forgot all its blocks.
func (e *Engine) Clear(rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.counts.Clears++
		e.clear(rank)
	}
}

// Restart tells that one rank's sequence began again: all that it held is gone.
func (e *Engine) Restart(rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.counts.Restarts++
		e.clear(rank)
	}
}

func (e *Engine) clear(rank int) {
	_, known := e.ranks[rank]
	switch {
	case !known && len(e.ranks) > 0:
		return // it held nothing
	case len(e.ranks) > 1:
		for id, b := range e.blocks {
			if int(b.rank) == rank {
				e.drop(id, b)
			}
		}
		for _, w := range e.queue {
			if w != nil && !w.gone && w.Rank == rank {
				e.counts.Lost += uint64(len(w.Hashes))
				e.forget(w)
			}
		}
		delete(e.ranks, rank)
		return
	}
	e.index.Clear(e.o.Slot)
	e.reset()
	clear(e.ranks)
}

// Gap tells that messages were missed and cannot be had again. What was confirmed stays, as provisional, until a
// deadline or until the engine says it again.
func (e *Engine) Gap(missed uint64, until int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.counts.Gaps++
	e.counts.Missed += missed
	e.index.Doubt(e.o.Slot, until)
}

// Close forgets all, for the endpoint is gone. Events that come late do nothing.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		e.index.Clear(e.o.Slot)
		e.reset()
	}
}

// Counts tells what became of the events.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.counts
	c.Blocks, c.Waiting = len(e.blocks), len(e.waits)
	return c
}
