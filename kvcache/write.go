// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// What is written of a block, under the lock of an [Index].

type deed uint8

const (
	expect deed = iota
	unexpect
	confirm
	remove
)

// change is one write about one slot's, and of it one part's, share in a block.
type change struct {
	do    deed
	tiers uint8
	part  uint16
	slot  uint32
	lot   uint32
	until int64
}

// memo is the last change of a word: blocks of a chain are changed alike.
type memo struct {
	epoch            uint64
	change           change
	from, to         uint64
	mine, now, other uint32 // the part's holder before and after, a promise to the slot that ended with it
	said             bool
}

// write changes what is known of one block. It returns what the part held of it before (tiers and lot; 0 for nothing), and
// whether an engine said and did not take back that it holds the block.
func (x *Index) write(key uint64, c change) (before uint32, said bool) {
	key = norm(key)
	r, s, at := x.seek(key)
	if r == nil {
		if c.do == unexpect || c.do == remove {
			return 0, false
		}
		if r = x.insert(key, s, at); r == nil {
			x.stats.Refused++
			return 0, false
		}
	}
	x.sweep() // which may tidy this very row
	word := r.word.Load()
	old := word &^ recent
	m := &x.memo
	if m.epoch == x.epoch.Load() && m.from == old && m.change == c && x.lives(m.to) {
		before, said = m.mine, m.said
		x.account(m.mine, m.now)
		x.account(m.other, 0)
		x.set(r, s, old, m.to, c.do == expect || c.do == confirm || word&recent != 0)
		return before, said
	}
	v := x.split(old, &c)
	mine, to, other := v.mine, uint32(0), uint32(0)
	switch c.do {
	case expect:
		if v.sure {
			x.set(r, s, old, old, true)
			return mine, true
		}
		to = c.lot
	case confirm:
		to = c.lot | uint32(c.tiers)<<lotBits
		if mine != 0 && x.lots[mine&lotMask].sure {
			to |= mine
		}
		other = v.promise
	case remove:
		if t := mine >> lotBits &^ uint32(c.tiers); t != 0 {
			to = t<<lotBits | mine&lotMask
		} else {
			other = v.promise
		}
	case unexpect:
		if to = mine; mine != 0 {
			l := &x.lots[mine&lotMask]
			if !l.sure && !l.doubted && l.until <= c.until {
				to = 0
			}
		}
	}
	list := v.list
	for _, e := range [2]uint32{to, v.promise &^ other} {
		if e != 0 {
			i, _ := slices.BinarySearch(list, e)
			list = slices.Insert(list, i, e)
			x.list = list
		}
	}
	now, ok := x.encode(list)
	switch {
	case r.word.Load()&^recent != old, to != 0 && x.words.at(to&lotMask).Load() == 0: // eviction met this very block, or the lot's last
		x.stats.Refused++
		if ok {
			x.release(now)
		}
		return 0, false
	case !ok && (c.do == expect || c.do == confirm): // no room for one more set: what was known stays
		x.stats.Refused++
		return 0, v.said
	case !ok: // what left must not stay, so all goes
		x.evictRow(r, s)
		return mine, false
	}
	said = v.said || to>>lotBits != 0
	epoch := x.epoch.Load()
	x.account(mine, to)
	x.account(other, 0)
	*m = memo{epoch: epoch, change: c, from: old, to: now, mine: mine, now: to, other: other, said: said}
	x.set(r, s, old, now, to != 0 && (c.do == expect || c.do == confirm || word&recent != 0))
	return mine, said
}

// account moves one block from one holder to another.
func (x *Index) account(from, to uint32) {
	if from == to {
		return
	}
	if to != 0 {
		x.count(to, 1)
	}
	if from != 0 {
		x.count(from, -1)
		if n := from & lotMask; x.lots[n].count == 0 {
			x.end(n)
		}
	}
}

func (x *Index) count(e uint32, by int) {
	l := &x.lots[e&lotMask]
	h := &x.slots[l.slot]
	l.count += int32(by)
	h.held += by
	switch {
	case l.sure:
		h.sure += by
		h.said[l.part].tiers[fastest(e)] += int32(by)
	case l.doubted:
		h.doubted += by
	}
}

func fastest(e uint32) int { return bits.TrailingZeros32(e>>lotBits) & 3 }

// view is a word as one part of a slot's engine sees it.
type view struct {
	list    []uint32 // the others' holders that live
	mine    uint32   // the part's own; of part 0 a promise, too
	promise uint32   // to the slot, when mine cannot be one
	sure    bool     // some part of the slot's engine holds the block
	said    bool     // there is a holder, other than mine, of which an engine told
}

// split looks at a word for a change.
func (x *Index) split(w uint64, c *change) (v view) {
	v.list = x.list[:0]
	x.visit(w, func(e uint32) {
		if x.words.at(e&lotMask).Load() == 0 {
			return
		}
		if l := &x.lots[e&lotMask]; l.slot == c.slot {
			v.sure = v.sure || l.sure
			switch {
			case l.part == c.part:
				v.mine = e
				return
			case l.part == 0 && e>>lotBits == 0:
				v.promise = e
				return
			}
		}
		v.said = v.said || e>>lotBits != 0
		v.list = append(v.list, e)
	})
	x.list = v.list
	return v
}

func (x *Index) visit(w uint64, f func(uint32)) {
	switch {
	case w == 0:
	case w&isSet != 0:
		for _, e := range x.sets.at(uint32(w & halfMask)).Load().holders {
			f(e)
		}
	default:
		f(uint32(w & halfMask))
		if b := uint32(w >> half & halfMask); b != 0 {
			f(b)
		}
	}
}

// encode names a sorted list of holders. A set is counted when a row takes it ([Index.set]).
func (x *Index) encode(list []uint32) (uint64, bool) {
	switch len(list) {
	case 0:
		return 0, true
	case 1:
		return uint64(list[0]), true
	case 2:
		return uint64(list[0]) | uint64(list[1])<<half, true
	}
	hash := uint64(len(list))
	for _, e := range list {
		hash = (hash ^ uint64(e)) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
	}
	id, shared := x.byHash[hash]
	if shared {
		if s := x.sets.at(id).Load(); slices.Equal(s.holders, list) {
			return setWord(id, s.gen), true
		}
	}
	size := setBytes + 4*int64(len(list))
	if x.spare(size) < 0 {
		own := slices.Clone(list)
		x.evict(64)
		list = own
		if x.spare(size) < 0 {
			return 0, false
		}
	}
	taken := shared
	if _, again := x.byHash[hash]; taken && !again {
		taken = false
	}
	x.gen = (x.gen + 1) & (halfMask) // a set's number comes back with another generation
	if x.freeSets.len() > 0 {
		id = x.freeSets.pop()
	} else {
		id = uint32(x.stats.Sets)
		x.sets.grow(int(id) + 1)
	}
	x.sets.at(id).Store(&set{gen: x.gen, hash: hash, holders: slices.Clip(slices.Clone(list))})
	if !taken {
		if x.byHash == nil {
			x.byHash = map[uint64]uint32{}
		}
		x.byHash[hash] = id
	}
	x.stats.Sets++
	x.bytes += size
	return setWord(id, x.gen), true
}

func setWord(id, gen uint32) uint64 { return isSet | uint64(gen)<<half | uint64(id) }

// lives tells whether a word can still be written.
func (x *Index) lives(w uint64) bool {
	if w&isSet == 0 {
		return true
	}
	s := x.sets.at(uint32(w & halfMask)).Load()
	return s != nil && uint64(s.gen) == w>>half&halfMask
}

// release drops a set that no row took.
func (x *Index) release(w uint64) {
	if w&isSet == 0 {
		return
	}
	id := uint32(w & halfMask)
	s := x.sets.at(id).Load()
	if s.refs > 0 {
		return
	}
	x.sets.at(id).Store(nil)
	if x.byHash[s.hash] == id {
		delete(x.byHash, s.hash)
	}
	x.freeSets.push(id)
	x.stats.Sets--
	x.bytes -= setBytes + 4*int64(len(s.holders))
}

// set writes a row's word.
func (x *Index) set(r *row, s *shard, old, now uint64, touched bool) {
	if old != now {
		if now&isSet != 0 {
			x.sets.at(uint32(now&halfMask)).Load().refs++
		}
		switch {
		case old == 0:
			s.live++
			x.used.Add(1)
		case now == 0:
			s.live--
			x.used.Add(-1)
		}
	}
	w := now
	if touched && now != 0 {
		w |= recent
	}
	if r.word.Load() != w {
		r.word.Store(w)
	}
	if old != now && old&isSet != 0 {
		x.sets.at(uint32(old&halfMask)).Load().refs--
		x.release(old)
	}
}

// seek is find that tells where a missing key belongs.
func (x *Index) seek(key uint64) (*row, *shard, int) {
	m := mix(key)
	s := &x.shards[m&x.mask]
	t := s.table.Load()
	if t == nil {
		return nil, s, 0
	}
	for i := t.place(m); ; {
		r := &t.rows[i]
		switch r.key.Load() {
		case key:
			return r, s, i
		case 0:
			return nil, s, i
		}
		if i++; i == len(t.rows) {
			i = 0
		}
	}
}

// insert makes a row for a key, or nil when there is no room. at is the place that seek found.
func (x *Index) insert(key uint64, s *shard, at int) *row {
	t := s.table.Load()
	if t != nil && float64(s.filled+1) <= fullest*float64(len(t.rows)) {
		s.filled++
		r := &t.rows[at]
		r.key.Store(key)
		return r
	}
	if !x.rebuild(s, 1) {
		return nil
	}
	s.filled++
	return s.table.Load().insert(key)
}

func (t *table) insert(key uint64) *row {
	for i := t.place(mix(key)); ; {
		if r := &t.rows[i]; r.key.Load() == 0 {
			r.key.Store(key)
			return r
		}
		if i++; i == len(t.rows) {
			i = 0
		}
	}
}

// rebuild makes a shard's table anew, tidy and of the right size for what it holds and that many more. Lookups
// go on in the old one.
func (x *Index) rebuild(s *shard, more int) bool {
	old := s.table.Load()
	size := 0
	if old != nil {
		size = len(old.rows)
		for i := 0; i < size && x.dying.len() > 0; i++ {
			x.tidy(&old.rows[i], s)
		}
	} else if more == 0 {
		return true
	}
	want := max(minRows, int(float64(s.live+more)/emptiest)+1)
	if most := int(min(x.spare(0)/rowBytes, 1<<40)) + size; want > size && want > most {
		want = max(0, most)
		if want < minRows {
			return false
		}
		for n := 0; s.live+more > want*7/10 && n < 2*size; n++ {
			x.tick(s, old)
		}
	}
	t := &table{rows: slices.Grow([]row(nil), want)}
	t.rows = t.rows[:cap(t.rows)] // all that the allocator gives
	s.filled = 0
	if old != nil {
		for i := range old.rows {
			if w := old.rows[i].word.Load(); w != 0 {
				t.insert(old.rows[i].key.Load()).word.Store(w)
				s.filled++
			}
		}
	}
	x.bytes += int64(len(t.rows)-size) * rowBytes
	s.hand = 0
	s.table.Store(t)
	return true
}

// tick moves the CLOCK of a shard by one row and evicts it unless it was written since the last round.
func (x *Index) tick(s *shard, t *table) {
	if s.hand >= len(t.rows) {
		s.hand = 0
	}
	r := &t.rows[s.hand]
	s.hand++
	switch w := r.word.Load(); {
	case w == 0:
	case w&recent != 0:
		r.word.Store(w &^ recent)
	default:
		x.evictRow(r, s)
	}
}

// evictRow forgets a block.
func (x *Index) evictRow(r *row, s *shard) {
	w := r.word.Load() &^ recent
	said := false
	x.visit(w, func(e uint32) {
		said = said || e>>lotBits != 0
		if x.words.at(e&lotMask).Load() != 0 {
			x.account(e, 0)
		}
	})
	x.set(r, s, w, 0, false)
	x.stats.Evicted++
	if said {
		x.names.lose()
	}
}

// evict moves the CLOCK over some rows of a shard, each time another.
func (x *Index) evict(n int) {
	s := &x.shards[x.evictAt%len(x.shards)]
	x.evictAt++
	if t := s.table.Load(); t != nil {
		for range n {
			x.tick(s, t)
		}
	}
}

// sweep tidies a few rows, and frees lots that no row can name any more.
func (x *Index) sweep() {
	if x.dying.len() == 0 {
		return
	}
	n := 2
	if x.dying.len() > 1<<12 {
		n = 64
	}
	for range n {
		s := &x.shards[x.hand]
		if t := s.table.Load(); t != nil && x.handRow < len(t.rows) {
			x.tidy(&t.rows[x.handRow], s)
			x.handRow++
			continue
		}
		x.handRow = 0
		if x.hand++; x.hand < len(x.shards) {
			continue
		}
		x.hand = 0
		for range x.turnLots {
			x.free.push(x.dying.pop())
		}
		x.turnLots = x.dying.len()
	}
}

// tidy takes ended lots out of a row.
func (x *Index) tidy(r *row, s *shard) {
	word := r.word.Load()
	w := word &^ recent
	if w == 0 {
		return
	}
	stale, lost := false, false
	list := x.again[:0]
	x.visit(w, func(e uint32) {
		if x.words.at(e&lotMask).Load() != 0 {
			list = append(list, e)
		} else {
			stale, lost = true, lost || e>>lotBits != 0
		}
	})
	x.again = list
	if !stale {
		return
	}
	if lost {
		x.names.lose()
	}
	now := uint64(0)
	if len(list) > 2 && x.spare(setBytes+4*int64(len(list))) < 0 {
		for _, e := range list { // no room for the smaller set
			x.account(e, 0)
		}
		x.stats.Evicted++
	} else {
		now, _ = x.encode(list)
	}
	x.set(r, s, w, now, word&recent != 0)
}

// spare is what is left of the room, for blocks and sets, after that many bytes more. Where names are followed a quarter
// is kept for them, as a quarter is kept from them.
func (x *Index) spare(more int64) int64 {
	left := x.room - x.total() - more
	if x.names != nil {
		left = min(left, x.room/4*3-x.bytes-more)
	}
	return left
}

// total is all that is held.
func (x *Index) total() int64 {
	if x.names == nil {
		return x.bytes
	}
	return x.bytes + x.names.bytes
}

// slot makes room for a slot.
func (x *Index) slot(slot uint32) *holdings {
	for int(slot) >= len(x.slots) {
		x.slots = append(x.slots, holdings{})
		x.bytes += slotBytes
	}
	return &x.slots[slot]
}

// open returns the lot for what is expected of a slot until a deadline.
func (x *Index) open(slot uint32, until int64, size int32) uint32 {
	if n := x.slots[slot].newest; n != 0 {
		if l := &x.lots[n]; !l.doubted && l.until == until && l.count < size {
			return n
		}
	}
	n := x.newLot(slot, 0, false)
	if n != 0 {
		x.line(n, until)
	}
	return n
}

// openSure returns the lot for what a part of a slot's engine confirms.
func (x *Index) openSure(slot uint32, part uint16) uint32 {
	h := x.slot(slot)
	for int(part) >= len(h.said) {
		if h.said = append(h.said, said{}); len(h.said) > 1 {
			x.parted.Store(true)
		}
		x.bytes += partBytes
	}
	if h.said[part].lot == 0 {
		h.said[part].lot = x.newLot(slot, part, true)
	}
	return h.said[part].lot
}

// tidyLot ends a slot's newest lots when nothing came into them.
func (x *Index) tidyLot(slot uint32) {
	if int(slot) >= len(x.slots) {
		return
	}
	h := &x.slots[slot]
	if h.newest != 0 && x.lots[h.newest].count == 0 {
		x.end(h.newest)
	}
	for i := range h.said {
		if n := h.said[i].lot; n != 0 && x.lots[n].count == 0 {
			x.end(n)
		}
	}
}

// newLot returns a lot, or 0 when there is no room.
func (x *Index) newLot(slot uint32, part uint16, sure bool) uint32 {
	var n uint32
	// A lot is not used again at once, for a lookup under way may still know it by its earlier use.
	switch {
	case x.free.len() > 1024:
		n = x.free.pop()
		x.epoch.Add(1)
	case len(x.lots) == cap(x.lots):
		more := max(64, cap(x.lots)/4)
		if x.total()+int64(more)*lotBytes > x.budget {
			return 0
		}
		before := cap(x.lots)
		x.lots = append(make([]lot, 0, before+more), x.lots...)
		x.bytes += int64(cap(x.lots)-before) * lotBytes
		fallthrough
	default:
		n = uint32(len(x.lots))
		x.lots = append(x.lots, lot{})
		x.words.grow(int(n) + 1)
	}
	x.lots[n] = lot{slot: slot, part: part, sure: sure, until: Forever}
	w := uint64(slot) + 1
	if sure {
		w |= sureBit
	}
	x.words.at(n).Store(w)
	return n
}

// line puts a lot at the newest end of its slot and under its deadline.
func (x *Index) line(n uint32, until int64) {
	l := &x.lots[n]
	h := &x.slots[l.slot]
	l.older, l.newer, l.until = h.newest, 0, until
	if h.newest != 0 {
		x.lots[h.newest].newer = n
	} else {
		h.oldest = n
	}
	h.newest = n
	if until == Forever {
		return
	}
	l.until = min(until, x.now.Load()+span-1)
	if x.wheel == nil {
		x.wheel = make([]uint32, span)
		x.bytes += span * 4
	}
	first := &x.wheel[l.until%span]
	if l.next = *first; l.next != 0 {
		x.lots[l.next].prev = n
	}
	*first = n
}

// end ends a lot and with it what its slot holds by it.
func (x *Index) end(n uint32) {
	l := &x.lots[n]
	h := &x.slots[l.slot]
	x.epoch.Add(1)
	x.words.at(n).Store(0)
	h.held -= int(l.count)
	switch {
	case l.sure:
		h.sure -= int(l.count)
		h.said[l.part] = said{}
	case l.doubted:
		h.doubted -= int(l.count)
	}
	if l.until != Forever {
		if l.next != 0 {
			x.lots[l.next].prev = l.prev
		}
		if l.prev != 0 {
			x.lots[l.prev].next = l.next
		} else {
			x.wheel[l.until%span] = l.next
		}
		l.until = Forever
	}
	if !l.sure {
		if l.older != 0 {
			x.lots[l.older].newer = l.newer
		} else {
			h.oldest = l.newer
		}
		if l.newer != 0 {
			x.lots[l.newer].older = l.older
		} else {
			h.newest = l.older
		}
	}
	if l.count == 0 {
		x.free.push(n)
	} else {
		x.dying.push(n)
	}
	l.count = 0
}

// pages is a list that grows while others read it.
type pages[T any] struct{ dir atomic.Pointer[[]*[pageLen]T] }

const pageLen = 1024

func (p *pages[T]) at(i uint32) *T { return &(*p.dir.Load())[i/pageLen][i%pageLen] }

func (p *pages[T]) grow(n int) {
	var dir []*[pageLen]T
	if d := p.dir.Load(); d != nil {
		dir = *d
	}
	if len(dir)*pageLen >= n {
		return
	}
	dir = append(slices.Clone(dir), new([pageLen]T))
	p.dir.Store(&dir)
}

// queue is first in, first out.
type queue struct {
	items []uint32
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(v uint32) { q.items = append(q.items, v) }

func (q *queue) pop() uint32 {
	v := q.items[q.head]
	if q.head++; q.head > 256 && q.head*2 > len(q.items) {
		q.items = q.items[:copy(q.items, q.items[q.head:])]
		q.head = 0
	}
	return v
}

// sureOf counts what the engine in a slot said that it holds.
func (x *Index) sureOf(slot uint32) int {
	if int(slot) >= len(x.slots) {
		return 0
	}
	return x.slots[slot].sure
}

// mine is what a part of a slot's engine holds of a block: tiers and lot, 0 for nothing.
func (x *Index) mine(key uint64, slot uint32, part uint16) uint32 {
	r, _ := x.find(norm(key))
	if r == nil {
		return 0
	}
	return x.split(r.word.Load()&^recent, &change{slot: slot, part: part}).mine
}
