// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/source/kvevents"
)

// Events of engines whose caches are full, from the wire into the index: each block of 16 tokens that is stored has
// another removed. An event is one block that came or went.
func BenchmarkKVEvents(b *testing.B) {
	const engines, cached = 8, 32_000
	for _, blocks := range []int{1, 16, 256} {
		for _, alike := range []bool{true, false} {
			b.Run(fmt.Sprintf("blocks=%d/alike=%v", blocks, alike), func(b *testing.B) {
				m := kvcache.NewMirror(1<<30, 16)
				var all [engines]*heard
				for slot := range all {
					all[slot] = &heard{follower: m.Follow(uint32(slot), 16)}
				}
				var payloads [][]byte
				for n := 0; n < 2*cached; n += blocks {
					payloads = append(payloads, batch(n, blocks, cached))
				}
				var decoded kvevents.Batch
				events := 0
				b.ReportAllocs()
				began := busy()
				for i := 0; b.Loop(); i++ {
					h := all[i/len(payloads)%engines] // goes once through its payloads, then the next one does
					if err := decoded.Decode(payloads[i%len(payloads)]); err != nil {
						b.Fatal(err)
					}
					for j := range decoded.Events {
						e := &decoded.Events[j]
						if !alike {
							for k := range e.Hashes {
								e.Hashes[k] += uint64(i/len(payloads)%engines) << 40
							}
							e.Parent += uint64(i/len(payloads)%engines) << 40
						}
						h.apply(e, 0)
						events += len(e.Hashes)
					}
				}
				b.ReportMetric(float64(events)/(busy()-began).Seconds(), "events/cpu-s")
			})
		}
	}
}

// batch is one message: blocks from the n-th on are stored in a chain, and those that make room for them removed.
func batch(n, blocks, cached int) []byte {
	hash := func(n int) uint64 { return uint64(n+1) * 0x9e3779b97f4a7c15 }
	stored := kvevents.Event{Kind: kvevents.BlockStored, BlockSize: 16, Medium: "gpu", LoraID: -1}
	removed := kvevents.Event{Kind: kvevents.BlockRemoved, Medium: "gpu"}
	if n%256 > 0 { // chains of 256
		stored.Parent, stored.HasParent = hash(n-1), true
	}
	for i := n; i < n+blocks; i++ {
		stored.Hashes = append(stored.Hashes, hash(i))
		removed.Hashes = append(removed.Hashes, hash((i+cached)%(2*cached)))
		for t := range 16 {
			stored.Tokens = append(stored.Tokens, uint32(i*31+t*7919)%128_000)
		}
	}
	all := kvevents.Batch{Time: 1, Rank: 0, Events: []kvevents.Event{stored, removed}}
	return all.Append(nil, kvevents.Maps)
}

func busy() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
