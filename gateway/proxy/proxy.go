// SPDX-License-Identifier: Apache-2.0

// Package proxy answers: how do clients call us without Envoy?
//
// It is the built-in door: HTTP/1.1 and h2c from clients, HTTP/1.1 or h2c to endpoints. It
// translates and nothing more; what happens to a request is decided in package gateway. It dials
// only addresses that a placement names, and it never ends a broken answer as if it were whole.
//
// The way to an HTTP/1.1 endpoint is a client of our own (conn.go, pool.go): no goroutine of
// its own, one read and one write for each piece that an endpoint sends.
package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// Options are what an operator may change. A zero value means the default.
type Options struct {
	// Door is this door's name and whom it trusts.
	Door *gateway.Door
	Log  *slog.Logger
	// HeaderTimeout bounds the time a client takes for a request's head; 10 s.
	HeaderTimeout time.Duration
	// BodyTimeout bounds the time without progress in a request's body; 30 s.
	BodyTimeout time.Duration
	// WriteTimeout bounds the time in which a client takes nothing of its answer; 60 s.
	WriteTimeout time.Duration
	// IdleTimeout bounds the time between two requests on one connection; 2 min.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a request's head; 256 KiB.
	MaxHeaderBytes int
	// DialTimeout bounds the time to connect to an endpoint; 1 s.
	DialTimeout time.Duration
	// Dial opens connections to endpoints; nil for the network's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// EndpointIdle is how long a connection to an endpoint is kept without use; 90 s.
	EndpointIdle time.Duration
	// Drain is how long open requests may go on when Run's context ends; 30 s. Below zero: not at all.
	Drain time.Duration
	// ShowEndpoint says in x-penstock-endpoint who answered. It is for development: clients
	// need not know addresses.
	ShowEndpoint bool
}

func (o Options) withDefaults() Options {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	or(&o.HeaderTimeout, 10*time.Second)
	or(&o.BodyTimeout, 30*time.Second)
	or(&o.WriteTimeout, time.Minute)
	or(&o.IdleTimeout, 2*time.Minute)
	or(&o.DialTimeout, time.Second)
	or(&o.EndpointIdle, 90*time.Second)
	or(&o.Drain, 30*time.Second)
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = 256 << 10
	}
	if o.Door == nil {
		o.Door = &gateway.Door{Name: "proxy"}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// exchange is what this door needs of [gateway.Exchange].
type exchange interface {
	ID() string
	API() request.API
	Body() *request.Body
	Expect(n int64) *gateway.Refusal
	Read(r io.Reader) (*gateway.Refusal, error)
	Place(ctx context.Context) (*gateway.Placement, *gateway.Refusal)
	Drops(name string) bool
	OnEvict(e gateway.Evictee)
	Requeue(ctx context.Context) (*gateway.Placement, *gateway.Refusal)
	Evicted() *gateway.Refusal
	Next() *fleet.Endpoint
	Unavailable() *gateway.Refusal
	Answer(status int, h gateway.Headers) []gateway.Header
	Pass(p []byte)
	Restore() *request.Restorer
	Refuse(r *gateway.Refusal)
	Fail(err error)
	End(end observe.End)
}

// core is what this door needs of [gateway.Gateway].
type core interface {
	Begin(h gateway.Head) exchange
	Models() []string
}

// Server is the door. It is also an http.Handler; used as one, nothing tidies its idle
// connections.
type Server struct {
	Options
	core core
	pool *pool
	h2c  *http.Transport
	born time.Time

	stopping atomic.Bool // open requests are being cut off
}

// gate is the real core.
type gate struct {
	*gateway.Gateway
	door *gateway.Door
}

func (g gate) Begin(h gateway.Head) exchange { return g.Gateway.Begin(g.door, h) }

// New makes the door of a gateway.
func New(g *gateway.Gateway, o Options) *Server {
	o = o.withDefaults()
	return newServer(gate{g, o.Door}, o)
}

func newServer(c core, o Options) *Server {
	s := &Server{Options: o.withDefaults(), core: c, born: time.Now()}
	s.pool = newPool(&s.Options)
	s.h2c = newH2C(s.pool, s.EndpointIdle)
	return s
}

// tidyEvery is how often idle connections to endpoints are looked at. Engines close them after
// a few seconds.
const tidyEvery = 5 * time.Second

// Run serves lis until ctx ends. Then it takes no new connections, lets open requests finish
// for Options.Drain, and cuts off the rest. It returns nil after a drain, whole or not.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           s,
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000},
		ReadHeaderTimeout: s.HeaderTimeout,
		ReadTimeout:       s.BodyTimeout, // a body that makes progress moves it, see receive
		IdleTimeout:       s.IdleTimeout,
		MaxHeaderBytes:    s.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			giveUp(c, s.WriteTimeout)
			return ctx
		},
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	defer s.h2c.CloseIdleConnections()
	defer s.pool.close()
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.pool.sweep(now)
		case err := <-served:
			return err
		case <-ctx.Done():
			s.drain(srv, cut)
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		}
	}
}

// cutGrace is how long requests that are cut off have to tell their clients.
const cutGrace = time.Second

// drain lets open requests finish, then cuts them off.
func (s *Server) drain(srv *http.Server, cut context.CancelFunc) {
	wait := func(d time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return srv.Shutdown(ctx) == nil
	}
	if wait(max(s.Drain, 0)) {
		return
	}
	s.stopping.Store(true)
	cut()
	if !wait(cutGrace) {
		_ = srv.Close()
	}
}
