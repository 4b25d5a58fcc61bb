// SPDX-License-Identifier: Apache-2.0

// Package scrape answers: what do the endpoints say of themselves?
//
// It polls what the [Plan] of an endpoint's pool names, its metrics page and its /v1/models by
// default, each at an interval, with the endpoints spread over it, and tells the store. A poll that
// fails tells nothing: what was told last stays, with its age, and so becomes stale.
package scrape

import (
	"container/heap"
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// MinInterval is the shortest interval between two looks at a metrics page.
const MinInterval = 50 * time.Millisecond

// Options say how to poll. The zero value of each field is the default that it names.
type Options struct {
	// Plans say what to poll, [DefaultPlan] for all pools.
	Plans *Plans
	// Interval is the time between two looks at one source that names none, 50 ms and not less.
	Interval time.Duration
	// Timeout bounds one poll, 1 s.
	Timeout time.Duration
	// Backoff bounds the time between two looks at an endpoint that fails, 1 s. It should be below the
	// age at which signals are stale, so that an endpoint that healed is soon known again.
	Backoff time.Duration
	// Workers is how many polls may run at once, 32. Those that failed last time, or that never
	// succeeded, have four times as many of their own: they wait long, and delay nobody.
	Workers int
	// Failed is told of each poll that failed, Extracted of each answer that was of no use or
	// had a value that cannot be. Both may be nil; they are called from many goroutines.
	Failed    func(source string, load *fleet.Load, cause string)
	Extracted func(source, extractor string, load *fleet.Load, cause string)
	// Dial opens connections; nil for a plain [net.Dialer].
	Dial Dialer
}

func (o *Options) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Interval, MinInterval)
	set(&o.Timeout, time.Second)
	set(&o.Backoff, time.Second)
	o.Interval = max(o.Interval, MinInterval)
	if o.Workers <= 0 {
		o.Workers = 32
	}
	if o.Plans == nil {
		o.Plans = &Plans{}
	}
	if o.Failed == nil {
		o.Failed = func(string, *fleet.Load, string) {}
	}
	if o.Extracted == nil {
		o.Extracted = func(string, string, *fleet.Load, string) {}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
}

// Run polls the endpoints of all pools, following the store's membership, until ctx ends. It
// leaves no goroutine and no connection behind.
func Run(ctx context.Context, store *fleet.Store, opt Options) error {
	opt.defaults()
	r := &runner{store: store, opt: opt, tasks: map[key]*task{}, base: rand.Float64()}
	r.ctx, r.cancel = context.WithCancel(ctx)
	n := 5 * opt.Workers
	r.done = make(chan *task, n)
	r.lanes = [2]lane{{max: opt.Workers}, {max: 4 * opt.Workers}}
	for i := range r.lanes {
		r.lanes[i].work = make(chan job, r.lanes[i].max)
	}
	defer r.stop()
	r.loop()
	return nil
}

// key names what is repeated: an incarnation, and what is polled of it.
type key struct {
	load *fleet.Load
	poll *poll
}

// task is one poll that is repeated. The runner owns it; while it runs its worker owns get and what
// lies below.
type task struct {
	key
	ep    *fleet.Endpoint // our own: one of a snapshot would keep all that it shows
	every time.Duration
	slot  time.Time // its place in the interval
	due   time.Time
	index int // in the heap, -1 while it runs or waits for a worker
	gone  bool
	fails int  // in a row
	well  bool // succeeded before
	whole *whole

	get              *getter
	ok               bool
	adapters, queued list
	told             bool // attributes
	process          process
}

// list is a list of adapters, kept as long as the page says the same.
type list struct {
	raw   []byte
	names []string
}

func (l *list) set(raw []byte) []string {
	if string(raw) != string(l.raw) {
		l.raw, l.names = append(l.raw[:0], raw...), Split(raw)
	}
	return l.names
}

// job is a task on its way to a worker, with the endpoint as it stood.
type job struct {
	*task
	ep *fleet.Endpoint
}

// lane is a set of workers with a queue before them.
type lane struct {
	max, busy int
	workers   []*worker
	work      chan job
	queue     []*task
}

type runner struct {
	store  *fleet.Store
	opt    Options
	ctx    context.Context
	cancel context.CancelFunc
	base   float64
	tasks  map[key]*task
	heap   wheel
	lanes  [2]lane // the well, and those that failed
	done   chan *task
	wg     sync.WaitGroup
	// buffers are those for answers: what a burst needed goes with the next collections.
	buffers sync.Pool // of *[]byte
}

func (r *runner) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	changed := r.store.Changed()
	plans, replaced := r.opt.Plans.now()
	r.sync(r.store.Load(), plans)
	for {
		now := time.Now()
		r.dispatch(now)
		wait := time.Hour
		if len(r.heap) > 0 {
			wait = r.heap[0].due.Sub(now)
		}
		timer.Reset(wait)
		select {
		case <-r.ctx.Done():
			return
		case <-changed:
			changed = r.store.Changed()
			r.sync(r.store.Load(), plans)
		case <-replaced:
			plans, replaced = r.opt.Plans.now()
			r.sync(r.store.Load(), plans)
		case t := <-r.done:
			r.finish(t)
		case <-timer.C:
		}
	}
}

// sync follows the membership and the plans. An endpoint of several pools has the plan of the first.
func (r *runner) sync(snap *fleet.Snapshot, planOf func(fleet.ID) *Plan) {
	now := time.Now()
	alive := make(map[*fleet.Load]*Plan, len(r.tasks)/2)
	for _, p := range snap.Pools {
		plan := planOf(p.ID)
		for _, ep := range p.Endpoints {
			if alive[ep.Load] != nil {
				continue
			}
			alive[ep.Load] = plan
			w := &whole{}
			for _, poll := range plan.polls {
				r.follow(key{ep.Load, poll}, ep, w, now)
			}
		}
	}
	for k, t := range r.tasks {
		plan := alive[k.load]
		if plan != nil && slices.Contains(plan.polls, k.poll) {
			continue
		}
		delete(r.tasks, k)
		t.gone = true
		if t.index >= 0 {
			heap.Remove(&r.heap, t.index)
			t.get.close()
		}
		if plan != nil && !slices.ContainsFunc(plan.polls, func(p *poll) bool { return p.name == k.poll.name }) {
			r.store.TellAttributes(t.ep.ID, k.load, k.poll.name, nil) // nobody asks any more
		}
	}
}

// phase is an endpoint's place in an interval; they are spread evenly, whatever their number.
func (r *runner) phase(ep *fleet.Endpoint, interval time.Duration) time.Duration {
	const golden = 0.6180339887498949
	f := r.base + float64(ep.Load.Slot)*golden
	return time.Duration((f - float64(int64(f))) * float64(interval))
}

// describe copies what a poll needs to know of an endpoint.
func describe(ep *fleet.Endpoint) *fleet.Endpoint {
	return &fleet.Endpoint{ID: ep.ID, Address: ep.Address, Scrape: ep.Scrape, Pod: ep.Pod, NodeAddress: ep.NodeAddress, Labels: ep.Labels, Load: ep.Load}
}

// described reports whether a copy still holds.
func described(c, ep *fleet.Endpoint) bool {
	return c.ID == ep.ID && c.Address == ep.Address && c.Scrape == ep.Scrape && c.Pod == ep.Pod && c.NodeAddress == ep.NodeAddress && maps.Equal(c.Labels, ep.Labels)
}

// soon is the time within which all endpoints are first asked, however long the interval.
const soon = 200 * time.Millisecond

func (r *runner) follow(k key, ep *fleet.Endpoint, w *whole, now time.Time) {
	if t := r.tasks[k]; t != nil {
		if !described(t.ep, ep) {
			t.ep = describe(ep)
		}
		return
	}
	t := &task{key: k, ep: describe(ep), whole: w, every: r.opt.Interval}
	switch {
	case k.poll.Interval > 0:
		t.every = max(k.poll.Interval, MinInterval)
	case k.poll.every > 0:
		t.every = k.poll.every
	}
	t.slot = now.Add(r.phase(ep, t.every))
	t.due = now
	if !k.poll.models {
		t.due = now.Add(r.phase(ep, min(t.every, soon)))
	}
	r.tasks[k] = t
	heap.Push(&r.heap, t)
}

// slack is how much too early a task may run, to wake up less often.
const slack = 500 * time.Microsecond

// dispatch gives what is due, or nearly so, to the workers.
func (r *runner) dispatch(now time.Time) {
	for len(r.heap) > 0 && r.heap[0].due.Sub(now) <= slack {
		t := heap.Pop(&r.heap).(*task)
		l := r.lane(t)
		if l.busy == l.max {
			l.queue = append(l.queue, t)
			continue
		}
		r.give(l, t)
	}
}

// lane says whose workers a task gets; the answer changes only in finish.
func (r *runner) lane(t *task) *lane {
	if t.fails > 0 || !t.well {
		return &r.lanes[1]
	}
	return &r.lanes[0]
}

// give hands a task to a worker of the lane, which has one to spare.
func (r *runner) give(l *lane, t *task) {
	l.busy++
	if l.busy > len(l.workers) {
		w := &worker{ctx: r.ctx, timeout: r.opt.Timeout, dial: r.opt.Dial}
		l.workers = append(l.workers, w)
		r.wg.Go(func() { r.work(w, l.work) })
	}
	l.work <- job{t, t.ep} // never blocks: it has room for all that are busy
}

// finish takes a task back and sets when it is due again.
func (r *runner) finish(t *task) {
	l := r.lane(t)
	l.busy--
	for len(l.queue) > 0 {
		next := l.queue[0]
		l.queue = l.queue[1:]
		if !next.gone {
			r.give(l, next)
			break
		}
		next.get.close()
	}
	if t.gone {
		t.get.close()
		return
	}
	if t.ok {
		t.fails, t.well = 0, true
	} else {
		t.fails++
	}
	t.due = r.next(t, time.Now())
	heap.Push(&r.heap, t)
}

// next is when a task that ended at now is due again: at its place in the next interval; later when
// it fails.
func (r *runner) next(t *task, now time.Time) time.Time {
	if t.fails > 0 {
		first, limit := t.every, max(t.every, r.opt.Backoff)
		if t.poll.models && !t.well {
			first = 100 * time.Millisecond // an engine that starts
		}
		d := min(first<<min(t.fails-1, 16), limit)
		return now.Add(d - d/8 + rand.N(d/4)) // apart from those that failed with it
	}
	due := t.due.Add(t.every)
	if t.slot.After(t.due) { // it was asked before its place
		if due = t.slot; due.Sub(t.due) < t.every/2 {
			due = due.Add(t.every)
		}
	}
	if late := now.Sub(due); late > 0 {
		due = due.Add((late/t.every + 1) * t.every)
	}
	return due
}

// stop ends the workers and closes all connections.
func (r *runner) stop() {
	r.cancel()
	for i := range r.lanes {
		for _, w := range r.lanes[i].workers {
			w.stop()
		}
		close(r.lanes[i].work)
	}
	r.wg.Wait()
	close(r.done)
	for t := range r.done {
		t.get.close()
	}
	for _, t := range r.tasks {
		t.get.close()
	}
	for i := range r.lanes {
		for _, t := range r.lanes[i].queue {
			t.get.close()
		}
	}
}

func (r *runner) work(w *worker, work <-chan job) {
	for j := range work {
		if r.ctx.Err() == nil {
			buf, _ := r.buffers.Get().(*[]byte)
			if buf == nil {
				buf = new([]byte)
			}
			w.buf = *buf
			r.poll(w, j)
			if cap(w.buf) <= keepBuffer {
				*buf = w.buf
				r.buffers.Put(buf)
			}
			w.buf = nil
		}
		r.done <- j.task // has room for all workers
	}
}

func (r *runner) poll(w *worker, j job) {
	p := j.task.poll
	config, auth, err := p.creds.read()
	if err != nil {
		r.opt.Failed(p.typ, j.load, Credentials.Error())
		j.ok = false
		return
	}
	if address := p.address(j.ep); j.get == nil || j.get.address != address {
		j.get.close()
		j.get = newGetter(address, p.Path, p.accept)
	}
	j.get.show(config, auth)
	at, seen := time.Now(), j.load.Sent()
	body, err := j.get.get(w, p.limit)
	if r.ctx.Err() != nil {
		return
	}
	switch {
	case err != nil:
		r.opt.Failed(p.typ, j.load, err.Error())
	case p.models:
		err = r.readModels(j, body)
	default:
		err = r.readPage(w, j, body, at, seen)
	}
	j.ok = err == nil
}

// wheel is a heap of tasks by the time at which they are due.
type wheel []*task

func (h wheel) Len() int           { return len(h) }
func (h wheel) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h wheel) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *wheel) Push(x any) {
	t := x.(*task)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements [heap.Interface].
func (h *wheel) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
