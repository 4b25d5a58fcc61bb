// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// lane sends the workload to one target. It has a clock of its own, which stands still while the other
// target has its turn: the workload's times, and those of the report, are by it.
type lane struct {
	o      *Options
	client load.Client
	style  style
	meter  *load.Meter

	mu     sync.Mutex
	work   work.Workload
	next   *work.Request // the one that begins by itself next, nil at the end
	own    int           // of those, how many there were
	later  later         // what follows others, by its time
	open   int
	sent   int           // counted ones
	passed time.Duration // on the clock, up to since
	since  time.Time     // zero while it stands
	over   bool
	said   answers
	rec    *report.Recorder
	tally  tally
	blocks []block
	cpu    time.Duration
	wake   chan struct{}
	calls  sync.WaitGroup
}

// tally is what a report's figures do not tell.
type tally struct {
	left     int // open when the run was broken off: neither answered nor failed
	answered int // by anything at all
	ok       int
	noUsage  int
	asked    int64 // prompt tokens of the requests whose usage is known, as the workload had them,
	counted  int64 // and as the server did
	asker    map[string]string
}

// block is what was measured in one turn.
type block struct {
	ttft, tpot sum
}

type sum struct {
	n     int
	total float64 // ms
}

func (s *sum) add(d time.Duration) {
	s.n++
	s.total += float64(d) / 1e6
}

// due is a request with its time on the lane's clock.
type due struct {
	at time.Duration
	r  *work.Request
}

type later []due

func (q later) Len() int { return len(q) }
func (q later) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].r.Index < q[j].r.Index
}
func (q later) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *later) Push(x any)   { *q = append(*q, x.(due)) }
func (q *later) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func newLane(o *Options, i int, meter *load.Meter) (*lane, error) {
	w, err := o.Open(o.Seed, o.Rate)
	if err != nil {
		return nil, err
	}
	target := o.Targets[i]
	l := &lane{
		o: o, client: target.Client, meter: meter, work: w, wake: make(chan struct{}, 1),
		style: style{
			api: target.Client.API, model: o.Model, perWord: o.PerWord, most: o.MaxTokens, stream: !o.Whole,
			// Each target gets the same lengths at the same times, and never the other's text: behind both
			// may be one cache.
			salt: work.Token(o.Salt, int32(i)), extra: o.Extra,
		},
		said:  answers{text: map[uint64]string{}},
		tally: tally{asker: map[string]string{}},
		rec: report.NewRecorder(report.Setup{
			Policy: target.Name, Workload: o.Workload, Seed: o.Seed, Rate: o.Rate, Warmup: o.Warmup, SLO: o.SLO,
		}),
	}
	l.advance()
	return l, l.work.Err()
}

// advance fetches the next request that begins by itself.
func (l *lane) advance() {
	r, ok := l.work.Next()
	if !ok {
		l.next = nil
		return
	}
	l.next = r
	l.own++
}

// now is the time on the lane's clock. Called with mu held.
func (l *lane) now() time.Duration {
	if l.since.IsZero() {
		return l.passed
	}
	return l.passed + time.Since(l.since)
}

// fine is about as exact as timers are that wait along with the network: to a millisecond. What is less
// the kernel is asked for.
const fine = time.Millisecond

// drive sends what is due until a time, or for as long as there is something if that is zero. It tells
// whether the lane is through.
func (l *lane) drive(ctx context.Context, until time.Time) bool {
	l.mu.Lock()
	l.since = time.Now()
	l.blocks = append(l.blocks, block{})
	began := cpuTime()
	warm := l.passed >= l.o.Warmup
	l.mu.Unlock()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait, more := l.step(ctx)
		if !more {
			break
		}
		if !until.IsZero() {
			rest := time.Until(until)
			if rest <= 0 {
				break
			}
			wait = min(wait, rest)
		}
		if !warm {
			l.mu.Lock()
			rest := l.o.Warmup - l.now()
			l.mu.Unlock()
			if warm = rest <= 0; warm {
				began = cpuTime()
			}
			wait = min(wait, max(rest, 0))
		}
		switch {
		case wait <= 0:
			continue
		case wait < 2*fine:
			l.o.Nap(min(wait, fine))
			continue
		}
		timer.Reset(wait - fine)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if warm {
		l.cpu += cpuTime() - began
	}
	l.passed, l.since = l.now(), time.Time{}
	return l.over
}

// drain waits for what is open, and counts it to the clock only if it is the last.
func (l *lane) drain() {
	began := cpuTime()
	l.calls.Wait()
	l.cpu += cpuTime() - began
}

// step sends one request if one is due. It tells how long to wait for the next, and whether there will be one.
func (l *lane) step(ctx context.Context) (wait time.Duration, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	end := time.Duration(math.MaxInt64)
	if l.o.Duration > 0 {
		end = l.o.Warmup + l.o.Duration
	}
	if now >= end && !l.overdue(end) || l.o.Requests > 0 && l.sent >= l.o.Requests || l.next == nil && len(l.later) == 0 && l.open == 0 {
		l.over = true
		return 0, false
	}
	closed := l.o.Concurrency > 0
	if closed && l.open >= l.o.Concurrency {
		return min(time.Hour, end-now), true
	}
	follows := len(l.later) > 0 && (l.next == nil || l.later[0].at <= l.starts(now))
	var d due
	switch {
	case follows:
		d = l.later[0]
	case l.next != nil:
		d = due{l.starts(now), l.next}
	default:
		return min(time.Hour, end-now), true
	}
	if d.at > now || d.at >= end {
		return min(d.at, end) - now, true
	}
	if follows {
		heap.Pop(&l.later)
	} else {
		l.advance()
	}
	if closed {
		d.at = now
	}
	l.send(ctx, d, l.since.Add(d.at-l.passed))
	return 0, true
}

// overdue tells whether something was to be sent before the end, and has not been.
func (l *lane) overdue(end time.Duration) bool {
	return l.o.Concurrency == 0 && (l.next != nil && l.starts(end) < end || len(l.later) > 0 && l.later[0].at < end)
}

// starts is when the request that begins by itself next is due: as the workload says, or each after the
// other, or at once in a closed loop.
func (l *lane) starts(now time.Duration) time.Duration {
	switch {
	case l.o.Concurrency > 0:
		return now
	case l.o.Every > 0:
		return time.Duration(l.own-1) * l.o.Every
	}
	return l.next.At
}

// send starts a request. Called with mu held.
func (l *lane) send(ctx context.Context, d due, at time.Time) {
	if d.at >= l.o.Warmup {
		l.sent++
	}
	if l.open >= l.o.MaxOpen {
		l.meter.Skip(time.Now())
		l.begin(d)
		l.rec.Failed(d.r.Index, d.at, NotSent)
		l.follow(d.r, false)
		return
	}
	l.open++
	l.meter.Begin()
	ask := l.style.ask(d.r, l.said.text)
	ask.Header = tenantHeaders(d.r)
	turn := len(l.blocks) - 1
	l.calls.Go(func() {
		got := load.Borrow()
		l.client.Send(ctx, ask, got)
		l.ended(ctx, d, at, turn, got)
		got.Return()
	})
}

func (l *lane) begin(d due) {
	l.rec.Sent(d.r.Index, d.at, d.r.Tenant, d.r.Class, d.r.PromptTokens())
}

// follow hands a request back to the workload. Called with mu held.
func (l *lane) follow(r *work.Request, ok bool) {
	for _, f := range l.work.Ended(r, l.now(), ok) {
		heap.Push(&l.later, due{f.At, f})
	}
}

// ended counts what came of a request that was due at a time.
func (l *lane) ended(ctx context.Context, d due, at time.Time, turn int, got *load.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	defer func() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}()
	if got.Fault != "" && ctx.Err() != nil {
		l.meter.Cancel() // we left, nobody failed
		l.tally.left++
		return
	}
	l.meter.End(got, at)
	l.count(d, at, turn, got)
	if got.Text != "" {
		l.said.keep(d.r.Answer, got.Text)
	}
	l.follow(d.r, got.Fault == "")
}

// count gives a request to the recorder. Times are on the lane's clock as it would have gone on.
func (l *lane) count(d due, at time.Time, turn int, got *load.Answer) {
	i, on := d.r.Index, func(t time.Time) time.Duration { return d.at + t.Sub(at) }
	l.begin(d)
	if got.Status != 0 {
		l.tally.answered++
	}
	counted := d.at >= l.o.Warmup
	if counted {
		l.rec.Late(got.Sent.Sub(at))
	}
	if got.Fault != "" {
		l.rec.Failed(i, on(got.End), got.Fault)
		if _, ok := l.tally.asker[got.Fault]; !ok && counted && len(l.tally.asker) < report.MaxErrors {
			l.tally.asker[got.Fault] = got.Said
		}
		return
	}
	tokens, end := got.Tokens(), on(got.End)
	if got.Usage.Prompt > 0 {
		if counted {
			l.tally.asked += int64(d.r.PromptTokens())
			l.tally.counted += int64(got.Usage.Prompt)
		}
		l.rec.Prompt(i, got.Usage.Prompt)
	}
	if counted {
		l.tally.ok++
		if got.Usage.Output < 0 {
			l.tally.noUsage++
		}
	}
	if len(got.Arrivals) > 0 {
		first := on(got.First())
		end = on(got.Last)
		l.rec.First(i, first)
		l.pace(i, got, on)
		if counted {
			b := &l.blocks[turn]
			b.ttft.add(first - d.at)
			if tokens > 1 {
				b.tpot.add((end - first) / time.Duration(tokens-1))
			}
		}
	}
	endpoint := -1
	if got.Endpoint != "" && counted {
		endpoint = l.rec.Endpoint(got.Endpoint, "")
	}
	l.rec.Done(i, end, tokens, max(0, got.Usage.Cached), endpoint, 0)
}

// pace tells the recorder of each token: a chunk may hold several, so that the time between two chunks is
// divided among the tokens that came with it. How many they were is told by servers that give the usage
// with each chunk; for others the whole is spread evenly over the chunks.
func (l *lane) pace(i int, got *load.Answer, on func(time.Time) time.Duration) {
	tokens := got.Tokens()
	told := got.Arrivals[0].Tokens >= 0
	so := func(a load.Arrival) int {
		if told {
			return a.Tokens
		}
		return int(math.Round(float64(a.Events) * float64(tokens) / float64(max(1, got.Events))))
	}
	before := so(got.Arrivals[0])
	for _, a := range got.Arrivals[1:] {
		n := so(a)
		l.rec.Token(i, on(a.At), n-before)
		before = max(before, n)
	}
}
