// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios plays the scenarios in testdata. Commands:
//
//	engine block=4 blocks=8 seqs=4 budget=8 [loras=1] [nocache]
//	submit NAME prompt=1-10,77 max=3 [out=5-7] [adapter=x] [salt=x]   numbers are token ids
//	step [n=3]    what each sequence computes in each step, and who got a token
//	abort NAME
//	stats
//	reset
//	events        how the reusable blocks changed since the last time: a block is the sequence that made it and its number there
//
// A step takes 10 ms, 1 ms per prompt token, 100 µs per sequence and 1 µs per token of context.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &play{seqs: map[string]*Seq{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return p.do(t, d)
		})
	})
}

type play struct {
	e      *Engine
	now    time.Duration
	seqs   map[string]*Seq
	events strings.Builder
	names  map[uint64]string // of blocks
}

func (p *play) Stored(s *Seq, first int, parent uint64, hashes []uint64) {
	after := "nothing"
	if first > 0 {
		after = p.names[parent]
	}
	fmt.Fprintf(&p.events, "stored after %s:", after)
	for i, h := range hashes {
		p.names[h] = fmt.Sprint(s.Tag, first+i)
		p.events.WriteString(" " + p.names[h])
	}
	p.events.WriteString("\n")
}

func (p *play) Removed(hash uint64) { p.events.WriteString("removed " + p.names[hash] + "\n") }
func (p *play) Cleared()            { p.events.WriteString("cleared\n") }

func (p *play) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "engine":
		return p.make(t, d)
	case "submit":
		return p.submit(t, d)
	case "step":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		var b strings.Builder
		for range n {
			p.step(&b)
		}
		return b.String()
	case "abort":
		p.e.Abort(p.now, p.seqs[d.CmdArgs[0].Key])
		return ""
	case "stats":
		s := p.e.Stats()
		return fmt.Sprintf("waiting=%d running=%d kv=%.3f\nprefix=%d/%d prompt=%d generated=%d computed=%d\npreemptions=%d evictions=%d finished=%d aborted=%d\n",
			s.Waiting, s.Running, s.KVUsage, s.PrefixHits, s.PrefixQueries, s.PromptTokens, s.GenerationTokens, s.ComputedTokens,
			s.Preemptions, s.Evictions, s.Finished, s.Aborted)
	case "events":
		defer p.events.Reset()
		return p.events.String()
	case "reset":
		return fmt.Sprintln(p.e.ResetPrefixCache())
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (p *play) make(t *testing.T, d *datadriven.TestData) string {
	c := Config{Timing: Timing{Base: 10 * time.Millisecond, PerPrefillToken: time.Millisecond, PerSeq: 100 * time.Microsecond, PerKVToken: time.Microsecond}}
	d.ScanArgs(t, "block", &c.BlockSize)
	d.ScanArgs(t, "blocks", &c.NumBlocks)
	d.ScanArgs(t, "seqs", &c.MaxNumSeqs)
	d.ScanArgs(t, "budget", &c.MaxNumBatchedTokens)
	d.MaybeScanArgs(t, "loras", &c.MaxLoRAs)
	c.NoPrefixCaching = d.HasArg("nocache")
	c.Events, p.names = p, map[uint64]string{}
	p.events.Reset()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.e, p.now = e, 0
	clear(p.seqs)
	return ""
}

func (p *play) submit(t *testing.T, d *datadriven.TestData) string {
	r := Request{Tag: d.CmdArgs[0].Key}
	for _, a := range d.CmdArgs[1:] {
		switch a.Key {
		case "prompt":
			r.Tokens = ids(t, a.Vals[0])
		case "out":
			r.Output = ids(t, a.Vals[0])
		case "max":
			a.Scan(t, 0, &r.MaxTokens)
		case "adapter":
			r.Adapter = a.Vals[0]
		case "salt":
			r.Salt = a.Vals[0]
		}
	}
	s, err := p.e.Submit(p.now, r)
	if err != nil {
		return err.Error() + "\n"
	}
	p.seqs[d.CmdArgs[0].Key] = s
	return ""
}

// ids reads token ids and ranges of them.
func ids(t *testing.T, list string) (ids []uint32) {
	t.Helper()
	for v := range strings.SplitSeq(list, ",") {
		var a, b uint32
		if n, _ := fmt.Sscanf(v, "%d-%d", &a, &b); n == 0 {
			t.Fatalf("bad token ids %q", v)
		} else if n == 1 {
			b = a
		}
		for ; a <= b; a++ {
			ids = append(ids, a)
		}
	}
	return ids
}

func (p *play) step(b *strings.Builder) {
	took, busy := p.e.Begin(p.now)
	if !busy {
		fmt.Fprintln(b, "nothing to do")
		return
	}
	fmt.Fprintf(b, "%v:", took)
	for _, s := range p.e.running {
		if s.planned > 0 {
			fmt.Fprintf(b, " %s %d+%d", s.Tag, s.computed, s.planned)
		}
	}
	p.now += took
	for i, tok := range p.e.End(p.now) {
		if i == 0 {
			b.WriteString(" ->")
		}
		fmt.Fprintf(b, " %s:%d", tok.Seq.Tag, tok.Seq.Generated)
		if tok.Last {
			b.WriteString("!")
		}
	}
	fmt.Fprintln(b)
}

func TestTimes(t *testing.T) {
	c := Config{BlockSize: 4, NumBlocks: 8, MaxNumSeqs: 1, MaxNumBatchedTokens: 4, Timing: Timing{Base: 10 * time.Millisecond}}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := e.Submit(3*time.Millisecond, Request{Tokens: []uint32{1, 2, 3, 4, 5}, MaxTokens: 2})
	b, _ := e.Submit(4*time.Millisecond, Request{Tokens: []uint32{9}, MaxTokens: 1})
	now := 5 * time.Millisecond
	for e.Busy() {
		took, _ := e.Step(now)
		now += took
	}
	// a: prefill in two steps of 10 ms, one more token; then b in a batch of one.
	for _, tt := range []struct {
		name      string
		got, want time.Duration
	}{
		{"a admitted", a.Admitted, 5 * time.Millisecond},
		{"a first token", a.FirstToken, 25 * time.Millisecond},
		{"a finished", a.Finished, 35 * time.Millisecond},
		{"b admitted", b.Admitted, 35 * time.Millisecond},
		{"b first token", b.FirstToken, 45 * time.Millisecond},
		{"b finished", b.Finished, 45 * time.Millisecond},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

// An abort in the middle of a step takes effect at its end: what was computed stays in the cache.
func TestAbortInStep(t *testing.T) {
	c := Config{BlockSize: 4, NumBlocks: 8, MaxNumSeqs: 4, MaxNumBatchedTokens: 16, Timing: Timing{Base: time.Millisecond}}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := e.Submit(0, Request{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, MaxTokens: 5})
	b, _ := e.Submit(0, Request{Tokens: []uint32{9}, MaxTokens: 5})
	e.Begin(0)
	late, _ := e.Submit(0, Request{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, MaxTokens: 1})
	e.Abort(0, a)
	if s := e.Stats(); s.Running != 2 || s.KVUsage != 3.0/8 {
		t.Errorf("in the step: %d running, %v of the blocks; want 2 and 3/8", s.Running, s.KVUsage)
	}
	tokens := e.End(time.Millisecond)
	if len(tokens) != 1 || tokens[0].Seq != b {
		t.Errorf("tokens %v, want one of b", tokens)
	}
	if s := e.Stats(); s.Running != 1 || s.KVUsage != 1.0/8 || a.Finished != time.Millisecond {
		t.Errorf("after it: %d running, %v of the blocks, finished at %v; want 1, 1/8 and 1ms", s.Running, s.KVUsage, a.Finished)
	}
	e.Step(time.Millisecond)
	if late.Cached != 8 {
		t.Errorf("%d tokens of the aborted prompt found, want 8", late.Cached)
	}
}

// A trace knows its blocks by identity only; the model must behave the same.
func TestBlocksStandForTokens(t *testing.T) {
	c := Default()
	c.BlockSize, c.NumBlocks = 4, 64
	byTokens, _ := New(c)
	byBlocks, _ := New(c)
	rng := rand.New(rand.NewPCG(1, 1))
	nowT, nowB := time.Duration(0), time.Duration(0)
	for range 200 {
		n := 1 + rng.IntN(40)
		var tokens []uint32
		var blocks []uint64
		for i := range (n + 3) / 4 {
			id := uint32(i)*100 + uint32(rng.IntN(2))
			blocks = append(blocks, uint64(id))
			tokens = append(tokens, id, id, id, id)
		}
		r := Request{Tokens: tokens[:n], PromptLen: n, MaxTokens: 1 + rng.IntN(5)}
		st, err1 := byTokens.Submit(nowT, r)
		r.Tokens, r.Blocks = nil, blocks
		sb, err2 := byBlocks.Submit(nowB, r)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if rng.IntN(3) == 0 {
			for byTokens.Busy() || byBlocks.Busy() {
				took, _ := byTokens.Step(nowT)
				nowT += took
				took, _ = byBlocks.Step(nowB)
				nowB += took
			}
			if st.Cached != sb.Cached || st.Finished != sb.Finished {
				t.Fatalf("tokens: cached %d at %v; blocks: cached %d at %v", st.Cached, st.Finished, sb.Cached, sb.Finished)
			}
		}
	}
	if a, b := byTokens.Stats(), byBlocks.Stats(); a != b || a.PrefixHits == 0 {
		t.Errorf("tokens %+v\nblocks %+v", a, b)
	}
}

func TestSubmitRefuses(t *testing.T) {
	e, _ := New(Config{BlockSize: 4, NumBlocks: 2, MaxNumSeqs: 1, MaxNumBatchedTokens: 4, Timing: Default().Timing})
	for _, tt := range []struct {
		name string
		r    Request
		want string
	}{
		{"no prompt", Request{MaxTokens: 1}, "the prompt is empty"},
		{"no answer", Request{Tokens: []uint32{1}}, "max tokens must be above 0"},
		{"two lengths", Request{Tokens: []uint32{1}, PromptLen: 2, MaxTokens: 1}, "prompt length is 2"},
		{"too few blocks", Request{Blocks: []uint64{1}, PromptLen: 8, MaxTokens: 1}, "1 blocks cannot describe 8 tokens"},
		{"too long", Request{Tokens: make([]uint32, 8), MaxTokens: 2}, "do not fit"},
	} {
		_, err := e.Submit(0, tt.r)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := e.Submit(0, Request{Tokens: make([]uint32, 8), MaxTokens: 1}); err != nil {
		t.Errorf("a request of exactly the capacity, whose last token is never computed: %v", err)
	}
	if _, err := e.Submit(0, Request{Tokens: make([]uint32, 9), MaxTokens: 1}); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v, want ErrTooLong", err)
	}
}

func TestConfigValidate(t *testing.T) {
	good := Default()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	var bad Config
	err := bad.Validate()
	for _, want := range []string{"block size", "number of blocks", "number of sequences", "batched tokens", "some time"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// Random work with aborts at random moments leaves nothing behind, and is the same every time.
func TestInvariants(t *testing.T) {
	first := chaos(t, 42)
	if second := chaos(t, 42); first != second {
		t.Errorf("not deterministic:\n%+v\n%+v", first, second)
	}
	if first.Preemptions == 0 || first.Evictions == 0 || first.Aborted == 0 || first.PrefixHits == 0 {
		t.Errorf("the work does not reach everything: %+v", first)
	}
}

func chaos(t *testing.T, seed uint64) Stats {
	t.Helper()
	c := Config{BlockSize: 4, NumBlocks: 40, MaxNumSeqs: 8, MaxNumBatchedTokens: 32, MaxLoRAs: 2, Timing: Default().Timing}
	told := found{}
	c.Events = told
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	now := time.Duration(0)
	var alive []*Seq
	for i := range 20000 {
		if rng.IntN(4) == 0 && i < 19000 {
			var tokens []uint32
			for j := range 1 + rng.IntN(60) {
				tokens = append(tokens, uint32(j)+100*uint32(j/12*rng.IntN(2)))
			}
			out := make([]uint32, 1+rng.IntN(30))
			s, err := e.Submit(now, Request{Tokens: tokens, MaxTokens: len(out), Output: out, Adapter: []string{"", "a", "b", "c"}[rng.IntN(4)]})
			if err != nil {
				t.Fatal(err)
			}
			alive = append(alive, s)
		}
		took, busy := e.Begin(now)
		now += took
		if len(alive) > 0 && rng.IntN(8) == 0 {
			e.Abort(now, alive[rng.IntN(len(alive))])
		}
		if busy {
			e.End(now)
		}
		if len(alive) > 0 && rng.IntN(8) == 0 {
			e.Abort(now, alive[rng.IntN(len(alive))])
		}
		if len(alive) > 100 {
			alive = alive[50:]
		}
		if i%100 == 0 {
			check(t, e)
			told.check(t, e)
		}
	}
	for e.Busy() {
		took, _ := e.Step(now)
		now += took
	}
	check(t, e)
	told.check(t, e)
	if s := e.Stats(); s.KVUsage != 0 || !e.ResetPrefixCache() {
		t.Errorf("blocks left behind: %+v", s)
	}
	told.check(t, e)
	return e.Stats()
}

// found is what a listener to events believes: true for what can be found, false for what once could.
type found map[uint64]bool

func (f found) Stored(s *Seq, first int, parent uint64, hashes []uint64) {
	if _, ever := f[parent]; first > 0 && !ever { // it may be gone: the sequence may hold a copy that nobody finds
		panic("stored after a block that never was")
	}
	for _, h := range hashes {
		if f[h] {
			panic("stored twice")
		}
		f[h] = true
	}
}

func (f found) Removed(hash uint64) {
	if !f[hash] {
		panic("removed what was not stored")
	}
	f[hash] = false
}

func (f found) Cleared() {
	for h := range f {
		f[h] = false
	}
}

func (f found) check(t *testing.T, e *Engine) {
	t.Helper()
	now := 0
	for _, is := range f {
		if is {
			now++
		}
	}
	if now != e.cache.byHash.used {
		t.Fatalf("%d blocks were told, %d can be found", now, e.cache.byHash.used)
	}
	for _, b := range e.cache.blocks {
		if b.keyed && !f[b.hash] {
			t.Fatal("a block can be found of which nobody was told")
		}
	}
}

// check compares the block pool with what sequences hold.
func check(t *testing.T, e *Engine) {
	t.Helper()
	refs := map[int32]int32{}
	for _, s := range e.running {
		for _, id := range s.blocks {
			refs[id]++
		}
		if got, want := len(s.blocks), e.blocksFor(s.computed); got < want {
			t.Fatalf("%d tokens in %d blocks", s.computed, got)
		}
	}
	listed := 0
	for id := e.cache.head; id != none; id = e.cache.blocks[id].next {
		listed++
	}
	if listed != e.cache.listed {
		t.Fatalf("free list has %d, counted %d", listed, e.cache.listed)
	}
	for id, b := range e.cache.blocks {
		if refs[int32(id)] != b.refs {
			t.Fatalf("block %d: %d refs, %d holders", id, b.refs, refs[int32(id)])
		}
		if at, ok := e.cache.byHash.find(e.cache.blocks, b.place, b.hash); b.keyed && (!ok || at != int32(id)) {
			t.Fatalf("block %d is keyed and not found", id)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("decode-%d", n), func(b *testing.B) {
			c := Default()
			c.NumBlocks = 1 << 20
			e, err := New(c)
			if err != nil {
				b.Fatal(err)
			}
			now := time.Duration(0)
			fill := func() {
				for i := range n {
					if _, err := e.Submit(now, Request{Tokens: make([]uint32, 64+i), MaxTokens: 1 << 12}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if !e.Busy() {
					fill()
				}
				took, _ := e.Step(now)
				now += took
			}
		})
	}
}

func BenchmarkSubmit100k(b *testing.B) {
	c := Default()
	c.NumBlocks = 1 << 16
	e, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	tokens := make([]uint32, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		s, err := e.Submit(0, Request{Tokens: tokens, MaxTokens: 1})
		if err != nil {
			b.Fatal(err)
		}
		e.Abort(0, s)
	}
}

func TestStepDoesNotAllocate(t *testing.T) {
	c := Default()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for range 32 {
		if _, err := e.Submit(0, Request{Tokens: make([]uint32, 100), MaxTokens: 1000, Output: make([]uint32, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Duration(0)
	for range 100 {
		took, _ := e.Step(now)
		now += took
	}
	// The list of blocks, their hashes and the pool grow now and then.
	if n := testing.AllocsPerRun(200, func() { e.Step(now) }); n > 1 {
		t.Errorf("%v allocations per step", n)
	}
}

// TestTable holds the table against a map.
func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var table table
	known := map[uint64]int32{}
	blocks := make([]block, 300)
	for range 100_000 {
		id := int32(rng.IntN(len(blocks)))
		b := &blocks[id]
		if b.keyed {
			table.remove(b.place, id)
			delete(known, b.hash)
			b.keyed = false
			continue
		}
		hash := uint64(rng.IntN(400))<<32 | uint64(rng.IntN(40)) // many with the same place
		_, taken := known[hash]
		if table.add(blocks, uint32(hash), hash, id) == taken {
			t.Fatalf("%x: taken %t", hash, taken)
		}
		if !taken {
			b.hash, b.place, b.keyed = hash, uint32(hash), true
			known[hash] = id
		}
		look := uint64(rng.IntN(400))<<32 | uint64(rng.IntN(40))
		want, ok := known[look]
		if got, found := table.find(blocks, uint32(look), look); found != ok || ok && got != want {
			t.Fatalf("%x: got %d %t, want %d %t", look, got, found, want, ok)
		}
	}
	if table.used != len(known) {
		t.Errorf("%d used, want %d", table.used, len(known))
	}
}
