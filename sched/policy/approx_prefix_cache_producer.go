// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// ApproxPrefixCacheProducer remembers which prompts were sent where and tells how much of a new
// prompt each endpoint should still hold, from its start and without a gap.
//
// It knows only what passed here: an engine that evicts early or restarts is not noticed.
type ApproxPrefixCacheProducer struct {
	// AutoTune takes the block size and each endpoint's capacity from what the engines say of themselves.
	AutoTune bool `json:"autoTune"`
	// BlockSizeTokens is the block size without AutoTune or before an engine told; at least 64 is used.
	BlockSizeTokens int `json:"blockSizeTokens"`
	// BlockSize is the deprecated block size in characters.
	BlockSize int `json:"blockSize"`
	// MaxPrefixTokensToMatch bounds how much of a prompt is looked at; 0 leaves it to MaxPrefixBlocksToMatch.
	MaxPrefixTokensToMatch int `json:"maxPrefixTokensToMatch"`
	// MaxPrefixBlocksToMatch is the bound in blocks when there is none in tokens; 0 for no bound.
	MaxPrefixBlocksToMatch int `json:"maxPrefixBlocksToMatch"`
	// LRUCapacityPerServer is how many blocks are remembered of an endpoint whose engine does not tell.
	LRUCapacityPerServer int `json:"lruCapacityPerServer"`

	promoted bool // BlockSize gave BlockSizeTokens
	name     string
	index    *kvcache.Index
	unshown  *unshown
}

func newApproxPrefixCacheProducer() ApproxPrefixCacheProducer {
	return ApproxPrefixCacheProducer{
		AutoTune: true, BlockSizeTokens: 16, MaxPrefixTokensToMatch: 131072,
		MaxPrefixBlocksToMatch: 2048, LRUCapacityPerServer: usualCapacity, index: kvcache.NewIndex(), unshown: new(unshown),
	}
}

// SetName implements [sched.Namer].
func (p *ApproxPrefixCacheProducer) SetName(name string) { p.name = name }

// Validate reports sizes that cannot be.
func (p *ApproxPrefixCacheProducer) Validate() error {
	if p.BlockSizeTokens <= 0 && p.BlockSize > 0 {
		p.BlockSizeTokens, p.promoted = max(1, p.BlockSize/kvcache.TokenBytes), true
	}
	switch {
	case !p.AutoTune && p.BlockSizeTokens <= 0:
		return errors.New("blockSizeTokens: must be above 0 when autoTune is false")
	case p.BlockSizeTokens > mostBlockTokens:
		return errTooLarge
	case p.MaxPrefixTokensToMatch < 0 || p.MaxPrefixBlocksToMatch < 0:
		return errors.New("maxPrefixTokensToMatch and maxPrefixBlocksToMatch: must not be below 0")
	case p.LRUCapacityPerServer <= 0:
		return errors.New("lruCapacityPerServer: must be above 0")
	}
	return nil
}

// Inactive tells of the deprecated block size.
func (p *ApproxPrefixCacheProducer) Inactive() []string {
	switch tokens := max(1, p.BlockSize/kvcache.TokenBytes); {
	case p.BlockSize <= 0:
		return nil
	case p.promoted:
		return []string{fmt.Sprintf("blockSize: is deprecated: write blockSizeTokens: %d", tokens)}
	default:
		return []string{fmt.Sprintf("blockSize: is deprecated and has no effect beside blockSizeTokens, whose default is 16: write blockSizeTokens: %d if it is meant", tokens)}
	}
}

// Bounds on what engines and configurations may say: a block of 16,384 tokens, and 1,048,576 blocks of an endpoint,
// which is 67 million tokens and 45 MiB.
const (
	mostBlockTokens = 1 << 14
	mostBlocks      = 1 << 20
)

var errTooLarge = errors.New("blockSizeTokens: must not be above 16384")

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
			block = min(max(told, kvcache.MinBlockTokens), mostBlockTokens)
		}
	}
	limit := p.MaxPrefixBlocksToMatch
	if p.MaxPrefixTokensToMatch > 0 {
		limit = max(1, p.MaxPrefixTokensToMatch/block)
	}
	var h *kvcache.Hasher
	if c.Tokenized() {
		h = c.HashTokens(block, block, limit, c.Model)
	} else {
		h = c.Hash(block, limit)
	}
	if c.Tokens == 0 {
		c.Tokens = h.Tokens()
	}
	found := c.AddPrefix(p.name)
	found.BlockTokens, found.Asked = block, p.unshown.now()
	c.LookUp(p.index, h, found)
}

// Refresh implements [sched.Reserver].
func (p *ApproxPrefixCacheProducer) Refresh(c *sched.Cycle) { p.unshown.refresh(c, c.Prefix(p.name)) }

// Reserve implements [sched.Reserver].
func (p *ApproxPrefixCacheProducer) Reserve(c *sched.Cycle, chosen *fleet.Endpoint) {
	p.unshown.reserve(c.Prefix(p.name), chosen.Load)
}

// Placed implements [sched.Placer].
func (p *ApproxPrefixCacheProducer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	found := c.Prefix(p.name)
	if found.Hash == nil {
		return
	}
	p.index.Add(found.Hash.Keys, chosen.Load.Slot, p.capacity(chosen, found.BlockTokens))
	if chosen.Load.Ended() { // it left meanwhile, and Gone may have come first: the slot must be clean for another
		p.index.Clear(chosen.Load.Slot)
	}
	p.unshown.added(found, chosen.Load)
}

// capacity is how many blocks of our size an endpoint's cache has.
func (p *ApproxPrefixCacheProducer) capacity(e *fleet.Endpoint, block int) int {
	if !p.AutoTune {
		return min(max(p.LRUCapacityPerServer, 1), mostBlocks)
	}
	return capacityOf(e, block, p.LRUCapacityPerServer)
}

// capacityOf is how many blocks of so many tokens an endpoint's cache has, or untold where its engine does not tell.
func capacityOf(e *fleet.Endpoint, block, untold int) int {
	if e.BlockSize > 0 && e.NumBlocks > 0 {
		untold = int(float64(e.NumBlocks) * float64(e.BlockSize) / float64(block)) // which do not overflow
	}
	return min(max(untold, 1), mostBlocks)
}

// usualCapacity is for engines that do not tell, in blocks.
const usualCapacity = 31250

// Gone implements [sched.Leaver].
func (p *ApproxPrefixCacheProducer) Gone(loads []*fleet.Load) {
	for _, l := range loads {
		p.index.Clear(l.Slot)
	}
}
