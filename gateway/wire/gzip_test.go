// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
)

// grpc-go's client with its own gzip: messages come in whole, those of other streams between them.
func TestGzip(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			opt, client := Options{Handler: &funcs{message: echo}, MaxMessage: 16 << 20, Poison: true}, (*tls.Config)(nil)
			if secure {
				opt.TLS, client = selfSigned(t), &tls.Config{InsecureSkipVerify: true}
			}
			_, addr, _ := start(t, opt)
			zips := dial(t, addr, client, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
			plain := dial(t, addr, client)
			var wg sync.WaitGroup
			for i, n := range []int{0, 1, 100, 4095, 4096, 4097, 20_479, 20_480, 20_481, 100_000, 1 << 20} {
				wg.Go(func() { roundTrips(t, zips, n, 3) })
				wg.Go(func() { roundTrips(t, plain, i*371, 5) })
			}
			wg.Wait()
		})
	}
}

// A bomb ends its stream and no other.
func TestGzipBomb(t *testing.T) {
	closed := make(chan error, 1)
	_, addr, stop := start(t, Options{Handler: &funcs{message: echo, closed: func(_ *Stream, why error) { closed <- why }}, MaxMessage: 100_000})
	cc := dial(t, addr, nil, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name), grpc.MaxCallSendMsgSize(64<<20)))
	st, other := stream(t, context.Background(), cc), stream(t, context.Background(), cc)
	send(st, make([]byte, 8<<20))
	_, err := recv(st)
	wantCode(t, err, codes.ResourceExhausted)
	if why, ok := (<-closed).(*Status); !ok || why.Code != ResourceExhausted {
		t.Errorf("the receiver is told %v", why)
	}
	for _, n := range []int{100_000, 100_001} {
		send(other, make([]byte, n))
		b, err := recv(other)
		if n == 100_000 {
			if err != nil || len(b) != n {
				t.Fatalf("got %d bytes, %v, of a message as long as may be", len(b), err)
			}
			continue
		}
		wantCode(t, err, codes.ResourceExhausted)
	}
	<-closed
	stop()
}

// The length that a message says it has is its last four bytes, wherever they lie.
func TestDeclared(t *testing.T) {
	b := gzipped(make([]byte, 100_001))[5:]
	for cut := range 6 {
		for of := range cut + 1 {
			pieces := []Piece{{P: b[:len(b)-cut]}, {P: b[len(b)-cut : len(b)-of]}, {P: b[len(b)-of:]}}
			if got := declared(pieces, len(b)); got != 100_001 {
				t.Errorf("%d and %d bytes at the end: %d", cut-of, of, got)
			}
		}
	}
	if got := declared([]Piece{{P: []byte("abc")}}, 3); got != 0 {
		t.Errorf("%d of three bytes", got)
	}
}

// Who says that it is longer than may be is read with one small piece of memory, and is not kept.
func TestGzipBombTakesNoMemory(t *testing.T) {
	s := New(Options{MaxMessage: 4 << 20})
	b := []Piece{{P: gzipped(make([]byte, 8<<20))[5:]}}
	s.inflate(b, len(b[0].P))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 5 {
		if m, n, status := s.inflate(b, len(b[0].P)); m != nil || n != 0 || status == nil || status.Code != ResourceExhausted {
			t.Errorf("got %d pieces, %d bytes, %v", len(m), n, status)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
		t.Errorf("%d bytes were taken for what would be 20 MiB", n)
	}
	if n := s.Live(); n != 0 {
		t.Errorf("%d buffers were not given back", n)
	}
}

// What comes in compressed for a receiver that is away stays so until its turn comes.
func TestGzipWaitsCompressed(t *testing.T) {
	const n, size = 30, 128 << 10
	away, goOn := make(chan bool), make(chan bool)
	var got atomic.Int64
	srv, addr, _ := start(t, Options{Handler: &funcs{message: func(s *Stream, m *Message) {
		if got.Add(1) == 1 {
			s.Detach()
			away <- true
			<-goOn
		}
		if m.Len != size {
			t.Errorf("got %d bytes", m.Len)
		}
	}}})
	cc := dial(t, addr, nil, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
	st := stream(t, context.Background(), cc)
	send(st, make([]byte, size))
	<-away
	held := srv.Live()
	for range n - 1 {
		if err := send(st, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	st.CloseSend()
	after := stream(t, context.Background(), cc) // which is read after all of these
	after.CloseSend()
	if _, err := recv(after); err != io.EOF {
		t.Fatal(err)
	}
	if now := srv.Live(); now > held+n {
		t.Errorf("%d buffers are held for %d messages of a few bytes", now-held, n-1)
	}
	close(goOn)
	if _, err := recv(st); err != io.EOF {
		t.Fatal(err)
	}
	if got.Load() != n {
		t.Errorf("got %d messages of %d", got.Load(), n)
	}
}
