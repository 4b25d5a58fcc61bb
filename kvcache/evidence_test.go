// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"flag"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// How far the random tests go, and where; millions are run by hand.
var (
	steps = flag.Int("steps", map[bool]int{false: 36_000, true: 3_000}[raceEnabled], "random steps to take") // one goroutine takes them
	seed  = flag.Uint64("seed", 1, "of the random steps")
)

// truth is a slow, obvious index of evidence.
type truth struct {
	now   int64
	parts map[part]map[uint64]*fact
}

// part is one of a slot's engine; promises are to part 0.
type part struct {
	slot uint32
	part uint16
}

type fact struct {
	tiers uint32 // confirmed, or doubted
	sure  bool
	until int64      // of what is not sure
	count [tiers]int // how often it was confirmed
}

func newTruth() *truth { return &truth{parts: map[part]map[uint64]*fact{}} }

func (r *truth) of(slot uint32) map[uint64]*fact { return r.ofPart(part{slot, 0}) }

func (r *truth) ofPart(p part) map[uint64]*fact {
	if r.parts[p] == nil {
		r.parts[p] = map[uint64]*fact{}
	}
	return r.parts[p]
}

// facts are what the parts of a slot hold of a key.
func (r *truth) facts(key uint64, slot uint32) (all []*fact) {
	for p, m := range r.parts {
		if f := m[key]; f != nil && p.slot == slot {
			all = append(all, f)
		}
	}
	return all
}

func (r *truth) expect(keys []uint64, slot uint32, until int64) {
	if until <= r.now {
		return
	}
	for _, k := range keys {
		if !slices.ContainsFunc(r.facts(k, slot), func(f *fact) bool { return f.sure }) {
			r.of(slot)[k] = &fact{until: until}
		}
	}
}

func (r *truth) unexpect(keys []uint64, slot uint32, until int64) {
	for _, k := range keys {
		if f := r.of(slot)[k]; f != nil && f.tiers == 0 && f.until <= until {
			delete(r.of(slot), k)
		}
	}
}

// broken takes back a promise to a slot, for one of its parts spoke.
func (r *truth) broken(key uint64, slot uint32) {
	if f := r.of(slot)[key]; f != nil && f.tiers == 0 {
		delete(r.of(slot), key)
	}
}

func (r *truth) confirm(keys []uint64, slot uint32, tier Tier) {
	r.confirmPart(keys, part{slot, 0}, tier)
}

func (r *truth) confirmPart(keys []uint64, p part, tier Tier) {
	for _, k := range keys {
		f := r.ofPart(p)[k]
		if f == nil || !f.sure {
			r.broken(k, p.slot)
			f = &fact{sure: true}
			r.ofPart(p)[k] = f
		}
		f.tiers |= 1 << tier
		f.count[tier]++
	}
}

func (r *truth) remove(keys []uint64, slot uint32, tier Tier) {
	r.removePart(keys, part{slot, 0}, tier, true)
}

// removePart takes one of a key's counts, or all.
func (r *truth) removePart(keys []uint64, p part, tier Tier, all bool) {
	for _, k := range keys {
		f := r.ofPart(p)[k]
		if f == nil {
			r.broken(k, p.slot)
			continue
		}
		if f.count[tier]--; all || f.count[tier] <= 0 || !f.sure {
			f.count[tier] = 0
			if f.tiers &^= 1 << tier; f.tiers == 0 {
				delete(r.ofPart(p), k)
				r.broken(k, p.slot)
			}
		}
	}
}

func (r *truth) doubt(slot uint32, until int64) {
	for p, m := range r.parts {
		for k, f := range m {
			if p.slot == slot && f.sure {
				f.sure, f.until = false, min(until, r.now+span-1)
				if until <= r.now {
					delete(m, k)
				}
			}
		}
	}
}

func (r *truth) clear(slot uint32) {
	for p := range r.parts {
		if p.slot == slot {
			delete(r.parts, p)
		}
	}
}

func (r *truth) advance(now int64) {
	r.now = now
	for _, m := range r.parts {
		for k, f := range m {
			if !f.sure && f.until <= now {
				delete(m, k)
			}
		}
	}
}

func (r *truth) look(keys []uint64, slot uint32) (e Evidence) {
	for _, k := range keys {
		best := -1
		for _, f := range r.facts(k, slot) {
			kind := provisional
			if f.sure {
				kind = bits.TrailingZeros32(f.tiers)
			}
			if best < 0 || kind < best {
				best = kind
			}
		}
		switch {
		case best < 0:
			return e
		case best == provisional:
			e.Provisional++
		default:
			e.Tiers[best]++
		}
	}
	return e
}

// held counts what a slot holds, and of it what is sure by tier and what is doubted.
func (r *truth) held(slot uint32) (h Holdings) {
	for p, m := range r.parts {
		if p.slot != slot {
			continue
		}
		for _, f := range m {
			switch {
			case f.sure:
				h.Tiers[bits.TrailingZeros32(f.tiers)]++
			case f.tiers != 0:
				h.Doubted++
				fallthrough
			default:
				h.Provisional++
			}
		}
	}
	return h
}

func (r *truth) blocks() int {
	all := map[uint64]bool{}
	for _, m := range r.parts {
		for k := range m {
			all[k] = true
		}
	}
	return len(all)
}

// check compares all that an index says with what it counts of itself: holders of lots, rows of shards, uses of sets.
func (x *Index) check() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	lots, refs := map[uint32]int32{}, map[uint32]int32{}
	used := int64(0)
	for i := range x.shards {
		s := &x.shards[i]
		t := s.table.Load()
		if t == nil {
			continue
		}
		filled, live := 0, 0
		for j := range t.rows {
			if t.rows[j].key.Load() != 0 {
				filled++
			}
			w := t.rows[j].word.Load() &^ recent
			if w == 0 {
				continue
			}
			live++
			if w&isSet != 0 {
				refs[uint32(w&halfMask)]++
			}
			x.visit(w, func(e uint32) {
				if x.words.at(e&lotMask).Load() != 0 {
					lots[e&lotMask]++
				}
			})
		}
		if filled != s.filled || live != s.live {
			return fmt.Errorf("shard %d: counts %d rows and %d live, has %d and %d", i, s.filled, s.live, filled, live)
		}
		used += int64(live)
	}
	if used != x.used.Load() {
		return fmt.Errorf("counts %d blocks, has %d", x.used.Load(), used)
	}
	if len(refs) != x.stats.Sets {
		return fmt.Errorf("counts %d sets, has %d", x.stats.Sets, len(refs))
	}
	for id, n := range refs {
		if s := x.sets.at(id).Load(); s == nil || s.refs != n {
			return fmt.Errorf("set %d: has %d uses", id, n)
		}
	}
	held, names := map[uint32]int{}, 0
	for n := range x.lots {
		if x.lots[n].count != lots[uint32(n)] {
			return fmt.Errorf("lot %d: counts %d blocks, has %d", n, x.lots[n].count, lots[uint32(n)])
		}
		held[x.lots[n].slot] += int(lots[uint32(n)])
	}
	for slot := range x.slots {
		h := &x.slots[slot]
		if h.held != held[uint32(slot)] {
			return fmt.Errorf("slot %d: counts %d blocks, has %d", slot, h.held, held[uint32(slot)])
		}
		sure, doubted := 0, 0
		for n := range x.lots {
			if l := &x.lots[n]; l.slot == uint32(slot) && l.sure && x.words.at(uint32(n)).Load() != 0 {
				sure += int(l.count)
				if t := h.said[l.part].tiers; h.said[l.part].lot != uint32(n) || t[0]+t[1]+t[2] != l.count {
					return fmt.Errorf("slot %d part %d: %v by tier, lot %d has %d", slot, l.part, h.said[l.part], n, l.count)
				}
			} else if l.slot == uint32(slot) && l.doubted {
				doubted += int(l.count)
			}
		}
		if sure != h.sure || doubted != h.doubted {
			return fmt.Errorf("slot %d: counts %d sure and %d doubted, has %d and %d", slot, h.sure, h.doubted, sure, doubted)
		}
	}
	if x.names == nil {
		return nil
	}
	bytes := int64(len(x.names.shards)) * (nameShardBytes + 6)
	for i := range x.names.shards {
		s := &x.names.shards[i]
		live, mask := 0, x.names.mask
		for j, r := range s.rows {
			if r.state == 0 {
				continue
			}
			live++
			if prev := (j + len(s.rows) - 1) % len(s.rows); s.far(j, mask) > 0 && (s.rows[prev].state == 0 || s.far(prev, mask) < s.far(j, mask)-1) {
				return fmt.Errorf("names %d: row %d is too far", i, j)
			}
		}
		if live != s.live {
			return fmt.Errorf("names %d: counts %d, has %d", i, s.live, live)
		}
		names += live
		bytes += int64(len(s.rows))*rowBytes + int64(len(s.notes))*2
	}
	if names != x.names.count || bytes != x.names.bytes {
		return fmt.Errorf("counts %d names in %d bytes, has %d in %d", x.names.count, x.names.bytes, names, bytes)
	}
	return nil
}

// pair drives an index and the truth with the same random steps.
type pair struct {
	x       *Index
	r       *truth
	scratch Scratch
	slots   []uint32
	found   []Evidence
	n       int
}

func newPair(x *Index, slots int) *pair {
	p := &pair{x: x, r: newTruth()}
	for i := range slots {
		p.slots = append(p.slots, uint32(i))
	}
	p.found = make([]Evidence, slots)
	return p
}

// step does one thing, told by three numbers, and returns the keys it was about and what it was.
func (p *pair) step(do, which, more uint32) ([]uint64, string) {
	slot := which % uint32(len(p.slots))
	keys := make([]uint64, 1+more%9)
	for i := range keys {
		more = more*1664525 + 1013904223
		keys[i] = uint64(more>>24)%3 + 10*uint64(i)
	}
	tier := Tier(which / 64 % tiers)
	until := p.r.now + int64(which/8%7)
	switch do % 32 {
	default:
		p.x.Expect(keys, slot, math.MaxInt, until)
		p.r.expect(keys, slot, until)
		return keys, fmt.Sprint("expect ", keys, slot, until)
	case 8, 9, 10, 11, 12, 13, 14, 15:
		p.x.Confirm(keys, slot, tier)
		p.r.confirm(keys, slot, tier)
		return keys, fmt.Sprint("confirm ", keys, slot, tier)
	case 16, 17, 18, 19, 20:
		p.x.Remove(keys, slot, tier)
		p.r.remove(keys, slot, tier)
		return keys, fmt.Sprint("remove ", keys, slot, tier)
	case 21, 22:
		p.x.Unexpect(keys, slot, until)
		p.r.unexpect(keys, slot, until)
		return keys, fmt.Sprint("unexpect ", keys, slot, until)
	case 23, 24, 25:
		p.r.advance(p.r.now + int64(which%3))
		p.x.Advance(p.r.now)
		return keys, fmt.Sprint("advance ", p.r.now)
	case 26:
		p.x.Doubt(slot, until)
		p.r.doubt(slot, until)
		return keys, fmt.Sprint("doubt ", slot, until)
	case 27:
		p.x.Clear(slot)
		p.r.clear(slot)
		return keys, fmt.Sprint("clear ", slot)
	}
}

func (p *pair) compare(keys []uint64) error {
	p.x.Look(keys, []int32{0}, p.slots, p.found, &p.scratch)
	for i, s := range p.slots {
		if want := p.r.look(keys, s); p.found[i] != want {
			return fmt.Errorf("slot %d of %v: got %+v, want %+v", s, keys, p.found[i], want)
		}
		if p.n++; p.n%11 > 0 { // which takes long
			continue
		}
		if got, want := p.x.Holdings(s), p.r.held(s); got != want {
			return fmt.Errorf("slot %d: holds %+v, want %+v", s, got, want)
		}
	}
	return nil
}

func TestEvidenceAgainstReference(t *testing.T) {
	for _, slots := range []int{2, 7} {
		rng := rand.New(rand.NewPCG(3, uint64(slots)))
		p := newPair(NewIndex(), slots)
		for i := range *steps {
			keys, did := p.step(rng.Uint32(), rng.Uint32(), rng.Uint32())
			if err := p.compare(keys); err != nil {
				t.Fatalf("step %d, %s: %v", i, did, err)
			}
			if i%5000 == 0 {
				if err := p.x.check(); err != nil {
					t.Fatalf("step %d, %s: %v", i, did, err)
				}
				if got, want := p.x.Len(), p.r.blocks(); got != want {
					t.Fatalf("step %d: %d blocks, want %d", i, got, want)
				}
				if err := p.x.check(); err != nil {
					t.Fatalf("step %d, after counting: %v", i, err)
				}
			}
		}
	}
}

func FuzzEvidence(f *testing.F) {
	f.Add([]byte{8, 1, 2, 26, 1, 2, 23, 5, 1, 16, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newPair(NewIndex(), 3)
		for c := range slices.Chunk(data, 3) {
			if len(c) < 3 {
				break
			}
			keys, did := p.step(uint32(c[0]), uint32(c[1]), uint32(c[2]))
			if err := p.compare(keys); err != nil {
				t.Fatalf("%s: %v", did, err)
			}
		}
		if err := p.x.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// Prompts so long that lookups leap give what a walk gives where endpoints hold prefixes.
func TestLeaps(t *testing.T) {
	x := NewIndex()
	keys := make([]uint64, 3*long+5)
	for i := range keys {
		keys[i] = rand.Uint64()
	}
	want, slots := make([]int32, 40), make([]uint32, 40)
	for i := range slots {
		slots[i], want[i] = uint32(i), int32(rand.IntN(len(keys)+1))
		if i < 2 {
			want[i] = int32(len(keys) - i)
		}
		x.Confirm(keys[:want[i]], uint32(i), GPU)
	}
	got := make([]int32, len(slots))
	if x.Match(keys, []int32{0}, slots, got, &Scratch{}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// At its budget an index evicts and never says what is not so.
func TestBudget(t *testing.T) {
	const budget = 1 << 18
	x := NewBoundedIndex(budget)
	p := newPair(x, 5)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 8_000 {
		keys := make([]uint64, 8)
		base := rng.Uint64() % 5_000 * 8
		for j := range keys {
			keys[j] = base + uint64(j)
		}
		slot := uint32(rng.IntN(5))
		x.Confirm(keys, slot, GPU)
		p.r.confirm(keys, slot, GPU)
		if x.Bytes() > budget {
			t.Fatalf("step %d: %d bytes, want at most %d", i, x.Bytes(), budget)
		}
		if i%100 == 0 {
			x.Look(keys, []int32{0}, p.slots, p.found, &p.scratch)
			for _, s := range p.slots {
				if want := p.r.look(keys, s); p.found[s].Blocks() > want.Blocks() {
					t.Fatalf("step %d slot %d: got %+v, want at most %+v", i, s, p.found[s], want)
				}
			}
		}
	}
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	if s := x.Stats(); s.Evicted == 0 || s.Blocks < 5_000 {
		t.Errorf("got %+v, want evictions and most of the budget in use", s)
	}
}

// The numbers of the design: bytes of a block that one endpoint holds, and of each further holder, with all that is kept
// of its engine's names, where engines name blocks alike and where each names them in its own way. The books agree with
// the allocator.
func TestBytesPerBlock(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts, too: make plain runs this")
	}
	const blocks, chain, engines = 1 << 18, 64, 4
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for _, c := range []struct {
		name         string
		apart        bool
		one, further float64 // at most
	}{{"named alike", false, 48, 8}, {"named apart", true, 48, 32}} {
		before := heap()
		x := NewIndex()
		var all []*Engine
		for slot := range uint32(engines) {
			all = append(all, NewEngine(x, EngineOptions{Slot: slot, Model: "m", BlockTokens: 16, CellTokens: 16}))
		}
		s := &Stored{Hashes: make([]uint64, chain), Tokens: make([]uint32, 16*chain), BlockTokens: 16}
		store := func(n, slot int) {
			for i := range s.Hashes {
				s.Hashes[i] = mix(uint64(n*chain + i + 1))
				if c.apart {
					s.Hashes[i] = mix(s.Hashes[i] + uint64(slot))
				}
				s.Tokens[16*i] = uint32(n*chain + i)
			}
			all[slot].Store(s)
		}
		worst := 0.0
		for n := range blocks / chain {
			store(n, 0)
			if n > blocks/chain/2 && n%64 == 0 {
				worst = max(worst, float64(x.Bytes())/float64(x.Stats().Blocks))
			}
		}
		one := float64(x.Bytes()) / blocks
		rng := rand.New(rand.NewPCG(1, 1))
		for slot := 1; slot < engines; slot++ { // three more endpoints hold a random half of the chains each
			for n := range blocks / chain {
				if rng.IntN(2) == 0 {
					store(n, slot)
				}
			}
		}
		holders := 0
		for slot := range uint32(engines) {
			holders += x.Held(slot)
		}
		further := (float64(x.Bytes()) - one*blocks) / float64(holders-blocks)
		real := (heap() - before) / float64(x.Bytes())
		t.Logf("%s: %.1f bytes a block with one holder (at most %.1f as it grew), %.2f for each of %.1f further ones; the heap has %.2f of what is counted",
			c.name, one, worst, further, float64(holders)/blocks-1, real)
		if one > c.one || worst > c.one || further > c.further || real > 1.05 {
			t.Errorf("%s: got %.1f, %.1f and %.1f, want at most %v and %v; the heap has %.2f of what is counted", c.name, one, worst, further, c.one, c.further, real)
		}
		runtime.KeepAlive(all)
	}
	y := NewIndex()
	rng := rand.New(rand.NewPCG(1, 1))
	n := 0
	for k := range uint64(1 << 13) { // the worst: each block has a set of its own
		for s := range uint32(64) {
			if rng.IntN(2) == 0 {
				y.Confirm([]uint64{mix(k)}, s, GPU)
				n++
			}
		}
	}
	worst := float64(y.Bytes()) / (1 << 13)
	t.Logf("%.0f bytes a block with %.0f holders at random, %.1f for each", worst, float64(n)/(1<<13), worst/(float64(n)/(1<<13)))
}

// Lookups beside a storm of writes see, of a chain that two endpoints always hold, never less.
func TestLookupsBesideWrites(t *testing.T) {
	x := NewIndex()
	chain := make([]uint64, 200)
	for i := range chain {
		chain[i] = rand.Uint64()
	}
	x.Confirm(chain, 0, GPU)
	x.Add(chain, 1, 1000)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 500 {
				slot := uint32(2 + 3*w + rng.IntN(3))
				other := make([]uint64, 100)
				for j := range other {
					other[j] = rng.Uint64()
				}
				x.Confirm(chain[:rng.IntN(200)], slot, GPU)
				x.Expect(other, slot, 2000, int64(i+3))
				x.Advance(int64(i))
				x.Remove(chain[rng.IntN(200):], slot, GPU)
				if rng.IntN(5) == 0 {
					x.Clear(slot)
				}
			}
			stop.Store(true)
		})
	}
	slots, found, scratch := []uint32{0, 1, 2, 3, 4, 5, 6, 7}, make([]Evidence, 8), &Scratch{}
	for !stop.Load() {
		x.Look(chain, []int32{0}, slots, found, scratch)
		if found[0].Tiers[GPU] != 200 || found[1].Provisional != 200 {
			t.Errorf("got %+v and %+v, want all 200", found[0], found[1])
			break
		}
	}
	wg.Wait()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
}
