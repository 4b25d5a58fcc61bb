// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// How reclaiming is paced: at most so many at once, given up after so long.
const (
	reclaimAtOnce  = 2
	reclaimTimeout = 10 * time.Second
)

// A Lagging detector tells how long it takes to see that room appeared.
type Lagging interface{ Lag() time.Duration }

// lease is a dispatched request that may be taken back.
type lease struct {
	w       *waiter
	at      time.Time // dispatched
	evict   func()
	revoked time.Time // asked back at; zero when not
}

// leases are the requests that may be taken back, the first to be taken last in the list: lowest priority
// first, then the latest dispatched, so that the one with most work done survives longest.
type leases struct {
	list    []*lease
	pending []*lease  // asked back, not ended yet
	cool    time.Time // no decision before
}

func (l *leases) add(w *waiter, now time.Time, evict func()) {
	n := &lease{w: w, at: now, evict: evict}
	w.lease = n
	at, _ := slices.BinarySearchFunc(l.list, n, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(b.w.ask.Priority, a.w.ask.Priority), a.at.Compare(b.at), cmp.Compare(a.w.seq, b.w.seq))
	})
	l.list = slices.Insert(l.list, at, n)
}

// end forgets a request that ended, and takes it for the confirmation if it was asked back.
func (l *leases) end(c *Controller, w *waiter, now time.Time) {
	n := w.lease
	if n == nil {
		return
	}
	w.lease = nil
	if i := slices.Index(l.list, n); i >= 0 {
		l.list = slices.Delete(l.list, i, i+1)
	}
	if i := slices.Index(l.pending, n); i >= 0 {
		l.pending = slices.Delete(l.pending, i, i+1)
		l.cooldown(c, now)
		if c.opt.Listener != nil {
			c.opt.Listener.Reclaimed(true, now.Sub(n.revoked))
		}
	}
}

func (l *leases) cooldown(c *Controller, now time.Time) {
	lag := 10 * time.Millisecond
	if d, ok := c.opt.Detector.(Lagging); ok {
		lag = d.Lag()
	}
	l.cool = now.Add(lag)
}

// due is when something is to be looked at next; zero for never.
func (l *leases) due() time.Time {
	if len(l.pending) > 0 {
		return l.pending[0].revoked.Add(reclaimTimeout)
	}
	return l.cool
}

// ring gives up on those that were asked back long ago.
func (l *leases) ring(c *Controller, now time.Time) {
	for len(l.pending) > 0 && now.Sub(l.pending[0].revoked) >= reclaimTimeout {
		n := l.pending[0]
		l.pending = l.pending[1:]
		l.cooldown(c, now)
		if c.opt.Listener != nil {
			c.opt.Listener.Reclaimed(false, now.Sub(n.revoked))
		}
	}
	if len(l.pending) == 0 && !now.Before(l.cool) {
		l.cool = time.Time{}
	}
}

// reclaim asks requests of negative priority back for others that wait with a higher one: as many as those
// need, a few at once, and no more until these ended.
func (c *Controller) reclaim(now time.Time) {
	l := &c.leases
	if len(l.list) == 0 || len(l.pending) > 0 || now.Before(l.cool) {
		c.wind()
		return
	}
	victims := 0
	for _, b := range c.bands {
		if b.count == 0 || b.held {
			continue
		}
		for n := 0; n < b.count && victims < reclaimAtOnce; n++ {
			v := c.victim(b)
			if v == nil {
				break
			}
			victims++
			v.revoked = now
			l.list = slices.DeleteFunc(l.list, func(o *lease) bool { return o == v })
			l.pending = append(l.pending, v)
			if c.opt.Listener != nil {
				c.opt.Listener.Revoked(b.priority)
			}
			v.evict()
		}
	}
	c.wind()
}

// victim is who makes room for a band that waits: of lower priority, and on an endpoint that would serve it.
func (c *Controller) victim(b *band) *lease {
	for _, v := range slices.Backward(c.leases.list) {
		if v.w.ask.Priority >= b.priority {
			return nil // those before it are of higher priority still
		}
		for _, cl := range c.active {
			if !slices.ContainsFunc(cl.lanes, func(l *lane) bool { return l.band == b && l.waiting > 0 }) {
				continue
			}
			if slices.ContainsFunc(cl.candidates, func(e *fleet.Endpoint) bool { return e.Load == v.w.load }) {
				return v
			}
		}
	}
	return nil
}

// Reclaim tells how many requests are asked back and have not ended, and how many may be asked back.
func (c *Controller) Reclaim() (pending, tracked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.leases.pending), len(c.leases.list)
}
