// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

// names tells what engines call blocks: of each name the state of the chain at the block's end, which is the block's key in the
// index and from which its children's keys go on. Who holds the block only the index knows.
//
// Engines that hash alike name blocks alike and share a row. A row belongs to the part of an engine that wrote it until
// another writes the same; a name that means different blocks to different engines has a row for each. When a part's owner
// number is retired, its rows are waste.
//
// A row is 16 bytes: the name, whose low bits the shard tells, so that they say whose it is, and the state. Where a block holds
// several keys, the others are in rows of their own, its links, each named after the one before. Rows lie by Robin Hood
// hashing, at most nine tenths full. All is for the holder of the index's lock.
type names struct {
	shards []nameShard
	mask   uint64
	seed   uint64
	count  int // rows
	bytes  int64

	alive   []bool   // by owner; 0 is who shares
	free    []uint16 // owners
	retired []uint16 // since the pass that goes on began
	going   []uint16 // before it
	lost    int      // blocks that some engine told of and that left the index otherwise, since then
	passing bool
	hand    int
	handRow int
	fetched uint64 // means nothing
}

type nameRow struct{ tag, state uint64 } // state is 0 in a row that is free

type nameShard struct {
	rows  []nameRow
	notes []uint16 // of each row, none where all would be 0
	live  int
	hand  int // of the CLOCK
}

// What is noted of a row: cells since the last end of a block of ours, and whether there are links.
const (
	phaseMask = 1<<14 - 1
	hasLinks  = 1 << 14
	isLink    = 1 << 15
)

const (
	nameShards     = 4096 // and so many owners
	nameShardBytes = 64
	minNames       = 4
	fullestNames   = 0.9
	emptiestNames  = 0.8
)

func newNames(budget int64) *names {
	n := nameShards
	for n > 64 && int64(n)*nameShardBytes > budget/32 {
		n /= 2
	}
	s := &names{shards: make([]nameShard, n), mask: uint64(n) - 1, seed: rand.Uint64(), alive: make([]bool, n)}
	s.bytes = int64(n) * (nameShardBytes + 6)
	for i := n - 1; i > 0; i-- {
		s.free = append(s.free, uint16(i))
	}
	return s
}

// acquire gives a part an owner number, 0 when there is none left.
func (n *names) acquire() uint64 {
	if len(n.free) == 0 {
		return 0
	}
	o := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	n.alive[o] = true
	return uint64(o)
}

// retire makes waste of what an owner alone wrote.
func (n *names) retire(owner uint64) {
	if owner != 0 {
		n.alive[owner] = false
		n.retired = append(n.retired, uint16(owner))
	}
}

// lose notes that a block of which engines told is gone, so that its names may be waste. A nil names will do.
func (n *names) lose() {
	if n != nil {
		n.lost++
	}
}

// tag spreads a name. It loses nothing.
func (n *names) tag(name uint64) uint64 {
	m := (name ^ n.seed) * 0x9e3779b97f4a7c15
	m = (m ^ m>>32) * 0xd6e8feb86659fd93
	return m ^ m>>32
}

func (s *nameShard) place(tag, mask uint64) int {
	hi, _ := bits.Mul64(tag&^mask, uint64(len(s.rows)))
	return int(hi)
}

// far is how far the row in place i lies behind its own.
func (s *nameShard) far(i int, mask uint64) int {
	d := i - s.place(s.rows[i].tag, mask)
	if d < 0 {
		d += len(s.rows)
	}
	return d
}

func (s *nameShard) after(i int) int {
	if i++; i == len(s.rows) {
		return 0
	}
	return i
}

func (s *nameShard) note(i int) uint16 {
	if s.notes == nil {
		return 0
	}
	return s.notes[i]
}

// find looks for the rows of a name: the owner's, else the one that is shared, else any. at is below 0 when there is none,
// and many tells whether there is more than one.
func (n *names) find(tag, owner uint64, link uint16) (s *nameShard, at int, many bool) {
	s = &n.shards[tag&n.mask]
	at = -1
	if len(s.rows) == 0 {
		return s, at, false
	}
	rank := 0
	for i, d := s.place(tag, n.mask), 0; s.rows[i].state != 0 && s.far(i, n.mask) >= d; i, d = s.after(i), d+1 {
		t := s.rows[i].tag
		if (t^tag)&^n.mask != 0 || s.note(i)&isLink != link {
			continue
		}
		many = at >= 0
		r := 1
		switch t & n.mask {
		case owner:
			r = 3
		case 0:
			r = 2
		}
		if r > rank {
			at, rank = i, r
		}
	}
	return s, at, many
}

// put adds a row, for which there must be a place.
func (n *names) put(tag, owner, state uint64, note uint16) {
	s := &n.shards[tag&n.mask]
	i := s.place(tag, n.mask)
	for d := 0; s.rows[i].state != 0 && s.far(i, n.mask) >= d; d++ {
		i = s.after(i)
	}
	row := nameRow{tag&^n.mask | owner, state}
	if note != 0 && s.notes == nil {
		s.notes = make([]uint16, len(s.rows))
		n.bytes += int64(len(s.rows)) * 2
	}
	s.live++
	n.count++
	for ; ; i = s.after(i) {
		if i == len(s.rows)-1 {
			n.again(s)
		}
		s.rows[i], row = row, s.rows[i]
		if s.notes != nil {
			s.notes[i], note = note, s.notes[i]
		}
		if row.state == 0 {
			return
		}
	}
}

// again lets the pass begin a shard again, for rows moved to where it has been.
func (n *names) again(s *nameShard) {
	if n.passing && s == &n.shards[n.hand] {
		n.handRow = 0
	}
}

// drop takes out a row.
func (n *names) drop(s *nameShard, i int) {
	if i < n.handRow {
		n.again(s)
	}
	for {
		next := s.after(i)
		if next == 0 {
			n.again(s)
		}
		if s.rows[next].state == 0 || s.far(next, n.mask) == 0 {
			break
		}
		s.rows[i] = s.rows[next]
		if s.notes != nil {
			s.notes[i] = s.notes[next]
		}
		i = next
	}
	s.rows[i] = nameRow{}
	if s.notes != nil {
		s.notes[i] = 0
	}
	s.live--
	n.count--
}

// link is the name of the first link of a row, and then of the next.
func link(tag, state uint64) uint64 { return mix(tag^bits.RotateLeft64(state, 32)) + 1 }

// linked appends the keys that lie in a block besides the one at its end.
func (n *names) linked(list []uint64, tag, state uint64, note uint16) []uint64 {
	if note&hasLinks == 0 {
		return list
	}
	for at := link(tag&^n.mask, state); ; {
		s, i, _ := n.find(at, 0, isLink)
		if i < 0 {
			return list
		}
		list = append(list, s.rows[i].state)
		at = link(at, s.rows[i].state)
	}
}

// remove takes out a row with its links.
func (n *names) remove(s *nameShard, i int) {
	r, note := s.rows[i], s.note(i)
	n.drop(s, i)
	if note&hasLinks != 0 {
		n.unlink(link(r.tag&^n.mask, r.state))
	}
}

func (n *names) unlink(at uint64) {
	for {
		s, i, _ := n.find(at, 0, isLink)
		if i < 0 {
			return
		}
		at = link(at, s.rows[i].state)
		n.drop(s, i)
	}
}

// nameRoom makes a place for one more row in the shard of a tag.
func (x *Index) nameRoom(tag uint64) bool {
	n := x.names
	s := &n.shards[tag&n.mask]
	if float64(s.live+1) <= fullestNames*float64(len(s.rows)) {
		return true
	}
	want := max(minNames, int(float64(s.live+1)/emptiestNames)+1)
	per := int64(rowBytes)
	if s.notes != nil {
		per += 2
	}
	if grows := int64(want-len(s.rows)) * per; x.total()+grows > x.room || n.bytes+grows > x.room/4*3 {
		for k := 0; k < 2*len(s.rows) && float64(s.live+1) > fullestNames*float64(len(s.rows)); k++ {
			x.tickName(s)
		}
		return float64(s.live+1) <= fullestNames*float64(len(s.rows))
	}
	old := *s
	s.rows = slices.Grow([]nameRow(nil), want)
	s.rows = s.rows[:cap(s.rows)] // all that the allocator gives
	n.bytes += int64(len(s.rows)-len(old.rows)) * rowBytes
	if old.notes != nil {
		s.notes = make([]uint16, len(s.rows))
		n.bytes += int64(len(s.rows)-len(old.rows)) * 2
	}
	n.again(s)
	n.count -= old.live
	s.live, s.hand = 0, 0
	for i, r := range old.rows {
		if r.state != 0 {
			n.put(tag&n.mask|r.tag&^n.mask, r.tag&n.mask, r.state, old.note(i))
		}
	}
	return true
}

// tickName moves the CLOCK of a shard of names by one row. What is cold is forgotten with its block, for the engine's word
// that the block left could no longer be understood.
func (x *Index) tickName(s *nameShard) {
	if s.hand >= len(s.rows) {
		s.hand = 0
	}
	r, note := s.rows[s.hand], s.note(s.hand)
	switch {
	case r.state == 0 || note&isLink != 0:
		s.hand++
		return
	case x.wasted(r, note):
	default:
		for _, key := range x.keys { // which wasted found
			if row, _ := x.find(norm(key)); row != nil && row.word.Load()&recent != 0 {
				row.word.Store(row.word.Load() &^ recent)
				s.hand++
				return
			}
		}
		for _, key := range x.keys {
			if row, in := x.find(norm(key)); row != nil && row.word.Load() != 0 {
				x.evictRow(row, in)
			}
		}
	}
	x.names.remove(s, s.hand)
}

// wasted tells whether nobody can mean anything by a row.
func (x *Index) wasted(r nameRow, note uint16) bool {
	if owner := r.tag & x.names.mask; owner != 0 && !x.names.alive[owner] {
		return true
	}
	x.keys = x.names.linked(append(x.keys[:0], r.state), r.tag, r.state, note)
	return !slices.ContainsFunc(x.keys, x.said)
}

// said tells whether an engine said that it holds a block.
func (x *Index) said(key uint64) bool {
	row, _ := x.find(norm(key))
	if row == nil {
		return false
	}
	said := false
	x.visit(row.word.Load()&^recent, func(e uint32) {
		said = said || e>>lotBits != 0 && x.words.at(e&lotMask).Load() != 0
	})
	return said
}

// sweepNames takes out some rows that are waste, when enough may be.
func (x *Index) sweepNames() {
	n := x.names
	if !n.passing {
		if n.lost*4 <= n.count && len(n.retired)*8 <= len(n.alive) {
			return
		}
		n.passing, n.lost, n.hand, n.handRow = true, 0, 0, 0
		n.going, n.retired = append(n.going, n.retired...), n.retired[:0]
	}
	for range 4 {
		s := &n.shards[n.hand]
		switch {
		case n.handRow < len(s.rows):
			if r := s.rows[n.handRow]; r.state != 0 && s.note(n.handRow)&isLink == 0 && x.wasted(r, s.note(n.handRow)) {
				n.remove(s, n.handRow)
			} else {
				n.handRow++
			}
		case n.hand+1 < len(n.shards):
			n.hand, n.handRow = n.hand+1, 0
		default:
			n.passing = false
			n.free, n.going = append(n.free, n.going...), n.going[:0]
			return
		}
	}
}

// end is a block of an engine: its name, and how many of the keys that go with it lie in it, the one at its end last.
type end struct {
	name  uint64
	keys  int
	phase uint16
}

// call writes down that a part of an engine calls a block by a name. What the part called so before is no longer held by it.
func (x *Index) call(m *member, slot uint32, b end, keys []uint64) bool {
	n := x.names
	tag := n.tag(b.name)
	state := norm(keys[len(keys)-1])
	s, at, many := n.find(tag, m.owner, 0)
	if at >= 0 {
		r := s.rows[at]
		owner := r.tag & n.mask
		switch {
		case r.state == state && (owner == m.owner || owner == 0):
			return true
		case r.state == state && !n.alive[owner]:
			s.rows[at].tag = r.tag&^n.mask | m.owner
			return true
		case r.state == state && !many:
			s.rows[at].tag = r.tag &^ n.mask
			return true
		case owner == m.owner && owner != 0:
			x.forget(m, slot, r, s.note(at))
			n.remove(s, at)
		case owner == 0:
			x.forget(m, slot, r, s.note(at))
			if m.owner == 0 {
				return false // a name that is shared cannot mean two blocks
			}
		}
	}
	note, ok := b.phase, true
	first := link(tag&^n.mask, state)
	done, at64 := 0, first
	for ; done < len(keys)-1 && ok; done++ { // before the row itself, which may be evicted for their sake
		if ok = x.nameRoom(at64); ok {
			key := norm(keys[done])
			n.put(at64, 0, key, isLink)
			at64 = link(at64, key)
		}
	}
	if done > 0 {
		note |= hasLinks
	}
	if ok = ok && x.nameRoom(tag); ok {
		n.put(tag, m.owner, state, note)
	} else {
		n.unlink(first)
	}
	return ok
}

// forget takes from a part all that it holds by a row.
func (x *Index) forget(m *member, slot uint32, r nameRow, note uint16) {
	x.keys = x.names.linked(append(x.keys[:0], r.state), r.tag, r.state, note)
	for _, key := range x.keys {
		if x.mine(key, slot, m.part)>>lotBits == 0 {
			continue
		}
		x.write(key, change{do: remove, slot: slot, part: m.part, tiers: 1<<tiers - 1})
		for tier := range Tier(tiers) {
			x.once(m, place{key, tier})
		}
	}
}

// touch has the memory of some blocks fetched all at once, for what follows.
func (x *Index) touch(ends []end, keys []uint64) {
	k := 0
	for _, b := range ends {
		x.names.touch(b.name)
		k += b.keys
	}
	for _, key := range keys[:min(k, 2*batch)] {
		m := mix(norm(key))
		if t := x.shards[m&x.mask].table.Load(); t != nil {
			t.rows[t.place(m)].key.Load()
		}
	}
}

func (n *names) touch(name uint64) uint64 {
	tag := n.tag(name)
	s := &n.shards[tag&n.mask]
	if len(s.rows) == 0 {
		return 0
	}
	r := &s.rows[s.place(tag, n.mask)]
	n.fetched += r.state
	return r.state
}

func (e *Engine) touch(hashes []uint64, m *member) {
	x := e.index
	var states [batch]uint64
	for i, hash := range hashes {
		states[i] = x.names.touch(e.called(hash, m))
	}
	for _, state := range states[:len(hashes)] {
		m := mix(norm(state))
		if t := x.shards[m&x.mask].table.Load(); t != nil {
			t.rows[t.place(m)].key.Load()
		}
	}
}
