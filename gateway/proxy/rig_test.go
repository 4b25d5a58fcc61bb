// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a core that places every request on its endpoints, in order, and keeps what it was told.
type script struct {
	endpoints []*fleet.Endpoint
	h2c       bool
	models    []string
	memory    *request.Memory
	max       int64
	refuse    *gateway.Refusal
	set       []gateway.Header
	remove    []string
	hold      bool // Place waits until its context ends
	panics    bool
	restore   func() *request.Restorer

	ended chan *told // every exchange, when it ends
}

func newScript(addresses ...string) *script {
	s := &script{memory: request.NewMemory(0), max: 16 << 20, ended: make(chan *told, 1024)}
	for _, a := range addresses {
		s.endpoints = append(s.endpoints, &fleet.Endpoint{Address: a})
	}
	return s
}

func (s *script) Models() []string { return s.models }

func (s *script) Begin(h gateway.Head) exchange {
	return &told{s: s, head: h, body: request.NewBody(s.memory, s.max)}
}

// told is what one exchange was told.
type told struct {
	s       *script
	head    gateway.Head
	body    *request.Body
	at      int
	retries int

	status  int
	passed  bytes.Buffer
	refused *gateway.Refusal
	failed  []error
	end     observe.End
	ends    int
}

func (x *told) ID() string          { return "id-1" }
func (x *told) API() request.API    { return request.APIOf(x.head.Path) }
func (x *told) Body() *request.Body { return x.body }

func (x *told) Drops(name string) bool { return name == gateway.Destination }

func (x *told) Expect(n int64) *gateway.Refusal {
	x.body.Expect(n)
	return nil
}
func (x *told) Read(r io.Reader) (*gateway.Refusal, error) {
	_, err := x.body.ReadOnce(r)
	if errors.Is(err, request.ErrTooLarge) {
		return &gateway.Refusal{Status: 413, Type: "invalid_request_error", Message: fmt.Sprintf("limit %d", x.s.max)}, nil
	}
	return nil, err
}

func (x *told) Place(ctx context.Context) (*gateway.Placement, *gateway.Refusal) {
	if x.s.panics {
		panic("a mistake")
	}
	if x.s.hold {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, &gateway.Refusal{Status: 503, Reason: "rejected-context-cancelled", Message: "the client left"}
	}
	if x.s.refuse != nil {
		return nil, x.s.refuse
	}
	if len(x.s.endpoints) == 0 {
		return nil, x.Unavailable()
	}
	return &gateway.Placement{H2C: x.s.h2c, Endpoint: x.s.endpoints[0], Set: x.s.set, Remove: x.s.remove}, nil
}

func (x *told) OnEvict(gateway.Evictee)   {}
func (x *told) Evicted() *gateway.Refusal { return &gateway.Refusal{Status: 429, Reason: "evicted"} }
func (x *told) Requeue(context.Context) (*gateway.Placement, *gateway.Refusal) {
	return nil, x.Evicted()
}

func (x *told) Next() *fleet.Endpoint {
	if x.at+1 >= len(x.s.endpoints) {
		return nil
	}
	x.at++
	x.retries++
	return x.s.endpoints[x.at]
}

func (x *told) Unavailable() *gateway.Refusal {
	return &gateway.Refusal{Status: 503, Reason: "rejected-no-endpoints", Type: "overloaded_error", Message: "no endpoint", RetryAfter: time.Second}
}
func (x *told) Answer(status int, _ gateway.Headers) []gateway.Header {
	x.status = status
	return nil
}
func (x *told) Pass(p []byte)             { x.passed.Write(p) }
func (x *told) Refuse(r *gateway.Refusal) { x.refused = r }
func (x *told) Fail(err error)            { x.failed = append(x.failed, err) }
func (x *told) End(end observe.End) {
	x.ends++
	if x.ends == 1 {
		x.end = end
		x.body.Release()
		x.s.ended <- x
	}
}

// done waits for the next exchange to end.
func (s *script) done(t *testing.T) *told {
	t.Helper()
	select {
	case x := <-s.ended:
		return x
	case <-time.After(10 * time.Second):
		t.Fatal("the exchange did not end")
		return nil
	}
}

// door serves s on a port of its own until the test ends.
func door(t testing.TB, s *script, o Options) (srv *Server, address string) {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	srv = newServer(s, o)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return srv, lis.Addr().String()
}

// testWriter fails the test on what is logged as a warning or an error.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Errorf("logged: %s", p)
	return len(p), nil
}

// wire is one connection to a scripted engine, and the last request that came on it.
type wire struct {
	net.Conn
	br   *bufio.Reader
	req  *http.Request
	body []byte
	nth  int // connection, from 1
	seq  int // request on it, from 1
}

// say writes text as it stands.
func (w *wire) say(text string) {
	_, _ = io.WriteString(w.Conn, text)
}

// event writes one SSE event as a chunk.
func (w *wire) event(data string) {
	e := "data: " + data + "\n\n"
	w.say(fmt.Sprintf("%x\r\n%s\r\n", len(e), e))
}

func (w *wire) rst() {
	if tcp, ok := w.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	w.Close()
}

// left waits until the other side is gone.
func (w *wire) left() bool {
	_ = w.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := w.br.ReadByte()
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

const (
	sseHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	okText  = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
)

// engine is a scripted HTTP/1.1 engine on a port of its own.
type engine struct {
	address string
	lis     net.Listener
	mu      sync.Mutex
	conns   map[net.Conn]bool
	opened  int
	wg      sync.WaitGroup
}

// newEngine answers every request by answer, which reports whether the connection goes on.
func newEngine(t testing.TB, answer func(w *wire) bool) *engine {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{address: lis.Addr().String(), lis: lis, conns: map[net.Conn]bool{}}
	e.wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns[c] = true
			e.opened++
			n := e.opened
			e.mu.Unlock()
			e.wg.Go(func() { e.serve(c, n, answer) })
		}
	})
	t.Cleanup(e.stop)
	return e
}

func (e *engine) serve(c net.Conn, n int, answer func(w *wire) bool) {
	defer c.Close()
	w := &wire{Conn: c, br: bufio.NewReader(c), nth: n}
	for {
		req, err := http.ReadRequest(w.br)
		if err != nil {
			return
		}
		w.req, w.seq = req, w.seq+1
		if w.body, err = io.ReadAll(req.Body); err != nil || !answer(w) {
			return
		}
	}
}

func (e *engine) stop() {
	e.lis.Close()
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// dead is an address that refuses connections: our end of a connection, so that nobody else can come to
// listen there while the test runs.
func dead(t testing.TB) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); lis.Close() })
	return c.LocalAddr().String()
}

// newClient is a client that keeps nothing when the test ends.
func newClient(t testing.TB, h2c bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!h2c)
	p.SetUnencryptedHTTP2(h2c)
	tr := &http.Transport{Protocols: &p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

const chatPath = "/v1/chat/completions"

func post(t *testing.T, c *http.Client, address, path, body string) (*http.Response, string, error) {
	t.Helper()
	res, err := c.Post("http://"+address+path, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// h2cEngine serves h as an engine that speaks HTTP/2 without TLS.
func h2cEngine(t testing.TB, h http.HandlerFunc) string {
	srv := httptest.NewUnstartedServer(h)
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	srv.Config.Protocols = &p
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func (x *told) Restore() *request.Restorer {
	if x.s.restore == nil {
		return nil
	}
	return x.s.restore()
}
