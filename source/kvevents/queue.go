// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"encoding/binary"
	"sync"
)

// What a record of a queue is.
const (
	aMessage   = iota
	connected  // what follows came over a new connection
	refused    // nothing listens where the publisher was
	overflowed // messages were dropped here
	misframed  // a message was left out for its form
	oversized  // for its length
	closed     // nothing follows
)

// maxParts are more than any message of ours has.
const maxParts = 8

// queue holds messages between who reads a connection and who tells the sink. It has two buffers: one fills, the other is
// read. Its bytes are bounded; what does not fit is dropped, and that is noted once in its place.
type queue struct {
	limit int
	ready chan struct{} // has one when fill may be worth a look
	done  chan struct{} // is closed when closed was read

	mu   sync.Mutex
	fill []byte
	full bool // the last record is overflowed
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), done: make(chan struct{})}
}

// put adds a record: its kind, its parts' number and lengths, and their bytes.
func (q *queue) put(kind byte, parts [][]byte) {
	size := 2 + 4*len(parts)
	for _, p := range parts {
		size += len(p)
	}
	q.mu.Lock()
	switch {
	case kind == aMessage && len(q.fill) > 0 && len(q.fill)+size > q.limit, len(q.fill)+size > 2*q.limit+1<<10:
		if q.full {
			q.mu.Unlock()
			return
		}
		q.full = true
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
	q.fill, q.full = old[:0], false
	return full
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
