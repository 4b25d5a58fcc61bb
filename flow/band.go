// SPDX-License-Identifier: Apache-2.0

package flow

import "time"

// band is all requests of one priority.
type band struct {
	BandSpec
	priority int
	static   bool
	fair     Fairness
	flows    map[string]*Flow
	count    int
	ready    int // of these, whose class is not full
	bytes    int64
	credit   float64   // dispatches that its share earned
	done     uint64    // the pass in which its policy let nobody go
	idle     time.Time // since when nobody waits
	ceiling  float64   // the saturation up to which it dispatches, as the usage limit last said
	held     bool      // the pool was fuller than that
	most     int       // flows that it had at once since it was empty
	lengths  lengths

	window []*waiter // scratch for a chooser
	view   []Waiting
	next   []int
}

const (
	// keep is how long a band that was made for a priority stays while nobody waits in it.
	keep = 10 * time.Minute
	// spare is how many flows and queues are kept for later ones, and shelf how long a kept queue may be.
	spare = 256
	shelf = 64
	// crowd is the number of flows above which a table of them is not kept for later.
	crowd = 1024
)

func newBand(priority int, spec BandSpec, static bool) *band {
	if spec.MaxRequests <= 0 {
		spec.MaxRequests = DefaultBandRequests
	}
	if spec.MaxBytes <= 0 {
		spec.MaxBytes = DefaultBandBytes
	}
	return &band{BandSpec: spec, priority: priority, static: static, fair: spec.Fairness(), flows: map[string]*Flow{}, ceiling: 1}
}

// lane is how many requests of one class wait in one band.
type lane struct {
	class   *class
	band    *band
	waiting int
}

// lane finds the class's lane in a band, or makes it.
func (cl *class) lane(b *band) *lane {
	for _, l := range cl.lanes {
		if l.band == b {
			return l
		}
	}
	l := &lane{class: cl, band: b}
	cl.lanes = append(cl.lanes, l)
	return l
}

// push puts a request into its flow.
func (c *Controller) push(b *band, w *waiter, cl *class, now time.Time) {
	f := b.flows[w.ask.Tenant]
	fresh := f == nil
	if fresh {
		f = c.spare.flow()
		f.Key, f.b = w.ask.Key, b
		b.flows[w.ask.Tenant] = f
		b.most = max(b.most, len(b.flows))
	}
	var q *classQueue
	for _, have := range f.classes {
		if have.lane.class == cl {
			q = have
			break
		}
	}
	if q == nil {
		q = c.spare.queue()
		q.lane = cl.lane(b)
		f.classes = append(f.classes, q)
	}
	w.flow = f
	w.older = f.newest
	if f.newest != nil {
		f.newest.newer = w
	}
	f.newest = w
	q.push(w)
	c.count++
	c.bytes += w.ask.Bytes
	b.count++
	b.bytes += w.ask.Bytes
	q.lane.waiting++
	cl.waiting++
	if !cl.full {
		c.ready++
		b.ready++
	}
	b.lengths.move(f, f.Len+1)
	f.Len++
	if headed := f.headed(); fresh {
		b.fair.Add(f, now)
	} else if headed {
		b.fair.Headed(f, now)
	}
}

// pull takes a request out of its flow.
func (c *Controller) pull(w *waiter, now time.Time) {
	f, q := w.flow, w.queue
	b, l := f.b, q.lane
	cl := l.class
	if w.newer != nil {
		w.newer.older = w.older
	} else {
		f.newest = w.older
	}
	if w.older != nil {
		w.older.newer = w.newer
	}
	q.remove(w)
	w.flow, w.newer, w.older = nil, nil, nil
	c.count--
	c.bytes -= w.ask.Bytes
	b.count--
	b.bytes -= w.ask.Bytes
	l.waiting--
	cl.waiting--
	if !cl.full {
		c.ready--
		b.ready--
	}
	b.lengths.move(f, f.Len-1)
	f.Len--
	if len(q.heap) == 0 {
		for i, have := range f.classes {
			if have == q {
				n := len(f.classes) - 1
				f.classes[i], f.classes[n] = f.classes[n], nil
				f.classes = f.classes[:n]
				break
			}
		}
		c.spare.keepQueue(q)
	}
	if f.Len == 0 {
		b.fair.Remove(f, now)
		delete(b.flows, f.Tenant)
		c.spare.keepFlow(f)
	} else if f.headed() {
		b.fair.Headed(f, now)
	}
	if b.count == 0 {
		b.credit, b.idle = 0, now
		if b.most > crowd { // tables never shrink
			b.flows, b.lengths = map[string]*Flow{}, lengths{}
		}
		b.most = 0
	}
}

// first is the flow's request that would go next; of those whose class is not full, if open.
func (f *Flow) first(open bool) *waiter {
	var best *waiter
	for _, q := range f.classes {
		if open && q.lane.class.full {
			continue
		}
		if w := q.heap[0]; best == nil || w.before(best) {
			best = w
		}
	}
	return best
}

// headed brings the head up to date, whether or not there is room for it, and reports whether it changed.
func (f *Flow) headed() bool {
	w := f.first(false)
	if w == nil {
		return false
	}
	changed := w.seq != f.seq
	f.Rank, f.seq = w.rank, w.seq
	f.show(w)
	return changed
}

// show makes w the one that goes next.
func (f *Flow) show(w *waiter) {
	if f.pick != w || f.Head.Ask != &w.ask {
		f.pick, f.Head = w, Waiting{&w.ask, w.entered, w.passed}
	}
}

// open reports whether the flow has a request whose class is not full, and shows the first of those.
func open(f *Flow) bool {
	w := f.first(true)
	if w == nil {
		return false
	}
	f.show(w)
	return true
}

// choose is the request of the flow that goes now.
func (b *band) choose(f *Flow, now time.Time) *waiter {
	w := f.first(true)
	if chooser, ok := b.Ordering.(Chooser); ok && len(w.queue.heap) > 1 {
		b.window, b.next = w.queue.leading(chooser.Window(), b.window[:0], b.next[:0])
		b.view = b.view[:0]
		for _, o := range b.window {
			b.view = append(b.view, Waiting{&o.ask, o.entered, o.passed})
		}
		w = b.window[chooser.Choose(now, b.view)]
		clear(b.window)
		clear(b.view)
	}
	f.show(w)
	return w
}

// lengths keeps flows by how many wait in them: for each number a list, those that came to it last at its end.
type lengths struct {
	lists []list
	most  int // the greatest number
}

type list struct{ first, last *Flow }

// move is told that a flow will have n waiting instead of Len.
func (l *lengths) move(f *Flow, n int) {
	if f.Len > 0 {
		at := &l.lists[f.Len]
		if f.shorter == nil {
			at.first = f.longer
		} else {
			f.shorter.longer = f.longer
		}
		if f.longer == nil {
			at.last = f.shorter
		} else {
			f.longer.shorter = f.shorter
		}
		f.shorter, f.longer = nil, nil
	}
	if n > 0 {
		for len(l.lists) <= n {
			l.lists = append(l.lists, list{})
		}
		at := &l.lists[n]
		f.shorter = at.last
		if at.last == nil {
			at.first = f
		} else {
			at.last.longer = f
		}
		at.last = f
		l.most = max(l.most, n)
	}
	for l.most > 0 && l.lists[l.most].last == nil {
		l.most-- // by one: lengths change by one
	}
}

// longest is the flow with most requests; of equals the one that came to so many last.
func (l *lengths) longest() *Flow {
	if l.most == 0 {
		return nil
	}
	return l.lists[l.most].last
}

// spares are flows and queues for those that come.
type spares struct {
	flows  []*Flow
	queues []*classQueue
}

func (s *spares) flow() *Flow {
	n := len(s.flows) - 1
	if n < 0 {
		return &Flow{}
	}
	f := s.flows[n]
	s.flows = s.flows[:n]
	return f
}

func (s *spares) keepFlow(f *Flow) {
	*f = Flow{classes: f.classes[:0]}
	if len(s.flows) < spare {
		s.flows = append(s.flows, f)
	}
}

func (s *spares) queue() *classQueue {
	n := len(s.queues) - 1
	if n < 0 {
		return &classQueue{}
	}
	q := s.queues[n]
	s.queues = s.queues[:n]
	return q
}

func (s *spares) keepQueue(q *classQueue) {
	q.lane = nil
	if len(s.queues) < spare && cap(q.heap) <= shelf {
		s.queues = append(s.queues, q)
	}
}
