// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// MMEmbeddingsCacheProducer remembers which endpoint was sent which images, sounds and videos, and so should
// still have them encoded.
//
// Media are told apart by their URL as it is written, or by their data.
type MMEmbeddingsCacheProducer struct {
	// CacheSizeInMBPerServer is the encoder cache of an endpoint, in MiB; an image, sound or video counts as 2 MiB.
	CacheSizeInMBPerServer int `json:"cacheSizeInMBPerServer"`

	name  string
	index *kvcache.Index
}

func newMMEmbeddingsCacheProducer() *MMEmbeddingsCacheProducer {
	return &MMEmbeddingsCacheProducer{CacheSizeInMBPerServer: 4096, index: kvcache.NewIndex()}
}

// SetName implements [sched.Namer].
func (p *MMEmbeddingsCacheProducer) SetName(name string) { p.name = name }

// Validate reports a cache in which nothing fits.
func (p *MMEmbeddingsCacheProducer) Validate() error {
	if p.CacheSizeInMBPerServer < itemMiB {
		return errors.New("cacheSizeInMBPerServer: must be 2 or more")
	}
	return nil
}

// itemMiB is what an encoded image, sound or video counts for.
const itemMiB = 2

// Produce implements [sched.Producer].
func (p *MMEmbeddingsCacheProducer) Produce(c *sched.Cycle) {
	c.LookUpItems(p.index, c.AddEncoded(p.name))
}

// Placed implements [sched.Placer].
func (p *MMEmbeddingsCacheProducer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	if len(c.Items()) == 0 {
		return
	}
	p.index.Add(c.Items(), chosen.Load.Slot, min(p.CacheSizeInMBPerServer/itemMiB, mostBlocks))
	if chosen.Load.Ended() { // it left meanwhile, and Gone may have come first: the slot must be clean for another
		p.index.Clear(chosen.Load.Slot)
	}
}

// Gone implements [sched.Leaver].
func (p *MMEmbeddingsCacheProducer) Gone(loads []*fleet.Load) {
	for _, l := range loads {
		p.index.Clear(l.Slot)
	}
}
