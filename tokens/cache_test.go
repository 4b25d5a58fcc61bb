// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// TestSegmentsAreBounded fills a cache of 256 KiB many times over: its sum never passes the budget, what is there is right,
// and what is used often stays.
func TestSegmentsAreBounded(t *testing.T) {
	var c segments
	const budget = 256 << 10
	c.init(budget)
	ids := func(n int) []uint32 {
		out := make([]uint32, n%200)
		for i := range out {
			out[i] = uint32(n + i)
		}
		return out
	}
	often := c.key("often", false)
	c.put(often, ids(7))
	for n := range 20000 {
		k := c.key(fmt.Sprint("text ", n), n%2 == 0)
		c.put(k, ids(n))
		if n%50 == 0 {
			if got, ok := c.get(k, nil); !ok || !slices.Equal(got, ids(n)) {
				t.Fatalf("%d: got %v", n, got)
			}
		}
		if got, ok := c.get(often, nil); !ok || !slices.Equal(got, ids(7)) {
			t.Fatalf("%d: what is used often is gone", n)
		}
	}
	held, counted := 0, 0
	for i := range c.shards {
		s := &c.shards[i]
		held += s.bytes
		if s.bytes > budget/len(c.shards) || len(s.known) != len(s.ring) {
			t.Errorf("shard %d: %d bytes, %d known, %d in the ring", i, s.bytes, len(s.known), len(s.ring))
		}
		for _, e := range s.known {
			counted += segmentCost + 4*len(e.ids)
		}
	}
	if held != counted || held < budget/2 {
		t.Errorf("%d bytes are counted, %d are held", held, counted)
	}
	big := c.key("big", false)
	c.put(big, make([]uint32, budget))
	if _, ok := c.get(big, nil); ok {
		t.Error("what is larger than a shard was taken")
	}
}

// TestReadAgain reads a conversation turn by turn, in many goroutines: what is remembered is what is read afresh, and a
// prompt that was seen costs a few allocations, however long it is.
func TestReadAgain(t *testing.T) {
	m, fresh := benchModel(t), benchModel(t)
	fresh.tok.cache.init(0)
	var want [20][]uint32
	for turn := range want {
		var p Prompts
		if err := fresh.Read("chat", chatBody(turn, 20), &p); err != nil {
			t.Fatal(err)
		}
		want[turn] = p.IDs
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var p Prompts
			for turn := range want {
				p.Reset()
				if err := m.Read("chat", chatBody(turn, 20), &p); err != nil {
					t.Error(err)
				} else if !slices.Equal(p.IDs, want[turn]) {
					t.Errorf("turn %d: what is remembered differs", turn)
				}
			}
		})
	}
	wg.Wait()
	var p Prompts
	body := []byte(`{"prompt":"` + prose(2000, 1) + `"}`)
	read := func() {
		p.Reset()
		if err := m.Read("completions", body, &p); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(20, read); n > 8 {
		t.Errorf("%v allocations for a prompt that was seen", n)
	}
}
