// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"bufio"
	"compress/gzip"
	"container/list"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"
)

// asks are the requests of the Mooncake conversation trace, each the ids of its blocks of 512 tokens; equal ids mean equal
// prefixes.
func asks(tb testing.TB) (list [][]uint32) {
	f, err := os.Open("../testdata/traces/mooncake_conversation.jsonl.gz")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct {
			IDs []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			tb.Fatal(err)
		}
		list = append(list, r.IDs)
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return list
}

// parts are how many blocks of 16 tokens make one of the trace.
const parts = 32

// replay is a fleet whose engines keep the least recently used blocks and tell of them.
type replay struct {
	x       *Index
	engines []*cache
	slots   []uint32
	found   []Evidence
	scratch Scratch
	hasher  Hasher
	looks   []time.Duration
	hits    int64
	asked   int64
	events  int64
	left    []int // requests each endpoint was sent, of the last so many
	recent  []int
}

type cache struct {
	*Engine
	blocks map[uint32]*list.Element
	order  list.List // most recently used first
	size   int
	stored Stored
	names  []uint64
}

func newReplay(x *Index, engines, size int) *replay {
	r := &replay{x: x, found: make([]Evidence, engines), left: make([]int, engines)}
	for slot := range uint32(engines) {
		r.slots = append(r.slots, slot)
		e := NewEngine(x, EngineOptions{Slot: slot, Model: "m", BlockTokens: 16, CellTokens: 16})
		r.engines = append(r.engines, &cache{Engine: e, blocks: map[uint32]*list.Element{}, size: size})
	}
	return r
}

func tokensOf(to []uint32, id uint32) []uint32 {
	for i := range uint32(16 * parts) {
		to = append(to, id*7919+i*31)
	}
	return to
}

func namesOf(to []uint64, id uint32) []uint64 {
	for i := range uint64(parts) {
		to = append(to, mix(uint64(id)*parts+i+1))
	}
	return to
}

// route looks a prompt up at all endpoints and sends it to the one that holds most and was not sent too many of the last
// requests.
func (r *replay) route(ids []uint32) *cache {
	var tokens []uint32
	r.hasher.ResetTokens("m", "", 16, 16, 0)
	r.hasher.Start()
	for _, id := range ids {
		tokens = tokensOf(tokens[:0], id)
		r.hasher.WriteTokens(tokens)
	}
	r.hasher.Finish()
	start := time.Now()
	r.x.Look(r.hasher.Keys, r.hasher.Starts, r.slots, r.found, &r.scratch)
	r.looks = append(r.looks, time.Since(start))
	best, most := 0, -1<<30
	for i := range r.found {
		if score := int(r.found[i].Blocks()) - 1000*r.left[i]; score > most {
			best, most = i, score
		}
	}
	r.hits += int64(r.found[best].Blocks())
	r.asked += int64(len(r.hasher.Keys))
	r.left[best]++
	if r.recent = append(r.recent, best); len(r.recent) > 2*len(r.engines) {
		r.left[r.recent[0]]--
		r.recent = r.recent[1:]
	}
	return r.engines[best]
}

// serve has an engine compute a prompt, and tell what came and what left.
func (r *replay) serve(c *cache, ids []uint32) {
	s := &c.stored
	*s = Stored{Hashes: s.Hashes[:0], Tokens: s.Tokens[:0], BlockTokens: 16}
	for i, id := range ids {
		if e := c.blocks[id]; e != nil && len(s.Hashes) == 0 {
			continue
		}
		if len(s.Hashes) == 0 && i > 0 {
			s.Parent, s.HasParent = mix(uint64(ids[i-1])*parts+parts), true
		}
		s.Hashes = namesOf(s.Hashes, id)
		s.Tokens = tokensOf(s.Tokens, id)
	}
	c.Store(s)
	r.events += int64(len(s.Hashes))
	for i := len(ids) - 1; i >= 0; i-- { // its end leaves first
		if e := c.blocks[ids[i]]; e != nil {
			c.order.MoveToFront(e)
		} else {
			c.blocks[ids[i]] = c.order.PushFront(ids[i])
		}
	}
	c.names = c.names[:0]
	for c.order.Len() > c.size {
		id := c.order.Remove(c.order.Back()).(uint32)
		delete(c.blocks, id)
		c.names = namesOf(c.names, id)
	}
	c.Remove(c.names, GPU, 0, 0)
	r.events += int64(len(c.names))
}

// What an index tells of the requests of a day of conversations is what each engine holds, block for block.
func TestReplay(t *testing.T) {
	r := newReplay(NewBoundedIndex(1<<26), 40, 60)
	requests := 1000
	if raceEnabled {
		requests = 100
	}
	for n, ids := range asks(t)[:requests] {
		if len(ids) > 60 {
			continue
		}
		c := r.route(ids)
		for i, e := range r.engines {
			want := 0
			for want < len(ids) && e.blocks[ids[want]] != nil {
				want++
			}
			if got := r.found[i].Tiers[GPU]; got != int32(want*parts) {
				t.Fatalf("request %d, endpoint %d: got %d blocks, want %d", n, i, got, want*parts)
			}
		}
		r.serve(c, ids)
	}
	if err := r.x.check(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d blocks hit, %+v", r.hits, r.asked, r.x.Stats())
}

// The conversations of an hour on a thousand endpoints: each operation is a request, looked up at all of them and computed
// by one, whose engine tells of each block of 16 tokens that came or left. With -benchtime=12031x it is the whole hour.
func BenchmarkReplay(b *testing.B) {
	const engines, size = 1000, 600 // of 512 tokens: 300k tokens in each engine
	all := asks(b)
	r := newReplay(NewBoundedIndex(1<<30), engines, size)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		ids := all[n%len(all)]
		r.serve(r.route(ids), ids)
		n++
	}
	s := r.x.Stats()
	slices.Sort(r.looks)
	b.ReportMetric(float64(r.looks[len(r.looks)/2].Nanoseconds()), "look-p50-ns")
	b.ReportMetric(float64(r.looks[len(r.looks)*99/100].Nanoseconds()), "look-p99-ns")
	b.ReportMetric(float64(r.hits)/float64(r.asked), "hit-share")
	b.ReportMetric(float64(r.asked)/float64(n), "keys/op")
	b.ReportMetric(float64(r.events)/float64(n), "events/op")
	b.ReportMetric(float64(s.Bytes)/float64(s.Blocks), "B/block")
	if s.Evicted > 0 || s.Refused > 0 {
		b.Errorf("%+v", s)
	}
}
