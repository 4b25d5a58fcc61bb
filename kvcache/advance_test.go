// SPDX-License-Identifier: Apache-2.0

package kvcache

import "testing"

// Lookups tell the time, and must not wait for those who write.
func TestAdvanceWaitsForNobody(t *testing.T) {
	x := NewIndex()
	x.Expect([]uint64{1, 2}, 0, 10, 3)
	x.mu.Lock() // as an event does
	x.Advance(3)
	x.mu.Unlock()
	if n := x.Held(0); n != 2 {
		t.Fatalf("%d blocks are held while others write, want 2", n)
	}
	x.Expect([]uint64{7}, 0, 10, 9)
	if n, s := x.Held(0), x.Stats(); n != 1 || s.Expired != 2 {
		t.Errorf("%d blocks are held and %d expired, want 1 and 2", n, s.Expired)
	}
	x.Advance(1) // it does not go back
	x.Advance(9)
	if n := x.Held(0); n != 0 {
		t.Errorf("%d blocks are held at the end", n)
	}
}
