// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"sync"
)

// none marks the end of a list of rows or nodes.
const none = ^uint32(0)

// row is one distinct block key and the head of the list of its holders: 16 bytes.
type row struct {
	key    uint64
	next   uint32 // in the same bucket, or the next free row
	holder uint32 // first node
}

// node says that one endpoint holds one row: 20 bytes.
type node struct {
	slot         uint32
	row          uint32
	next         uint32 // the row's next holder, or the next free node
	older, newer uint32 // the endpoint's blocks by time of use
}

// shelf is one endpoint's list of blocks by time of use.
type shelf struct {
	oldest, newest uint32
	size           int
}

// Index remembers which endpoint was given which blocks. Each endpoint, known by its
// load's slot, keeps as many blocks as [Index.Add] says, and forgets the least recently used
// first. A block held by one endpoint costs about 45 bytes. An Index may be used by many
// goroutines.
type Index struct {
	mu       sync.RWMutex
	buckets  []uint32 // power of two; first row of each
	rows     []row
	nodes    []node
	freeRow  uint32
	freeNode uint32
	used     int // rows in use
	shelves  []shelf
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	x := &Index{freeRow: none, freeNode: none}
	x.grow(1 << 10)
	return x
}

// Match tells, for each slot, how many blocks from the start of each prompt it holds without a
// gap, summed over the prompts; match is indexed like slots. starts are the prompts' first
// keys, as [Hasher.Starts]. It allocates nothing.
func (x *Index) Match(keys []uint64, starts []int32, slots []uint32, match []int32, scratch *Scratch) {
	clear(match)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.used == 0 {
		return
	}
	scratch.prepare(slots)
	for p := range starts {
		end := len(keys)
		if p+1 < len(starts) {
			end = int(starts[p+1])
		}
		x.matchOne(keys[starts[p]:end], slots, match, scratch)
	}
}

// Scratch is memory that Match reuses between calls.
type Scratch struct {
	at  []int32 // slot → position in slots plus one
	run []int32 // position → blocks matched in the current prompt
}

func (s *Scratch) prepare(slots []uint32) {
	top := uint32(0)
	for _, v := range slots {
		top = max(top, v)
	}
	if int(top) >= len(s.at) {
		s.at = make([]int32, top+1)
	}
	clear(s.at)
	if len(s.run) < len(slots) {
		s.run = make([]int32, len(slots))
	}
	for i, v := range slots {
		s.at[v] = int32(i + 1)
	}
}

func (x *Index) matchOne(keys []uint64, slots []uint32, match []int32, s *Scratch) {
	run := s.run[:len(slots)]
	clear(run)
	for i, key := range keys {
		r := x.find(key)
		if r == none {
			break
		}
		on := false
		for n := x.rows[r].holder; n != none; n = x.nodes[n].next {
			slot := x.nodes[n].slot
			if int(slot) >= len(s.at) || s.at[slot] == 0 {
				continue
			}
			if at := s.at[slot] - 1; run[at] == int32(i) {
				run[at]++
				on = true
			}
		}
		if !on {
			break
		}
	}
	for i, n := range run {
		match[i] += n
	}
}

// Add records that the endpoint in that slot was given the blocks of keys. It keeps at most capacity
// blocks from now on, which may be another number each time.
func (x *Index) Add(keys []uint64, slot uint32, capacity int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for int(slot) >= len(x.shelves) {
		x.shelves = append(x.shelves, shelf{oldest: none, newest: none})
	}
	if len(keys) > capacity {
		keys = keys[:max(0, capacity)]
	}
	// From the end to the start: the start of a prompt becomes the most recently used, so
	// that what is forgotten first is a chain's tail and no chain loses its head.
	for i := len(keys) - 1; i >= 0; i-- {
		x.add(keys[i], slot)
		for s := &x.shelves[slot]; s.size > capacity; {
			x.drop(s.oldest)
		}
	}
}

func (x *Index) add(key uint64, slot uint32) {
	r := x.find(key)
	if r == none {
		r = x.newRow(key)
	}
	for n := x.rows[r].holder; n != none; n = x.nodes[n].next {
		if x.nodes[n].slot == slot {
			x.unlink(n)
			x.link(n)
			return
		}
	}
	x.link(x.newNode(slot, r))
}

// Clear forgets all that the endpoint in that slot holds.
func (x *Index) Clear(slot uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(slot) >= len(x.shelves) {
		return
	}
	for s := &x.shelves[slot]; s.oldest != none; {
		x.drop(s.oldest)
	}
}

// Len counts the distinct blocks, Held the blocks of one slot.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.used
}

// Held counts the blocks that the endpoint in that slot holds.
func (x *Index) Held(slot uint32) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if int(slot) >= len(x.shelves) {
		return 0
	}
	return x.shelves[slot].size
}

// Bytes is the memory that the index holds.
func (x *Index) Bytes() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return int64(cap(x.buckets))*4 + int64(cap(x.rows))*16 + int64(cap(x.nodes))*20
}

func (x *Index) bucket(key uint64) *uint32 { return &x.buckets[key&uint64(len(x.buckets)-1)] }

func (x *Index) find(key uint64) uint32 {
	r := *x.bucket(key)
	for r != none && x.rows[r].key != key {
		r = x.rows[r].next
	}
	return r
}

func (x *Index) newRow(key uint64) uint32 {
	if x.used >= len(x.buckets) {
		x.grow(2 * len(x.buckets))
	}
	r := x.freeRow
	if r != none {
		x.freeRow = x.rows[r].next
	} else {
		r = uint32(len(x.rows))
		x.rows = append(x.rows, row{})
	}
	b := x.bucket(key)
	x.rows[r] = row{key: key, next: *b, holder: none}
	*b = r
	x.used++
	return r
}

func (x *Index) newNode(slot, r uint32) uint32 {
	n := x.freeNode
	if n != none {
		x.freeNode = x.nodes[n].next
	} else {
		n = uint32(len(x.nodes))
		x.nodes = append(x.nodes, node{})
	}
	x.nodes[n] = node{slot: slot, row: r, next: x.rows[r].holder}
	x.rows[r].holder = n
	return n
}

// drop forgets one node, and its row with the last holder.
func (x *Index) drop(n uint32) {
	x.unlink(n)
	r := x.nodes[n].row
	for p := &x.rows[r].holder; ; p = &x.nodes[*p].next {
		if *p == n {
			*p = x.nodes[n].next
			break
		}
	}
	x.nodes[n].next, x.freeNode = x.freeNode, n
	if x.rows[r].holder != none {
		return
	}
	for p := x.bucket(x.rows[r].key); ; p = &x.rows[*p].next {
		if *p == r {
			*p = x.rows[r].next
			break
		}
	}
	x.rows[r].next, x.freeRow = x.freeRow, r
	x.used--
}

// link puts a node at the most recently used end of its endpoint's shelf.
func (x *Index) link(n uint32) {
	s := &x.shelves[x.nodes[n].slot]
	x.nodes[n].older, x.nodes[n].newer = s.newest, none
	if s.newest != none {
		x.nodes[s.newest].newer = n
	} else {
		s.oldest = n
	}
	s.newest = n
	s.size++
}

func (x *Index) unlink(n uint32) {
	s, v := &x.shelves[x.nodes[n].slot], &x.nodes[n]
	if v.older != none {
		x.nodes[v.older].newer = v.newer
	} else {
		s.oldest = v.newer
	}
	if v.newer != none {
		x.nodes[v.newer].older = v.older
	} else {
		s.newest = v.older
	}
	s.size--
}

// grow rebuilds the buckets with n, a power of two.
func (x *Index) grow(n int) {
	old := x.buckets
	x.buckets = make([]uint32, n)
	for i := range x.buckets {
		x.buckets[i] = none
	}
	for _, r := range old {
		for r != none {
			next := x.rows[r].next
			b := x.bucket(x.rows[r].key)
			x.rows[r].next, *b = *b, r
			r = next
		}
	}
}
