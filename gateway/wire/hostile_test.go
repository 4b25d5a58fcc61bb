// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer is a client that does what it is told.
type peer struct {
	*http2.Framer
	t   testing.TB
	nc  net.Conn
	enc *hpack.Encoder
	buf bytes.Buffer
}

func newPeer(t testing.TB, nc net.Conn) *peer {
	p := &peer{Framer: http2.NewFramer(nc, nc), t: t, nc: nc}
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.buf)
	return p
}

func rawPeer(t *testing.T, addr string) *peer {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	p := newPeer(t, nc)
	io.WriteString(nc, http2.ClientPreface)
	p.WriteSettings()
	return p
}

// fields is a header block of names and values.
func (p *peer) fields(kv ...string) []byte {
	p.buf.Reset()
	for i := 0; i < len(kv); i += 2 {
		p.enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return bytes.Clone(p.buf.Bytes())
}

func (p *peer) request(more ...string) []byte {
	return p.fields(append([]string{":method", "POST", ":scheme", "http", ":path", "/a/b", ":authority", "x", "content-type", "application/grpc"}, more...)...)
}

func (p *peer) open(id uint32, end bool, more ...string) {
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.request(more...), EndHeaders: true, EndStream: end})
}

// end is the first GOAWAY, RST_STREAM with an error, or end of a stream that comes, in words.
func (p *peer) end() string {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "GOAWAY " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return "RST " + f.ErrCode.String()
			}
		case *http2.HeadersFrame:
			var b strings.Builder
			dec := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
				if f.Name == ":status" || f.Name == "grpc-status" || f.Name == "grpc-accept-encoding" {
					b.WriteString(" " + f.Value)
				}
			})
			dec.Write(f.HeaderBlockFragment())
			if f.StreamEnded() {
				return "status" + b.String()
			}
		case *http2.PingFrame:
			if f.IsAck() && f.Data == [8]byte{'l', 'a', 's', 't'} {
				return "fine"
			}
		}
	}
}

func (p *peer) last() { p.WritePing(false, [8]byte{'l', 'a', 's', 't'}) }

func message(n int) []byte { return append([]byte{0, 0, 0, byte(n >> 8), byte(n)}, make([]byte, n)...) }

// framed is a message as it is sent.
func framed(flag byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(b))), b...)
}

// gzipped is a message that is compressed.
func gzipped(b []byte) []byte {
	var to bytes.Buffer
	w := gzip.NewWriter(&to)
	w.Write(b)
	w.Close()
	return framed(1, to.Bytes())
}

// text is n bytes that are worth compressing.
func text(n int) []byte { return bytes.Repeat([]byte("to be or not to be "), n/19+1)[:n] }

func TestHostile(t *testing.T) {
	_, addr, _ := start(t, Options{StreamWindow: 65535, ConnWindow: 100_000, MaxStreams: 3, MaxHeaders: 8 << 10, MaxResets: 100,
		Handler: &funcs{message: echo}})
	h := func(p *peer, id uint32, block []byte, end bool) {
		p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: end})
	}
	for _, c := range []struct {
		name string
		do   func(p *peer)
		want string
	}{
		{"nothing wrong", func(p *peer) { p.open(1, false); p.WriteData(1, true, message(5)) }, "status 0"},
		{"trailers only", func(p *peer) { p.open(1, true) }, "status 200 0"},
		{"padded", func(p *peer) { p.open(1, false); p.WriteDataPadded(1, true, message(5), make([]byte, 200)) }, "status 0"},
		{"padded headers with a priority", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.request(), EndHeaders: true, EndStream: true, PadLength: 77,
				Priority: http2.PriorityParam{StreamDep: 3, Weight: 9}})
		}, "status 200 0"},
		{"too much padding", func(p *peer) {
			p.open(1, false)
			p.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1})
		}, "GOAWAY PROTOCOL_ERROR"},
		{"padding of nothing", func(p *peer) { p.open(1, false); p.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, nil) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"byte by byte", func(p *peer) {
			p.open(1, false)
			for _, b := range message(3) {
				p.WriteData(1, false, []byte{b})
			}
			p.WriteData(1, true, nil)
		}, "status 0"},
		{"trailers", func(p *peer) { p.open(1, false); h(p, 1, p.fields("a", "b"), true) }, "status 200 0"},
		{"trailers without an end", func(p *peer) { p.open(1, false); h(p, 1, p.fields("a", "b"), false) }, "RST PROTOCOL_ERROR"},
		{"cut off message", func(p *peer) { p.open(1, false); p.WriteData(1, true, message(5)[:7]) }, "status 200 13"},
		{"compressed without a word", func(p *peer) { p.open(1, false); p.WriteData(1, false, []byte{1, 0, 0, 0, 0}) }, "status 200 13"},
		{"compressed with identity", func(p *peer) {
			p.open(1, false, "grpc-encoding", "identity")
			p.WriteData(1, false, gzipped(text(100)))
		}, "status 200 13"},
		{"compressed in an odd way", func(p *peer) { p.open(1, false, "grpc-encoding", "zstd") }, "status 200 12 identity,gzip"},
		{"compressed", func(p *peer) { p.open(1, false, "grpc-encoding", "gzip"); p.WriteData(1, true, gzipped(text(100))) }, "status 0"},
		{"compressed or not", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			p.WriteData(1, true, slices.Concat(message(5), gzipped(nil), message(0), gzipped(text(9000)), message(7)))
		}, "status 0"},
		{"compressed byte by byte", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			for _, b := range gzipped(text(100)) {
				p.WriteData(1, false, []byte{b})
			}
			p.WriteData(1, true, nil)
		}, "status 0"},
		{"compressed in members", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			b := slices.Concat(gzipped(text(10))[5:], gzipped(text(20))[5:])
			p.WriteData(1, true, framed(1, b))
		}, "status 0"},
		{"not compressed", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			p.WriteData(1, false, framed(1, []byte("not of gzip")))
		}, "status 200 13"},
		{"compressed to nothing", func(p *peer) { p.open(1, false, "grpc-encoding", "gzip"); p.WriteData(1, true, framed(1, nil)) }, "status 200 13"},
		{"compressed and cut off", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			b := gzipped(text(100))[5:]
			p.WriteData(1, false, framed(1, b[:len(b)-6]))
		}, "status 200 13"},
		{"compressed and changed", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			b := gzipped(text(100))
			b[len(b)-8]++ // of the sum
			p.WriteData(1, false, b)
		}, "status 200 13"},
		{"bomb", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			p.WriteData(1, false, gzipped(make([]byte, 8<<20)))
		}, "status 200 8"},
		{"bomb that denies it", func(p *peer) {
			p.open(1, false, "grpc-encoding", "gzip")
			b := gzipped(make([]byte, 8<<20))
			copy(b[len(b)-4:], "\x01\x00\x00\x00")
			p.WriteData(1, false, b)
		}, "status 200 8"},
		{"odd flag", func(p *peer) { p.open(1, false); p.WriteData(1, false, []byte{7, 0, 0, 0, 0}) }, "status 200 13"},
		{"4 GiB message", func(p *peer) { p.open(1, false); p.WriteData(1, false, []byte{0, 255, 255, 255, 255, 1, 2}) }, "status 200 8"},
		{"GET", func(p *peer) {
			h(p, 1, p.fields(":method", "GET", ":path", "/", ":scheme", "http", "content-type", "application/grpc"), true)
		}, "status 405 13"},
		{"not gRPC", func(p *peer) {
			h(p, 1, p.fields(":method", "POST", ":path", "/", ":scheme", "http", "content-type", "text/html"), false)
		}, "status 415 3"},
		{"almost gRPC", func(p *peer) {
			h(p, 1, p.fields(":method", "POST", ":path", "/", "content-type", "application/grpc-web"), false)
		}, "status 415 3"},
		{"no path", func(p *peer) { h(p, 1, p.fields(":method", "POST"), true) }, "RST PROTOCOL_ERROR"},
		{"upper case", func(p *peer) { p.open(1, true, "Bad", "x") }, "RST PROTOCOL_ERROR"},
		{"connection header", func(p *peer) { p.open(1, true, "connection", "close") }, "RST PROTOCOL_ERROR"},
		{"late pseudo header", func(p *peer) { p.open(1, true, "a", "b", ":path", "/") }, "RST PROTOCOL_ERROR"},
		{"long headers", func(p *peer) { p.open(1, true, "a", strings.Repeat("x", 8000), "b", strings.Repeat("y", 500)) }, "RST FRAME_SIZE_ERROR"},
		{"endless headers", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.request()})
			for range 100 {
				p.WriteContinuation(1, false, nil)
			}
		}, "GOAWAY ENHANCE_YOUR_CALM"},
		{"header bomb", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.request("a", strings.Repeat("x", 4000))})
			p.WriteContinuation(1, true, bytes.Repeat([]byte{0x80 | 62}, 10_000))
		}, "RST FRAME_SIZE_ERROR"},
		{"garbage headers", func(p *peer) { h(p, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true) }, "GOAWAY COMPRESSION_ERROR"},
		{"cut off headers", func(p *peer) { h(p, 1, []byte{0x00, 0x7f}, true) }, "GOAWAY COMPRESSION_ERROR"},
		{"interrupted headers", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.request()})
			p.last()
		}, "GOAWAY PROTOCOL_ERROR"},
		{"continuation of nothing", func(p *peer) { p.WriteContinuation(1, true, nil) }, "GOAWAY PROTOCOL_ERROR"},
		{"continued", func(p *peer) {
			b := p.request()
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:3], EndStream: true})
			p.WriteContinuation(1, false, b[3:9])
			p.WriteContinuation(1, true, b[9:])
		}, "status 200 0"},
		{"even stream", func(p *peer) { p.open(2, true) }, "GOAWAY PROTOCOL_ERROR"},
		{"stream 0", func(p *peer) { p.open(0, true) }, "GOAWAY PROTOCOL_ERROR"},
		{"lower stream", func(p *peer) { p.open(5, false); p.open(3, true); p.last() }, "fine"},
		{"too many streams", func(p *peer) {
			for id := uint32(1); id < 9; id += 2 {
				p.open(id, false)
			}
		}, "RST REFUSED_STREAM"},
		{"data on an idle stream", func(p *peer) { p.WriteData(1, false, nil) }, "GOAWAY PROTOCOL_ERROR"},
		{"data after the end", func(p *peer) {
			p.open(1, false)
			p.WriteData(1, true, nil)
			p.WriteData(1, true, nil)
			p.last()
		}, "status 200 0"},
		{"data beyond the stream's window", func(p *peer) {
			p.open(1, false)
			for range 5 { // one message that never ends, whose credit comes with what we have taken
				p.WriteRawFrame(http2.FrameData, 0, 1, append([]byte{0, 0, 3, 0, 0}, make([]byte, 16_000)...))
			}
			p.last()
		}, "fine"},
		{"a frame that is too long", func(p *peer) { p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16385)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"push", func(p *peer) { p.WriteRawFrame(http2.FramePushPromise, 0, 1, make([]byte, 8)) }, "GOAWAY PROTOCOL_ERROR"},
		{"unknown frame", func(p *peer) { p.WriteRawFrame(77, 9, 1, make([]byte, 8)); p.last() }, "fine"},
		{"priority", func(p *peer) { p.WritePriority(1, http2.PriorityParam{StreamDep: 1}); p.last() }, "fine"},
		{"priority without a stream", func(p *peer) { p.WriteRawFrame(http2.FramePriority, 0, 0, make([]byte, 5)) }, "GOAWAY PROTOCOL_ERROR"},
		{"short priority", func(p *peer) { p.WriteRawFrame(http2.FramePriority, 0, 1, make([]byte, 4)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"reset of an idle stream", func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeCancel) }, "GOAWAY PROTOCOL_ERROR"},
		{"short reset", func(p *peer) { p.WriteRawFrame(http2.FrameRSTStream, 0, 1, nil) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"rapid resets", func(p *peer) {
			for id := uint32(1); id < 600; id += 2 {
				p.open(id, false)
				p.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		}, "GOAWAY ENHANCE_YOUR_CALM"},
		{"pings", func(p *peer) {
			go func() {
				for range 2 * maxControl {
					if p.WritePing(false, [8]byte{}) != nil {
						return
					}
				}
			}()
		}, "GOAWAY ENHANCE_YOUR_CALM"},
		{"empty data", func(p *peer) {
			p.open(1, false)
			for range 2 * maxControl {
				p.WriteData(1, false, nil)
			}
		}, "GOAWAY ENHANCE_YOUR_CALM"},
		{"settings", func(p *peer) {
			for range maxControl {
				p.WriteSettings()
			}
		}, "GOAWAY ENHANCE_YOUR_CALM"},
		{"ping on a stream", func(p *peer) { p.WriteRawFrame(http2.FramePing, 0, 1, make([]byte, 8)) }, "GOAWAY PROTOCOL_ERROR"},
		{"short ping", func(p *peer) { p.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 7)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"settings on a stream", func(p *peer) { p.WriteRawFrame(http2.FrameSettings, 0, 1, nil) }, "GOAWAY PROTOCOL_ERROR"},
		{"odd settings", func(p *peer) { p.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"an ack that says something", func(p *peer) { p.WriteRawFrame(http2.FrameSettings, 1, 0, make([]byte, 6)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"window of 4 GiB", func(p *peer) { p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}) }, "GOAWAY FLOW_CONTROL_ERROR"},
		{"tiny frames", func(p *peer) { p.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 100}) }, "GOAWAY PROTOCOL_ERROR"},
		{"push settings", func(p *peer) { p.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2}) }, "GOAWAY PROTOCOL_ERROR"},
		{"window by nothing", func(p *peer) { p.WriteWindowUpdate(0, 0) }, "GOAWAY PROTOCOL_ERROR"},
		{"window overflow", func(p *peer) { p.WriteWindowUpdate(0, 1<<31-1) }, "GOAWAY FLOW_CONTROL_ERROR"},
		{"stream window by nothing", func(p *peer) { p.open(1, false); p.WriteWindowUpdate(1, 0) }, "RST PROTOCOL_ERROR"},
		{"stream window overflow", func(p *peer) { p.open(1, false); p.WriteWindowUpdate(1, 1<<31-1) }, "RST FLOW_CONTROL_ERROR"},
		{"stream window by settings", func(p *peer) {
			p.open(1, false)
			p.WriteWindowUpdate(1, 1<<30)
			p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		}, "GOAWAY FLOW_CONTROL_ERROR"},
		{"window of an idle stream", func(p *peer) { p.WriteWindowUpdate(7, 1) }, "GOAWAY PROTOCOL_ERROR"},
		{"short goaway", func(p *peer) { p.WriteRawFrame(http2.FrameGoAway, 0, 0, make([]byte, 7)) }, "GOAWAY FRAME_SIZE_ERROR"},
		{"goaway", func(p *peer) { p.WriteGoAway(0, http2.ErrCodeNo, nil); p.last() }, "fine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := rawPeer(t, addr)
			c.do(p)
			if got := p.end(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			p.nc.Close()
		})
	}
}

func TestPreface(t *testing.T) {
	_, addr, _ := start(t, Options{Handler: &funcs{}})
	for name, say := range map[string]string{
		"HTTP/1.1":    "GET / HTTP/1.1\r\n\r\n",
		"no settings": http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(10 * time.Second))
			io.WriteString(nc, say)
			if got := newPeer(t, nc).end(); got != "GOAWAY PROTOCOL_ERROR" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A peer whose receiver is away may use up the window, and no more.
func TestWindow(t *testing.T) {
	release := make(chan struct{})
	_, addr, _ := start(t, Options{StreamWindow: 65535, ConnWindow: 200_000, Handler: &funcs{message: func(s *Stream, m *Message) {
		s.Detach()
		select {
		case <-release:
		case <-s.Done():
		}
	}}})
	defer close(release)
	p := rawPeer(t, addr)
	p.open(1, false)
	for range 5 {
		p.WriteData(1, false, message(16_000))
	}
	if got, want := p.end(), "GOAWAY FLOW_CONTROL_ERROR"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A peer that makes its windows small and large gets every byte, in frames that they allow.
func TestSmallWindows(t *testing.T) {
	_, addr, _ := start(t, Options{Handler: &funcs{message: echo}})
	p := rawPeer(t, addr)
	p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	for id := uint32(1); id < 9; id += 2 {
		p.open(id, false)
		p.WriteData(id, true, message(100))
	}
	got, ended, grown := 0, 0, false
	for ended < 4 {
		f, err := p.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			got += len(f.Data())
			if !grown && len(f.Data()) > 10 {
				t.Errorf("a frame of %d bytes", len(f.Data()))
			}
			if got == 4*10 {
				for id := uint32(1); id < 9; id += 2 {
					p.WriteWindowUpdate(id, 3)
				}
			}
			if got == 4*13 {
				grown = true
				p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ended++
			}
		case *http2.GoAwayFrame:
			t.Fatal(f)
		}
	}
	if got != 4*105 {
		t.Errorf("got %d bytes, want %d", got, 4*105)
	}
}

// pipes is a listener in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if nc, ok := <-p; ok {
		return nc, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error {
	defer func() { recover() }() // closed already
	close(p)
	return nil
}
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestIdle has a peer fall silent: it is pinged after 30 seconds and given up 20 later.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := make(pipes)
		ctx, cancel := context.WithCancel(t.Context())
		srv := New(Options{Handler: &funcs{}})
		served := make(chan error)
		go func() { served <- srv.Serve(ctx, lis) }()
		mine, theirs := net.Pipe()
		lis <- theirs
		begun := time.Now()
		p := newPeer(t, mine)
		said := make(chan struct{})
		go func() {
			defer close(said)
			io.WriteString(mine, http2.ClientPreface)
			p.WriteSettings()
		}()
		var at []time.Duration
		for {
			f, err := p.ReadFrame()
			if err != nil {
				at = append(at, time.Since(begun))
				break
			}
			if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() {
				at = append(at, time.Since(begun))
				if len(at) == 1 {
					<-said
					p.WritePing(true, ping.Data)
				}
			}
		}
		if len(at) != 3 || at[2]-at[1] != 20*time.Second || at[0] != time.Minute {
			t.Errorf("pinged and left after %v", at)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// A peer that says nothing at all is given up too.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := make(pipes)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error)
		go func() { served <- New(Options{Handler: &funcs{}}).Serve(ctx, lis) }()
		mine, theirs := net.Pipe()
		lis <- theirs
		begun := time.Now()
		io.Copy(io.Discard, mine)
		if d := time.Since(begun); d != 20*time.Second {
			t.Errorf("left after %v, want 20 s", d)
		}
		cancel()
		<-served
	})
}

// FuzzConn feeds what it likes after the preface and half of it in pieces; the server must end, and give
// back all that it held.
func FuzzConn(f *testing.F) {
	frame := func(do func(p *peer)) []byte {
		var b bytes.Buffer
		p := &peer{Framer: http2.NewFramer(&b, nil)}
		p.AllowIllegalWrites = true
		p.enc = hpack.NewEncoder(&p.buf)
		p.WriteSettings()
		do(p)
		return b.Bytes()
	}
	f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"), 3)
	f.Add(frame(func(p *peer) { p.open(1, false); p.WriteData(1, true, message(2000)) }), 100)
	f.Add(frame(func(p *peer) {
		p.open(1, false)
		p.WriteDataPadded(1, false, message(20), make([]byte, 30))
		p.WriteRSTStream(1, 8)
	}), 7)
	f.Add(frame(func(p *peer) {
		p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		p.open(1, false)
		p.WriteData(1, true, message(9))
		p.WriteWindowUpdate(1, 5)
		p.WriteWindowUpdate(0, 5)
		p.WriteGoAway(1, 0, nil)
	}), 1)
	f.Add(frame(func(p *peer) {
		p.open(1, false, "grpc-encoding", "gzip")
		p.WriteData(1, false, gzipped(text(300)))
		p.WriteData(1, true, slices.Concat(gzipped(nil), message(4)))
		p.open(3, false, "grpc-encoding", "gzip")
		p.WriteData(3, false, gzipped(make([]byte, 1<<17)))
	}), 90)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		srv := New(Options{MaxMessage: 1 << 16, StreamWindow: 1 << 16, MaxHeaders: 1 << 12, Handler: &funcs{message: func(s *Stream, m *Message) {
			if m.Len%3 == 1 {
				s.Detach()
			}
			echo(s, m)
		}}})
		mine, theirs := net.Pipe()
		srv.add(theirs)
		go io.Copy(io.Discard, mine)
		io.WriteString(mine, http2.ClientPreface)
		if cut > 0 && cut < len(b) {
			mine.Write(b[:cut])
			b = b[cut:]
		}
		mine.Write(b)
		mine.Close()
		srv.wg.Wait()
		if n := srv.pool.live.Load(); n != 0 {
			t.Fatalf("%d buffers were not given back", n)
		}
	})
}
