// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// BenchmarkRoundTrip is one request with a streamed answer of eight events, client included; the
// client sends what was encoded before and decodes nothing, so that most of it is the server.
func BenchmarkRoundTrip(b *testing.B) {
	for _, network := range []string{"memory", "tcp"} {
		for _, size := range []struct {
			name string
			n    int
		}{{"1KiB", 1 << 10}, {"64KiB", 64 << 10}, {"800KiB", 800 << 10}} {
			b.Run(network+"/"+size.name, func(b *testing.B) { roundTrips(b, network, size.n) })
		}
	}
}

func roundTrips(b *testing.B, network string, size int) {
	f := newFake(0)
	f.quiet = true
	s := newServer(Options{}, f.begin)
	var lis net.Listener
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", lis.Addr().String())
	}
	if network == "memory" {
		l := bufconn.Listen(1 << 20)
		lis, dial = l, func(context.Context, string) (net.Conn, error) { return l.Dial() }
	} else {
		var err error
		if lis, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(16<<20), grpc.WithInitialConnWindowSize(24<<20))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	request, answer := encodedRequest(b, size), encodedAnswer(b)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := roundTrip(ctx, conn, request, answer); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// rawCodec sends what is encoded and counts what it receives.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

func roundTrip(ctx context.Context, conn *grpc.ClientConn, request, answer [][]byte) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+Service+"/Process", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return err
	}
	for _, m := range request {
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
	if err := stream.RecvMsg(nil); err != nil { // the decision
		return err
	}
	for _, m := range answer {
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(nil); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func encodeAll(b testing.TB, messages ...*extprocv3.ProcessingRequest) [][]byte {
	b.Helper()
	var out [][]byte
	for _, m := range messages {
		p, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func encodedRequest(b testing.TB, size int) [][]byte {
	return encodeAll(b, append([]*extprocv3.ProcessingRequest{reqHeadersMsg(false)}, chunks(text(size), 64<<10, false)...)...)
}

func encodedAnswer(b testing.TB) [][]byte {
	m := []*extprocv3.ProcessingRequest{respHeadersMsg(200, "text/event-stream", false)}
	for range 8 {
		m = append(m, respBodyMsg(text(180), false))
	}
	return encodeAll(b, append(m, respBodyMsg(text(300), true))...)
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name string
		m    *extprocv3.ProcessingRequest
	}{{"headers", reqHeadersMsg(false)}, {"event", respBodyMsg(text(180), false)}, {"64KiB", reqBodyMsg(text(64<<10), false)}} {
		b.Run(c.name, func(b *testing.B) {
			data := cut(encodeAll(b, c.m)[0], 16<<10)
			var m message
			b.ReportAllocs()
			for b.Loop() {
				m.reset()
				if err := m.decode(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
