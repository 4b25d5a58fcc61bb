// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
)

// errReleased is what a body answers that was used after its end: a mistake of the caller.
var errReleased = errors.New("request body was released")

// Freer gives memory back to its owner.
type Freer interface{ Free() }

// Body is a chain of chunks: what a client sent, and the edits made to it. It is written once,
// piece by piece, and read as often as a retry needs.
//
// A body belongs to one goroutine at a time; only its readers may be used elsewhere, and they
// may outlive it: the chunks go back when the body is released and every reader is closed. A
// write must not follow the first [Body.Reader].
type Body struct {
	mem    *Memory
	s      *store // nil when released
	max    int64
	size   int64  // bytes written
	expect int64  // bytes still to come, 0 when unknown
	edits  []edit // by offset; replaced as a whole, since readers share it
	grown  int64  // by edits, may be negative
}

// store is the part of a body that readers share and that is used again.
type store struct {
	refs   atomic.Int32 // the body and its open readers
	chunks []chunk
	probe  [1]byte // where a read goes that should find the end
}

// chunk is a piece of a body: pooled, or attached and owned by somebody else.
type chunk struct {
	p        []byte
	attached bool
	owner    Freer
}

// edit replaces a span of what was written.
type edit struct {
	Span
	with []byte
}

// NewBody makes an empty body of at most max bytes, 0 for no limit but m's.
func NewBody(m *Memory, max int64) *Body {
	s := m.stores.Get().(*store)
	s.refs.Store(1)
	return &Body{mem: m, s: s, max: max}
}

// Expect tells how many bytes are still to come, such as a Content-Length, so that chunks of
// the right size are taken. It is a hint: more or fewer may come.
func (b *Body) Expect(n int64) { b.expect = max(n, 0) }

// Size is the number of bytes written, without edits: what a limit and a scan speak of.
func (b *Body) Size() int64 { return b.size }

// Len is the number of bytes that a reader gives: what was written, with edits applied.
func (b *Body) Len() int64 { return b.size + b.grown }

// Edited tells whether there is any edit, that is, whether readers give anything but what was
// written.
func (b *Body) Edited() bool { return len(b.edits) > 0 }

// Write copies p to the end of the body. It fails with a [TooLargeError] or [ErrMemory], and
// then the body should be released; what fitted of p may be in it.
func (b *Body) Write(p []byte) (int, error) {
	if b.max > 0 && b.size+int64(len(p)) > b.max {
		return 0, &TooLargeError{Limit: b.max}
	}
	n := 0
	for n < len(p) {
		room, err := b.room(int64(len(p) - n))
		if err != nil {
			return n, err
		}
		k := copy(room, p[n:])
		b.wrote(k)
		n += k
	}
	return n, nil
}

// room gives the free end of the last chunk, or of a new one when that is full. It knows of
// want bytes to come; more than have been written so far are not believed in without Expect.
func (b *Body) room(want int64) ([]byte, error) {
	if b.s == nil {
		return nil, errReleased
	}
	if n := len(b.s.chunks); n > 0 {
		if c := b.s.chunks[n-1]; !c.attached && len(c.p) < cap(c.p) {
			return c.p[len(c.p):cap(c.p)], nil
		}
	}
	if b.expect == 0 && b.size > small {
		want = max(want, b.size) // it is growing; grow with it
	}
	c, err := b.mem.get(max(want, b.expect))
	if err != nil {
		return nil, err
	}
	b.s.chunks = append(b.s.chunks, c)
	return c.p[:cap(c.p)], nil
}

// wrote counts n bytes that were put where room said.
func (b *Body) wrote(n int) {
	c := &b.s.chunks[len(b.s.chunks)-1]
	c.p = c.p[:len(c.p)+n]
	b.size += int64(n)
	b.expect = max(b.expect-int64(n), 0)
}

// Attach takes p as the next piece without copying it. From then on the body owns p: owner.Free
// is called exactly once, when nobody reads the body any more, or before Attach returns when it
// fails. A nil owner leaves p to the garbage collector.
func (b *Body) Attach(p []byte, owner Freer) error {
	err := b.attach(p, owner)
	if err != nil && owner != nil {
		owner.Free()
	}
	return err
}

func (b *Body) attach(p []byte, owner Freer) error {
	switch {
	case b.s == nil:
		return errReleased
	case b.max > 0 && b.size+int64(len(p)) > b.max:
		return &TooLargeError{Limit: b.max}
	case !b.mem.take(len(p)):
		return ErrMemory
	}
	b.s.chunks = append(b.s.chunks, chunk{p: p, attached: true, owner: owner})
	b.size += int64(len(p))
	b.expect = max(b.expect-int64(len(p)), 0)
	return nil
}

// ReadOnce makes one read from r straight into the body and gives what it brought, which stays
// valid until Release. At the end of r the error is io.EOF, possibly together with bytes.
func (b *Body) ReadOnce(r io.Reader) ([]byte, error) {
	if b.s == nil {
		return nil, errReleased
	}
	left := int64(large)
	if b.max > 0 {
		left = b.max - b.size
	}
	if left == 0 || b.full() {
		// Only the end should follow. Asking for it must not cost a chunk.
		n, err := r.Read(b.s.probe[:])
		if n == 0 {
			return nil, err
		}
		if _, werr := b.Write(b.s.probe[:n]); werr != nil {
			return nil, werr
		}
		return b.tail(n), err
	}
	room, err := b.room(1)
	if err != nil {
		return nil, err
	}
	n, err := r.Read(room[:min(int64(len(room)), left)])
	b.wrote(n)
	return b.tail(n), err
}

// full tells that the last chunk is full and nothing more is expected.
func (b *Body) full() bool {
	n := len(b.s.chunks)
	return b.size > 0 && b.expect == 0 && len(b.s.chunks[n-1].p) == cap(b.s.chunks[n-1].p)
}

// tail is the last n bytes of the last chunk.
func (b *Body) tail(n int) []byte {
	p := b.s.chunks[len(b.s.chunks)-1].p
	return p[len(p)-n:]
}

// ReadFrom reads r to its end, straight into the body. It implements io.ReaderFrom.
func (b *Body) ReadFrom(r io.Reader) (int64, error) {
	before, idle := b.size, 0
	for {
		p, err := b.ReadOnce(r)
		if idle++; len(p) > 0 {
			idle = 0
		}
		switch {
		case err == io.EOF:
			return b.size - before, nil
		case err == nil && idle == 100:
			err = io.ErrNoProgress
		}
		if err != nil {
			return b.size - before, err
		}
	}
}

// Trim gives back what the last chunk does not use, if that is worth a copy of what it does. Call it when the
// body is whole and has to wait, before the first Reader.
func (b *Body) Trim() {
	if b.s == nil || len(b.s.chunks) == 0 {
		return
	}
	last := &b.s.chunks[len(b.s.chunks)-1]
	if last.attached || cap(last.p)-len(last.p) < worthTrimming || !b.mem.take(len(last.p)) {
		return // at the bound there is no room for both: it stays as it was
	}
	whole := *last
	*last = chunk{p: append(make([]byte, 0, len(whole.p)), whole.p...), attached: true}
	b.mem.put(whole)
}

// worthTrimming is how much unused memory is worth a copy, in bytes.
const worthTrimming = 512

// Splice replaces span by with, which is copied. Spans always speak of the body as it was
// written, whatever edits came before. An edit of the same span again replaces the first; any
// other overlap is refused. Readers taken before do not see it.
func (b *Body) Splice(span Span, with []byte) error {
	if span.Off < 0 || span.Len < 0 || span.Off+span.Len > b.size {
		return errors.New("splice reaches outside the body")
	}
	e := edit{Span: span, with: slices.Clone(with)}
	i, same := slices.BinarySearchFunc(b.edits, span, func(e edit, s Span) int {
		if d := e.Off - s.Off; d != 0 {
			return int(d)
		}
		return int(e.Len - s.Len)
	})
	if same {
		b.grown -= int64(len(b.edits[i].with)) - span.Len
		b.edits = slices.Clone(b.edits)
		b.edits[i] = e
	} else {
		if i > 0 && b.edits[i-1].end() > span.Off || i < len(b.edits) && e.end() > b.edits[i].Off {
			return errors.New("splice overlaps another one")
		}
		b.edits = slices.Insert(slices.Clone(b.edits), i, e)
	}
	b.grown += int64(len(with)) - span.Len
	return nil
}

func (s Span) end() int64 { return s.Off + s.Len }

// Chunks gives the pieces that a reader would, in order and without copying: use it as
// `for p := range b.Chunks`. The pieces are valid until Release.
func (b *Body) Chunks(yield func([]byte) bool) {
	if b.s == nil {
		return
	}
	c := cursor{chunks: b.s.chunks, edits: b.edits}
	for {
		p, ok := c.next()
		if !ok || !yield(p) {
			return
		}
	}
}

// Bytes copies a span of what was written; edits do not show. It is for short spans.
func (b *Body) Bytes(span Span) []byte {
	if b.s == nil {
		return nil
	}
	span.Off = min(max(span.Off, 0), b.size)
	span.Len = min(max(span.Len, 0), b.size-span.Off)
	out := make([]byte, 0, span.Len)
	at := seeker{chunks: b.s.chunks}
	for span.Len > 0 {
		out = append(out, at.next(&span)...)
	}
	return out
}

// Release ends the body: nothing but Release may be called on it any more. The memory goes back
// now, or when the last reader is closed. Calling it again does nothing.
func (b *Body) Release() {
	s := b.s
	if s == nil {
		return
	}
	b.s, b.edits, b.size, b.grown = nil, nil, 0, 0
	s.unref(b.mem)
}

// unref gives up one share of the chunks.
func (s *store) unref(m *Memory) {
	if s.refs.Add(-1) > 0 {
		return
	}
	for _, c := range s.chunks {
		m.put(c)
	}
	clear(s.chunks)
	s.chunks = s.chunks[:0]
	if cap(s.chunks) > 1<<10 {
		s.chunks = nil
	}
	m.stores.Put(s)
}
