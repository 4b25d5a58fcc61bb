// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	maxConns   = 4096 // engines that may be connected to a central socket
	maxSources = 8192 // topics and ranks that it remembers
	maxEach    = 256  // of those, on one connection

	// How long to wait before a connection is accepted after an error.
	leastPause = 5 * time.Millisecond
	mostPause  = time.Second
)

// Listen opens the address that engines dial: tcp://HOST:PORT, with * for all hosts.
func Listen(ctx context.Context, endpoint string) (net.Listener, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return nil, fmt.Errorf("%s: not tcp://HOST:PORT", endpoint)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", strings.Replace(address, "*:", ":", 1))
}

// Serve takes the connections of engines that dial us until ctx ends, and closes the listener. It leaves no goroutine behind. A
// source is a topic, the rank that its batches tell and the address that they come from; one whose engine is gone is remembered until
// there are too many. While no connection can be taken, as for want of file descriptors, those that there are go on.
func Serve(ctx context.Context, l net.Listener, opt Options, sink Sink) error {
	opt.defaults()
	c := &central{opt: &opt, sink: sink, sources: map[named]*Source{}}
	c.room.left.Store(int64(opt.All))
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() }) // of this ctx: who sees the listener closed by it sees it ended
	defer stop()
	defer l.Close()
	places := make(chan struct{}, maxConns)
	pause := leastPause
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, mostPause)
			continue
		}
		pause = leastPause
		select {
		case places <- struct{}{}:
			wg.Go(func() {
				defer func() { <-places }()
				c.serve(ctx, conn)
			})
		default:
			sink.Dropped(nobody, TooMany)
			conn.Close()
		}
	}
}

type named struct {
	topic string
	rank  int
	from  netip.Addr
}

type central struct {
	opt  *Options
	sink Sink
	room room

	mu      sync.Mutex
	sources map[named]*Source
}

func (c *central) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	w, err := shake(conn, "SUB", c.opt.Buffer)
	if err != nil {
		return
	}
	w.room = &c.room
	defer w.leave()
	var from netip.Addr
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		from = at.Addr().Unmap().WithZone("")
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{ctx: ctx, opt: c.opt, sink: c.sink, queue: newQueue(c.opt.Buffer, &c.room),
		source: func(topic []byte, rank int) *Source { return c.source(topic, rank, from) }}
	var telling sync.WaitGroup
	telling.Go(r.tell)
	_ = r.hold(w, func() {})
	r.queue.drained(ctx)
	cancel()
	telling.Wait()
	for _, s := range r.heard {
		s.mu.Lock()
		if s.last == r {
			s.connected.Store(false)
		}
		s.mu.Unlock()
	}
}

func (c *central) source(topic []byte, rank int, from netip.Addr) *Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sources[named{string(topic), rank, from}]; s != nil {
		return s
	}
	if len(c.sources) >= maxSources {
		maps.DeleteFunc(c.sources, func(_ named, s *Source) bool { return !s.Connected() })
	}
	if len(c.sources) >= maxSources || len(topic) > maxText {
		return nil
	}
	pod, _ := SplitTopic(string(topic))
	s := &Source{Name: pod, Rank: rank, From: from}
	c.sources[named{string(topic), rank, from}] = s
	return s
}
