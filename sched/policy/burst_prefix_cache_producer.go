// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/clock"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// BurstPrefixCacheProducer holds requests for a moment, so that those that come together and begin alike go to one
// endpoint, and each endpoint gets its share.
//
// The first request opens a window; when it closes, its requests are dealt out together: those with equal prompts
// first, then the others, longer ones before shorter. Each goes to the endpoint that was dealt the
// longest common start and has less than its fair share, else to the one that was dealt least. For the scorers that
// endpoint then holds the whole prompt and no other holds any of it. The window adds to the time to first
// token. A request without a prompt does not wait.
type BurstPrefixCacheProducer struct {
	// WindowDurationMs is how long a window is open, 1 to 10000 milliseconds.
	WindowDurationMs int `json:"windowDurationMs"`
	// MaxPerReplica is how much of a window one endpoint is dealt at most, in what balanceBy counts; -1 for no bound.
	// What is left over is dealt to nobody: the other scorers decide.
	MaxPerReplica int `json:"maxPerReplica"`
	// BlockSizeTokens is the block by which prompts are compared.
	BlockSizeTokens int `json:"blockSizeTokens"`
	// MaxPrefixTokensToMatch bounds how much of a prompt is compared; 0 for 2048 blocks.
	MaxPrefixTokensToMatch int `json:"maxPrefixTokensToMatch"`
	// MinColocateBlocks is how long a common start must be to count, for prompts that are not equal.
	MinColocateBlocks int `json:"minColocateBlocks"`
	// MaxBatchSize closes a window early that has so many requests; -1 for no bound.
	MaxBatchSize int `json:"maxBatchSize"`
	// BalanceBy is what a fair share is counted in: requests, or tokens, of which a common start counts once.
	BalanceBy string `json:"balanceBy"`

	name string
	mu   sync.Mutex
	open *window // takes requests; nil when there is none
}

// Validate reports windows that cannot be.
func (p *BurstPrefixCacheProducer) Validate() error {
	switch {
	case p.WindowDurationMs < 1 || p.WindowDurationMs > 10000:
		return errors.New("windowDurationMs: must be from 1 to 10000")
	case p.MaxPerReplica != -1 && p.MaxPerReplica < 1:
		return errors.New("maxPerReplica: must be above 0, or -1 for no bound")
	case p.BlockSizeTokens <= 0:
		return errors.New("blockSizeTokens: must be above 0")
	case p.BlockSizeTokens > mostBlockTokens:
		return errTooLarge
	case p.MaxPrefixTokensToMatch < 0:
		return errors.New("maxPrefixTokensToMatch: must not be below 0")
	case p.MinColocateBlocks < 0:
		return errors.New("minColocateBlocks: must not be below 0")
	case p.MaxBatchSize != -1 && p.MaxBatchSize < 1:
		return errors.New("maxBatchSize: must be above 0, or -1 for no bound")
	case p.BalanceBy != "requests" && p.BalanceBy != "tokens":
		return fmt.Errorf("balanceBy: want requests or tokens, got %.100q", p.BalanceBy)
	}
	return nil
}

// SetName implements [sched.Namer].
func (p *BurstPrefixCacheProducer) SetName(name string) { p.name = name }

// window is a batch of requests that wait for each other.
type window struct {
	timer clock.Timer
	done  chan struct{} // closed when all are dealt

	mu      sync.Mutex
	waiting []*waiter
}

// waiter is a request in a window. While it is not gone the window may read its keys and candidates.
type waiter struct {
	keys       []uint64
	starts     []int32
	candidates []*fleet.Endpoint
	gone       bool
	alike      int         // requests with an equal prompt, itself included
	first      int         // which of them came first
	dealt      *fleet.Load // to whom; nil for nobody
}

// Produce implements [sched.Producer]. It waits until the window closes or the caller leaves.
func (p *BurstPrefixCacheProducer) Produce(c *sched.Cycle) {
	limit := usualBlocks
	if p.MaxPrefixTokensToMatch > 0 {
		limit = max(1, p.MaxPrefixTokensToMatch/p.BlockSizeTokens)
	}
	h := c.Hash(p.BlockSizeTokens, limit)
	found := c.AddPrefix(p.name)
	found.BlockTokens, found.Blocks, found.Hash, found.ByName = p.BlockSizeTokens, len(h.Keys), h, true
	if len(h.Keys) == 0 || len(c.Candidates) == 0 {
		return
	}
	at := clock.Or(c.Clock)
	from := at.Now()
	w := &waiter{keys: h.Keys, starts: h.Starts, candidates: c.Candidates}
	batch := p.join(w, at)
	if !c.Await(batch.done) {
		batch.mu.Lock() // the window may be reading what the cycle holds
		w.gone = true
		batch.mu.Unlock()
		return
	}
	c.Now = c.Now.Add(at.Now().Sub(from))
	for i, e := range c.Candidates {
		if e.Load == w.dealt {
			found.Match[i] = int32(found.Blocks)
		}
	}
}

// join puts a request into the open window, which it opens when there is none and closes when it is full.
func (p *BurstPrefixCacheProducer) join(w *waiter, at clock.Clock) *window {
	p.mu.Lock()
	batch := p.open
	if batch == nil {
		batch = &window{done: make(chan struct{})}
		batch.timer = at.AfterFunc(time.Duration(p.WindowDurationMs)*time.Millisecond, func() { p.close(batch) })
		p.open = batch
	}
	batch.mu.Lock()
	batch.waiting = append(batch.waiting, w)
	full := p.MaxBatchSize > 0 && len(batch.waiting) >= p.MaxBatchSize
	batch.mu.Unlock()
	p.mu.Unlock()
	if full {
		p.close(batch)
	}
	return batch
}

// close deals a window's requests out, once.
func (p *BurstPrefixCacheProducer) close(batch *window) {
	p.mu.Lock()
	first := p.open == batch
	if first {
		p.open = nil
	}
	p.mu.Unlock()
	if !first {
		return
	}
	batch.timer.Stop()
	batch.mu.Lock()
	defer batch.mu.Unlock()
	p.deal(slices.DeleteFunc(batch.waiting, func(w *waiter) bool { return w.gone }))
	close(batch.done)
}

// hand is what one endpoint was dealt of a window.
type hand struct {
	endpoint *fleet.Endpoint
	slot     uint32 // in the window's index
	load     int
}

// deal chooses an endpoint for each request of a window.
func (p *BurstPrefixCacheProducer) deal(all []*waiter) {
	hands := map[*fleet.Load]*hand{}
	dealt, distinct := kvcache.NewIndex(), kvcache.NewIndex()
	for _, w := range all {
		for _, e := range w.candidates {
			if hands[e.Load] == nil {
				hands[e.Load] = &hand{endpoint: e, slot: uint32(len(hands))}
			}
		}
		distinct.Add(w.keys, 0, len(w.keys)+distinct.Held(0))
	}
	total := len(all)
	if p.BalanceBy == "tokens" {
		total = distinct.Stats().Blocks
	}
	share := (total + len(hands) - 1) / max(1, len(hands))
	var scratch kvcache.Scratch
	for _, w := range p.order(all) {
		slots, match := make([]uint32, len(w.candidates)), make([]int32, len(w.candidates))
		for i, e := range w.candidates {
			slots[i] = hands[e.Load].slot
		}
		dealt.Match(w.keys, w.starts, slots, match, &scratch)
		var to *hand
		common := int32(0) // what to was dealt of this prompt, where that counts
		for i, e := range w.candidates {
			h, m := hands[e.Load], match[i]
			if p.MaxPerReplica > 0 && h.load >= p.MaxPerReplica {
				continue
			}
			if h.load >= share || int(m) < p.MinColocateBlocks && int(m) < len(w.keys) {
				m = 0
			}
			if to == nil || m > common || m == common && h.less(to) {
				to, common = h, m
			}
		}
		if to == nil {
			continue
		}
		w.dealt = to.endpoint.Load
		if p.BalanceBy == "tokens" {
			before := dealt.Held(to.slot)
			dealt.Add(w.keys, to.slot, before+len(w.keys))
			to.load += dealt.Held(to.slot) - before
			continue
		}
		dealt.Add(w.keys, to.slot, dealt.Held(to.slot)+len(w.keys))
		to.load++
	}
}

// less orders hands by what they were dealt, the requests that their endpoints have in flight, and name.
func (h *hand) less(o *hand) bool {
	return cmp.Or(cmp.Compare(h.load, o.load), cmp.Compare(h.endpoint.Load.Requests(), o.endpoint.Load.Requests()),
		h.endpoint.ID.Compare(o.endpoint.ID), strings.Compare(h.endpoint.Address, o.endpoint.Address)) < 0
}

// order puts requests with equal prompts first and together, then the others; longer ones before shorter, and
// those that came earlier before later ones.
func (p *BurstPrefixCacheProducer) order(all []*waiter) []*waiter {
	for i, w := range all {
		w.first = i
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *waiter) int { return slices.Compare(a.keys, b.keys) })
	for from := 0; from < len(sorted); {
		to := from + 1
		for to < len(sorted) && slices.Equal(sorted[from].keys, sorted[to].keys) {
			to++
		}
		for _, w := range sorted[from:to] {
			w.alike, w.first = to-from, sorted[from].first
		}
		from = to
	}
	slices.SortStableFunc(sorted, func(a, b *waiter) int {
		alone := func(w *waiter) int { return min(w.alike, 2) }
		return cmp.Or(-cmp.Compare(alone(a), alone(b)), -cmp.Compare(len(a.keys), len(b.keys)), cmp.Compare(a.first, b.first))
	})
	return sorted
}
