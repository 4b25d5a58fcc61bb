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

	"github.com/penstock-project/penstock/fleet"
)

// Controller is the gate of one pool: it holds requests while no endpoint has room for them. Nothing of it
// runs by itself but one timer, for those that have waited enough. Its methods may be called from any
// goroutine.
type Controller struct {
	opt     Options
	waiting atomic.Int64
	closed  atomic.Bool

	mu      sync.Mutex
	bands   []*band // by falling priority
	classes map[string]*class
	count   int
	bytes   int64
	seq     uint64
	pass    uint64
	empty   bool      // the pool has no endpoints
	since   time.Time // since when it is so
	expiry  expiry
	timer   *time.Timer
	alarm   time.Time // when the timer fires; zero when it is off
	leases  leases
	prios   []int
	limits  []float64
	pace    float64 // dispatches a second, of late
	paced   time.Time
}

var _ Gate = (*Controller)(nil)

// New returns a gate nobody waits at.
func New(opt Options) *Controller {
	c := &Controller{opt: opt, classes: map[string]*class{}}
	for priority, spec := range opt.Bands {
		c.bands = append(c.bands, newBand(priority, spec, true))
	}
	if _, ok := opt.Bands[0]; !ok {
		c.bands = append(c.bands, newBand(0, opt.Default, true))
	}
	slices.SortFunc(c.bands, func(a, b *band) int { return cmp.Compare(b.priority, a.priority) })
	c.empty = c.isEmpty()
	return c
}

func (c *Controller) isEmpty() bool {
	p := c.opt.Store.Load().Pool(c.opt.Pool)
	return p == nil || len(p.Endpoints) == 0
}

var waiters = sync.Pool{New: func() any { return &waiter{wake: make(chan struct{}, 1)} }}

// Enter implements [Gate].
func (c *Controller) Enter(ctx context.Context, a *Ask) (Ticket, Reason) {
	if c.closed.Load() {
		c.turnedAway(a)
		return Ticket{}, ShuttingDown
	}
	came := time.Now()
	w := waiters.Get().(*waiter)
	w.ask, w.dueAt, w.state, w.reason, w.story = *a, -1, queued, "", Story{}
	c.mu.Lock()
	w.entered = time.Now()
	c.enter(w)
	out := w.state
	if l := c.opt.Listener; l != nil {
		l.Entered(&w.ask, w.story.Outcome, time.Since(came))
	}
	if a.Story != nil {
		*a.Story = w.story
	}
	c.mu.Unlock()
	if out == queued {
		if a.Waits != nil {
			a.Waits()
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			c.mu.Lock()
			if w.state == queued {
				c.leave(w, time.Now(), EvictedContextCancelled, Cancelled)
			}
			c.mu.Unlock()
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
		w.free()
		return Ticket{}, reason
	}
	t := Ticket{c, w}
	if ctx.Err() != nil {
		t.End(0, 0)
		return Ticket{}, Cancelled
	}
	return t, ""
}

// free gives the waiter back for others.
func (w *waiter) free() {
	*w = waiter{wake: w.wake}
	waiters.Put(w)
}

// enter queues a request, lets go who can, and refuses it if it can't and there is no more room to wait.
func (c *Controller) enter(w *waiter) {
	now := w.entered
	c.regime(now)
	b := c.band(w.ask.Priority, now)
	c.seq++
	w.seq, w.rank = c.seq, b.Ordering.Rank(&w.ask, now, c.ttl(b, &w.ask))
	cl := c.classes[w.ask.Class]
	if cl == nil {
		cl = &class{key: w.ask.Class, refresh: w.ask.Refresh}
		c.classes[cl.key] = cl
	}
	if cl.waiting == 0 { // its candidates are as new as those of the request
		cl.candidates, cl.version = append(cl.candidates[:0], w.ask.Candidates...), w.ask.Version
	}
	w.ask.Candidates = nil
	b.push(w, cl, now)
	c.count++
	c.bytes += w.ask.Bytes
	c.waiting.Store(int64(c.count))
	c.dispatch(now)
	if w.state != queued {
		return
	}
	if !c.fits(b, w, now) {
		c.leave(w, now, c.atCapacity(), cond(c.empty, NoEndpoints, Saturated))
		return
	}
	c.stand(w, b)
	c.expire(w, b)
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

// fits reports whether the last to come may wait. Where the bound of all is reached, one of lower priority
// gives way.
func (c *Controller) fits(b *band, w *waiter, now time.Time) bool {
	if b.count > int(b.MaxRequests) || b.bytes > b.MaxBytes {
		return false
	}
	for c.opt.MaxRequests > 0 && int64(c.count) > c.opt.MaxRequests || c.opt.MaxBytes > 0 && c.bytes > c.opt.MaxBytes {
		o := c.least(w.ask.Priority)
		if o == nil {
			return false
		}
		c.leave(o, now, RejectedCapacity, Saturated)
	}
	return true
}

// least is the newest request of the longest flow of the lowest priority below p.
func (c *Controller) least(p int) *waiter {
	for _, b := range slices.Backward(c.bands) {
		if b.priority >= p {
			return nil
		}
		var longest *Flow
		for _, f := range b.flows {
			if longest == nil || f.Len > longest.Len || f.Len == longest.Len && f.Tenant < longest.Tenant {
				longest = f
			}
		}
		if longest == nil {
			continue
		}
		var newest *waiter
		for _, q := range longest.classes {
			for _, w := range q.heap[len(q.heap)/2:] {
				if newest == nil || w.seq > newest.seq {
					newest = w
				}
			}
		}
		return newest
	}
	return nil
}

// band finds the band of a priority, or makes it.
func (c *Controller) band(priority int, now time.Time) *band {
	at, ok := slices.BinarySearchFunc(c.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
	if ok {
		return c.bands[at]
	}
	c.bands = slices.DeleteFunc(c.bands, func(b *band) bool { return !b.static && b.count == 0 && now.Sub(b.idle) > keep })
	at, _ = slices.BinarySearchFunc(c.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
	b := newBand(priority, cond(priority < 0, c.opt.Negative, c.opt.Default), false)
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
	c.wind()
}

// wind sets the timer to the next that expires.
func (c *Controller) wind() {
	next := c.leases.due()
	if len(c.expiry) > 0 && (next.IsZero() || c.expiry[0].due.Before(next)) {
		next = c.expiry[0].due
	}
	if next.IsZero() || !c.alarm.IsZero() && !next.Before(c.alarm) {
		return // it is off, or fires soon enough
	}
	c.alarm = next
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(next), c.ring)
	} else {
		c.timer.Reset(time.Until(next))
	}
}

// ring lets those go that have waited enough.
func (c *Controller) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarm = time.Time{}
	now := time.Now()
	c.regime(now)
	for len(c.expiry) > 0 && !c.expiry[0].due.After(now) {
		c.leave(c.expiry[0], now, cond(c.empty, EvictedNoEndpoints, EvictedTTL), cond(c.empty, NoEndpoints, TTLExpired))
	}
	c.leases.ring(c, now)
	c.dispatch(now)
	c.wind()
}

// regime follows whether the pool has endpoints. Time under one regime does not count under the other.
func (c *Controller) regime(now time.Time) {
	if empty := c.isEmpty(); empty != c.empty {
		c.empty, c.since = empty, now
		all := c.expiry
		c.expiry = nil
		for _, w := range all {
			w.dueAt = -1
		}
		for _, b := range c.bands {
			for _, f := range b.flows {
				for _, q := range f.classes {
					for _, w := range q.heap {
						c.expire(w, b)
					}
				}
			}
		}
	}
}

// leave ends a wait without dispatch.
func (c *Controller) leave(w *waiter, now time.Time, how Outcome, why Reason) {
	c.remove(w, now)
	w.state, w.reason = refused, why
	c.tell(w, how, now)
	w.wake <- struct{}{}
}

// remove takes a waiter out of the queue.
func (c *Controller) remove(w *waiter, now time.Time) {
	cl := w.queue.class
	w.flow.b.remove(w, now)
	c.expiry.remove(w)
	if cl.waiting == 0 {
		delete(c.classes, cl.key)
	}
	c.count--
	c.bytes -= w.ask.Bytes
	c.waiting.Store(int64(c.count))
}

func (c *Controller) tell(w *waiter, how Outcome, now time.Time) {
	w.story.Outcome = how
	if c.opt.Listener != nil {
		c.opt.Listener.Left(&w.ask, how, now.Sub(w.entered))
	}
}

// turnedAway tells of a request that came when we are leaving.
func (c *Controller) turnedAway(a *Ask) {
	if a.Story != nil {
		*a.Story = Story{Outcome: RejectedOther}
	}
	if c.opt.Listener != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.opt.Listener.Left(a, RejectedOther, 0)
	}
}

// Kick implements [Gate].
func (c *Controller) Kick() {
	if c.waiting.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.regime(now)
	c.dispatch(now)
}

// Close implements [Gate].
func (c *Controller) Close() {
	c.closed.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, b := range c.bands {
		for _, f := range b.flows {
			for f.Len > 0 {
				c.leave(f.first(0), now, EvictedOther, ShuttingDown)
			}
		}
	}
	if c.timer != nil {
		c.timer.Stop()
	}
}

// dispatch lets requests go while there is room: by priority, by the fairness of the band, in the order of the
// flow.
func (c *Controller) dispatch(now time.Time) {
	if c.count == 0 {
		return
	}
	c.pass++
	open := len(c.classes)
	c.ceilings(now)
	ok := func(f *Flow) bool { return f.first(c.pass) != nil }
	for open > 0 && c.count > 0 {
		b := c.turn()
		if b == nil {
			break
		}
		f := b.fair.Next(now, ok)
		if f == nil {
			b.done = c.pass
			continue
		}
		w := b.choose(f, c.pass, now)
		cl := w.queue.class
		e := c.room(cl, w.ask.Uncached, now)
		if e == nil {
			cl.blocked = c.pass
			open--
			if len(f.classes) > 1 && f.head(c.pass) {
				b.fair.Headed(f, now)
			}
			continue
		}
		c.grant(w, e, now)
		if cl.waiting == 0 {
			open--
		}
		c.ceilings(now)
	}
	if c.opt.Evict && c.count > 0 {
		c.reclaim(now)
	}
	if c.opt.Listener != nil {
		c.opt.Listener.Looked(time.Since(now))
	}
}

// turn is the band whose turn it is: one that its share earned a dispatch, else the highest.
func (c *Controller) turn() *band {
	may := func(i int, b *band) bool { return b.count > 0 && b.done != c.pass && c.limits[i] > 0 }
	for i, b := range c.bands {
		if b.credit >= 1 && may(i, b) {
			return b
		}
	}
	for i, b := range c.bands {
		if may(i, b) {
			return b
		}
	}
	return nil
}

// ceilings works out which bands the usage limit lets dispatch: limits is above 0 for those.
func (c *Controller) ceilings(now time.Time) {
	n := len(c.bands)
	c.limits = slices.Grow(c.limits[:0], n)[:n]
	for i := range c.limits {
		c.limits[i] = 1
	}
	if c.opt.Limit == nil {
		return
	}
	c.prios = c.prios[:0]
	for _, b := range c.bands {
		c.prios = append(c.prios, b.priority)
	}
	full := c.saturation(now)
	c.limits = c.opt.Limit.Ceilings(full, c.prios, c.limits)
	for i, l := range c.limits {
		c.bands[i].ceiling = l
		if l < 1 && full >= l {
			c.limits[i] = 0
		} else {
			c.limits[i] = 1
		}
	}
}

// saturation is the mean of how full the pool's endpoints are, 1 when all are.
func (c *Controller) saturation(now time.Time) float64 {
	p := c.opt.Store.Load().Pool(c.opt.Pool)
	if p == nil || len(p.Endpoints) == 0 {
		return 1
	}
	var sum, weights float64
	for _, e := range p.Endpoints {
		fill, weight := c.opt.Detector.Fill(c.view(e, now))
		sum += min(fill, 1) * weight
		weights += weight
	}
	if weights == 0 {
		return 0
	}
	return sum / weights
}

func (c *Controller) view(e *fleet.Endpoint, now time.Time) View {
	requests, tokens := e.Load.Reserved()
	return View{Endpoint: e, Requests: e.Load.Requests() + requests, Tokens: e.Load.Tokens() + tokens, Now: now, Stale: c.opt.Stale}
}

// room finds an endpoint that can take a request of the class, or nil.
func (c *Controller) room(cl *class, tokens int64, now time.Time) *fleet.Endpoint {
	if s := c.opt.Store.Load(); s.Version != cl.version && cl.refresh != nil {
		cl.candidates, cl.version = cl.refresh(s, cl.candidates[:0]), s.Version
	}
	n := len(cl.candidates)
	for k := range n {
		i := cl.hint + k
		if i >= n {
			i %= n
		}
		if e := cl.candidates[i]; c.opt.Detector.Room(c.view(e, now), tokens) {
			cl.hint = i + 1
			return e
		}
	}
	return nil
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
	c.remove(w, now)
	w.state, w.kept, w.granted = granted, e.Load, now
	e.Load.Reserve(1, w.ask.Uncached)
	w.charged = [2]int64{w.ask.Uncached, w.ask.Output}
	b.fair.Charge(w.ask.Tenant, now, w.ask.Uncached, w.ask.Output)
	c.tell(w, Dispatched, now)
	c.note(now)
	w.wake <- struct{}{}
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
	rate := c.pace * math.Exp(-time.Since(c.paced).Seconds()/paceOver.Seconds())
	if rate*60 <= float64(c.count+1) {
		return cond(c.count == 0, time.Second, time.Minute)
	}
	return max(time.Second, time.Duration(float64(c.count+1)/rate*float64(time.Second)))
}

// Waiting implements [Gate].
func (c *Controller) Waiting() int { return int(c.waiting.Load()) }
