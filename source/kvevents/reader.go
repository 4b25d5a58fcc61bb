// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Options say how to listen. The zero value of each field is the default that it names.
type Options struct {
	// Pool is the pool whose endpoints are dialled; the zero ID is all.
	Pool fleet.ID
	// Topic is how topics begin that count; empty for all.
	Topic string
	// Port is what rank 0 publishes on, and the ranks above on those behind it: 5557.
	Port int
	// ReplayPort is, in the same way, where missed messages can be asked for; 0 for nowhere.
	ReplayPort int
	// PortLabel and ReplayPortLabel name labels that hold an endpoint's own Port and ReplayPort, for engines that share an
	// address; empty for none.
	PortLabel, ReplayPortLabel string
	// Buffer bounds the bytes of messages that wait for the sink, for each connection: 8 MiB. A single message may
	// have as many.
	Buffer int
	// All bounds the bytes of messages that wait, and of those being read, for all connections together: 256 MiB, and 64 KiB for each
	// connection besides.
	All int
	// Backoff is the longest time between two tries to connect, 5 s; the first comes after 100 ms.
	Backoff time.Duration
	// Replays is how many replays may run at once, 8.
	Replays int
	// Begun is told of each publisher that is dialled, before the sink is told anything of it; nil for nobody.
	Begun func(*Source)
	// Dial opens connections; nil for a plain [net.Dialer].
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	firstBackoff = 100 * time.Millisecond
	dialFor      = 5 * time.Second
	replayFor    = 2 * time.Minute  // one replay as a whole
	replayIdle   = 2 * time.Second  // and between two of its messages; engines look every 100 ms
	replayRest   = 30 * time.Second // after one that failed
)

func (o *Options) defaults() {
	set := func(v *int, to int) {
		if *v <= 0 {
			*v = to
		}
	}
	set(&o.Port, 5557)
	set(&o.Buffer, 8<<20)
	set(&o.All, 256<<20)
	set(&o.Replays, 8)
	if o.Backoff <= 0 {
		o.Backoff = 5 * time.Second
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
}

// batches are shared by all readers: there are as many as sinks are told at once.
var batches = sync.Pool{New: func() any { return new(Batch) }}

// reader tells the sink what comes over one connection, or over those to one address, one after the other.
type reader struct {
	ctx    context.Context
	opt    *Options
	sink   Sink
	queue  *queue
	source func(topic []byte, rank int) *Source // nil for one too many

	replays chan struct{} // holds one for each that runs
	replay  string        // address, empty for none
	rested  time.Time     // when the next replay may be tried

	parted bool // the engine ended the last connection, and has not proved since that it is the same

	rank  int       // of the last batch
	only  *Source   // of one that was dialled
	heard []*Source // of one that dialled us
	parts [][]byte
}

// read puts what comes over the connection into the queue, until it ends.
func (r *reader) read(w *wire) error {
	for {
		parts, err := w.read()
		switch err {
		case nil:
			r.queue.put(aMessage, parts)
		case errTooLarge:
			r.queue.put(oversized, nil)
		case errParts:
			r.queue.put(misframed, nil)
		case errNoRoom:
			r.queue.put(overflowed, nil)
		default:
			return err
		}
	}
}

// tell empties the queue into the sink, until ctx ends.
func (r *reader) tell() {
	var buf []byte
	defer r.queue.leave()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.queue.ready:
		}
		buf = r.queue.take(buf)
		for rest := buf; len(rest) > 0 && r.ctx.Err() == nil; {
			var kind byte
			kind, r.parts, rest = record(rest, r.parts)
			r.handle(kind, r.parts)
		}
	}
}

func (r *reader) handle(kind byte, parts [][]byte) {
	switch kind {
	case aMessage:
		topic, seq, payload, err := frames(parts)
		if err != nil {
			r.dropped(BadFrame)
		} else if wanted(topic, r.opt.Topic) {
			r.message(topic, seq, payload)
		}
	case connected:
		r.connected()
		r.parted = false
	case parted:
		r.parted = true
	case refused:
		if s := r.only; s != nil {
			r.restarted(s)
		}
	case closed:
		close(r.queue.done)
	case overflowed:
		r.dropped(Overflow)
	case misframed:
		r.dropped(BadFrame)
	case oversized:
		r.dropped(TooLarge)
	}
}

// nobody is the source of what cannot be told apart.
var nobody = &Source{Name: "unknown"}

func (r *reader) dropped(reason Reason) {
	s := r.only
	if s == nil {
		s = nobody
	}
	r.sink.Dropped(s, reason)
}

// restarted tells it, if there is anything that it makes void.
func (r *reader) restarted(s *Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.anew(s)
}

func (r *reader) anew(s *Source) {
	if s.track.known {
		s.track.forget()
		r.sink.Restarted(s)
	}
}

// connected asks for what was missed. The newest message that we know is asked for, too: it shows whether this is
// still the engine that sent it. One that ended the connection and does not have that message any more is taken for another; one that
// cannot be asked may be another.
func (r *reader) connected() {
	s := r.only
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.track.fresh = true
	seq, sum, ok := s.track.newest()
	switch {
	case r.replay == "":
		r.doubt(s)
		return
	case !ok:
		r.fill(s, 0, nil)
		return
	}
	same, first := false, true
	complete := r.fill(s, seq, func(n, sum2 uint64) bool {
		if first {
			first = false
			same = sum2 == sum || n > seq && !r.parted // it may have been pushed out of the engine's buffer
		}
		return same
	})
	switch {
	case complete && first || !first && !same:
		r.anew(s)
		r.fill(s, 0, nil)
	case first:
		r.doubt(s)
	}
}

// doubt tells that the engine ended the connection, and nobody can say whether it is the same that is there now.
func (r *reader) doubt(s *Source) {
	if r.parted && s.track.known {
		r.sink.Gap(s, s.track.next, s.track.next-1)
	}
}

// message tells one live message, and what is to be told before it.
func (r *reader) message(topic []byte, seq uint64, payload []byte) {
	b := batches.Get().(*Batch)
	defer batches.Put(b)
	err := b.Decode(payload)
	if err == nil {
		r.rank = max(b.Rank, 0)
	}
	s := r.only
	if s == nil {
		if s = r.source(topic, r.rank); s == nil {
			r.sink.Dropped(nobody, TooMany)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.only == nil && s.last != r && len(r.heard) >= maxEach {
		r.sink.Dropped(nobody, TooMany)
		return
	}
	s.heard.Store(time.Now().UnixNano())
	if s.last != r {
		s.last, s.track.fresh = r, true
		if r.only == nil {
			s.connected.Store(true)
			r.heard = append(r.heard, s)
		}
	}
	b.setTopic(topic)
	if s.again.Swap(false) {
		s.track.forget()
	}
	sum := sumOf(payload)
	v := s.track.judge(seq, sum)
	switch v {
	case again:
		if !s.track.filled(seq) {
			r.sink.Dropped(s, Duplicate)
		}
		return
	case late:
		r.sink.Dropped(s, OutOfOrder)
		return
	case restarted:
		r.anew(s)
		v = s.track.judge(seq, sum)
	}
	if v == ahead && r.replay != "" {
		r.fill(s, s.track.next, nil) // next is 0 when nothing is known
		if s.track.known && seq < s.track.next {
			return // it came with the others
		}
	}
	r.take(s, seq, sum, b, err)
}

// take tells a message whose time has come.
func (r *reader) take(s *Source, seq, sum uint64, b *Batch, err error) {
	if next := s.track.next; seq > next {
		r.sink.Gap(s, next, seq-1)
	}
	s.track.took(seq, sum)
	if err != nil {
		r.sink.Dropped(s, reasonOf(err))
		r.sink.Gap(s, seq, seq)
		return
	}
	for _, reason := range b.Rejected {
		r.sink.Dropped(s, reason)
	}
	r.sink.Batch(s, seq, b)
}

// fill asks the engine for the messages from a number on and tells those that are new. keep, if any, sees each first and may end it. It
// reports whether the answer was whole.
func (r *reader) fill(s *Source, from uint64, keep func(seq, sum uint64) bool) bool {
	if time.Now().Before(r.rested) {
		return false
	}
	select {
	case r.replays <- struct{}{}:
	case <-r.ctx.Done():
		return false
	}
	defer func() { <-r.replays }()
	ctx, cancel := context.WithTimeout(r.ctx, replayFor)
	defer cancel()
	b := batches.Get().(*Batch)
	defer batches.Put(b)
	err := ask(ctx, r.opt, r.replay, from, func(topic []byte, seq uint64, payload []byte) bool {
		sum := sumOf(payload)
		if keep != nil && !keep(seq, sum) {
			return false
		}
		if seq < s.track.next || seq == endMark || !wanted(topic, r.opt.Topic) && len(topic) > 0 {
			return true
		}
		err := b.Decode(payload)
		b.setTopic(topic)
		r.take(s, seq, sum, b, err)
		s.track.fillTo = s.track.next
		return true
	})
	if err != nil && r.ctx.Err() == nil {
		r.rested = time.Now().Add(replayRest)
		r.sink.Dropped(s, ReplayFailed)
	}
	return err == nil
}

// ask sends a replay request and calls got for each message of the answer, until it ends or got says so.
func ask(ctx context.Context, opt *Options, address string, from uint64, got func(topic []byte, seq uint64, payload []byte) bool) error {
	w, err := dial(ctx, opt, address, "DEALER")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { w.Close() })
	defer stop()
	defer w.Close()
	if err := w.send(0, nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		_ = w.SetReadDeadline(time.Now().Add(replayIdle))
		parts, err := w.read()
		if err != nil {
			return err
		}
		topic, seq, payload, end, err := replayed(parts)
		if err != nil || end {
			return err
		}
		if !got(topic, seq, payload) {
			return nil
		}
	}
}

func dial(ctx context.Context, opt *Options, address, socket string) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, dialFor)
	defer cancel()
	c, err := opt.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	w, err := shake(c, socket, opt.Buffer)
	if err != nil {
		c.Close()
	}
	return w, err
}

// keepDialling connects again and again until ctx ends.
func (r *reader) keepDialling(address string) {
	pause := firstBackoff
	for r.ctx.Err() == nil {
		w, err := dial(r.ctx, r.opt, address, "SUB")
		if err == nil {
			since := time.Now()
			w.room = r.queue.room
			err = r.hold(w, func() {
				r.only.failed.Store(nil)
				r.only.connected.Store(true)
				r.queue.put(connected, nil)
			})
			r.only.connected.Store(false)
			w.leave()
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
				r.queue.put(parted, nil)
			}
			err = fmt.Errorf("the connection ended: %w", err)
			r.only.failed.Store(&err)
			if time.Since(since) > r.opt.Backoff {
				pause = firstBackoff
			}
		} else if r.only.failed.Store(&err); errors.Is(err, syscall.ECONNREFUSED) {
			r.queue.put(refused, nil)
		}
		// Half of it is left to chance, so that who lost an engine together does not come back together.
		select {
		case <-r.ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, r.opt.Backoff)
	}
}

// hold subscribes and reads until the connection or ctx ends.
func (r *reader) hold(w *wire, ready func()) error {
	ctx, cancel := context.WithCancel(r.ctx)
	var beats sync.WaitGroup
	beats.Go(func() { w.beat(ctx) })
	defer beats.Wait()
	defer cancel()
	if err := w.subscribe(r.opt.Topic); err != nil {
		return err
	}
	ready()
	return r.read(w)
}
