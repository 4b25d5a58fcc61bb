// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is one connection.
//
// At any time one goroutine is its reader. It takes frames from the receive buffer, changes what
// the reader owns, and calls receivers. A receiver that detaches makes another goroutine the
// reader in the midst of a burst: so all state that a parse needs is here and not on the stack,
// and a parse is stepped forward before a receiver is called.
type conn struct {
	srv  *Server
	nc   net.Conn // what is read from: tls or the socket
	tls  *tls.Conn
	sock *socket

	// What the reader owns.
	buf     *Buffer
	r, w    int // buf.b[r:w] is yet to be looked at
	tier    int
	small   int // short reads in a row
	data    dataFrame
	block   headerBlock
	greeted bool // the preface is read
	settled bool // and the first SETTINGS
	err     error
	polite  bool // the peer is to read our last words
	dec     *hpack.Decoder
	header  func(name string) string
	rates   rates

	alive atomic.Uint64 // grows with each read
	moved atomic.Uint64 // grows when the peer took something that it had not taken at once

	mu      sync.Mutex
	turn    int     // grows with each change of the reader
	current *Stream // whose receiver the reader is calling
	busy    bool    // the reader is at work, and will flush
	lost    bool
	streams map[uint32]*Stream
	maxID   uint32
	posts   []func() (reader bool) // for the reader to do
	stalled bool                   // the reader waits for room
	vacancy chan struct{}
	out     output
	ready   []*Stream // that may send, in turn
	window  int64     // what the peer takes on all streams
	initial int64     // what it takes on a new one
	frame   int       // the longest frame it takes
	inbox   int       // what it may still send on all streams
	due     int
	removed []*Stream // since the reader last looked

	tellTable bool
	draining  drainState
	record    *Buffer

	seen, seenMoved uint64 // of alive and moved, at the last tick
	pinged          bool
	timer           *time.Timer
}

type drainState int8

const (
	serving drainState = iota
	warned             // the peer was told, and may have opened streams before it heard
	drained            // it knows: what is open is all there will be
)

var (
	errDrained = errors.New("drained")
	longAgo    = time.Unix(1, 0)
)

// fatal ends a connection, with a GOAWAY that says so.
type fatal struct {
	code http2.ErrCode
	what string
}

func (f fatal) Error() string { return f.code.String() + ": " + f.what }

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		srv: s, sock: newSocket(nc), streams: map[uint32]*Stream{}, vacancy: make(chan struct{}, 1),
		window: 65535, initial: 65535, frame: 16 << 10, inbox: s.opt.ConnWindow, busy: true,
	}
	c.nc = c.sock.Conn
	if s.opt.TLS != nil {
		c.tls = tls.Server(c.sock, s.opt.TLS)
		c.nc = c.tls
	}
	c.dec = hpack.NewDecoder(4096, c.block.add)
	c.dec.SetMaxStringLength(s.opt.MaxHeaders)
	c.header = c.block.get
	c.block.limit = s.opt.MaxHeaders
	return c
}

// serve greets the peer and becomes the reader.
func (c *conn) serve() {
	c.nc.SetDeadline(time.Now().Add(c.srv.opt.Timeout))
	if c.tls != nil {
		if err := c.tls.Handshake(); err != nil {
			c.err = err
		} else if c.tls.ConnectionState().NegotiatedProtocol != "h2" {
			c.err = errors.New("the client does not speak h2")
		}
		c.sock.setWaits(c.sock.raw == nil)
	}
	c.nc.SetWriteDeadline(time.Time{})
	c.mu.Lock()
	o := &c.srv.opt
	b := c.putFrame(18, http2.FrameSettings, 0, 0)
	putSetting(b, http2.SettingMaxConcurrentStreams, o.MaxStreams)
	putSetting(b[6:], http2.SettingInitialWindowSize, o.StreamWindow)
	putSetting(b[12:], http2.SettingMaxHeaderListSize, o.MaxHeaders)
	if extra := o.ConnWindow - 65535; extra > 0 {
		c.put32(http2.FrameWindowUpdate, 0, uint32(extra))
	}
	c.timer = time.AfterFunc(o.Idle, c.tick)
	c.mu.Unlock()
	c.read()
}

// read is the goroutine of the reader.
func (c *conn) read() {
	defer c.srv.wg.Done()
	for c.err == nil {
		reader, err := c.parse()
		if !reader {
			return
		}
		if err == nil {
			err = c.fill()
		}
		c.err = err
	}
	if !c.farewell() {
		return
	}
	if c.polite {
		c.linger()
	}
	c.close()
}

// fill writes what the burst brought about, and reads more.
func (c *conn) fill() error {
	c.mu.Lock()
	c.busy = false
	c.flush()
	for c.out.bytes > c.srv.opt.MaxOutput && len(c.posts) == 0 {
		c.await()
	}
	c.tidy()
	over := c.draining == drained && len(c.streams) == 0
	c.mu.Unlock()
	if over {
		return errDrained
	}
	c.makeRoom()
	space := c.buf.b[c.w:]
	n, err := c.nc.Read(space)
	c.w += n
	c.alive.Add(1)
	c.mu.Lock()
	c.busy = true
	c.mu.Unlock()
	switch {
	case n == len(space):
		c.tier, c.small = min(c.tier+1, len(bufferSizes)-1), 0
	case n > len(space)/8:
		c.small = 0
	default:
		if c.small++; c.small > 64 {
			c.tier, c.small = max(c.tier-1, 0), 0
		}
	}
	if n > 0 {
		return nil
	}
	if c.greeted && errors.Is(err, os.ErrDeadlineExceeded) { // something was posted
		c.nc.SetReadDeadline(time.Time{})
		return nil
	}
	return err
}

// await waits for something to be written, or posted. It is called with mu held.
func (c *conn) await() {
	c.stalled = true
	c.mu.Unlock()
	<-c.vacancy
	c.mu.Lock()
	c.stalled = false
}

// wake ends an await.
func (c *conn) wake() {
	if c.stalled {
		select {
		case c.vacancy <- struct{}{}:
		default:
		}
	}
}

// tidy gives back what removed streams had received of a message. Only the reader may.
func (c *conn) tidy() {
	for i, s := range c.removed {
		freeAll(s.part)
		s.part = nil
		c.removed[i] = nil
	}
	c.removed = c.removed[:0]
}

// leastSpace is what makes a read worth it; of a large buffer it is a sixteenth.
const leastSpace = 1 << 10

// makeRoom sees to it that there is something to read into: the same buffer from its start if nobody
// has kept any of it, then the rest of it, then another one.
func (c *conn) makeRoom() {
	left := c.w - c.r
	if c.buf != nil {
		if left == 0 && c.buf.refs.Load() == 1 {
			c.r, c.w = 0, 0
			if c.buf.tier == c.tier {
				return
			}
		} else if len(c.buf.b)-c.w >= max(leastSpace, len(c.buf.b)/16) && c.wanted() <= len(c.buf.b)-c.r {
			return
		}
	}
	tier := c.tier
	for bufferSizes[tier] < max(c.wanted(), left+leastSpace) {
		tier++
	}
	b := c.srv.pool.get(tier)
	if c.buf != nil {
		copy(b.b, c.buf.b[c.r:c.w])
		c.buf.Free()
	}
	c.buf, c.r, c.w = b, 0, left
}

// post has the reader do something soon.
func (c *conn) post(do func() (reader bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts = append(c.posts, do)
	c.rouse()
}

// rouse makes the reader look around. It is called with mu held.
func (c *conn) rouse() {
	c.wake()
	c.nc.SetReadDeadline(longAgo)
}

// posted does what was posted.
func (c *conn) posted() (reader bool) {
	for {
		c.mu.Lock()
		if len(c.posts) == 0 {
			c.mu.Unlock()
			return true
		}
		do := c.posts[0]
		c.posts = c.posts[1:]
		c.mu.Unlock()
		if !do() {
			return false
		}
	}
}

// farewell tells the peer why the connection ends, and the receivers that it has.
func (c *conn) farewell() (reader bool) {
	c.mu.Lock()
	c.busy = false
	var f fatal
	if errors.As(c.err, &f) {
		c.err = errors.New(f.Error()) // said once, should a receiver detach now
		b := c.putFrame(8+len(f.what), http2.FrameGoAway, 0, 0)
		putGoAway(b, c.maxID, f.code)
		copy(b[8:], f.what)
		c.flush()
		c.srv.opt.Log.Debug("a connection was ended", slog.Any("error", f), slog.Any("peer", c.nc.RemoteAddr()))
		c.polite = true
	} else if c.err == errDrained {
		c.polite = true
	}
	c.lost = true
	for _, s := range c.streams {
		c.mu.Unlock()
		if !c.endStream(s, ErrLost) {
			return false
		}
		c.mu.Lock()
	}
	c.mu.Unlock()
	return true
}

// linger lets the peer read the last that we wrote: a close with something unread would take it away.
func (c *conn) linger() {
	c.nc.SetDeadline(time.Now().Add(time.Second))
	c.mu.Lock()
	for c.out.writing {
		c.await()
	}
	c.mu.Unlock()
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, c.nc, 1<<20)
	}
}

// close gives everything back.
func (c *conn) close() {
	c.nc.Close()
	c.mu.Lock()
	c.lost = true
	c.timer.Stop()
	for c.out.writing {
		c.await()
	}
	c.dropOutput()
	c.tidy()
	c.mu.Unlock()
	c.buf.Free()
	c.record.Free()
	c.buf, c.record = nil, nil
	c.srv.remove(c)
}

// remove forgets a stream. It is called with mu held.
func (c *conn) remove(s *Stream) {
	if s.gone {
		return
	}
	s.gone = true
	if s.why == nil {
		s.why = ErrFinished
	}
	delete(c.streams, s.id)
	if s.timer != nil {
		s.timer.Stop()
	}
	shut(s.done)
	shut(s.left)
	c.removed = append(c.removed, s)
	if c.draining == drained && len(c.streams) == 0 && !c.busy {
		c.rouse() // to close
	}
}

// dropUnsent forgets what s was to send. It is called with mu held.
func (c *conn) dropUnsent(s *Stream) {
	freeAll(s.pending)
	s.pending, s.unsent = nil, 0
}

// endStream ends a stream that the peer or the network has ended.
func (c *conn) endStream(s *Stream, why error) (reader bool) {
	c.mu.Lock()
	if s.gone {
		c.mu.Unlock()
		return true
	}
	c.dropUnsent(s)
	s.why = why
	c.remove(s)
	c.mu.Unlock()
	return c.deliver(s, event{kind: evClosed, why: why})
}

// failStream ends a stream with a status of ours.
func (c *conn) failStream(s *Stream, status *Status) (reader bool) {
	c.mu.Lock()
	if s.gone {
		c.mu.Unlock()
		return true
	}
	s.abort(status)
	c.mu.Unlock()
	return c.deliver(s, event{kind: evClosed, why: status})
}

// tick pings a peer that is silent, and gives up one that stays so.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	n, m := c.alive.Load(), c.moved.Load()
	switch {
	case n != c.seen || c.out.writing && m != c.seenMoved: // a slow reader, of whom we may not read now
		c.seen, c.seenMoved, c.pinged = n, m, false
		c.timer.Reset(c.srv.opt.Idle)
	case !c.pinged:
		c.pinged = true
		copy(c.putFrame(8, http2.FramePing, 0, 0), idlePing)
		c.timer.Reset(c.srv.opt.Timeout)
		if !c.busy {
			c.flush()
		}
	default:
		c.sock.Conn.Close() // a TLS one would wait to say goodbye
	}
}

// drain asks the peer to open no more streams.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining != serving || c.lost {
		return
	}
	c.draining = warned
	putGoAway(c.putFrame(8, http2.FrameGoAway, 0, 0), math.MaxInt32, http2.ErrCodeNo)
	copy(c.putFrame(8, http2.FramePing, 0, 0), drainPing) // the answer comes after all it opened before it knew
	if !c.busy {
		c.flush()
	}
}

// Payloads of our pings, by which we know their answers.
const (
	idlePing  = "penstock"
	drainPing = "goodbye!"
)
