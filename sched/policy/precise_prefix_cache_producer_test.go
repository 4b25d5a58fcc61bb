// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// preciseRig is a producer with engines that say what they hold, in blocks of 16 tokens.
type preciseRig struct {
	t   *testing.T
	p   *PrecisePrefixCacheProducer
	e   []*fleet.Endpoint
	now time.Time
}

func newPreciseRig(t *testing.T, engines int) *preciseRig {
	r := &preciseRig{t: t, p: newPrecisePrefixCacheProducer(), now: time.Unix(1000, 0)}
	r.p.SetName("precise")
	if err := r.p.Validate(); err != nil {
		t.Fatal(err)
	}
	for i := range engines {
		r.e = append(r.e, &fleet.Endpoint{Load: &fleet.Load{Slot: uint32(i)}, Reading: fleet.Reading{BlockSize: 16, NumBlocks: 1000}})
	}
	return r
}

// tokensFrom is n tokens whose first is given.
func tokensFrom(first, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first + i)
	}
	return ids
}

// ask looks a prompt up.
func (r *preciseRig) ask(model string, prompts ...[]uint32) *sched.Cycle {
	c := &sched.Cycle{Now: r.now, Model: model}
	c.Begin(r.e)
	for _, ids := range prompts {
		c.Prompts.Starts, c.Prompts.IDs = append(c.Prompts.Starts, int32(len(c.Prompts.IDs))), append(c.Prompts.IDs, ids...)
	}
	c.Tokens = int64(len(c.Prompts.IDs))
	r.p.Produce(c)
	return c
}

// says has an engine tell that it holds a prompt's blocks.
func (r *preciseRig) says(i int, adapter string, ids []uint32) {
	r.t.Helper()
	f := r.p.Mirror().Follow(uint32(i), 16)
	if ok, _ := f.Believe(r.now); !ok {
		return
	}
	s := &kvcache.Stored{Tokens: ids[:len(ids)/16*16], BlockTokens: 16, Adapter: adapter}
	h := uint64(i+1) << 32
	for _, id := range ids {
		h = h*31 + uint64(id)
	}
	for k := range len(ids) / 16 {
		s.Hashes = append(s.Hashes, h+uint64(k))
	}
	f.Stored(s)
}

func (r *preciseRig) want(what string, c *sched.Cycle, i int, sure, expected int32) {
	r.t.Helper()
	e := c.Prefix("precise").Evidence[i]
	if e.Confirmed() != sure || e.Provisional != expected {
		r.t.Errorf("%s: %d confirmed and %d expected blocks, want %d and %d", what, e.Confirmed(), e.Provisional, sure, expected)
	}
}

func (r *preciseRig) end(c *sched.Cycle, served bool, prompt, cached int64) {
	for _, k := range c.Receipts {
		k.Settle(sched.Ending{Now: r.now, Served: served, Prompt: prompt, Cached: cached})
	}
}

func TestPromises(t *testing.T) {
	ids := tokensFrom(0, 100) // 6 blocks and a tail
	t.Run("are confirmed", func(t *testing.T) {
		r := newPreciseRig(t, 2)
		r.says(0, "", tokensFrom(9000, 16))
		c := r.ask("m", ids)
		r.want("at first", c, 0, 0, 0)
		r.p.Placed(c, r.e[0])
		r.want("promised", r.ask("m", ids), 0, 0, 6)
		r.want("to nobody else", r.ask("m", ids), 1, 0, 0)
		r.says(0, "", ids[:64])
		r.want("half told", r.ask("m", ids), 0, 4, 2)
		r.says(0, "", ids)
		r.end(c, true, 100, 0)
		r.want("told", r.ask("m", ids), 0, 6, 0)
	})
	t.Run("end with the request, a moment after", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.says(0, "", tokensFrom(8000, 16)) // the engine speaks, but not of this
		r.end(c, true, 100, 0)
		r.want("late events may come", r.ask("m", ids), 0, 0, 6)
		r.now = r.now.Add(lateEvents)
		r.p.late(r.now)
		r.want("then", r.ask("m", ids), 0, 0, 0)
	})
	t.Run("end at once with a request that was not served", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.end(c, false, -1, -1)
		r.want("failed", r.ask("m", ids), 0, 0, 0)
	})
	t.Run("move with the request", func(t *testing.T) {
		r := newPreciseRig(t, 2)
		r.says(0, "", tokensFrom(9000, 16))
		r.says(1, "", tokensFrom(9000, 16))
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.p.Placed(c, r.e[1])
		if len(c.Receipts) != 1 {
			t.Fatalf("%d receipts", len(c.Receipts))
		}
		after := r.ask("m", ids)
		r.want("the first", after, 0, 0, 0)
		r.want("the second", after, 1, 0, 6)
	})
	t.Run("end by themselves", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		r.p.Placed(r.ask("m", ids), r.e[0])
		r.now = r.now.Add(usualPromise + 2*time.Second)
		r.want("after a minute", r.ask("m", ids), 0, 0, 0)
	})
	t.Run("are kept for what the engine reports as cached", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.says(0, "", tokensFrom(8000, 16))
		r.end(c, true, 100, 48) // it held three blocks of before we listened
		r.now = r.now.Add(usualPromise * 2)
		r.p.late(r.now)
		r.want("later", r.ask("m", ids), 0, 0, 3)
	})
	t.Run("turned off", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		off := false
		r.p.SpeculativeIndexing = &off
		r.says(0, "", tokensFrom(9000, 16))
		r.p.Placed(r.ask("m", ids), r.e[0])
		r.want("nothing is promised", r.ask("m", ids), 0, 0, 0)
	})
}

// Where an engine's word is not to be had, what it was sent is remembered.
func TestWithoutEvents(t *testing.T) {
	ids := tokensFrom(0, 100)
	later := func(r *preciseRig) { r.now = r.now.Add(time.Hour); r.p.late(r.now) }
	t.Run("one that never published", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.end(c, true, 100, 0)
		later(r)
		r.want("remembered", r.ask("m", ids), 0, 0, 6)
	})
	t.Run("one that is disconnected", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", ids[:32])
		r.p.Mirror().Of(0).Connected(func() bool { return false })
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.end(c, true, 100, 32)
		later(r)
		r.want("remembered", r.ask("m", ids), 0, 2, 4)
	})
	t.Run("one that fell silent", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		for i := range 3 {
			c := r.ask("m", tokensFrom(1000*(i+1), 100))
			r.p.Placed(c, r.e[0])
			r.end(c, true, 100, -1)
			later(r)
		}
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.end(c, true, 100, 0)
		later(r)
		r.want("remembered", r.ask("m", ids), 0, 0, 6)
		r.says(0, "", tokensFrom(7000, 16))
		c = r.ask("m", tokensFrom(5000, 100))
		r.p.Placed(c, r.e[0])
		r.says(0, "", tokensFrom(7100, 16))
		r.end(c, true, 100, 0)
		later(r)
		r.want("not when it speaks again", r.ask("m", tokensFrom(5000, 100)), 0, 0, 0)
	})
	t.Run("one that was asked to compute it all", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", ids)
		for range 20 {
			c := r.ask("m", ids)
			c.Recomputes = true
			if got := c.Cached("precise", 0); got != 0 {
				t.Errorf("%d tokens predicted", got)
			}
			r.p.Placed(c, r.e[0])
			r.end(c, true, 100, 0)
		}
		if r.p.Mirror().Of(0).Muted(r.now) {
			t.Error("it is not believed")
		}
		r.want("all is still known", r.ask("m", ids), 0, 6, 0)
	})
	t.Run("one that was asked several prompts", func(t *testing.T) { // and says what it had of the last
		r := newPreciseRig(t, 1)
		r.says(0, "", tokensFrom(9000, 16))
		c := r.ask("m", ids, tokensFrom(2000, 100))
		r.p.Placed(c, r.e[0])
		r.end(c, true, 200, 96)
		r.says(0, "", tokensFrom(8000, 16)) // the engine speaks, but not of this
		r.p.late(r.now.Add(lateEvents))
		r.want("the first is no longer expected", r.ask("m", ids), 0, 0, 0)
	})
	t.Run("one that is wrong", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		for i := range 8 { // it says that it holds prompts, and reports that it computed them
			p := tokensFrom(1000*(i+1), 100)
			r.says(0, "", p)
			c := r.ask("m", p)
			r.want("said", c, 0, 6, 0)
			r.p.Placed(c, r.e[0])
			r.end(c, true, 100, 0)
		}
		f := r.p.Mirror().Of(0)
		if !f.Muted(r.now) {
			t.Fatal("it is still believed")
		}
		r.want("all is forgotten", r.ask("m", tokensFrom(1000, 100)), 0, 0, 0)
		c := r.ask("m", ids)
		r.p.Placed(c, r.e[0])
		r.end(c, true, 100, 0)
		later2 := r.now.Add(30 * time.Second)
		r.p.late(later2)
		r.want("remembered by what was sent", r.ask("m", ids), 0, 0, 6)
		r.says(0, "", tokensFrom(3000, 32))
		r.want("its word does not count", r.ask("m", tokensFrom(3000, 40)), 0, 0, 0)
		r.now = r.now.Add(2 * time.Minute)
		if ok, again := f.Believe(r.now); !ok || !again {
			t.Errorf("after a while: believed %t, asked again for what it holds %t", ok, again)
		}
	})
	t.Run("a prompt that nobody tokenised", func(t *testing.T) {
		r := newPreciseRig(t, 1)
		r.says(0, "", ids)
		ask := func() *sched.Cycle {
			c := &sched.Cycle{Now: r.now, Model: "m", Prompt: func(h *kvcache.Hasher) {
				h.Start()
				h.Write([]byte(strings.Repeat("word", 200)))
			}}
			c.Begin(r.e)
			r.p.Produce(c)
			return c
		}
		c := ask()
		r.p.Placed(c, r.e[0])
		r.end(c, true, -1, -1)
		later(r)
		r.want("remembered as text, in blocks of 64", ask(), 0, 0, 4)
	})
}

// What an engine announces again and again (a client may have it do so) is believed until it had to compute it once.
func TestAnnouncedAgain(t *testing.T) {
	r := newPreciseRig(t, 1)
	ids := tokensFrom(0, 100) // 6 blocks and a tail
	for range 5 {
		r.says(0, "", ids)
	}
	f := r.p.Mirror().Of(0)
	leaves := func(first, last int) {
		h := uint64(1) << 32
		for _, id := range ids {
			h = h*31 + uint64(id)
		}
		var gone []uint64
		for k := first; k < last; k++ {
			gone = append(gone, h+uint64(k))
		}
		f.Removed(gone, kvcache.GPU, 0, 0)
	}
	leaves(2, 6)
	c := r.ask("m", ids)
	r.want("when all but two left", c, 0, 6, 0)
	r.p.Placed(c, r.e[0])
	r.says(0, "", ids) // it computes four
	r.end(c, true, 100, 32)
	r.want("computed", r.ask("m", ids), 0, 6, 0)
	leaves(2, 6)
	r.want("when they left again", r.ask("m", ids), 0, 2, 0)

	for range 5 { // who reads nothing from the cache proves nothing
		r.says(0, "", ids)
	}
	c = &sched.Cycle{Now: r.now, Model: "m", Recomputes: true}
	c.Begin(r.e)
	c.Prompts.Starts, c.Prompts.IDs, c.Tokens = []int32{0}, ids, 100
	r.p.Produce(c)
	r.p.Placed(c, r.e[0])
	r.says(0, "", ids)
	r.end(c, true, 100, 0)
	leaves(2, 6)
	r.want("one of many left", r.ask("m", ids), 0, 6, 0)
}

func TestAdapterKeys(t *testing.T) {
	r := newPreciseRig(t, 2)
	ids := tokensFrom(0, 100)
	r.says(0, "", ids)
	r.want("its own model, by any name", r.ask("m", ids), 0, 6, 0)
	r.e[1].Tuned = []string{"lora"} // which its list of models tells
	r.want("an adapter has other blocks", r.ask("lora", ids), 0, 0, 0)
	r.says(0, "other", ids)
	r.want("an adapter that events named", r.ask("other", ids), 0, 6, 0)
}

// A block that ends with the prompt is never read from the cache: its last token is computed.
func TestLastToken(t *testing.T) {
	r := newPreciseRig(t, 1)
	ids := tokensFrom(0, 96)
	r.says(0, "", ids)
	c := r.ask("m", ids)
	r.want("all but the last block", c, 0, 5, 0)
	if got := c.Cached("precise", 0); got != 80 {
		t.Errorf("%d tokens cached, want 80", got)
	}
	c = r.ask("m", append(ids[:96:96], 7))
	if got := c.Cached("", 0); got != 96 {
		t.Errorf("%d tokens cached of one token more, want 96", got)
	}
}

func TestTierWorth(t *testing.T) {
	r := newPreciseRig(t, 1)
	ids := tokensFrom(0, 64+1)
	r.says(0, "", ids[:32])
	f := r.p.Mirror().Of(0)
	f.Stored(&kvcache.Stored{Hashes: []uint64{1, 2, 3, 4}, Tokens: ids[:64], BlockTokens: 16, Tier: kvcache.CPU})
	found := r.ask("m", ids).Prefix("")
	if e := found.Evidence[0]; e.Tiers != [3]int32{2, 2, 0} {
		t.Fatalf("evidence %+v", e)
	}
	if got := found.Share(0); got != (2+2*0.8)/4 {
		t.Errorf("share %v, want 0.9", got)
	}
}

func TestIncarnationsDoNotInherit(t *testing.T) {
	r := newPreciseRig(t, 1)
	ids := tokensFrom(0, 100)
	r.says(0, "", ids)
	old := r.p.Mirror().Of(0)
	r.p.Gone([]*fleet.Load{r.e[0].Load})
	old.Stored(&kvcache.Stored{Hashes: []uint64{1}, Tokens: ids[:16], BlockTokens: 16}) // late
	r.want("its slot is clean", r.ask("m", ids), 0, 0, 0)
}

// A producer has one index from its making on, unless its parameters want another; what is found in memory is a source for peers, whatever the
// GPU has.
func TestSourceIsInMemory(t *testing.T) {
	r := newPreciseRig(t, 3)
	mirror := r.p.Mirror()
	if err := r.p.Validate(); err != nil || r.p.Mirror() != mirror {
		t.Errorf("another index: %v", err)
	}
	ids := tokensFrom(0, 100) // 6 blocks and a tail
	p := &P2PSourceProducer{MinCachedTokenDelta: 1}
	source := func() (at int, tokens int64) {
		c := r.ask("m", ids)
		p.Produce(c)
		for i, e := range r.e {
			if e == c.Source.Endpoint {
				return i, c.Source.Tokens
			}
		}
		return -1, 0
	}
	if at, _ := source(); at >= 0 {
		t.Errorf("%d is a source of nothing", at)
	}
	r.says(0, "", ids)
	r.says(1, "", ids[:64])
	if at, n := source(); at != 0 || n != 96 {
		t.Errorf("nobody tells of memory: %d is the source of %d tokens, want 0 of 96", at, n)
	}
	f := r.p.Mirror().Of(1)
	h := uint64(2) << 32
	for _, id := range ids[:64] {
		h = h*31 + uint64(id)
	}
	f.Stored(&kvcache.Stored{Hashes: []uint64{h, h + 1, h + 2}, BlockTokens: 16, Tier: kvcache.CPU}) // beside the GPU
	if at, n := source(); at != 1 || n != 48 {
		t.Errorf("%d is the source of %d tokens, want 1 of 48", at, n)
	}
	f.Removed([]uint64{h, h + 1, h + 2}, kvcache.GPU, 0, 0)
	if at, n := source(); at != 1 || n != 48 {
		t.Errorf("in memory alone: %d is the source of %d tokens, want 1 of 48", at, n)
	}
	f.Removed([]uint64{h + 1}, kvcache.CPU, 0, 0)
	if at, n := source(); at != 1 || n != 16 {
		t.Errorf("with a gap: %d is the source of %d tokens, want 1 of 16", at, n)
	}
}

func TestKVParameters(t *testing.T) {
	for _, k := range []struct{ what, want string }{
		{`{"tokenProcessorConfig": {"blockSizeTokens": -1}}`, "tokenProcessorConfig.blockSizeTokens: must be above 0, or 0 for the engines' own"},
		{`{"tokenProcessorConfig": {"blockSizeTokens": 99999}}`, "tokenProcessorConfig.blockSizeTokens: must not be above 16384"},
		{`{"tokenProcessorConfig": {"hashAlgorithm": "md5"}}`, `tokenProcessorConfig.hashAlgorithm: want cbor-fnv or xxh64, got "md5"`},
		{`{"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "2 parsecs"}}}}`, `indexerConfig.kvBlockIndexConfig.costAwareMemoryConfig.size: want a number of bytes such as 2GiB, got "2 parsecs"`},
		{`{"indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {"address": "x"}}}}`, "indexerConfig.kvBlockIndexConfig.redisConfig: an index in Redis is not supported: the index is in memory"},
		{`{"indexerConfig": {"kvCacheBackendConfigs": [{"name": "tape", "weight": 2}]}}`, "indexerConfig.kvCacheBackendConfigs[0].weight: must be between 0 and 1"},
		{`{"indexerConfig": {"tokenizersPoolConfig": {}}}`, "indexerConfig.tokenizersPoolConfig: belongs to token-producer: want its parameter local or vllm"},
		{`{"kvEventsConfig": {"zmqEndpoint": "5557"}}`, `kvEventsConfig.zmqEndpoint: want tcp://HOST:PORT, with * for all addresses of this machine, got "5557"`},
		{`{"kvEventsConfig": {"engineType": "trt"}}`, `kvEventsConfig.engineType: want vllm or sglang, got "trt"`},
		{`{"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": 70000}}}`, "kvEventsConfig.podDiscoveryConfig.socketPort: want a port, 1 to 65535, got 70000"},
		{`{"speculativeTTL": "soon"}`, `speculativeTTL: want a duration up to 1h, such as 2s, got "soon"`},
		{`{"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "2GiB"}}}, "speculativeTTL": "2s"}`, ""},
	} {
		_, err := Producers.New("precise-prefix-cache-producer", func(v any) error { return json.Unmarshal([]byte(k.what), v) })
		if got := text(err); !strings.HasSuffix(got, k.want) || k.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", k.what, got, k.want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
