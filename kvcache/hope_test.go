// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"sync"
	"testing"
)

// Who places a request waits for nobody who writes. What it expects is written down by those, in its order, before they do anything else.
func TestExpectWaitsForNobody(t *testing.T) {
	x := NewIndex()
	keys := []uint64{1, 2, 3}
	x.mu.Lock() // as an event does
	x.Expect(keys, 0, 10, 9)
	x.Expect(keys[:2], 1, 10, 9)
	x.Unexpect(keys[1:], 0, 9)
	x.mu.Unlock()
	if n, m := x.Held(0), x.Held(1); n != 1 || m != 2 {
		t.Errorf("%d and %d blocks are expected, want 1 and 2", n, m)
	}
	x.mu.Lock()
	x.Expect(keys, 2, 10, 9)
	x.mu.Unlock()
	x.Clear(2) // which came after
	if n := x.Held(2); n != 0 {
		t.Errorf("%d blocks are expected after a clear", n)
	}

	x.mu.Lock()
	var many sync.WaitGroup
	most := make([]uint64, mostHoped/2)
	for i := range most {
		most[i] = uint64(i + 1)
	}
	for i := range 3 { // the last finds no room, and waits
		many.Go(func() { x.Expect(most, uint32(3+i), len(most), Forever) })
	}
	x.mu.Unlock()
	many.Wait()
	for i := range 3 {
		if n := x.Held(uint32(3 + i)); n != len(most) {
			t.Errorf("%d blocks of %d are expected", n, len(most))
		}
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
}

// Nothing that is left to others is forgotten, whoever comes and goes, and nothing is allocated for it in the long run.
func TestExpectBesideWriters(t *testing.T) {
	x := NewIndex()
	var all sync.WaitGroup
	for slot := range uint32(4) {
		all.Go(func() {
			for i := range uint64(500) {
				x.Expect([]uint64{uint64(slot)<<32 + i + 1}, slot, 1000, Forever)
				x.Confirm([]uint64{uint64(slot)<<32 + i + 1}, slot+4, GPU)
			}
		})
	}
	all.Wait()
	for slot := range uint32(4) {
		if n := x.Held(slot); n != 500 {
			t.Errorf("%d blocks of 500 are expected", n)
		}
	}
	if !raceEnabled {
		keys := make([]uint64, 100)
		if n := testing.AllocsPerRun(100, func() {
			x.mu.Lock()
			x.Expect(keys, 0, 1000, Forever)
			x.Unexpect(keys, 0, Forever)
			x.mu.Unlock()
			x.lock()
			x.unlock()
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
