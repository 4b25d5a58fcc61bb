// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
)

// What is known of a candidate goes with it when others are dropped.
func TestDropKeepsWhatIsKnownOfTheOthers(t *testing.T) {
	var all []*fleet.Endpoint
	for i := range 4 {
		all = append(all, &fleet.Endpoint{Load: &fleet.Load{Slot: uint32(i)}})
	}
	c := &Cycle{Media: func(into []uint64) []uint64 { return append(into, 7, 8) }}
	c.Begin(all)
	copy(c.AddPrefix("p").Match, []int32{1, 2, 3, 4})
	copy(c.AddEncoded("m").Match, []int32{0, 1, 0, 2})
	keep := c.Mask()
	keep[0], keep[2] = false, false
	c.Drop(FirstStage)
	if !slices.Equal(c.Candidates, []*fleet.Endpoint{all[1], all[3]}) || !slices.Equal(c.Prefix("p").Match, []int32{2, 4}) || !slices.Equal(c.Encoded("m").Match, []int32{1, 2}) {
		t.Errorf("got %v %v", c.Prefix("p").Match, c.Encoded("").Match)
	}
	if !slices.Equal(c.Items(), []uint64{7, 8}) {
		t.Errorf("got items %v", c.Items())
	}
	c.Begin(all) // another request
	c.Media = nil
	if len(c.Items()) > 0 || c.Encoded("") != nil || c.Prefix("p").Blocks > 0 {
		t.Error("what an earlier request had is still there")
	}
}

// A prompt is read once for all that ask for the same blocks.
func TestHashIsShared(t *testing.T) {
	read := 0
	c := &Cycle{Prompt: func(h *kvcache.Hasher) {
		read++
		h.Start()
		h.Write([]byte(strings.Repeat("word", 130)))
	}}
	for range 2 {
		c.Begin(nil)
		a, b := c.Hash(64, 2048), c.Hash(128, 2048)
		if c.Hash(64, 2048) != a || c.Hash(128, 2048) != b || len(a.Keys) != 3 || len(b.Keys) != 2 || a.Tokens() != 130 {
			t.Errorf("got %d and %d keys of %d tokens", len(a.Keys), len(b.Keys), a.Tokens())
		}
	}
	if read != 4 {
		t.Errorf("the prompt was read %d times, want once for each size in each request", read)
	}
}

// The default prefix is the first that others may read without its name.
func TestDefaultPrefix(t *testing.T) {
	c := &Cycle{}
	c.Begin(nil)
	c.AddPrefix("burst").ByName = true
	c.AddPrefix("approx").Blocks = 5
	if c.Prefix("").Producer != "approx" || c.Prefix("burst").Producer != "burst" || c.Prefix("none").Blocks != 0 {
		t.Errorf("got %s by default", c.Prefix("").Producer)
	}
}
