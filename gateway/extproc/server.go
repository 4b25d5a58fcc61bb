// SPDX-License-Identifier: Apache-2.0

// Package extproc answers: how does Envoy ask where a request goes?
//
// It is the door for proxies that speak Envoy's external processing, and implements the
// Endpoint Picker Protocol: one gRPC stream for each HTTP request, bodies in
// FULL_DUPLEX_STREAMED mode. What happens to a request is the gateway's business; this
// package reads and writes the messages, by hand and without copying bodies.
package extproc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // accepted from proxies that compress
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/penstock-project/penstock/gateway"
)

// Service is the full name of the gRPC service.
const Service = "envoy.service.ext_proc.v3.ExternalProcessor"

// Options are what a [Server] is made of.
type Options struct {
	// Door says whose control headers are heeded.
	Door *gateway.Door
	// TLS is what to serve with, such as [Certificate] gives; nil serves plaintext.
	TLS *tls.Config
	// Drain is how long open streams may take to end when the server stops.
	Drain time.Duration
	// HealthChecking serves grpc.health.v1 on this port too.
	HealthChecking bool
	// Ready tells whether requests can be served; nil is always. Draining is no business of it.
	Ready func() bool
	// Log takes what goes wrong; nil is the default logger.
	Log *slog.Logger
}

// Server is the ext_proc door.
type Server struct {
	opt      Options
	begin    func(gateway.Head) exchange
	draining func() bool
	maxBody  int64
	log      *slog.Logger
	pool     mem.BufferPool
	sessions sync.Pool
}

// New makes a door to g.
func New(g *gateway.Gateway, opt Options) *Server {
	s := newServer(opt, func(h gateway.Head) exchange { return g.Begin(opt.Door, h) })
	s.draining, s.maxBody = g.Draining, g.MaxBody
	return s
}

func newServer(opt Options, begin func(gateway.Head) exchange) *Server {
	s := &Server{opt: opt, begin: begin, draining: func() bool { return false }, log: opt.Log, pool: new(pool)}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.sessions.New = func() any { return new(session) }
	return s
}

// Ready tells whether requests can be served and we are not leaving.
func (s *Server) Ready() bool {
	return (s.opt.Ready == nil || s.opt.Ready()) && !s.draining()
}

// windows are what a peer may send ahead on a stream and on a connection: a long prompt without
// a wait, since it will be needed whole. They are bounds for each stream, not memory held.
const (
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
)

// messageRoom is how much longer than the limit of a body a message may be: Envoy puts all that
// it has at hand into one, so that a body over the limit must be read to be refused well.
const messageRoom = 64 << 20

func (s *Server) options() []grpc.ServerOption {
	limit := int64(math.MaxInt32)
	if s.maxBody > 0 {
		limit = min(limit, s.maxBody+messageRoom)
	}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		experimental.BufferPool(s.pool),
		grpc.MaxRecvMsgSize(int(limit)),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.WaitForHandlers(true),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(64 << 10), // borrowed while there is something to read or write
		grpc.WriteBufferSize(256 << 10),
		// A proxy may ping as it likes; one that is gone without a word is noticed.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
	}
	if s.opt.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opt.TLS)))
	}
	return opts
}

// Run serves until ctx ends, and then until the open streams do or the drain time is over.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	g := grpc.NewServer(s.options()...)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: Service,
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "Process", Handler: s.serve, ServerStreams: true, ClientStreams: true}},
		Metadata:    "envoy/service/ext_proc/v3/external_processor.proto",
	}, s)
	if s.opt.HealthChecking {
		grpc_health_v1.RegisterHealthServer(g, &health{ready: s.Ready})
	}
	return serve(ctx, g, lis, s.opt.Drain)
}

// serve runs g until ctx ends, and gives its streams the drain time to end.
func serve(ctx context.Context, g *grpc.Server, lis net.Listener, drain time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(lis) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	if drain > 0 {
		timer := time.AfterFunc(drain, g.Stop)
		g.GracefulStop()
		timer.Stop()
	}
	g.Stop()
	return <-failed
}
