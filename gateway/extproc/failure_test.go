// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

// BL-16: a client that leaves is noticed in every phase, whether its proxy resets the stream or closes its side.
func TestClientLeaves(t *testing.T) {
	phases := []struct {
		name string
		play func(c *call)
	}{
		{"after headers", func(c *call) { c.send(reqHeadersMsg(false)) }},
		{"in the body", func(c *call) { c.send(reqHeadersMsg(false), reqBodyMsg(text(100_000), false)) }},
		{"after the decision", func(c *call) {
			c.send(reqHeadersMsg(false), reqBodyMsg(text(1000), true))
			c.recv()
		}},
		{"after response headers", func(c *call) {
			c.send(reqHeadersMsg(true))
			c.recv()
			c.send(respHeadersMsg(200, "text/event-stream", false))
			c.recv()
		}},
		{"in the answer", func(c *call) {
			c.send(reqHeadersMsg(true))
			c.recv()
			c.send(respHeadersMsg(200, "text/event-stream", false), respBodyMsg(text(3000), false))
			c.recv()
			c.recv()
		}},
	}
	for _, how := range []string{"reset", "close"} {
		for _, p := range phases {
			t.Run(how+" "+p.name, func(t *testing.T) {
				r := newRig(t, newFake(0), Options{})
				c := r.open()
				p.play(c)
				<-r.began
				if how == "reset" {
					c.cancel()
				} else {
					c.stream.CloseSend()
				}
				r.wantEnd(observe.ClientLeft)
			})
		}
	}
}

// A request that waits for its turn notices both ways of leaving too.
func TestClientLeavesTheQueue(t *testing.T) {
	for _, how := range []string{"reset", "close"} {
		t.Run(how, func(t *testing.T) {
			f := newFake(0)
			waiting := make(chan struct{})
			f.place = func(ctx context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
				done := ctx.Done()
				close(waiting)
				<-done
				if ctx.Err() != context.Canceled {
					t.Errorf("error is %v", ctx.Err())
				}
				return nil, &gateway.Refusal{Status: 503, Reason: "rejected-context-cancelled"}
			}
			r := newRig(t, f, Options{})
			c := r.open()
			c.send(reqHeadersMsg(false), reqBodyMsg(text(2000), true))
			<-waiting
			if how == "reset" {
				c.cancel()
			} else {
				c.stream.CloseSend()
			}
			if x := r.wantEnd(observe.ClientLeft); x.refused == nil {
				t.Error("the refusal was not recorded")
			}
		})
	}
}

// What is received while a request waits is not lost.
func TestMessageDuringTheWait(t *testing.T) {
	f := newFake(0)
	waiting, turn := make(chan struct{}), make(chan struct{})
	f.place = func(ctx context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
		ctx, cancel := context.WithCancel(ctx) // asks for Done
		defer cancel()
		close(waiting)
		select {
		case <-turn:
		case <-ctx.Done():
			t.Error("the wait was cut off")
		}
		return &gateway.Placement{Destination: "10.0.0.1:8000"}, nil
	}
	r := newRig(t, f, Options{})
	c := r.open()
	c.send(reqHeadersMsg(false), reqBodyMsg(text(2000), true))
	<-waiting
	c.send(respHeadersMsg(504, "text/plain", false), respBodyMsg(text(5000), true))
	close(turn)
	c.recv()
	if got := c.body(reqBody, -1); len(got) != 2000 {
		t.Errorf("%d bytes", len(got))
	}
	if c.recv().GetResponseHeaders() == nil {
		t.Error("want response headers")
	}
	if got := c.body(respBody, -1); len(got) != 5000 {
		t.Errorf("%d bytes", len(got))
	}
	c.finish()
	if x := r.wantEnd(observe.Complete); x.status != 504 {
		t.Errorf("status %d", x.status)
	}
}

// A request that waits, and the work on a long body, hold up no other stream of their connection.
func TestNobodyElseWaits(t *testing.T) {
	for _, size := range []int{2000, 300_000} {
		f := newFake(0)
		waiting, turn := make(chan struct{}), make(chan struct{})
		f.place = func(ctx context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
			if x.head.Method == "POST" {
				if size < longBody {
					ctx.Done()
				}
				close(waiting)
				<-turn
			}
			return &gateway.Placement{Destination: "10.0.0.1:8000"}, nil
		}
		r := newRig(t, f, Options{})
		slow := r.open()
		slow.send(reqHeadersMsg(false), reqBodyMsg(text(size), true))
		<-waiting
		for range 3 {
			c := r.open()
			c.send(reqHeadersMsg(true, ":method", "GET", ":path", "/v1/models"))
			c.recv()
			c.finish()
			r.wantEnd(observe.ClientLeft)
		}
		close(turn)
		slow.recv()
		if got := slow.body(reqBody, -1); !bytes.Equal(got, text(size)) {
			t.Errorf("%d bytes, or they differ", len(got))
		}
		slow.cancel()
		r.wantEnd(observe.ClientLeft)
	}
}

// A broken plugin is contained on whatever goroutine it breaks.
func TestPanicAfterTheWait(t *testing.T) {
	f := newFake(0)
	f.place = func(ctx context.Context, _ *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
		ctx.Done()
		panic("broken plugin")
	}
	r := newRig(t, f, Options{})
	for range 3 {
		c := r.open()
		c.send(reqHeadersMsg(false), reqBodyMsg(text(100_000), true))
		if _, err := c.stream.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("got %v", err)
		}
		r.wantEnd(observe.Broken)
	}
}

// A message over the limit breaks the exchange off, and says so.
func TestMessageOverTheLimit(t *testing.T) {
	r := newRig(t, newFake(1000), Options{})
	c := r.open()
	c.send(reqHeadersMsg(false))
	<-r.began
	s, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+Service+"/Process", grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallSendMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(encodeAll(t, reqHeadersMsg(false))[0]); err != nil {
		t.Fatal(err)
	}
	_ = s.SendMsg(make([]byte, 1000+messageRoom+1)) // may notice
	if err := s.RecvMsg(nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	if x := r.wantEnd(observe.Broken); x.failed == nil {
		t.Error("nothing says why")
	}
	c.finish()
	r.wantEnd(observe.ClientLeft)
}

// A proxy that does not read keeps its own body in our account, and nobody else's.
func TestUnsentBodyIsAccounted(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	c := r.open()
	const size = 4 << 20 // more than the client lets us send ahead
	c.send(reqHeadersMsg(false), reqBodyMsg(text(size), true))
	c.recv()
	if n := r.memory.Held(); n < size {
		t.Errorf("%d bytes are held", n)
	}
	if got := c.body(reqBody, -1); len(got) != size {
		t.Errorf("%d bytes", len(got))
	}
	answer(c, 200, nil, 1)
	if n := r.memory.Held(); n != 0 {
		t.Errorf("%d bytes are held while the answer runs", n)
	}
	c.finish()
	r.wantEnd(observe.Complete)
}

// bytesCodec sends what it is given.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

var _ encoding.CodecV2 = bytesCodec{}

// Garbage ends its stream and nothing else.
func TestMalformed(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	for _, garbage := range []string{"\xff", "\x12\x05ab", "\x00\x01", "\x12\x03\x0a\x7fx", "\x22\x02\x0a\x09", "\x0b", "\x0c", strings.Repeat("\xff", 100)} {
		stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+Service+"/Process", grpc.ForceCodecV2(bytesCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: got %v", garbage, err)
		}
	}
	c := r.open()
	c.send(reqHeadersMsg(true))
	c.recv()
	c.finish()
	r.outcome()
}

// What no proxy sends, in an order that no proxy has.
func TestOutOfOrder(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	for name, play := range map[string]func(c *call){
		"body first":    func(c *call) { c.send(reqBodyMsg(nil, true)) },
		"headers twice": func(c *call) { c.send(reqHeadersMsg(false), reqHeadersMsg(false)) },
		"body after end": func(c *call) {
			c.send(reqHeadersMsg(true), reqBodyMsg(text(2000), true))
			c.recv()
		},
	} {
		c := r.open()
		play(c)
		if _, err := c.stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
	c := r.open()
	m := reqHeadersMsg(false)
	m.ObservabilityMode = true
	c.send(m)
	c.clean()
}

// A message over a limit of the operator's ends its stream, and the request is told as broken.
func TestMessageLimits(t *testing.T) {
	for name, x := range map[string]struct {
		opt  Options
		body int
		code codes.Code
		told string
	}{
		"in, at the limit":   {Options{MaxMessage: 3000}, 2990, codes.OK, ""},
		"in, over the limit": {Options{MaxMessage: 3000}, 4000, codes.ResourceExhausted, "received message larger than max (4008 vs. 3000)"},
		"out, under it":      {Options{MaxSend: 63_000}, 100_000, codes.OK, ""},
		"out, over it":       {Options{MaxSend: 2000}, 4000, codes.ResourceExhausted, "trying to send message larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newFake(0), x.opt)
			c := r.open()
			c.send(reqHeadersMsg(false), reqBodyMsg(text(x.body), true))
			if x.code == codes.OK {
				c.recv()
				if got := c.body(reqBody, -1); len(got) != x.body {
					t.Errorf("got %d bytes", len(got))
				}
				c.finish()
				return
			}
			var err error
			for err == nil {
				_, err = c.stream.Recv()
			}
			if status.Code(err) != x.code || !strings.Contains(err.Error(), x.told) {
				t.Errorf("got %v, want %q", err, x.told)
			}
			if e := r.wantEnd(observe.Broken); e.failed == nil || !strings.Contains(e.failed.Error(), x.told) {
				t.Errorf("the request failed by %v", e.failed)
			}
		})
	}
}

// Streams are counted by how they end, where that is wanted.
func TestStreamsAreCounted(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		o := observe.New(observe.Options{Streams: wanted})
		r := newRig(t, newFake(0), Options{Streams: o.Streams(), MaxMessage: 1000})
		page := func() string {
			w := httptest.NewRecorder()
			o.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			return w.Body.String()
		}
		for range 2 {
			c := r.open()
			c.send(reqHeadersMsg(true))
			c.recv()
			if wanted && !strings.Contains(page(), "llm_d_epp_extproc_streams_inflight 1\n") {
				t.Error(page())
			}
			c.finish()
			r.outcome()
		}
		c := r.open()
		c.send(reqHeadersMsg(false), reqBodyMsg(text(2000), true))
		if _, err := c.stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
		r.outcome()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		got := page()
		for _, want := range []string{"streams_inflight 0\n", `streams_total{code="OK"} 2`, `streams_total{code="Unknown"} 0`, "stream_duration_seconds_count 3"} {
			if strings.Contains(got, "llm_d_epp_extproc_"+want) != wanted {
				t.Errorf("%t: %s in %s", wanted, want, got)
			}
		}
	}
}

func TestPanicIsContained(t *testing.T) {
	f := newFake(0)
	f.place = func(context.Context, *fakeExchange) (*gateway.Placement, *gateway.Refusal) { panic("broken plugin") }
	r := newRig(t, f, Options{})
	c := r.open()
	c.send(reqHeadersMsg(false), reqBodyMsg(text(5000), true))
	if _, err := c.stream.Recv(); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "plugin") {
		t.Errorf("got %v", err)
	}
	r.wantEnd(observe.Broken)
	f.place = nil
	c = r.open()
	c.send(reqHeadersMsg(true))
	c.recv()
	c.finish()
	r.outcome()
	r.stop()
	if !strings.Contains(r.log.String(), "broken plugin") || !strings.Contains(r.log.String(), "failure_test.go") {
		t.Errorf("the log has no stack: %s", r.log.String())
	}
}

// Open streams end in peace when the server stops, but not for longer than the drain time.
func TestDrain(t *testing.T) {
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(0)
			s := newServer(Options{Drain: 30 * time.Second}, f.begin)
			lis := bufconn.Listen(1 << 20)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx, lis) }()
			conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			r := &rig{fake: f, t: t, client: nil, conn: conn}
			r.client = newClient(conn)
			c := r.open()
			c.send(reqHeadersMsg(true))
			c.recv()
			start := time.Now()
			cancel()
			synctest.Wait()
			if !stays {
				answer(c, 200, text(3000), 1000)
				c.finish()
				r.wantEnd(observe.Complete)
			}
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			if stays {
				r.wantEnd(observe.ClientLeft)
				if d := time.Since(start); d != 30*time.Second {
					t.Errorf("it took %v", d)
				}
			}
			c.cancel()
			conn.Close()
			synctest.Wait()
		})
	}
}
