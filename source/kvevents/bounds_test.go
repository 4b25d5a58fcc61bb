// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// Extra keys take much more memory than bytes on the wire, so all events together may have only so many.
func TestExtrasAreBounded(t *testing.T) {
	p := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 0), 9)
	for range 9 {
		p = msgp.AppendString(msgp.AppendArrayHeader(p, 9), "BlockStored")
		p = msgp.AppendInt(msgp.AppendArrayHeader(p, 1), 1)
		p = msgp.AppendNil(p)
		p = msgp.AppendInt(msgp.AppendArrayHeader(p, 1), 1)
		p = msgp.AppendInt(p, 1)
		for range 3 {
			p = msgp.AppendNil(p)
		}
		p = msgp.AppendArrayHeader(msgp.AppendArrayHeader(p, 1), MaxExtras/4)
		for range MaxExtras / 4 {
			p = msgp.AppendInt(p, 0)
		}
	}
	var b Batch
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 4 || len(b.Rejected) != 5 || b.Rejected[0] != TooLarge || cap(b.extras) > 2*MaxExtras {
		t.Errorf("%d events and rejected %v, with room for %d", len(b.Events), b.Rejected, cap(b.extras))
	}
}

// All connections together hold so many bytes and no more, and each its own whatever others do; all is given back.
func TestRoomIsShared(t *testing.T) {
	const all = 1 << 20
	var r room
	r.left.Store(all)
	message := [][]byte{make([]byte, 40<<10)}
	queues := make([]*queue, 64)
	held := func() (n int) {
		for _, q := range queues {
			n += q.out + len(q.fill)
		}
		return n
	}
	for i := range queues {
		queues[i] = newQueue(8<<20, &r)
	}
	for range 20 {
		for _, q := range queues {
			q.put(aMessage, message)
		}
	}
	if n, most := held(), all+len(queues)*(own+10); n > most || n < all || r.left.Load() < -int64(10*len(queues)) {
		t.Errorf("%d bytes are held, want at most %d", n, most)
	}
	for _, q := range queues {
		if len(q.fill) < 40<<10 {
			t.Errorf("a connection holds %d bytes", len(q.fill))
		}
	}
	buf := queues[0].take(nil)
	for rest, parts := buf, [][]byte(nil); len(rest) > 0; {
		var kind byte
		if kind, parts, rest = record(rest, parts); kind == aMessage && len(parts[0]) != 40<<10 || kind != aMessage && kind != overflowed {
			t.Fatal("a broken record")
		}
	}
	queues[0].take(buf)
	for _, q := range queues {
		q.leave()
		q.put(aMessage, message)
	}
	if n := r.left.Load(); n != all || held() != 0 {
		t.Errorf("%d bytes of %d are left, %d held", n, all, held())
	}
}

// A message for which others leave no room is read over as it comes; the next one is read.
func TestNoRoomToRead(t *testing.T) {
	var stream []byte
	for _, n := range []int{10, 300 << 10, 20, 100 << 10} {
		stream = appendFrame(stream, 0, make([]byte, n))
	}
	var r room
	r.left.Store(100 << 10)
	w := &wire{Conn: script{Reader: bytes.NewReader(nil)}, r: bufio.NewReader(bytes.NewReader(stream)), max: 8 << 20, room: &r}
	for _, want := range []int{10, -1, 20, 100 << 10} {
		parts, err := w.read()
		switch {
		case want < 0 && err == errNoRoom:
		case want < 0 || err != nil || len(parts[0]) != want:
			t.Errorf("got %v with %v, want %d bytes", len(parts), err, want)
		}
	}
	w.leave()
	if n := r.left.Load(); n != 100<<10 {
		t.Errorf("%d bytes are left", n)
	}
}

// A listener that cannot accept for a while is asked again, and the connections that there are go on.
func TestAcceptFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	full := &fullListener{Listener: l}
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, full, Options{}, &d) }()
	done := make(chan struct{})
	p := &Publisher{Topic: "kv@a@m"}
	var dialling sync.WaitGroup
	dialling.Go(func() { p.Dial(l.Addr().String(), time.Millisecond, done) })
	until(t, func() bool { return p.Subscribers() == 1 })
	full.errors.Store(3)
	q := &Publisher{Topic: "kv@b@m"}
	dialling.Go(func() { q.Dial(l.Addr().String(), time.Millisecond, done) })
	until(t, func() bool { return q.Subscribers() == 1 })
	payload := encodeText(t, "[1, [[BlockRemoved, [1]]], 0]")
	p.Send(0, payload)
	until(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.lines) == 1
	})
	if got := d.flush(); got != "a 0 -[1]\n" || full.errors.Load() > 0 {
		t.Errorf("got %q, %d errors are left", got, full.errors.Load())
	}
	close(done)
	p.Close()
	q.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	dialling.Wait()
}

// fullListener has no file descriptors left some times.
type fullListener struct {
	net.Listener
	errors atomic.Int32
}

func (l *fullListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.errors.Add(-1) >= 0 {
		c.Close() // it dials again
		return nil, syscall.EMFILE
	}
	return c, err
}
