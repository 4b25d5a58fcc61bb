// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
)

// engine is a model of one endpoint in virtual time: it works prompts off one after another, and gives each answer that has
// begun a token every base + each·(answers that run), or every stall while it works at a prompt.
type engine struct {
	load       *fleet.Load
	now        time.Time
	rate       float64 // prompt tokens a second
	base, each time.Duration
	stall      time.Duration // 0 for none
	queue      []*job
	answers    []*job
	done       int
}

type job struct {
	hold   fleet.Hold
	prompt float64 // that is left
	output float64 // that is left
	wrote  float64
}

const tick = 20 * time.Millisecond

func (e *engine) view() flow.View {
	return flow.View{Endpoint: &fleet.Endpoint{Load: e.load}, Requests: e.load.Requests(), Tokens: e.load.Tokens(), Now: e.now, Stale: time.Second}
}

func (e *engine) take(prompt, output int64) {
	e.queue = append(e.queue, &job{hold: e.load.Take(e.now, prompt, 0), prompt: float64(prompt), output: float64(output)})
}

func (e *engine) step() {
	e.now = e.now.Add(tick)
	for work := e.rate * tick.Seconds(); work > 0 && len(e.queue) > 0; {
		j := e.queue[0]
		n := min(work, j.prompt)
		work, j.prompt = work-n, j.prompt-n
		if j.prompt > 0 {
			break
		}
		e.queue, e.answers = e.queue[1:], append(e.answers, j)
		j.hold.Begun(e.now)
		j.hold.Wrote(e.now, 0)
	}
	each := e.base + e.each*time.Duration(len(e.answers))
	if e.stall > 0 && len(e.queue) > 0 {
		each = e.stall
	}
	kept := e.answers[:0]
	for _, j := range e.answers {
		j.wrote += float64(tick) / float64(each)
		j.hold.Wrote(e.now, int64(j.wrote))
		if j.wrote < j.output {
			kept = append(kept, j)
		} else {
			j.hold.Release()
			e.done++
		}
	}
	e.answers = kept
}

func newEngine(rate float64, base, each time.Duration) *engine {
	return &engine{load: &fleet.Load{}, now: time.Unix(1000, 0), rate: rate, base: base, each: each}
}

func detector(change func(*AdaptiveDetector)) *AdaptiveDetector {
	d := Detectors["adaptive-detector"]().(*AdaptiveDetector)
	if change != nil {
		change(d)
	}
	return d
}

// TestAdaptiveRequests has as many requests as there is room for. A token takes 10 ms + 0.2 ms for each answer that runs, and
// the target of 50 ms is met with 200 of them, from wherever it starts.
func TestAdaptiveRequests(t *testing.T) {
	for _, start := range []int64{16, 256, 1000} {
		d := detector(func(d *AdaptiveDetector) { d.StartRequests = start })
		e := newEngine(50_000, 10*time.Millisecond, 200*time.Microsecond)
		var sum, n float64
		for e.now.Before(time.Unix(1000+300, 0)) {
			for d.Room(e.view(), 50) {
				e.take(50, 200)
			}
			e.step()
			if e.now.After(time.Unix(1000+150, 0)) {
				sum, n = sum+float64(e.load.Requests()), n+1
			}
		}
		if mean := sum / n; mean < 150 || mean > 215 {
			t.Errorf("from %d: got %.0f requests, want about 200", start, mean)
		}
		if took, ok := e.load.OutputTime(e.now); !ok || took < 35*time.Millisecond || took > 55*time.Millisecond {
			t.Errorf("from %d: got %v for a token, want about 50 ms", start, took)
		}
	}
}

// TestAdaptiveTokens has prompts of 2000 tokens at 10,000 a second: ten of them take the 2 s that are asked for.
func TestAdaptiveTokens(t *testing.T) {
	d, e := detector(nil), newEngine(10_000, time.Millisecond, 0)
	for e.now.Before(time.Unix(1000+60, 0)) {
		for d.Room(e.view(), 2000) {
			e.take(2000, 10)
		}
		e.step()
	}
	if got := e.load.Tokens(); got < 16_000 || got > 22_000 {
		t.Errorf("got %d tokens in flight, want about 20000", got)
	}
	if latency, _ := e.load.Latency(e.now); latency > 2500*time.Millisecond {
		t.Errorf("got %v to the first token, want about 2 s", latency)
	}
	if e.done < 270 { // of 5 a second
		t.Errorf("got %d answers, want all that it could", e.done)
	}
	for d.Room(e.view(), 2000) {
		e.take(2000, 10)
	}
	v := e.view()
	if d.Room(v, 2000) || !d.Room(v, d.Weight(2000, 8000)) || d.Room(v, d.Weight(2000, 7999)) {
		t.Error("only what is three quarters cached has room yet")
	}
}

// TestAdaptiveCostsNothing: at eight tenths of what the endpoint can do there always is room.
func TestAdaptiveCostsNothing(t *testing.T) {
	for _, c := range []struct {
		name           string
		prompt, output int64
		every          time.Duration
	}{
		{"prompts", 2000, 10, 250 * time.Millisecond}, // of 200 ms each
		{"long prompts", 30_000, 10, 3750 * time.Millisecond},
		{"answers", 50, 200, 50 * time.Millisecond}, // 160 at a time take 42 ms a token
	} {
		d, e := detector(nil), newEngine(10_000, 10*time.Millisecond, 200*time.Microsecond)
		next := e.now
		for e.now.Before(time.Unix(1000+200, 0)) {
			for !next.After(e.now) {
				if !d.Room(e.view(), c.prompt) {
					t.Fatalf("%s: no room after %v, with %d requests of %d tokens in flight", c.name, e.now.Sub(time.Unix(1000, 0)), e.load.Requests(), e.load.Tokens())
				}
				e.take(c.prompt, c.output)
				next = next.Add(c.every)
			}
			e.step()
		}
	}
}

// TestAdaptiveKeepsWithPrompts has a chat beside prompts that take four fifths of the time, at which a token takes 400 ms instead of
// 15 ms. Fewer requests would not make that less, and so there is room for as many as ever.
func TestAdaptiveKeepsWithPrompts(t *testing.T) {
	for _, c := range []struct {
		prompt int64
		every  time.Duration
	}{{8000, time.Second}, {40_000, 5 * time.Second}, {100_000, 12500 * time.Millisecond}} {
		d, e := detector(nil), newEngine(10_000, 10*time.Millisecond, 200*time.Microsecond)
		e.stall = 400 * time.Millisecond
		long, chat := e.now, e.now
		for e.now.Before(time.Unix(1000+300, 0)) {
			for !long.After(e.now) {
				e.take(c.prompt, 10)
				long = long.Add(c.every)
			}
			for !chat.After(e.now) {
				if !d.Room(e.view(), 0) {
					t.Fatalf("prompts of %d: no room after %v, with %d requests in flight", c.prompt, e.now.Sub(time.Unix(1000, 0)), e.load.Requests())
				}
				e.take(50, 100)
				chat = chat.Add(200 * time.Millisecond)
			}
			e.step()
		}
	}
}

// TestAdaptiveForgets has an endpoint come back at other addresses.
func TestAdaptiveForgets(t *testing.T) {
	d, s := detector(nil), fleet.NewStore()
	s.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "p"}}})
	for _, address := range []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"} {
		s.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "e"}, Address: address}})
		e := s.Load().Pools[0].Endpoints[0]
		d.Room(flow.View{Endpoint: e, Now: time.Unix(1000, 0)}, 1)
		if len(d.by) != 1 {
			t.Errorf("%d are remembered, want 1", len(d.by))
		}
	}
}
