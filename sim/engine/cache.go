// SPDX-License-Identifier: Apache-2.0

package engine

const none = int32(-1)

// block is one block of the KV cache.
type block struct {
	hash       uint64
	refs       int32 // sequences that hold it
	prev, next int32 // neighbours in the free list while refs is 0
	place      uint32
	keyed      bool // hash and place are set and lead here
}

// cache hands out blocks and finds those that were computed before.
//
// Blocks of nobody stand in the free list, the next to be given away first: those without reusable
// content, then the least recently used. Two sequences that compute the same content at the same
// time both keep their block; only the first is found by others.
type cache struct {
	size       int
	blocks     []block // grows to size: a block that was never used costs nothing
	byHash     table
	head, tail int32
	listed     int // length of the free list
}

func newCache(size int) cache {
	return cache{size: size, head: none, tail: none}
}

// free is the number of blocks that can be handed out.
func (c *cache) free() int { return c.listed + c.size - len(c.blocks) }

// match finds how many of the leading hashes are in the cache, and how many of these blocks stand in
// the free list.
func (c *cache) match(hashes []uint64) (hits, idle int) {
	for i, h := range hashes {
		id, ok := c.byHash.find(c.blocks, placeOf(hashes, i), h)
		if !ok {
			break
		}
		if c.blocks[id].refs == 0 {
			idle++
		}
		hits++
	}
	return hits, idle
}

// share takes block i of a prompt for one more sequence. It must have been matched.
func (c *cache) share(hashes []uint64, i int) int32 {
	id, _ := c.byHash.find(c.blocks, placeOf(hashes, i), hashes[i])
	if c.blocks[id].refs == 0 {
		c.unlist(id)
	}
	c.blocks[id].refs++
	return id
}

// take hands out a block with no content, and tells whether reusable content was lost for it; then the block still has
// the hash of that. There must be a free one.
func (c *cache) take() (id int32, evicted bool) {
	if len(c.blocks) < c.size && (c.head == none || c.blocks[c.head].keyed) {
		c.blocks = append(c.blocks, block{refs: 1, prev: none, next: none})
		return int32(len(c.blocks) - 1), false
	}
	id = c.head
	c.unlist(id)
	b := &c.blocks[id]
	if b.keyed {
		c.byHash.remove(b.place, id)
		b.keyed, evicted = false, true
	}
	b.refs = 1
	return id, evicted
}

// key makes block i of a prompt, which was computed, findable, unless another one with the same content is.
func (c *cache) key(id int32, hashes []uint64, i int) bool {
	place := placeOf(hashes, i)
	if !c.byHash.add(c.blocks, place, hashes[i], id) {
		return false
	}
	b := &c.blocks[id]
	b.hash, b.place, b.keyed = hashes[i], place, true
	return true
}

// release gives a sequence's blocks back. The end of the chain is evicted first, because a beginning
// without its end is still of use and an end without its beginning is not.
func (c *cache) release(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &c.blocks[ids[i]]
		b.refs--
		if b.refs > 0 {
			continue
		}
		if b.keyed {
			c.listBack(ids[i])
		} else {
			c.listFront(ids[i])
		}
	}
}

func (c *cache) listBack(id int32) {
	b := &c.blocks[id]
	b.prev, b.next = c.tail, none
	if c.tail != none {
		c.blocks[c.tail].next = id
	} else {
		c.head = id
	}
	c.tail = id
	c.listed++
}

func (c *cache) listFront(id int32) {
	b := &c.blocks[id]
	b.prev, b.next = none, c.head
	if c.head != none {
		c.blocks[c.head].prev = id
	} else {
		c.tail = id
	}
	c.head = id
	c.listed++
}

func (c *cache) unlist(id int32) {
	b := &c.blocks[id]
	if b.prev != none {
		c.blocks[b.prev].next = b.next
	} else {
		c.head = b.next
	}
	if b.next != none {
		c.blocks[b.next].prev = b.prev
	} else {
		c.tail = b.prev
	}
	b.prev, b.next = none, none
	c.listed--
}
