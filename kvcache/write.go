// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
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

// change is one write about one slot's part in a block.
type change struct {
	do    deed
	tiers uint32
	slot  uint32
	lot   uint32
	until int64
}

// memo is the last change of a word: blocks of a chain are changed alike.
type memo struct {
	epoch    uint64
	change   change
	from, to uint64
	before   uint32
}

// write changes what is known of one block and returns what the slot held of it before (tiers and lot; 0 for nothing).
func (x *Index) write(key uint64, c change) (before uint32) {
	key = norm(key)
	r, s := x.find(key)
	if r == nil {
		if c.do == unexpect || c.do == remove {
			return 0
		}
		if r = x.insert(key, s); r == nil {
			x.stats.Refused++
			return 0
		}
	}
	x.sweep() // which may tidy this very row
	word := r.word.Load()
	old := word &^ recent
	m := &x.memo
	if m.epoch == x.epoch && m.from == old && m.change == c && x.lives(m.to) {
		before = m.before
		x.move(before, m.to, c)
		x.set(r, s, old, m.to, c.do == expect || c.do == confirm || word&recent != 0)
		return before
	}
	list, mine := x.split(old, c.slot)
	to, gone := uint32(0), false
	switch c.do {
	case expect:
		if mine != 0 && x.lots[mine&lotMask].sure {
			x.set(r, s, old, old, true)
			return mine
		}
		to = c.lot
	case confirm:
		to = c.lot | c.tiers<<lotBits
		if mine != 0 && x.lots[mine&lotMask].sure {
			to |= mine
		}
	case remove:
		if t := mine >> lotBits &^ c.tiers; t != 0 {
			to = t<<lotBits | mine&lotMask
		}
		gone = to == 0
	case unexpect:
		if to = mine; mine != 0 {
			l := &x.lots[mine&lotMask]
			if !l.sure && !l.doubted && l.until <= c.until {
				to, gone = 0, true
			}
		}
	}
	if to != 0 {
		i, _ := slices.BinarySearch(list, to)
		list = slices.Insert(list, i, to)
		x.list = list
	}
	now, ok := x.encode(list)
	if !ok { // no room for one more set: what was known stays
		x.stats.Refused++
		return 0
	}
	if r.word.Load()&^recent != old { // eviction met this very block
		x.release(now)
		return 0
	}
	before = mine
	x.account(mine, to)
	*m = memo{epoch: x.epoch, change: c, from: old, to: now, before: before}
	x.set(r, s, old, now, !gone && (c.do == expect || c.do == confirm || word&recent != 0))
	return before
}

// move accounts for a change that the memo knows.
func (x *Index) move(before uint32, to uint64, c change) {
	switch c.do {
	case expect:
		x.account(before, c.lot)
	case confirm:
		x.account(before, c.lot)
	case remove:
		if before>>lotBits&^c.tiers == 0 {
			x.account(before, 0)
		}
	case unexpect:
		if l := &x.lots[before&lotMask]; before != 0 && !l.sure && !l.doubted && l.until <= c.until {
			x.account(before, 0)
		}
	}
}

// account moves one block from one lot to another.
func (x *Index) account(from, to uint32) {
	from, to = from&lotMask, to&lotMask
	if from == to {
		return
	}
	if to != 0 {
		l := &x.lots[to]
		l.count++
		x.slots[l.slot].held++
	}
	if from != 0 {
		l := &x.lots[from]
		l.count--
		x.slots[l.slot].held--
		if l.count == 0 {
			x.end(from)
		}
	}
}

// split lists a word's live holders but for the slot's, and that one.
func (x *Index) split(w uint64, slot uint32) (list []uint32, mine uint32) {
	list = x.list[:0]
	add := func(e uint32) {
		switch l := x.words.at(e & lotMask).Load(); {
		case l == 0:
		case uint32(l)-1 == slot:
			mine = e
		default:
			list = append(list, e)
		}
	}
	x.visit(w, add)
	x.list = list
	return list, mine
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
	id, shared := x.names[hash]
	if shared {
		if s := x.sets.at(id).Load(); slices.Equal(s.holders, list) {
			return setWord(id, s.gen), true
		}
	}
	size := setBytes + 4*int64(len(list))
	if x.bytes+size > x.room {
		own := slices.Clone(list)
		x.evict(64)
		list = own
		if x.bytes+size > x.room {
			return 0, false
		}
	}
	taken := shared
	if _, again := x.names[hash]; taken && !again {
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
		if x.names == nil {
			x.names = map[uint64]uint32{}
		}
		x.names[hash] = id
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
	if x.names[s.hash] == id {
		delete(x.names, s.hash)
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

// insert makes a row for a key, or nil when there is no room.
func (x *Index) insert(key uint64, s *shard) *row {
	t := s.table.Load()
	if t == nil || (s.filled+1)*5 > len(t.rows)*4 {
		if !x.rebuild(s, 1) {
			return nil
		}
		t = s.table.Load()
	}
	s.filled++
	return t.insert(key)
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
		for i := range old.rows {
			x.tidy(&old.rows[i], s)
		}
	} else if more == 0 {
		return true
	}
	want := max(minRows, (s.live+more)*5/3+1)
	if most := int(min((x.room-x.bytes)/rowBytes, 1<<40)) + size; want > size && want > most {
		want = max(0, most)
		if want < minRows {
			return false
		}
		for n := 0; s.live+more > want*7/10 && n < 2*size; n++ {
			x.tick(s, old)
		}
	}
	t := &table{rows: make([]row, want)}
	s.filled = 0
	if old != nil {
		for i := range old.rows {
			if w := old.rows[i].word.Load(); w != 0 {
				t.insert(old.rows[i].key.Load()).word.Store(w)
				s.filled++
			}
		}
	}
	x.bytes += int64(want-size) * rowBytes
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
		x.visit(w, func(e uint32) {
			if x.words.at(e&lotMask).Load() != 0 {
				x.account(e, 0)
			}
		})
		x.set(r, s, w, 0, false)
		x.stats.Evicted++
	}
}

// evict moves the CLOCK over some rows of a shard, each time another.
func (x *Index) evict(n int) {
	s := &x.shards[x.evictAt%shards]
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
		if x.hand++; x.hand < shards {
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
	stale := false
	x.visit(w, func(e uint32) { stale = stale || x.words.at(e&lotMask).Load() == 0 })
	if !stale {
		return
	}
	list := make([]uint32, 0, 8)
	x.visit(w, func(e uint32) {
		if x.words.at(e&lotMask).Load() != 0 {
			list = append(list, e)
		}
	})
	now := uint64(0)
	if len(list) > 2 && x.bytes+setBytes+4*int64(len(list)) > x.room {
		for _, e := range list { // no room for the smaller set
			x.account(e, 0)
		}
		x.stats.Evicted++
	} else {
		now, _ = x.encode(list)
	}
	x.set(r, s, w, now, word&recent != 0)
}

// slot makes room for a slot.
func (x *Index) slot(slot uint32) *holdings {
	for int(slot) >= len(x.slots) {
		x.slots = append(x.slots, holdings{})
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
	n := x.newLot(slot, false)
	x.line(n, until)
	return n
}

// openSure returns the lot for what is confirmed of a slot.
func (x *Index) openSure(slot uint32) uint32 {
	h := x.slot(slot)
	if h.sure == 0 {
		h.sure = x.newLot(slot, true)
	}
	return h.sure
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
	if h.sure != 0 && x.lots[h.sure].count == 0 {
		x.end(h.sure)
	}
}

func (x *Index) newLot(slot uint32, sure bool) uint32 {
	var n uint32
	// A lot is not used again at once, for a lookup under way may still know it by its earlier use.
	if x.free.len() > 1024 {
		n = x.free.pop()
	} else {
		n = uint32(len(x.lots))
		before := cap(x.lots)
		x.lots = append(x.lots, lot{})
		x.words.grow(int(n) + 1)
		x.bytes += int64(cap(x.lots)-before) * lotBytes
	}
	serial := x.lots[n].serial + 1
	x.lots[n] = lot{slot: slot, serial: serial, sure: sure, until: Forever}
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
		x.wheel = make([][]claim, span)
		x.bytes += span * 24
	}
	due := &x.wheel[l.until%span]
	before := cap(*due)
	*due = append(*due, claim{n, l.serial})
	x.bytes += int64(cap(*due)-before) * 8
}

// end ends a lot and with it what its slot holds by it.
func (x *Index) end(n uint32) {
	l := &x.lots[n]
	h := &x.slots[l.slot]
	x.words.at(n).Store(0)
	x.epoch++
	l.serial++
	h.held -= int(l.count)
	if l.sure {
		h.sure = 0
	} else {
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
