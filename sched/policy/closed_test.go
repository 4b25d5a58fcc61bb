// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// rehearsal is a fleet under a virtual clock: engines that work prompts off one after another, forget nothing and
// answer for a while afterwards. Whatever learns does so as in a gateway.
type rehearsal struct {
	profile   *sched.Profile
	plan      *sched.Plan
	endpoints []*fleet.Endpoint
	rates     []float64 // tokens a second
	answer    time.Duration
	rng       *rand.Rand
	now       time.Time
	free      []time.Time
	holds     map[int]map[int]bool // group of prompts to endpoints
	computed  []float64            // tokens, by endpoint
	sent      []int
	events    events
}

type event struct {
	at time.Time
	do func(now time.Time)
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() (x any) {
	old := *e
	x, *e = old[len(old)-1], old[:len(old)-1]
	return x
}

func rehearse(t *testing.T, s sched.Scorer, rates []float64, answer time.Duration) *rehearsal {
	t.Helper()
	p := &sched.Profile{Scorers: []sched.Weighted{weighted("s", s, 1)}, Picker: sched.Named[sched.Picker]{Plugin: &MaxScorePicker{}}}
	n := len(rates)
	return &rehearsal{profile: p, plan: (&sched.Plan{Profiles: []*sched.Profile{p}}).Ready(), endpoints: idle(n), rates: rates, answer: answer,
		rng: rand.New(rand.NewPCG(11, 12)), now: time.Unix(1e6, 0), free: make([]time.Time, n), holds: map[int]map[int]bool{},
		computed: make([]float64, n), sent: make([]int, n)}
}

// send places a prompt of that many blocks of 64 tokens; all of a group above 0 are equal.
func (r *rehearsal) send(group, blocks int) {
	c := &sched.Cycle{Now: r.now, Stale: time.Second, Rand: r.rng}
	c.Begin(r.endpoints)
	found := c.AddPrefix("p")
	found.Blocks, found.BlockTokens, c.Tokens = blocks, 64, int64(blocks*64)
	for i := range found.Match {
		if group > 0 && r.holds[group][i] {
			found.Match[i] = int32(blocks)
		}
	}
	r.profile.Decide(c)
	i := c.Order[0]
	work := c.Tokens - c.Cached("", i)
	h := c.Candidates[i].Load.Take(r.now, work, 0)
	r.plan.Placed(c, c.Candidates[i])
	if r.holds[group] == nil {
		r.holds[group] = map[int]bool{}
	}
	r.holds[group][i] = true
	r.computed[i] += float64(work)
	r.sent[i]++
	start := r.now
	if r.free[i].After(start) {
		start = r.free[i]
	}
	begun := start.Add(time.Duration(float64(work) / r.rates[i] * 1e9))
	r.free[i] = begun
	heap.Push(&r.events, event{begun.Add(10 * time.Millisecond), func(now time.Time) { h.Begun(now) }})
	heap.Push(&r.events, event{begun.Add(r.answer), func(time.Time) { h.Release() }})
}

// pass lets time pass.
func (r *rehearsal) pass(d time.Duration) {
	end := r.now.Add(d)
	for len(r.events) > 0 && !r.events[0].at.After(end) {
		e := heap.Pop(&r.events).(event)
		e.do(e.at)
	}
	r.now = end
}

// load sends different prompts of 8 to 24 blocks for that time, so many a second, at random.
func (r *rehearsal) load(d time.Duration, perSecond float64) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.send(0, 8+r.rng.IntN(17))
		r.pass(time.Duration(r.rng.ExpFloat64() / perSecond * 1e9))
	}
}

// Two of eight engines are half as fast and nobody says so. Once that is learned they do about half the work of the
// others in a fleet that is nearly full, 95 % of 70,000 tokens a second; with less to do they are spared, as each
// prompt is done sooner elsewhere.
func TestPricedMissFindsSlowEndpoints(t *testing.T) {
	rates := []float64{10_000, 10_000, 10_000, 5_000, 10_000, 10_000, 5_000, 10_000}
	r := rehearse(t, Scorers["priced-miss-scorer"](), rates, 100*time.Millisecond)
	r.load(20*time.Second, 0.95*70_000/1024)
	for i, e := range r.endpoints {
		if got, ok := e.Load.Rate(r.now); !ok || got < 0.8*rates[i] || got > 1.2*rates[i] {
			t.Errorf("%s: learned %.0f tokens/s, it has %.0f", e.Name, got, rates[i])
		}
	}
	clear(r.computed)
	r.load(60*time.Second, 0.95*70_000/1024)
	slow, fast := (r.computed[3]+r.computed[6])/2, 0.0
	for i, v := range r.computed {
		if rates[i] > 5_000 {
			fast += v / 6
		}
	}
	if share := slow / fast; share < 0.4 || share > 0.6 {
		t.Errorf("a slow endpoint does %.2f of a fast one's work, want about 0.5: %.0f", share, r.computed)
	}
}

// A burst of 256 equal prompts of 64 blocks, 4096 tokens, before any is worked off. At a hit rate of a half a miss
// costs 2 × 4096, so that the first holder is dearer once 4096 + 64 × n > 8192, with n = 65: four endpoints
// compute the prefix, not one and not eight.
func TestPricedMissKeepsSiblingsTogether(t *testing.T) {
	half := 0.5
	for _, c := range []struct {
		name        string
		s           sched.Scorer
		copies, max int
	}{
		{"priced", &PricedMissScorer{RequestTokens: 64, KVBarrier: 0.15, HitRate: &half}, 4, 65},
		{"greedy", &PricedMissScorer{RequestTokens: 64, KVBarrier: 0.15, HitRate: new(float64)}, 8, 33},
	} {
		r := rehearse(t, c.s, []float64{10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000}, 2*time.Second)
		for range 256 {
			r.send(1, 64)
			r.pass(100 * time.Millisecond / 256)
		}
		most := 0
		for _, n := range r.sent {
			most = max(most, n)
		}
		if copies := len(r.holds[1]); copies != c.copies || most > c.max {
			t.Errorf("%s: %d endpoints compute the prefix, want %d; %v requests", c.name, copies, c.copies, r.sent)
		}
	}
}

// The same without a fixed hit rate: it is learned, half of the requests before being a repetition.
func TestPricedMissLearnsThePrice(t *testing.T) {
	s := Scorers["priced-miss-scorer"]().(*PricedMissScorer)
	r := rehearse(t, s, []float64{10_000, 10_000, 10_000, 10_000}, 100*time.Millisecond)
	for i := range 1000 {
		r.send(1+i/2, 16)
		r.pass(time.Second)
	}
	if h := s.h(); h < 0.49 || h > 0.51 {
		t.Errorf("hit rate %.3f, want 0.5", h)
	}
	clear(r.sent)
	for range 40 {
		r.send(5000, 64)
		r.pass(time.Millisecond)
	}
	if copies := len(r.holds[5000]); copies != 1 {
		t.Errorf("%d endpoints compute the prefix of 40 siblings, want 1", copies)
	}
}
