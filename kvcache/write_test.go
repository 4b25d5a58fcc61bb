// SPDX-License-Identifier: Apache-2.0

package kvcache

// What an engine's events come to, without its names of blocks.

// Confirm records that the engine in that slot said that it holds the blocks of keys in that tier.
func (x *Index) Confirm(keys []uint64, slot uint32, tier Tier) {
	x.lock()
	defer x.unlock()
	for i, key := range keys {
		lot := x.openSure(slot, 0)
		if lot == 0 {
			x.stats.Refused++
			break
		}
		x.write(key, change{do: confirm, slot: slot, lot: lot, tiers: 1 << tier})
		x.breathe(i)
	}
	x.tidyLot(slot)
}

// Remove records that the engine in that slot said that the blocks of keys left that tier. A block that is in none is
// forgotten, a promise as well.
func (x *Index) Remove(keys []uint64, slot uint32, tier Tier) {
	x.lock()
	defer x.unlock()
	x.advance()
	if int(slot) >= len(x.slots) {
		return
	}
	for i, key := range keys {
		x.write(key, change{do: remove, slot: slot, tiers: 1 << tier})
		x.breathe(i)
	}
}

// Len counts the distinct blocks. It may have to look at all.
func (x *Index) Len() int {
	x.lock()
	defer x.unlock()
	return x.len()
}

func (x *Index) len() int {
	if x.dying.len() > 0 {
		for i := range x.shards {
			x.rebuild(&x.shards[i], 0)
		}
		x.hand, x.handRow, x.turnLots = 0, 0, 0
		for x.dying.len() > 0 {
			x.free.push(x.dying.pop())
		}
	}
	return int(x.used.Load())
}

// Bytes is the memory that the index holds.
func (x *Index) Bytes() int64 {
	x.lock()
	defer x.unlock()
	return x.total()
}
