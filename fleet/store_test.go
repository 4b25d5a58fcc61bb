// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func id(name string) ID { return ID{"default", name} }

// specs reads "name=address" words; labels follow after commas: "a=1:1,app=x".
func specs(words ...string) []EndpointSpec {
	list := []EndpointSpec{}
	for _, w := range words {
		parts := strings.Split(w, ",")
		name, addr, _ := strings.Cut(parts[0], "=")
		e := EndpointSpec{ID: id(name), Address: addr}
		for _, l := range parts[1:] {
			if e.Labels == nil {
				e.Labels = map[string]string{}
			}
			k, v, _ := strings.Cut(l, "=")
			e.Labels[k] = v
		}
		list = append(list, e)
	}
	return list
}

// show writes a snapshot as "pool: name=address ...".
func show(s *Snapshot) string {
	var lines []string
	for _, p := range s.Pools {
		l := p.Name + ":"
		for _, e := range p.Endpoints {
			l += " " + e.Name + "=" + e.Address
		}
		lines = append(lines, l)
	}
	return strings.Join(lines, "; ")
}

func one() *Store {
	s := NewStore()
	s.SetPools([]PoolSpec{{ID: id("p")}})
	return s
}

func TestSelectors(t *testing.T) {
	x, y := map[string]string{"app": "x"}, map[string]string{"app": "y"}
	for _, c := range []struct {
		name  string
		pools []PoolSpec
		want  string
	}{
		{"no pool", nil, ""},
		{"the only pool takes what has no labels", []PoolSpec{{ID: id("p"), Selector: x}}, "p: a=1:1 x=1:2"},
		{"the only pool without selector takes all", []PoolSpec{{ID: id("p")}}, "p: a=1:1 x=1:2 y=1:3"},
		{"two pools, sorted; without labels to none", []PoolSpec{{ID: id("q"), Selector: y}, {ID: id("p"), Selector: x}}, "p: x=1:2; q: y=1:3"},
		{"an endpoint in two pools", []PoolSpec{{ID: id("p"), Selector: x}, {ID: id("q"), Selector: map[string]string{"tier": "1"}}}, "p: x=1:2; q: x=1:2"},
		{"all labels must match", []PoolSpec{{ID: id("p"), Selector: map[string]string{"app": "x", "tier": "2"}}, {ID: id("q"), Selector: y}}, "p:; q: y=1:3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewStore()
			s.SetEndpoints("test", specs("y=1:3,app=y", "a=1:1", "x=1:2,app=x,tier=1"))
			s.SetPools(c.pools)
			if got := show(s.Load()); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEndpointInTwoPoolsIsOne(t *testing.T) {
	s := NewStore()
	s.SetPools([]PoolSpec{{ID: id("p")}, {ID: id("q")}})
	s.SetEndpoints("test", specs("a=1:1,app=x"))
	if p := s.Load().Pools; p[0].Endpoints[0] != p[1].Endpoints[0] {
		t.Error("got two endpoints, want one in both pools")
	}
}

func TestIncarnations(t *testing.T) { synctest.Test(t, testIncarnations) }

func testIncarnations(t *testing.T) {
	s := one()
	load := func(name string) *Load {
		for _, e := range s.Load().Pools[0].Endpoints {
			if e.Name == name {
				return e.Load
			}
		}
		return nil
	}
	s.SetEndpoints("test", specs("a=1:1", "b=1:2"))
	a, b := load("a"), load("b")
	if a == b || a.Slot == b.Slot {
		t.Fatalf("got slots %d and %d", a.Slot, b.Slot)
	}
	hold := a.Take(time.Time{}, 10, 0)

	s.SetEndpoints("test", specs("a=1:1,app=x", "b=9:9"))
	if load("a") != a {
		t.Error("new labels made a new incarnation")
	}
	b2 := load("b")
	if b2 == b || b2.Slot == a.Slot || !b.Ended() {
		t.Errorf("a new address kept the incarnation, or took slot %d of another", b2.Slot)
	}
	s.SetEndpoints("test", specs("b=9:9"))
	if load("a") != nil || a.Ended() {
		t.Error("what is away is in no snapshot, and not over yet")
	}
	time.Sleep(Grace)
	synctest.Wait()
	if !a.Ended() {
		t.Error("it did not end")
	}
	s.SetEndpoints("test", specs("a=1:1", "b=9:9"))
	a2 := load("a")
	if a2 == a || a2.Requests() != 0 {
		t.Error("what came back has the load of the one that left")
	}
	if a2.Slot != a.Slot {
		t.Errorf("got slot %d, want the free one, %d", a2.Slot, a.Slot)
	}
	hold.Release() // on the one that is gone: nobody minds
	if a.Requests() != 0 || a2.Requests() != 0 || load("b") != b2 {
		t.Error("a release on a gone incarnation shows elsewhere")
	}
}

// An endpoint that flaps is the same one: its counters, its reading and its slot are as they were.
func TestFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := one()
		var mu sync.Mutex
		var ended []uint32
		s.OnGone(func(gone []*Load) {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range gone {
				ended = append(ended, l.Slot)
			}
		})
		s.SetEndpoints("test", specs("a=1:1", "b=1:2", "c=1:3"))
		first := s.Load().Pools[0].Endpoints
		a, b, c := first[0], first[1], first[2]
		hold := a.Load.Take(time.Time{}, 10, 0)
		s.Tell(a.ID, a.Load, Reading{Waiting: Signal{3, time.Now()}})
		time.Sleep(2 * Coalesce)

		s.SetEndpoints("test", specs())
		if got := show(s.Load()); got != "p:" {
			t.Errorf("got %q while they are away", got)
		}
		s.Tell(a.ID, a.Load, Reading{}) // a look that was under way
		time.Sleep(200 * time.Millisecond)
		s.SetEndpoints("test", specs("a=1:1", "b=9:9"))
		again := s.Load().Pools[0].Endpoints
		if again[0].Load != a.Load || again[0].Load.Requests() != 1 || again[0].Waiting.Value != 3 {
			t.Errorf("a is another: %d requests, %v waiting", again[0].Load.Requests(), again[0].Waiting.Value)
		}
		mu.Lock()
		if again[1].Load == b.Load || !b.Load.Ended() || !slices.Equal(ended, []uint32{b.Load.Slot}) {
			t.Errorf("b has another address and is the same; ended are %v", ended)
		}
		mu.Unlock()
		hold.Release()
		if n := again[0].Load.Requests(); n != 0 {
			t.Errorf("got %d requests in flight after the last", n)
		}
		s.SetEndpoints("test", specs("b=9:9"))
		time.Sleep(Grace - 200*time.Millisecond) // c's time is over, a's is not
		synctest.Wait()
		if !c.Load.Ended() || a.Load.Ended() {
			t.Errorf("c ended: %v, a ended: %v", c.Load.Ended(), a.Load.Ended())
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !a.Load.Ended() || len(s.away) != 0 {
			t.Error("a did not end")
		}
	})
}

// What changes together is published together.
func TestApplyIsOnePublication(t *testing.T) {
	s := NewStore()
	s.SetEndpoints("old", specs("x=1:9"))
	v := s.Load().Version
	s.Apply(Change{
		Pools:     []PoolSpec{{ID: id("p")}, {ID: id("q"), Selector: map[string]string{"app": "y"}}},
		Endpoints: map[string][]EndpointSpec{"old": nil, "one": specs("a=1:1,app=x"), "two": specs("b=1:2,app=y")},
	})
	if got := s.Load(); got.Version != v+1 || show(got) != "p: a=1:1 b=1:2; q: b=1:2" {
		t.Errorf("got %d publications and %q", got.Version-v, show(got))
	}
	s.Apply(Change{Endpoints: map[string][]EndpointSpec{"one": nil}})
	if got := show(s.Load()); got != "p: b=1:2; q: b=1:2" {
		t.Errorf("got %q: what is not named stays", got)
	}
}

// Two names for one address are one endpoint: counted twice it would be loaded twice.
func TestEqualAddresses(t *testing.T) {
	s := one()
	s.SetEndpoints("test", specs("b=10.0.0.1:1", "a=10.0.0.1:1", "c=10.0.0.1:2"))
	if got := show(s.Load()); got != "p: a=10.0.0.1:1 c=10.0.0.1:2" {
		t.Errorf("got %q", got)
	}
	if got := s.Load().Pools[0].Endpoints[0].AddrPort.String(); got != "10.0.0.1:1" {
		t.Errorf("got %q", got)
	}
}

func TestTwoSources(t *testing.T) {
	s := one()
	s.SetEndpoints("b", specs("x=2:2", "y=2:3"))
	s.SetEndpoints("a", specs("x=1:1", "w=1:0"))
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"the last name wins", func() {}, "p: w=1:0 x=2:2 y=2:3"},
		{"an empty list is a list", func() { s.SetEndpoints("b", []EndpointSpec{}) }, "p: w=1:0 x=1:1"},
		{"nil withdraws", func() { s.SetEndpoints("a", nil) }, "p:"},
		{"withdrawing nobody", func() { s.SetEndpoints("c", nil) }, "p:"},
		{"the last of one list wins", func() { s.SetEndpoints("a", specs("x=1:1", "x=1:2")) }, "p: x=1:2"},
	} {
		c.do()
		if got := show(s.Load()); got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}

// A caller may change its slice afterwards.
func TestEndpointsAreCopied(t *testing.T) {
	s := one()
	list := specs("a=1:1")
	s.SetEndpoints("test", list)
	list[0].Address = "6:6"
	s.SetPools([]PoolSpec{{ID: id("p")}})
	if got := show(s.Load()); got != "p: a=1:1" {
		t.Errorf("got %q", got)
	}
}

// Listeners are told after the snapshot without the gone, and before the slots go to others.
func TestOnGone(t *testing.T) { synctest.Test(t, testOnGone) }

func testOnGone(t *testing.T) {
	s := one()
	s.SetEndpoints("test", specs("a=1:1", "b=1:2", "c=1:3"))
	slots := map[uint32]string{}
	for _, e := range s.Load().Pools[0].Endpoints {
		slots[e.Load.Slot] = e.Name
	}
	var mu sync.Mutex
	var told []string
	take := func() []string {
		mu.Lock()
		defer mu.Unlock()
		was := told
		told = nil
		return was
	}
	s.OnGone(func(gone []*Load) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range gone {
			told = append(told, slots[l.Slot])
			for _, e := range s.Load().Pools[0].Endpoints {
				if e.Load == l {
					t.Errorf("%s is still in the snapshot", e.Name)
				}
				if e.Load.Slot == l.Slot {
					t.Errorf("slot %d was given to %s already", l.Slot, e.Name)
				}
			}
		}
	})
	s.SetEndpoints("test", specs("b=1:2", "d=1:4", "a=7:7"))
	if got := take(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %v, want a, which moved", got)
	}
	time.Sleep(Grace)
	synctest.Wait()
	if got := take(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("got %v, want c, which did not come back", got)
	}
	s.SetPools([]PoolSpec{{ID: id("p"), Picker: "x"}})
	if got := take(); got != nil {
		t.Errorf("got %v when only the pool changed", got)
	}
}

// Slots are reused, so that what indexes them stays as large as the fleet ever was.
func TestSlotsAreReused(t *testing.T) { synctest.Test(t, testSlotsAreReused) }

func testSlotsAreReused(t *testing.T) {
	s := one()
	for i := range 50 {
		time.Sleep(Grace)
		synctest.Wait()
		s.SetEndpoints("test", specs(fmt.Sprintf("a%d=1:1", i), fmt.Sprintf("b%d=1:2", i)))
		for _, e := range s.Load().Pools[0].Endpoints {
			if e.Load.Slot >= 4 {
				t.Fatalf("round %d: got slot %d with two endpoints alive", i, e.Load.Slot)
			}
		}
	}
}

func TestChanged(t *testing.T) {
	s := one()
	s.SetEndpoints("test", specs("a=1:1"))
	c := s.Changed()
	e := s.Load().Pools[0].Endpoints[0]
	s.Tell(e.ID, e.Load, Reading{})
	s.TellModels(e.ID, e.Load, []string{"m"}, nil)
	select {
	case <-c:
		t.Error("a reading is no change of membership")
	default:
	}
	s.SetEndpoints("test", specs("a=1:1", "b=1:2"))
	select {
	case <-c:
	default:
		t.Error("a new endpoint is a change of membership")
	}
}

func TestReadingsWaitForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := one()
		s.SetEndpoints("test", specs("a=1:1", "b=1:2"))
		first := s.Load()
		for i, e := range first.Pools[0].Endpoints {
			s.Tell(e.ID, e.Load, Reading{Waiting: Signal{float64(i + 1), time.Now()}})
		}
		<-time.After(Coalesce - time.Nanosecond)
		synctest.Wait()
		if s.Load() != first {
			t.Error("published before the time")
		}
		<-time.After(time.Nanosecond)
		synctest.Wait()
		got := s.Load()
		if got.Version != first.Version+1 {
			t.Errorf("got version %d after %d, want one publication for both", got.Version, first.Version)
		}
		if a, b := got.Pools[0].Endpoints[0].Waiting.Value, got.Pools[0].Endpoints[1].Waiting.Value; a != 1 || b != 2 {
			t.Errorf("got %v and %v", a, b)
		}
		if first.Pools[0].Endpoints[0].Waiting.Value != 0 {
			t.Error("a published snapshot was changed")
		}
		<-time.After(time.Second)
		synctest.Wait()
		if s.Load() != got {
			t.Error("published again without news")
		}

		// A change of membership does not wait, and takes what waits with it.
		e := got.Pools[0].Endpoints[0]
		s.Tell(e.ID, e.Load, Reading{Waiting: Signal{7, time.Now()}})
		s.SetEndpoints("test", specs("a=1:1"))
		now := s.Load()
		if now.Version != got.Version+1 || now.Pools[0].Endpoints[0].Waiting.Value != 7 {
			t.Errorf("got version %d with %v", now.Version, now.Pools[0].Endpoints[0].Waiting)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if s.Load() != now {
			t.Error("the timer published once more")
		}
	})
}

func TestTellingTheGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := one()
		s.SetEndpoints("test", specs("a=1:1"))
		old := s.Load().Pools[0].Endpoints[0]
		s.SetEndpoints("test", specs("a=1:2"))
		s.Tell(old.ID, old.Load, Reading{Waiting: Signal{9, time.Now()}})
		s.TellModels(old.ID, old.Load, []string{"m"}, nil)
		s.OnRenewed(func(l *Load, _ time.Time) {
			if l == old.Load {
				t.Error("the old one began anew")
			}
		})
		s.Renew(old.ID, old.Load, time.Now())
		<-time.After(time.Second)
		synctest.Wait()
		if e := s.Load().Pools[0].Endpoints[0]; !e.Waiting.At.IsZero() || e.Models != nil {
			t.Errorf("the new incarnation was told what the old one said: %+v %v", e.Reading, e.Models)
		}
	})
}

func TestModels(t *testing.T) {
	s := one()
	s.SetEndpoints("test", specs("a=1:1", "b=1:2"))
	e := s.Load().Pools[0].Endpoints
	s.TellModels(e[0].ID, e[0].Load, []string{"z", "m"}, nil)
	s.TellModels(e[1].ID, e[1].Load, nil, nil)
	snap := s.Load()
	if m := snap.Pools[0].Endpoints[1].Models; m == nil || len(m) != 0 {
		t.Errorf("got %v, want an empty list: it was told", m)
	}
	if got := snap.Models(); !slices.Equal(got, []string{"m", "z"}) {
		t.Errorf("got %v", got)
	}
	s.TellModels(e[0].ID, e[0].Load, []string{"z", "m"}, nil)
	if s.Load() != snap {
		t.Error("published without news")
	}
}

func TestSignalFresh(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		at   time.Time
		want bool
	}{{time.Time{}, false}, {now, true}, {now.Add(-2 * time.Second), true}, {now.Add(-2*time.Second - 1), false}, {now.Add(time.Second), true}} {
		if got := (Signal{1, c.at}).Fresh(now, 2*time.Second); got != c.want {
			t.Errorf("%v: got %v, want %v", c.at, got, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	l := &Load{}
	now := time.Unix(1000, 0)
	e := &Endpoint{Load: l}
	unseen := func(seen int64) int64 { e.Seen = seen; return e.Unseen(now, time.Second) }
	a, b := l.Take(now, 100, 0), l.Take(now, 40, 10)
	seen := l.Sent()
	c := l.Take(now, 7, 0)
	if l.Requests() != 3 || l.Tokens() != 157 || l.Sent() != 3 || unseen(seen) != 1 || unseen(0) != 3 {
		t.Errorf("got %d requests, %d tokens, %d sent, %d unseen", l.Requests(), l.Tokens(), l.Sent(), unseen(seen))
	}
	for range 2 { // the prompt is worked off; output counts to the end where it is estimated
		a.Begun(now)
		b.Begun(now)
	}
	if l.Tokens() != 57 || l.Requests() != 3 {
		t.Errorf("got %d tokens of %d requests after two first outputs", l.Tokens(), l.Requests())
	}
	for range 3 { // once counts
		a.Release()
		b.Release()
	}
	if l.Requests() != 1 || l.Tokens() != 7 || unseen(0) != 1 {
		t.Errorf("got %d requests, %d tokens, %d unseen", l.Requests(), l.Tokens(), unseen(0))
	}
	c.Release()
	var zero Hold
	zero.Begun(now)
	zero.Release()
	if l.Requests() != 0 || l.Tokens() != 0 || unseen(0) != 0 {
		t.Error("not back to zero")
	}
}

// What the page leaves out of our own requests is unseen, however old they are.
func TestUnseenByThePage(t *testing.T) {
	now := time.Unix(1000, 0)
	e := &Endpoint{Load: &Load{}}
	for range 5 {
		e.Load.Take(now, 1, 0)
	}
	e.Seen = 5
	for _, c := range []struct {
		name             string
		waiting, running Signal
		want             int64
	}{
		{"nothing told", Signal{}, Signal{}, 0},
		{"all shown", Signal{1, now}, Signal{4, now}, 0},
		{"others' too", Signal{9, now}, Signal{4, now}, 0},
		{"none shown", Signal{0, now}, Signal{0, now}, 5},
		{"two shown", Signal{0, now}, Signal{2, now}, 3},
		{"stale", Signal{0, now.Add(-time.Minute)}, Signal{0, now}, 0},
	} {
		e.Waiting, e.Running = c.waiting, c.running
		if got := e.Unseen(now, time.Second); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestTakeAndReleaseDoNotAllocate(t *testing.T) {
	l := &Load{}
	if n := testing.AllocsPerRun(100, func() { h := l.Take(time.Time{}, 1, 0); h.Release() }); n != 0 {
		t.Errorf("got %v allocations", n)
	}
}

// Everything at once, for the race detector: counters end at zero, snapshots are whole.
func TestAllAtOnce(t *testing.T) {
	s := one()
	s.OnGone(func([]*Load) {})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil && i < 2000; i++ {
				for _, e := range s.Load().Pools[0].Endpoints {
					if e.Load == nil || e.Address == "" {
						t.Error("half an endpoint")
					}
					h := e.Load.Take(time.Time{}, 1, 0)
					s.Tell(e.ID, e.Load, Reading{Waiting: Signal{float64(w), time.Now()}, Seen: e.Load.Sent()})
					s.TellModels(e.ID, e.Load, []string{fmt.Sprint(i % 3)}, nil)
					h.Release()
				}
				select {
				case <-s.Changed():
				case <-ctx.Done():
				}
			}
		})
	}
	var last uint64
	for i := range 300 {
		s.SetEndpoints("test", specs("a=1:1", fmt.Sprintf("b=1:%d", i%3), "c=1:9")[:1+i%3])
		if v := s.Load().Version; v <= last {
			t.Errorf("version %d after %d", v, last)
		} else {
			last = v
		}
	}
	cancel()
	s.SetEndpoints("test", nil)
	wg.Wait()
}

func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := one()
			var list []EndpointSpec
			for i := range n {
				list = append(list, EndpointSpec{ID: id(fmt.Sprintf("e%04d", i)), Address: fmt.Sprint("1:", i)})
			}
			s.SetEndpoints("test", list)
			b.ReportAllocs()
			for b.Loop() {
				s.mu.Lock()
				s.publish()
				s.mu.Unlock()
			}
		})
	}
}

// A pool's selector reaches no further than its namespace, unless a source named none.
func TestPoolsKeepToTheirNamespace(t *testing.T) {
	s := NewStore()
	app := map[string]string{"app": "vllm"}
	s.SetPools([]PoolSpec{{ID: ID{"team-a", "p"}, Selector: app}, {ID: ID{"team-b", "p"}, Selector: map[string]string{"app": "vllm", "tier": ""}}})
	s.SetEndpoints("x", []EndpointSpec{
		{ID: ID{"team-a", "a"}, Address: "10.0.0.1:1", Labels: app},
		{ID: ID{"team-b", "b"}, Address: "10.0.0.2:1", Labels: map[string]string{"app": "vllm", "tier": ""}},
		{ID: ID{"team-b", "c"}, Address: "10.0.0.3:1", Labels: app}, // lacks a label whose value is empty
		{ID: ID{"default", "d"}, Address: "10.0.0.4:1", Labels: app, Anywhere: true},
	})
	for pool, want := range map[string]string{"team-a": "d a", "team-b": "b"} {
		var got []string
		for _, e := range s.Load().Pool(ID{pool, "p"}).Endpoints {
			got = append(got, e.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s has %v, want %s", pool, got, want)
		}
	}
}

func TestSourcesOfAttributesKeepApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		s.SetPools([]PoolSpec{{ID: ID{"default", "p"}}})
		id, now := ID{"default", "a"}, time.Now()
		s.SetEndpoints("test", []EndpointSpec{{ID: id, Address: "10.0.0.1:8000", NodeAddress: "10.1.0.1"}})
		load := s.Load().Pools[0].Endpoints[0].Load
		custom := []Attribute{{"queue", "x", Signal{3, now}}, {"depth", "x", Signal{4, now}}}
		s.TellAttributes(id, load, "metrics", custom)
		s.TellAttributes(id, load, "dcgm", []Attribute{{"queue", "dcgm", Signal{0.5, now}}})
		s.Tell(id, load, Reading{Waiting: Signal{7, now}})
		time.Sleep(2 * Coalesce)
		e := s.Load().Pools[0].Endpoints[0]
		show := func(e *Endpoint, name, producer string) string {
			v, ok := e.Attribute(name, producer)
			return fmt.Sprint(v.Value, ok)
		}
		for _, c := range [][3]string{{"queue", "x", "3 true"}, {"queue", "dcgm", "0.5 true"}, {"depth", "", "4 true"}, {"queue", "other", "0 false"}, {"none", "", "0 false"}} {
			if got := show(e, c[0], c[1]); got != c[2] {
				t.Errorf("%s of %q: got %s, want %s", c[0], c[1], got, c[2])
			}
		}
		if e.Waiting.Value != 7 || e.NodeAddress != "10.1.0.1" {
			t.Errorf("got %v waiting at %q", e.Waiting.Value, e.NodeAddress)
		}
		custom[0].Value = 99 // the caller's own
		s.TellAttributes(id, load, "metrics", nil)
		time.Sleep(2 * Coalesce)
		if got := show(s.Load().Pools[0].Endpoints[0], "queue", "x"); got != "0 false" {
			t.Errorf("got %s after it was withdrawn", got)
		}
		if got := show(e, "queue", "x"); got != "3 true" {
			t.Errorf("a published snapshot changed: %s", got)
		}
		if n := testing.AllocsPerRun(10, func() { e.Attribute("queue", "x") }); n != 0 {
			t.Errorf("got %v allocations", n)
		}
		for range 20 { // whatever comes first out of a map
			for i, source := range []string{"c", "a", "b"} {
				s.TellAttributes(id, load, source, []Attribute{{"same", "x", Signal{float64(i), now}}})
			}
			time.Sleep(2 * Coalesce)
			if got := show(s.Load().Pools[0].Endpoints[0], "same", "x"); got != "1 true" {
				t.Fatalf("got %s, want what source a tells", got)
			}
		}
	})
}

// A pod that was deleted and made again under the same name may have the same address, and yet be another.
func TestAnotherLife(t *testing.T) {
	s := one()
	tell := func(life string) *Load {
		s.SetEndpoints("x", []EndpointSpec{{ID: id("a"), Address: "1.1.1.1:1", Life: life}})
		return s.Load().Pools[0].Endpoints[0].Load
	}
	first := tell("u1")
	if tell("u1") != first {
		t.Error("the same life is another incarnation")
	}
	if tell("u2") == first || !first.Ended() {
		t.Error("another life is the same incarnation")
	}
}

// A source that knows says which pools have an endpoint; selectors do not count then.
func TestIn(t *testing.T) {
	s := NewStore()
	x := map[string]string{"app": "x"}
	s.SetPools([]PoolSpec{{ID: id("p"), Selector: x}, {ID: id("q"), Selector: x}, {ID: ID{"other", "p"}}})
	s.SetEndpoints("x", []EndpointSpec{
		{ID: id("a"), Address: "1.1.1.1:1", Labels: x, In: []string{"p"}},
		{ID: id("b"), Address: "1.1.1.1:2", Labels: x, In: []string{"q"}},
		{ID: id("c"), Address: "1.1.1.1:3", Labels: x, In: []string{}},
	})
	if got, want := show(s.Load()), "p: a=1.1.1.1:1; q: b=1.1.1.1:2; p:"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A snapshot shares with the one before what has no news.
func TestSnapshotsShare(t *testing.T) {
	s := one()
	specs := []EndpointSpec{{ID: id("a"), Address: "10.0.0.1:1", Labels: map[string]string{"x": "1"}}, {ID: id("b"), Address: "10.0.0.2:1"}, {ID: id("c"), Address: "10.0.0.3:1"}}
	s.SetEndpoints("test", specs)
	changed := func(what, want string, f func()) {
		t.Helper()
		before := s.Load().Pools[0].Endpoints
		f()
		var got []string
		for i, e := range s.Load().Pools[0].Endpoints {
			if i >= len(before) || e != before[i] {
				got = append(got, e.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v are new, want %q", what, got, want)
		}
	}
	load := func(i int) *Load { return s.Load().Pools[0].Endpoints[i].Load }
	changed("a reading", "b", func() { s.Tell(id("b"), load(1), Reading{Engine: "x"}); s.Flush() })
	changed("models", "c", func() { s.TellModels(id("c"), load(2), []string{"m"}, nil) })
	changed("attributes", "a", func() { s.TellAttributes(id("a"), load(0), "x", []Attribute{{Name: "n"}}); s.Flush() })
	changed("nothing", "", func() { s.SetEndpoints("test", specs) })
	changed("a label", "a", func() {
		other := slices.Clone(specs)
		other[0].Labels = map[string]string{"x": "2"}
		s.SetEndpoints("test", other)
	})
	changed("the label of before, and another", "a d", func() { s.SetEndpoints("test", append(specs, EndpointSpec{ID: id("d"), Address: "10.0.0.4:1"})) })
}
