// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math"
	"time"

	"golang.org/x/net/http2"
)

// maxFrame is the longest frame that we take: HTTP/2's default, which nobody exceeds.
const maxFrame = 16 << 10

// head is a frame's header.
type head struct {
	n     int
	typ   http2.FrameType
	flags http2.Flags
	id    uint32
}

// dataFrame is the DATA frame that is coming in. It is dealt with as it comes, so that a body
// need never be moved for being cut off at the end of a buffer.
type dataFrame struct {
	on   bool
	s    *Stream // nil if the rest is for nobody
	left int     // of its data
	pad  int     // after that
	end  bool    // it ends the stream
}

// rates counts what a peer may do in a second.
type rates struct {
	since         time.Time
	control, rsts int
}

const (
	maxControl  = 10_000 // frames that bring nothing, such as pings
	settingCost = 50     // for it may touch each stream
)

func putSetting(b []byte, id http2.SettingID, v int) {
	binary.BigEndian.PutUint16(b, uint16(id))
	binary.BigEndian.PutUint32(b[2:], uint32(v))
}

func putGoAway(b []byte, last uint32, code http2.ErrCode) {
	binary.BigEndian.PutUint32(b, last)
	binary.BigEndian.PutUint32(b[4:], uint32(code))
}

// peek reads the header of the next frame, if it is there.
func (c *conn) peek() (h head, ok bool) {
	b := c.buf.b[c.r:c.w]
	if len(b) < 9 {
		return h, false
	}
	return head{
		n:   int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		typ: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		id: binary.BigEndian.Uint32(b[5:]) & math.MaxInt32,
	}, true
}

// wanted is how long the frame is that must be in the buffer as a whole.
func (c *conn) wanted() int {
	if c.data.on || c.buf == nil || !c.greeted {
		return len(http2.ClientPreface)
	}
	h, ok := c.peek()
	if !ok || h.typ == http2.FrameData {
		return 10
	}
	return 9 + min(h.n, maxFrame)
}

// parse deals with all that is in the buffer.
func (c *conn) parse() (reader bool, err error) {
	for {
		if !c.posted() {
			return false, nil
		}
		if c.buf == nil || !c.greeted {
			if ok, err := c.greet(); !ok {
				return true, err
			}
		}
		if c.data.on {
			if c.r == c.w && (c.data.left > 0 || c.data.pad > 0) {
				return true, nil
			}
			if reader, err = c.moreData(); !reader || err != nil {
				return reader, err
			}
			continue
		}
		h, ok := c.peek()
		if !ok {
			return true, nil
		}
		if h.n > maxFrame {
			return true, fatal{http2.ErrCodeFrameSize, "a frame is too long"}
		}
		if !c.settled && h.typ != http2.FrameSettings {
			return true, fatal{http2.ErrCodeProtocol, "the first frame is not SETTINGS"}
		}
		if c.block.on && (h.typ != http2.FrameContinuation || h.id != c.block.id) {
			return true, fatal{http2.ErrCodeProtocol, "a header block is interrupted"}
		}
		if h.typ == http2.FrameData {
			if ok, err := c.beginData(h); !ok || err != nil {
				return true, err
			}
			continue
		}
		if c.w-c.r < 9+h.n {
			return true, nil
		}
		p := c.buf.b[c.r+9 : c.r+9+h.n]
		c.r += 9 + h.n
		if reader, err = c.control(h, p); !reader || err != nil {
			return reader, err
		}
	}
}

// greet reads the client's preface.
func (c *conn) greet() (ok bool, err error) {
	if c.buf == nil {
		return false, nil
	}
	b := c.buf.b[c.r:c.w]
	n := min(len(b), len(http2.ClientPreface))
	if string(b[:n]) != http2.ClientPreface[:n] {
		return false, fatal{http2.ErrCodeProtocol, "this is not an HTTP/2 client"}
	}
	if n < len(http2.ClientPreface) {
		return false, nil
	}
	c.r += n
	c.greeted = true
	c.nc.SetReadDeadline(time.Time{})
	return true, nil
}

// beginData begins a DATA frame; not ok means that its header is not all there.
func (c *conn) beginData(h head) (ok bool, err error) {
	d := dataFrame{on: true, left: h.n, end: h.flags.Has(http2.FlagDataEndStream)}
	step := 9
	if h.flags.Has(http2.FlagDataPadded) {
		if h.n == 0 {
			return false, fatal{http2.ErrCodeFrameSize, "no padding in a padded frame"}
		}
		if c.w-c.r < 10 {
			return false, nil
		}
		d.pad = int(c.buf.b[c.r+9])
		d.left -= 1 + d.pad
		step = 10
		if d.left < 0 {
			return false, fatal{http2.ErrCodeProtocol, "padding is longer than its frame"}
		}
	}
	c.r += step
	if h.n == 0 && !d.end {
		if err := c.flood(1); err != nil {
			return false, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.id&1 == 0 || h.id > c.maxID {
		return false, fatal{http2.ErrCodeProtocol, "DATA on an idle stream"}
	}
	if c.inbox -= h.n; c.inbox < 0 {
		return false, fatal{http2.ErrCodeFlowControl, "more DATA than the connection's window"}
	}
	if c.due += h.n; c.due >= c.srv.opt.ConnWindow/2 {
		c.put32(http2.FrameWindowUpdate, 0, uint32(c.due))
		c.inbox += c.due
		c.due = 0
	}
	if s := c.streams[h.id]; s != nil {
		if s.inbox -= h.n; s.inbox < 0 {
			return false, fatal{http2.ErrCodeFlowControl, "more DATA than the stream's window"}
		}
		if s.half {
			return false, fatal{http2.ErrCodeStreamClosed, "DATA after END_STREAM"}
		}
		d.s = s
		switch {
		case s.away:
			s.owed += h.n
		case !d.end:
			c.credit(s, h.n)
		}
	}
	c.data = d
	return true, nil
}

// moreData deals with what is there of a DATA frame.
func (c *conn) moreData() (reader bool, err error) {
	d := &c.data
	if d.left > 0 {
		if d.s != nil && !d.s.over() {
			return c.take(d.s), nil
		}
		d.s = nil
		n := min(d.left, c.w-c.r)
		c.r += n
		d.left -= n
		return true, nil
	}
	if n := min(d.pad, c.w-c.r); n > 0 {
		c.r += n
		d.pad -= n
	}
	if d.pad > 0 {
		return true, nil
	}
	s, end := d.s, d.end
	c.data = dataFrame{}
	if s == nil || !end {
		return true, nil
	}
	return c.halfClose(s), nil
}

// halfClose takes the end of what the peer sends.
func (c *conn) halfClose(s *Stream) (reader bool) {
	c.mu.Lock()
	s.half = true
	shut(s.left)
	c.mu.Unlock()
	if s.headN > 0 {
		return c.failStream(s, &Status{Internal, "grpc: the stream ended within a message"})
	}
	return c.deliver(s, event{kind: evHalf})
}

// flood bounds frames that cost us more than they bring.
func (c *conn) flood(cost int) error {
	if now := time.Now(); now.Sub(c.rates.since) > time.Second {
		c.rates = rates{since: now}
	}
	if c.rates.control += cost; c.rates.control > maxControl {
		return fatal{http2.ErrCodeEnhanceYourCalm, "too many control frames"}
	}
	return nil
}

// control deals with a frame other than DATA.
func (c *conn) control(h head, p []byte) (reader bool, err error) {
	switch h.typ {
	case http2.FrameHeaders:
		return c.headers(h, p)
	case http2.FrameContinuation:
		return c.continuation(h, p)
	case http2.FrameRSTStream:
		return c.reset(h, p)
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, p)
	case http2.FrameSettings:
		return true, c.settings(h, p)
	case http2.FramePing:
		return true, c.ping(h, p)
	case http2.FramePriority:
		if h.id == 0 {
			return true, fatal{http2.ErrCodeProtocol, "PRIORITY without a stream"}
		}
		if h.n != 5 {
			return true, fatal{http2.ErrCodeFrameSize, "PRIORITY of a wrong length"}
		}
	case http2.FrameGoAway:
		if h.id != 0 {
			return true, fatal{http2.ErrCodeProtocol, "GOAWAY on a stream"}
		}
		if h.n < 8 {
			return true, fatal{http2.ErrCodeFrameSize, "GOAWAY of a wrong length"}
		}
		// The peer opens no more streams and closes when it has done; there is nothing to do for us.
	case http2.FramePushPromise:
		return true, fatal{http2.ErrCodeProtocol, "a client does not push"}
	}
	return true, c.flood(1)
}

func (c *conn) reset(h head, p []byte) (reader bool, err error) {
	if h.n != 4 {
		return true, fatal{http2.ErrCodeFrameSize, "RST_STREAM of a wrong length"}
	}
	c.mu.Lock()
	idle := h.id&1 == 0 || h.id > c.maxID
	s := c.streams[h.id]
	c.mu.Unlock()
	if idle {
		return true, fatal{http2.ErrCodeProtocol, "RST_STREAM on an idle stream"}
	}
	if err := c.flood(0); err != nil {
		return true, err
	}
	if c.rates.rsts++; c.rates.rsts > c.srv.opt.MaxResets {
		return true, fatal{http2.ErrCodeEnhanceYourCalm, "too many resets"}
	}
	if s == nil {
		return true, nil
	}
	return c.endStream(s, ErrReset), nil
}

func (c *conn) windowUpdate(h head, p []byte) (reader bool, err error) {
	if h.n != 4 {
		return true, fatal{http2.ErrCodeFrameSize, "WINDOW_UPDATE of a wrong length"}
	}
	n := int64(binary.BigEndian.Uint32(p) & math.MaxInt32)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.id == 0 {
		if n == 0 {
			return true, fatal{http2.ErrCodeProtocol, "WINDOW_UPDATE by nothing"}
		}
		if c.window += n; c.window > math.MaxInt32 {
			return true, fatal{http2.ErrCodeFlowControl, "the window is too large"}
		}
		c.pump()
		return true, nil
	}
	if h.id&1 == 0 || h.id > c.maxID {
		return true, fatal{http2.ErrCodeProtocol, "WINDOW_UPDATE on an idle stream"}
	}
	s := c.streams[h.id]
	if s == nil {
		return true, nil
	}
	s.window += n
	if n == 0 || s.window > math.MaxInt32 {
		code := http2.ErrCodeFlowControl
		if n == 0 {
			code = http2.ErrCodeProtocol
		}
		c.put32(http2.FrameRSTStream, h.id, uint32(code))
		c.mu.Unlock()
		reader = c.endStream(s, ErrReset)
		c.mu.Lock()
		return reader, nil
	}
	c.want(s)
	c.pump()
	return true, nil
}

func (c *conn) settings(h head, p []byte) error {
	switch {
	case h.id != 0:
		return fatal{http2.ErrCodeProtocol, "SETTINGS on a stream"}
	case h.flags.Has(http2.FlagSettingsAck) && h.n != 0, h.n%6 != 0:
		return fatal{http2.ErrCodeFrameSize, "SETTINGS of a wrong length"}
	case h.flags.Has(http2.FlagSettingsAck):
		return c.flood(1)
	}
	c.settled = true
	if err := c.flood(settingCost); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	initial := c.initial
	for ; len(p) > 0; p = p[6:] {
		v := binary.BigEndian.Uint32(p[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(p)) {
		case http2.SettingHeaderTableSize:
			c.tellTable = c.tellTable || v < 4096
		case http2.SettingEnablePush:
			if v > 1 {
				return fatal{http2.ErrCodeProtocol, "ENABLE_PUSH is neither 0 nor 1"}
			}
		case http2.SettingInitialWindowSize:
			if v > math.MaxInt32 {
				return fatal{http2.ErrCodeFlowControl, "the initial window is too large"}
			}
			initial = int64(v)
		case http2.SettingMaxFrameSize:
			if v < 16<<10 || v > 1<<24-1 {
				return fatal{http2.ErrCodeProtocol, "a wrong MAX_FRAME_SIZE"}
			}
			c.frame = min(int(v), largestFrame)
		}
	}
	if by := initial - c.initial; by != 0 {
		c.initial = initial
		for _, s := range c.streams {
			if s.window += by; s.window > math.MaxInt32 {
				return fatal{http2.ErrCodeFlowControl, "a window is too large"}
			}
			c.want(s)
		}
	}
	c.putFrame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	c.pump()
	return nil
}

func (c *conn) ping(h head, p []byte) error {
	switch {
	case h.id != 0:
		return fatal{http2.ErrCodeProtocol, "PING on a stream"}
	case h.n != 8:
		return fatal{http2.ErrCodeFrameSize, "PING of a wrong length"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !h.flags.Has(http2.FlagPingAck) {
		copy(c.putFrame(8, http2.FramePing, http2.FlagPingAck, 0), p)
	} else if string(p) == drainPing && c.draining == warned {
		c.draining = drained
		putGoAway(c.putFrame(8, http2.FrameGoAway, 0, 0), c.maxID, http2.ErrCodeNo)
	}
	return c.flood(1)
}
