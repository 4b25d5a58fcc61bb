// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

const (
	serving    = grpc_health_v1.HealthCheckResponse_SERVING
	notServing = grpc_health_v1.HealthCheckResponse_NOT_SERVING
)

func healthClient(t *testing.T, lis *bufconn.Listener) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func TestHealth(t *testing.T) {
	var ready, able atomic.Bool
	lis := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- RunHealth(ctx, lis, ready.Load, able.Load, false) }()
	c := healthClient(t, lis)
	for _, now := range []bool{false, true} {
		ready.Store(now)
		want := notServing
		if now {
			want = serving
		}
		for _, service := range []string{"", "readiness", Service, "inference-extension"} {
			r, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
			if err != nil || r.Status != want {
				t.Errorf("ready %v: %q is %v, %v", now, service, r, err)
			}
		}
		able.Store(!now) // a standby is not ready, and could be
		if r, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "warm"}); err != nil || (r.Status == serving) == now {
			t.Errorf("warm %v: is %v, %v", !now, r, err)
		}
		if r, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "liveness"}); err != nil || r.Status != serving {
			t.Errorf("liveness is %v, %v", r, err)
		}
		if r, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.UseCompressor(gzip.Name)); err != nil || r.Status != want {
			t.Errorf("ready %v: asked with gzip it is %v, %v", now, r, err)
		}
		list, err := c.List(ctx, &grpc_health_v1.HealthListRequest{})
		if err != nil || len(list.GetStatuses()) != 5 || list.GetStatuses()["liveness"].Status != serving || list.GetStatuses()[Service].Status != want {
			t.Errorf("list is %v, %v", list, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The health service also works on the port of the door, beside our codec, and tells of draining.
func TestHealthOnTheDoor(t *testing.T) {
	r := newRig(t, newFake(0), Options{HealthChecking: true})
	c := grpc_health_v1.NewHealthClient(r.conn)
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{serving, notServing} {
		for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
			if h, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: Service}, opts...); err != nil || h.Status != want {
				t.Errorf("got %v, %v, want %v", h, err, want)
			}
		}
		r.server.draining = func() bool { return true }
	}
}

// watcher takes what a Watch sends.
type watcher struct {
	grpc.ServerStream
	ctx  context.Context
	sent []grpc_health_v1.HealthCheckResponse_ServingStatus
}

func (w *watcher) Context() context.Context { return w.ctx }
func (w *watcher) Send(r *grpc_health_v1.HealthCheckResponse) error {
	w.sent = append(w.sent, r.Status)
	return nil
}

func TestHealthWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ready atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{ctx: ctx}
		h := &health{ready: ready.Load}
		go h.Watch(&grpc_health_v1.HealthCheckRequest{}, w)
		time.Sleep(10 * time.Second) // bubble time
		ready.Store(true)
		time.Sleep(watchEvery)
		synctest.Wait()
		if len(w.sent) != 2 || w.sent[0] != notServing || w.sent[1] != serving {
			t.Errorf("sent %v", w.sent)
		}
		cancel()
	})
}

// The door's port has all of the health service, and nothing that it was not asked to have.
func TestHealthCallsOnTheDoor(t *testing.T) {
	r := newRig(t, newFake(0), Options{HealthChecking: true})
	c := grpc_health_v1.NewHealthClient(r.conn)
	list, err := c.List(t.Context(), &grpc_health_v1.HealthListRequest{})
	if err != nil || len(list.GetStatuses()) != 5 || list.GetStatuses()[Service].Status != serving {
		t.Errorf("list is %v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := w.Recv(); err != nil || h.Status != serving {
		t.Errorf("watched %v, %v", h, err)
	}
	// A watcher holds nobody up.
	call := r.open()
	call.send(reqHeadersMsg(true))
	call.recv()
	call.finish()
	r.outcome()
	cancel()
	if _, err := w.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	if err := r.conn.Invoke(t.Context(), "/grpc.health.v1.Health/Other", &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
	off := newRig(t, newFake(0), Options{})
	if _, err := grpc_health_v1.NewHealthClient(off.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

// TestElectedHealth is asked by name where one of several pickers leads.
func TestElectedHealth(t *testing.T) {
	var ready atomic.Bool
	h := &health{ready: ready.Load, warm: ready.Load, elected: true}
	for _, now := range []bool{false, true} {
		ready.Store(now)
		want := notServing
		if now {
			want = serving
		}
		for service, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
			"": want, "readiness": want, Service: want, "liveness": serving, "inference-extension": grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN,
		} {
			if r, err := h.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}); err != nil || r.Status != want {
				t.Errorf("ready %v: %q is %v, %v, want %v", now, service, r, err, want)
			}
		}
	}
}

// TestPeer asks the health service of another picker, which goes away.
func TestPeer(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ready atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- RunHealth(ctx, lis, ready.Load, ready.Load, true) }()
	p, err := DialPeer(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, now := range []bool{false, true} {
		ready.Store(now)
		if got, err := p.Ready(t.Context()); err != nil || got != now {
			t.Errorf("ready %v: got %v, %v", now, got, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := p.Ready(t.Context()); err == nil || got {
		t.Errorf("gone: got %v, %v", got, err)
	}
}

// Whoever is told to end before it began ends well.
func TestHealthEndsAtOnce(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for range 20 {
		if err := RunHealth(ctx, bufconn.Listen(1), func() bool { return true }, func() bool { return true }, false); err != nil {
			t.Fatal(err)
		}
	}
}
