// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Publisher speaks an engine's side, PUB and ROUTER, for simulated engines and for tests. It keeps its messages, up to
// Keep, for replays. All methods may be called from any goroutine.
type Publisher struct {
	Topic string
	// Keep is how many messages can be replayed.
	Keep int

	mu     sync.Mutex
	buffer []published
	peers  map[*wire]map[string]bool // subscribers and the filters of each
	conns  map[net.Conn]bool
	closed bool
	wg     sync.WaitGroup
}

type published struct {
	seq     uint64
	payload []byte
}

// Send publishes a payload under a number. The payload must not change any more.
func (p *Publisher) Send(seq uint64, payload []byte) {
	p.mu.Lock()
	p.buffer = append(p.buffer, published{seq, payload})
	if n := len(p.buffer) - p.Keep; n > 0 {
		p.buffer = slices.Delete(p.buffer, 0, n)
	}
	p.mu.Unlock()
	p.SendParts([]byte(p.Topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}

// SendParts publishes a message of any form, which is not kept for replays. A subscriber that does not read loses its connection after a while.
func (p *Publisher) SendParts(parts ...[]byte) {
	p.mu.Lock()
	var to []*wire
	for w, filters := range p.peers {
		for f := range filters {
			if len(parts) > 0 && wanted(parts[0], f) {
				to = append(to, w)
				break
			}
		}
	}
	p.mu.Unlock()
	for _, w := range to {
		if w.send(0, parts...) != nil {
			w.Close()
		}
	}
}

// Subscribers is how many there are.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, filters := range p.peers {
		if len(filters) > 0 {
			n++
		}
	}
	return n
}

// ServeEvents takes subscribers from the listener until it is closed.
func (p *Publisher) ServeEvents(l net.Listener) error { return p.serve(l, p.Subscriber) }

// ServeReplays takes replay requests from the listener until it is closed.
func (p *Publisher) ServeReplays(l net.Listener) error { return p.serve(l, p.replays) }

func (p *Publisher) serve(l net.Listener, each func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		p.wg.Go(func() { each(c) })
	}
}

// Close ends all connections; listeners are their owner's.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// enter notes the connection; false when the publisher is closed.
func (p *Publisher) enter(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	if p.conns == nil {
		p.conns, p.peers = map[net.Conn]bool{}, map[*wire]map[string]bool{}
	}
	p.conns[c] = true
	return true
}

func (p *Publisher) leave(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

// Subscriber serves one subscriber until the connection ends, be it that who subscribes dialled or was dialled.
func (p *Publisher) Subscriber(c net.Conn) {
	if !p.enter(c) {
		return
	}
	defer p.leave(c)
	w, err := shake(c, "PUB", maxCommand)
	if err != nil {
		return
	}
	filters := map[string]bool{}
	set := func(on bool, filter []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if on && len(filters) < maxFields {
			filters[string(filter)] = true
		} else if !on {
			delete(filters, string(filter))
		}
	}
	p.mu.Lock()
	p.peers[w] = filters
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.peers, w)
		p.mu.Unlock()
	}()
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
	if !p.enter(c) {
		return
	}
	defer p.leave(c)
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
	for {
		if c, err := net.DialTimeout("tcp", address, dialFor); err == nil {
			p.Subscriber(c)
		}
		select {
		case <-done:
			return
		case <-time.After(pause):
		}
	}
}
