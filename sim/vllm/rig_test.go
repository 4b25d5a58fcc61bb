// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/sim/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// round is a timing with which times can be worked out in the head: 10 ms a step, 1 ms per prompt
// token, nothing else.
var round = engine.Timing{Base: 10 * time.Millisecond, PerPrefillToken: time.Millisecond}

// small are options for tests: context 256, 64 blocks of 4.
func small() Options {
	o := DefaultOptions()
	o.MaxModelLen = 256
	o.Engine = engine.Config{BlockSize: 4, NumBlocks: 64, MaxNumSeqs: 2, MaxNumBatchedTokens: 64, Timing: round}
	return o
}

// rig is a server that runs, and a client, with connections in memory. Use it inside synctest.
type rig struct {
	*Server
	t      *testing.T
	client *http.Client
	halt   context.CancelFunc
	ran    chan struct{}
}

func start(t *testing.T, o Options) *rig {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, halt := context.WithCancel(context.Background())
	r := &rig{Server: s, t: t, halt: halt, ran: make(chan struct{})}
	go func() {
		defer close(r.ran)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	l := newPipes()
	srv := &http.Server{Handler: s.Handler()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	transport := &http.Transport{DialContext: l.dial, DisableCompression: true}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		halt()
		<-r.ran
		transport.CloseIdleConnections()
		_ = srv.Close()
		<-done
	})
	return r
}

// post sends a body and returns the answer, whose body the caller closes.
func (r *rig) post(ctx context.Context, path, body string) (*http.Response, error) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sim"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "1")
	return r.client.Do(req)
}

// ask sends a request, with a body or none, and returns the whole answer. It may be called from any
// goroutine.
func (r *rig) ask(method, path, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://sim"+path, strings.NewReader(body))
	if err != nil {
		r.t.Error(err)
		return 0, ""
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-Request-Id", "1")
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Error(err)
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Error(err)
		return 0, ""
	}
	return resp.StatusCode, string(b)
}

func (r *rig) stats() engine.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Stats()
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }
