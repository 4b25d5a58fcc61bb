// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/sched"
)

// Every fairness policy keeps these laws: Next changes nothing, returns only what it may, and somebody when there is
// one; who waits goes at some time; nothing is allocated while the flows stay the same; what is remembered is bounded.

func random(rng *rand.Rand) flow.Ask {
	tokens := rng.Int64N(2000)
	return flow.Ask{Tokens: tokens, Uncached: rng.Int64N(tokens + 1), Output: rng.Int64N(200)}
}

func newPolicy(t testing.TB, name string) flow.Fairness {
	m, err := Fairness.New(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m.New()
}

func TestFairnessChoosesWhomItMay(t *testing.T) {
	for _, name := range Fairness.Names() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 11))
			b := newBench(newPolicy(t, name), time.Unix(1000, 0))
			for k := range 20_000 {
				tenant := fmt.Sprint("t", rng.IntN(12))
				switch rng.IntN(5) {
				case 0, 1:
					b.enter(tenant, random(rng))
				case 2:
					if len(b.running[tenant]) > 0 {
						a := random(rng)
						b.end(tenant, a.Uncached, a.Output, a.Tokens)
					}
				case 3:
					b.now = b.now.Add(time.Duration(rng.IntN(1e9)))
				case 4:
					refused := map[string]bool{}
					for range rng.IntN(8) {
						refused[fmt.Sprint("t", rng.IntN(12))] = true
					}
					ok := func(f *flow.Flow) bool { return !refused[f.Tenant] }
					free := slices.IndexFunc(slices.Collect(maps.Values(b.flows)), ok) >= 0
					f := b.next(ok)
					b.next(func(*flow.Flow) bool { return true })
					b.next(func(*flow.Flow) bool { return false })
					switch {
					case (f != nil) != free:
						t.Fatalf("step %d: got %v, want somebody: %v", k, f, free)
					case f == nil:
						continue
					case refused[f.Tenant] || b.flows[f.Tenant] != f:
						t.Fatalf("step %d: %s may not go", k, f.Tenant)
					case b.next(ok) != f:
						t.Fatalf("step %d: asked again it chose another", k)
					}
					b.went(f)
				}
			}
		})
	}
}

// TestFairnessServesEverybody has requests in all flows all the time. With a slack of 200000 tokens a round takes 1900.
func TestFairnessServesEverybody(t *testing.T) {
	for _, name := range Fairness.Names() {
		t.Run(name, func(t *testing.T) {
			const tenants = 10
			rng := rand.New(rand.NewPCG(3, 5))
			b := newBench(newPolicy(t, name), time.Unix(1000, 0))
			ask := func(i int) flow.Ask { // the last one's work is a hundred times the first one's, and never cached
				n := int64(100 + i*i*100)
				return flow.Ask{Tokens: 1000, Uncached: n, Output: n / 2}
			}
			for i := range tenants {
				for range 3 {
					b.enter(fmt.Sprint("t", i), ask(i))
				}
			}
			last := map[string]int{}
			for k := range 20_000 {
				f := b.next(func(*flow.Flow) bool { return true })
				tenant := f.Tenant
				if gap := k - last[tenant]; gap > 3_000 {
					t.Fatalf("%s waited for %d others", tenant, gap)
				}
				last[tenant] = k
				b.went(f)
				var i int
				fmt.Sscanf(tenant, "t%d", &i)
				b.enter(tenant, ask(i))
				if len(b.running[tenant]) > rng.IntN(4) {
					b.end(tenant, -1, -1, -1)
				}
				b.now = b.now.Add(50 * time.Millisecond)
			}
			for i := range tenants {
				if n := last[fmt.Sprint("t", i)]; n < 17_000 {
					t.Errorf("t%d went last as number %d of 20000", i, n)
				}
			}
		})
	}
}

// crowd is a policy of n tenants with many requests each, and what one dispatch asks of it.
func crowd(t testing.TB, name string, n int) (one func()) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := newBench(newPolicy(t, name), time.Unix(1000, 0))
	for k := range n {
		b.enter(fmt.Sprint("t", k), random(rng))
		b.now = b.now.Add(time.Millisecond)
	}
	finisher, _ := b.Fairness.(flow.Finisher)
	asks := make([]flow.Ask, 1024)
	for i := range asks {
		asks[i] = random(rng)
	}
	k := 0
	all := func(*flow.Flow) bool { return true }
	return func() {
		k++
		b.now = b.now.Add(time.Millisecond)
		f := b.Next(b.now, all)
		a := &asks[k%len(asks)]
		b.Went(f, b.now)
		f.Head, f.Rank = flow.Waiting{Ask: a, Entered: b.now}, b.now
		b.Headed(f, b.now)
		b.Charge(f.Tenant, b.now, a.Uncached, a.Output)
		b.Charge(f.Tenant, b.now, -a.Uncached/2, a.Output)
		if finisher != nil {
			finisher.Finished(f.Tenant, b.now, a.Tokens, a.Output)
		}
	}
}

func TestFairnessAllocatesNothing(t *testing.T) {
	for _, name := range Fairness.Names() {
		one := crowd(t, name, 200)
		for range 2000 {
			one()
		}
		if n := testing.AllocsPerRun(1000, one); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// TestFairnessForgets has very many tenants come for one request each.
func TestFairnessForgets(t *testing.T) {
	for name, most := range map[string]int{"vtc-fairness-policy": mostIdle, "dlpm-fairness-policy": mostIdle, "program-aware-fairness": mostPrograms} {
		b := newBench(newPolicy(t, name), time.Unix(1000, 0))
		for k := range most + 5000 {
			tenant := fmt.Sprint("t", k)
			b.enter(tenant, flow.Ask{Tokens: 10, Uncached: 10, Output: 1})
			b.went(b.flows[tenant])
			b.end(tenant, 12, 2, 12)
			delete(b.queues, tenant)
			delete(b.running, tenant)
			b.now = b.now.Add(time.Microsecond)
			if n := known(b.Fairness); n > most+1 {
				t.Fatalf("%s: %d tenants are known after %d, want %d at most", name, n, k+1, most)
			}
		}
		b.now = b.now.Add(2 * time.Hour)
		b.enter("z", flow.Ask{})
		b.went(b.flows["z"])
		if n := known(b.Fairness); n > 1 {
			t.Errorf("%s: %d tenants are known after two hours, want 1 at most", name, n)
		}
	}
}

// TestVirtualTokensAreEven has five tenants, one of which sends requests of twenty times the work, all estimated alike and
// corrected when they end, eight at once. By turns it gets twenty times what the others get.
func TestVirtualTokensAreEven(t *testing.T) {
	jain := func(name string) float64 {
		const tenants, atOnce = 5, 8
		b := newBench(newPolicy(t, name), time.Unix(1000, 0))
		enter := func(i int) { b.enter(fmt.Sprint("t", i), flow.Ask{Tokens: 500, Uncached: 500, Output: 100}) }
		work := func(i int) (uncached, output int64) {
			if i == 0 {
				return 1400, 300
			}
			return 70, 15
		}
		for i := range tenants {
			enter(i)
			enter(i)
		}
		var served [tenants]float64
		var running []int
		for range 20_000 {
			f := b.next(func(*flow.Flow) bool { return true })
			var i int
			fmt.Sscanf(f.Tenant, "t%d", &i)
			b.went(f)
			enter(i)
			running = append(running, i)
			if len(running) == atOnce {
				i, running = running[0], running[1:]
				uncached, output := work(i)
				b.end(fmt.Sprint("t", i), uncached, output, uncached)
				served[i] += float64(uncached + 2*output)
				b.now = b.now.Add(time.Second)
			}
		}
		var sum, squares float64
		for _, v := range served {
			sum, squares = sum+v, squares+v*v
		}
		return sum * sum / (tenants * squares)
	}
	for _, c := range []struct {
		name        string
		least, most float64
	}{
		{"round-robin-fairness-policy", 0.28, 0.29}, // (20 + 4·1)²/(5·(20² + 4·1²)) = 0.285
		{"global-strict-fairness-policy", 0.28, 0.29},
		{"vtc-fairness-policy", 0.999, 1},
		{"dlpm-fairness-policy", 0.99, 1},
	} {
		if got := jain(c.name); got < c.least || got > c.most {
			t.Errorf("%s: got an index of %.4f, want %v to %v", c.name, got, c.least, c.most)
		}
	}
}

// TestLongestPrefixGoesFirst counts the uncached tokens of the fifty requests that go first.
func TestLongestPrefixGoesFirst(t *testing.T) {
	uncached := func(name string) (first int64) {
		b := newBench(newPolicy(t, name), time.Unix(1000, 0))
		for i := range 10 {
			for range 20 {
				b.enter(fmt.Sprint("t", i), flow.Ask{Tokens: 1000, Uncached: int64(100 * i)})
			}
		}
		for range 50 {
			f := b.next(func(*flow.Flow) bool { return true })
			first += b.queues[f.Tenant][0].Uncached
			b.went(f)
		}
		return first
	}
	// With a slack of 200000 those go first that bring least: of t0 and t1 twenty each, and ten of t2.
	if got, want := uncached("dlpm-fairness-policy"), int64(20*0+20*100+10*200); got != want {
		t.Errorf("dlpm: got %d uncached tokens, want %d", got, want)
	}
	// By turns all bring as many: five each of 0 to 900.
	if got, want := uncached("round-robin-fairness-policy"), int64(5*4500); got != want {
		t.Errorf("round robin: got %d uncached tokens, want %d", got, want)
	}
}

func TestDetectorsAllocateNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	var all []*fleet.Endpoint
	for i := range 50 {
		all = append(all, endpoint(fmt.Sprintf("e%d waiting=%d running=3 kv=0.%d requests=%d tokens=100 age=%d", i, i%7, i%9, i, i%4), now))
	}
	for _, name := range Detectors.Names() {
		d := Detectors[name]()
		ask := func() {
			for _, e := range all {
				v := viewOf(e, now)
				d.Room(v, 100)
				d.Fill(v)
			}
		}
		ask()
		if n := testing.AllocsPerRun(20, ask); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
		f, ok := d.(sched.Filter)
		if !ok {
			continue
		}
		f.Filter(&sched.Cycle{Now: now}, nil)
		c := &sched.Cycle{Now: now, Stale: time.Second}
		c.Begin(all)
		keep := c.Mask()
		if n := testing.AllocsPerRun(20, func() { f.Filter(c, keep) }); n != 0 {
			t.Errorf("%s as a filter: %v allocations, want 0", name, n)
		}
	}
}

// TestRoomFallsWithTokens: where there is no room for a request there is none for one that brings more.
func TestRoomFallsWithTokens(t *testing.T) {
	now, rng := time.Unix(1000, 0), rand.New(rand.NewPCG(1, 9))
	for _, name := range Detectors.Names() {
		d := Detectors[name]()
		for range 500 {
			e := endpoint(fmt.Sprintf("e waiting=%d running=%d requests=%d tokens=%d", rng.IntN(8), rng.IntN(8), rng.IntN(300), rng.IntN(2_000_000)), now)
			v, was := viewOf(e, now), true
			for tokens := int64(0); tokens < 4_000_000; tokens = tokens*3 + 1 {
				room := d.Room(v, tokens)
				if room && !was {
					t.Fatalf("%s: room for %d tokens and not for fewer: %+v", name, tokens, v)
				}
				was = room
			}
		}
	}
}

func BenchmarkFairness(b *testing.B) {
	for _, name := range Fairness.Names() {
		b.Run(name+"_5000_flows", func(b *testing.B) {
			one := crowd(b, name, 5000)
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

func BenchmarkChoose(b *testing.B) {
	o := Orderings["least-uncached-first-ordering-policy"]().(flow.Chooser)
	rng, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1000, 0)
	window := make([]flow.Waiting, o.Window())
	for i := range window {
		a := random(rng)
		window[i] = flow.Waiting{Ask: &a, Entered: now}
	}
	b.ReportAllocs()
	for b.Loop() {
		o.Choose(now, window)
	}
}
