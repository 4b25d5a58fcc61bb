// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// What a record of a queue is.
const (
	aMessage   = iota
	connected  // what follows came over a new connection
	refused    // nothing listens where the publisher was
	parted     // the engine ended the connection
	overflowed // messages were dropped here
	misframed  // a message was left out for its form
	oversized  // for its length
	closed     // nothing follows
)

// maxParts are more than any message of ours has.
const maxParts = 8

// own is how many bytes each connection may hold whatever others do.
const own = 64 << 10

// room is what all connections may hold together beyond their own, in bytes.
type room struct{ left atomic.Int64 }

// take reports whether there is room for n bytes more, and takes it. A nil room has no end.
func (r *room) take(n int) bool {
	if r == nil || n == 0 {
		return true
	}
	if r.left.Add(-int64(n)) < 0 {
		r.left.Add(int64(n))
		return false
	}
	return true
}

func (r *room) give(n int) {
	if r != nil {
		r.left.Add(int64(n))
	}
}

// over is how much more than its own a connection holds that comes from one number of bytes to another.
func over(from, to int) int { return max(0, to-own) - max(0, from-own) }

// queue holds messages between who reads a connection and who tells the sink. It has two buffers: one fills, the other is
// read. Its bytes are bounded; what does not fit is dropped, and that is noted once in its place.
type queue struct {
	limit int
	room  *room         // shared with other connections
	ready chan struct{} // has one when fill may be worth a look
	done  chan struct{} // is closed when closed was read

	mu   sync.Mutex
	fill []byte
	out  int  // bytes that were taken last
	gone bool // nobody takes any more
	full bool // the last record is overflowed
}

func newQueue(limit int, room *room) *queue {
	return &queue{limit: limit, room: room, ready: make(chan struct{}, 1), done: make(chan struct{})}
}

// put adds a record: its kind, its parts' number and lengths, and their bytes.
func (q *queue) put(kind byte, parts [][]byte) {
	size := 2 + 4*len(parts)
	for _, p := range parts {
		size += len(p)
	}
	q.mu.Lock()
	held := q.out + len(q.fill)
	switch {
	case q.gone:
	case kind == aMessage && len(q.fill) > 0 && len(q.fill)+size > q.limit, len(q.fill)+size > 2*q.limit+1<<10,
		!q.room.take(over(held, held+size)):
		if q.full {
			q.mu.Unlock()
			return
		}
		q.full = true
		q.room.give(-over(held, held+2)) // there is always room to say so
		q.fill = append(q.fill, overflowed, 0)
	default:
		q.full = false
		q.fill = append(q.fill, kind, byte(len(parts)))
		for _, p := range parts {
			q.fill = binary.LittleEndian.AppendUint32(q.fill, uint32(len(p)))
		}
		for _, p := range parts {
			q.fill = append(q.fill, p...)
		}
	}
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// keep is how large a buffer stays when it is idle.
const keep = 256 << 10

// take returns what was put since the last take, and gives back the buffer of that one.
func (q *queue) take(old []byte) []byte {
	if cap(old) > keep {
		old = nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	full := q.fill
	q.room.give(over(len(full), q.out+len(full)))
	q.fill, q.out, q.full = old[:0], len(full), false
	return full
}

// leave gives back all room, and takes no more.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room.give(over(0, q.out+len(q.fill)))
	q.fill, q.out, q.gone = nil, 0, true
}

// drained waits until all was taken and handled, or ctx ends.
func (q *queue) drained(ctx context.Context) {
	q.put(closed, nil)
	select {
	case <-q.done:
	case <-ctx.Done():
	}
}

// record cuts the first record off.
func record(buf []byte, parts [][]byte) (kind byte, _ [][]byte, rest []byte) {
	kind, n := buf[0], int(buf[1])
	sizes, body := buf[2:2+4*n], buf[2+4*n:]
	parts = parts[:0]
	for i := range n {
		size := int(binary.LittleEndian.Uint32(sizes[4*i:]))
		parts = append(parts, body[:size:size])
		body = body[size:]
	}
	return kind, parts, body
}
