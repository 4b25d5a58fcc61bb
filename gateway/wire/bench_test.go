// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// answersAfter is when the stream of the benchmark is answered: like ext_proc's, it brings a request
// in two messages, gets two back, and then has nine more echoed.
const answersAfter = 2

var benchReply = pattern(200, 1)

type benchReceiver struct{ n int }

type benchHandler struct{}

func (benchHandler) Open(*Stream, string, func(string) string) (Receiver, *Status) {
	return &benchReceiver{}, nil
}

func (r *benchReceiver) Message(s *Stream, m *Message) {
	switch r.n++; {
	case r.n < answersAfter:
	case r.n == answersAfter:
		s.Send(Piece{P: benchReply})
		echo(s, m)
	default:
		echo(s, m)
	}
}

func (r *benchReceiver) HalfClose(s *Stream)   { s.Finish(nil) }
func (r *benchReceiver) Closed(*Stream, error) {}

// serveForBench is the server's process: "wire" or "grpc". Each line that it reads makes it tell
// the CPU time that it has used.
func serveForBench() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(lis.Addr())
	if os.Getenv("WIRE_SERVE") == "wire" {
		go New(Options{Handler: benchHandler{}}).Serve(context.Background(), lis)
	} else {
		go grpcForBench().Serve(lis)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var u syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		fmt.Println(u.Utime.Nano()+u.Stime.Nano(), u.Utime.Nano(), u.Stime.Nano())
	}
}

// grpcForBench is the same handler on grpc-go, with the options of the ext_proc door.
func grpcForBench() *grpc.Server {
	g := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.StaticStreamWindowSize(1<<20), grpc.StaticConnWindowSize(16<<20),
		grpc.ReadBufferSize(64<<10), grpc.WriteBufferSize(256<<10), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}))
	handler := func(_ any, st grpc.ServerStream) error {
		for n := 1; ; n++ {
			var b []byte
			if err := st.RecvMsg(&b); err != nil {
				if err == io.EOF {
					return nil
				}
				return err
			}
			if n < answersAfter {
				continue
			}
			if n == answersAfter {
				if err := st.SendMsg(&benchReply); err != nil {
					return err
				}
			}
			if err := st.SendMsg(&b); err != nil {
				return err
			}
		}
	}
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: "Echo", Handler: handler, ServerStreams: true, ClientStreams: true}}}, nil)
	return g
}

// BenchmarkStream tells what a stream like ext_proc's costs the server in CPU, in a process of its
// own: a body in two messages, two back, and nine of 100 bytes echoed, either one by one or
// as they come.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		name  string
		body  int
		burst bool
	}{{"1KiB/one-by-one", 1 << 10, false}, {"1KiB/burst", 1 << 10, true}, {"64KiB/burst", 64 << 10, true}, {"800KiB/burst", 800 << 10, true}} {
		for _, kind := range []string{"grpc", "wire"} {
			b.Run(c.name+"/"+kind, func(b *testing.B) { benchStream(b, kind, pattern(c.body, 3), c.burst) })
		}
	}
}

func benchStream(b *testing.B, kind string, body []byte, burst bool) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "WIRE_SERVE="+kind)
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n')
	var conns [4]*grpc.ClientConn
	for i := range conns {
		conns[i] = dial(b, strings.TrimSpace(line), nil, grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20))
	}
	cpu := func() (all, user, sys int64) {
		fmt.Fprintln(in)
		fmt.Fscanln(lines, &all, &user, &sys)
		return all, user, sys
	}
	for i := range conns {
		benchOne(b, conns[i], body, burst)
	}
	a0, u0, s0 := cpu()
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				benchOne(b, conns[w%len(conns)], body, burst)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	a1, u1, s1 := cpu()
	n := float64(b.N) * 1000
	b.ReportMetric(float64(a1-a0)/n, "server-µs/op")
	b.ReportMetric(float64(u1-u0)/n, "user-µs/op")
	b.ReportMetric(float64(s1-s0)/n, "sys-µs/op")
}

var benchHead, benchEvent = pattern(300, 2), pattern(100, 4)

func benchOne(b *testing.B, cc *grpc.ClientConn, body []byte, burst bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	st := stream(b, ctx, cc)
	step := func(n int) {
		for range n {
			if _, err := recv(st); err != nil {
				b.Error(err)
			}
		}
	}
	send(st, benchHead)
	send(st, body)
	step(2)
	for range 9 {
		send(st, benchEvent)
		if !burst {
			step(1)
		}
	}
	if burst {
		step(9)
	}
	st.CloseSend()
	if _, err := recv(st); err != io.EOF {
		b.Error(err)
	}
}
