// SPDX-License-Identifier: Apache-2.0

package request

import (
	"io"
	"sync"
)

// cursor walks the pieces of a body with its edits applied.
type cursor struct {
	chunks []chunk
	edits  []edit
	at     int   // offset in chunks[0]
	pos    int64 // offset in what was written
}

// next gives the next piece, which is never empty.
func (c *cursor) next() ([]byte, bool) {
	for {
		if len(c.edits) > 0 && c.edits[0].Off == c.pos {
			e := c.edits[0]
			c.edits = c.edits[1:]
			c.skip(e.Len)
			if len(e.with) > 0 {
				return e.with, true
			}
			continue
		}
		if len(c.chunks) == 0 {
			return nil, false
		}
		p := c.chunks[0].p[c.at:]
		if len(c.edits) > 0 {
			p = p[:min(int64(len(p)), c.edits[0].Off-c.pos)]
		}
		c.skip(int64(len(p)))
		if len(p) > 0 {
			return p, true
		}
	}
}

// skip goes n bytes on, past chunks that are used up.
func (c *cursor) skip(n int64) {
	c.pos += n
	n += int64(c.at)
	for len(c.chunks) > 0 && n >= int64(len(c.chunks[0].p)) {
		n -= int64(len(c.chunks[0].p))
		c.chunks = c.chunks[1:]
	}
	c.at = int(n)
}

// seeker finds spans of what was written; it is quick when they come in order.
type seeker struct {
	chunks []chunk
	i      int
	base   int64 // offset of chunks[i]
}

// next gives the first contiguous piece of a span that lies in the body, and cuts it off.
func (s *seeker) next(span *Span) []byte {
	if span.Off < s.base {
		s.i, s.base = 0, 0
	}
	for span.Off >= s.base+int64(len(s.chunks[s.i].p)) {
		s.base += int64(len(s.chunks[s.i].p))
		s.i++
	}
	p := s.chunks[s.i].p[span.Off-s.base:]
	p = p[:min(int64(len(p)), span.Len)]
	span.Off += int64(len(p))
	span.Len -= int64(len(p))
	return p
}

// Reader gives the body from its start, with the edits made so far. It also implements
// io.WriterTo, which copies nothing.
//
// Close it exactly when nobody will read any more; http.Transport does so by itself. Close may
// come from another goroutine in the middle of a Read, which then keeps its piece of memory
// until it returns, and it may come twice. Every reader is independent, so that a retry takes
// another one.
func (b *Body) Reader() io.ReadCloser {
	r := &reader{mem: b.mem, s: b.s}
	if b.s == nil {
		r.closed = true
		return r
	}
	b.s.refs.Add(1)
	r.cursor = cursor{chunks: b.s.chunks, edits: b.edits}
	return r
}

type reader struct {
	mem    *Memory
	cursor cursor
	rest   []byte // of the piece being read

	mu     sync.Mutex
	s      *store
	busy   bool // a Read is under way and gives the store back itself
	closed bool
}

// begin keeps the chunks from going back during a Read.
func (r *reader) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.busy = true
	return true
}

// end undoes begin and tells whether the reader is still open.
func (r *reader) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	if r.closed {
		r.leave()
	}
	return !r.closed
}

func (r *reader) leave() {
	r.s.unref(r.mem)
	r.s, r.cursor, r.rest = nil, cursor{}, nil
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if !r.begin() {
		return 0, errReleased
	}
	defer r.end()
	n := 0
	for n < len(p) {
		if len(r.rest) == 0 {
			var ok bool
			if r.rest, ok = r.cursor.next(); !ok {
				break
			}
		}
		k := copy(p[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements io.WriterTo.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		if !r.begin() {
			return total, errReleased
		}
		if len(r.rest) == 0 {
			var ok bool
			if r.rest, ok = r.cursor.next(); !ok {
				r.end()
				return total, nil
			}
		}
		n, err := w.Write(r.rest)
		total += int64(n)
		r.rest = r.rest[n:]
		r.end()
		if err != nil {
			return total, err
		}
	}
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if !r.busy {
		r.leave()
	}
	return nil
}
