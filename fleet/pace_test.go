// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// work sends prompts one after another to an engine that answers each base after its tokens are worked off.
func work(l *Load, n int, rate float64, base time.Duration, tokens func(i int) int64) {
	for i := range n {
		w := tokens(i)
		h := l.Take(time.Now(), w, 0)
		time.Sleep(base + time.Duration(float64(w)/rate*1e9))
		h.Begun(time.Now())
		h.Release()
	}
}

func wantRate(t *testing.T, l *Load, want, tolerance float64) {
	t.Helper()
	if r, ok := l.Rate(time.Now()); !ok || math.Abs(r/want-1) > tolerance {
		t.Errorf("rate %.0f, known %t; want %.0f within %.0f %%", r, ok, want, 100*tolerance)
	}
}

func mixed(i int) int64 { return int64(200 + 977*i%5000) }

// What an engine does without noise is found exactly: 30 ms and 10,000 tokens a second.
func TestPaceSeparatesLatencyFromSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		if _, ok := l.Rate(time.Now()); ok {
			t.Error("a rate without samples")
		}
		if _, ok := l.Latency(time.Now()); ok {
			t.Error("a latency without samples")
		}
		work(&l, 2, 10_000, 30*time.Millisecond, mixed)
		if _, ok := l.Rate(time.Now()); ok {
			t.Error("two samples make no rate")
		}
		work(&l, 60, 10_000, 30*time.Millisecond, mixed)
		wantRate(t, &l, 10_000, 0.03)
		if l.Samples() != 62 {
			t.Errorf("%d samples, want 62", l.Samples())
		}
	})
}

// Prompts of one length cannot tell the two apart: the latency is taken as small.
func TestPaceOfEqualPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		work(&l, 30, 10_000, 10*time.Millisecond, func(int) int64 { return 1000 })
		wantRate(t, &l, 10_000, 0.1)
	})
}

// The speed is each request's own, whatever waits before it: here five at a time, first come first served.
func TestPaceInAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		for i := range 40 {
			var holds [5]Hold
			for k := range holds {
				holds[k] = l.Take(time.Now(), mixed(5*i+k), 0)
			}
			time.Sleep(20 * time.Millisecond)
			for k := range holds {
				time.Sleep(time.Duration(float64(mixed(5*i+k)) / 20_000 * 1e9))
				holds[k].Begun(time.Now())
			}
			for k := range holds {
				holds[k].Release()
			}
		}
		wantRate(t, &l, 20_000, 0.03)
	})
}

// An engine that works prompts off in one batch begins all answers at once.
func TestPaceOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		for range 40 {
			var holds [4]Hold
			for k := range holds {
				holds[k] = l.Take(time.Now(), 1000, 0)
			}
			time.Sleep(400 * time.Millisecond)
			for k := range holds {
				holds[k].Begun(time.Now())
				holds[k].Release()
			}
		}
		wantRate(t, &l, 10_000, 0.1)
	})
}

// A change of speed is followed within few half-lives, and a pause makes it unknown: who was slow once
// is tried again.
func TestPaceFollowsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		work(&l, 300, 20_000, 10*time.Millisecond, mixed)
		wantRate(t, &l, 20_000, 0.03)
		start := time.Now()
		for time.Since(start) < 3*paceHalfLife {
			work(&l, 10, 10_000, 10*time.Millisecond, mixed)
		}
		if r, _ := l.Rate(time.Now()); r > 12_000 {
			t.Errorf("after three half-lives at half speed the rate is %.0f", r)
		}
		time.Sleep(rateKept + time.Second)
		if r, ok := l.Rate(time.Now()); ok {
			t.Errorf("a rate of %.0f that nothing renewed", r)
		}
		time.Sleep(time.Hour)
		if _, ok := l.Latency(time.Now()); ok {
			t.Error("a latency of an hour ago")
		}
		work(&l, 30, 40_000, 10*time.Millisecond, mixed)
		wantRate(t, &l, 40_000, 0.25)
	})
}

// One answer in twenty that hangs for two seconds changes little.
func TestPaceBoundsOutliers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range 400 {
			base := 10 * time.Millisecond
			if i > 20 && rng.IntN(20) == 0 {
				base = 2 * time.Second
			}
			work(&l, 1, 10_000*(0.8+0.4*rng.Float64()), base, func(int) int64 { return mixed(i) })
		}
		if r, ok := l.Rate(time.Now()); !ok || r < 8_000 || r > 12_000 {
			t.Errorf("rate %.0f, want about 10000", r)
		}
	})
}

// The latency is the average over a recent time: here of 100 ms, then of 300 ms for one half-life.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Load
		each := func(d time.Duration, n int) {
			for range n {
				h := l.Take(time.Now(), 1000, 0)
				time.Sleep(d)
				h.Begun(time.Now())
				h.Release()
			}
		}
		each(100*time.Millisecond, 1000)
		if d, ok := l.Latency(time.Now()); !ok || d.Round(time.Microsecond) != 100*time.Millisecond {
			t.Errorf("got %v, %t", d, ok)
		}
		// 34 samples of 300 ms stand against what 143 of 100 ms leave after 10 s: about 72.
		each(300*time.Millisecond, 34)
		if d, ok := l.Latency(time.Now()); !ok || d < 150*time.Millisecond || d > 190*time.Millisecond {
			t.Errorf("got %v, %t; want about 165 ms", d, ok)
		}
	})
}

func TestPaceTakesNonsense(t *testing.T) {
	var l Load
	now := time.Unix(1e6, 0)
	for _, c := range []struct {
		after      time.Duration
		ahead, own int64
	}{{0, 0, 5}, {-1, 0, 5}, {1, 0, -5}, {1, math.MaxInt64, math.MaxInt64}, {math.MaxInt64, 0, 1}, {time.Second, 1, 0}} {
		for range 20 {
			l.pace.learn(now, c.after, c.ahead, c.own)
			now = now.Add(-time.Second)
		}
	}
	if r, ok := l.Rate(time.Now()); ok && (!(r >= 1) || r > 1e7) {
		t.Errorf("rate %v", r)
	}
	if a := testing.AllocsPerRun(100, func() { l.pace.learn(now, time.Second, 10, 100) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkPaceLearn(b *testing.B) {
	var l Load
	now := time.Unix(1e6, 0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(10 * time.Millisecond)
		l.pace.learn(now, 50*time.Millisecond, 100, 1000)
	}
}

// TestOutputTime: 16 tokens or a second are learned from, and what is old counts less.
func TestOutputTime(t *testing.T) {
	l, now := &Load{}, time.Unix(1000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	h := l.Take(now, 10, 0)
	h.Begun(at(100))
	h.Wrote(at(100), 3) // from here on
	for i := 1; i < 16; i++ {
		h.Wrote(at(100+20*i), int64(3+i))
	}
	if d, ok := l.OutputTime(at(400)); ok {
		t.Errorf("got %v of 15 tokens, want nothing", d)
	}
	h.Wrote(at(420), 19)
	if d, ok := l.OutputTime(at(420)); d != 20*time.Millisecond || !ok {
		t.Errorf("got %v, %v, want 20ms", d, ok)
	}
	// Five seconds later the 16 of 20 ms count as 8, beside 8 of 50 ms.
	g := l.Take(at(5000), 10, 0)
	g.Begun(at(5020))
	g.Wrote(at(5020), 1)
	g.Wrote(at(5420), 9) // too few, and too soon
	h.Release()
	if d, _ := l.OutputTime(at(5420)); d != 20*time.Millisecond {
		t.Errorf("got %v, want 20ms yet", d)
	}
	g.Wrote(at(6020), 9)
	if d, _ := l.OutputTime(at(6020)); d < 65*time.Millisecond || d > 80*time.Millisecond {
		t.Errorf("got %v, want some of 125 ms", d)
	}
	if n := testing.AllocsPerRun(10, func() { now = now.Add(time.Minute); g.Wrote(now, now.Unix()) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if d, ok := l.OutputTime(now.Add(2 * time.Minute)); ok {
		t.Errorf("got %v after a pause, want nothing", d)
	}
	g.Release()
	g.Wrote(now.Add(time.Hour), 1e6)
}

// TestOutputTimeWithoutPrompts: an engine works prompts of very different length off at 10,000 tokens a second, 4,000 with
// each token of output, which takes 20 ms on its own. The prompts' time is not the output's.
func TestOutputTimeWithoutPrompts(t *testing.T) {
	l, now := &Load{}, time.Unix(1000, 0)
	h := l.Take(now, 1, 0)
	h.Begun(now)
	wrote := int64(0)
	h.Wrote(now, wrote)
	tokens := func(n int, each time.Duration) {
		for range n {
			now, wrote = now.Add(each), wrote+1
			h.Wrote(now, wrote)
		}
	}
	worst, slow := time.Duration(0), 0
	for i := range 40 {
		tokens(50+i%7*20, 20*time.Millisecond)
		prompt := int64(400 * (1 + i*i%97*3))
		p := l.Take(now, prompt, 0)
		for left := prompt; left > 0; left -= 4000 {
			tokens(1, 20*time.Millisecond+time.Duration(min(left, 4000))*100*time.Microsecond)
			slow++
		}
		p.Begun(now)
		p.Release()
		if d, ok := l.OutputTime(now); ok && i > 5 {
			worst = max(worst, d)
		}
	}
	if slow < 300 {
		t.Errorf("%d tokens came with prompts: too few to matter", slow)
	}
	if worst < 19*time.Millisecond || worst > 30*time.Millisecond {
		t.Errorf("got up to %v, want about 20 ms", worst)
	}
}
