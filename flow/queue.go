// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// state is where a waiter stands.
type state uint8

const (
	queued state = iota
	granted
	refused
)

// waiter is one request at the gate. It is used again for others.
type waiter struct {
	ask          Ask
	entered      time.Time
	rank         time.Time
	due          time.Time
	seq          uint64
	passed       int // how often another was chosen while it was first in its queue
	flow         *Flow
	queue        *classQueue
	older, newer *waiter // in its flow, by when they came
	at           int     // in the queue's heap
	dueAt        int     // in the heap of those that expire; -1 when it does not
	wake         chan struct{}
	word         func(Ticket, Reason) // wakes
	decided      func(Ticket, Reason) // is told how the wait ended
	reason       Reason
	state        state
	story        Story

	// Once granted:
	kept    *fleet.Load // where its place is kept until it is placed
	load    *fleet.Load // where it went
	charged [2]int64    // uncached and output tokens, as its tenant was charged
	granted time.Time
	lease   *lease
}

func newWaiter() *waiter {
	w := &waiter{wake: make(chan struct{}, 1)}
	w.word = func(Ticket, Reason) { w.wake <- struct{}{} }
	return w
}

func (w *waiter) before(o *waiter) bool {
	if n := w.rank.Compare(o.rank); n != 0 {
		return n < 0
	}
	return w.seq < o.seq
}

// sooner reports whether w expires before o.
func (w *waiter) sooner(o *waiter) bool {
	if n := w.due.Compare(o.due); n != 0 {
		return n < 0
	}
	return w.seq < o.seq
}

// classQueue holds a flow's requests of one class: a heap by rank. It is written out, as are the expiry below and
// [Heap]: with container/heap in the place of all three, entering and going takes a fifth longer behind 5,000 who wait.
type classQueue struct {
	lane *lane
	heap []*waiter
}

func (q *classQueue) push(w *waiter) {
	w.queue, w.at = q, len(q.heap)
	q.heap = append(q.heap, w)
	q.up(w.at)
}

func (q *classQueue) remove(w *waiter) {
	n := len(q.heap) - 1
	i := w.at
	if i != n {
		q.swap(i, n)
	}
	q.heap[n] = nil
	q.heap = q.heap[:n]
	if i < n && !q.down(i) {
		q.up(i)
	}
	w.queue = nil
}

func (q *classQueue) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].at, q.heap[j].at = i, j
}

func (q *classQueue) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.heap[i].before(q.heap[parent]) {
			return
		}
		q.swap(i, parent)
		i = parent
	}
}

func (q *classQueue) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(q.heap) {
			return moved
		}
		if child+1 < len(q.heap) && q.heap[child+1].before(q.heap[child]) {
			child++
		}
		if !q.heap[child].before(q.heap[i]) {
			return moved
		}
		q.swap(i, child)
		i, moved = child, true
	}
}

// leading lists the n requests that go first, in order, without changing the heap. It uses next for notes.
func (q *classQueue) leading(n int, into []*waiter, next []int) ([]*waiter, []int) {
	// A search from the root, by a small heap of the places to look at next.
	less := func(a, b int) bool { return q.heap[next[a]].before(q.heap[next[b]]) }
	push := func(i int) {
		if i >= len(q.heap) {
			return
		}
		next = append(next, i)
		for k := len(next) - 1; k > 0 && less(k, (k-1)/2); k = (k - 1) / 2 {
			next[k], next[(k-1)/2] = next[(k-1)/2], next[k]
		}
	}
	push(0)
	for len(next) > 0 && len(into) < n {
		i := next[0]
		last := len(next) - 1
		next[0] = next[last]
		next = next[:last]
		for k := 0; ; {
			c := 2*k + 1
			if c >= len(next) {
				break
			}
			if c+1 < len(next) && less(c+1, c) {
				c++
			}
			if !less(c, k) {
				break
			}
			next[k], next[c] = next[c], next[k]
			k = c
		}
		into = append(into, q.heap[i])
		push(2*i + 1)
		push(2*i + 2)
	}
	return into, next
}

// expiry is a heap of waiters by the time at which they have waited enough.
type expiry []*waiter

func (h *expiry) push(w *waiter) {
	w.dueAt = len(*h)
	*h = append(*h, w)
	h.up(w.dueAt)
}

func (h *expiry) remove(w *waiter) {
	i, n := w.dueAt, len(*h)-1
	if i < 0 {
		return
	}
	if i != n {
		h.swap(i, n)
	}
	(*h)[n] = nil
	*h = (*h)[:n]
	if i < n && !h.down(i) {
		h.up(i)
	}
	w.dueAt = -1
}

func (h expiry) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueAt, h[j].dueAt = i, j
}

func (h expiry) up(i int) {
	for i > 0 && h[i].sooner(h[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h expiry) down(i int) (moved bool) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return moved
		}
		if c+1 < len(h) && h[c+1].sooner(h[c]) {
			c++
		}
		if !h[c].sooner(h[i]) {
			return moved
		}
		h.swap(i, c)
		i, moved = c, true
	}
}
