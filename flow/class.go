// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// class is what requests with equal candidates share: where they could go, and what is known about room there.
type class struct {
	key        string
	refresh    func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint
	version    uint64 // of the snapshot that candidates are of
	old        bool   // there may be other candidates now
	candidates []*fleet.Endpoint
	index      index
	indexed    bool
	hint       int // where to look for room first

	lanes   []*lane // by band
	waiting int
	active  int // place among the controller's active classes

	full  bool  // there is no room for the next of them
	none  int64 // no candidate has room for so many tokens or more, but perhaps those of freed
	freed []*fleet.Endpoint
}

const (
	// unknown is the number of tokens that there is no room for while nobody looked.
	unknown = math.MaxInt64
	// idleClasses is how many classes are kept while nobody of them waits.
	idleClasses = 64
	// freedAtMost is of how many endpoints a class remembers that they have less in flight than before.
	freedAtMost = 8
)

// class is the request's.
func (c *Controller) class(a *Ask) *class {
	cl := c.classes[a.Class]
	if cl == nil {
		cl = &class{key: a.Class, none: unknown}
		c.classes[cl.key] = cl
	}
	if cl.waiting == 0 {
		cl.active = len(c.active)
		c.active = append(c.active, cl)
		cl.refresh = a.Refresh
	}
	if cl.waiting == 0 || cl.old && a.Version > cl.version {
		cl.candidates, cl.version = append(cl.candidates[:0], a.Candidates...), a.Version
		cl.old, cl.indexed = a.Version < c.seen.Version, false
		cl.forget()
	}
	// What is not of use while it waits is not kept.
	a.Class, a.Candidates, a.Refresh, a.Waits = cl.key, nil, nil, nil
	return cl
}

// rest is told that nobody of the class waits.
func (c *Controller) rest(cl *class) {
	c.reopen(cl)
	cl.refresh = nil
	n := len(c.active) - 1
	last := c.active[n]
	c.active[cl.active], last.active = last, cl.active
	c.active[n] = nil
	c.active = c.active[:n]
	if len(c.classes)-n > idleClasses {
		maps.DeleteFunc(c.classes, func(_ string, cl *class) bool { return cl.waiting == 0 })
	}
	cl.forget()
	clear(cl.candidates)
	cl.candidates = cl.candidates[:0]
}

// forget voids what is known about room.
func (cl *class) forget() {
	cl.none = unknown
	clear(cl.freed)
	cl.freed = cl.freed[:0]
}

// shut is told that there is no room for the next.
func (c *Controller) shut(cl *class) {
	if cl.full {
		return
	}
	cl.full = true
	c.ready -= cl.waiting
	for _, l := range cl.lanes {
		l.band.ready -= l.waiting
	}
}

// reopen is told that there may be room again.
func (c *Controller) reopen(cl *class) {
	if !cl.full {
		return
	}
	cl.full = false
	c.ready += cl.waiting
	for _, l := range cl.lanes {
		l.band.ready += l.waiting
	}
}

// eased is told that an endpoint has less in flight than before.
func (cl *class) eased(c *Controller, l *fleet.Load, now time.Time) {
	if cl.none == unknown || cl.old {
		return // it will look at all
	}
	if !cl.indexed {
		cl.indexed = true
		cl.index.read(cl.candidates)
	}
	i := cl.index.find(cl.candidates, l)
	if i < 0 || !c.opt.Detector.Room(c.view(cl.candidates[i], now), 0) {
		return
	}
	e := cl.candidates[i]
	switch {
	case slices.Contains(cl.freed, e):
	case len(cl.freed) < freedAtMost:
		cl.freed = append(cl.freed, e)
	default:
		cl.forget()
	}
	c.reopen(cl)
}

// left reports whether any of those that were freed still has room at all.
func (cl *class) left(c *Controller, now time.Time) bool {
	n := 0
	for _, e := range cl.freed {
		if c.opt.Detector.Room(c.view(e, now), 0) {
			cl.freed[n] = e
			n++
		}
	}
	clear(cl.freed[n:])
	cl.freed = cl.freed[:n]
	return n > 0
}

// room finds an endpoint that can take a request of the class, or nil.
func (c *Controller) room(cl *class, tokens int64, now time.Time) *fleet.Endpoint {
	if cl.old {
		if cl.refresh != nil {
			cl.candidates = cl.refresh(c.seen, cl.candidates[:0])
		}
		cl.version, cl.old, cl.indexed = c.seen.Version, false, false
		cl.forget()
	}
	has := func(e *fleet.Endpoint, tokens int64) bool { return c.opt.Detector.Room(c.view(e, now), tokens) }
	if tokens >= cl.none {
		for i := len(cl.freed) - 1; i >= 0; i-- {
			e := cl.freed[i]
			if has(e, tokens) {
				return e
			}
			if tokens <= cl.none || !has(e, 0) {
				cl.freed = slices.Delete(cl.freed, i, i+1)
			}
		}
		return nil
	}
	n, any := len(cl.candidates), false
	for k := range n {
		i := cl.hint + k
		if i >= n {
			i %= n
		}
		e := cl.candidates[i]
		if has(e, tokens) {
			cl.hint = i + 1
			return e
		}
		any = any || has(e, 0)
	}
	cl.forget()
	cl.none = cond(any, tokens, 0)
	return nil
}

// index finds endpoints by their loads' slots.
type index []int32

func (x *index) read(list []*fleet.Endpoint) {
	clear(*x)
	for i, e := range list {
		for int(e.Load.Slot) >= len(*x) {
			*x = append(*x, 0)
		}
		(*x)[e.Load.Slot] = int32(i + 1)
	}
}

// find is the place of the endpoint with that load in the list that was read, -1 for none.
func (x index) find(list []*fleet.Endpoint, l *fleet.Load) int {
	if int(l.Slot) >= len(x) {
		return -1
	}
	if i := int(x[l.Slot]) - 1; i >= 0 && i < len(list) && list[i].Load == l {
		return i
	}
	return -1
}
