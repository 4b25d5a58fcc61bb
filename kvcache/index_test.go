// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func keysOf(text string) ([]uint64, []int32) {
	var h Hasher
	h.Reset("m", "", MinBlockTokens, 0)
	h.Start()
	h.Write([]byte(text))
	h.Finish()
	return h.Keys, h.Starts
}

func TestHasherIsIndependentOfPieces(t *testing.T) {
	text := strings.Repeat("the quick brown fox ", 100)
	want, _ := keysOf(text)
	if len(want) != (len(text)+255)/256 {
		t.Fatalf("got %d keys for %d bytes, want one for each 256 begun", len(want), len(text))
	}
	for _, size := range []int{1, 7, 255, 256, 257, 1000} {
		var h Hasher
		h.Reset("m", "", MinBlockTokens, 0)
		h.Start()
		for p := range slices.Chunk([]byte(text), size) {
			h.Write(p)
		}
		if got := h.Finish(); got != int64(len(text)/TokenBytes) {
			t.Errorf("pieces of %d: got %d tokens, want %d", size, got, len(text)/TokenBytes)
		}
		if !slices.Equal(h.Keys, want) {
			t.Errorf("pieces of %d: keys differ", size)
		}
	}
}

func TestHasherKeysDependOnModelSaltAndAllBefore(t *testing.T) {
	text := strings.Repeat("x", 600)
	base, _ := keysOf(text)
	var h Hasher
	for _, c := range []struct{ model, salt, text string }{
		{"n", "", text}, {"m", "s", text}, {"m", "", "y" + text[1:]},
	} {
		h.Reset(c.model, c.salt, MinBlockTokens, 0)
		h.Start()
		h.Write([]byte(c.text))
		h.Finish()
		for i, k := range h.Keys {
			if k == base[i] {
				t.Errorf("%q %q: key %d is the same as for model m without salt", c.model, c.salt, i)
			}
		}
	}
	h.Reset("m", "", MinBlockTokens, 2)
	h.Start()
	h.Write([]byte(text))
	if h.Finish(); len(h.Keys) != 2 || h.Keys[1] != base[1] {
		t.Errorf("got %d keys under a bound of 2", len(h.Keys))
	}
}

func TestMatchIsContiguous(t *testing.T) {
	x := NewIndex()
	keys, starts := []uint64{1, 2, 3, 4, 5}, []int32{0}
	x.Add(keys[:4], 0, 100)
	x.Add(keys[:2], 1, 100)
	x.Add(keys[3:], 2, 100) // holds the end but not the start
	slots := []uint32{2, 1, 0, 9}
	match := make([]int32, 4)
	x.Match(keys, starts, slots, match, &Scratch{})
	if want := []int32{0, 2, 4, 0}; !slices.Equal(match, want) {
		t.Errorf("got %v, want %v", match, want)
	}
	x.Clear(0)
	x.Match(keys, starts, slots, match, &Scratch{})
	if want := []int32{0, 2, 0, 0}; !slices.Equal(match, want) {
		t.Errorf("after clear got %v, want %v", match, want)
	}
}

func TestCapacityForgetsTheLeastRecentlyUsed(t *testing.T) {
	x := NewIndex()
	x.Add([]uint64{1, 2}, 0, 4)
	x.Add([]uint64{3, 4}, 0, 4)
	x.Add([]uint64{1, 2}, 0, 4)    // used again
	x.Add([]uint64{1, 2, 5}, 0, 4) // 4, the tail of the older chain, goes
	if x.Held(0) != 4 || x.Len() != 4 {
		t.Fatalf("holds %d blocks in %d rows, want 4 in 4", x.Held(0), x.Len())
	}
	match := make([]int32, 1)
	for _, c := range []struct {
		keys []uint64
		want int32
	}{{[]uint64{1, 2, 5}, 3}, {[]uint64{3, 4}, 1}} {
		x.Match(c.keys, []int32{0}, []uint32{0}, match, &Scratch{})
		if match[0] != c.want {
			t.Errorf("%v: got %d, want %d", c.keys, match[0], c.want)
		}
	}
}

// Each endpoint has its own capacity, which may change.
func TestCapacityOfEachEndpoint(t *testing.T) {
	x := NewIndex()
	keys := []uint64{1, 2, 3, 4, 5, 6}
	for slot, capacity := range []int{6, 2, 0} {
		if x.Add(keys, uint32(slot), capacity); x.Held(uint32(slot)) != capacity {
			t.Errorf("slot %d holds %d blocks, want %d", slot, x.Held(uint32(slot)), capacity)
		}
	}
	if x.Add([]uint64{1, 2}, 0, 3); x.Held(0) != 3 { // the engine restarted with a smaller cache
		t.Errorf("holds %d blocks after its capacity fell to 3", x.Held(0))
	}
	match := make([]int32, 1)
	if x.Match(keys, []int32{0}, []uint32{0}, match, &Scratch{}); match[0] != 3 {
		t.Errorf("got %d blocks, want the first 3", match[0])
	}
}

// reference is a slow, obvious index.
type reference struct {
	capacity int
	order    map[uint32][]uint64 // oldest first
}

func (r *reference) add(keys []uint64, slot uint32) {
	for _, k := range slices.Backward(keys) {
		o := r.order[slot]
		if i := slices.Index(o, k); i >= 0 {
			o = slices.Delete(o, i, i+1)
		}
		o = append(o, k)
		if len(o) > r.capacity {
			o = o[1:]
		}
		r.order[slot] = o
	}
}

func (r *reference) match(keys []uint64, slot uint32) int32 {
	for i, k := range keys {
		if !slices.Contains(r.order[slot], k) {
			return int32(i)
		}
	}
	return int32(len(keys))
}

func TestIndexAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x, ref := NewIndex(), &reference{20, map[uint32][]uint64{}}
	var scratch Scratch
	for step := range 20_000 {
		slot := uint32(rng.IntN(5))
		keys := make([]uint64, 1+rng.IntN(12))
		for i := range keys {
			keys[i] = uint64(rng.IntN(3)) + 10*uint64(i) // few values, so that chains meet
		}
		switch rng.IntN(10) {
		case 0:
			x.Clear(slot)
			delete(ref.order, slot)
		default:
			x.Add(keys, slot, ref.capacity)
			ref.add(keys, slot)
		}
		slots, match := []uint32{0, 1, 2, 3, 4}, make([]int32, 5)
		x.Match(keys, []int32{0}, slots, match, &scratch)
		for i, s := range slots {
			if want := ref.match(keys, s); match[i] != want {
				t.Fatalf("step %d slot %d: got %d, want %d", step, s, match[i], want)
			}
			if x.Held(s) != len(ref.order[s]) {
				t.Fatalf("step %d slot %d: holds %d, want %d", step, s, x.Held(s), len(ref.order[s]))
			}
		}
	}
}

func TestMemoryPerBlock(t *testing.T) {
	x := NewIndex()
	keys := make([]uint64, 1<<17)
	for i := range keys {
		keys[i] = rand.Uint64()
	}
	x.Add(keys, 0, 1<<20)
	if per := float64(x.Bytes()) / float64(len(keys)); per > 64 {
		t.Errorf("%.0f bytes a block, want at most 64 with the slack of doubling", per)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	x, keys, slots := filled(1024, 100)
	match, scratch := make([]int32, len(slots)), &Scratch{}
	starts := []int32{0}
	x.Match(keys, starts, slots, match, scratch)
	if n := testing.AllocsPerRun(10, func() { x.Match(keys, starts, slots, match, scratch) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// filled is an index in which one endpoint holds all of keys and the others ever less.
func filled(blocks, endpoints int) (*Index, []uint64, []uint32) {
	x := NewIndex()
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = rand.Uint64()
	}
	slots := make([]uint32, endpoints)
	for i := range slots {
		slots[i] = uint32(i)
		x.Add(keys[:blocks/(i*i+1)], uint32(i), 1<<20)
	}
	return x, keys, slots
}

func BenchmarkMatch(b *testing.B) {
	for _, blocks := range []int{128, 1024, 3072} {
		x, keys, slots := filled(blocks, 100)
		match, scratch := make([]int32, len(slots)), &Scratch{}
		b.Run(sizeName(blocks), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x.Match(keys, []int32{0}, slots, match, scratch)
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	text := []byte(strings.Repeat("0123456789abcdef", 800<<10/16))
	var h Hasher
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		h.Reset("m", "", MinBlockTokens, 0)
		h.Start()
		h.Write(text)
		h.Finish()
	}
}

func sizeName(blocks int) string {
	return map[int]string{128: "128_blocks", 1024: "1024_blocks", 3072: "3072_blocks"}[blocks]
}
