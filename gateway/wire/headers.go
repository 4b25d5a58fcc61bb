// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headerBlock is the header block that is coming in, over one frame or more.
type headerBlock struct {
	on     bool
	id     uint32
	end    bool // it ends the stream
	frames int
	coded  int // bytes so far
	limit  int

	size   int // of the fields, as HTTP/2 counts it
	fields []hpack.HeaderField
	bad    string // why they are malformed
}

// maxContinuations is how many frames a header block may come in.
const maxContinuations = 64

// add takes a field from the decoder.
func (b *headerBlock) add(f hpack.HeaderField) {
	if b.size += int(f.Size()); b.size > b.limit {
		return
	}
	switch {
	case f.IsPseudo() && len(b.fields) > 0 && !b.fields[len(b.fields)-1].IsPseudo():
		b.bad = "a pseudo header after others"
	case !validName(f.Name) || f.Name == "connection":
		b.bad = "a header of a wrong name"
	}
	b.fields = append(b.fields, f)
}

func validName(name string) bool {
	if name == "" || name == ":" {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c >= 'A' && c <= 'Z' || c == ':' && i > 0 {
			return false
		}
	}
	return true
}

// get is the value of the first field of a name.
func (b *headerBlock) get(name string) string {
	for i := range b.fields {
		if b.fields[i].Name == name {
			return b.fields[i].Value
		}
	}
	return ""
}

// headers takes a HEADERS frame: the start of a stream, or its trailers.
func (c *conn) headers(h head, p []byte) (reader bool, err error) {
	if h.id&1 == 0 {
		return true, fatal{http2.ErrCodeProtocol, "a stream of a wrong number"}
	}
	skip, pad := 0, 0
	if h.flags.Has(http2.FlagHeadersPadded) {
		if len(p) == 0 {
			return true, fatal{http2.ErrCodeFrameSize, "no padding in a padded frame"}
		}
		skip, pad = 1, int(p[0])
	}
	if h.flags.Has(http2.FlagHeadersPriority) {
		skip += 5
	}
	if skip+pad > len(p) {
		return true, fatal{http2.ErrCodeProtocol, "padding is longer than its frame"}
	}
	b := &c.block
	clear(b.fields)
	*b = headerBlock{
		on: true, id: h.id, end: h.flags.Has(http2.FlagHeadersEndStream), limit: b.limit, fields: b.fields[:0],
	}
	c.dec.SetEmitEnabled(true)
	return c.fragment(h, p[skip:len(p)-pad])
}

func (c *conn) continuation(h head, p []byte) (reader bool, err error) {
	if !c.block.on {
		return true, fatal{http2.ErrCodeProtocol, "CONTINUATION of nothing"}
	}
	return c.fragment(h, p)
}

// fragment takes a part of a header block. All of it must be decoded, even what nobody wants, for
// the decoder's table to stay right; so there is a bound after which the connection ends.
func (c *conn) fragment(h head, p []byte) (reader bool, err error) {
	b := &c.block
	b.frames++
	b.coded += len(p)
	if b.frames > maxContinuations || b.coded > 2*b.limit {
		return true, fatal{http2.ErrCodeEnhanceYourCalm, "a header block is too long"}
	}
	if _, err := c.dec.Write(p); err != nil {
		return true, fatal{http2.ErrCodeCompression, "a header block cannot be read"}
	}
	if b.size > b.limit {
		c.dec.SetEmitEnabled(false)
	}
	if !h.flags.Has(http2.FlagHeadersEndHeaders) {
		return true, nil
	}
	if err := c.dec.Close(); err != nil {
		return true, fatal{http2.ErrCodeCompression, "a header block is cut off"}
	}
	b.on = false
	return c.open()
}

// open deals with a complete header block.
func (c *conn) open() (reader bool, err error) {
	b := &c.block
	c.mu.Lock()
	if b.id <= c.maxID {
		s := c.streams[b.id]
		c.mu.Unlock()
		return c.trailer(s)
	}
	c.maxID = b.id
	if c.draining == drained { // it was told, and will not be answered
		c.mu.Unlock()
		return true, c.flood(1)
	}
	switch {
	case b.size > b.limit:
		return true, c.deny(http2.ErrCodeFrameSize)
	case b.bad != "" || b.get(":method") == "" || b.get(":path") == "":
		return true, c.deny(http2.ErrCodeProtocol)
	case len(c.streams) >= c.srv.opt.MaxStreams:
		return true, c.deny(http2.ErrCodeRefusedStream)
	}
	s := &Stream{c: c, id: b.id, inbox: c.srv.opt.StreamWindow, window: c.initial}
	timeout, block := c.notGRPC()
	if block != nil {
		c.putFields(b.id, block, true)
		if !b.end {
			c.put32(http2.FrameRSTStream, b.id, uint32(http2.ErrCodeNo))
		}
		c.mu.Unlock()
		return true, c.flood(1)
	}
	s.zips = b.get("grpc-encoding") == zipped
	c.streams[b.id] = s
	if timeout >= 0 {
		s.deadline = time.Now().Add(timeout)
		s.timer = time.AfterFunc(timeout, func() { c.post(s.expire) })
	}
	c.mu.Unlock()
	r, status := c.srv.opt.Handler.Open(s, b.get(":path"), c.header)
	if status != nil {
		s.Finish(status)
		return true, nil
	}
	s.r = r
	if b.end {
		return c.halfClose(s), nil
	}
	return true, nil
}

// deny resets the stream that was to be opened. It is called with mu held, and lets go of it.
func (c *conn) deny(code http2.ErrCode) error {
	c.put32(http2.FrameRSTStream, c.block.id, uint32(code))
	c.mu.Unlock()
	return c.flood(1)
}

// trailer takes the peer's trailers, of which gRPC knows none: they merely end its side.
func (c *conn) trailer(s *Stream) (reader bool, err error) {
	switch {
	case s == nil:
		return true, c.flood(1) // it may not have heard yet that the stream is over
	case s.half:
		return true, fatal{http2.ErrCodeStreamClosed, "HEADERS after END_STREAM"}
	case !c.block.end:
		c.mu.Lock()
		c.put32(http2.FrameRSTStream, s.id, uint32(http2.ErrCodeProtocol))
		c.mu.Unlock()
		return c.endStream(s, ErrReset), nil
	}
	return c.halfClose(s), nil
}

// expire ends a stream whose time is over.
func (s *Stream) expire() (reader bool) {
	return s.c.failStream(s, &Status{DeadlineExceeded, "context deadline exceeded"})
}

// notGRPC gives the answer to a request that is none of gRPC, or of none that we know, as the specification has it. It also
// reads the timeout, which is negative if there is none.
func (c *conn) notGRPC() (timeout time.Duration, answer []byte) {
	b := &c.block
	if ct := b.get("content-type"); !isGRPC(ct) {
		return 0, refusal(415, &Status{InvalidArgument, fmt.Sprintf("invalid gRPC request content-type %q", ct)})
	}
	if m := b.get(":method"); m != "POST" {
		return 0, refusal(405, &Status{Internal, fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", m)})
	}
	timeout = -1
	if v := b.get("grpc-timeout"); v != "" {
		var ok bool
		if timeout, ok = parseTimeout(v); !ok {
			return 0, refusal(400, &Status{Internal, fmt.Sprintf("malformed grpc-timeout: %q", v)})
		}
	}
	switch v := b.get("grpc-encoding"); v {
	case "", identity, zipped:
	default:
		status := &Status{Unimplemented, fmt.Sprintf("grpc: Decompressor is not installed for grpc-encoding %q", v)}
		return 0, append(refusal(200, status), acceptEncoding...)
	}
	return timeout, nil
}

func refusal(code int, status *Status) []byte {
	b := appendField(nil, ":status", strconv.Itoa(code))
	b = appendField(b, "content-type", "application/grpc")
	return append(b, status.trailers()...)
}

func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': 1,
}

// parseTimeout reads a grpc-timeout: at most eight digits and a unit.
func parseTimeout(v string) (time.Duration, bool) {
	if len(v) < 2 || len(v) > 9 {
		return 0, false
	}
	unit, ok := timeoutUnits[v[len(v)-1]]
	n, err := strconv.ParseUint(v[:len(v)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, true
	}
	return time.Duration(n) * unit, true
}
