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

// stillWaits is the outcome of those that entered a queue, in the field's words.
const stillWaits = "NotYetFinalized"

// outcomes are how a wait can end.
var outcomes = []string{"Dispatched", "RejectedCapacity", "RejectedNoEndpoints", "RejectedOther",
	"EvictedTTL", "EvictedNoEndpoints", "EvictedContextCancelled", "EvictedOther"}

// Queue counts what happens in the queue of one pool, over all reloads. Its methods may be called from any
// goroutine, are quick and wait for nobody but for a new set of labels.
type Queue struct {
	o    *Observer
	pool fleet.ID

	mu     sync.RWMutex
	waits  map[waitKey]*hist
	ends   map[endKey]*atomic.Uint64
	issued map[int]*atomic.Uint64 // by the priority that asked

	confirmed, timedOut atomic.Uint64
	confirmation        hist
}

type waitKey struct {
	*series
	outcome string
}

type endKey struct {
	priority int
	outcome  string
}

type enterKey struct {
	tenant   string
	priority int
	outcome  string
}

// queues are all queues there were, and where the present ones are looked at.
type queues struct {
	o     *Observer
	views atomic.Pointer[func() []QueueView]

	mu      sync.RWMutex
	pools   map[fleet.ID]*Queue // as many as were ever configured
	entered map[enterKey]*hist
	looked  hist
}

func (c *queues) init(o *Observer) {
	c.o, c.pools, c.entered = o, map[fleet.ID]*Queue{}, map[enterKey]*hist{}
	c.looked.make(shortBounds)
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
		q = &Queue{o: o, pool: pool, waits: map[waitKey]*hist{}, ends: map[endKey]*atomic.Uint64{}, issued: map[int]*atomic.Uint64{}}
		q.confirmation.make(confirmBounds)
		c.pools[pool] = q
	}
	return q
}

// Entered counts a request that came: the time that took, and how it ended there and then; "" when it waits.
func (q *Queue) Entered(l Labels, outcome string, took time.Duration) {
	if outcome == "" {
		outcome = stillWaits
	}
	c := &q.o.queues
	s := q.o.table.of(l)
	c.enter(enterKey{s.labels.Tenant, s.labels.Priority, outcome}).observe(took.Seconds())
}

func (c *queues) enter(k enterKey) *hist { return keyed(&c.mu, c.entered, k, newHist(shortBounds)) }

// Looked counts one look for room.
func (q *Queue) Looked(took time.Duration) { q.o.queues.looked.observe(took.Seconds()) }

// Left counts a request whose wait ended, of whatever length.
func (q *Queue) Left(l Labels, outcome string, waited time.Duration) {
	s := q.o.table.of(l)
	keyed(&q.mu, q.waits, waitKey{s, outcome}, newHist(waitBounds)).observe(waited.Seconds())
	q.end(l.Priority, outcome).Add(1)
}

func (q *Queue) end(priority int, outcome string) *atomic.Uint64 {
	return keyed(&q.mu, q.ends, endKey{priority, outcome}, newCount)
}

// Revoked counts a request that was asked back for one of that priority.
func (q *Queue) Revoked(priority int) { keyed(&q.mu, q.issued, priority, newCount).Add(1) }

// Reclaimed counts how that ended: the request did, or was given up on.
func (q *Queue) Reclaimed(confirmed bool, took time.Duration) {
	if !confirmed {
		q.timedOut.Add(1)
		return
	}
	q.confirmed.Add(1)
	q.confirmation.observe(took.Seconds())
}

func newCount() *atomic.Uint64 { return new(atomic.Uint64) }

func newHist(bounds []float64) func() *hist {
	return func() *hist {
		h := &hist{}
		h.make(bounds)
		return h
	}
}

func (h *hist) make(bounds []float64) { h.init(bounds, make([]atomic.Uint64, len(bounds)+1)) }

// keyed finds or makes what a map holds.
func keyed[K comparable, V any](mu *sync.RWMutex, m map[K]*V, k K, fresh func() *V) *V {
	mu.RLock()
	v := m[k]
	mu.RUnlock()
	if v != nil {
		return v
	}
	mu.Lock()
	defer mu.Unlock()
	if v = m[k]; v == nil {
		v = fresh()
		m[k] = v
	}
	return v
}

// copied copies a map, to be read without its lock.
func copied[K comparable, V any](mu *sync.RWMutex, m map[K]*V) map[K]*V {
	mu.RLock()
	defer mu.RUnlock()
	out := make(map[K]*V, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
