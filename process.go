// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/extproc"
	"github.com/penstock-project/penstock/gateway/proxy"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/source/dns"
	"github.com/penstock-project/penstock/source/kube"
	"github.com/penstock-project/penstock/source/scrape"
)

// settings are what the command line says, beside the manifests.
type settings struct {
	http, extproc, health, metrics string // addresses; empty for off
	secure                         bool   // TLS at the ext_proc door
	certPath                       string
	metricsCerts, metricsClients   string        // folder with the metrics port's certificate; authorities of who may connect
	minTLS                         string        // lowest version; empty for TLS 1.2
	ciphers                        []string      // of TLS 1.2; none for Go's
	healthOnDoor                   bool          // the health service also on the ext_proc port
	lameDuck, drain                time.Duration // told to end: requests still come in; open ones may finish
	interval, stale                time.Duration // of scrapes; of signals
	pprof, tracing                 bool
	streams                        bool         // the ext_proc door's are counted
	auth                           bool         // who reads the metrics port needs a token
	maxReceive, maxSend            api.Quantity // of a message at the ext_proc door; 0 for the defaults
	logging
	showEndpoint       bool // dev: say who served
	trustLoopback      bool // dev: the proxy heeds control headers from this machine
	quiet              bool // no access lines
	scores, allSubsets bool // ext_proc: tell totals; ignore subset hints
	experimental       bool // alpha plugins and those for tests are allowed
	// dial opens connections to endpoints; nil for the network's.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// process is one running gateway: doors, sources, metrics.
type process struct {
	site
	settings
	obs     *observe.Observer
	memory  *request.Memory
	doors   struct{ proxy, extproc gateway.Door }
	reload  func() (*config.Config, []config.Problem) // nil when nothing is to be reloaded
	files   []string                                  // watched for reload
	cluster *cluster                                  // what an API server tells; nil for none
	// stand stands for election with a health service at that address; nil when all pickers serve.
	stand    func(health net.Addr) (*kube.Election, error)
	election *kube.Election // nil for none
	front    *kube.Front    // the Service that leads to whoever leads; nil for none
	// started is told when the addresses are open; nil for nobody.
	started func(*listeners)
	// allow says who may read the metrics port; nil for everybody.
	allow func(*http.Request) (status int, text string)
}

// newProcess builds a gateway for a configuration. Nothing runs yet.
func newProcess(cfg *config.Config, s settings, log io.Writer) (*process, error) {
	p := &process{settings: s}
	how, err := s.logging.options()
	if err != nil {
		return nil, err
	}
	p.log = observe.NewLogger(log, how)
	p.store = fleet.NewStore()
	p.names = dns.New(p.store, nil, p.log)
	commit, ref := buildInfo()
	var traces *observe.Tracing
	if s.tracing {
		if traces, err = observe.NewTracing(context.Background(), p.log, ref); err != nil { // no reason not to serve
			p.log.Error("nothing is traced", slog.Any("error", err))
		}
	}
	o := observe.Options{Tracing: traces, Streams: s.streams, Store: p.store, Log: p.log, Stale: s.stale, Commit: commit, Build: ref}
	if !s.quiet {
		o.Access = log
	}
	p.obs = observe.New(o)
	limits := cfg.Penstock.Limits
	p.memory = request.NewMemory(int64(limits.MaxBufferedBytes))
	p.gw = gateway.New(gateway.Options{
		Store: p.store, Observer: p.obs, Log: p.log, Memory: p.memory, MaxBody: int64(limits.MaxBodyBytes), Stale: s.stale,
		Scores: s.scores, AllSubsets: s.allSubsets,
	})
	p.obs.Watch(p.gw.Open, p.memory.Held)
	p.obs.WatchCaches(p.caches)
	logProblems(p.log, cfg.Warnings)
	p.doors.proxy.Name, p.doors.proxy.Strict = "proxy", true
	p.doors.extproc.Name = "extproc"
	p.setTrust(cfg.Penstock.Trust)
	p.setHealth(cfg.Penstock.Health)
	return p, p.apply(context.Background(), cfg)
}

// run serves until ctx ends, then lets open requests finish. Sources and metrics end last.
func (p *process) run(ctx context.Context, cfg *config.Config) error {
	var certificates certificates
	var err error
	if p.secure && p.extproc != "" {
		if certificates.extproc, err = certificate(p.certPath, p.log, "h2"); err != nil {
			return err
		}
		if err := p.restrict(certificates.extproc); err != nil {
			return err
		}
	}
	if p.metricsCerts != "" && p.metrics != "" {
		if certificates.metrics, err = p.metricsCertificate(); err != nil {
			return err
		}
	}
	l, err := p.listen()
	if err != nil {
		return err
	}
	defer l.close()
	if p.stand != nil {
		if p.election, err = p.stand(l.health.Addr()); err != nil {
			return err
		}
	}
	if p.started != nil {
		p.started(l)
	}
	return p.serve(ctx, cfg, l, certificates)
}

// certificates are what listeners speak TLS with; nil for plaintext.
type certificates struct{ extproc, metrics *tls.Config }

// metricsCertificate is what the metrics port speaks TLS with.
func (p *process) metricsCertificate() (*tls.Config, error) {
	c, err := certificate(p.metricsCerts, p.log, "h2", "http/1.1")
	if err != nil {
		return nil, fmt.Errorf("--metrics-cert-dir: %w", err)
	}
	if err := p.restrict(c); err != nil {
		return nil, err
	}
	if c.CipherSuites != nil && !slices.ContainsFunc(c.CipherSuites, ofHTTP2) {
		c.NextProtos = []string{"http/1.1"}
	}
	if p.metricsClients != "" {
		if err := demand(c, p.metricsClients, p.log); err != nil {
			return nil, fmt.Errorf("--metrics-client-ca-file: %w", err)
		}
	}
	return c, nil
}

// ofHTTP2 reports whether a cipher suite is one of those without which nobody may speak HTTP/2 over TLS 1.2 (RFC 9113, section 9.2.2).
func ofHTTP2(suite uint16) bool {
	return suite == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || suite == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
}

// serve is run on listeners that are open.
func (p *process) serve(ctx context.Context, cfg *config.Config, l *listeners, certificates certificates) error {
	behind, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	open, shut := context.WithCancel(behind)
	defer shut()
	defer takeLeave(ctx, p.lameDuck, p.gw.Drain, shut)()
	doors, doorsCtx := errgroup.WithContext(open)
	rest, restCtx := errgroup.WithContext(behind)
	context.AfterFunc(restCtx, shut) // a source that fails ends the doors, too
	rest.Go(func() error { return p.obs.Run(restCtx) })
	rest.Go(func() error {
		return scrape.Run(restCtx, p.store, scrape.Options{Plans: &p.plans, Interval: p.interval, Dial: p.dial, Failed: p.obs.PollFailed, Extracted: p.obs.ExtractFailed})
	})
	rest.Go(func() error { return p.feeds.run(restCtx) })
	p.follow(restCtx, rest, cfg)
	if p.election != nil {
		electing, resign := context.WithCancel(restCtx)
		context.AfterFunc(ctx, resign) // at once, so that another leads before our doors are shut
		rest.Go(func() error { return p.election.Run(electing) })
	}
	if p.front != nil {
		rest.Go(func() error { return p.front.Run(restCtx) })
	}
	if l.metrics != nil {
		rest.Go(func() error {
			return serveTLS(restCtx, l.metrics, certificates.metrics, p.log, p.obs.Mux(observe.MuxOptions{Ready: p.notReady, Config: p.inForce, Pprof: p.pprof, Allow: p.allow}))
		})
	}
	if l.health != nil {
		rest.Go(func() error {
			return extproc.RunHealth(restCtx, l.health, func() bool { return p.notReady() == nil }, func() bool { return p.warm() == nil }, p.election != nil)
		})
	}
	p.openDoors(doorsCtx, doors, l, cfg, certificates.extproc)
	doors.Go(func() error {
		<-doorsCtx.Done()
		p.gw.Drain() // new only where a source has failed
		p.log.Info("leaving: open requests may finish", slog.String("drain", p.drain.String()), slog.Int64("open", p.gw.Open()))
		// Those that wait have their chance until there is just time to tell them.
		late := time.AfterFunc(p.drain-min(p.drain/10, time.Second), p.gw.Refuse)
		context.AfterFunc(restCtx, func() { late.Stop() })
		return nil
	})
	rest.Go(func() error {
		err := doors.Wait()
		end()
		return err
	})
	err := rest.Wait()
	if flushErr := p.obs.Flush(); err == nil {
		err = flushErr
	}
	return err
}

func (p *process) openDoors(ctx context.Context, g *errgroup.Group, l *listeners, cfg *config.Config, certificate *tls.Config) {
	limits := cfg.Penstock.Limits
	if l.http != nil {
		door := proxy.New(p.gw, proxy.Options{
			Door: &p.doors.proxy, Log: p.log, Drain: cmp.Or(p.drain, -1), ShowEndpoint: p.showEndpoint, Dial: p.dial,
			BodyTimeout: time.Duration(limits.BodyTimeout), MaxHeaderBytes: int(limits.MaxHeaderBytes),
		})
		g.Go(func() error { return door.Run(ctx, l.http) })
	}
	if l.extproc != nil {
		door := extproc.New(p.gw, extproc.Options{
			Door: &p.doors.extproc, Log: p.log, Drain: p.drain, TLS: certificate,
			MaxMessage: int(p.maxReceive), MaxSend: int(p.maxSend), Streams: p.obs.Streams(), HealthChecking: p.healthOnDoor, Ready: func() bool { return p.notReady() == nil },
		})
		g.Go(func() error { return door.Run(ctx, l.extproc) })
	}
}

// takeLeave is how a gateway goes when ctx ends: drain tells all who ask that it is leaving, and shut closes its
// doors after the time that those need to send their requests elsewhere. The function it returns forgets all.
func takeLeave(ctx context.Context, lameDuck time.Duration, drain, shut func()) (forget func() bool) {
	return context.AfterFunc(ctx, func() {
		drain()
		time.AfterFunc(lameDuck, shut)
	})
}

// notReady says why no request should be sent here, or nil.
func (p *process) notReady() error {
	if err := p.cold(); err != nil || p.election == nil {
		return err
	}
	return p.election.Ready()
}

// warm says why a rollout should wait for us, or nil. One that stands by where nobody leads yet is no replacement.
func (p *process) warm() error {
	if err := p.cold(); err != nil || p.election == nil || p.election.Settled() {
		return err
	}
	return errors.New("nobody is known to lead yet")
}

// cold says why no request could be served here, or nil.
func (p *process) cold() error {
	if p.gw.Draining() {
		return errors.New("shutting down")
	}
	if p.cluster != nil {
		if err := p.cluster.ready(); err != nil {
			return err
		}
	}
	return p.ready()
}

// listeners are open sockets; nil for what is off.
type listeners struct{ http, extproc, health, metrics net.Listener }

// listen opens all addresses, so that one that cannot be had is told before anything starts.
func (p *process) listen() (*listeners, error) {
	l := &listeners{}
	for _, a := range []struct {
		name, address string
		to            *net.Listener
	}{{"http", p.http, &l.http}, {"extproc", p.extproc, &l.extproc}, {"health", p.health, &l.health}, {"metrics", p.metrics, &l.metrics}} {
		if a.address == "" {
			continue
		}
		lis, err := net.Listen("tcp", a.address)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("%s address %s: %w", a.name, a.address, err)
		}
		*a.to = lis
		p.log.Info("listening", slog.String("for", a.name), slog.String("address", lis.Addr().String()))
	}
	return l, nil
}

func (l *listeners) close() {
	for _, lis := range []net.Listener{l.http, l.extproc, l.health, l.metrics} {
		if lis != nil {
			_ = lis.Close() // closed already by whoever served it
		}
	}
}

func serveHTTP(ctx context.Context, lis net.Listener, h http.Handler) error {
	return serveTLS(ctx, lis, nil, slog.Default(), h)
}

// serveTLS serves HTTPS; without a certificate, HTTP.
func serveTLS(ctx context.Context, lis net.Listener, certificate *tls.Config, log *slog.Logger, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), TLSConfig: certificate}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	serve := srv.Serve
	if certificate != nil {
		if !slices.Contains(certificate.NextProtos, "h2") {
			srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // or it would insist on HTTP/2, and what that asks for
		}
		serve = func(lis net.Listener) error { return srv.ServeTLS(lis, "", "") }
	}
	if err := serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// trustOf is whom a Penstock document trusts.
func trustOf(t api.Trust) gateway.Trust {
	var out gateway.Trust
	for _, c := range t.CIDRs {
		out.CIDRs = append(out.CIDRs, c.Prefix)
	}
	if t.Header != nil {
		out.Header, out.Secret = strings.ToLower(t.Header.Name), t.Header.Value
	}
	return out
}

// setHealth puts spec.health into force.
func (p *process) setHealth(h api.Health) {
	policy := healthOf(h)
	p.gw.SetHealth(policy)
	p.obs.SetHealth(policy)
}

func healthOf(h api.Health) fleet.HealthPolicy {
	return fleet.HealthPolicy{
		Failures: h.ConsecutiveFailures, First: time.Duration(h.FirstEjection), Longest: time.Duration(h.LongestEjection),
		SlowStart: time.Duration(h.SlowStart), MinShare: h.MinShare,
	}
}

// setTrust puts spec.trust into force at both doors.
func (p *process) setTrust(t api.Trust) {
	trust := trustOf(t)
	atProxy := trust
	if p.trustLoopback {
		atProxy.CIDRs = append(slices.Clone(trust.CIDRs), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	}
	p.doors.proxy.SetTrust(atProxy)
	// Envoy is a proxy of the operator's: it is trusted unless told whom to trust.
	trust.All = len(trust.CIDRs) == 0 && trust.Header == ""
	p.doors.extproc.SetTrust(trust)
}
