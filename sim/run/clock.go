// SPDX-License-Identifier: Apache-2.0

package run

import (
	"time"

	"github.com/penstock-project/penstock/clock"
)

// loop is virtual time: what is to happen, in the order in which it does. What happens at one moment does so in the order
// in which it was planned.
type loop struct {
	now  time.Duration // since the start
	heap []event
	seq  uint64
}

// event is something that is to happen.
type event struct {
	at   time.Duration
	seq  uint64
	what happening
	turn uint32 // of a timer, which may have been set anew
}

type happening interface{ happen(turn uint32) }

// call is a happening of its own.
type call func()

func (f call) happen(uint32) { f() }

// start is when virtual time begins: any moment would do.
var start = time.Unix(1_700_000_000, 0).UTC()

// Now implements [clock.Clock].
func (l *loop) Now() time.Time { return start.Add(l.now) }

// AfterFunc implements [clock.Clock].
func (l *loop) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{loop: l, f: f}
	t.Reset(d)
	return t
}

// timer is a call to come. One that was stopped or set anew leaves its event behind, which then does nothing.
type timer struct {
	loop *loop
	f    func()
	turn uint32
	set  bool
}

// Reset implements [clock.Timer].
func (t *timer) Reset(d time.Duration) bool {
	was := t.set
	t.turn++
	t.set = true
	t.loop.plan(t.loop.now+max(0, d), t, t.turn)
	return was
}

// Stop implements [clock.Timer].
func (t *timer) Stop() bool {
	was := t.set
	t.turn++
	t.set = false
	return was
}

func (t *timer) happen(turn uint32) {
	if t.set && t.turn == turn {
		t.set = false
		t.f()
	}
}

// plan has something happen at a time that has not passed.
func (l *loop) plan(at time.Duration, what happening, turn uint32) {
	l.seq++
	h := append(l.heap, event{max(at, l.now), l.seq, what, turn})
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	l.heap = h
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// step lets the next event happen. It must not be called when there is none.
func (l *loop) step() {
	h := l.heap
	e := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h[n] = event{}
	h = h[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	l.heap = h
	l.now = e.at
	e.what.happen(e.turn)
}
