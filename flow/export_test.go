// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Visitor is a request at a gate without a goroutine that waits for it.
type Visitor struct {
	c *Controller
	w *waiter
}

// Arrive is Enter without the wait.
func (c *Controller) Arrive(a *Ask) Visitor {
	w := c.waiters.Get().(*waiter)
	w.ask, w.decided = *a, w.word
	c.mu.Lock()
	c.enter(w, c.clock.Now())
	c.mu.Unlock()
	return Visitor{c, w}
}

// Cancel is what happens when the client leaves.
func (v Visitor) Cancel() { v.c.cancel(v.w) }

// Waits reports whether nothing was decided yet.
func (v Visitor) Waits() bool { return v.w.state == queued }

// Take takes the decision; the visitor is of no use afterwards.
func (v Visitor) Take() (Ticket, Reason) {
	<-v.w.wake
	if reason := v.w.reason; v.w.state == refused {
		v.c.free(v.w)
		return Ticket{}, reason
	}
	return Ticket(v), ""
}

// Place is where a place is kept for it.
func (v Visitor) Place() *fleet.Load { return v.w.kept }

// Check looks for what does not add up.
func (c *Controller) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, ready, timed := 0, 0, 0
	var bytes int64
	lanes := map[*lane]int{}
	classes := map[*class]int{}
	for _, b := range c.bands {
		n, open, size := 0, 0, int64(0)
		for tenant, f := range b.flows {
			inFlow := 0
			for _, q := range f.classes {
				if len(q.heap) == 0 {
					return fmt.Errorf("an empty queue of %s", tenant)
				}
				for i, w := range q.heap {
					if w.state != queued || w.flow != f || w.queue != q || w.at != i || i > 0 && w.before(q.heap[(i-1)/2]) {
						return fmt.Errorf("the queue of %s is out of order", tenant)
					}
					if w.dueAt >= 0 {
						timed++
						if c.expiry[w.dueAt] != w {
							return fmt.Errorf("the times are out of order")
						}
					}
					size += w.ask.Bytes
				}
				inFlow += len(q.heap)
				lanes[q.lane] += len(q.heap)
				classes[q.lane.class] += len(q.heap)
				if !q.lane.class.full {
					open += len(q.heap)
				}
			}
			listed := 0
			for w := f.newest; w != nil; w = w.older {
				listed++
			}
			if inFlow != f.Len || listed != f.Len || f.Len == 0 || f.Head.Ask == nil || f.seq != f.first(false).seq {
				return fmt.Errorf("flow %s: %d in queues, %d in the list, Len %d", tenant, inFlow, listed, f.Len)
			}
			n += inFlow
		}
		if n != b.count || open != b.ready || size != b.bytes {
			return fmt.Errorf("band %d: %d, %d ready, %d bytes; it says %d, %d, %d", b.priority, n, open, size, b.count, b.ready, b.bytes)
		}
		count, ready, bytes = count+n, ready+open, bytes+size
	}
	active := 0
	for _, cl := range c.classes {
		sum := 0
		for _, l := range cl.lanes {
			if l.waiting != lanes[l] {
				return fmt.Errorf("class %s: a lane says %d, there are %d", cl.key, l.waiting, lanes[l])
			}
			sum += l.waiting
		}
		if sum != cl.waiting || cl.waiting != classes[cl] || cl.waiting > 0 && c.active[cl.active] != cl {
			return fmt.Errorf("class %s says %d, its lanes %d, there are %d", cl.key, cl.waiting, sum, classes[cl])
		}
		if cl.waiting > 0 {
			active++
		}
	}
	if count != c.count || ready != c.ready || bytes != c.bytes || count != c.Waiting() || active != len(c.active) || timed != len(c.expiry) {
		return fmt.Errorf("%d, %d ready, %d bytes, %d classes, %d timed; it says %d, %d, %d, %d, %d",
			count, ready, bytes, active, timed, c.count, c.ready, c.bytes, len(c.active), len(c.expiry))
	}
	if len(c.classes)-len(c.active) > idleClasses || len(c.spare.flows) > spare || len(c.spare.queues) > spare {
		return fmt.Errorf("too much is kept: %d classes, %d flows, %d queues", len(c.classes)-len(c.active), len(c.spare.flows), len(c.spare.queues))
	}
	return nil
}

// Expire is what the timer does, at another time.
func (c *Controller) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired(now)
}

// Tenant is whose request it is.
func (t *Ticket) Tenant() string { return t.w.ask.Tenant }
