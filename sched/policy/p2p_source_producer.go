// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// P2PSourceProducer names a peer from which the chosen endpoint can pull cached KV blocks, in the header
// x-kv-cache-source-host-port.
//
// Sources are the endpoints whose cached part of the prompt is within one block of the largest: the part in CPU memory, from which engines
// let others read, where any says that it has some there, and else all. One is drawn with
// odds by 1/(1 + waiting requests), the same for the same request id; one whose queue is unknown counts as the
// average of the others. The header is written when the source is another endpoint than the one that
// computes and has MinCachedTokenDelta more tokens cached.
type P2PSourceProducer struct {
	// PrefixMatchInfoProducerName names who tells what is cached; empty for the default one.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// MinCachedTokenDelta is how many tokens more the source must have cached, 1 or more.
	MinCachedTokenDelta int64 `json:"minCachedTokenDelta"`
	// PrefillProfileName names the profile whose endpoint computes the prompt. It has no effect yet: it is the
	// chosen endpoint that does.
	PrefillProfileName string `json:"prefillProfileName"`
}

// kvSource is the header that names the source.
const kvSource = "x-kv-cache-source-host-port"

// Validate reports a difference that is none.
func (p *P2PSourceProducer) Validate() error {
	if p.MinCachedTokenDelta < 1 {
		return errors.New("minCachedTokenDelta: must be 1 or more")
	}
	return nil
}

// Inactive tells which parameters have no effect yet.
func (p *P2PSourceProducer) Inactive() []string {
	if p.PrefillProfileName == "prefill" {
		return nil
	}
	return []string{"prefillProfileName: accepted, not active yet: the chosen endpoint counts as the one that computes the prompt"}
}

// Produce implements [sched.Producer]. It looks at all candidates, before a profile's filters.
func (p *P2PSourceProducer) Produce(c *sched.Cycle) {
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	match := p.memory(c, found)
	best := int32(0)
	for _, m := range match {
		best = max(best, m)
	}
	if best == 0 {
		return
	}
	var waiting, known float64
	for i, e := range c.Candidates {
		if near(match[i], best) && e.Waiting.Fresh(c.Now, c.Stale) && e.Waiting.Value >= 0 {
			waiting, known = waiting+e.Waiting.Value, known+1
		}
	}
	average := waiting / max(known, 1)
	odds := func(e *fleet.Endpoint) float64 {
		if e.Waiting.Fresh(c.Now, c.Stale) && e.Waiting.Value >= 0 {
			return 1 / (1 + e.Waiting.Value)
		}
		return 1 / (1 + average)
	}
	var sum float64
	for i, e := range c.Candidates {
		if near(match[i], best) {
			sum += odds(e)
		}
	}
	at := draw(c.ID) * sum
	for i, e := range c.Candidates {
		if !near(match[i], best) {
			continue
		}
		c.Source = sched.Source{Endpoint: e, Tokens: min(int64(match[i])*int64(found.BlockTokens), c.Cached(p.PrefixMatchInfoProducerName, i))}
		if at -= odds(e); at < 0 {
			return
		}
	}
}

// memory tells what each candidate has cached in CPU memory, in blocks; what it has at all where none says so.
func (p *P2PSourceProducer) memory(c *sched.Cycle, found *sched.Prefix) []int32 {
	if found.Index == nil || found.Hash == nil || len(found.Hash.Starts) != 1 {
		return found.Match
	}
	var list []int32
	for i, e := range c.Candidates {
		if found.Match[i] == 0 {
			continue
		}
		n := found.Index.InTier(found.Hash.Keys[:found.Match[i]], e.Load.Slot, kvcache.CPU)
		if n > 0 && list == nil {
			list = make([]int32, len(c.Candidates))
		}
		if n > 0 {
			list[i] = int32(n)
		}
	}
	if list == nil {
		return found.Match
	}
	return list
}

// near reports whether a match is within one block of the best, and is one at all.
func near(match, best int32) bool { return match > 0 && match >= best-1 }

// draw makes a number from 0 up to 1 of a request's id: its FNV-1a hash of 32 bits, whose bits are then mixed
// (MurmurHash3's finalizer, Appleby), since ids that differ at the end only have neighbouring hashes.
func draw(id string) float64 {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return float64(h^h>>16) / (1 << 32)
}

// Placed implements [sched.Placer].
func (p *P2PSourceProducer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	c.Set = slices.DeleteFunc(c.Set, func(h sched.Header) bool { return h.Name == kvSource })
	from := c.Source
	if from.Endpoint == nil || from.Endpoint.Load == chosen.Load {
		return
	}
	var own int64
	for i, e := range c.Candidates {
		if e.Load == chosen.Load {
			own = c.Cached(p.PrefixMatchInfoProducerName, i)
		}
	}
	if from.Tokens-own >= p.MinCachedTokenDelta {
		c.Set = append(c.Set, sched.Header{Name: kvSource, Value: from.Endpoint.Address})
	}
}
