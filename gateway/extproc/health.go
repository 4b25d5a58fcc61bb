// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // which a checker may compress with
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-project/penstock/gateway/wire"
)

// Two health services have a meaning of their own; all others are readiness.
const (
	readiness = "readiness"
	liveness  = "liveness" // of the process alone
	warm      = "warm"     // whether it could serve, and is not leaving: as readiness, but also of one that waits for its turn
)

// watchEvery is how often a watcher's status is looked at.
const watchEvery = 250 * time.Millisecond

// health implements grpc.health.v1 as the Endpoint Picker Protocol wants it: "liveness" is served
// as long as we answer at all, "warm" while warm says so; "readiness", "", the name of the ext_proc
// service, and whatever else charts ask for, while ready does.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready, warm func() bool
	// elected is for one of several pickers of which one leads: other names are unknown then, as they are in llm-d.
	elected bool
}

// names are the health services that are known by name.
var names = []string{"", liveness, readiness, warm, Service}

func (h *health) status(service string) *grpc_health_v1.HealthCheckResponse {
	if h.elected && !slices.Contains(names, service) {
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN}
	}
	serving := true
	switch service {
	case liveness:
	case warm:
		serving = h.warm()
	default:
		serving = h.ready()
	}
	s := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		s = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}
}

// Check implements grpc_health_v1.HealthServer.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return h.status(r.GetService()), nil
}

// List implements grpc_health_v1.HealthServer.
func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return h.list(), nil
}

func (h *health) list() *grpc_health_v1.HealthListResponse {
	r := &grpc_health_v1.HealthListResponse{Statuses: map[string]*grpc_health_v1.HealthCheckResponse{}}
	for _, service := range names {
		r.Statuses[service] = h.status(service)
	}
	return r
}

// Watch implements grpc_health_v1.HealthServer.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	return h.watch(r, stream.Context().Done(), stream.Send)
}

func (h *health) watch(r *grpc_health_v1.HealthCheckRequest, done <-chan struct{}, send func(*grpc_health_v1.HealthCheckResponse) error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(r.GetService()); now.Status != last {
			if err := send(now); err != nil {
				return err
			}
			last = now.Status
		}
		select {
		case <-done:
			return nil
		case <-tick.C:
		}
	}
}

// RunHealth serves grpc.health.v1 in plaintext until ctx ends. It should outlast the door, whose
// draining it tells: pass its Ready. One that is ready is warm, too. elected tells that one of several pickers
// leads: the others are not ready, and a name that is not known is answered so.
func RunHealth(ctx context.Context, lis net.Listener, ready, warm func() bool, elected bool) error {
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, &health{ready: ready, warm: warm, elected: elected})
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(lis) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	g.Stop()
	if err := <-failed; !errors.Is(err, grpc.ErrServerStopped) { // which it is when it had not begun
		return err
	}
	return nil
}

// Peer is the health service of another picker.
type Peer struct{ conn *grpc.ClientConn }

// DialPeer opens the health service at an address, host and port, in plaintext. The connection is made, and
// made again, as it is needed.
func DialPeer(address string) (*Peer, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	return &Peer{conn}, nil
}

// Ready reports whether the picker says that requests may be sent to it; an error says that it did not answer.
func (p *Peer) Ready(ctx context.Context) (bool, error) {
	r, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: readiness})
	return r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, err
}

// Close hangs up.
func (p *Peer) Close() error { return p.conn.Close() }

// healthCall is a call of the health service on the port of the door. It implements wire.Receiver.
type healthCall struct {
	*health
	method string
}

// Message implements wire.Receiver.
func (c *healthCall) Message(s *wire.Stream, m *wire.Message) {
	var b []byte
	for _, p := range m.Pieces {
		b = append(b, p.P...)
	}
	r := &grpc_health_v1.HealthCheckRequest{} // does for List too, whose request has no fields
	if err := proto.Unmarshal(b, r); err != nil {
		s.Finish(&wire.Status{Code: wire.InvalidArgument, Message: "malformed request"})
		return
	}
	var err error
	switch c.method {
	case "Check":
		err = sendProto(s, c.status(r.GetService()))
	case "List":
		err = sendProto(s, c.list())
	case "Watch":
		s.Detach()
		err = c.watch(r, s.Done(), func(r *grpc_health_v1.HealthCheckResponse) error { return sendProto(s, r) })
	}
	if err != nil {
		s.Finish(&wire.Status{Code: wire.Internal, Message: "internal error"})
		return
	}
	s.Finish(nil)
}

// HalfClose implements wire.Receiver: it came before a message.
func (c *healthCall) HalfClose(s *wire.Stream) {
	s.Finish(&wire.Status{Code: wire.InvalidArgument, Message: "no request"})
}

// Closed implements wire.Receiver.
func (c *healthCall) Closed(*wire.Stream, error) {}

func sendProto(s *wire.Stream, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return s.Send(wire.Piece{P: b})
}
