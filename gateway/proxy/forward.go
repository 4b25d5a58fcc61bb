// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

// smallBody is what travels with the head in one piece; larger bodies go by writev.
const smallBody = 4 << 10

// maxReached is how many endpoints may get a request and break off before a byte of answer. One that
// makes engines fall over must not take a pool down; those that cannot be connected to cost nothing.
const maxReached = 3

// isReset reports whether the other side is known to be gone.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// forward sends the request to the chosen endpoint, and to the next one as long as nothing of an
// answer has come.
func (c *call) forward() {
	ep, fresh, reached := c.placed.Endpoint, false, 0
	for {
		err := c.try(ep, fresh)
		if err == nil {
			return
		}
		if c.gone() {
			c.left()
		}
		if c.wasEvicted() {
			if !c.again() {
				return
			}
			ep, fresh = c.placed.Endpoint, false
			continue
		}
		if errors.Is(err, errStale) && !fresh { // mere age of a kept connection: no fault yet
			fresh = true
			continue
		}
		c.s.Log.Debug("endpoint failed before its answer", slog.String("endpoint", ep.Address), slog.Any("error", err), slog.String("request", c.x.ID()))
		c.x.Fail(err)
		if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "dial" {
			reached++
		}
		var next *fleet.Endpoint
		if reached < maxReached {
			next = c.x.Next()
		}
		if next == nil {
			c.unserved(c.unreachable(err))
			return
		}
		ep, fresh = next, false
		c.edits.set = c.placed.Set
	}
}

// unreachable is the answer when no endpoint is left to try. Addresses stay in the log.
func (c *call) unreachable(err error) *gateway.Refusal {
	var bad malformed
	if errors.As(err, &bad) {
		return &gateway.Refusal{Status: http.StatusBadGateway, Type: "server_error", Code: "bad_endpoint_answer", RetryAfter: time.Second,
			Message: "the endpoint's answer was not valid HTTP"}
	}
	return c.x.Unavailable()
}

// errStale marks the failure of a connection that had served before, without a byte of answer.
var errStale = errors.New("kept connection was dead")

// try sends the request to one endpoint and passes its answer on. An error means that nothing
// of an answer has reached the client.
func (c *call) try(ep *fleet.Endpoint, fresh bool) error {
	if c.placed.H2C {
		return c.tryH2C(ep)
	}
	cn, err := c.s.pool.get(c.ctx, ep.Address, fresh)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(c.ctx, cn.abort)
	cn.begin()
	status, err := c.roundTrip(cn, ep)
	if err != nil {
		stop()
		cn.Close()
		if cn.reused && !cn.got {
			err = fmt.Errorf("%w: %w", errStale, err)
		}
		cn.release()
		return err
	}
	ended := false
	defer func() { // also when the answer is broken off by a panic
		if whole := stop() && ended; whole && cn.keep && cn.r == cn.w {
			cn.release()
			c.s.pool.put(cn)
		} else {
			cn.Close()
			cn.release()
		}
	}()
	c.relay(ep, status, cn)
	ended = true
	return nil
}

// abort makes a reader or writer of the connection return.
func (c *conn) abort() { c.Close() }

// begin takes a buffer for an exchange, release gives it back.
func (c *conn) begin() {
	c.buf, c.r, c.w, c.got, c.mode, c.trailers = buffers.Get().(*[]byte), 0, 0, false, empty, nil
}

func (c *conn) release() {
	if len(*c.buf) == readSize {
		buffers.Put(c.buf)
	}
	c.buf = nil
}

// roundTrip writes the request and reads the head of its answer. Informational answers are
// passed on as they come.
func (c *call) roundTrip(cn *conn, ep *fleet.Endpoint) (status int, err error) {
	werr := c.write(cn, ep)
	if werr != nil && c.gone() {
		return 0, werr
	}
	h := c.w.Header()
	for {
		clear(h)
		status, err = cn.head(c.r.Method, h)
		if err != nil {
			if werr != nil { // an endpoint may answer and close before it has read all: the answer counts
				return 0, werr
			}
			return 0, err
		}
		switch {
		case status >= 200:
			cn.keep = cn.keep && werr == nil
			return status, nil
		case status == http.StatusSwitchingProtocols:
			return 0, malformed("switching protocols without having been asked to")
		case status != http.StatusContinue && c.r.ProtoAtLeast(1, 1):
			c.w.WriteHeader(status)
		}
	}
}

// write sends head and body, all of it with one system call if the socket takes it.
func (c *call) write(cn *conn, ep *fleet.Endpoint) error {
	n := c.body.Len()
	b := c.appendHead(c.head[:0], ep, n)
	c.bufs = c.bufs[:0]
	switch {
	case len(c.r.Trailer) > 0:
		b = strconv.AppendInt(b, n, 16)
		c.bufs = append(c.bufs, append(b, "\r\n"...))
		for p := range c.body.Chunks {
			c.bufs = append(c.bufs, p)
		}
		c.bufs = append(c.bufs, c.appendTrailers(n))
	case n <= smallBody:
		for p := range c.body.Chunks {
			b = append(b, p...)
		}
	default:
		c.bufs = append(c.bufs, b)
		for p := range c.body.Chunks {
			c.bufs = append(c.bufs, p)
		}
	}
	c.head = b[:0]
	if len(c.bufs) == 0 {
		_, err := cn.Write(b)
		return err
	}
	c.pieces = c.bufs // WriteTo uses up what it is called on
	_, err := c.pieces.WriteTo(cn.Conn)
	return err
}

// appendHead appends the request line and headers.
func (c *call) appendHead(b []byte, ep *fleet.Endpoint, length int64) []byte {
	r := c.r
	b = append(append(append(b, r.Method...), ' '), target(r)...)
	b = append(b, " HTTP/1.1\r\n"...)
	host := r.Host
	if host == "" {
		host = ep.Address
	}
	b = appendField(b, "host", host)
	for name, values := range r.Header {
		if c.edits.drops(name) {
			continue
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	for _, f := range c.edits.set {
		b = appendField(b, f.Name, f.Value)
	}
	b = appendField(b, gateway.Destination, ep.Address)
	if f := forwardedFor(r); f != "" {
		b = appendField(b, "x-forwarded-for", f)
	}
	if names(r.Header["Te"], "trailers") {
		b = append(b, "te: trailers\r\n"...)
	}
	switch {
	case len(r.Trailer) > 0:
		b = append(b, "transfer-encoding: chunked\r\n"...)
		for name := range r.Trailer {
			if !c.x.Drops(strings.ToLower(name)) {
				b = appendField(b, "trailer", name)
			}
		}
	case length > 0 || r.ContentLength != 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = append(b, "content-length: "...)
		b = append(strconv.AppendInt(b, length, 10), "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendTrailers is what follows a chunked body of n bytes.
func (c *call) appendTrailers(n int64) []byte {
	var b []byte
	if n > 0 {
		b = append(b, "\r\n0\r\n"...)
	}
	for name, values := range c.r.Trailer {
		if c.x.Drops(strings.ToLower(name)) {
			continue
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	return append(b, "\r\n"...)
}

// forwardedFor is the client's list with the client itself at its end.
func forwardedFor(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	prior := joined(r.Header["X-Forwarded-For"])
	switch {
	case err != nil:
		return prior
	case prior == "":
		return host
	}
	return prior + ", " + host
}

// source is an answer's body.
type source interface {
	// next returns the next piece, good until the following call, and io.EOF with or after the last.
	next() ([]byte, error)
	// pending reports whether next has something without waiting.
	pending() bool
	// ending returns the trailers, after io.EOF.
	ending() http.Header
}

func (c *conn) pending() bool       { return c.r < c.w || c.mode == empty }
func (c *conn) ending() http.Header { return c.trailers }

// relay passes an answer on whose headers are in place.
func (c *call) relay(ep *fleet.Endpoint, status int, src source) {
	h := c.w.Header()
	view := answered(h)
	for _, f := range c.x.Answer(status, view) {
		h.Set(f.Name, f.Value)
	}
	_, sized := h["Content-Length"]
	restore := c.x.Restore()
	if restore != nil && c.r.Method != http.MethodHead {
		delete(h, "Content-Length") // net/http tells the new one, or sends chunks
	}
	sse := isSSE(h)
	announced := h["Trailer"]
	if sized && announced != nil && c.r.Method != http.MethodHead { // HTTP/2 knows both, HTTP/1.1 one of them
		delete(h, "Content-Length")
		sized = false
	}
	if h["X-Request-Id"] == nil {
		h["X-Request-Id"] = []string{c.x.ID()}
	}
	if c.s.ShowEndpoint {
		h["X-Penstock-Endpoint"] = []string{ep.Address}
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // none, instead of net/http's guess
	}
	c.w.WriteHeader(status)
	c.started = true
	out := stream{c: c, live: sse || !sized, sse: sse, fresh: true, restore: restore}
	out.flusher, _ = c.w.(flusher)
	if out.live && !src.pending() { // the head need not wait for the first piece
		out.flush()
	}
	out.copy(src)
	trailers := src.ending()
	for name, values := range trailers {
		if !names(announced, name) {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
	c.end = observe.Complete
}

func isSSE(h http.Header) bool {
	v := h["Content-Type"]
	const sse = "text/event-stream"
	return len(v) > 0 && len(v[0]) >= len(sse) && equalFoldASCII(v[0][:len(sse)], sse)
}

func equalFoldASCII(a, b string) bool {
	for i := range len(b) {
		if a[i] != b[i] && a[i]|0x20 != b[i] {
			return false
		}
	}
	return true
}

var _ source = (*conn)(nil)
var _ io.Closer = (*conn)(nil)
