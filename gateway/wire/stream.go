// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// Handler says who receives a stream.
type Handler interface {
	// Open is called for each new stream. The header function gives a request header's value by
	// its lower-case name and is valid during the call. A status, instead of a receiver, refuses
	// the stream. Like all calls it must not wait for anything: see [Stream.Detach].
	Open(s *Stream, path string, header func(name string) string) (Receiver, *Status)
}

// Receiver takes what comes in on one stream. All calls for a stream are made one after the
// other, on the goroutine that reads the connection: whoever must wait calls [Stream.Detach] first.
// There are no calls after [Stream.Finish].
type Receiver interface {
	// Message takes a message. Its pieces are given back after the call, and the list of them is used
	// again; who keeps a piece refers to it.
	Message(s *Stream, m *Message)
	// HalfClose says that the peer will send no more messages.
	HalfClose(s *Stream)
	// Closed says that the stream has ended without a Finish, and why: a *Status if we ended it,
	// for a message over the limit or after its deadline, and else [ErrReset] or [ErrLost].
	Closed(s *Stream, why error)
}

// Message is one message of a stream.
type Message struct {
	Pieces []Piece
	Len    int // of all pieces
}

// Why a stream has ended without us.
var (
	ErrReset = errors.New("the peer reset the stream")
	ErrLost  = errors.New("the connection was lost")
	// ErrFinished is what Send says after a Finish.
	ErrFinished = errors.New("the stream is finished")
)

// event is something to tell a receiver.
type event struct {
	kind   eventKind
	zipped bool
	pieces []Piece
	n      int
	why    error
	post   func()
}

type eventKind int8

const (
	evMessage eventKind = iota
	evHalf
	evClosed
	evPost
)

// Stream is one call. Its methods may be used by any goroutine.
type Stream struct {
	c  *conn
	id uint32
	r  Receiver

	// Only the reader, or who delivers in its stead, uses these.
	head     [5]byte // of the message that is coming in
	headN    int
	need     int // bytes that are still to come of it
	partSize int
	part     []Piece
	packing  bool // the last of part is for more to be copied to
	zips     bool // messages may be compressed
	msg      Message

	// The rest is guarded by c.mu.
	away    bool    // a call goes on elsewhere
	queue   []event // that came in meanwhile
	owed    int     // bytes of messages that came in meanwhile
	inbox   int     // what the peer may still send
	due     int     // what we may let it send once it is worth a frame
	half    bool    // the peer has closed its side
	gone    bool    // no longer known to the connection
	headed  bool    // our headers are sent
	silent  bool    // the receiver has finished, and is told nothing more
	told    bool    // the receiver is told of the end, or will be
	why     error
	window  int64 // what the peer takes
	pending []Piece
	unsent  int // bytes of pending
	ready   bool

	finished bool
	status   *Status

	deadline time.Time
	timer    *time.Timer
	done     chan struct{}
	left     chan struct{}
}

// ID is the stream's number in its connection.
func (s *Stream) ID() uint32 { return s.id }

// RemoteAddr is the peer's address.
func (s *Stream) RemoteAddr() net.Addr { return s.c.nc.RemoteAddr() }

// Deadline is when the peer will no longer wait, if it said so.
func (s *Stream) Deadline() (time.Time, bool) { return s.deadline, !s.deadline.IsZero() }

// Err says why the stream has ended; nil as long as it has not.
func (s *Stream) Err() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.why
}

// Done is closed when the stream has ended, in whatever way.
func (s *Stream) Done() <-chan struct{} {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return lazily(&s.done, s.why != nil)
}

// Left is closed when the stream has ended or the peer has closed its side, for protocols in
// which nobody who does so wants an answer any more.
func (s *Stream) Left() <-chan struct{} {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return lazily(&s.left, s.why != nil || s.half)
}

func lazily(ch *chan struct{}, closed bool) chan struct{} {
	if *ch == nil {
		*ch = make(chan struct{})
		if closed {
			close(*ch)
		}
	}
	return *ch
}

// shut closes a channel that may be nil or closed.
func shut(ch chan struct{}) {
	if ch == nil {
		return
	}
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// Send sends a message and takes a reference of each of its pieces over, whatever it returns. It
// does not wait: what the peer does not take yet is kept, and the peer is not let send more
// meanwhile. A message over the limit is not sent, and the error is a [*Status] for the peer. Unless called by the reader, in which case it is written together with
// whatever else the reader's burst brings, it is written at once.
func (s *Stream) Send(pieces ...Piece) error {
	n := 0
	for i := range pieces {
		n += len(pieces[i].P)
	}
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	long := c.srv.opt.MaxSend > 0 && n > c.srv.opt.MaxSend
	if s.gone || s.finished || long {
		for i := range pieces {
			pieces[i].Free()
		}
		switch {
		case s.finished:
			return ErrFinished
		case s.gone:
			return s.why
		}
		return &Status{ResourceExhausted, fmt.Sprintf("grpc: trying to send message larger than max (%d vs. %d)", n, c.srv.opt.MaxSend)}
	}
	if !s.headed {
		s.headed = true
		c.putFields(s.id, responseHead, false)
	}
	total := n + 5
	if s.unsent == 0 && total <= int(min(s.window, c.window, int64(c.frame))) && len(c.ready) == 0 {
		b := c.room(9 + 5)
		putHeader(b, total, http2.FrameData, 0, s.id)
		b[9] = 0
		binary.BigEndian.PutUint32(b[10:], uint32(n))
		s.window -= int64(total)
		c.window -= int64(total)
		for i := range pieces {
			c.put(pieces[i])
		}
	} else {
		prefix := make([]byte, 5)
		binary.BigEndian.PutUint32(prefix[1:], uint32(n))
		s.pending = append(s.pending, Piece{P: prefix})
		for i := range pieces {
			if len(pieces[i].P) > 0 {
				s.pending = append(s.pending, pieces[i])
			} else {
				pieces[i].Free()
			}
		}
		s.unsent += total
		c.want(s)
		c.pump()
	}
	if !c.busy {
		c.flush()
	}
	return nil
}

// Unsent is how many bytes the peer does not take yet.
func (s *Stream) Unsent() int {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.unsent
}

// Finish ends the stream once all that was sent is out; nil is OK. Only the first one counts.
func (s *Stream) Finish(status *Status) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.finish(status)
	if !c.busy {
		c.flush()
	}
}

func (s *Stream) finish(status *Status) {
	s.silent = true
	if s.gone || s.finished {
		return
	}
	s.finished, s.status = true, status
	if s.unsent == 0 {
		s.c.putTrailers(s)
	}
}

// abort ends the stream at once, without what it had to send. It is called with mu held.
func (s *Stream) abort(status *Status) {
	s.c.dropUnsent(s)
	s.finished, s.status, s.why = true, status, status
	s.c.putTrailers(s)
}

// Detach lets the call under way take its time: another goroutine goes on reading the connection.
// What comes in for this stream is kept until the call returns, and told then, on this goroutine.
// Only the goroutine that runs the call may detach; it may do so more than once.
func (s *Stream) Detach() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != s {
		return // gone already
	}
	s.away = true
	s.part = nil // what the call reads is its own
	c.current = nil
	c.turn++
	c.srv.wg.Add(1)
	go c.read()
}

// call tells the receiver.
func (s *Stream) call(e *event) {
	switch e.kind {
	case evMessage:
		if e.zipped {
			s.callZipped(e)
			return
		}
		s.msg = Message{Pieces: e.pieces, Len: e.n}
		s.r.Message(s, &s.msg)
		freeAll(e.pieces)
	case evHalf:
		s.r.HalfClose(s)
	case evClosed:
		s.r.Closed(s, e.why)
	case evPost:
		e.post()
	}
}

// Post has f called as if it were a call of the receiver: not at the same time as another, and not after
// the end. Any goroutine may post; f must not wait for anything.
func (s *Stream) Post(f func()) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.silent || s.told {
		return
	}
	s.queue = append(s.queue, event{kind: evPost, post: f})
	if s.away || c.current == s {
		return // whoever runs the call tells of it afterwards
	}
	s.away = true
	c.srv.wg.Add(1)
	go func() {
		defer c.srv.wg.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rejoin(s)
	}()
}

// deliver tells the receiver of s, or keeps it for one that is away. Only the reader calls it, and
// must return when it says that the goroutine is no longer that.
func (c *conn) deliver(s *Stream, e event) (reader bool) {
	c.mu.Lock()
	if s.silent || s.told {
		c.mu.Unlock()
		freeAll(e.pieces)
		return true
	}
	s.told = e.kind == evClosed
	if s.away {
		if e.kind == evMessage && len(s.queue) >= maxQueue && !s.gone {
			freeAll(e.pieces)
			s.told = true
			s.abort(&Status{ResourceExhausted, "too many messages at a time"})
			e = event{kind: evClosed, why: s.why}
		}
		s.queue = append(s.queue, e)
		c.mu.Unlock()
		return true
	}
	turn := c.turn
	c.current = s
	c.mu.Unlock()
	s.call(&e)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn == turn {
		c.current = nil
		if len(s.queue) > 0 { // posted meanwhile
			s.away = true
			c.rejoin(s)
		}
		return true
	}
	c.rejoin(s)
	return false
}

// maxQueue is how many messages are kept for a receiver that is away. The window bounds their bytes,
// but empty ones have none to speak of.
const maxQueue = 16 << 10

// rejoin tells a receiver what came in while it was away. It is called with mu held.
func (c *conn) rejoin(s *Stream) {
	for len(s.queue) > 0 {
		e := s.queue[0]
		s.queue[0] = event{}
		s.queue = s.queue[1:]
		if s.silent {
			freeAll(e.pieces)
			continue
		}
		c.mu.Unlock()
		s.call(&e)
		c.mu.Lock()
	}
	s.queue = nil
	s.away = false
	n := s.owed
	s.owed = 0
	c.credit(s, n)
	if !c.busy {
		c.flush()
	}
}

// credit lets the peer send n bytes more, as soon as it is worth a frame, and as soon as it
// takes what we have to send.
func (c *conn) credit(s *Stream, n int) {
	s.due += n
	if s.due < c.srv.opt.StreamWindow/2 || s.gone || s.half || s.unsent > c.srv.opt.StreamWindow {
		return
	}
	c.put32(http2.FrameWindowUpdate, s.id, uint32(s.due))
	s.inbox += s.due
	s.due = 0
}

// take cuts messages out of the part of a DATA frame that is there, and tells of them. It steps
// over what it has seen before it tells, so that another goroutine can go on from there.
func (c *conn) take(s *Stream) (reader bool) {
	d := &c.data
	for d.left > 0 && c.r < c.w {
		p := c.buf.b[c.r:min(c.w, c.r+d.left)]
		if s.headN < 5 {
			k := copy(s.head[s.headN:], p)
			s.headN += k
			c.r += k
			d.left -= k
			if s.headN < 5 {
				return true
			}
			s.packing = false
			s.need, s.partSize = int(binary.BigEndian.Uint32(s.head[1:])), 0
			if status := s.acceptable(s.head[0], s.need); status != nil {
				d.s = nil // the rest is skipped
				return c.failStream(s, status)
			}
		} else {
			p = p[:min(s.need, len(p))]
			s.add(p, c.buf)
			s.need -= len(p)
			s.partSize += len(p)
			c.r += len(p)
			d.left -= len(p)
		}
		if s.need == 0 {
			s.headN = 0
			if !c.tell(s) {
				return false
			}
		}
	}
	return true
}

// tell delivers the message that is complete.
func (c *conn) tell(s *Stream) (reader bool) {
	part := s.part
	s.part = nil
	for i := range part {
		part[i].P = slices.Clip(part[i].P)
	}
	if !c.deliver(s, event{kind: evMessage, zipped: s.head[0] == 1, pieces: part, n: s.partSize}) {
		return false
	}
	if !s.awayNow() {
		s.part = part[:0] // else it is in the queue
	}
	return true
}

// over tells whether the connection no longer knows the stream.
func (s *Stream) over() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.gone
}

func (s *Stream) awayNow() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.away
}

// add appends received bytes to the message, to its last piece if they follow it in memory.
// A message in many small frames is packed, or its pieces would take more memory than its bytes.
func (s *Stream) add(p []byte, b *Buffer) {
	n := len(s.part)
	if n >= packFrom && len(p) < worthReferring {
		s.pack(p)
		return
	}
	s.packing = false
	if n > 0 {
		last := &s.part[n-1]
		if last.Buffer == b && cap(last.P)-len(last.P) == cap(p) {
			last.P = last.P[:len(last.P)+len(p)]
			return
		}
	}
	b.Ref()
	s.part = append(s.part, Piece{p, b})
}

// packFrom is how many pieces a message may have before small ones are packed.
const packFrom = 16

// pack copies received bytes to a buffer that is the message's own.
func (s *Stream) pack(p []byte) {
	for len(p) > 0 {
		last := &s.part[len(s.part)-1]
		if !s.packing || len(last.P) == cap(last.P) {
			b := s.c.srv.pool.get(1)
			s.part = append(s.part, Piece{b.b[:0], b})
			s.packing = true
			continue
		}
		k := min(len(p), cap(last.P)-len(last.P))
		last.P = append(last.P, p[:k]...)
		p = p[k:]
	}
}

// acceptable tells whether a message may come in.
func (s *Stream) acceptable(flag byte, n int) *Status {
	limit := s.c.srv.opt.MaxMessage
	switch {
	case flag == 1 && !s.zips:
		return &Status{Internal, "grpc: compressed flag set with identity or empty encoding"}
	case flag > 1:
		return &Status{Internal, fmt.Sprintf("grpc: received unexpected payload format %d", flag)}
	case n > limit:
		return &Status{ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", n, limit)}
	}
	return nil
}
