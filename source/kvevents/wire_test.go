// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// script is a peer that has said it all beforehand.
type script struct {
	*bytes.Reader
	net.Conn
}

func (s script) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s script) Write(b []byte) (int, error)      { return len(b), nil }
func (s script) Close() error                     { return nil }
func (s script) SetDeadline(time.Time) error      { return nil }
func (s script) SetWriteDeadline(time.Time) error { return nil }

func hello() []byte {
	var g [64]byte
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	return appendFrame(g[:], flagCommand, property([]byte("\x05READY"), "Socket-Type", "PUB"))
}

// What is too large or has too many parts is read over, and what follows is read.
func TestWireReadsOver(t *testing.T) {
	in := hello()
	in = appendFrame(in, flagMore, make([]byte, 600))
	in = appendFrame(in, 0, make([]byte, 600))
	for range 2 * maxParts {
		in = appendFrame(in, flagMore, nil)
	}
	in = appendFrame(in, 0, nil)
	in = appendFrame(in, flagMore, []byte("a"))
	in = appendFrame(in, flagCommand, []byte("\x04PING\x00\x00x"))
	in = appendFrame(in, 0, []byte("b"))
	w, err := shake(script{Reader: bytes.NewReader(in)}, "SUB", 1000)
	if err != nil || w.peer != "PUB" {
		t.Fatal(w, err)
	}
	if _, err := w.read(); err != errTooLarge {
		t.Errorf("got %v, want %v", err, errTooLarge)
	}
	if _, err := w.read(); err != errParts {
		t.Errorf("got %v, want %v", err, errParts)
	}
	if parts, err := w.read(); err != nil || len(parts) != 2 || string(parts[0])+string(parts[1]) != "ab" {
		t.Errorf("got %q, %v", parts, err)
	}
	if _, err := w.read(); err != io.EOF {
		t.Errorf("got %v, want %v", err, io.EOF)
	}
}

func FuzzWire(f *testing.F) {
	f.Add(appendFrame(hello(), 0, []byte("payload")))
	f.Add(append(hello(), flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	f.Add(append(hello(), flagLong, 0, 0, 0, 0, 0, 0, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, in []byte) {
		w, err := shake(script{Reader: bytes.NewReader(in)}, "SUB", 1000)
		for err == nil {
			var parts [][]byte
			if parts, err = w.read(); err == errTooLarge || err == errParts {
				err = nil
			}
			if total := len(bytes.Join(parts, nil)); total > 1000 || len(parts) > maxParts {
				t.Fatalf("%d bytes in %d parts", total, len(parts))
			}
		}
	})
}

type deaf struct{ blocks int }

func (d *deaf) Batch(_ *Source, _ uint64, b *Batch) {
	for i := range b.Events {
		d.blocks += len(b.Events[i].Hashes)
	}
}
func (*deaf) Gap(*Source, uint64, uint64) {}
func (*deaf) Restarted(*Source)           {}
func (*deaf) Dropped(*Source, Reason)     {}

// through returns a function that takes one message the whole way from the queue to the sink.
func through(sink Sink) (send func()) {
	opt := Options{}
	opt.defaults()
	r := &reader{ctx: context.Background(), opt: &opt, sink: sink, queue: newQueue(opt.Buffer, nil), only: &Source{}}
	seq := binary.BigEndian.AppendUint64(nil, 0)
	parts := [][]byte{[]byte("kv@a@m"), seq, stored(8, 8, true)}
	var buf []byte
	n := uint64(0)
	return func() {
		binary.BigEndian.PutUint64(seq, n)
		n++
		r.queue.put(aMessage, parts)
		buf = r.queue.take(buf)
		var kind byte
		kind, r.parts, _ = record(buf, r.parts)
		r.handle(kind, r.parts)
	}
}

func TestMessageAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector, pools forget")
	}
	sink := &deaf{}
	if n := testing.AllocsPerRun(1000, through(sink)); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	if want := 1001 * 64; sink.blocks != want {
		t.Errorf("got %d blocks, want %d", sink.blocks, want)
	}
}

func BenchmarkMessage(b *testing.B) {
	sink := &deaf{}
	send := through(sink)
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	b.ReportMetric(float64(sink.blocks)/b.Elapsed().Seconds(), "blocks/s")
}
