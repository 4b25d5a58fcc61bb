// SPDX-License-Identifier: Apache-2.0

// Package scrape answers: what do the endpoints say of themselves?
//
// It polls each endpoint's metrics page and its /v1/models, at an interval, with the
// endpoints spread over it, and tells the store. A poll that fails tells nothing: what was
// told last stays, with its age, and so becomes stale.
package scrape

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// MinInterval is the shortest interval between two looks at a metrics page.
const MinInterval = 50 * time.Millisecond

// Names of the two polls and of what reads their answers, as metrics and configurations have them.
const (
	MetricsSource    = "metrics-data-source"
	MetricsExtractor = "core-metrics-extractor"
	ModelsSource     = "models-data-source"
	ModelsExtractor  = "models-data-extractor"
)

// Options say how to poll. The zero value of each field is the default that it names.
type Options struct {
	// Interval is the time between two looks at one metrics page, 50 ms and not less.
	Interval time.Duration
	// Models is the time between two looks at one list of models, 2 s.
	Models time.Duration
	// Timeout bounds one poll, 1 s.
	Timeout time.Duration
	// Backoff bounds the time between two looks at an endpoint that fails, 1 s. It should be below the
	// age at which signals are stale, so that an endpoint that healed is soon known again.
	Backoff time.Duration
	// Workers is how many polls may run at once, 32. Those that failed last time, or that never
	// succeeded, have four times as many of their own: they wait long, and delay nobody.
	Workers int
	// Path is where metrics are, /metrics.
	Path string
	// MaxPage bounds a metrics page, 8 MiB.
	MaxPage int
	// Mapping names what to read, [Default].
	Mapping *Mapping
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
	set(&o.Models, 2*time.Second)
	set(&o.Timeout, time.Second)
	set(&o.Backoff, time.Second)
	o.Interval = max(o.Interval, MinInterval)
	if o.Workers <= 0 {
		o.Workers = 32
	}
	if o.Path == "" {
		o.Path = "/metrics"
	}
	if o.MaxPage <= 0 {
		o.MaxPage = 8 << 20
	}
	if o.Mapping == nil {
		o.Mapping = Default
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

// key names a poll: an incarnation, and which of its two pages.
type key struct {
	load   *fleet.Load
	models bool
}

// task is one poll that is repeated. The runner owns it; while it runs its worker owns get and what
// lies below.
type task struct {
	key
	ep    *fleet.Endpoint // newest
	due   time.Time
	index int // in the heap, -1 while it runs or waits for a worker
	gone  bool
	fails int  // in a row
	well  bool // succeeded before

	get              *getter
	ok               bool
	adapters, queued list
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
}

func (r *runner) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	changed := r.store.Changed()
	r.sync(r.store.Load())
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
			r.sync(r.store.Load())
		case t := <-r.done:
			r.finish(t)
		case <-timer.C:
		}
	}
}

// sync follows the membership.
func (r *runner) sync(snap *fleet.Snapshot) {
	now := time.Now()
	alive := make(map[*fleet.Load]bool, len(r.tasks)/2)
	for _, p := range snap.Pools {
		for _, ep := range p.Endpoints {
			if alive[ep.Load] {
				continue // in two pools
			}
			alive[ep.Load] = true
			r.follow(key{ep.Load, false}, ep, now.Add(r.phase(ep)))
			r.follow(key{ep.Load, true}, ep, now)
		}
	}
	for k, t := range r.tasks {
		if alive[k.load] {
			continue
		}
		delete(r.tasks, k)
		t.gone = true
		if t.index >= 0 {
			heap.Remove(&r.heap, t.index)
			t.get.close()
		}
	}
}

// phase spreads the endpoints evenly over the interval, whatever their number.
func (r *runner) phase(ep *fleet.Endpoint) time.Duration {
	const golden = 0.6180339887498949
	f := r.base + float64(ep.Load.Slot)*golden
	return time.Duration((f - float64(int64(f))) * float64(r.opt.Interval))
}

func (r *runner) follow(k key, ep *fleet.Endpoint, due time.Time) {
	if t := r.tasks[k]; t != nil {
		t.ep = ep
		return
	}
	t := &task{key: k, ep: ep, due: due}
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

// next is when a task that ended at now is due again: one interval after it was due, so that it
// keeps its place in the interval; later when it fails.
func (r *runner) next(t *task, now time.Time) time.Time {
	interval, first, limit := r.opt.Interval, r.opt.Interval, r.opt.Backoff
	if t.models {
		interval = r.opt.Models
		first, limit = interval, interval
		if !t.well {
			first = 100 * time.Millisecond
		}
	}
	if t.fails > 0 {
		d := min(first<<min(t.fails-1, 16), max(limit, first))
		return now.Add(d - d/8 + rand.N(d/4)) // apart from those that failed with it
	}
	due := t.due.Add(interval)
	if late := now.Sub(due); late > 0 {
		due = due.Add((late/interval + 1) * interval)
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
			r.poll(w, j)
		}
		if cap(w.buf) > keepBuffer {
			w.buf = nil
		}
		r.done <- j.task // has room for all workers
	}
}

func (r *runner) poll(w *worker, j job) {
	path, accept, address, limit := r.opt.Path, "text/plain;version=0.0.4;q=1,*/*;q=0.1", j.ep.Scrape, r.opt.MaxPage
	if j.models {
		path, accept, address, limit = "/v1/models", "application/json", j.ep.Address, maxModels
	}
	if j.get == nil || j.get.address != address {
		j.get.close()
		j.get = newGetter(address, path, accept)
	}
	at, seen := time.Now(), j.load.Sent()
	body, err := j.get.get(w, limit)
	if r.ctx.Err() != nil {
		return
	}
	source := MetricsSource
	if j.models {
		source = ModelsSource
	}
	if err == nil {
		if j.models {
			err = r.readModels(j, body)
		} else {
			err = r.readPage(w, j, body, at, seen)
		}
	} else {
		r.opt.Failed(source, j.load, err.Error())
	}
	j.ok = err == nil
}

// errUseless is an answer that says nothing.
var errUseless = errors.New("useless")

// readPage tells the store what a metrics page says. A page without any signal makes all of them unknown.
func (r *runner) readPage(w *worker, j job, body []byte, at time.Time, seen int64) error {
	p := &w.page
	Scan(body, r.opt.Mapping, p)
	t := j.task
	read := fleet.Reading{Seen: seen, Engine: p.Engine(), MaxAdapters: p.MaxAdapters,
		Waiting: signal(p.Waiting, at), Running: signal(p.Running, at), KVUsage: signal(p.KVUsage, at),
		Adapters: t.adapters.set(p.Adapters), Queued: t.queued.set(p.Queued)}
	if p.KVUsage.Row != nil {
		read.KVName = p.KVUsage.Row.Family
	}
	if p.BlockSize.State == Known {
		read.BlockSize = int(p.BlockSize.Value)
	}
	if p.NumBlocks.State == Known {
		read.NumBlocks = int(p.NumBlocks.Value)
	}
	r.store.Tell(j.ep.ID, j.load, read)
	switch {
	case p.Bad():
		r.opt.Extracted(MetricsSource, MetricsExtractor, j.load, string(BadValue))
	case !p.Known():
		r.opt.Extracted(MetricsSource, MetricsExtractor, j.load, string(NoSignals))
	}
	if !p.Known() {
		return errUseless
	}
	return nil
}

func signal(v Value, at time.Time) fleet.Signal {
	if v.State != Known {
		return fleet.Signal{}
	}
	return fleet.Signal{Value: v.Value, At: at}
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
