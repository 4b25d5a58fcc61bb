// SPDX-License-Identifier: Apache-2.0

package engine

// table finds blocks by what they hold. It is a map in everything but speed, as a simulation spends much of its time
// here: an entry is eight bytes, nothing is left behind by what was removed, and blocks that follow each other in a prompt
// stand beside each other, so that a processor's cache is used.
type table struct {
	entries []entry
	used    int
}

// entry is a block and where it would like to stand; the zero entry is free.
type entry struct {
	place uint32
	id    int32 // plus 1
}

// nearby is how many blocks of a prompt stand beside each other.
const nearby = 8

// placeOf is where block i of a prompt with these hashes likes to stand.
func placeOf(hashes []uint64, i int) uint32 {
	return uint32(hashes[i&^(nearby-1)])&^(nearby-1) | uint32(i)&(nearby-1)
}

// find is the block with that hash.
func (t *table) find(blocks []block, place uint32, hash uint64) (int32, bool) {
	if t.used == 0 {
		return 0, false
	}
	mask := uint32(len(t.entries) - 1)
	for i := place & mask; ; i = (i + 1) & mask {
		e := t.entries[i]
		if e.id == 0 {
			return 0, false
		}
		if e.place == place && blocks[e.id-1].hash == hash {
			return e.id - 1, true
		}
	}
}

// add enters a block unless another has its hash. It reports whether it did.
func (t *table) add(blocks []block, place uint32, hash uint64, id int32) bool {
	if 2*(t.used+1) > len(t.entries) {
		t.grow()
	}
	mask := uint32(len(t.entries) - 1)
	for i := place & mask; ; i = (i + 1) & mask {
		e := t.entries[i]
		if e.id == 0 {
			t.entries[i] = entry{place, id + 1}
			t.used++
			return true
		}
		if e.place == place && blocks[e.id-1].hash == hash {
			return false
		}
	}
}

// remove takes out the block with that place and id, and moves those up that stand behind it for want of their own place.
func (t *table) remove(place uint32, id int32) {
	mask := uint32(len(t.entries) - 1)
	i := place & mask
	for t.entries[i].id != id+1 {
		i = (i + 1) & mask
	}
	t.used--
	for j := i; ; {
		j = (j + 1) & mask
		e := t.entries[j]
		if e.id == 0 {
			break
		}
		if home := e.place & mask; (j-home)&mask >= (j-i)&mask {
			t.entries[i] = e
			i = j
		}
	}
	t.entries[i] = entry{}
}

func (t *table) grow() {
	old := t.entries
	t.entries = make([]entry, max(64, 2*len(old)))
	mask := uint32(len(t.entries) - 1)
	for _, e := range old {
		if e.id == 0 {
			continue
		}
		i := e.place & mask
		for t.entries[i].id != 0 {
			i = (i + 1) & mask
		}
		t.entries[i] = e
	}
}
