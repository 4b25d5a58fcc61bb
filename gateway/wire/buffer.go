// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync"
	"sync/atomic"
)

// Sizes of buffers. The smallest does for control frames and short messages; the largest takes
// four full DATA frames in one read.
var bufferSizes = [...]int{4 << 10, 16 << 10, 64 << 10}

// buffers is a pool that knows how many of its buffers are out, for tests and limits.
type buffers struct {
	tiers [len(bufferSizes)]sync.Pool
	live  atomic.Int64
	// poison clears what comes back.
	poison bool
}

// Buffer is memory that several pieces share. It goes back to its pool with the last reference.
type Buffer struct {
	b    []byte // of full length
	refs atomic.Int32
	tier int
	home *buffers
}

// get returns a buffer with one reference.
func (p *buffers) get(tier int) *Buffer {
	b, ok := p.tiers[tier].Get().(*Buffer)
	if !ok {
		b = &Buffer{b: make([]byte, bufferSizes[tier]), tier: tier, home: p}
	}
	b.refs.Store(1)
	p.live.Add(1)
	return b
}

// Ref adds a reference. It is fine on nil.
func (b *Buffer) Ref() {
	if b != nil {
		b.refs.Add(1)
	}
}

// Free gives a reference back; the bytes must not be used through it any more. It is fine on nil.
func (b *Buffer) Free() {
	if b == nil {
		return
	}
	switch n := b.refs.Add(-1); {
	case n == 0:
		if b.home.poison {
			clear(b.b)
		}
		b.home.live.Add(-1)
		b.home.tiers[b.tier].Put(b)
	case n < 0:
		panic("wire: a buffer was freed too often")
	}
}

// Piece is a part of a message. P must not be changed. Who keeps a piece that it was shown
// takes a reference of its own; who gives a piece away gives a reference away.
type Piece struct {
	P      []byte
	Buffer *Buffer // that P lies in; nil when P is ordinary memory
}

// Ref adds a reference.
func (p Piece) Ref() { p.Buffer.Ref() }

// Free gives a reference back.
func (p Piece) Free() { p.Buffer.Free() }

func freeAll(list []Piece) {
	for i := range list {
		list[i].Buffer.Free()
		list[i] = Piece{}
	}
}
