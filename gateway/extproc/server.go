// SPDX-License-Identifier: Apache-2.0

// Package extproc answers: how does Envoy ask where a request goes?
//
// It is the door for proxies that speak Envoy's external processing, and implements the
// Endpoint Picker Protocol: one gRPC stream for each HTTP request, bodies in
// FULL_DUPLEX_STREAMED mode. What happens to a request is the gateway's business; this
// package reads and writes the messages, by hand and without copying bodies; gateway/wire is the
// transport below it.
package extproc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/wire"
	"github.com/penstock-project/penstock/observe"
)

// Service is the full name of the gRPC service.
const Service = "envoy.service.ext_proc.v3.ExternalProcessor"

// Options are what a [Server] is made of.
type Options struct {
	// Door says whose control headers are heeded.
	Door *gateway.Door
	// TLS is what to serve with; nil serves plaintext.
	TLS *tls.Config
	// Drain is how long open streams may take to end when the server stops.
	Drain time.Duration
	// MaxMessage is the longest message that may come in, MaxSend the longest that may go out, in bytes. 0 is what the
	// gateway's bound of a body needs, and none.
	MaxMessage, MaxSend int
	// HealthChecking serves grpc.health.v1 on this port too.
	HealthChecking bool
	// Ready tells whether requests can be served; nil is always. Draining is no business of it.
	Ready func() bool
	// Streams counts streams; nil for nobody.
	Streams *observe.Streams
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
	sessions sync.Pool

	transport *wire.Server // of Run
	poison    bool         // for tests
}

// New makes a door to g.
func New(g *gateway.Gateway, opt Options) *Server {
	s := newServer(opt, func(h gateway.Head) exchange { return g.Begin(opt.Door, h) })
	s.draining, s.maxBody = g.Draining, g.MaxBody
	return s
}

func newServer(opt Options, begin func(gateway.Head) exchange) *Server {
	s := &Server{opt: opt, begin: begin, draining: func() bool { return false }, log: opt.Log}
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

// Run serves until ctx ends, and then until the open streams do or the drain time is over.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	limit := int64(math.MaxInt32)
	switch {
	case s.opt.MaxMessage > 0:
		limit = min(limit, int64(s.opt.MaxMessage))
	case s.maxBody > 0:
		limit = min(limit, s.maxBody+messageRoom)
	}
	s.transport = wire.New(wire.Options{
		Handler: (*handler)(s), TLS: s.opt.TLS, Drain: s.opt.Drain, MaxMessage: int(limit), MaxSend: s.opt.MaxSend,
		StreamWindow: streamWindow, ConnWindow: connectionWindow, Log: s.log, Poison: s.poison,
	})
	return s.transport.Serve(ctx, lis)
}

// handler is the server as its transport sees it.
type handler Server

const healthPath = "/grpc.health.v1.Health/"

// Open implements wire.Handler.
func (h *handler) Open(stream *wire.Stream, path string, _ func(string) string) (wire.Receiver, *wire.Status) {
	s := (*Server)(h)
	if path == "/"+Service+"/Process" {
		ss := s.sessions.Get().(*session)
		ss.server, ss.stream, ss.opened = s, stream, s.opt.Streams.Opened()
		return ss, nil
	}
	if method, ok := strings.CutPrefix(path, healthPath); ok && s.opt.HealthChecking {
		switch method {
		case "Check", "List", "Watch":
			return &healthCall{&health{ready: s.Ready, warm: s.Ready}, method}, nil
		}
	}
	return nil, &wire.Status{Code: wire.Unimplemented, Message: "unknown method " + path}
}
