// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Publisher speaks an engine's side, PUB and ROUTER, for simulated engines and for tests. It keeps its messages for
// replays. All methods may be called from any goroutine; none that publishes waits for a subscriber.
type Publisher struct {
	// Topic is what Send publishes under. It must not be changed any more once there are connections.
	Topic string
	// Keep is how many messages can be replayed, KeepBytes how many bytes of payload; 0 for KeepBytes is no bound.
	Keep, KeepBytes int
	// Queue is how many messages may wait for a subscriber that reads slowly; what is beyond is lost to it. 0 means 100,000,
	// vLLM's high-water mark.
	Queue int

	mu     sync.Mutex
	buffer []published
	kept   int // bytes in buffer
	peers  map[*subscriber]bool
	conns  map[net.Conn]bool
	closed bool
	wg     sync.WaitGroup // of the connections
}

type published struct {
	seq     uint64
	payload []byte
}

// subscriber is one connection that subscribes. Its fields are guarded by the publisher's mu.
type subscriber struct {
	filters map[string]bool
	queue   [][][]byte    // messages to be written
	news    chan struct{} // there may be something in queue
}

const usualQueue = 100_000

// Send publishes a payload under a number. The payload must not change any more.
func (p *Publisher) Send(seq uint64, payload []byte) {
	p.Lose(seq, payload)
	p.SendParts([]byte(p.Topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}

// Lose keeps a payload for replays without sending it, as if it were lost on the way to every subscriber.
func (p *Publisher) Lose(seq uint64, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buffer = append(p.buffer, published{seq, payload})
	p.kept += len(payload)
	for len(p.buffer) > p.Keep || p.KeepBytes > 0 && p.kept > p.KeepBytes {
		p.kept -= len(p.buffer[0].payload)
		p.buffer[0] = published{} // the array lives on until append outgrows it
		p.buffer = p.buffer[1:]
	}
}

// SendParts publishes a message of any form, which is not kept for replays. A subscriber that does not read loses its
// connection after a while, and before that what its queue cannot hold.
func (p *Publisher) SendParts(parts ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.Queue
	if most == 0 {
		most = usualQueue
	}
	for s := range p.peers {
		if len(parts) == 0 || len(s.queue) >= most || !s.wants(parts[0]) {
			continue
		}
		s.queue = append(s.queue, parts)
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

func (s *subscriber) wants(topic []byte) bool {
	for f := range s.filters {
		if wanted(topic, f) {
			return true
		}
	}
	return false
}

// Subscribers is how many there are.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.peers {
		if len(s.filters) > 0 {
			n++
		}
	}
	return n
}

// ServeEvents takes subscribers from the listener until it is closed.
func (p *Publisher) ServeEvents(l net.Listener) error { return p.serve(l, p.subscriber) }

// ServeReplays takes replay requests from the listener until it is closed.
func (p *Publisher) ServeReplays(l net.Listener) error { return p.serve(l, p.replayer) }

func (p *Publisher) serve(l net.Listener, each func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if p.enter(c) {
			go func() {
				defer p.leave(c)
				each(c)
			}()
		}
	}
}

// Close ends all connections and refuses new ones; listeners are their owner's.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Reopen begins anew after Close as another process would, with nothing to replay; its first message should have the
// number 0.
func (p *Publisher) Reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.buffer, p.kept = false, nil, 0
}

// enter notes the connection; false when the publisher is closed, and then the connection is, too.
func (p *Publisher) enter(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	if p.conns == nil {
		p.conns, p.peers = map[net.Conn]bool{}, map[*subscriber]bool{}
	}
	p.conns[c] = true
	p.wg.Add(1)
	return true
}

func (p *Publisher) leave(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	c.Close()
	p.wg.Done()
}

// Subscriber serves one subscriber until the connection ends, be it that who subscribes dialled or was dialled.
func (p *Publisher) Subscriber(c net.Conn) {
	if p.enter(c) {
		defer p.leave(c)
		p.subscriber(c)
	}
}

func (p *Publisher) subscriber(c net.Conn) {
	w, err := shake(c, "PUB", maxCommand)
	if err != nil {
		return
	}
	s := &subscriber{filters: map[string]bool{}, news: make(chan struct{}, 1)}
	p.mu.Lock()
	p.peers[s] = true
	p.mu.Unlock()
	gone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.write(s, w, gone) })
	p.listen(s, w)
	p.mu.Lock()
	delete(p.peers, s)
	p.mu.Unlock()
	c.Close()
	close(gone)
	wg.Wait()
}

// write sends what is queued for a subscriber.
func (p *Publisher) write(s *subscriber, w *wire, gone <-chan struct{}) {
	var out [][][]byte
	for {
		select {
		case <-gone:
			return
		case <-s.news:
		}
		p.mu.Lock()
		out, s.queue = s.queue, out[:0]
		p.mu.Unlock()
		for i, parts := range out {
			out[i] = nil
			if w.send(0, parts...) != nil {
				w.Close()
				return
			}
		}
	}
}

// listen hears what a subscriber wants until the connection ends.
func (p *Publisher) listen(s *subscriber, w *wire) {
	set := func(on bool, filter []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if on && len(s.filters) < maxFields {
			s.filters[string(filter)] = true
		} else if !on {
			delete(s.filters, string(filter))
		}
	}
	w.command = func(name, body []byte) {
		switch {
		case strings.EqualFold(string(name), "SUBSCRIBE"):
			set(true, body)
		case strings.EqualFold(string(name), "CANCEL"):
			set(false, body)
		}
	}
	for {
		parts, err := w.read()
		if err != nil {
			return
		}
		if len(parts) == 1 && len(parts[0]) > 0 { // the older form
			set(parts[0][0] == 1, parts[0][1:])
		}
	}
}

// replays serves the requests of one connection.
func (p *Publisher) replays(c net.Conn) {
	if p.enter(c) {
		defer p.leave(c)
		p.replayer(c)
	}
}

func (p *Publisher) replayer(c net.Conn) {
	w, err := shake(c, "ROUTER", maxCommand)
	if err != nil {
		return
	}
	for {
		parts, err := w.read()
		if err != nil {
			return
		}
		if len(parts) != 2 || len(parts[1]) != 8 {
			continue
		}
		from := binary.BigEndian.Uint64(parts[1])
		p.mu.Lock()
		buffer := slices.Clone(p.buffer)
		p.mu.Unlock()
		buffer = append(buffer, published{seq: endMark})
		for _, m := range buffer {
			if m.seq < from {
				continue
			}
			topic := []byte(p.Topic)
			if m.seq == endMark {
				topic = nil
			}
			if w.send(0, nil, topic, binary.BigEndian.AppendUint64(nil, m.seq), m.payload) != nil {
				return
			}
		}
	}
}

// Dial publishes to a central subscriber, again after a pause whenever the connection ends, until done is closed.
func (p *Publisher) Dial(address string, pause time.Duration, done <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	dialer := net.Dialer{Timeout: dialFor}
	for {
		if c, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			p.Subscriber(c)
			stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
