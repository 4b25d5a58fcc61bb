// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// call is one request on its way through this door.
type call struct {
	s   *Server
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context
	x   exchange

	placed *gateway.Placement
	body   *request.Body // what endpoints get
	edits  edits
	head   []byte      // scratch for an outgoing head
	bufs   net.Buffers // scratch for an outgoing request
	pieces net.Buffers // bufs as a write uses it up

	evictMu sync.Mutex
	evicted bool   // taken back
	cancel  func() // has the endpoint stop

	end     observe.End // how it ended, as far as is known
	started bool        // the client was given a status
}

var calls = sync.Pool{New: func() any { return new(call) }}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refused := unsupported(r); refused != nil {
		writeRefusal(w, r, refused, request.APIOf(r.URL.Path), "")
		return
	}
	if s.models(w, r) {
		return
	}
	c := calls.Get().(*call)
	c.s, c.w, c.r, c.ctx, c.end = s, w, r, r.Context(), observe.Broken
	c.x = s.core.Begin(gateway.Head{Method: r.Method, Path: target(r), Headers: (*asked)(r), Peer: peer(r)})
	defer c.finish()
	c.run()
}

// finish ends the exchange on every way out, a panic included.
func (c *call) finish() {
	p := recover()
	if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a sentinel, compared as net/http does
		c.s.Log.Error("panic in the proxy", slog.Any("panic", p), slog.String("request", c.x.ID()), slog.String("stack", string(debug.Stack())))
		c.end = observe.Broken
		if !c.started {
			c.refuse(gateway.InternalError())
			p = nil
		}
	}
	c.x.End(c.end)
	if p != nil {
		panic(http.ErrAbortHandler) // the call is left to the garbage collector
	}
	if cap(c.head) > 4*smallBody { // a giant's head; keep scratch small
		c.head = nil
	}
	clear(c.bufs[:cap(c.bufs)])
	if c.cancel != nil {
		return // somebody may still be about to evict it
	}
	*c = call{head: c.head[:0], bufs: c.bufs[:0]}
	calls.Put(c)
}

// run takes the request through its phases.
func (c *call) run() {
	refused, err := c.receive()
	if refused != nil || err != nil {
		c.notReceived(refused, err)
		return
	}
	c.x.OnEvict(c)
	placed, refused := c.x.Place(c.ctx)
	if refused != nil {
		c.notPlaced(refused)
		return
	}
	c.take(placed)
	c.forward()
}

// notPlaced refuses a request that found no endpoint.
func (c *call) notPlaced(refused *gateway.Refusal) {
	if c.gone() {
		c.left()
	}
	c.unserved(refused)
}

// take keeps what the placement says.
func (c *call) take(placed *gateway.Placement) {
	c.placed, c.body = placed, placed.Body
	if c.body == nil {
		c.body = c.x.Body()
	}
	c.edits = edits{connection: c.r.Header["Connection"], remove: placed.Remove, set: placed.Set}
	if placed.Evictable {
		c.ctx, c.cancel = c.revocable()
	}
}

// revocable is the context of a request that may be taken back.
func (c *call) revocable() (context.Context, func()) {
	ctx, cancel := context.WithCancel(c.r.Context())
	c.evictMu.Lock()
	defer c.evictMu.Unlock()
	if c.evicted {
		cancel()
	}
	return ctx, cancel
}

// Evict implements gateway.Evictee.
func (c *call) Evict() {
	c.evictMu.Lock()
	defer c.evictMu.Unlock()
	c.evicted = true
	if c.cancel != nil {
		c.cancel()
	}
}

// wasEvicted reports whether the request was taken back.
func (c *call) wasEvicted() bool {
	if c.cancel == nil {
		return false
	}
	c.evictMu.Lock()
	defer c.evictMu.Unlock()
	return c.evicted
}

// again has a request that was taken back wait for another place. It reports false when it was refused.
func (c *call) again() bool {
	c.cancel()
	c.evictMu.Lock()
	c.evicted, c.cancel = false, nil
	c.evictMu.Unlock()
	c.ctx = c.r.Context()
	placed, refused := c.x.Requeue(c.ctx)
	if refused != nil {
		c.notPlaced(refused)
		if refused.Evicted() {
			c.end = observe.Evicted
		}
		return false
	}
	c.take(placed)
	return true
}

// receive reads the whole body, straight into the exchange's. Nothing of an endpoint is held
// meanwhile.
func (c *call) receive() (*gateway.Refusal, error) {
	r := c.r
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > 0 {
		if refused := c.x.Expect(r.ContentLength); refused != nil {
			return refused, nil
		}
	}
	limit := c.s.BodyTimeout
	moved := time.Now() // when the deadline was last moved; net/http's ReadTimeout is the first
	for {
		refused, err := c.x.Read(r.Body)
		if err == io.EOF {
			err = nil
			if refused == nil {
				return nil, nil
			}
		}
		if refused != nil || err != nil {
			return refused, err
		}
		if now := time.Now(); now.Sub(moved) > limit/16 {
			// An error means a writer without deadlines, as in a test.
			_ = http.NewResponseController(c.w).SetReadDeadline(now.Add(limit))
			moved = now
		}
	}
}

// notReceived answers a body that did not come as it should.
func (c *call) notReceived(refused *gateway.Refusal, err error) {
	var timeout net.Error
	switch {
	case refused != nil:
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		refused = &gateway.Refusal{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "request_timeout",
			Message: "the rest of the request body did not arrive in time"}
	case c.gone() || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || isReset(err):
		c.left()
	default:
		refused = &gateway.Refusal{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "bad_request_body",
			Message: "the request body could not be read: " + err.Error()}
	}
	c.w.Header().Set("Connection", "close")
	c.refuse(refused)
	if refused.Status != http.StatusRequestTimeout {
		c.linger()
	}
}

// Limits of what is read and thrown away after an early answer.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 64 << 20
)

// linger reads on for a while after a refusal, so that a client which first sends all and then
// reads gets to see the answer.
func (c *call) linger() {
	rc := http.NewResponseController(c.w)
	if c.r.ProtoMajor != 1 || rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.r.Body, lingerBytes)
}

// gone reports whether the client left, or we have to.
func (c *call) gone() bool { return c.r.Context().Err() != nil }

// left ends a call whose client is not there any more.
func (c *call) left() {
	c.end = observe.ClientLeft
	if c.s.stopping.Load() {
		c.x.Fail(errStopping)
		c.end = observe.Broken
	}
	panic(http.ErrAbortHandler)
}

var errStopping = errors.New("the gateway is shutting down")

// refuse answers in the endpoint's place.
func (c *call) refuse(r *gateway.Refusal) {
	c.x.Refuse(r)
	c.end, c.started = observe.Refused, true
	closing := c.w.Header()["Connection"]
	clear(c.w.Header())
	if closing != nil {
		c.w.Header()["Connection"] = closing
	}
	writeRefusal(c.w, c.r, r, c.x.API(), c.x.ID())
}

// unserved refuses for want of an endpoint. A list of models is then empty, which is no error.
func (c *call) unserved(r *gateway.Refusal) {
	if c.r.Method != http.MethodGet && c.r.Method != http.MethodHead || strings.TrimSuffix(c.r.URL.Path, "/") != modelsPath {
		c.refuse(r)
		return
	}
	clear(c.w.Header())
	c.end, c.started = observe.Complete, true
	c.x.Answer(http.StatusOK, answered(c.w.Header()))
	c.s.list(c.w, c.r, nil)
}

func writeRefusal(w http.ResponseWriter, r *http.Request, refused *gateway.Refusal, api request.API, id string) {
	h := w.Header()
	for _, f := range refused.Headers() {
		h.Set(f.Name, f.Value)
	}
	if id != "" {
		h["X-Request-Id"] = []string{id}
	}
	body := refused.JSON(api)
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(refused.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // nobody to tell
	}
}

// unsupported refuses what would make a tunnel.
func unsupported(r *http.Request) *gateway.Refusal {
	upgrade := false
	for _, v := range r.Header["Upgrade"] {
		for t := range strings.SplitSeq(v, ",") {
			t = strings.TrimSpace(t)
			upgrade = upgrade || t != "" && !strings.EqualFold(t, "h2c") // h2c may be left unanswered
		}
	}
	if r.Method != http.MethodConnect && !(upgrade && names(r.Header["Connection"], "upgrade")) {
		return nil
	}
	return &gateway.Refusal{Status: http.StatusNotImplemented, Type: "invalid_request_error", Code: "not_implemented",
		Message: "CONNECT and protocol upgrades are not supported"}
}

// target is the path with its query, as the client wrote it.
func target(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") || r.RequestURI == "*" {
		return r.RequestURI
	}
	return r.URL.RequestURI()
}

func peer(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap()
}
