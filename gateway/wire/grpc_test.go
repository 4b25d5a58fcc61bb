// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func selfSigned(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func TestTLS(t *testing.T) {
	_, addr, _ := start(t, Options{Handler: &funcs{message: echo}, MaxMessage: 16 << 20, TLS: selfSigned(t)})
	cc := dial(t, addr, &tls.Config{InsecureSkipVerify: true})
	for _, n := range []int{0, 100, 5000, 16384, 70_000, 8 << 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { roundTrips(t, cc, n, 3) })
	}
}

func TestManyStreams(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			opt, client := Options{Handler: &funcs{message: echo}}, (*tls.Config)(nil)
			if secure {
				opt.TLS, client = selfSigned(t), &tls.Config{InsecureSkipVerify: true}
			}
			_, addr, _ := start(t, opt)
			cc := dial(t, addr, client)
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() { roundTrips(t, cc, i*371, 5) })
			}
			wg.Wait()
		})
	}
}

// A client that sends everything before it reads: both directions are full at once.
func TestFullBothWays(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			opt, client := Options{Handler: &funcs{message: echo}, StreamWindow: 64 << 10, ConnWindow: 64 << 10, MaxOutput: 64 << 10}, (*tls.Config)(nil)
			if secure {
				opt.TLS, client = selfSigned(t), &tls.Config{InsecureSkipVerify: true}
			}
			_, addr, _ := start(t, opt)
			cc := dial(t, addr, client, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					st := stream(t, ctx, cc)
					go func() {
						for i := range 100 {
							if send(st, pattern(60_000, i)) != nil {
								return
							}
						}
						st.CloseSend()
					}()
					for i := range 100 {
						if b, err := recv(st); err != nil || string(b) != string(pattern(60_000, i)) {
							t.Errorf("message %d: %d bytes, %v", i, len(b), err)
							return
						}
					}
					if _, err := recv(st); err != io.EOF {
						t.Errorf("got %v, want the end", err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// A stream whose client does not read stalls alone: others go on, and it is not let send without end.
func TestStall(t *testing.T) {
	_, addr, _ := start(t, Options{Handler: &funcs{message: echo}, StreamWindow: 64 << 10, MaxMessage: 1 << 20})
	cc := dial(t, addr, nil, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	slow := stream(t, ctx, cc)
	const n = 50
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := send(slow, pattern(50_000, i)); err != nil {
				sent <- err
				return
			}
		}
		sent <- slow.CloseSend()
	}()
	for range 20 {
		roundTrips(t, cc, 40_000, 5)
	}
	select {
	case err := <-sent:
		t.Fatalf("2.5 MB were taken of a client that reads nothing: %v", err)
	default:
	}
	for i := range n {
		if b, err := recv(slow); err != nil || string(b) != string(pattern(50_000, i)) {
			t.Fatalf("message %d: %d bytes, %v", i, len(b), err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestHeaders(t *testing.T) {
	got := make(chan string, 1)
	_, addr, _ := start(t, Options{Handler: &funcs{open: func(s *Stream, path string, header func(string) string) *Status {
		got <- path + " " + header("x-some") + " " + header("x-none") + header("te") + " " + s.RemoteAddr().Network()
		return nil
	}}})
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-some", strings.Repeat("long", 10_000))
	st := stream(t, ctx, dial(t, addr, nil))
	st.CloseSend()
	if _, err := recv(st); err != io.EOF {
		t.Fatal(err)
	}
	if got, want := <-got, "/test.Echo/Echo "+strings.Repeat("long", 10_000)+" trailers tcp"; got != want {
		t.Fatalf("got %.200s, want %.200s", got, want)
	}
}

func TestStatus(t *testing.T) {
	odd := "100 % of it: ü\n" + strings.Repeat("é", 3000)
	_, addr, _ := start(t, Options{MaxMessage: 1000, Handler: &funcs{
		open: func(_ *Stream, _ string, header func(string) string) *Status {
			if header("refuse") != "" {
				return &Status{Unimplemented, "unknown service"}
			}
			return nil
		},
		message: func(s *Stream, m *Message) {
			if m.Len == 3 {
				s.Finish(&Status{InvalidArgument, odd})
				return
			}
			echo(s, m)
		},
	}})
	cc := dial(t, addr, nil)
	t.Run("refused", func(t *testing.T) {
		st := stream(t, metadata.AppendToOutgoingContext(context.Background(), "refuse", "1"), cc)
		_, err := recv(st)
		wantCode(t, err, codes.Unimplemented)
	})
	t.Run("message", func(t *testing.T) {
		st := stream(t, context.Background(), cc)
		send(st, []byte("abcd"))
		if b, err := recv(st); err != nil || string(b) != "abcd" {
			t.Fatal(b, err)
		}
		send(st, []byte("abc"))
		_, err := recv(st)
		wantCode(t, err, codes.InvalidArgument)
		if m := status.Convert(err).Message(); !strings.HasPrefix(odd, m) || len(m) < maxStatusMessage-4 {
			t.Errorf("got %q", m)
		}
	})
	t.Run("too large", func(t *testing.T) {
		other := stream(t, context.Background(), cc)
		st := stream(t, context.Background(), cc)
		send(st, make([]byte, 50_000))
		_, err := recv(st)
		wantCode(t, err, codes.ResourceExhausted)
		send(other, []byte("still here"))
		if b, err := recv(other); err != nil || string(b) != "still here" {
			t.Fatal(b, err)
		}
		other.CloseSend()
		recv(other)
	})
}

// TestCancel cancels a stream in each of its phases; the receiver hears of it once.
func TestCancel(t *testing.T) {
	type closed struct {
		s   *Stream
		why error
	}
	ended := make(chan closed, 1)
	opened := make(chan *Stream, 1)
	_, addr, _ := start(t, Options{StreamWindow: 64 << 10, Handler: &funcs{
		open:    func(s *Stream, _ string, _ func(string) string) *Status { opened <- s; return nil },
		message: echo,
		half:    func(*Stream) {},
		closed:  func(s *Stream, why error) { ended <- closed{s, why} },
	}})
	cc := dial(t, addr, nil, grpc.WithStaticStreamWindowSize(64<<10))
	for _, c := range []struct {
		name string
		do   func(t *testing.T, st grpc.ClientStream)
	}{
		{"after the headers", func(*testing.T, grpc.ClientStream) {}},
		{"after a message", func(t *testing.T, st grpc.ClientStream) {
			send(st, []byte("a"))
			if _, err := recv(st); err != nil {
				t.Fatal(err)
			}
		}},
		{"with an answer that is not read", func(t *testing.T, st grpc.ClientStream) {
			for range 2 {
				send(st, make([]byte, 60_000))
			}
		}},
		{"within a message", func(t *testing.T, st grpc.ClientStream) {
			go send(st, make([]byte, 3<<20))
		}},
		{"after the half close", func(t *testing.T, st grpc.ClientStream) { st.CloseSend() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			st := stream(t, ctx, cc)
			s := <-opened
			c.do(t, st)
			cancel()
			if e := <-ended; e.s != s || e.why != ErrReset {
				t.Fatalf("got %v of %p, want %v of %p", e.why, e.s, ErrReset, s)
			}
			<-s.Done()
			if err := s.Send(Piece{P: []byte("late")}); err != ErrReset {
				t.Errorf("a late Send: got %v, want %v", err, ErrReset)
			}
		})
	}
	t.Run("by losing the connection", func(t *testing.T) {
		lost := dial(t, addr, nil)
		stream(t, context.Background(), lost)
		<-opened
		lost.Close()
		if e := <-ended; e.why != ErrLost && e.why != ErrReset {
			t.Fatalf("got %v", e.why)
		}
	})
}

func TestDeadline(t *testing.T) {
	ended := make(chan error, 1)
	_, addr, _ := start(t, Options{Handler: &funcs{
		half: func(*Stream) {}, closed: func(_ *Stream, why error) { ended <- why },
	}})
	p := rawPeer(t, addr) // a client of gRPC's would end the stream itself
	p.open(1, false, "grpc-timeout", "20m")
	if got, want := p.end(), "status 200 4"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	var status *Status
	if err := <-ended; !errors.As(err, &status) || status.Code != DeadlineExceeded {
		t.Fatalf("got %v", err)
	}
	p.open(3, false, "grpc-timeout", "1x")
	if got, want := p.end(), "status 400 13"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// TestDetach has a receiver wait while others on the connection are served, and be told of what
// came meanwhile, in order and on one goroutine at a time.
func TestDetach(t *testing.T) {
	waiting, release := make(chan *Stream, 1), make(chan struct{})
	var mu sync.Mutex // held in calls: never contended
	message := func(s *Stream, m *Message) {
		if !mu.TryLock() {
			t.Error("two calls at a time")
			return
		}
		if m.Len == 4 && string(m.Pieces[0].P) == "wait" {
			s.Detach()
			s.Detach() // is fine
			waiting <- s
			mu.Unlock()
			<-release
			mu.Lock()
			if string(m.Pieces[0].P) != "wait" {
				t.Errorf("the message changed: %q", m.Pieces[0].P)
			}
		}
		echo(s, m)
		mu.Unlock()
	}
	_, addr, _ := start(t, Options{Handler: &funcs{message: message}, StreamWindow: 64 << 10})
	cc := dial(t, addr, nil)
	for range 20 {
		st := stream(t, context.Background(), cc)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			send(st, []byte("wait"))
			for i := range 30 { // more than the window
				send(st, pattern(5000, i))
			}
			st.CloseSend()
		}()
		s := <-waiting
		roundTrips(t, cc, 3000, 3)
		select {
		case <-sent:
			t.Fatal("a receiver that is away takes more than the window")
		case <-s.Done():
			t.Fatal("the stream is done")
		default:
		}
		release <- struct{}{}
		if b, err := recv(st); err != nil || string(b) != "wait" {
			t.Fatal(b, err)
		}
		for i := range 30 {
			if b, err := recv(st); err != nil || string(b) != string(pattern(5000, i)) {
				t.Fatalf("message %d: %d bytes, %v", i, len(b), err)
			}
		}
		if _, err := recv(st); err != io.EOF {
			t.Fatal(err)
		}
		<-sent
	}
}

// A receiver that is away hears at once that its client has left.
func TestLeave(t *testing.T) {
	waiting := make(chan *Stream, 1)
	over := make(chan string, 3)
	message := func(s *Stream, m *Message) {
		s.Detach()
		waiting <- s
		select {
		case <-s.Left():
			over <- "left"
		case <-s.Done():
			over <- "done"
		}
	}
	_, addr, _ := start(t, Options{Handler: &funcs{
		message: message,
		half:    func(s *Stream) { over <- "half"; s.Finish(nil) },
		closed:  func(s *Stream, why error) { over <- why.Error() },
	}})
	cc := dial(t, addr, nil)
	t.Run("reset", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		st := stream(t, ctx, cc)
		send(st, []byte("a"))
		s := <-waiting
		send(st, []byte("nobody sees it"))
		cancel()
		<-s.Done()
		if a := <-over; a != "left" && a != "done" {
			t.Error(a)
		}
		<-waiting // with the second message, whose call ends at once, the stream being done
		<-over
		if b := <-over; b != ErrReset.Error() {
			t.Error(b)
		}
	})
	t.Run("half close", func(t *testing.T) {
		st := stream(t, context.Background(), cc)
		send(st, []byte("a"))
		<-waiting
		st.CloseSend()
		if a, b := <-over, <-over; a != "left" || b != "half" {
			t.Error(a, b)
		}
		if _, err := recv(st); err != io.EOF {
			t.Error(err)
		}
	})
}

// What a peer sends in tiny frames takes no more memory than what it sends in large ones.
func TestTinyFrames(t *testing.T) {
	pieces := make(chan int, 1)
	_, addr, _ := start(t, Options{Handler: &funcs{message: func(s *Stream, m *Message) {
		pieces <- len(m.Pieces)
		echo(s, m)
	}}})
	p := rawPeer(t, addr)
	p.open(1, false)
	want := append([]byte{0, 0, 0, 0x75, 0x30}, pattern(30_000, 1)...)
	go func() {
		for i := range want {
			p.WriteDataPadded(1, i == len(want)-1, want[i:i+1], make([]byte, i%3))
		}
	}()
	var got []byte
	for len(got) < len(want) {
		f, err := p.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := f.(*http2.DataFrame); ok {
			got = append(got, d.Data()...)
		}
	}
	if string(got) != string(want) {
		t.Error("the message came back changed")
	}
	if n := <-pieces; n > 2*packFrom {
		t.Errorf("30,000 frames made %d pieces", n)
	}
}

// A peer that sends empty messages without end to a receiver that is away loses its stream.
func TestTooManyMessages(t *testing.T) {
	var why error
	done := make(chan struct{})
	_, addr, _ := start(t, Options{Handler: &funcs{
		message: func(s *Stream, m *Message) { s.Detach(); <-s.Done() },
		closed:  func(_ *Stream, err error) { why = err; close(done) },
	}})
	p := rawPeer(t, addr)
	p.open(1, false)
	for range 10 {
		p.WriteData(1, false, make([]byte, 5*3000))
	}
	if got, want := p.end(), "status 200 8"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	<-done
	var status *Status
	if !errors.As(why, &status) || status.Code != ResourceExhausted {
		t.Errorf("got %v", why)
	}
}

// Send and Finish from a goroutine that has nothing to do with the reader.
func TestSendFromElsewhere(t *testing.T) {
	var wg sync.WaitGroup
	_, addr, _ := start(t, Options{Handler: &funcs{
		half: func(s *Stream) {
			wg.Go(func() {
				for i := range 1000 {
					s.Send(Piece{P: pattern(i, i)})
				}
				s.Finish(nil)
			})
		},
	}})
	cc := dial(t, addr, nil)
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			st := stream(t, context.Background(), cc)
			st.CloseSend()
			for i := range 1000 {
				if b, err := recv(st); err != nil || string(b) != string(pattern(i, i)) {
					t.Errorf("message %d: %d bytes, %v", i, len(b), err)
					return
				}
			}
			if _, err := recv(st); err != io.EOF {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	wg.Wait()
}

// A server that stops lets the open streams end, and takes no new ones.
func TestDrain(t *testing.T) {
	_, addr, stop := start(t, Options{Handler: &funcs{message: echo}, Drain: time.Minute})
	cc := dial(t, addr, nil)
	const n = 20
	var open, wg sync.WaitGroup
	open.Add(n)
	stopped := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			st := stream(t, context.Background(), cc)
			send(st, []byte("a"))
			if _, err := recv(st); err != nil {
				t.Error(err)
			}
			open.Done()
			<-stopped
			for j := range 50 {
				want := pattern(1000*i, j)
				send(st, want)
				if b, err := recv(st); err != nil || string(b) != string(want) {
					t.Errorf("stream %d: %v", i, err)
					return
				}
			}
			st.CloseSend()
			if _, err := recv(st); err != io.EOF {
				t.Error(err)
			}
		})
	}
	open.Wait()
	go func() {
		close(stopped)
	}()
	begun := time.Now()
	stop()
	wg.Wait()
	if d := time.Since(begun); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A stream that does not end is ended when the time is over.
func TestDrainDeadline(t *testing.T) {
	ended := make(chan error, 1)
	_, addr, stop := start(t, Options{Handler: &funcs{message: echo, closed: func(_ *Stream, why error) { ended <- why }}, Drain: 50 * time.Millisecond})
	cc := dial(t, addr, nil)
	st := stream(t, context.Background(), cc)
	send(st, []byte("a"))
	recv(st)
	stop()
	if why := <-ended; why != ErrLost {
		t.Errorf("got %v, want %v", why, ErrLost)
	}
}
