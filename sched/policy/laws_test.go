// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// Every plugin of the catalogue keeps these laws: scores lie in [0,1] and do not depend on the order of the
// candidates, whatever the signals; no candidates are fine; nothing is allocated; the same seed gives the same pick.

func randomFleet(rng *rand.Rand, now time.Time, n int) []*fleet.Endpoint {
	odd := []float64{0, 0.5, 1, 7, 1e9, -3, math.NaN(), math.Inf(1)}
	signal := func() fleet.Signal {
		switch rng.IntN(4) {
		case 0:
			return fleet.Signal{}
		case 1:
			return fleet.Signal{Value: rng.Float64(), At: now.Add(-time.Hour)}
		}
		return fleet.Signal{Value: odd[rng.IntN(len(odd))], At: now}
	}
	out := make([]*fleet.Endpoint, n)
	for i := range out {
		out[i] = &fleet.Endpoint{ID: fleet.ID{Name: fmt.Sprint("e", i)}, Load: &fleet.Load{Slot: uint32(i)},
			Labels: map[string]string{"k": fmt.Sprint(i % 2)}}
		out[i].Waiting, out[i].Running, out[i].KVUsage = signal(), signal(), signal()
	}
	return out
}

func lawCycle(rng *rand.Rand, now time.Time, fleet []*fleet.Endpoint, match []int32) *sched.Cycle {
	c := &sched.Cycle{Now: now, Stale: time.Second, Rand: rng, Context: context.Background(), Headers: headers{}}
	c.Begin(fleet)
	found := c.AddPrefix("approx-prefix-cache-producer")
	copy(found.Match, match)
	found.Blocks, found.BlockTokens, c.Tokens = 10, 64, 640
	return c
}

func TestScorerLaws(t *testing.T) {
	for _, name := range Scorers.Names() {
		t.Run(name, func(t *testing.T) {
			s := Scorers[name]()
			rng, now := rand.New(rand.NewPCG(3, 4)), time.Unix(1e6, 0)
			s.Score(lawCycle(rng, now, nil, nil), nil)
			for range 200 {
				n := 1 + rng.IntN(8)
				endpoints, match := randomFleet(rng, now, n), make([]int32, n)
				for i := range match {
					match[i] = int32(rng.IntN(11))
				}
				p := &sched.Profile{Scorers: []sched.Weighted{weighted(name, s, 1)},
					Picker: sched.Named[sched.Picker]{Plugin: &MaxScorePicker{}}}
				c := lawCycle(rng, now, endpoints, match)
				p.Decide(c)
				byName := map[string]float64{}
				for i, e := range c.Candidates {
					if v := c.Total[i]; !(v >= 0 && v <= 1) {
						t.Fatalf("total %v outside [0,1]", v)
					}
					byName[e.Name] = c.Total[i]
				}
				rng.Shuffle(n, func(i, j int) {
					endpoints[i], endpoints[j] = endpoints[j], endpoints[i]
					match[i], match[j] = match[j], match[i]
				})
				c = lawCycle(rng, now, endpoints, match)
				p.Decide(c)
				for i, e := range c.Candidates {
					if c.Total[i] != byName[e.Name] {
						t.Fatalf("%s: %v in one order, %v in another", e.Name, byName[e.Name], c.Total[i])
					}
				}
			}
			c := lawCycle(rng, now, randomFleet(rng, now, 50), nil)
			score := make([]float64, 50)
			if a := testing.AllocsPerRun(20, func() { s.Score(c, score) }); a != 0 {
				t.Errorf("%v allocations, want 0", a)
			}
		})
	}
}

func TestPickerLaws(t *testing.T) {
	for _, name := range Pickers.Names() {
		t.Run(name, func(t *testing.T) {
			p, now := Pickers[name](), time.Unix(1e6, 0)
			run := func(seed uint64, n int) *sched.Cycle {
				c := lawCycle(rand.New(rand.NewPCG(seed, 1)), now, randomFleet(rand.New(rand.NewPCG(9, 9)), now, n), nil)
				prof := &sched.Profile{Picker: sched.Named[sched.Picker]{Plugin: p}, Scorers: []sched.Weighted{weighted("queue-scorer", &QueueScorer{}, 2)}}
				prof.Decide(c)
				return c
			}
			for n := range 2 * sched.Ranked {
				a, b := run(5, n), run(5, n)
				if !slices.Equal(a.Order, b.Order) {
					t.Fatalf("the same seed gave %v and %v", a.Order, b.Order)
				}
				seen := slices.Sorted(slices.Values(a.Order))
				if len(slices.Compact(seen)) != min(n, sched.Ranked) || n > 0 && seen[len(seen)-1] >= n {
					t.Fatalf("order %v does not name %d of %d candidates once", a.Order, min(n, sched.Ranked), n)
				}
			}
			c := run(1, 100)
			if a := testing.AllocsPerRun(20, func() { p.Pick(c) }); a != 0 {
				t.Errorf("%v allocations, want 0", a)
			}
		})
	}
}

func TestFilterLaws(t *testing.T) {
	for _, name := range Filters.Names() {
		t.Run(name, func(t *testing.T) {
			f, now := Filters[name](), time.Unix(1e6, 0)
			rng := rand.New(rand.NewPCG(3, 4))
			f.Filter(lawCycle(rng, now, nil, nil), nil)
			c := lawCycle(rng, now, randomFleet(rng, now, 50), nil)
			keep := make([]bool, 50)
			if a := testing.AllocsPerRun(20, func() { f.Filter(c, keep) }); a != 0 {
				t.Errorf("%v allocations, want 0", a)
			}
		})
	}
}

// TestPickers tells equals apart by chance alone, and follows scores where they differ.
func TestPickers(t *testing.T) {
	now := time.Unix(1e6, 0)
	total := []float64{1, 1, 3, 0}
	for _, c := range []struct {
		name string
		p    sched.Picker
		want [4]float64 // share of first places
		tol  float64
	}{
		{"highest", &MaxScorePicker{}, [4]float64{0, 0, 1, 0}, 0},
		{"any", &RandomPicker{}, [4]float64{.25, .25, .25, .25}, 0.03},
		{"weighted", &WeightedRandomPicker{}, [4]float64{.2, .2, .6, 0}, 0.03},
	} {
		var first [4]float64
		cy := lawCycle(rand.New(rand.NewPCG(7, 7)), now, randomFleet(rand.New(rand.NewPCG(9, 9)), now, 4), nil)
		cy.Total = total
		for range 10_000 {
			c.p.Pick(cy)
			first[cy.Order[0]] += 1e-4
		}
		for i := range first {
			if math.Abs(first[i]-c.want[i]) > c.tol+1e-9 {
				t.Errorf("%s: candidate %d came first in %.3f of draws, want %.2f", c.name, i, first[i], c.want[i])
			}
		}
	}
}

func BenchmarkSchedule(b *testing.B) {
	for _, n := range []int{8, 100, 500} {
		b.Run(fmt.Sprintf("%d_endpoints_3_scorers", n), func(b *testing.B) {
			now := time.Now() // with its monotonic part, as signals have it
			rng := rand.New(rand.NewPCG(1, 1))
			endpoints, match := randomFleet(rng, now, n), make([]int32, n)
			for i, e := range endpoints {
				e.Waiting, e.KVUsage = fleet.Signal{Value: float64(rng.IntN(10)), At: now}, fleet.Signal{Value: rng.Float64(), At: now}
				match[i] = int32(rng.IntN(11))
			}
			p := &sched.Profile{
				Scorers: []sched.Weighted{weighted("q", &QueueScorer{}, 2), weighted("kv", &KVCacheUtilizationScorer{}, 2),
					weighted("prefix", Scorers["prefix-cache-scorer"](), 3)},
				Picker: sched.Named[sched.Picker]{Plugin: &MaxScorePicker{}},
			}
			c := lawCycle(rng, now, endpoints, match)
			b.ReportAllocs()
			for b.Loop() {
				c.Begin(endpoints)
				found := c.AddPrefix("approx-prefix-cache-producer")
				copy(found.Match, match)
				found.Blocks, found.BlockTokens = 10, 64
				p.Decide(c)
			}
		})
	}
}
