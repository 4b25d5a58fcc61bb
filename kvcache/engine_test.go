// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Each line of a scenario's input is one event; the answer is the state after it: what each endpoint holds of the
// query, as blocks in gpu, cpu, disk or provisional.
//
//	engines a b block=16 cell=16 [counted]
//	play query=1..48 [model= salt= image=]
//	store a 101,102 [parent=100] tokens=1..32 [size=16 adapter= tier=cpu group=1 kind= rank=1 extras=x/- reused=1]
//	remove a 101 [tier= group= rank=] · clear a · restart a · gap a missed=3 until=9 · close a · computed a tokens=1..48
//	expect a tokens=1..48 until=5 · unexpect a tokens=1..48 until=5 · now 4 · counts a
func TestEngineScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/engine", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "engines":
				w = newWorld(t, d)
				return ""
			case "play":
				var out strings.Builder
				var q request
				q.scan(t, d)
				for line := range strings.Lines(d.Input) {
					line = strings.TrimSpace(line)
					fmt.Fprintf(&out, "%s: %s\n", line, w.play(t, line, &q))
				}
				return out.String()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

type request struct{ query, model, salt, image string }

func (q *request) scan(t *testing.T, d *datadriven.TestData) {
	q.model = "m"
	d.MaybeScanArgs(t, "query", &q.query)
	d.MaybeScanArgs(t, "model", &q.model)
	d.MaybeScanArgs(t, "salt", &q.salt)
	d.MaybeScanArgs(t, "image", &q.image) // in the second cell
}

type world struct {
	x           *Index
	names       []string
	engines     map[string]*Engine
	block, cell int
	counted     bool // names are small numbers; else they are as large as hashes
}

func newWorld(t *testing.T, d *datadriven.TestData) *world {
	w := &world{x: NewIndex(), engines: map[string]*Engine{}, block: 16, cell: 16}
	d.MaybeScanArgs(t, "block", &w.block)
	d.MaybeScanArgs(t, "cell", &w.cell)
	o := EngineOptions{Model: "m", BlockTokens: w.block, CellTokens: w.cell}
	d.MaybeScanArgs(t, "waiting", &o.MaxWaiting)
	d.MaybeScanArgs(t, "blocks", &o.MaxBlocks)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	w.counted = d.HasArg("counted")
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 && a.Key != "counted" {
			w.names = append(w.names, a.Key)
			w.engines[a.Key] = NewEngine(w.x, o)
			o.Slot++
		}
	}
	return w
}

func (w *world) hash(n uint64) uint64 {
	if w.counted {
		return n
	}
	return n + 1<<40
}

func (w *world) slot(name string) uint32 { return uint32(slices.Index(w.names, name)) }

func span16(t *testing.T, s string) (ids []uint32) {
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		a, b, ok := strings.Cut(part, "..")
		if !ok {
			b = a
		}
		from, err1 := strconv.Atoi(a)
		to, err2 := strconv.Atoi(b)
		if err1 != nil || err2 != nil {
			t.Fatalf("%q: want numbers such as 1..48", s)
		}
		for i := from; i <= to; i++ {
			ids = append(ids, uint32(i))
		}
	}
	return ids
}

func (w *world) keys(t *testing.T, tokens string, q *request) *Hasher {
	var h Hasher
	ids := span16(t, tokens)
	h.ResetTokens(q.model, q.salt, w.block, w.cell, 0)
	h.Start()
	h.WriteTokens(ids[:min(len(ids), w.cell)])
	if q.image != "" {
		h.Extra(q.image)
	}
	h.WriteTokens(ids[min(len(ids), w.cell):])
	h.Finish()
	return &h
}

func (w *world) play(t *testing.T, line string, q *request) string {
	f := strings.Fields(line)
	arg := map[string]string{}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			arg[k] = v
		}
	}
	num := func(key string, otherwise int) int {
		n, err := strconv.Atoi(arg[key])
		if err != nil {
			return otherwise
		}
		return n
	}
	e := w.engines[f[1]]
	if e == nil && f[0] != "now" {
		t.Fatalf("%s: no such engine", line)
	}
	var hashes []uint64
	if f[0] == "store" || f[0] == "remove" {
		for _, v := range span16(t, f[2]) {
			hashes = append(hashes, w.hash(uint64(v)))
		}
	}
	tier := Tier(max(0, slices.Index([]string{"gpu", "cpu", "disk"}, arg["tier"])))
	switch f[0] {
	case "store":
		s := &Stored{
			Hashes: hashes, Parent: w.hash(uint64(num("parent", 0))), HasParent: arg["parent"] != "", Tokens: span16(t, arg["tokens"]),
			BlockTokens: num("size", 16), Adapter: arg["adapter"], Tier: tier, Group: num("group", 0), Kind: arg["kind"], Rank: num("rank", 0),
			Reused: arg["reused"] != "",
		}
		if arg["extras"] != "" {
			for x := range strings.SplitSeq(arg["extras"], "/") {
				if x == "-" {
					s.Extras = append(s.Extras, nil)
				} else {
					s.Extras = append(s.Extras, strings.Split(x, "+"))
				}
			}
		}
		e.Store(s)
	case "remove":
		e.Remove(hashes, tier, num("group", 0), num("rank", 0))
	case "clear":
		e.Clear(num("rank", 0))
	case "restart":
		e.Restart(num("rank", 0))
	case "gap":
		e.Gap(uint64(num("missed", 1)), int64(num("until", math.MaxInt64)))
	case "computed":
		e.Once(w.keys(t, arg["tokens"], q).Keys)
	case "close":
		e.Close()
	case "expect":
		w.x.Expect(w.keys(t, arg["tokens"], q).Keys, w.slot(f[1]), math.MaxInt, int64(num("until", math.MaxInt64)))
	case "unexpect":
		w.x.Unexpect(w.keys(t, arg["tokens"], q).Keys, w.slot(f[1]), int64(num("until", math.MaxInt64)))
	case "now":
		n, _ := strconv.Atoi(f[1])
		w.x.Advance(int64(n))
	case "counts":
		c := strings.Trim(fmt.Sprintf("%+v", e.Counts()), "{}")
		var some []string
		for v := range strings.FieldsSeq(c) {
			if !strings.HasSuffix(v, ":0") {
				some = append(some, v)
			}
		}
		return strings.Join(some, " ")
	default:
		t.Fatalf("%s: unknown event", line)
	}
	if err := w.x.check(); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	h := w.keys(t, q.query, q)
	slots, found := make([]uint32, len(w.names)), make([]Evidence, len(w.names))
	for i := range slots {
		slots[i] = uint32(i)
	}
	w.x.Look(h.Keys, h.Starts, slots, found, &Scratch{})
	var out []string
	for i, n := range w.names {
		v := &found[i]
		s := n
		for k, c := range []int32{v.Tiers[GPU], v.Tiers[CPU], v.Tiers[Disk], v.Provisional} {
			if c > 0 {
				s += fmt.Sprintf(" %d %s", c, []string{"gpu", "cpu", "disk", "provisional"}[k])
			}
		}
		if v.Blocks() == 0 {
			s += " 0"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// With blocks as large as cells, token keys are those of the text whose bytes the ids are.
func TestTokenKeys(t *testing.T) {
	ids := make([]uint32, 100)
	var text []byte
	for i := range ids {
		ids[i] = uint32(i * 7919)
		text = append(text, byte(ids[i]), byte(ids[i]>>8), byte(ids[i]>>16), byte(ids[i]>>24))
	}
	var a, b, c Hasher
	a.Reset("m", "", 16, 0)
	a.Start()
	a.Write(text)
	a.Finish()
	b.ResetTokens("m", "", 16, 16, 0)
	b.Start()
	b.WriteTokens(ids)
	b.Finish()
	if len(b.Keys) != 6 || !slices.Equal(a.Keys[:6], b.Keys) {
		t.Errorf("got %v, want the first 6 of %v", b.Keys, a.Keys)
	}
	c.ResetTokens("m", "", 48, 16, 0)
	c.Start()
	c.WriteTokens(ids)
	c.Finish()
	if want := []uint64{b.Keys[2], b.Keys[5]}; !slices.Equal(c.Keys, want) {
		t.Errorf("got %v, want every third %v", c.Keys, want)
	}
}

// A chain of any sizes and order of events of two engines ends in no state but a sound one, within its budget.
func FuzzEngine(f *testing.F) {
	f.Add(false, []byte{0, 1, 0, 1, 1, 2, 1, 1, 2, 1, 0, 0})
	f.Add(true, []byte{0, 1, 4, 0, 192, 17, 4, 0, 4, 1, 2, 0, 7, 0, 0, 0, 192, 17, 4, 1, 6, 0, 0, 0})
	f.Fuzz(func(t *testing.T, tight bool, data []byte) {
		budget := int64(math.MaxInt64)
		if tight {
			budget = 33_000 // a little above what an empty index takes
		}
		x := NewBoundedIndex(budget)
		var engines [2]*Engine
		for slot := range engines {
			engines[slot] = NewEngine(x, EngineOptions{Slot: uint32(slot), Model: "m", BlockTokens: 8, CellTokens: 4, MaxBlocks: 40, MaxWaiting: 100})
		}
		for c := range slices.Chunk(data, 4) {
			if len(c) < 4 {
				break
			}
			e := engines[c[3]>>7]
			tier, rank, group := Tier(c[3]%4), int(c[3]>>2%3), int(c[3]>>4%2)
			hashes := make([]uint64, c[2]%5)
			for i := range hashes {
				hashes[i] = uint64(c[1])%16 + uint64(i)
			}
			switch c[0] % 8 {
			default:
				size := []int{4, 8, 12, 0, 3}[c[0]>>3%5]
				tokens := make([]uint32, len(hashes)*size)
				for i := range tokens {
					tokens[i] = uint32(c[2] >> 6)
				}
				e.Store(&Stored{
					Hashes: hashes, Parent: uint64(c[1]>>4) % 16, HasParent: c[0]&128 != 0, Tokens: tokens,
					BlockTokens: size, Tier: tier, Rank: rank, Group: group, Kind: []string{"", "full_attention", "sliding_window"}[c[2]%3],
				})
			case 4, 5:
				e.Remove(hashes, tier, group, rank)
			case 6:
				e.Clear(rank)
			case 7:
				e.Gap(1, x.now.Load()+int64(c[1]%8))
				x.Advance(x.now.Load() + int64(c[2]%3))
			}
			if err := x.check(); err != nil {
				t.Fatal(err)
			}
			if e.waitsFor > 100 || x.sureOf(e.o.Slot) > 44 || x.Bytes() > budget {
				t.Fatalf("%d tokens wait, %d blocks are followed, %d bytes", e.waitsFor, x.sureOf(e.o.Slot), x.Bytes())
			}
		}
		for _, e := range engines {
			e.Close()
		}
		if x.Len() != 0 {
			t.Fatalf("%d blocks after the end", x.Len())
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	for _, blocks := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("%d_blocks", blocks), func(b *testing.B) {
			x := NewIndex()
			e := NewEngine(x, EngineOptions{Model: "m", BlockTokens: 16, CellTokens: 16})
			s := &Stored{Hashes: make([]uint64, blocks), Tokens: make([]uint32, 16*blocks), BlockTokens: 16}
			var last []uint64
			n := uint64(0)
			began := cpu()
			b.ReportAllocs()
			for b.Loop() {
				for i := range s.Hashes {
					n++
					s.Hashes[i], s.Tokens[16*i] = n, uint32(n)
				}
				e.Store(s)
				last = append(last, s.Hashes...)
				if len(last) > 100_000 { // the engine's cache is full
					e.Remove(last[:50_000], GPU, 0, 0)
					last = append(last[:0], last[50_000:]...)
				}
			}
			b.ReportMetric(float64(n)/(cpu()-began).Seconds(), "blocks/cpu-s")
		})
	}
}
