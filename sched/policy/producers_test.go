// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// prompt is a prompt written as text*times, several with +.
func prompt(text string) sched.Prompt {
	return func(h *kvcache.Hasher) {
		for one := range strings.SplitSeq(text, "+") {
			word, times, _ := strings.Cut(one, "*")
			n, _ := strconv.Atoi(times)
			h.Start()
			h.Write([]byte(strings.Repeat(word, max(n, 1))))
		}
	}
}

func media(names []string) func([]uint64) []uint64 {
	return func(into []uint64) []uint64 {
		for _, n := range names {
			h := fnv.New64a()
			_, _ = h.Write([]byte(n))
			into = append(into, h.Sum64())
		}
		return into
	}
}

// produce runs a producer and tells what is known then: tokens, and for each candidate the match of the
// producer's prefix, the media it has encoded, and the work that the request brings.
func (s *scenario) produce(t *testing.T, d *datadriven.TestData) string {
	p, err := made(t, s, Producers, d)
	if err != nil {
		return err.Error() + "\n"
	}
	if !slices.Contains(s.producers, p) {
		s.producers = append(s.producers, p)
	}
	var by string
	d.ScanArgs(t, "by", &by)
	c := s.cycle()
	var b strings.Builder
	fmt.Fprintf(&b, "tokens %d\n", c.Tokens)
	for i, e := range c.Candidates {
		b.WriteString(e.Name)
		for _, f := range c.Prefixes {
			if f.Producer == by {
				fmt.Fprintf(&b, " match=%d/%d×%d", f.Match[i], f.Blocks, f.BlockTokens)
			}
		}
		if m := c.Encoded(by); m != nil {
			fmt.Fprintf(&b, " encoded=%d/%d", m.Match[i], len(c.Items()))
		}
		prefill, output := c.Work(i)
		fmt.Fprintf(&b, " work=%d+%d\n", prefill, output)
	}
	if f := c.Source; f.Endpoint != nil {
		fmt.Fprintf(&b, "source %s %d\n", f.Endpoint.Name, f.Tokens)
	}
	if n, ok := p.(interface{ Inactive() []string }); ok {
		for _, line := range n.Inactive() {
			fmt.Fprintln(&b, line)
		}
	}
	return b.String()
}

// sent tells that the request went to an endpoint, and to its pick before it.
func (s *scenario) sent(to, pick *fleet.Endpoint) string {
	c := s.cycle()
	c.Order = append(c.Order, slices.Index(c.Candidates, pick))
	told := []any{s.plugins[s.last]}
	for _, p := range s.producers {
		if any(p) != told[0] {
			told = append(told, p)
		}
	}
	for _, p := range told {
		if w, ok := p.(sched.Placer); ok {
			w.Placed(c, to)
		}
	}
	var b strings.Builder
	for _, h := range c.Set {
		fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
	}
	return b.String()
}

func (s *scenario) gone(e *fleet.Endpoint) {
	told := []any{s.plugins[s.last]}
	for _, p := range s.producers {
		told = append(told, p)
	}
	for _, p := range told {
		if w, ok := p.(sched.Leaver); ok {
			w.Gone([]*fleet.Load{e.Load})
		}
	}
}

// Producers take no candidates, no prompt and no memory once they are warm.
func TestProducerLaws(t *testing.T) {
	for _, name := range Producers.Names() {
		if name == "burst-prefix-cache-producer" { // which waits
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := Producers[name]()
			if n, ok := p.(sched.Namer); ok {
				n.SetName(name)
			}
			c := &sched.Cycle{Headers: headers{}}
			c.Begin(nil)
			p.Produce(c)
			var endpoints []*fleet.Endpoint
			for i := range 20 {
				endpoints = append(endpoints, &fleet.Endpoint{Load: &fleet.Load{Slot: uint32(i)}})
			}
			c.Media = func(into []uint64) []uint64 { return append(into, 1, 2) }
			text := []byte(strings.Repeat("word", 1000))
			c.Prompt = func(h *kvcache.Hasher) {
				h.Start()
				h.Write(text)
			}
			if a := testing.AllocsPerRun(20, func() {
				c.Begin(endpoints)
				p.Produce(c)
				if w, ok := p.(sched.Placer); ok {
					w.Placed(c, endpoints[0])
				}
				for _, r := range c.Receipts {
					r.Settle(sched.Ending{Served: true, Prompt: -1, Cached: -1})
				}
			}); a != 0 {
				t.Errorf("%v allocations, want 0", a)
			}
		})
	}
}

// An approximate match of a prompt of 195k tokens over 100 endpoints, of which some hold all that is looked at.
func BenchmarkApproxMatch(b *testing.B) {
	text := []byte(strings.Repeat("0123456789abcdef", 800<<10/16))
	for _, holders := range []int{1, 10} {
		b.Run(fmt.Sprintf("800_KiB_100_endpoints_%d_hold_it", holders), func(b *testing.B) {
			p := Producers["approx-prefix-cache-producer"]()
			var endpoints []*fleet.Endpoint
			for i := range 100 {
				endpoints = append(endpoints, &fleet.Endpoint{Load: &fleet.Load{Slot: uint32(i)}})
			}
			c := &sched.Cycle{Model: "m"}
			c.Prompt = func(h *kvcache.Hasher) {
				h.Start()
				for piece := range slices.Chunk(text, 64<<10) {
					h.Write(piece)
				}
			}
			produce := func() {
				c.Begin(endpoints)
				p.Produce(c)
			}
			produce()
			for _, e := range endpoints[:holders] {
				p.(sched.Placer).Placed(c, e)
			}
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				produce()
			}
		})
	}
}
