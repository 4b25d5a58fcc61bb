// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// zone is a name server that says what a test tells it to.
type zone struct {
	mu    sync.Mutex
	names map[string]string // addresses with blanks between; "-" for a failure, "never" for no answer
	asked map[string]int
	busy  int
	most  int // questions at once
}

func (z *zone) set(name, addresses string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[name] = addresses
}

func (z *zone) count(name string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked[name]
}

func (z *zone) lookup(ctx context.Context, name string) (list []netip.Addr, err error) {
	z.mu.Lock()
	z.asked[name]++
	z.busy++
	z.most = max(z.most, z.busy)
	says := z.names[name]
	z.mu.Unlock()
	defer func() { z.mu.Lock(); z.busy--; z.mu.Unlock() }()
	if says == "never" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if says == "-" {
		return nil, errors.New("no such host")
	}
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
	for a := range strings.FieldsSeq(says) {
		list = append(list, netip.MustParseAddr(a))
	}
	return list, ctx.Err()
}

type rig struct {
	zone zone
	*Names
	store *fleet.Store
	log   bytes.Buffer
	logMu sync.Mutex
}

func (r *rig) Write(p []byte) (int, error) {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.Write(p)
}

func (r *rig) says() string {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	defer r.log.Reset()
	return r.log.String()
}

// run makes a bubble with Names that run.
func run(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{zone: zone{names: map[string]string{}, asked: map[string]int{}}, store: fleet.NewStore()}
		r.Names = New(r.store, r.zone.lookup, slog.New(slog.NewTextHandler(r, nil)))
		r.store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		test(t, r)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// put tells what a source says: name=address words.
func (r *rig) put(t *testing.T, source string, words ...string) {
	t.Helper()
	list := []fleet.EndpointSpec{}
	for _, w := range words {
		name, address, _ := strings.Cut(w, "=")
		address, scrape, _ := strings.Cut(address, ",")
		list = append(list, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: address, Scrape: scrape})
	}
	r.Apply(t.Context(), fleet.Change{Endpoints: map[string][]fleet.EndpointSpec{source: list}})
}

func (r *rig) want(t *testing.T, what, want string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, e := range r.store.Load().Pools[0].Endpoints {
		s := e.Name + "=" + e.Address
		if e.Scrape != e.Address {
			s += "," + e.Scrape
		}
		got = append(got, s)
		if !e.AddrPort.IsValid() {
			t.Errorf("%s: %s is no ip:port", what, e.Address)
		}
	}
	if g := strings.Join(got, " "); g != want {
		t.Errorf("%s:\n got %s\nwant %s", what, g, want)
	}
}

func (r *rig) load(name string) *fleet.Load {
	for _, e := range r.store.Load().Pools[0].Endpoints {
		if e.Name == name {
			return e.Load
		}
	}
	return nil
}

// soon is when a name has been asked for again, whatever the jitter; it is less than two questions.
const soon = again * 13 / 10

func TestNames(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.zone.set("one.example", "10.0.0.1")
		r.zone.set("many.example", "10.0.0.7 10.0.0.5 10.0.0.6 10.0.0.5")
		r.zone.set("six.example", "fd00::1")
		r.zone.set("two.example", "fd00::2 10.0.0.2 ::ffff:10.0.0.3")
		r.zone.set("far.example", "10.0.1.1")
		r.put(t, "f", "a=one.example:80", "b=MANY.example:80", "c=six.example:80", "d=two.example:80,two.example:90",
			"e=10.0.0.9:80,metrics.example:90", "f=far.example:443,metrics.far.example:9090", "g=[fd00::9]:80")
		// Apply waits for names that are new.
		const all = "a=10.0.0.1:80 b=10.0.0.5:80 b-1=10.0.0.6:80 b-2=10.0.0.7:80 c=[fd00::1]:80" +
			" d=10.0.0.2:80,10.0.0.2:90 d-1=10.0.0.3:80,10.0.0.3:90 e=10.0.0.9:80,metrics.example:90" +
			" f=10.0.1.1:443,metrics.far.example:9090 g=[fd00::9]:80"
		r.want(t, "at once", all)
		b, b1, b2 := r.load("b"), r.load("b-1"), r.load("b-2")

		r.zone.set("many.example", "10.0.0.8 10.0.0.6 10.0.0.7") // 5 went, 8 came
		time.Sleep(soon)
		r.want(t, "one of three moved", strings.Replace(all, "b=10.0.0.5", "b=10.0.0.8", 1))
		if r.load("b") == b || r.load("b-1") != b1 || r.load("b-2") != b2 {
			t.Error("want a new incarnation for what changed, and for nothing else")
		}
		r.zone.set("many.example", "10.0.0.7")
		time.Sleep(soon)
		r.want(t, "one is left", strings.Replace(all, "b=10.0.0.5:80 b-1=10.0.0.6:80 b-2", "b-2", 1))
		if r.load("b-2") != b2 {
			t.Error("what stayed is another")
		}
		if got := r.says(); strings.Count(got, "other addresses") != 2 || strings.Contains(got, "level=WARN") {
			t.Errorf("got log %s", got)
		}
		v := r.store.Load().Version
		time.Sleep(10 * again)
		synctest.Wait()
		if r.store.Load().Version != v {
			t.Error("published without news")
		}
	})
}

// A failure changes nothing and is said once; questions get rarer.
func TestFailures(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.zone.set("a.example", "10.0.0.1")
		r.zone.set("b.example", "-")
		r.put(t, "f", "a=a.example:80", "b=b.example:80")
		r.want(t, "one is known", "a=10.0.0.1:80")
		if got := r.says(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "host=b.example") || !strings.Contains(got, "until it can") {
			t.Errorf("got log %s", got)
		}
		r.zone.set("b.example", "10.0.0.2")
		time.Sleep(2 * retry)
		r.want(t, "the other came", "a=10.0.0.1:80 b=10.0.0.2:80")
		a := r.load("a")
		r.zone.set("a.example", "-")
		r.zone.set("b.example", "") // an answer without addresses
		time.Sleep(soon)
		r.says()
		before := r.zone.count("a.example")
		time.Sleep(10 * time.Minute)
		r.want(t, "both fail", "a=10.0.0.1:80 b=10.0.0.2:80")
		// Every 30 s and a fifth less, at the most.
		if n := r.zone.count("a.example") - before; n < 10*60/36 || n > 10*60/24+4 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		if got := r.says(); got != "" {
			t.Errorf("said again: %s", got)
		}
		r.zone.set("a.example", "10.0.0.1")
		time.Sleep(40 * time.Second)
		r.want(t, "one is back", "a=10.0.0.1:80 b=10.0.0.2:80")
		if got := r.says(); !strings.Contains(got, "again") || r.load("a") != a {
			t.Errorf("want the same incarnation and a word of it, got %q", got)
		}
	})
}

// A name server that does not answer holds nothing up for long, and the other names not at all.
func TestNoAnswer(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.zone.set("dead.example", "never")
		r.zone.set("a.example", "10.0.0.1")
		begin := time.Now()
		r.put(t, "f", "a=a.example:80", "d=dead.example:80", "e=10.0.0.9:80")
		if d := time.Since(begin); d != patience {
			t.Errorf("waited %v, want %v", d, patience)
		}
		r.want(t, "without it", "a=10.0.0.1:80 e=10.0.0.9:80")
		begin = time.Now()
		r.put(t, "f", "d=dead.example:80", "e=10.0.0.9:80")
		if d := time.Since(begin); d != 0 {
			t.Errorf("waited %v for a name that is not new", d)
		}
		r.zone.set("dead.example", "10.0.0.4")
		time.Sleep(timeout + maxRetry)
		r.want(t, "it answers", "d=10.0.0.4:80 e=10.0.0.9:80")
	})
}

// What nobody writes any more is not asked for, and nothing is when all are addresses.
func TestNoWork(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.put(t, "f", "a=10.0.0.1:80")
		time.Sleep(time.Hour)
		r.zone.set("a.example", "10.0.0.2")
		r.put(t, "f", "a=a.example:80")
		r.put(t, "g", "b=a.example:81")
		r.want(t, "two ports", "a=10.0.0.2:80 b=10.0.0.2:81")
		if n := r.zone.count("a.example"); n != 1 {
			t.Errorf("asked %d times for one name", n)
		}
		r.Apply(t.Context(), fleet.Change{Endpoints: map[string][]fleet.EndpointSpec{"f": nil}})
		r.want(t, "one source left", "b=10.0.0.2:81")
		time.Sleep(soon)
		synctest.Wait()
		if n := r.zone.count("a.example"); n < 2 {
			t.Error("not asked any more while one source has it")
		}
		r.put(t, "g")
		n := r.zone.count("a.example")
		time.Sleep(time.Hour)
		if r.zone.count("a.example") != n || len(r.hosts) != 0 || len(r.numbers) != 0 {
			t.Errorf("asked %d more times; still known: %d names, %d numbers", r.zone.count("a.example")-n, len(r.hosts), len(r.numbers))
		}
		r.want(t, "nothing", "")
	})
}

// Names that are made do not take those that are written.
func TestWrittenNamesComeFirst(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.zone.set("a.example", "10.0.0.1 10.0.0.2 10.0.0.3")
		r.zone.set("b.example", "10.0.0.4 10.0.0.5")
		r.put(t, "f", "a=a.example:80", "a-1=b.example:80")
		r.want(t, "beside", "a=10.0.0.1:80 a-1=10.0.0.4:80 a-1-1=10.0.0.5:80 a-2=10.0.0.2:80 a-3=10.0.0.3:80")
		r.put(t, "f", "a=a.example:80", "a-2=10.0.0.9:80")
		r.want(t, "another is written", "a=10.0.0.1:80 a-1=10.0.0.2:80 a-2=10.0.0.9:80 a-3=10.0.0.3:80")
	})
}

// However many names there are, few are asked for at once, and each gets its turn.
func TestManyNames(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var words []string
		for i := range 1000 {
			name := fmt.Sprintf("n%d.example", i)
			r.zone.set(name, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
			words = append(words, fmt.Sprintf("e%d=%s:80", i, name))
		}
		r.put(t, "f", words...)
		if n := len(r.store.Load().Pools[0].Endpoints); n != 1000 {
			t.Errorf("got %d endpoints", n)
		}
		r.zone.mu.Lock()
		r.zone.most = 0
		r.zone.mu.Unlock()
		time.Sleep(1000 * spacing * 13 / 10)
		synctest.Wait()
		r.zone.mu.Lock()
		defer r.zone.mu.Unlock()
		if r.zone.most > atOnce {
			t.Errorf("asked for %d at once", r.zone.most)
		}
		var counts []int
		for _, n := range r.zone.asked {
			counts = append(counts, n)
		}
		if slices.Min(counts) < 2 || slices.Max(counts) > 3 {
			t.Errorf("asked %d to %d times", slices.Min(counts), slices.Max(counts))
		}
	})
}

// The system's resolver knows this machine.
func TestSystem(t *testing.T) {
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
	n := New(store, nil, slog.New(slog.DiscardHandler))
	list := []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "localhost:80"}}
	n.Apply(t.Context(), fleet.Change{Endpoints: map[string][]fleet.EndpointSpec{"f": list}})
	got := store.Load().Pools[0].Endpoints
	if len(got) == 0 || !got[0].AddrPort.Addr().IsLoopback() || got[0].Host != "localhost" {
		t.Errorf("got %+v", got)
	}
	if told := n.Told("f"); len(told) != 1 || told[0].Address != "localhost:80" {
		t.Errorf("got %+v, want what was written", told)
	}
}
