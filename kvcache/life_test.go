// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// life is that of some engines, told twice: to Engines, and to slow books. A block is known by its path, one letter for
// each of the engine's blocks since the start of the prompt.
type life struct {
	pair    *pair
	o       EngineOptions
	size    int  // tokens in a block of the engines
	subset  bool // blocks may be evicted: what is told must be true, not all
	engines []*told
	paths   map[uint64]string // by state

	promised map[part]map[uint64]int64 // with subset, until when
}

type told struct {
	*Engine
	slot  uint32
	name  func(path string, rank int) uint64
	parts []*partBook
	lives [4]int // by rank
}

// partBook is what one rank told.
type partBook struct {
	rank  int
	part  part
	means map[uint64]string // by name, the path
	waits map[uint64][]waits
}

type waits struct {
	parent uint64
	letter string
	tier   Tier
}

func newLife(x *Index, o EngineOptions, size int, names ...func(path string, rank int) uint64) *life {
	l := &life{pair: newPair(x, len(names)), o: o, size: size, paths: map[uint64]string{}, promised: map[part]map[uint64]int64{}}
	for i, name := range names {
		l.o.Slot = uint32(i)
		l.engines = append(l.engines, &told{Engine: NewEngine(x, l.o), slot: uint32(i), name: name})
	}
	return l
}

func (l *life) tokens(path string) (ids []uint32) {
	for _, c := range path {
		for i := range l.size {
			ids = append(ids, uint32(c)*1000+uint32(i))
		}
	}
	return ids
}

// asked are the keys of a request.
func (l *life) asked(path string) []uint64 {
	var h Hasher
	h.ResetTokens("m", "", l.o.BlockTokens, l.o.CellTokens, 0)
	h.Start()
	h.WriteTokens(l.tokens(path))
	h.Finish()
	return h.Keys
}

// keys are those of a path's last block: what ends in it of ours, and its end.
func (l *life) keys(path string) (keys []uint64) {
	var h Hasher
	h.ResetTokens("m", "", l.o.CellTokens, l.o.CellTokens, 0)
	h.Start()
	h.WriteTokens(l.tokens(path))
	h.Finish()
	for c := (len(path) - 1) * l.size / l.o.CellTokens; c < len(h.Keys); c++ {
		if (c+1)%(l.o.BlockTokens/l.o.CellTokens) == 0 || c == len(h.Keys)-1 {
			keys = append(keys, h.Keys[c])
		}
	}
	l.paths[h.Keys[len(h.Keys)-1]] = path
	return keys
}

func (e *told) book(rank int, add bool) *partBook {
	for _, b := range e.parts {
		if b.rank == rank {
			return b
		}
	}
	if !add {
		return nil
	}
	b := &partBook{rank: rank, part: part{e.slot, 0}, means: map[uint64]string{}, waits: map[uint64][]waits{}}
	for slices.ContainsFunc(e.parts, func(o *partBook) bool { return o.part == b.part }) {
		b.part.part++
	}
	e.parts = append(e.parts, b)
	return b
}

// knows asks the engine what a name means, for what nobody holds may be known still. What it held last it must know.
func (l *life) knows(e *told, b *partBook, name uint64) (path string, ok bool, err error) {
	m := e.member(b.rank, 0, false)
	if m == nil {
		m = &member{owner: 1 << 20}
	}
	state, _, ok := e.find(name, m, nil)
	path = l.paths[state]
	if want, told := b.means[name]; told && !l.subset {
		if k := l.keys(want); l.pair.r.ofPart(b.part)[k[len(k)-1]] != nil && path != want && l.pair.r.ofPart(b.part)[k[len(k)-1]].tiers != 0 {
			return "", false, fmt.Errorf("%d is %q, want %q", name, path, want)
		}
	}
	return path, ok, nil
}

func (l *life) store(e *told, rank int, path string, n int, tier Tier) error {
	b := e.book(rank, true)
	start := path[:len(path)-n]
	s := &Stored{BlockTokens: l.size, Tier: tier, Rank: rank, HasParent: start != ""}
	parent, letters := "", path[len(start):]
	if start != "" {
		s.Parent = e.name(start, rank)
		means, ok, err := l.knows(e, b, s.Parent)
		if err != nil {
			return err
		}
		if parent = means; !ok {
			parent, letters = "?", letters[:1] // one at a time, so that the books stay simple
		}
	}
	s.Tokens = l.tokens(letters)
	for i := range letters {
		s.Hashes = append(s.Hashes, e.name(path[:len(start)+i+1], rank))
	}
	if parent != "?" {
		l.told(e, b, parent, letters, s.Hashes, tier)
	} else if name := s.Hashes[0]; b.waits[name] == nil || l.subset { // for which there may have been no room
		b.waits[name] = append(b.waits[name], waits{s.Parent, letters, tier})
	}
	e.Store(s)
	return nil
}

// told writes down blocks whose parent is known, and those that waited for them.
func (l *life) told(e *told, b *partBook, parent, letters string, names []uint64, tier Tier) {
	for i, name := range names {
		path := parent + letters[:i+1]
		if old, ok := b.means[name]; ok && old != path {
			for _, k := range l.keys(old) {
				for tier := range Tier(tiers) {
					if f := l.pair.r.ofPart(b.part)[k]; f != nil && f.tiers != 0 {
						l.pair.r.removePart([]uint64{k}, b.part, tier, true)
					}
				}
			}
		}
		b.means[name] = path
		l.pair.r.confirmPart(l.keys(path), b.part, tier)
	}
	for _, name := range names {
		for id, list := range b.waits {
			if list[0].parent == name && len(b.waits[id]) > 0 {
				delete(b.waits, id)
				for _, w := range list {
					l.told(e, b, b.means[name], w.letter, []uint64{id}, w.tier)
				}
			}
		}
	}
}

func (l *life) remove(e *told, rank int, path string, tier Tier) error {
	name := e.name(path, rank)
	if b := e.book(rank, false); b != nil {
		held := false
		known, ok, err := l.knows(e, b, name)
		if err != nil {
			return err
		}
		if told, mine := b.means[name]; mine && l.subset {
			known, ok = told, true
		}
		if ok {
			keys := l.keys(known)
			f := l.pair.r.ofPart(b.part)[keys[len(keys)-1]]
			held = f != nil && f.tiers&(1<<tier) != 0
			l.pair.r.removePart(keys, b.part, tier, false)
		}
		if !held {
			delete(b.waits, name)
		}
	}
	e.Remove([]uint64{name}, tier, 0, rank)
	return nil
}

func (l *life) clear(e *told, rank int, restart bool) {
	if restart {
		e.Restart(rank)
		e.lives[rank]++
	} else {
		e.Clear(rank)
	}
	b := e.book(rank, false)
	switch {
	case b == nil && len(e.parts) > 0:
	case len(e.parts) < 2:
		l.pair.r.clear(e.slot)
		e.parts = nil
	default:
		for k, f := range l.pair.r.ofPart(b.part) {
			if f.tiers != 0 {
				delete(l.pair.r.ofPart(b.part), k)
			}
		}
		e.parts = slices.DeleteFunc(e.parts, func(o *partBook) bool { return o == b })
	}
}

// compare asks all engines about a prompt.
func (l *life) compare(path string) error {
	keys := l.asked(path)
	if !l.subset {
		if err := l.pair.compare(keys); err != nil {
			return err
		}
		for _, e := range l.engines {
			waiting := 0
			for _, b := range e.parts {
				waiting += len(b.waits)
			}
			if got := e.Counts().Waiting; got != waiting {
				return fmt.Errorf("slot %d: %d wait, want %d", e.slot, got, waiting)
			}
		}
		return nil
	}
	p := l.pair
	p.x.Look(keys, []int32{0}, p.slots, p.found, &p.scratch)
	for i, s := range p.slots {
		var most Evidence // a promise whose block's name is forgotten lives until its deadline
		for _, k := range keys {
			if e := p.r.look([]uint64{k}, s); e.Confirmed() > 0 {
				most.Tiers[GPU]++
			} else if e.Provisional > 0 || l.promised[part{s, 0}][k] > p.r.now {
				most.Provisional++
			} else {
				break
			}
		}
		if got := p.found[i]; got.Blocks() > most.Blocks() || got.Confirmed() > most.Confirmed() {
			return fmt.Errorf("slot %d of %v: got %+v, want at most %+v", s, path, got, most)
		}
	}
	return nil
}

// promise remembers how long a block may be held provisionally, whatever becomes of it: there may be no room to write down
// that it is confirmed or gone.
func (l *life) promise(key uint64, slot uint32, until int64) {
	p := part{slot, 0}
	if l.promised[p] == nil {
		l.promised[p] = map[uint64]int64{}
	}
	l.promised[p][key] = max(l.promised[p][key], until)
}

// step does one thing, of the kinds that engines and requests do.
func (l *life) step(rng *rand.Rand, ranks, letters int) (did, path string, err error) {
	e := l.engines[rng.IntN(len(l.engines))]
	p := make([]byte, 1+rng.IntN(5))
	for j := range p {
		p[j] = byte('a' + rng.IntN(letters))
	}
	path, rank, tier := string(p), rng.IntN(ranks), Tier(rng.IntN(8)/4)
	until := l.pair.r.now + int64(rng.IntN(50))
	switch k := rng.IntN(1000); {
	case k < 450:
		n := 1 + rng.IntN(len(path))
		return fmt.Sprint("store ", e.slot, path, n, rank, tier), path, l.store(e, rank, path, n, tier)
	case k < 800:
		return fmt.Sprint("remove ", e.slot, path, rank, tier), path, l.remove(e, rank, path, tier)
	case k < 880:
		l.pair.x.Expect(l.asked(path), e.slot, math.MaxInt, until)
		for _, k := range l.asked(path) {
			if l.subset {
				l.promise(k, e.slot, until)
			}
		}
		l.pair.r.expect(l.asked(path), e.slot, until)
		did = fmt.Sprint("expect ", e.slot, path, until)
	case k < 900:
		l.pair.x.Unexpect(l.asked(path), e.slot, until)
		l.pair.r.unexpect(l.asked(path), e.slot, until)
		did = fmt.Sprint("unexpect ", e.slot, path, until)
	case k < 980:
		l.pair.r.advance(l.pair.r.now + 1)
		l.pair.x.Advance(l.pair.r.now)
		did = "advance"
	case k < 986:
		e.Gap(1, until)
		for p, facts := range l.pair.r.parts {
			for k := range facts {
				if l.subset && p.slot == e.slot {
					l.promise(k, e.slot, until)
				}
			}
		}
		l.pair.r.doubt(e.slot, until)
		for _, f := range l.pair.r.parts {
			for _, f := range f {
				if !f.sure {
					f.count = [tiers]int{}
				}
			}
		}
		for _, b := range e.parts {
			clear(b.waits)
		}
		did = fmt.Sprint("gap ", e.slot, until)
	case k < 990:
		l.clear(e, rank, k < 988)
		did = fmt.Sprint("clear ", e.slot, rank)
	}
	return did, path, nil
}

// How engines name blocks: all alike; each in its own way, another after a restart and in each rank; by the last block
// alone and how many there are before it, so that a name means many blocks.
func alike(path string, _ int) uint64 { return xxhash.Sum64String(path) }

func apart(l **life, slot int) func(string, int) uint64 {
	return func(path string, rank int) uint64 {
		return xxhash.Sum64String(fmt.Sprint(path, slot, rank, (*l).engines[slot].lives[rank]))
	}
}

func unchained(path string, _ int) uint64 {
	return uint64(path[len(path)-1]) | uint64(len(path))<<8
}

// An hour of engines' lives, ten events a second: stores, removals, late parents, duplicates, names used again, clears,
// restarts, gaps, and requests sent meanwhile.
func TestLives(t *testing.T) {
	for i, c := range []struct {
		block, size, ranks int
		names              string
		share              int // of the steps
	}{
		{16, 16, 1, "a", 1}, {32, 16, 1, "aa", 4}, {16, 32, 1, "ar", 4}, {32, 48, 1, "aar", 8}, {16, 16, 2, "aa", 4}, {16, 32, 3, "rr", 8},
		{16, 16, 1, "aaauu", 8}, {16, 48, 2, "uur", 8}, {16, 16, 2, "raaaaaaa", 8},
	} {
		t.Run(fmt.Sprintf("ours=%d,engine=%d,ranks=%d,names=%s", c.block, c.size, c.ranks, c.names), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(i), *seed))
			l := live(NewIndex(), EngineOptions{Model: "m", BlockTokens: c.block, CellTokens: 16}, c.size, c.names)
			for i := range *steps / c.share {
				did, path, err := l.step(rng, c.ranks, 2)
				if err == nil {
					err = l.compare(path)
				}
				if err == nil && i%1000 == 0 {
					err = l.pair.x.check()
				}
				if err != nil {
					t.Fatalf("step %d, %s: %v", i, did, err)
				}
			}
			for _, e := range l.engines {
				e.Close()
			}
			if n := l.pair.x.Len(); n != 0 {
				t.Errorf("%d blocks after the end", n)
			}
			if err := l.pair.x.check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func live(x *Index, o EngineOptions, size int, names string) (l *life) {
	var list []func(string, int) uint64
	for slot, c := range names {
		list = append(list, map[rune]func(string, int) uint64{'a': alike, 'r': apart(&l, slot), 'u': unchained}[c])
	}
	return newLife(x, o, size, list...)
}

// At its budget an index evicts blocks and names, and says of no endpoint what is not so.
func TestLivesWithinBudget(t *testing.T) {
	const budget = 100 << 10
	for i, names := range []string{"aaa", "aaaa", "rrrr", "aarr"} {
		t.Run(names, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(i), *seed))
			x := NewBoundedIndex(budget)
			l := live(x, EngineOptions{Model: "m", BlockTokens: 16, CellTokens: 16}, 16<<(i%2), names)
			l.subset = true
			x.names.seed = rng.Uint64()
			for i := range *steps / 4 {
				did, path, err := l.step(rng, 1+len(names)%3, 9)
				if err == nil {
					err = l.compare(path)
				}
				if err == nil && i%1000 == 0 {
					err = x.check()
				}
				if n := x.Bytes(); n > budget {
					err = fmt.Errorf("%d bytes, want at most %d", n, budget)
				}
				if err != nil {
					t.Fatalf("step %d, %s: %v", i, did, err)
				}
			}
			s := x.Stats()
			if !raceEnabled && (s.Evicted == 0 || s.Bytes < budget/2) { // it takes all the steps to get there
				t.Errorf("got %+v, want evictions and most of the budget in use", s)
			}
			t.Logf("%+v", s)
		})
	}
}
