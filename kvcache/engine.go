// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"encoding/binary"
	"fmt"
	"slices"
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
	case o.BlockTokens/o.CellTokens > phaseMask+1:
		return fmt.Errorf("blockTokens: must be at most %d cells, got %d", phaseMask+1, o.BlockTokens/o.CellTokens)
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
	// Reused blocks are told of again since a request read them: no further copy of them was made.
	Reused bool
}

// Counts tell what became of an engine's events.
type Counts struct {
	// Blocks are followed now: ends of the engine's blocks and of ours in them. Waiting wait now for their parent.
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
// those that [Hasher.ResetTokens] gives for the same tokens. What names mean is kept with the index, once for all engines
// that hash alike; which blocks an engine holds is kept there alone.
//
// The engine's blocks may be of any size that is a multiple of the cell. Where several make one of ours, it is held from
// the last of them on and until that leaves, which engines let go first; where one holds several of ours, they come and go
// together. A block that an engine holds twice, in two ranks or under two names leaves with the last. Blocks whose
// parent is not known wait for it, within a bound. An Engine may be used by many goroutines.
type Engine struct {
	mu     sync.Mutex
	index  *Index
	o      EngineOptions
	salt   uint64 // for names: what another model or cell size makes of them is another thing
	closed bool
	parts  []*member
	skip   map[int]bool // groups that are not followed
	counts Counts

	waiting  map[uint64][]*waiter // by parent
	waits    map[uint64]*waiter   // by block
	queue    []*waiter            // oldest first
	waitsFor int                  // tokens, and text counted in tokens
	charged  int64                // bytes that the index counts for what waits

	chain chain
	cell  []byte
	ends  []end
	keys  []uint64
	next  []*waiter
}

// member is a part of an engine with a cache of its own: a group of attention layers in a data-parallel rank.
type member struct {
	rank, group int
	part        uint16
	owner       uint64           // of names
	more        map[place]uint32 // how often a key is held beyond once
}

type place struct {
	key  uint64
	tier Tier
}

const placeBytes = 64

type waiter struct {
	Stored
	ids  []uint64
	text int // of extras, in tokens
	gone bool
}

const waiterBytes = 192 // for each block: its name in three places

func (e *Engine) waitBytes() int64 {
	return int64(e.waitsFor)*TokenBytes + int64(len(e.waits))*waiterBytes
}

// charge tells the index, whose lock is held, what is taken for blocks that wait.
func (e *Engine) charge() {
	e.index.bytes += e.waitBytes() - e.charged
	e.charged = e.waitBytes()
}

// NewEngine follows an engine whose options are valid.
func NewEngine(x *Index, o EngineOptions) *Engine {
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 1 << 22
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 1 << 18
	}
	e := &Engine{index: x, o: o, cell: make([]byte, o.CellTokens*TokenBytes)}
	e.salt = xxhash.Sum64String(o.Model) + uint64(o.CellTokens)<<32 + uint64(o.BlockTokens)
	x.lock()
	defer x.unlock()
	if x.names == nil {
		x.names = newNames(x.budget)
	}
	return e
}

// reset forgets all, under the index's lock.
func (e *Engine) reset() {
	for _, m := range e.parts {
		e.drop(m)
	}
	e.index.clear(e.o.Slot)
	e.parts = e.parts[:0]
	e.lose()
}

// lose forgets all that waits, under the index's lock.
func (e *Engine) lose() {
	e.counts.Lost += uint64(len(e.waits))
	e.waiting, e.waits, e.queue, e.waitsFor = nil, nil, nil, 0
	e.charge()
}

// drop ends a part, under the index's lock.
func (e *Engine) drop(m *member) {
	e.index.endPart(e.o.Slot, m.part)
	e.index.names.retire(m.owner)
	e.index.bytes -= int64(len(m.more)) * placeBytes
	m.owner, m.more = 0, nil
}

// member finds or makes the part for a rank and a group; nil when there are too many.
func (e *Engine) member(rank, group int, add bool) *member {
	for _, m := range e.parts {
		if m.rank == rank && m.group == group {
			return m
		}
	}
	if !add || len(e.parts) >= mostParts {
		return nil
	}
	m := &member{rank: rank, group: group}
	for slices.ContainsFunc(e.parts, func(o *member) bool { return o.part == m.part }) {
		m.part++
	}
	e.index.lock()
	m.owner = e.index.names.acquire()
	e.index.unlock()
	e.parts = append(e.parts, m)
	return m
}

// name is a block's name among all ranks and groups, by which it waits.
func name(hash uint64, group, rank int) uint64 {
	if group == 0 && rank == 0 {
		return hash
	}
	return mix(hash^uint64(group+1)<<32) + mix(uint64(rank+1))
}

const mostRanks, mostParts = 256, 256

// Follows reports whether blocks of an attention group of that kind are followed.
func Follows(kind string) bool {
	switch kind {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// Store applies an event, and reports whether blocks of such a form can be followed. It keeps nothing of s.
func (e *Engine) Store(s *Stored) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := uint64(len(s.Hashes))
	switch {
	case e.closed || n == 0:
		return false
	case !Follows(s.Kind):
		if e.skip == nil {
			e.skip = map[int]bool{}
		}
		if len(e.skip) < 1024 {
			e.skip[s.Group] = true
		}
		e.counts.Skipped += n
		return false
	case e.skip[s.Group] && s.Kind == "":
		e.counts.Skipped += n
		return false
	case s.Rank < 0 || s.Rank >= mostRanks || s.Tier >= tiers:
		e.counts.Misfit += n
		return false
	case e.skip[s.Group]:
		delete(e.skip, s.Group) // the engine began anew, and numbers its groups otherwise
	}
	m := e.member(s.Rank, s.Group, true)
	if m == nil {
		e.counts.Misfit += n
		return false
	}
	if len(s.Tokens) == 0 {
		e.move(s, m)
		return true
	}
	if s.BlockTokens <= 0 || s.BlockTokens%e.o.CellTokens != 0 || len(s.Tokens)/s.BlockTokens != len(s.Hashes) ||
		len(s.Tokens)%s.BlockTokens != 0 || s.BlockTokens > e.o.MaxWaiting {
		e.counts.Misfit += n
		return false
	}
	e.next = e.next[:0]
	e.store(s, m)
	for len(e.next) > 0 {
		w := e.next[len(e.next)-1]
		e.next = e.next[:len(e.next)-1]
		if !w.gone {
			e.forget(w)
			e.counts.Adopted += uint64(len(w.Hashes))
			e.store(&w.Stored, m)
		}
	}
	if e.charged != e.waitBytes() {
		e.index.lock()
		e.charge()
		e.index.unlock()
	}
	return true
}

// store computes the keys of blocks and confirms them, or lets the blocks wait.
func (e *Engine) store(s *Stored, m *member) {
	phase := uint16(0)
	if s.HasParent {
		state, at, ok := e.find(s.Parent, m, s.Hashes)
		if !ok {
			e.wait(s)
			return
		}
		e.chain.state, phase = state, at
	} else {
		model := s.Adapter
		if model == "" {
			model = e.o.Model
		}
		e.chain.state = xxhash.Sum64String(model)
	}
	cells := uint16(e.o.BlockTokens / e.o.CellTokens)
	e.chain.extras = e.chain.extras[:0]
	e.ends, e.keys = e.ends[:0], e.keys[:0]
	tokens := s.Tokens
	for i, hash := range s.Hashes {
		if i < len(s.Extras) {
			for k, x := range s.Extras[i] {
				if k > 0 || x != s.Adapter || x == "" { // engines list the adapter as well, first of all
					e.chain.extra(x)
				}
			}
		}
		first := len(e.keys)
		for range s.BlockTokens / e.o.CellTokens {
			for i, token := range tokens[:e.o.CellTokens] {
				binary.LittleEndian.PutUint32(e.cell[i*TokenBytes:], token)
			}
			tokens = tokens[e.o.CellTokens:]
			e.chain.next(e.cell)
			if phase++; phase == cells {
				phase = 0
				e.keys = append(e.keys, e.chain.state)
			}
		}
		if phase != 0 {
			e.keys = append(e.keys, e.chain.state) // no key of ours, but by it the index knows the block
		}
		e.ends = append(e.ends, end{name: e.called(hash, m), keys: len(e.keys) - first, phase: phase})
	}
	e.confirm(m, s.Tier, s.Reused)
	if len(e.waiting) > 0 {
		for _, hash := range s.Hashes[:len(e.ends)] {
			e.next = append(e.next, e.waiting[name(hash, s.Group, s.Rank)]...)
		}
	}
}

// find tells the state of the chain at the end of a block, and its phase. next are the blocks that follow.
func (e *Engine) find(hash uint64, m *member, next []uint64) (state uint64, phase uint16, ok bool) {
	x := e.index
	x.lock()
	defer x.unlock()
	for _, hash := range next[:min(len(next), batch)] {
		x.names.touch(e.called(hash, m))
	}
	s, at, _ := x.names.find(x.names.tag(e.called(hash, m)), m.owner, 0)
	if at < 0 {
		return 0, 0, false
	}
	return s.rows[at].state, s.note(at) & phaseMask, true
}

// mostCounted is the largest name that is taken for a number to which an engine counted. Hashes are hardly ever so small.
const mostCounted = 1<<32 - 1

// called is a name of a block as it is kept: what is a hash means the same to all engines of a pool, and a mere number something
// else to each part of each.
func (e *Engine) called(hash uint64, m *member) uint64 {
	if hash <= mostCounted {
		hash |= (m.owner + 1) << 32
	}
	return hash + e.salt
}

// confirm writes down blocks whose keys were computed.
func (e *Engine) confirm(m *member, tier Tier, reused bool) {
	x, keys := e.index, e.keys
	x.lock()
	defer x.unlock()
	for i, b := range e.ends {
		if i%batch == 0 {
			x.touch(e.ends[i:min(i+batch, len(e.ends))], keys)
		}
		own := keys[:b.keys]
		keys = keys[b.keys:]
		x.sweepNames()
		if x.sureOf(e.o.Slot) >= e.o.MaxBlocks && x.mine(own[len(own)-1], e.o.Slot, m.part) == 0 || !x.call(m, e.o.Slot, b, own) {
			e.counts.Full += uint64(len(e.ends) - i)
			e.ends = e.ends[:i]
			break
		}
		if e.hold(m, own, tier, reused) {
			e.counts.Again++
		} else {
			e.counts.Stored++
		}
		x.breathe(i)
	}
	x.tidyLot(e.o.Slot)
}

// hold confirms the keys of one block, once more unless it is only reused, and tells whether it was held in that tier before.
func (e *Engine) hold(m *member, keys []uint64, tier Tier, reused bool) (again bool) {
	x := e.index
	for _, key := range keys {
		lot := x.openSure(e.o.Slot, m.part)
		if lot == 0 {
			x.stats.Refused++
			return again
		}
		before, _ := x.write(key, change{do: confirm, slot: e.o.Slot, part: m.part, lot: lot, tiers: 1 << tier})
		again = before>>lotBits&(1<<tier) != 0 && x.lots[before&lotMask].sure
		switch p := (place{norm(key), tier}); {
		case again && reused:
		case again && (m.more[p] > 0 || len(m.more) < e.o.MaxBlocks && x.spare(placeBytes) >= 0):
			if m.more == nil {
				m.more = map[place]uint32{}
			}
			if m.more[p]++; m.more[p] == 1 {
				x.bytes += placeBytes
			}
		case !again && len(m.more) > 0:
			x.once(m, p) // it left the index unnoticed
		}
	}
	return again
}

// once forgets that a part holds a key more often than once.
func (x *Index) once(m *member, p place) {
	if _, ok := m.more[p]; ok {
		delete(m.more, p)
		x.bytes -= placeBytes
	}
}

// move brings known blocks into one more tier.
func (e *Engine) move(s *Stored, m *member) {
	x := e.index
	x.lock()
	defer x.unlock()
	for i, hash := range s.Hashes {
		shard, at, _ := x.names.find(x.names.tag(e.called(hash, m)), m.owner, 0)
		if at < 0 {
			e.counts.Unknown++
			continue
		}
		r := shard.rows[at]
		e.keys = append(x.names.linked(e.keys[:0], r.tag, r.state, shard.note(at)), r.state)
		if e.hold(m, e.keys, s.Tier, s.Reused) {
			e.counts.Again++
		} else {
			e.counts.Stored++
		}
		x.breathe(i)
	}
	x.tidyLot(e.o.Slot)
}

// wait keeps blocks until their parent is known. When there are too many, the oldest are lost.
func (e *Engine) wait(s *Stored) {
	first := name(s.Hashes[0], s.Group, s.Rank)
	if e.waits[first] != nil {
		e.counts.Again += uint64(len(s.Hashes))
		return
	}
	text := 0
	for _, list := range s.Extras {
		text += 4
		for _, x := range list {
			text += 4 + len(x)/TokenBytes
		}
	}
	e.index.lock()
	room := e.index.spare(int64(len(s.Tokens)+text)*TokenBytes+int64(len(s.Hashes))*waiterBytes) >= 0
	e.index.unlock()
	if len(s.Tokens)+text > e.o.MaxWaiting || !room {
		e.counts.Lost += uint64(len(s.Hashes))
		return
	}
	if e.waits == nil {
		e.waits, e.waiting = map[uint64]*waiter{}, map[uint64][]*waiter{}
	}
	w := &waiter{Stored: *s, text: text}
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
	e.waitsFor += len(w.Tokens) + text
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
	e.waitsFor -= len(w.Tokens) + w.text
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
	m := e.member(rank, group, false)
	if m == nil && len(e.waits) == 0 {
		e.counts.Unknown += uint64(len(hashes))
		return
	}
	x := e.index
	x.lock()
	defer x.unlock()
	for i, hash := range hashes {
		if i%batch == 0 && m != nil && len(hashes) > 1 {
			e.touch(hashes[i:min(i+batch, len(hashes))], m)
		}
		if m != nil && e.release(m, hash, tier) {
			e.counts.Removed++
		} else if id := name(hash, group, rank); e.waits[id] != nil {
			e.counts.Removed++
			e.cut(e.waits[id], id)
			e.charge()
		} else {
			e.counts.Unknown++
		}
		x.breathe(i)
	}
}

// release takes a block out of a tier, or counts it once less, and tells whether the part held it there.
func (e *Engine) release(m *member, hash uint64, tier Tier) bool {
	x, n := e.index, e.index.names
	defer x.sweepNames()
	s, at, _ := n.find(n.tag(e.called(hash, m)), m.owner, 0)
	if at < 0 {
		return false
	}
	r := s.rows[at]
	e.keys = append(n.linked(e.keys[:0], r.tag, r.state, s.note(at)), r.state)
	held, told, left := false, false, false // the block, by the part; a key of it, by anyone; a key, in other tiers or copies
	for _, key := range e.keys {            // the one at the end is the last
		p := place{norm(key), tier}
		if more := m.more[p]; more > 0 {
			if m.more[p]--; more == 1 {
				x.once(m, p)
			}
			held, told, left = true, true, true
			continue
		}
		before, said := x.write(key, change{do: remove, slot: e.o.Slot, part: m.part, tiers: 1 << tier})
		held = before>>lotBits&(1<<tier) != 0
		told = told || said
		left = left || before>>lotBits&^(1<<tier) != 0
	}
	if !told || !left && r.tag&n.mask == m.owner && m.owner != 0 {
		n.remove(s, at)
	}
	return held
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

// Renew tells that all ranks are gone. That they began again their sequences will tell, and count.
func (e *Engine) Renew() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.index.lock()
		e.reset()
		e.index.unlock()
	}
}

func (e *Engine) clear(rank int) {
	of := func(m *member) bool { return m.rank == rank }
	e.index.lock()
	defer e.index.unlock()
	switch {
	case !slices.ContainsFunc(e.parts, of) && len(e.parts) > 0:
		return // it held nothing
	case !slices.ContainsFunc(e.parts, func(m *member) bool { return m.rank != rank }):
		e.reset()
		return
	}
	for _, m := range e.parts {
		if of(m) {
			e.drop(m)
		}
	}
	e.parts = slices.DeleteFunc(e.parts, of)
	for _, w := range e.queue {
		if w != nil && !w.gone && w.Rank == rank {
			e.counts.Lost += uint64(len(w.Hashes))
			e.forget(w)
		}
	}
	e.charge()
}

// Gap tells that messages were missed and cannot be had again. What was confirmed stays, as provisional, until a
// deadline or until the engine says it again; blocks that wait for their parent are lost.
func (e *Engine) Gap(missed uint64, until int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.counts.Gaps++
	e.counts.Missed += missed
	e.index.lock()
	for _, m := range e.parts {
		e.index.bytes -= int64(len(m.more)) * placeBytes
		m.more = nil // how often is not known any more
	}
	e.lose() // what waits may have left as well
	e.index.unlock()
	e.index.Doubt(e.o.Slot, until)
}

// Once tells that the engine had to compute the blocks of these keys, though it had said that it holds them: it has each no
// more often than once, however often it was announced. So what was counted too high is counted right again.
func (e *Engine) Once(keys []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.index.lock()
	defer e.index.unlock()
	for _, m := range e.parts {
		for i := 0; i < len(keys) && len(m.more) > 0; i++ {
			for tier := range Tier(tiers) {
				e.index.once(m, place{norm(keys[i]), tier})
			}
		}
	}
}

// Close forgets all, for the endpoint is gone. Events that come late do nothing.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		e.index.lock()
		defer e.index.unlock()
		e.reset()
	}
}

// Counts tells what became of the events.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.counts
	c.Waiting = len(e.waits)
	if !e.closed {
		h := e.index.Holdings(e.o.Slot)
		c.Blocks = h.Confirmed() + h.Doubted
	}
	return c
}
