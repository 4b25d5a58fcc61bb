// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Place takes the request's place at an endpoint, in one step with the question whether there is room. It
// reports false when there is none; where the gate kept a place there is.
func (t *Ticket) Place(e *fleet.Endpoint, now time.Time, prefill, output int64) (fleet.Hold, bool) {
	if t.c == nil || t.w == nil {
		return e.Load.Take(now, prefill, output), true
	}
	c, w := t.c, t.w
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.kept != e.Load && w.load == nil && !c.light(w, prefill) && !c.opt.Detector.Room(c.view(e, now), c.weight(prefill, w.ask.Tokens)) {
		return fleet.Hold{}, false
	}
	return c.place(w, e, now, prefill, output), true
}

// light reports whether a request is light where it has so much work, as the detector weighs it. It may go there whatever is
// there: whether it goes at all the gate has said, and elsewhere all would have to be worked off that is held there.
func (c *Controller) light(w *waiter, prefill int64) bool {
	return c.weigher != nil && w.ask.Tokens > 0 && c.weigher.Weight(prefill, w.ask.Tokens) == 0
}

// Force takes a place whether or not there is room: nothing that has any can serve the request.
func (t *Ticket) Force(e *fleet.Endpoint, now time.Time, prefill, output int64) fleet.Hold {
	if t.c == nil || t.w == nil {
		return e.Load.Take(now, prefill, output)
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.c.place(t.w, e, now, prefill, output)
}

func (c *Controller) place(w *waiter, e *fleet.Endpoint, now time.Time, prefill, output int64) fleet.Hold {
	kept, was := c.unkeep(w), w.load
	w.load = e.Load
	c.charge(w, now, prefill, w.charged[1])
	h := e.Load.Take(now, prefill, output)
	if kept == e.Load && prefill >= w.ask.Uncached && was == nil {
		c.changed(kept, now)
		return h
	}
	// Where it had a place, or was before, another can go.
	now = c.clock.Now()
	c.changed(e.Load, now)
	c.eased(kept, now)
	c.eased(was, now)
	c.look(now, false)
	c.dispatch(now)
	return h
}

// unkeep gives the kept place back, and tells where it was.
func (c *Controller) unkeep(w *waiter) *fleet.Load {
	kept := w.kept
	if kept != nil {
		kept.Reserve(-1, -w.ask.Uncached)
		w.kept = nil
	}
	return kept
}

// Eased tells that the request left some of its endpoint's room to others: its prompt is worked off.
func (t *Ticket) Eased() {
	if t.c == nil || t.w == nil || t.c.Waiting() == 0 {
		return
	}
	c := t.c
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look(now, false)
	c.eased(t.w.load, now)
	c.dispatch(now)
}

// charge corrects what the tenant was charged.
func (c *Controller) charge(w *waiter, now time.Time, uncached, output int64) {
	du, do := uncached-w.charged[0], output-w.charged[1]
	if du == 0 && do == 0 {
		return
	}
	w.charged = [2]int64{uncached, output}
	c.band(w.ask.Priority, now).fair.Charge(w.ask.Tenant, now, du, do)
}

// Kept is where the gate kept a place: at least there is room. Nil without a queue.
func (t *Ticket) Kept() *fleet.Load {
	if t.c == nil || t.w == nil {
		return nil
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.w.kept
}

// Evictable lets the gate take the request back: evict is called once at most, must be quick and not call the gate. Only
// requests of negative priority can be.
func (t *Ticket) Evictable(now time.Time, evict func()) {
	if t.c == nil || t.w == nil || !t.c.opt.Evict || t.w.ask.Priority >= 0 {
		return
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.c.leases.add(t.w, now, evict)
}

// Prompt tells how many tokens the whole prompt had, once the engine told, for those who count it at the end;
// below 0 for unknown.
func (t *Ticket) Prompt(tokens int64) {
	if t.w != nil && tokens >= 0 {
		t.w.ask.Tokens = tokens // nobody else reads it any more
	}
}

// End gives back what the ticket still holds, tells what work the request really was, in tokens of uncached
// prompt and of output (below 0 for unknown), and lets others go. The endpoint's share was released before.
// Further calls do nothing.
func (t *Ticket) End(uncached, output int64) {
	if t.c == nil || t.w == nil {
		return
	}
	c, w := t.c, t.w
	t.w = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	kept, load := c.unkeep(w), w.load
	if w.load == nil { // it never ran
		uncached, output = 0, 0
	}
	if uncached < 0 {
		uncached = w.charged[0]
	}
	if output < 0 {
		output = w.charged[1]
	}
	c.charge(w, now, uncached, output)
	if w.load != nil {
		if f, ok := c.band(w.ask.Priority, now).fair.(Finisher); ok {
			f.Finished(w.ask.Tenant, now, w.ask.Tokens, output)
		}
	}
	c.leases.end(c, w, now)
	c.free(w)
	c.look(now, false)
	c.eased(kept, now)
	c.eased(load, now)
	c.dispatch(now)
}
