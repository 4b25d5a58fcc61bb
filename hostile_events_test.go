// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/source/kvevents"
)

// An engine that publishes anything harms nobody but itself: memory is bounded, and what others say stays true.
func TestHostileEvents(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	honest := startEngine(t, "honest", nil)
	var out kvevents.Publisher
	front := startEngine(t, "hostile", func(o *vllm.Options, address string) {
		o.Events.Enabled, out.Topic = false, "kv@"+address+"@m"
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = out.ServeEvents(lis) })
	t.Cleanup(func() { lis.Close(); out.Close(); wg.Wait() })
	front.events = portOf(lis.Addr())

	const budget = 8 << 20
	r := rehearse(t, preciseConfig(blind, `, indexerConfig: {kvBlockIndexConfig: {costAwareMemoryConfig: {size: "8MiB"}}}`), honest, front)
	until(t, "the hostile engine to be heard", func() bool { return out.Subscribers() == 1 })
	r.settle(honest)
	prompt := r.text(100)
	for r.complete(prompt).endpoint != "honest" {
		prompt = r.text(100)
	}
	r.settle(honest)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse)
	}
	before := heap()

	seq := uint64(0)
	send := func(payload []byte) {
		out.Send(seq, payload)
		seq++
	}
	chance := rand.New(rand.NewPCG(1, 2))
	garbage := make([]byte, 1<<20)
	for i := range garbage {
		garbage[i] = byte(chance.Uint32())
	}
	send(garbage)
	send(bytes.Repeat([]byte{0x91}, 1<<20))                                    // arrays in arrays
	send([]byte{0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 255, 255, 255, 255}) // as many events as a number can say
	out.SendParts([]byte(out.Topic), []byte("short"), garbage)
	out.SendParts([]byte(out.Topic))
	out.SendParts([]byte(strings.Repeat("kv@", 1<<16)), binary.BigEndian.AppendUint64(nil, 3), garbage)
	batch := func(events ...kvevents.Event) []byte {
		p := kvevents.AppendHead(nil, 1, len(events))
		for i := range events {
			p = events[i].Append(p, kvevents.Maps)
		}
		return kvevents.AppendRank(p, 0)
	}
	block := func(hash, parent uint64, size int) kvevents.Event {
		e := kvevents.Event{Kind: kvevents.BlockStored, Hashes: []uint64{hash}, Parent: parent, HasParent: parent != 0, BlockSize: size, LoraID: -1}
		for range max(size, 0) {
			e.Tokens = append(e.Tokens, chance.Uint32())
		}
		return e
	}
	for _, size := range []int{0, 1, 7, 15, 17, 24, 1 << 13} {
		send(batch(block(chance.Uint64(), 0, size)))
	}
	short := block(1, 0, 16)
	short.Hashes = make([]uint64, 5000)
	send(batch(short))
	for range 20 { // parents that never come
		events := make([]kvevents.Event, 500)
		for i := range events {
			events[i] = block(chance.Uint64(), chance.Uint64()|1, 16)
		}
		send(batch(events...))
	}
	heard := func() {
		t.Helper()
		before := r.known(front).Counts["unknown"]
		until(t, "all to be heard that did not overflow", func() bool {
			send(batch(kvevents.Event{Kind: kvevents.BlockRemoved, Hashes: []uint64{424242}}))
			return r.known(front).Counts["unknown"] > before
		})
	}
	const each = 5000
	for range 60 { // blocks of which each is another, more than there is room for
		events := make([]kvevents.Event, each)
		for i := range events {
			events[i] = block(chance.Uint64(), 0, 16)
		}
		send(batch(events...))
		if seq%8 == 0 { // else more overflows than is heard
			heard()
		}
	}
	heard()

	v := r.page()
	grown := heap() - before
	t.Logf("%d blocks, %d bytes of %d, evicted %d, refused %d; heap grew by %d MiB; dropped %v; %v", v.Blocks, v.Bytes, v.Budget, v.Evicted, v.Refused, grown>>20, v.Dropped, r.known(front).Counts)
	if v.Bytes > budget || v.Budget != budget {
		t.Errorf("%d bytes of %d", v.Bytes, v.Budget)
	}
	if grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if len(v.Dropped) == 0 {
		t.Error("nothing was counted as left out")
	}
	if c := r.known(front).Counts; c["full"] == 0 || c["misfit"] == 0 || c["lost"]+c["orphans"] == 0 || c["missed"] == 0 {
		t.Errorf("the hostile engine's counts are %v", c)
	}
	if got := r.known(honest); got.Evidence != "events" || got.Counts["misfit"] != 0 {
		t.Errorf("the honest engine is known by %s: %v", got.Evidence, got.Counts)
	}
	r.exact("at the honest engine", r.complete(prompt))
	for range 5 {
		p := r.text(60)
		r.complete(p)
		r.settle(honest)
		r.exact("and what is new", r.complete(p))
	}
}
