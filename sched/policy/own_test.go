// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// learnRate teaches an incarnation a speed: prompts of 1000 tokens after 10 ms.
func learnRate(l *fleet.Load, now time.Time, rate float64) {
	for range 4 {
		h := l.Take(now, 1000, 0)
		h.Begun(now.Add(10*time.Millisecond + time.Duration(1000/rate*1e9)))
		h.Release()
	}
}

// learnLatency teaches an incarnation a time to first output, in seconds.
func learnLatency(l *fleet.Load, now time.Time, seconds float64) {
	h := l.Take(now.Add(-time.Duration(seconds*1e9)), 0, 0)
	h.Begun(now)
	h.Release()
}

func TestMedian(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		v := make([]float64, 1+rng.IntN(20))
		for i := range v {
			v[i] = float64(rng.IntN(8))
		}
		sorted := slices.Sorted(slices.Values(v))
		if got := median(slices.Clone(v)); got != sorted[len(v)/2] {
			t.Fatalf("median of %v is %v", v, got)
		}
	}
}

func idle(n int) []*fleet.Endpoint {
	out := make([]*fleet.Endpoint, n)
	for i := range out {
		out[i] = &fleet.Endpoint{ID: fleet.ID{Namespace: "ns", Name: fmt.Sprint("engine-", i)}, Load: &fleet.Load{Slot: uint32(i)}}
	}
	return out
}

// best is the candidate that the scorer likes best for a key in the header x-key.
func best(s sched.Scorer, endpoints []*fleet.Endpoint, key string) *fleet.Endpoint {
	c := lawCycle(rand.New(rand.NewPCG(1, 1)), time.Unix(1e6, 0), endpoints, nil)
	c.Headers = headers{"x-key": key}
	p := &sched.Profile{Scorers: []sched.Weighted{weighted("", s, 1)}, Picker: sched.Named[sched.Picker]{Plugin: &MaxScorePicker{}}}
	p.Decide(c)
	return c.Candidates[c.Order[0]]
}

// Keys spread evenly, an endpoint that leaves moves only its own, and one at its bound is passed over.
func TestCHWBL(t *testing.T) {
	s := &CHWBLScorer{Header: "X-Key", LoadBound: 1.25} // in any case of letters
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	endpoints := idle(8)
	count, home := map[string]int{}, map[string]string{}
	for i := range 4000 {
		key := fmt.Sprint("user-", i)
		home[key] = best(s, endpoints, key).Name
		count[home[key]]++
	}
	for name, n := range count {
		if n < 400 || n > 600 {
			t.Errorf("%s has %d of 4000 keys, want about 500", name, n)
		}
	}
	for key, at := range home {
		if now := best(s, endpoints[:7], key).Name; at != "engine-7" && now != at {
			t.Fatalf("%s moved from %s to %s, though engine-7 left", key, at, now)
		}
	}
	// One key alone: nobody gets more than the bound of 1.25 × mean, rounded up.
	for range 64 {
		best(s, endpoints, "hot").Load.Take(time.Unix(1e6, 0), 1, 0)
	}
	for _, e := range endpoints {
		if n := e.Load.Requests(); n > 10 {
			t.Errorf("%s has %d of 64 requests, want at most 10", e.Name, n)
		}
	}
}

// Prompts that begin alike have the same key; those that differ within it have not.
func TestCHWBLPrefix(t *testing.T) {
	s := &CHWBLScorer{PrefixTokens: 256, LoadBound: 1.25}
	key := func(prompt string) uint64 {
		c := lawCycle(rand.New(rand.NewPCG(1, 1)), time.Unix(1e6, 0), idle(2), nil)
		c.Prompt = func(h *kvcache.Hasher) {
			h.Start()
			h.Write([]byte(prompt))
		}
		c.Prefixes[0].Hash = c.Hash(64, 0)
		k, ok := s.key(c)
		if !ok {
			t.Fatal("no key")
		}
		return k
	}
	shared := fmt.Sprintf("%01024d", 7) // 256 tokens of four bytes
	if key(shared+"one") != key(shared+"another one") {
		t.Error("the same 256 tokens gave two keys")
	}
	if key("x"+shared) == key(shared) || key("short") == key("other") {
		t.Error("different prompts gave one key")
	}
}

// The better of two by chance: of four, the best is drawn in half of the draws, the second wins when drawn without it
// (1/2 · 2/3), the third only with the last (1/6).
func TestPowerOfTwo(t *testing.T) {
	c := lawCycle(rand.New(rand.NewPCG(7, 7)), time.Unix(1e6, 0), idle(4), nil)
	c.Total = []float64{0.1, math.NaN(), 0.9, 0.5}
	first := func(p sched.Picker) (share [4]float64) {
		for range 20_000 {
			p.Pick(c)
			share[c.Order[0]] += 1.0 / 20_000
		}
		return share
	}
	got := first(&PowerOfTwoPicker{Choices: 2})
	for i, want := range [4]float64{1. / 6, 0, 1. / 2, 1. / 3} {
		if math.Abs(got[i]-want) > 0.015 {
			t.Errorf("candidate %d came first in %.3f of draws, want %.3f", i, got[i], want)
		}
	}
	(&PowerOfTwoPicker{Choices: 2}).Pick(c)
	rest := slices.DeleteFunc([]int{2, 3, 0, 1}, func(i int) bool { return i == c.Order[0] })
	if !slices.Equal(c.Order[1:], rest) {
		t.Errorf("fallbacks %v, want %v", c.Order[1:], rest)
	}
	// No signal is there at all, so onlyWhenStale draws; fresh ones make it take the best.
	p := &PowerOfTwoPicker{Choices: 2, OnlyWhenStale: true}
	if got := first(p); got[2] > 0.6 {
		t.Errorf("with stale signals the best came first in %.2f of draws", got[2])
	}
	for _, e := range c.Candidates {
		e.Waiting = fleet.Signal{At: c.Now}
	}
	if got := first(p); got[2] < 0.999 {
		t.Errorf("with fresh signals the best came first in %.2f of draws", got[2])
	}
}

// With a temperature of 1, totals that differ by ln 3 have odds of three to one.
func TestSoftmax(t *testing.T) {
	c := lawCycle(rand.New(rand.NewPCG(7, 7)), time.Unix(1e6, 0), idle(2), nil)
	c.Total = []float64{0, math.Log(3)}
	p, n := &SoftmaxPicker{Temperature: 1}, 0
	for range 10_000 {
		p.Pick(c)
		n += c.Order[0]
	}
	if math.Abs(float64(n)/10_000-0.75) > 0.02 {
		t.Errorf("the better came first in %d of 10000 draws, want 7500", n)
	}
	p.Temperature = 0
	for range 100 {
		if p.Pick(c); c.Order[0] != 1 {
			t.Fatal("without temperature the best must come first")
		}
	}
}

func TestRoundRobin(t *testing.T) {
	endpoints := idle(5)
	var got []int
	for range 10 {
		c := lawCycle(rand.New(rand.NewPCG(1, 1)), time.Unix(1e6, 0), endpoints, nil)
		(&RoundRobinPicker{}).Pick(c)
		got = append(got, c.Order[0])
		h := c.Candidates[c.Order[0]].Load.Take(c.Now, 1, 0)
		h.Release()
	}
	if !slices.Equal(got, []int{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}) {
		t.Errorf("got %v", got)
	}
}

// Every policy builds, and names the plugins that its configuration does.
func TestNamed(t *testing.T) {
	for _, p := range Named {
		if _, err := p.Profile(); err != nil {
			t.Error(err)
		}
	}
	if _, err := ByName("priced-mis"); err == nil || err.Error() != `no policy is named "priced-mis": did you mean priced-miss?` {
		t.Errorf("got %v", err)
	}
}

func BenchmarkPricedMiss(b *testing.B) {
	for _, known := range []bool{true, false} {
		b.Run(fmt.Sprintf("100_endpoints_known_%t", known), func(b *testing.B) {
			now := time.Unix(1e6, 0)
			rng := rand.New(rand.NewPCG(1, 1))
			endpoints, match := idle(100), make([]int32, 100)
			for i, e := range endpoints {
				match[i] = int32(rng.IntN(11))
				e.Waiting, e.Running = fleet.Signal{At: now}, fleet.Signal{Value: 3, At: now}
				if known || i%2 == 0 {
					e.KVUsage = fleet.Signal{Value: rng.Float64(), At: now}
					learnRate(e.Load, now, 10_000+10_000*rng.Float64())
				}
				e.Load.Take(now, int64(rng.IntN(5000)), 0)
			}
			s, c, score := Scorers["priced-miss-scorer"](), lawCycle(rng, now, endpoints, match), make([]float64, 100)
			b.ReportAllocs()
			for b.Loop() {
				s.Score(c, score)
			}
		})
	}
}
