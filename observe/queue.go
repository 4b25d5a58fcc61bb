// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// The buckets of flow control's histograms.
var (
	waitBounds    = []float64{.0001, .0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	confirmBounds = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// outcomes are how a wait can end, and after them what is said of those that begin to wait.
var outcomes = [...]string{"Dispatched", "RejectedCapacity", "RejectedNoEndpoints", "RejectedOther",
	"EvictedTTL", "EvictedNoEndpoints", "EvictedContextCancelled", "EvictedOther", "NotYetFinalized"}

const stillWaits = len(outcomes) - 1

// outcomeOf is the place of an outcome in outcomes; those that there are not count as still waiting.
func outcomeOf(name string) int {
	for i, o := range outcomes {
		if o == name {
			return i
		}
	}
	return stillWaits
}

// timings are histograms by outcome, made when they are needed.
type timings [len(outcomes)]atomic.Pointer[hist]

func (t *timings) observe(outcome int, d time.Duration, bounds []float64) {
	h := t[outcome].Load()
	if h == nil {
		t[outcome].CompareAndSwap(nil, newHist(bounds))
		h = t[outcome].Load()
	}
	h.observe(d.Seconds())
}

// inQueue is what a set of labels went through in one queue.
type inQueue struct {
	*Queue
	waits timings
}

// found is what is counted of the labels in a queue, nil for nothing. Mostly there is one queue.
func (s *series) found(q *Queue) *inQueue {
	if all := s.queues.Load(); all != nil {
		for _, have := range *all {
			if have.Queue == q {
				return have
			}
		}
	}
	return nil
}

// in finds or makes what is counted of the labels in a queue.
func (s *series) in(q *Queue) *inQueue {
	if have := s.found(q); have != nil {
		return have
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		old := s.queues.Load()
		if have := s.found(q); have != nil {
			return have
		}
		next := []*inQueue{{Queue: q}}
		if old != nil {
			next = append(next, *old...)
		}
		s.queues.CompareAndSwap(old, &next) // another queue may be quicker
	}
}

// Queue counts what happens in the queue of one pool, over all reloads. Its methods may be called from any
// goroutine, are quick and wait for nobody but for a new set of labels.
type Queue struct {
	o *Observer

	mu     sync.RWMutex
	issued map[int]*atomic.Uint64 // by the priority that asked

	confirmed, timedOut atomic.Uint64
	confirmation        *hist
}

// queues are all queues there were, and where the present ones are looked at.
type queues struct {
	o     *Observer
	views atomic.Pointer[func() []QueueView]

	mu     sync.Mutex
	pools  map[fleet.ID]*Queue // as many as were ever configured
	looked *hist
}

func (c *queues) init(o *Observer) {
	c.o, c.pools, c.looked = o, map[fleet.ID]*Queue{}, newHist(shortBounds)
}

// WatchQueues tells where to look at the queues that there are, at the time somebody asks.
func (o *Observer) WatchQueues(views func() []QueueView) { o.queues.views.Store(&views) }

// Queue returns where a pool's queue tells what happens, the same for each configuration.
func (o *Observer) Queue(pool fleet.ID) *Queue {
	c := &o.queues
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.pools[pool]
	if q == nil {
		q = &Queue{o: o, issued: map[int]*atomic.Uint64{}, confirmation: newHist(confirmBounds)}
		c.pools[pool] = q
	}
	return q
}

// Entered counts a request that came: the time that took, and how it ended there and then; "" when it waits.
func (q *Queue) Entered(l Labels, outcome string, took time.Duration) {
	q.o.table.of(l).entered.observe(outcomeOf(outcome), took, shortBounds)
}

// Looked counts one look for room.
func (q *Queue) Looked(took time.Duration) { q.o.queues.looked.observe(took.Seconds()) }

// Left counts a request whose wait ended, of whatever length.
func (q *Queue) Left(l Labels, outcome string, waited time.Duration) {
	q.o.table.of(l).in(q).waits.observe(outcomeOf(outcome), waited, waitBounds)
}

// Revoked counts a request that was asked back for one of that priority.
func (q *Queue) Revoked(priority int) {
	q.mu.RLock()
	n := q.issued[priority]
	q.mu.RUnlock()
	if n == nil {
		q.mu.Lock()
		if n = q.issued[priority]; n == nil {
			n = new(atomic.Uint64)
			q.issued[priority] = n
		}
		q.mu.Unlock()
	}
	n.Add(1)
}

// Reclaimed counts how that ended: the request did, or was given up on.
func (q *Queue) Reclaimed(confirmed bool, took time.Duration) {
	if !confirmed {
		q.timedOut.Add(1)
		return
	}
	q.confirmed.Add(1)
	q.confirmation.observe(took.Seconds())
}

func newHist(bounds []float64) *hist {
	h := &hist{}
	h.init(bounds, make([]atomic.Uint64, len(bounds)+1))
	return h
}
