// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Sizes of what is read from an endpoint. A buffer belongs to a connection only while an
// exchange uses it.
const (
	readSize = 16 << 10
	maxHead  = 256 << 10 // an answer's head, 1xx heads and trailers included
	maxLine  = 4 << 10   // a chunk-size line with its extensions
)

var buffers = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}

// malformed says what in an answer is not HTTP.
type malformed string

func (m malformed) Error() string { return "malformed answer: " + string(m) }

// errEarly is a connection that ended before its answer did.
var errEarly = fmt.Errorf("endpoint closed the connection: %w", io.ErrUnexpectedEOF)

// framing is how the end of an answer's body is known.
type framing uint8

const (
	empty   framing = iota // no body, or its end was seen
	sized                  // left bytes
	chunks                 // inside a chunk with left bytes
	gap                    // at the line end that follows a chunk
	size                   // at a chunk-size line
	trailer                // at the lines after the last chunk
	toEOF                  // until the connection ends
)

// conn is one HTTP/1.1 connection to an endpoint. It has no goroutine of its own: whoever
// exchanges reads and writes it, and closes it to give up.
type conn struct {
	net.Conn
	home *host
	live *liveness
	used time.Time // when it last became idle
	// reused tells that it served before, so that a failure may be mere age.
	reused bool

	buf  *[]byte // in use from send to release
	r, w int     // unread bytes are (*buf)[r:w]

	mode     framing
	left     int64
	keep     bool // the connection may serve again
	trailers http.Header
	got      bool // a byte of the answer was seen
}

// fill reads more behind the unread bytes. It moves them to the front first when there is no room.
func (c *conn) fill() error {
	b := *c.buf
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(b) {
		if c.r > 0 {
			c.w = copy(b, b[c.r:c.w])
			c.r = 0
		} else if len(b) < maxHead {
			b = c.grow()
		} else {
			return malformed("head too large")
		}
	}
	n, err := c.Read(b[c.w:])
	c.w += n
	if n > 0 {
		c.got = true
		return nil
	}
	if err == io.EOF {
		return errEarly
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// grow doubles the buffer, for a head that is larger than most.
func (c *conn) grow() []byte {
	b := append(*c.buf, make([]byte, len(*c.buf))...)
	c.buf = &b
	return b
}

// head reads one answer head, an informational one included. The fields that may travel on go
// into h; the body's framing is set up. Text is copied once, as a whole.
func (c *conn) head(method string, h http.Header) (status int, err error) {
	text, err := c.block()
	if err != nil {
		return 0, err
	}
	line, rest, _ := strings.Cut(text, "\n")
	line = strings.TrimSuffix(line, "\r")
	if len(line) < 12 || line[:7] != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return 0, malformed("status line")
	}
	status, err = strconv.Atoi(line[9:12])
	if err != nil || status < 100 || line[9] == '+' {
		return 0, malformed("status")
	}
	f := fields{keep: line[7] != '0', length: -1}
	if err := f.parse(rest, h); err != nil {
		return 0, err
	}
	if f.chunked && line[7] == '0' { // RFC 9112, 6.1: the framing is faulty
		return 0, malformed("transfer-encoding in HTTP/1.0")
	}
	f.strip(h)
	if status < 200 {
		return status, nil
	}
	c.keep = f.keep
	switch {
	case method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
		c.mode = empty
	case f.chunked:
		c.mode = size
		if f.length >= 0 { // both: the length is not to be believed, and neither is what follows
			c.keep = false
			delete(h, "Content-Length")
		}
	case f.length >= 0:
		c.mode, c.left = sized, f.length
		if f.length == 0 {
			c.mode = empty
		}
	default:
		c.mode, c.keep = toEOF, false
	}
	return status, nil
}

// block returns the bytes up to an empty line, without it, as text of their own.
func (c *conn) block() (string, error) {
	from := 0 // no need to look again at what was looked at
	for {
		b := (*c.buf)[c.r:c.w]
		for i := from; i < len(b); {
			n := bytes.IndexByte(b[i:], '\n')
			if n < 0 {
				break
			}
			i += n + 1
			if end := i; bytes.HasPrefix(b[i:], crlf) || bytes.HasPrefix(b[i:], crlf[1:]) {
				c.r += i + 1
				if b[i] == '\r' {
					c.r++
				}
				return string(b[:end]), nil
			}
		}
		from = max(0, len(b)-2)
		if len(b) >= maxHead {
			return "", malformed("head too large")
		}
		if err := c.fill(); err != nil {
			return "", err
		}
	}
}

var crlf = []byte("\r\n")

// fields is what a head says beside what travels on.
type fields struct {
	keep, chunked bool
	length        int64
	connection    []string
}

// parse reads header lines into h.
func (f *fields) parse(text string, h http.Header) error {
	backing := make([]string, 0, strings.Count(text, "\n"))
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSuffix(line, "\r")
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return malformed("header line")
		}
		if known, ok := canon[name]; ok {
			name = known
		} else if !httpguts.ValidHeaderFieldName(name) {
			return malformed("header name")
		} else {
			name = canonical(name)
		}
		value = strings.Trim(value, " \t")
		if !httpguts.ValidHeaderFieldValue(value) {
			return malformed("value of " + name)
		}
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil || f.length >= 0 && f.length != int64(n) {
				return malformed("content-length")
			}
			if f.length >= 0 {
				continue
			}
			f.length = int64(n)
		case "Transfer-Encoding":
			if f.chunked || !strings.EqualFold(value, "chunked") {
				return malformed("transfer-encoding")
			}
			f.chunked = true
			continue
		case "Connection":
			f.connection = append(f.connection, value)
			continue
		}
		if prior := h[name]; prior != nil {
			h[name] = append(prior, value)
			continue
		}
		backing = append(backing, value)
		h[name] = backing[len(backing)-1 : len(backing) : len(backing)]
	}
	return nil
}

// strip takes out of h what is for one connection only. The list of trailers stays: the client's
// connection needs it.
func (f *fields) strip(h http.Header) {
	if f.connection != nil {
		switch {
		case names(f.connection, "close"):
			f.keep = false
		case names(f.connection, "keep-alive"):
			f.keep = true
		}
		for name := range h {
			if name != "Content-Length" && name != "Trailer" && names(f.connection, name) {
				delete(h, name)
			}
		}
	}
	for name := range h {
		if hopByHop(name) && name != "Trailer" {
			delete(h, name)
		}
	}
}

// next returns the next piece of the body, decoded in place and good until the following call.
// The last piece may come together with io.EOF. It reads from the network only when there is
// nothing to return.
func (c *conn) next() ([]byte, error) {
	for {
		switch c.mode {
		case empty:
			return nil, io.EOF
		case sized, toEOF:
			if c.r == c.w {
				if err := c.fill(); err != nil {
					if c.mode == toEOF && errors.Is(err, errEarly) {
						c.mode = empty
						return nil, io.EOF
					}
					return nil, err
				}
			}
			p := (*c.buf)[c.r:c.w]
			if c.mode == toEOF {
				c.r = c.w
				return p, nil
			}
			if int64(len(p)) < c.left {
				c.r = c.w
				c.left -= int64(len(p))
				return p, nil
			}
			p = p[:c.left]
			c.r += len(p)
			c.mode = empty
			return p, io.EOF
		}
		p, err := c.decode()
		if len(p) > 0 || err != nil {
			return p, err
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// decode takes the framing out of the unread bytes, as far as they reach. The chunks' bytes are
// moved together, so that what came in one read goes on in one write.
func (c *conn) decode() ([]byte, error) {
	b := *c.buf
	start, to := c.r, c.r
	for c.r < c.w {
		switch c.mode {
		case chunks:
			n := int(min(int64(c.w-c.r), c.left))
			if to != c.r {
				copy(b[to:], b[c.r:c.r+n])
			}
			to, c.r, c.left = to+n, c.r+n, c.left-int64(n)
			if c.left == 0 {
				c.mode = gap
			}
			continue
		case trailer:
			if to > start { // the piece first: reading the trailers may move it
				return b[start:to], nil
			}
			if err := c.readTrailers(); err != nil {
				return nil, err
			}
			c.mode = empty
			return nil, io.EOF
		}
		i := bytes.IndexByte(b[c.r:c.w], '\n')
		if i < 0 {
			if c.w-c.r > maxLine {
				return nil, malformed("chunk line too long")
			}
			break
		}
		line := bytes.TrimSuffix(b[c.r:c.r+i], crlf[:1])
		c.r += i + 1
		if c.mode == gap {
			if len(line) != 0 {
				return nil, malformed("chunk end")
			}
			c.mode = size
			continue
		}
		n, err := chunkSize(line)
		if err != nil {
			return nil, err
		}
		c.mode, c.left = chunks, n
		if n == 0 {
			c.mode = trailer
			if c.r < c.w && to > start && bytes.Equal(b[c.r:c.w], crlf) { // the usual end, in the same read
				c.r, c.mode = c.w, empty
				return b[start:to], io.EOF
			}
		}
	}
	return b[start:to], nil
}

// readTrailers reads the lines after the last chunk and the empty line that ends them.
func (c *conn) readTrailers() error {
	for c.w-c.r < 2 {
		if err := c.fill(); err != nil {
			return err
		}
	}
	b := (*c.buf)[c.r:c.w]
	if b[0] == '\n' {
		c.r++
		return nil
	}
	if b[0] == '\r' && b[1] == '\n' {
		c.r += 2
		return nil
	}
	text, err := c.block()
	if err != nil {
		return err
	}
	c.trailers = http.Header{}
	f := fields{length: -1}
	if err := f.parse(text, c.trailers); err != nil {
		return err
	}
	delete(c.trailers, "Content-Length")
	f.strip(c.trailers)
	delete(c.trailers, "Trailer")
	return nil
}

// chunkSize reads a chunk-size line; extensions are ignored.
func chunkSize(line []byte) (n int64, err error) {
	digits := 0
	for _, b := range line {
		var d byte
		switch {
		case b >= '0' && b <= '9':
			d = b - '0'
		case b >= 'a' && b <= 'f':
			d = b - 'a' + 10
		case b >= 'A' && b <= 'F':
			d = b - 'A' + 10
		case digits > 0 && (b == ';' || b == ' ' || b == '\t'):
			return n, nil
		default:
			return 0, malformed("chunk size")
		}
		if digits++; digits > 15 {
			return 0, malformed("chunk size")
		}
		n = n<<4 | int64(d)
	}
	if digits == 0 {
		return 0, malformed("chunk size")
	}
	return n, nil
}
