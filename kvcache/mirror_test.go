// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"sync"
	"testing"
	"time"
)

// tells has an engine say that it holds one prompt of some tokens in blocks of a size, under names of its own.
func tells(f *Follower, size, tokens int) {
	s := &Stored{BlockTokens: size}
	for i := range tokens / size * size {
		s.Tokens = append(s.Tokens, uint32(i))
	}
	for i := range tokens / size {
		s.Hashes = append(s.Hashes, uint64(f.Slot()+1)<<40+uint64(i))
	}
	f.Stored(s)
}

// holds counts what each endpoint holds of that prompt, in tokens.
func holds(m *Mirror, slots int, tokens int) []int {
	var h Hasher
	block, cell := m.Sizes(0)
	h.ResetTokens("", "", block, cell, 0)
	h.Start()
	for i := range tokens {
		h.WriteTokens([]uint32{uint32(i)})
	}
	h.Finish()
	list, found := make([]uint32, slots), make([]Evidence, slots)
	for i := range list {
		list[i] = uint32(i)
	}
	m.Index.Look(h.Keys, h.Starts, list, found, &Scratch{})
	out := make([]int, slots)
	for i := range found {
		out[i] = int(found[i].Confirmed()) * block
	}
	return out
}

// The first engine to tell decides how large blocks are, until most others have such as are badly served so.
func TestMostEnginesDecide(t *testing.T) {
	for _, c := range []struct {
		name  string
		first int
		rest  []int // told by one engine each
		block int   // then
	}{
		{"one is as good as the first", 8192, []int{16}, 8192},
		{"two are more", 8192, []int{16, 16}, 16},
		{"much too fine", 1, []int{32, 32}, 32},
		{"a bad cell", 17, []int{16, 16}, 16},
		{"misfits", 16, []int{24, 24}, 24},
		{"coarser, and well served", 16, []int{64, 64}, 16},
		{"finer, and well served", 64, []int{16, 16, 16}, 64},
		{"all differ", 8192, []int{16, 32, 48}, 8192},
		{"no size at all", 16, []int{mostBlock + 1, -1, 0}, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMirror(1<<20, 0)
			list := []*Follower{m.Follow(0, c.first)}
			tells(list[0], c.first, 8192)
			for i, size := range c.rest {
				f := m.Follow(uint32(i+1), size)
				list = append(list, f)
				if size > 0 && size <= mostBlock {
					tells(f, size, 384)
				} else {
					f.Stored(&Stored{Hashes: []uint64{1}, Tokens: []uint32{1}, BlockTokens: size})
				}
			}
			if m.Block() != c.block {
				t.Fatalf("blocks of %d tokens, want %d", m.Block(), c.block)
			}
			if c.block == c.first {
				return
			}
			last := len(list) - 1
			if got := holds(m, len(list), 384); got[last] != 384 || got[1] != 0 && last != 1 {
				t.Errorf("%v tokens are held: of the last all 384 count, and what was told before is void", got)
			}
			for i, f := range list[:last] {
				if ok, again := f.Believe(time.Now()); !ok || !again {
					t.Errorf("engine %d is not asked again", i)
				}
			}
			tells(list[1], c.rest[0], 384)
			if got := holds(m, len(list), 384); got[1] != 384 {
				t.Errorf("%v tokens are held, and engine 1 told again of 384", got)
			}
		})
	}
	m := NewMirror(1<<20, 32)
	for i := range 3 {
		tells(m.Follow(uint32(i), 4096), 4096, 8192)
	}
	if m.Block() != 32 {
		t.Errorf("blocks of %d tokens, though 32 are configured", m.Block())
	}
}

// An engine that only says what cannot be followed is not taken for one whose word is to be had.
func TestNothingUnderstood(t *testing.T) {
	now := time.Now()
	m := NewMirror(1<<20, 16)
	for slot, s := range []Stored{
		{Hashes: []uint64{1 << 40}, Tokens: make([]uint32, 24), BlockTokens: 24},
		{Hashes: []uint64{1 << 40}, Tokens: make([]uint32, 16), BlockTokens: 16, Kind: "mamba", Group: 1},
	} {
		f := m.Follow(uint32(slot), 16)
		for range 4 {
			if ok, _ := f.Believe(now); !ok {
				t.Fatal("not believed")
			}
			f.Stored(&s)
		}
		if f.Live(now) || f.Events() != 0 {
			t.Errorf("%+v: live %v after %d events", s, f.Live(now), f.Events())
		}
		tells(f, 16, 64)
		if !f.Live(now) || f.Events() != 1 {
			t.Errorf("then live %v after %d events", f.Live(now), f.Events())
		}
	}
}

// Who is muted while its endpoint leaves writes nothing of the slot's next.
func TestMutedWhileItLeaves(t *testing.T) {
	m := NewMirror(1<<20, 16)
	for range 200 {
		f := m.Follow(0, 16)
		tells(f, 16, 64)
		var both sync.WaitGroup
		both.Go(func() { f.Mute(time.Unix(0, 1)) })
		both.Go(func() { m.Gone(0) })
		both.Wait()
		tells(f, 16, 64)
		if n := m.Index.Held(0); n != 0 {
			t.Fatalf("%d blocks of an endpoint that is gone", n)
		}
	}
}

// Whoever asks of whom there are followers, adapters and sizes waits for no writer.
func TestMirrorIsReadWithoutLocks(t *testing.T) {
	m := NewMirror(1<<20, 16)
	f := m.Follow(3, 16)
	f.Stored(&Stored{Hashes: []uint64{1 << 40}, Tokens: make([]uint32, 16), BlockTokens: 16, Adapter: "poet"})
	m.mu.Lock()
	defer m.mu.Unlock()
	f.engine.Load().mu.Lock()
	defer f.engine.Load().mu.Unlock()
	m.Index.mu.Lock()
	defer m.Index.mu.Unlock()
	if m.Of(3) != f || m.Of(2) != nil || m.Of(99) != nil || len(m.Followers()) != 1 || !m.Adapter("poet") || m.Adapter("painter") || m.Block() != 16 ||
		!f.Live(time.Now()) || f.Events() != 1 {
		t.Error("not what it was")
	}
	m.Tick(time.Now())
}

// What a process held is void with it, once: by its events or by its metrics, whichever comes first.
func TestRenewed(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(1000+s, 0) }
	m := NewMirror(1<<20, 16)
	f := m.Follow(3, 16)
	store := func(hash uint64, first uint32) {
		s := &Stored{Hashes: []uint64{hash}, BlockTokens: 16}
		for i := range uint32(16) {
			s.Tokens = append(s.Tokens, first+i)
		}
		f.Stored(s)
	}
	held := func(what string, want int) {
		t.Helper()
		if got := m.Index.Held(3); got != want {
			t.Errorf("%s: %d blocks, want %d", what, got, want)
		}
	}
	store(1, 100)
	m.Index.Add([]uint64{77}, 3, 10)
	held("before", 2)
	m.Renewed(3, at(10))
	held("its metrics were first", 0)
	f.Restarted(0, at(12))
	store(2, 200)
	held("then its events", 1)
	m.Renewed(3, at(11))
	held("its events were first", 1)
	m.Renewed(3, at(13))
	held("another restart", 0)
	store(3, 300)
	held("and it goes on", 1)
	if n := f.Counts(); n.Restarts != 1 {
		t.Errorf("%d restarts by its events, want 1", n.Restarts)
	}

	m.Index.Add([]uint64{77}, 4, 10) // which never said anything
	m.Renewed(4, at(10))
	if got := m.Index.Held(4); got != 0 {
		t.Errorf("%d blocks of one that was remembered by what was sent", got)
	}
}
