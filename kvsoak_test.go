// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/source/kvevents"
)

var soakSeed = flag.Uint64("soak.seed", 1, "of an hour of engines' lives")

// wires are connections in memory, by address.
type wires struct {
	mu    sync.Mutex
	at    map[string]*wireEnd
	conns map[string][]net.Conn // of the engines' side
}

// wireEnd is a listener.
type wireEnd struct {
	conns chan net.Conn
	gone  chan struct{}
}

func (w *wires) listen(address string) *wireEnd {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &wireEnd{make(chan net.Conn), make(chan struct{})}
	w.at[address] = l
	return l
}

func (w *wires) dial(ctx context.Context, _, address string) (net.Conn, error) {
	w.mu.Lock()
	l := w.at[address]
	w.mu.Unlock()
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		w.mu.Lock()
		w.conns[address] = append(w.conns[address], b)
		w.mu.Unlock()
		return a, nil
	case <-l.gone:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cut ends the connections to an address.
func (w *wires) cut(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns[address] {
		c.Close()
	}
	delete(w.conns, address)
}

func (l *wireEnd) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.gone:
		return nil, net.ErrClosed
	}
}
func (l *wireEnd) Close() error   { close(l.gone); return nil }
func (l *wireEnd) Addr() net.Addr { return nil }

// soaked is an engine whose cache is a set of paths, one letter for each block.
type soaked struct {
	t     *testing.T
	w     *wires
	host  string
	salt  string // of its names of blocks
	pub   *kvevents.Publisher
	ends  []*wireEnd
	seq   uint64
	lives int
	cache map[string]int // copies
	order []string       // least recently stored first
	wg    *sync.WaitGroup
}

func (e *soaked) up() {
	e.lives++
	e.seq, e.cache, e.order = 0, map[string]int{}, nil
	e.pub = &kvevents.Publisher{Topic: "kv@" + e.host + "@m", Keep: 500}
	for port, serve := range map[string]func(net.Listener) error{"5557": e.pub.ServeEvents, "6557": e.pub.ServeReplays} {
		l := e.w.listen(e.host + ":" + port)
		e.ends = append(e.ends, l)
		e.wg.Go(func() { _ = serve(l) })
	}
}

func (e *soaked) down() {
	e.w.mu.Lock()
	delete(e.w.at, e.host+":5557")
	delete(e.w.at, e.host+":6557")
	e.w.mu.Unlock()
	for _, l := range e.ends {
		l.Close()
	}
	e.ends = nil
	e.pub.Close()
	e.pub = nil
}

func (e *soaked) name(path string) uint64 { return xxhash.Sum64String(e.salt + path) }

func soakTokens(path string) (ids []uint32) {
	for _, c := range path {
		for i := range 16 {
			ids = append(ids, uint32(c)*1000+uint32(i))
		}
	}
	return ids
}

// say publishes; what is lost only replays have.
func (e *soaked) say(lost bool, events ...kvevents.Event) {
	b := kvevents.Batch{Time: float64(e.lives)*1e6 + float64(e.seq), Events: events}
	payload := b.Append(nil, kvevents.Maps)
	if lost {
		e.pub.Lose(e.seq, payload)
	} else {
		e.pub.Send(e.seq, payload)
	}
	e.seq++
}

func blocksOf(kind kvevents.Kind, paths ...string) kvevents.Event {
	return kvevents.Event{Kind: kind, Medium: "gpu", LoraID: -1, Group: 0, SpecKind: "full_attention", BlockSize: 16}
}

// serve computes what the cache does not have of a prompt, twice when two requests do it at once, and makes room by dropping ends of chains.
func (e *soaked) serve(path string, twice, lost bool) {
	have := 0
	for have < len(path) && e.cache[path[:have+1]] > 0 {
		have++
	}
	if have < len(path) {
		stored := blocksOf(kvevents.BlockStored)
		if have > 0 {
			stored.Parent, stored.HasParent = e.name(path[:have]), true
		}
		stored.Tokens = soakTokens(path[have:])
		for i := have; i < len(path); i++ {
			stored.Hashes = append(stored.Hashes, e.name(path[:i+1]))
		}
		for range map[bool]int{false: 1, true: 2}[twice] {
			for i := have; i < len(path); i++ {
				e.cache[path[:i+1]]++
				e.order = append(e.order, path[:i+1])
			}
			e.say(lost, stored)
		}
	}
	for len(e.order) > 60 {
		e.evict(lost)
	}
}

// evict drops one copy of the oldest block that is no other's parent, or has another copy.
func (e *soaked) evict(lost bool) {
	for i, path := range e.order {
		parent := false
		for p := range e.cache {
			parent = parent || len(p) > len(path) && strings.HasPrefix(p, path)
		}
		if parent && e.cache[path] == 1 {
			continue
		}
		if e.cache[path]--; e.cache[path] == 0 {
			delete(e.cache, path)
		}
		e.order = append(e.order[:i:i], e.order[i+1:]...)
		removed := blocksOf(kvevents.BlockRemoved)
		removed.Hashes = []uint64{e.name(path)}
		e.say(lost, removed)
		return
	}
}

func (e *soaked) clear() {
	e.cache, e.order = map[string]int{}, nil
	e.say(false, kvevents.Event{Kind: kvevents.AllBlocksCleared, LoraID: -1, Medium: "gpu", Group: -1})
}

// An hour of three engines, from their sockets into the index, in virtual time: prompts, evictions, blocks computed twice, clears, lost messages,
// connections that break, restarts. After each half minute all is as the engines have it where replays tell what was missed; where
// there are none, nothing is said to be held that is not, and two minutes after a gap nothing expected that is not.
func TestSoak(t *testing.T) {
	for _, c := range []struct{ name, events string }{{"with replays", dialling}, {"without", blind}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { soak(t, c.events) })
		})
	}
}

func soak(t *testing.T, config string) {
	rng := rand.New(rand.NewPCG(*soakSeed, 7))
	w := &wires{at: map[string]*wireEnd{}, conns: map[string][]net.Conn{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	began := time.Now()
	var engines []*soaked
	var specs []fleet.EndpointSpec
	for i, salt := range []string{"", "", "its own "} { // the third names blocks in its own way
		e := &soaked{t: t, w: w, host: fmt.Sprint("10.0.0.", i+1), salt: salt, wg: &wg}
		engines = append(engines, e)
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: e.host + ":8000"})
		e.up()
	}
	f, p := feedOf(t, config, specs...)
	m := f.producer.Mirror()
	opt := kvevents.Options{Topic: "kv@", Dial: w.dial, Begun: f.begun}
	if f.replays() || config == dialling {
		opt.ReplayPort = 6557
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		for _, e := range engines {
			if e.pub != nil {
				e.down()
			}
		}
	}()
	wg.Go(func() { _ = kvevents.Follow(ctx, p.store, opt, f) })
	prompts := make([]string, 40)
	for i := range prompts {
		prompts[i] = string([]byte{byte('a' + i%4), byte('a' + i/4), byte('a' + i%3), byte('a' + i%7)})
	}
	held, known := 0, 0
	slots := make([]uint32, len(engines))
	for i, e := range p.store.Load().Pools[0].Endpoints {
		slots[i] = e.Load.Slot
	}
	// compare asks the index for each prompt; exact wants all that is held, too.
	compare := func(exact, expected bool) {
		t.Helper()
		block, cell := m.Sizes(0)
		if block == 0 {
			return
		}
		found, scratch := make([]kvcache.Evidence, len(slots)), &kvcache.Scratch{}
		for _, path := range prompts {
			var h kvcache.Hasher
			h.ResetTokens("", "", block, cell, 0)
			h.Start()
			h.WriteTokens(soakTokens(path))
			h.Finish()
			m.Index.Look(h.Keys, h.Starts, slots, found, scratch)
			for i, e := range engines {
				have := int32(0)
				for int(have) < len(path) && e.cache[path[:have+1]] > 0 {
					have++
				}
				got := &found[i]
				held, known = held+int(have), known+int(got.Confirmed())
				if got.Confirmed() > have || expected && got.Blocks() > have || exact && got.Confirmed() != have {
					t.Logf("%+v; dropped %v", m.Of(slots[i]).Counts(), f.view().Dropped)
					t.Fatalf("seed %d, after %v, %s of %s: %+v, and it holds %d", *soakSeed, time.Since(began), path, e.host, *got, have)
				}
			}
		}
	}
	var did [8]int
	for time.Since(began) < time.Hour {
		time.Sleep(200 * time.Millisecond)
		e := engines[rng.IntN(len(engines))]
		kind := rng.IntN(1000)
		switch {
		case e.pub == nil:
			if kind < 100 {
				e.up()
			}
		case kind < 900:
			e.serve(prompts[rng.IntN(len(prompts))], rng.IntN(10) == 0, false)
			did[0]++
		case kind < 930:
			e.serve(prompts[rng.IntN(len(prompts))], false, true)
			did[1]++
		case kind < 940:
			w.cut(e.host + ":5557")
			did[2]++
		case kind < 950:
			e.clear()
			did[3]++
		case kind < 956:
			e.down()
			did[4]++
		case kind < 958: // gone and there again before anybody could see that it was refused
			e.down()
			e.up()
			for range rng.IntN(40) {
				e.serve(prompts[rng.IntN(len(prompts))], false, false)
			}
			did[5]++
		}
		if rng.IntN(150) > 0 { // each half minute
			continue
		}
		for _, e := range engines {
			if e.pub == nil {
				e.up()
			}
		}
		pause := 40 * time.Second // longer than it takes to connect, and to ask again after a replay that failed
		long := rng.IntN(5) == 0
		if long {
			pause = 3 * time.Minute // what is doubted is no longer expected
			did[7]++
		}
		for _, d := range []time.Duration{10 * time.Second, pause} {
			time.Sleep(d)
			for _, e := range engines {
				e.say(false) // shows what is missing
			}
		}
		synctest.Wait()
		m.Tick(time.Now())
		compare(config == dialling, config == dialling || long)
		did[6]++
	}
	var n kvcache.Counts
	for _, k := range m.Followers() {
		c := k.Counts()
		n.Stored, n.Again, n.Removed = n.Stored+c.Stored, n.Again+c.Again, n.Removed+c.Removed
		n.Restarts, n.Clears, n.Gaps, n.Missed = n.Restarts+c.Restarts, n.Clears+c.Clears, n.Gaps+c.Gaps, n.Missed+c.Missed
	}
	t.Logf("served %d, lost %d, cut %d, cleared %d, down %d, replaced %d, compared %d and %d after a while, %d of %d blocks known; heard %+v", did[0], did[1], did[2], did[3], did[4], did[5], did[6], did[7], known, held, n)
	if n.Restarts == 0 || n.Clears == 0 || n.Again == 0 || n.Removed == 0 || did[6] < 30 || did[7] < 3 || config == blind && n.Gaps == 0 || known < held/10 {
		t.Error("too little happened")
	}
}
