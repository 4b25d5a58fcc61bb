// SPDX-License-Identifier: Apache-2.0

// Package wire answers: how do gRPC messages get in and out cheaply?
//
// It serves bidirectional gRPC streams over HTTP/2 with one goroutine for each connection, which reads
// frames, calls the receiver of a stream inline, and writes all that a burst of frames brought
// about at once. Bodies stay in the buffers that they were received in. There are no
// goroutines, channels or contexts for each stream; a receiver that must wait hands the reading to
// another goroutine (see [Stream.Detach]).
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"
)

// Options are what a [Server] is made of. Zero values are the defaults.
type Options struct {
	// Handler says who receives a stream.
	Handler Handler
	// TLS is what to serve with; nil serves plaintext.
	TLS *tls.Config
	// Drain is how long open streams may take to end when the server stops.
	Drain time.Duration
	// MaxMessage is the longest message that may come in; the default is 4 MiB.
	MaxMessage int
	// MaxSend is the longest message that may go out: a longer one ends its stream. The default is no limit.
	MaxSend int
	// MaxStreams is how many streams a connection may have at a time; the default is 2^31-1.
	MaxStreams int
	// MaxHeaders is how long the headers of a stream may be in all; the default is 256 KiB.
	MaxHeaders int
	// StreamWindow and ConnWindow are what a peer may send ahead; the defaults are 1 and 16 MiB.
	StreamWindow, ConnWindow int
	// MaxOutput is how much may wait to be written to a connection before nothing more is read from
	// it; the default is 4 MiB.
	MaxOutput int
	// MaxResets is how many streams a peer may reset in a second; the default is 5000.
	MaxResets int
	// Idle is how long a connection may be silent before it is pinged, and Timeout how long the
	// answer may take; the defaults are 30 and 20 seconds. A connection that does not begin to
	// speak gets Timeout too.
	Idle, Timeout time.Duration
	// Poison clears buffers that come back, so that a test sees whoever still reads them.
	Poison bool
	// Log takes what goes wrong with a connection, at debug level; nil is the default logger.
	Log *slog.Logger
}

// Server serves gRPC streams.
type Server struct {
	opt  Options
	pool buffers
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{}
	empty chan struct{} // closed when draining and the last connection is gone
}

// New makes a server.
func New(opt Options) *Server {
	def := func(v *int, to int) {
		if *v <= 0 {
			*v = to
		}
	}
	def(&opt.MaxMessage, 4<<20)
	def(&opt.MaxStreams, math.MaxInt32)
	def(&opt.MaxHeaders, 256<<10)
	def(&opt.StreamWindow, 1<<20)
	def(&opt.ConnWindow, 16<<20)
	def(&opt.MaxOutput, 4<<20)
	def(&opt.MaxResets, 5000)
	opt.StreamWindow = min(opt.StreamWindow, math.MaxInt32)
	opt.ConnWindow = min(max(opt.ConnWindow, 65535), math.MaxInt32) // HTTP/2 cannot start lower
	if opt.Idle <= 0 {
		opt.Idle = 30 * time.Second
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 20 * time.Second
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.TLS != nil {
		opt.TLS = opt.TLS.Clone()
		opt.TLS.NextProtos = []string{"h2"}
		opt.TLS.DynamicRecordSizingDisabled = true // messages are complete or nothing
	}
	s := &Server{opt: opt, conns: map[*conn]struct{}{}}
	s.pool.poison = opt.Poison
	return s
}

// Live is how many buffers are out.
func (s *Server) Live() int64 { return s.pool.live.Load() }

// Serve serves until ctx ends, and then until the open streams do or the drain time is over. It
// returns when all goroutines have ended, including those of detached calls.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	err := s.accept(ctx, lis)
	stop()
	lis.Close()
	if ctx.Err() != nil {
		err = nil
		s.drain()
	}
	s.mu.Lock()
	for c := range s.conns {
		c.sock.Conn.Close() // a TLS one would wait to say goodbye
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) accept(ctx context.Context, lis net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		nc, err := lis.Accept()
		if ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		var ne net.Error
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.add(nc)
		//lint:ignore SA1019 there is no other way to know of such as no more file descriptors
		case errors.As(err, &ne) && ne.Temporary():
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
			pause = min(2*pause, time.Second)
		default:
			return err
		}
	}
}

func (s *Server) add(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.wg.Add(1)
	go c.serve()
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// drain tells all peers to open no more streams, and waits for the open ones.
func (s *Server) drain() {
	if s.opt.Drain <= 0 {
		return
	}
	s.mu.Lock()
	if len(s.conns) == 0 {
		s.mu.Unlock()
		return
	}
	empty := make(chan struct{})
	s.empty = empty
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	s.mu.Unlock()
	for _, c := range list {
		c.drain()
	}
	t := time.NewTimer(s.opt.Drain)
	defer t.Stop()
	select {
	case <-empty:
	case <-t.C:
	}
}
