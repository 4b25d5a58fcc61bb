// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Fault is why a poll failed, in a word that fits a label.
type Fault string

// The faults.
const (
	Refused     Fault = "refused"     // nobody listens
	Unreachable Fault = "unreachable" // no connection for another reason
	Timeout     Fault = "timeout"
	Reset       Fault = "reset" // the connection broke
	TooLarge    Fault = "too-large"
	Malformed   Fault = "malformed"  // not HTTP, or not what was asked for
	HTTP2Only   Fault = "http2-only" // an answer in HTTP/2 to a question in HTTP/1.1
	WantsTLS    Fault = "wants-tls"  // asked over http, it speaks TLS
	NoTLS       Fault = "no-tls"     // asked over https, it does not speak TLS
	Certificate Fault = "certificate"
	Handshake   Fault = "tls-handshake" // TLS failed for another reason, such as our own certificate
	Credentials Fault = "credentials"   // our own certificates or token cannot be read
	NoSignals   Fault = "no-signals"    // a page without anything known
	BadValue    Fault = "bad-value"     // a value that cannot be
)

// Error implements error.
func (f Fault) Error() string { return string(f) }

const (
	headLimit  = 64 << 10
	firstRead  = 32 << 10
	keepBuffer = 1 << 20 // a buffer that grew beyond is not kept
)

// Dialer opens a connection, as [net.Dialer.DialContext] does.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// getter asks one path of one address again and again over one connection. It is no general
// client: it asks for plain bodies, follows no redirect, and reads into its caller's buffer.
type getter struct {
	address, path, accept, auth string
	request                     []byte
	tls                         *tls.Config // for the next connection; nil for none
	conn                        net.Conn
}

func newGetter(address, path, accept string) *getter {
	g := &getter{address: address, path: path, accept: accept}
	g.write()
	return g
}

// show sets what to show and to trust from now on. A connection that is open goes on.
func (g *getter) show(config *tls.Config, auth string) {
	g.tls = config
	if auth != g.auth {
		g.auth = auth
		g.write()
	}
}

func (g *getter) write() {
	auth := ""
	if g.auth != "" {
		auth = "Authorization: " + g.auth + "\r\n"
	}
	g.request = []byte("GET " + g.path + " HTTP/1.1\r\nHost: " + g.address +
		"\r\nUser-Agent: penstock\r\nAccept: " + g.accept + "\r\n" + auth + "\r\n")
}

func (g *getter) close() {
	if g != nil && g.conn != nil {
		_ = g.conn.Close()
		g.conn = nil
	}
}

// get returns the body of a 200, which lies in *buf until the next call.
func (g *getter) get(w *worker, limit int) ([]byte, error) {
	deadline := time.Now().Add(w.timeout)
	reused := g.conn != nil
	body, quiet, err := g.once(w, deadline, limit)
	if err != nil && reused && quiet && fault(err) == Reset {
		body, _, err = g.once(w, deadline, limit) // it had closed the idle connection
	}
	if err != nil {
		return nil, fault(err)
	}
	return body, nil
}

// once makes one exchange. quiet reports that not a byte came back.
func (g *getter) once(w *worker, deadline time.Time, limit int) (body []byte, quiet bool, err error) {
	keep := false
	defer func() {
		w.use(nil)
		if !keep {
			g.close()
		}
	}()
	if g.conn == nil {
		ctx, cancel := context.WithDeadline(w.ctx, deadline)
		g.conn, err = g.dial(ctx, w.dial)
		cancel()
		if err != nil {
			g.conn = nil
			return nil, false, err
		}
	}
	if err = g.conn.SetDeadline(deadline); err != nil {
		return nil, true, err
	}
	if !w.use(g.conn) { // after the deadline is set, which stop would overrule
		return nil, false, context.Canceled
	}
	if _, err = g.conn.Write(g.request); err != nil {
		return nil, true, err
	}
	r := reader{c: g.conn, buf: w.buf[:0]}
	body, keep, err = r.answer(limit)
	w.buf = r.buf
	return body, len(r.buf) == 0, err
}

// dial opens a connection; what keeps it from being used is a [Fault].
func (g *getter) dial(ctx context.Context, dial Dialer) (net.Conn, error) {
	c, err := dial(ctx, "tcp", g.address)
	if err != nil {
		return nil, dialFault(err)
	}
	if g.tls == nil {
		return c, nil
	}
	config := g.tls.Clone()
	config.ServerName = hostOf(g.address)
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, tlsFault(err)
	}
	return t, nil
}

func tlsFault(err error) Fault {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &untrusted):
		return Certificate
	case errors.As(err, &plain):
		return NoTLS
	case isTimeout(err):
		return Timeout
	}
	return Handshake
}

func dialFault(err error) Fault {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case isTimeout(err):
		return Timeout
	}
	return Unreachable
}

// fault sorts an error of an exchange.
func fault(err error) Fault {
	var f Fault
	var op *net.OpError
	switch {
	case errors.As(err, &f):
		return f
	case isTimeout(err):
		return Timeout
	case errors.As(err, &op) && op.Op == "remote error": // an alert: TLS 1.3 refuses our certificate after the handshake
		return Handshake
	}
	return Reset
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// reader reads one answer into buf, head and body.
type reader struct {
	c   net.Conn
	buf []byte
	at  int // what of buf was read as an answer's head
}

// more reads once, with room for at least n bytes.
func (r *reader) more(n int) error {
	if cap(r.buf)-len(r.buf) < n {
		grown := make([]byte, len(r.buf), max(2*cap(r.buf), len(r.buf)+n))
		copy(grown, r.buf)
		r.buf = grown
	}
	k, err := r.c.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+k]
	if k > 0 {
		return nil
	}
	return err
}

// answer reads one answer. keep reports that the connection can be used again.
func (r *reader) answer(limit int) (body []byte, keep bool, err error) {
	var h head
	for {
		if h, err = r.head(); err != nil {
			return nil, false, err
		}
		if h.status >= 200 {
			break
		}
	}
	if h.status != 200 {
		// Its body is of no interest, but its end is where the connection can be used again.
		if _, keep, err = r.body(&h, headLimit); err != nil {
			keep = false
		}
		return nil, keep, Fault("status-" + strconv.Itoa(h.status))
	}
	return r.body(&h, limit)
}

func (r *reader) body(h *head, limit int) (body []byte, keep bool, err error) {
	start := r.at
	switch {
	case h.status == 204 || h.status == 304:
		return nil, h.keep && len(r.buf) == start, nil
	case h.chunked:
		body, end, err := r.chunks(start, limit)
		return body, h.keep && end == len(r.buf), err
	case h.length >= 0:
		if h.length > int64(limit) {
			return nil, false, TooLarge
		}
		end := start + int(h.length)
		for len(r.buf) < end {
			if err := r.more(end - len(r.buf)); err != nil {
				return nil, false, broken(err)
			}
		}
		return r.buf[start:end], h.keep && end == len(r.buf), nil
	}
	for { // to the end of the connection
		if len(r.buf)-start > limit {
			return nil, false, TooLarge
		}
		if err := r.more(firstRead); err == io.EOF {
			return r.buf[start:], false, nil
		} else if err != nil {
			return nil, false, err
		}
	}
}

// chunks decodes a chunked body where it lies.
func (r *reader) chunks(start, limit int) (body []byte, end int, err error) {
	in, out := start, start
	for {
		i := bytes.IndexByte(r.buf[in:], '\n')
		if i < 0 {
			if len(r.buf)-in > headLimit {
				return nil, 0, Malformed
			}
			if err := r.more(firstRead); err != nil {
				return nil, 0, broken(err)
			}
			continue
		}
		n, ok := chunkSize(r.buf[in : in+i])
		if !ok {
			return nil, 0, Malformed
		}
		in += i + 1
		if n == 0 {
			break
		}
		if out-start+n > limit {
			return nil, 0, TooLarge
		}
		for len(r.buf) < in+n+2 {
			if err := r.more(in + n + 2 - len(r.buf)); err != nil {
				return nil, 0, broken(err)
			}
		}
		if r.buf[in+n] != '\r' || r.buf[in+n+1] != '\n' {
			return nil, 0, Malformed
		}
		out += copy(r.buf[out:], r.buf[in:in+n])
		in += n + 2
	}
	for { // trailers
		i := bytes.IndexByte(r.buf[in:], '\n')
		if i < 0 {
			if len(r.buf)-in > headLimit {
				return nil, 0, Malformed
			}
			if err := r.more(firstRead); err != nil {
				return nil, 0, broken(err)
			}
			continue
		}
		line := bytes.TrimRight(r.buf[in:in+i], "\r")
		in += i + 1
		if len(line) == 0 {
			return r.buf[start:out], in, nil
		}
	}
}

func chunkSize(line []byte) (int, bool) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, " \t\r")
	if len(line) == 0 || len(line) > 7 {
		return 0, false
	}
	n := 0
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// broken makes an end in the middle an error that says so.
func broken(err error) error {
	if err == io.EOF {
		return Reset
	}
	return err
}

// head is what matters of an answer's head.
type head struct {
	status  int
	length  int64 // -1 when not told
	chunked bool
	keep    bool
}

// head reads the next head and moves r.at behind it.
func (r *reader) head() (head, error) {
	for {
		if i := bytes.Index(r.buf[r.at:], []byte("\r\n\r\n")); i >= 0 {
			h, ok := parseHead(r.buf[r.at : r.at+i+2])
			r.at += i + 4
			if !ok {
				return h, Malformed
			}
			return h, nil
		}
		if len(r.buf)-r.at > headLimit {
			return head{}, Malformed
		}
		if err := r.more(firstRead); err != nil {
			return head{}, broken(err)
		}
		if f := foreign(r.buf[r.at:]); f != "" {
			return head{}, f
		}
	}
}

// foreign says what an answer is whose first bytes are not HTTP/1's; empty when they may be.
func foreign(b []byte) Fault {
	const settings = 4 // the type of the frame with which HTTP/2 begins
	switch {
	case len(b) == 0 || b[0] == 'H':
		return ""
	case b[0] == 0x15 || b[0] == 0x16: // an alert, a handshake
		return WantsTLS
	case b[0] != 0:
		return Malformed
	case len(b) >= 9 && b[3] == settings && string(b[5:9]) == "\x00\x00\x00\x00":
		return HTTP2Only
	case len(b) >= 9:
		return Malformed
	}
	return ""
}

func parseHead(b []byte) (head, bool) {
	h := head{length: -1}
	i := bytes.IndexByte(b, '\n')
	line := b[:i]
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' {
		return h, false
	}
	status, ok := count(line[9:12])
	if !ok || status < 100 {
		return h, false
	}
	h.status, h.keep = status, line[7] == '1'
	for b = b[i+1:]; len(b) > 0; b = b[i+1:] {
		i = bytes.IndexByte(b, '\n')
		name, value, ok := bytes.Cut(b[:i], []byte(":"))
		if !ok {
			return h, false
		}
		value = bytes.TrimSpace(value)
		switch {
		case is(name, "content-length"):
			n, ok := count(value)
			if !ok {
				return h, false
			}
			h.length = int64(n)
		case is(name, "transfer-encoding"):
			if !is(value, "chunked") {
				return h, false
			}
			h.chunked = true
		case is(name, "connection"):
			if is(value, "close") {
				h.keep = false
			}
		case is(name, "content-encoding"):
			if !is(value, "identity") {
				return h, false
			}
		}
	}
	return h, true
}

// is compares without regard to case; want is lower case.
func is(b []byte, want string) bool {
	if len(b) != len(want) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// worker is what a worker owns; buf only while it polls.
type worker struct {
	ctx     context.Context
	timeout time.Duration
	dial    Dialer
	buf     []byte
	page    Page
	// attributes is room for what a page says.
	attributes []fleet.Attribute

	mu      sync.Mutex
	conn    net.Conn // in use
	stopped bool
}

// use says which connection is in use. It reports false when the worker is to stop.
func (w *worker) use(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = c
	return !w.stopped
}

// stop breaks off what the worker does.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.conn != nil {
		_ = w.conn.SetDeadline(time.Unix(1, 0))
	}
}
