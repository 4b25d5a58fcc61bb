// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// codec reads and writes the messages of ext_proc by hand: a body stays in the buffers in which
// gRPC received it, and goes out of the same ones. All other messages, such as those of the
// health service, are left to gRPC's own codec.
type codec struct{ other encoding.CodecV2 }

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*reply); ok {
		return r.data, nil
	}
	return c.other.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. An error about a message of ours is kept in it, since
// gRPC would call it an internal one.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		m.reset()
		m.err = m.decode(data)
		return nil
	}
	return c.other.Unmarshal(data, v)
}

// pool holds receive buffers. Unlike gRPC's it has all sizes that frames come in, so that a
// waiting body does not hold more than twice its size, and does not clear them.
type pool struct{ tiers [4]sync.Pool }

// Sizes of the tiers: 2, 4, 8 and 16 KiB, the last being the largest frame.
const (
	smallest = 2 << 10
	largest  = smallest << 3
)

func tierOf(n int) int {
	tier := 0
	for size := smallest; size < n; size <<= 1 {
		tier++
	}
	return tier
}

// Get implements mem.BufferPool.
func (p *pool) Get(n int) *[]byte {
	if n > largest {
		b := make([]byte, n)
		return &b
	}
	tier := tierOf(n)
	if b, ok := p.tiers[tier].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, smallest<<tier)
	return &b
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	if c := cap(*b); c >= smallest && c <= largest && c&(c-1) == 0 {
		p.tiers[tierOf(c)].Put(b)
	}
}
