// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// ErrMemory says that all bodies together hold as much memory as they may. It is about the
// gateway's load, not about the request: trying later is right.
var ErrMemory = errors.New("request bodies hold all the memory they may; try again later")

// ErrTooLarge is what every [TooLargeError] is, for errors.Is.
var ErrTooLarge = errors.New("request body is too large")

// TooLargeError says that one body is longer than it may be.
type TooLargeError struct {
	Limit int64 // bytes allowed
}

// Error names the limit, so that a client knows what would be right.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("request body is longer than the limit of %d bytes", e.Limit)
}

// Is makes errors.Is(err, ErrTooLarge) true.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// Chunk sizes. One read of a socket rarely brings more than 64 KiB; a typical chat fits into
// 4 KiB; 16 KiB keeps what lies between from holding a large chunk for a small tail.
const (
	small  = 4 << 10
	medium = 16 << 10
	large  = 64 << 10
)

// Memory hands out the chunks that bodies are made of, and caps what all of them hold. One is
// shared by all requests of a process; its methods may be called from any goroutine.
type Memory struct {
	limit                int64
	held                 atomic.Int64
	smalls, mids, larges sync.Pool // of *[small]byte and so on: a pointer costs no allocation to put
	stores               sync.Pool // of *store
	// decoding bounds how many bodies are decompressed at a time, and by that the sum of
	// their windows, which are not part of held.
	decoding chan struct{}
}

// NewMemory makes a Memory that lets all bodies together hold limit bytes, 0 for no limit.
func NewMemory(limit int64) *Memory {
	m := &Memory{limit: limit, decoding: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	m.smalls.New = func() any { return new([small]byte) }
	m.mids.New = func() any { return new([medium]byte) }
	m.larges.New = func() any { return new([large]byte) }
	m.stores.New = func() any { return new(store) }
	return m
}

// Held is the number of bytes that bodies hold now: whole chunks, and what was attached.
func (m *Memory) Held() int64 { return m.held.Load() }

// take counts n more bytes as held, or tells that they would be too many.
func (m *Memory) take(n int) bool {
	if m.held.Add(int64(n)) > m.limit && m.limit > 0 {
		m.held.Add(-int64(n))
		return false
	}
	return true
}

// get gives an empty chunk for want more bytes: the smallest that holds them, or a large one.
func (m *Memory) get(want int64) (chunk, error) {
	size := large
	switch {
	case want <= small:
		size = small
	case want <= medium:
		size = medium
	}
	if !m.take(size) {
		return chunk{}, ErrMemory
	}
	switch size {
	case small:
		return chunk{p: m.smalls.Get().(*[small]byte)[:0]}, nil
	case medium:
		return chunk{p: m.mids.Get().(*[medium]byte)[:0]}, nil
	}
	return chunk{p: m.larges.Get().(*[large]byte)[:0]}, nil
}

// put takes a chunk back.
func (m *Memory) put(c chunk) {
	if c.attached {
		m.held.Add(-int64(len(c.p)))
		if c.owner != nil {
			c.owner.Free()
		}
		return
	}
	m.held.Add(-int64(cap(c.p)))
	switch cap(c.p) {
	case small:
		m.smalls.Put((*[small]byte)(c.p[:small]))
	case medium:
		m.mids.Put((*[medium]byte)(c.p[:medium]))
	default:
		m.larges.Put((*[large]byte)(c.p[:large]))
	}
}
