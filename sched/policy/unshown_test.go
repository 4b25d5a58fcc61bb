// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// Requests that looked a prompt up before another was placed know of it all the same; those that looked it up
// later have it from the index.
func TestRequestsAtOnceKnowOfEachOther(t *testing.T) {
	p, endpoints := Producers["approx-prefix-cache-producer"]().(*ApproxPrefixCacheProducer), someEndpoints(3)
	ask := func(text string) *sched.Cycle {
		c := &sched.Cycle{Prompt: prompt(text)}
		c.Begin(endpoints)
		p.Produce(c)
		return c
	}
	matches := func(what string, c *sched.Cycle, want ...int32) {
		t.Helper()
		p.Refresh(c)
		if got := c.Prefix("").Match; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	// A block is 64 tokens: word*320 has five.
	first, equal, longer, shorter, other := ask("word*320"), ask("word*320"), ask("word*640"), ask("word*200"), ask("text*320")
	matches("nobody was placed", first, 0, 0, 0)
	p.Reserve(first, endpoints[1])
	matches("equal", equal, 0, 5, 0)
	matches("longer", longer, 0, 5, 0)
	matches("shorter: 2 of its 4, as far as samples tell", shorter, 0, 2, 0)
	matches("another prompt", other, 0, 0, 0)
	matches("looked up before the index has it", ask("word*320"), 0, 5, 0)
	late := ask("word*320")
	p.Placed(first, endpoints[1])
	matches("looked up before the index had it", late, 0, 5, 0)
	matches("the index has it", ask("word*200"), 0, 3, 0)
	p.Reserve(equal, endpoints[2])
	matches("two endpoints", longer, 0, 5, 5)
	p.Placed(equal, endpoints[2])
	p.Gone([]*fleet.Load{endpoints[1].Load, endpoints[2].Load})
	matches("those who left and were in the index are nobody's", ask("word*320"), 0, 0, 0)
	for i := range 3 * mostUnshown {
		p.Reserve(ask(fmt.Sprint("word", i)), endpoints[0])
	}
	if len(p.unshown.places) != mostUnshown {
		t.Errorf("remembers %d placements, want %d", len(p.unshown.places), mostUnshown)
	}
	c := ask("word*320")
	if a := testing.AllocsPerRun(20, func() {
		p.Refresh(c)
		p.Reserve(c, endpoints[0])
		p.Placed(c, endpoints[0])
	}); a != 0 {
		t.Errorf("%v allocations, want 0", a)
	}
}
