// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"time"
)

// Ring is a round of flows, for policies that let them go in turn. The zero Ring is empty.
type Ring struct {
	at *Flow // who is next
	n  int
}

// Len is the number of flows.
func (r *Ring) Len() int { return r.n }

// Next is the flow whose turn it is, nil when there is none; After the one that comes after it.
func (r *Ring) Next() *Flow { return r.at }

// After is the flow that comes after f.
func (r *Ring) After(f *Flow) *Flow { return f.next }

// Turn ends f's turn: it goes to the end of the round. Those before it that could not go keep theirs.
func (r *Ring) Turn(f *Flow) {
	if f == r.at {
		r.at = f.next
		return
	}
	f.prev.next, f.next.prev = f.next, f.prev
	r.link(f)
}

// Add puts a flow at the end of the round.
func (r *Ring) Add(f *Flow) {
	r.n++
	if r.at == nil {
		r.at, f.next, f.prev = f, f, f
		return
	}
	r.link(f)
}

// link puts a flow before the one that is next.
func (r *Ring) link(f *Flow) {
	f.next, f.prev = r.at, r.at.prev
	f.prev.next, f.next.prev = f, f
}

// Remove takes a flow out; whose turn it is then is the one after it.
func (r *Ring) Remove(f *Flow) {
	r.n--
	if r.n == 0 {
		r.at = nil
	} else {
		f.prev.next, f.next.prev = f.next, f.prev
		if r.at == f {
			r.at = f.next
		}
	}
	f.next, f.prev = nil, nil
}

// Heap orders flows by Score, then by Rank, then by whose head came first. The zero Heap is empty.
type Heap struct{ list []*Flow }

// Len is the number of flows.
func (h *Heap) Len() int { return len(h.list) }

// All are the flows, in no order; not to be changed.
func (h *Heap) All() []*Flow { return h.list }

// Push adds a flow.
func (h *Heap) Push(f *Flow) {
	f.index = len(h.list)
	h.list = append(h.list, f)
	h.up(f.index)
}

// Remove takes a flow out.
func (h *Heap) Remove(f *Flow) {
	i, n := f.index, len(h.list)-1
	if i != n {
		h.swap(i, n)
	}
	h.list[n] = nil
	h.list = h.list[:n]
	if i < n && !h.down(i) {
		h.up(i)
	}
}

// Fix is told that a flow's Score or Rank changed.
func (h *Heap) Fix(f *Flow) {
	if !h.down(f.index) {
		h.up(f.index)
	}
}

// First is the first flow that ok accepts, nil for none. A flow whose head can't go comes in the order of the
// request that can. It costs little where ok accepts one of the first.
func (h *Heap) First(ok func(*Flow) bool) *Flow {
	return h.first(0, nil, ok)
}

// first searches below i for a flow that comes before best.
func (h *Heap) first(i int, best *Flow, ok func(*Flow) bool) *Flow {
	if i >= len(h.list) {
		return best
	}
	f := h.list[i]
	if best != nil && f.compare(f.Rank, f.seq, best) >= 0 {
		return best // nor do those below it, whose requests that can go don't come before their heads
	}
	if ok(f) {
		rank, seq := f.goes()
		if best == nil || f.compare(rank, seq, best) < 0 {
			best = f
		}
	}
	return h.first(2*i+2, h.first(2*i+1, best, ok), ok)
}

// goes is the rank of the request that goes next, of those that can.
func (f *Flow) goes() (rank time.Time, seq uint64) {
	if f.pick == nil {
		return f.Rank, f.seq
	}
	return f.pick.rank, f.pick.seq
}

// compare compares f, as if its request were of that rank, with the request that goes next of o.
func (f *Flow) compare(rank time.Time, seq uint64, o *Flow) int {
	r, s := o.goes()
	return order(f, rank, seq, o, r, s)
}

func (f *Flow) before(o *Flow) bool { return order(f, f.Rank, f.seq, o, o.Rank, o.seq) < 0 }

func order(a *Flow, rank time.Time, seq uint64, b *Flow, r time.Time, s uint64) int {
	if a.Score != b.Score {
		return cmp.Compare(a.Score, b.Score)
	}
	if n := rank.Compare(r); n != 0 {
		return n
	}
	if seq != s {
		return cmp.Compare(seq, s)
	}
	return cmp.Compare(a.Tenant, b.Tenant)
}

func (h *Heap) swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

func (h *Heap) up(i int) {
	for i > 0 && h.list[i].before(h.list[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h *Heap) down(i int) (moved bool) {
	for {
		c := 2*i + 1
		if c >= len(h.list) {
			return moved
		}
		if c+1 < len(h.list) && h.list[c+1].before(h.list[c]) {
			c++
		}
		if !h.list[c].before(h.list[i]) {
			return moved
		}
		h.swap(i, c)
		i, moved = c, true
	}
}
