// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) {
	if os.Getenv("WIRE_SERVE") != "" {
		serveForBench()
		return
	}
	goleak.VerifyTestMain(m)
}

// raw is a codec of bytes as they are.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = raw{}

// funcs is a handler and a receiver of functions.
type funcs struct {
	open    func(s *Stream, path string, header func(string) string) *Status
	message func(s *Stream, m *Message)
	half    func(s *Stream)
	closed  func(s *Stream, why error)
}

func (f *funcs) Open(s *Stream, path string, header func(string) string) (Receiver, *Status) {
	if f.open != nil {
		if status := f.open(s, path, header); status != nil {
			return nil, status
		}
	}
	return f, nil
}

func (f *funcs) Message(s *Stream, m *Message) {
	if f.message != nil {
		f.message(s, m)
	}
}

func (f *funcs) HalfClose(s *Stream) {
	if f.half != nil {
		f.half(s)
		return
	}
	s.Finish(nil)
}

func (f *funcs) Closed(s *Stream, why error) {
	if f.closed != nil {
		f.closed(s, why)
	}
}

// echo sends m back without a copy.
func echo(s *Stream, m *Message) {
	for _, p := range m.Pieces {
		p.Ref()
	}
	s.Send(m.Pieces...)
}

// start serves in memory of the loopback, and checks at the end that all buffers came back.
func start(t testing.TB, opt Options) (srv *Server, addr string, stop func()) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv = New(opt)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, lis) }()
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := srv.pool.live.Load(); n != 0 {
			t.Errorf("%d buffers were not given back", n)
		}
	}
	t.Cleanup(stop)
	return srv, lis.Addr().String(), stop
}

func dial(t testing.TB, addr string, secure *tls.Config, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure)
	}
	opts = append(opts, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(64<<20)))
	cc, err := grpc.NewClient("passthrough:///"+addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

var bidi = &grpc.StreamDesc{StreamName: "Echo", ServerStreams: true, ClientStreams: true}

func stream(t testing.TB, ctx context.Context, cc *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	st, err := cc.NewStream(ctx, bidi, "/test.Echo/Echo")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func send(st grpc.ClientStream, b []byte) error { return st.SendMsg(&b) }

func recv(st grpc.ClientStream) ([]byte, error) {
	var b []byte
	err := st.RecvMsg(&b)
	return b, err
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestEcho(t *testing.T) {
	_, addr, _ := start(t, Options{Handler: &funcs{message: echo}, MaxMessage: 16 << 20})
	cc := dial(t, addr, nil)
	for _, n := range []int{0, 1, 5, 100, 1023, 1024, 5000, 16383, 16384, 16385, 70_000, 1 << 20, 8 << 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { roundTrips(t, cc, n, 3) })
	}
}

// roundTrips has n bytes echoed k times on a stream.
func roundTrips(t *testing.T, cc *grpc.ClientConn, n, k int) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "some", "header"))
	defer cancel()
	st := stream(t, ctx, cc)
	for i := range k {
		want := pattern(n, i+n)
		if err := send(st, want); err != nil {
			t.Fatal(err)
		}
		got, err := recv(st)
		if err != nil || string(got) != string(want) {
			t.Fatalf("got %d bytes (%v), want the %d that were sent", len(got), err, n)
		}
	}
	st.CloseSend()
	if _, err := recv(st); err != io.EOF {
		t.Fatalf("got %v, want the end", err)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Fatalf("got %v, want %v", err, want)
	}
}
