// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/clock"
	"github.com/penstock-project/penstock/fleet"
)

// Controller is the gate of one pool: it holds requests while no endpoint has room for them. Nothing of it
// runs by itself but one timer, for those that have waited enough. Its methods may be called from any
// goroutine.
type Controller struct {
	opt     Options
	clock   clock.Clock
	weigher Weigher // the detector, if it is one
	waiting atomic.Int64
	waiters sync.Pool

	mu      sync.Mutex
	closed  bool
	seen    *fleet.Snapshot
	pool    *fleet.Pool // of it; nil when there is none
	looked  time.Time   // when all was last looked at anew
	bands   []*band     // by falling priority
	classes map[string]*class
	active  []*class // those that have requests waiting
	count   int
	ready   int // of these, whose class is not full
	bytes   int64
	seq     uint64
	pass    uint64
	empty   bool      // the pool has no endpoints
	since   time.Time // since when it is so
	expiry  expiry
	timer   clock.Timer
	alarm   time.Time // when the timer fires; zero when it is off
	leases  leases
	meter   meter
	prios   []int
	limits  []float64
	pace    float64 // dispatches a second, of late
	paced   time.Time
	spare   spares
}

// backstop is how often all is looked at anew while requests wait: some things change with time alone, a signal that
// becomes unknown, an endpoint that is let in again.
const backstop = time.Second

var _ Gate = (*Controller)(nil)

// New returns a gate nobody waits at.
func New(opt Options) *Controller {
	c := &Controller{opt: opt, clock: clock.Or(opt.Clock), classes: map[string]*class{}}
	c.weigher, _ = opt.Detector.(Weigher)
	c.waiters.New = func() any { return newWaiter() }
	for priority, spec := range opt.Bands {
		c.bands = append(c.bands, newBand(priority, spec, true))
	}
	if _, ok := opt.Bands[0]; !ok {
		c.bands = append(c.bands, newBand(0, opt.Default, true))
	}
	slices.SortFunc(c.bands, func(a, b *band) int { return cmp.Compare(b.priority, a.priority) })
	c.seen, c.looked = opt.Store.Load(), c.clock.Now()
	c.pool = c.seen.Pool(opt.Pool)
	c.empty = c.isEmpty()
	return c
}

func (c *Controller) isEmpty() bool { return c.pool == nil || len(c.pool.Endpoints) == 0 }

// look follows the fleet. What it had found out about room is void when there is a later snapshot, or news.
func (c *Controller) look(now time.Time, news bool) {
	s := c.opt.Store.Load()
	if s == c.seen && !news {
		return
	}
	c.seen, c.pool, c.looked, c.meter.valid = s, s.Pool(c.opt.Pool), now, false
	for _, cl := range c.active {
		cl.old = true
		c.reopen(cl)
	}
	if empty := c.isEmpty(); empty != c.empty {
		c.empty, c.since = empty, now
		c.regime()
	}
}

// Enter implements [Gate].
func (c *Controller) Enter(ctx context.Context, a *Ask) (Ticket, Reason) {
	w := c.waiters.Get().(*waiter)
	w.decided = w.word
	if c.begin(w, a) {
		select {
		case <-w.wake:
		case <-ctx.Done():
			c.cancel(w)
			<-w.wake // whoever decided left a word
		}
	} else {
		<-w.wake
	}
	if a.Story != nil {
		a.Story.Outcome = w.story.Outcome
	}
	if w.state == refused {
		reason := w.reason
		c.free(w)
		return Ticket{}, reason
	}
	t := Ticket{c, w}
	if ctx.Err() != nil {
		t.End(0, 0)
		return Ticket{}, Cancelled
	}
	return t, ""
}

// Begin implements [Gate].
func (c *Controller) Begin(a *Ask, decided func(Ticket, Reason)) {
	w := c.waiters.Get().(*waiter)
	w.decided = decided
	c.begin(w, a)
}

// begin has a request enter, and reports whether it waits.
func (c *Controller) begin(w *waiter, a *Ask) (waits bool) {
	came := c.clock.Now()
	w.ask = *a
	c.mu.Lock()
	c.enter(w, c.clock.Now())
	out, told := w.state, w.story
	c.mu.Unlock()
	if a.Story != nil {
		*a.Story = told
	}
	if l := c.opt.Listener; l != nil {
		l.Entered(a, told.Outcome, c.clock.Now().Sub(came))
	}
	if out == queued && a.Waits != nil {
		a.Waits()
	}
	return out == queued
}

// cancel takes out one whose client left, unless its wait just ended otherwise.
func (c *Controller) cancel(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.state != queued {
		return
	}
	now := c.clock.Now()
	c.leave(w, now, EvictedContextCancelled, Cancelled)
	c.look(now, false)
	c.dispatch(now) // those behind it may need less room
}

// free gives the waiter back for others.
func (c *Controller) free(w *waiter) {
	*w = waiter{wake: w.wake, word: w.word}
	c.waiters.Put(w)
}

// enter queues a request, lets go who can, and refuses it if it can't and there is no more room to wait.
func (c *Controller) enter(w *waiter, now time.Time) {
	w.entered, w.dueAt, w.state, w.story = now, -1, queued, Story{}
	if c.closed {
		w.state, w.reason = refused, ShuttingDown
		c.tell(w, RejectedOther, now)
		w.decided(Ticket{}, w.reason)
		return
	}
	c.look(now, false)
	b := c.band(w.ask.Priority, now)
	c.seq++
	w.seq, w.rank = c.seq, b.Ordering.Rank(&w.ask, now, c.ttl(b, &w.ask))
	cl := c.class(&w.ask)
	c.push(b, w, cl, now)
	c.waiting.Store(int64(c.count))
	c.dispatch(now)
	if w.state != queued {
		return
	}
	if !c.fits(b, w, now) {
		c.leave(w, now, c.atCapacity(), c.noCapacity())
		c.dispatch(now)
		return
	}
	if w.state != queued {
		return // others gave way that stood before it
	}
	c.stand(w, b)
	c.expire(w, b)
	c.wind()
}

func cond[T any](ok bool, yes, no T) T {
	if ok {
		return yes
	}
	return no
}

func (c *Controller) atCapacity() Outcome {
	return cond(c.empty, RejectedNoEndpoints, RejectedCapacity)
}
func (c *Controller) noCapacity() Reason { return cond(c.empty, NoEndpoints, Saturated) }

// fits reports whether the last to come may wait. Where the bound of all is reached, those of lower priority give
// way, if that is enough: of the lowest, the newest request of the longest flow. Else one of its own band may.
func (c *Controller) fits(b *band, w *waiter, now time.Time) bool {
	full := func(count int, bytes int64) bool { return int64(count) > b.MaxRequests || bytes > b.MaxBytes }
	over := func(count int, bytes int64) bool {
		return c.opt.MaxRequests > 0 && int64(count) > c.opt.MaxRequests || c.opt.MaxBytes > 0 && bytes > c.opt.MaxBytes
	}
	tight := full(b.count, b.bytes)
	if !tight && !over(c.count, c.bytes) {
		return true
	}
	count, bytes := c.count, c.bytes
	for _, o := range c.bands {
		if o.priority < b.priority {
			count, bytes = count-o.count, bytes-o.bytes
		}
	}
	if tight || over(count, bytes) {
		o := b.crowding(w)
		if o == nil || full(b.count-1, b.bytes-o.ask.Bytes) || over(c.count-1, c.bytes-o.ask.Bytes) {
			return false
		}
		c.leave(o, now, c.atCapacity(), c.noCapacity())
	}
	for _, o := range slices.Backward(c.bands) {
		for o.count > 0 && over(c.count, c.bytes) {
			c.leave(o.lengths.longest().newest, now, c.atCapacity(), c.noCapacity())
		}
	}
	c.dispatch(now) // those behind them may need less room
	return true
}

// crowding is who gives way to another tenant of its band: the newest request of the longest flow, if that stays no
// shorter than w's. So one tenant alone never takes all the room to wait.
func (b *band) crowding(w *waiter) *waiter {
	if _, ok := b.fair.(Indifferent); ok {
		return nil
	}
	if f := b.lengths.longest(); f.Len > w.flow.Len {
		return f.newest
	}
	return nil
}

// band finds the band of a priority, or makes it.
func (c *Controller) band(priority int, now time.Time) *band {
	at, ok := slices.BinarySearchFunc(c.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
	if ok {
		return c.bands[at]
	}
	c.bands = slices.DeleteFunc(c.bands, func(b *band) bool {
		old := !b.static && b.count == 0 && now.Sub(b.idle) > keep
		if old {
			for _, cl := range c.classes {
				cl.lanes = slices.DeleteFunc(cl.lanes, func(l *lane) bool { return l.band == b })
			}
		}
		return old
	})
	at, _ = slices.BinarySearchFunc(c.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
	b := newBand(priority, cond(priority < 0, c.opt.Negative, c.opt.Default), false)
	b.idle = now
	c.bands = slices.Insert(c.bands, at, b)
	return b
}

// ttl is how long a request may wait in the present regime; 0 for no bound.
func (c *Controller) ttl(b *band, a *Ask) time.Duration {
	ttl := cmp.Or(b.TTL, c.opt.TTL)
	if c.empty {
		ttl = c.opt.NoEndpointTTL
	}
	if a.TTL > 0 && (ttl == 0 || a.TTL < ttl) {
		ttl = a.TTL
	}
	return ttl
}

// expire sets until when a request waits: so long in the regime that is, and as long as it asked for in all.
func (c *Controller) expire(w *waiter, b *band) {
	own := w.ask.TTL
	w.ask.TTL = 0
	ttl := c.ttl(b, &w.ask)
	w.ask.TTL = own
	w.due = time.Time{}
	if ttl > 0 {
		from := w.entered
		if c.since.After(from) {
			from = c.since
		}
		w.due = from.Add(ttl)
	}
	if own > 0 && (w.due.IsZero() || w.entered.Add(own).Before(w.due)) {
		w.due = w.entered.Add(own)
	}
	if w.due.IsZero() {
		return
	}
	c.expiry.push(w)
}

// wind sets the timer to the next that expires, or to when it is time to look again.
func (c *Controller) wind() {
	next := c.leases.due()
	if c.count > 0 && (next.IsZero() || c.looked.Add(backstop).Before(next)) {
		next = c.looked.Add(backstop)
	}
	if len(c.expiry) > 0 && (next.IsZero() || c.expiry[0].due.Before(next)) {
		next = c.expiry[0].due
	}
	if next.IsZero() || !c.alarm.IsZero() && !next.Before(c.alarm) {
		return // it is off, or fires soon enough
	}
	c.alarm = next
	if c.timer == nil {
		c.timer = c.clock.AfterFunc(next.Sub(c.clock.Now()), c.ring)
	} else {
		c.timer.Reset(next.Sub(c.clock.Now()))
	}
}

// ring lets those go that have waited enough.
func (c *Controller) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarm = time.Time{}
	c.expired(c.clock.Now())
}

func (c *Controller) expired(now time.Time) {
	c.look(now, now.Sub(c.looked) >= backstop)
	for len(c.expiry) > 0 && !c.expiry[0].due.After(now) {
		c.leave(c.expiry[0], now, cond(c.empty, EvictedNoEndpoints, EvictedTTL), cond(c.empty, NoEndpoints, TTLExpired))
	}
	c.leases.ring(c, now)
	c.dispatch(now)
	c.wind()
}

// regime sets anew until when requests wait, after the pool lost its endpoints or got some. Time under one regime does
// not count under the other.
func (c *Controller) regime() {
	for _, w := range c.expiry {
		w.dueAt = -1
	}
	clear(c.expiry)
	c.expiry = c.expiry[:0]
	for _, b := range c.bands {
		for _, f := range b.flows {
			for w := f.newest; w != nil; w = w.older {
				c.expire(w, b)
			}
		}
	}
	c.wind()
}

// leave ends a wait without dispatch.
func (c *Controller) leave(w *waiter, now time.Time, how Outcome, why Reason) {
	c.remove(w, now)
	w.state, w.reason = refused, why
	c.tell(w, how, now)
	w.decided(Ticket{}, why)
}

// remove takes a waiter out of the queue.
func (c *Controller) remove(w *waiter, now time.Time) {
	cl := w.queue.lane.class
	c.pull(w, now)
	c.expiry.remove(w)
	if cl.waiting == 0 {
		c.rest(cl)
	}
	if c.count == 0 && cap(c.expiry) > crowd {
		c.expiry = nil
	}
	c.waiting.Store(int64(c.count))
}

func (c *Controller) tell(w *waiter, how Outcome, now time.Time) {
	w.story.Outcome = how
	if c.opt.Listener != nil {
		c.opt.Listener.Left(&w.ask, how, now.Sub(w.entered))
	}
}

// Kick implements [Gate].
func (c *Controller) Kick() {
	if c.waiting.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	c.look(now, true)
	c.dispatch(now)
}

// Close implements [Gate].
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	now := c.clock.Now()
	for _, b := range c.bands {
		for _, f := range b.flows {
			for w := f.newest; w != nil; w = f.newest {
				c.leave(w, now, EvictedOther, ShuttingDown)
			}
		}
	}
}

// dispatch lets requests go while there is room: by priority, by the fairness of the band, in the order of the
// flow. Nothing is asked twice: a class is full until something changed that could make room for it.
func (c *Controller) dispatch(now time.Time) {
	if c.count == 0 {
		return
	}
	c.again(now)
	evict := c.opt.Evict && len(c.leases.list) > 0
	if c.ready == 0 && !evict {
		return
	}
	c.ceilings(now)
	for c.ready > 0 {
		b := c.turn()
		if b == nil {
			break
		}
		f := b.fair.Next(now, open)
		if f == nil {
			b.done = c.pass
			continue
		}
		w := b.choose(f, now)
		cl := w.queue.lane.class
		e := c.room(cl, c.weight(w.ask.Uncached, w.ask.Tokens), now)
		if e == nil {
			c.shut(cl)
			continue
		}
		c.grant(w, e, now)
		c.again(now)
		c.ceilings(now)
	}
	if evict && c.count > 0 {
		c.reclaim(now)
	}
	if c.opt.Listener != nil {
		c.opt.Listener.Looked(c.clock.Now().Sub(now))
	}
}

// again looks at what is known of classes once more: where there is room for few tokens, who is next may be another
// now; where there is none at all, nobody needs to be looked for.
func (c *Controller) again(now time.Time) {
	c.pass++
	for _, cl := range c.active {
		switch {
		case cl.none > 0 || cl.old || cl.left(c, now):
			c.reopen(cl)
		default:
			c.shut(cl)
		}
	}
}

// turn is the band whose turn it is: one that its share earned a dispatch, else the highest.
func (c *Controller) turn() *band {
	may := func(b *band) bool { return b.ready > 0 && b.done != c.pass && !b.held }
	for _, b := range c.bands {
		if b.credit >= 1-rounding && may(b) {
			return b
		}
	}
	for _, b := range c.bands {
		if may(b) {
			return b
		}
	}
	return nil
}

// ceilings works out which bands the usage limit holds.
func (c *Controller) ceilings(now time.Time) {
	if c.opt.Limit == nil {
		return
	}
	c.prios, c.limits = c.prios[:0], c.limits[:0]
	for _, b := range c.bands {
		c.prios, c.limits = append(c.prios, b.priority), append(c.limits, 1)
	}
	full := c.saturation(now)
	c.limits = c.opt.Limit.Ceilings(full, c.prios, c.limits)
	for i, b := range c.bands {
		b.ceiling = c.limits[i]
		b.held = b.ceiling < 1 && full >= b.ceiling-rounding
	}
}

// rounding is what sums of shares may be off by.
const rounding = 1e-9

// saturation is the mean of how full the pool's endpoints are, 1 when all are.
func (c *Controller) saturation(now time.Time) float64 {
	if c.isEmpty() {
		return 1
	}
	m := &c.meter
	if !m.valid {
		m.read(c, now)
	}
	if m.weights <= 0 {
		return 0
	}
	return max(0, m.sum/m.weights)
}

// meter sums how full the pool's endpoints are, and follows each change of one.
type meter struct {
	valid        bool
	index        index
	fills        []filled
	sum, weights float64
}

type filled struct{ fill, weight float64 }

func (m *meter) read(c *Controller, now time.Time) {
	m.valid, m.sum, m.weights = true, 0, 0
	m.fills = slices.Grow(m.fills[:0], len(c.pool.Endpoints))[:len(c.pool.Endpoints)]
	m.index.read(c.pool.Endpoints)
	for i, e := range c.pool.Endpoints {
		m.fills[i] = filled{}
		m.update(c, i, e, now)
	}
}

func (m *meter) update(c *Controller, i int, e *fleet.Endpoint, now time.Time) {
	fill, weight := c.opt.Detector.Fill(c.view(e, now))
	fill = min(fill, 1) * weight
	m.sum += fill - m.fills[i].fill
	m.weights += weight - m.fills[i].weight
	m.fills[i] = filled{fill, weight}
}

func (c *Controller) view(e *fleet.Endpoint, now time.Time) View {
	requests, tokens := e.Load.Reserved()
	return View{Endpoint: e, Requests: e.Load.Requests() + requests, Tokens: e.Load.Tokens() + tokens, Now: now, Stale: c.opt.Stale}
}

// weight is how many tokens of work a request counts as where room is asked for.
func (c *Controller) weight(uncached, prompt int64) int64 {
	if c.weigher == nil {
		return uncached
	}
	return c.weigher.Weight(uncached, prompt)
}

// changed follows what an endpoint has in flight.
func (c *Controller) changed(l *fleet.Load, now time.Time) {
	if m := &c.meter; l != nil && m.valid {
		if i := m.index.find(c.pool.Endpoints, l); i >= 0 {
			m.update(c, i, c.pool.Endpoints[i], now)
		}
	}
}

// eased follows an endpoint that has less in flight than before.
func (c *Controller) eased(l *fleet.Load, now time.Time) {
	if l == nil {
		return
	}
	c.changed(l, now)
	for _, cl := range c.active {
		cl.eased(c, l, now)
	}
}

// grant lets a request go, and keeps a place for it until it says where it went.
func (c *Controller) grant(w *waiter, e *fleet.Endpoint, now time.Time) {
	b := w.flow.b
	for _, o := range c.bands {
		if o.Share > 0 && o.count > 0 {
			o.credit = min(o.credit+o.Share, 2)
		}
	}
	b.credit = max(0, b.credit-1)
	b.fair.Went(w.flow, now)
	if first := w.queue.heap[0]; first != w {
		first.passed++
	}
	c.remove(w, now)
	w.state, w.kept, w.granted = granted, e.Load, now
	e.Load.Reserve(1, w.ask.Uncached)
	c.changed(e.Load, now)
	w.charged = [2]int64{w.ask.Uncached, w.ask.Output}
	b.fair.Charge(w.ask.Tenant, now, w.ask.Uncached, w.ask.Output)
	c.tell(w, Dispatched, now)
	c.note(now)
	w.decided(Ticket{c, w}, "")
}

// paceOver is the time over which the rate of dispatches is averaged.
const paceOver = 10 * time.Second

// note counts a dispatch.
func (c *Controller) note(now time.Time) {
	c.pace = c.pace*math.Exp(-now.Sub(c.paced).Seconds()/paceOver.Seconds()) + 1/paceOver.Seconds()
	c.paced = now
}

// RetryAfter implements [Gate]: the time in which those that wait would have gone at the rate of late, 1 s to a
// minute.
func (c *Controller) RetryAfter() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == 0 {
		return time.Second
	}
	rate := c.pace * math.Exp(-c.clock.Now().Sub(c.paced).Seconds()/paceOver.Seconds())
	if n := float64(c.count); rate*60 > n {
		return max(time.Second, time.Duration(n/rate*float64(time.Second)))
	}
	return time.Minute
}

// Waiting implements [Gate].
func (c *Controller) Waiting() int { return int(c.waiting.Load()) }
