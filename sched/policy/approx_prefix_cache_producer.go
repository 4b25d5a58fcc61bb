// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"sync/atomic"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// ApproxPrefixCacheProducer remembers which prompts were sent where and tells how much of a new
// prompt each endpoint should still hold.
//
// It knows only what passed here: an engine that evicts early or restarts is not noticed.
type ApproxPrefixCacheProducer struct {
	// AutoTune takes the block size and the capacity from what the engines say of themselves.
	AutoTune bool `json:"autoTune"`
	// BlockSizeTokens is the block size without AutoTune or before an engine told; at least 64 is used.
	BlockSizeTokens int `json:"blockSizeTokens"`
	// BlockSize is the deprecated block size in characters.
	BlockSize int `json:"blockSize"`
	// MaxPrefixTokensToMatch bounds how much of a prompt is looked at; 0 leaves it to MaxPrefixBlocksToMatch.
	MaxPrefixTokensToMatch int `json:"maxPrefixTokensToMatch"`
	// MaxPrefixBlocksToMatch is the bound in blocks when there is none in tokens; 0 for no bound.
	MaxPrefixBlocksToMatch int `json:"maxPrefixBlocksToMatch"`
	// LRUCapacityPerServer is how many blocks are remembered per endpoint when the engine does not tell.
	LRUCapacityPerServer int `json:"lruCapacityPerServer"`

	name  string
	index atomic.Pointer[kvcache.Index]
}

// SetName implements [sched.Namer].
func (p *ApproxPrefixCacheProducer) SetName(name string) { p.name = name }

// Validate reports sizes that cannot be.
func (p *ApproxPrefixCacheProducer) Validate() error {
	if p.BlockSizeTokens <= 0 && p.BlockSize > 0 {
		p.BlockSizeTokens = max(1, p.BlockSize/kvcache.TokenBytes)
	}
	switch {
	case !p.AutoTune && p.BlockSizeTokens <= 0:
		return errors.New("blockSizeTokens: must be above 0 when autoTune is false")
	case p.MaxPrefixTokensToMatch < 0 || p.MaxPrefixBlocksToMatch < 0:
		return errors.New("maxPrefixTokensToMatch and maxPrefixBlocksToMatch: must not be below 0")
	case p.LRUCapacityPerServer <= 0:
		return errors.New("lruCapacityPerServer: must be above 0")
	}
	return nil
}

// Produce implements [sched.Producer]. The block size is the largest that a candidate's engine
// tells, so that it does not depend on their order.
func (p *ApproxPrefixCacheProducer) Produce(c *sched.Cycle) {
	block := max(p.BlockSizeTokens, kvcache.MinBlockTokens)
	if p.AutoTune {
		told := 0
		for _, e := range c.Candidates {
			told = max(told, e.BlockSize)
		}
		if told > 0 {
			block = max(told, kvcache.MinBlockTokens)
		}
	}
	limit := p.MaxPrefixBlocksToMatch
	if p.MaxPrefixTokensToMatch > 0 {
		limit = max(1, p.MaxPrefixTokensToMatch/block)
	}
	c.Hasher.Reset(c.Model, c.Salt, block, limit)
	if c.Prompt != nil {
		c.Prompt(&c.Hasher)
	}
	c.Tokens = c.Hasher.Finish()
	found := c.AddPrefix(p.name)
	found.BlockTokens = block
	c.LookUp(p.cache(c), found)
}

// Placed implements [sched.Placer].
func (p *ApproxPrefixCacheProducer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	x := p.cache(c)
	x.Add(c.Hasher.Keys, chosen.Load.Slot)
	if chosen.Load.Ended() { // it left meanwhile, and Gone may have come first: the slot must be clean for another
		x.Clear(chosen.Load.Slot)
	}
}

// Gone implements [sched.Leaver].
func (p *ApproxPrefixCacheProducer) Gone(loads []*fleet.Load) {
	if x := p.index.Load(); x != nil {
		for _, l := range loads {
			x.Clear(l.Slot)
		}
	}
}

// cache makes the index at the first request, when the engines may have told their size.
func (p *ApproxPrefixCacheProducer) cache(c *sched.Cycle) *kvcache.Index {
	if x := p.index.Load(); x != nil {
		return x
	}
	capacity := p.LRUCapacityPerServer
	if p.AutoTune {
		told := 0
		for _, e := range c.Candidates {
			if e.BlockSize > 0 {
				told = max(told, e.NumBlocks*e.BlockSize/max(e.BlockSize, kvcache.MinBlockTokens))
			}
		}
		if told > 0 {
			capacity = told
		}
	}
	p.index.CompareAndSwap(nil, kvcache.NewIndex(capacity))
	return p.index.Load()
}
