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
	bytes    int64
	credit   float64   // dispatches that its share earned
	done     uint64    // the pass in which none of its flows could go
	idle     time.Time // since when nobody waits
	ceiling  float64   // the saturation up to which it dispatches, as the usage limit last said
}

// keep is how long a band that was made for a priority stays while nobody waits in it.
const keep = 10 * time.Minute

func newBand(priority int, spec BandSpec, static bool) *band {
	if spec.MaxRequests <= 0 {
		spec.MaxRequests = DefaultBandRequests
	}
	if spec.MaxBytes <= 0 {
		spec.MaxBytes = DefaultBandBytes
	}
	return &band{BandSpec: spec, priority: priority, static: static, fair: spec.Fairness(), flows: map[string]*Flow{}, ceiling: 1}
}

// push puts a request into its flow.
func (b *band) push(w *waiter, cl *class, now time.Time) {
	f := b.flows[w.ask.Tenant]
	fresh := f == nil
	if fresh {
		f = &Flow{Key: w.ask.Key, b: b}
		b.flows[w.ask.Tenant] = f
	}
	w.flow = f
	var q *classQueue
	for _, have := range f.classes {
		if have.class == cl {
			q = have
		}
	}
	if q == nil {
		q = &classQueue{class: cl}
		f.classes = append(f.classes, q)
	}
	q.push(w)
	cl.waiting++
	f.Len++
	b.count++
	b.bytes += w.ask.Bytes
	headed := f.head(0)
	if fresh {
		b.fair.Add(f, now)
	} else if headed {
		b.fair.Headed(f, now)
	}
}

// remove takes a request out of its flow.
func (b *band) remove(w *waiter, now time.Time) {
	f, q := w.flow, w.queue
	q.remove(w)
	q.class.waiting--
	f.Len--
	b.count--
	b.bytes -= w.ask.Bytes
	if len(q.heap) == 0 {
		for i, have := range f.classes {
			if have == q {
				f.classes = append(f.classes[:i], f.classes[i+1:]...)
				break
			}
		}
	}
	if b.count == 0 {
		b.credit, b.idle = 0, now
	}
	if f.Len == 0 {
		b.fair.Remove(f, now)
		delete(b.flows, f.Tenant)
		return
	}
	if f.head(0) {
		b.fair.Headed(f, now)
	}
}

// first is the flow's request that would go next, of a class that was not blocked in this pass; 0 is no pass.
func (f *Flow) first(pass uint64) *waiter {
	var best *waiter
	for _, q := range f.classes {
		if pass != 0 && q.class.blocked == pass {
			continue
		}
		if w := q.heap[0]; best == nil || w.before(best) {
			best = w
		}
	}
	return best
}

// head brings Head and Rank up to date, and reports whether they changed.
func (f *Flow) head(pass uint64) bool {
	w := f.first(pass)
	if w == nil || f.Head.Ask == &w.ask && f.Rank.Equal(w.rank) {
		return false
	}
	f.Head, f.Rank = Waiting{&w.ask, w.entered}, w.rank
	return true
}

// choose is the request of the flow that goes now.
func (b *band) choose(f *Flow, pass uint64, now time.Time) *waiter {
	w := f.first(pass)
	chooser, ok := b.Ordering.(Chooser)
	if !ok || len(w.queue.heap) == 1 {
		return w
	}
	first := w.queue.leading(chooser.Window(), nil)
	view := make([]Waiting, len(first))
	for i, o := range first {
		view[i] = Waiting{&o.ask, o.entered}
	}
	return first[chooser.Choose(now, view)]
}
