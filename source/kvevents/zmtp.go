// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The part of ZMTP 3.1 that SUB, PUB, DEALER and ROUTER need with the NULL mechanism; docs/design/0006 says
// why it is ours. See https://rfc.zeromq.org/spec/37.

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	maxCommand   = 1 << 12 // bytes of a command, a handshake's included
	handshakeFor = 10 * time.Second
	writeFor     = 10 * time.Second
	beatEvery    = 10 * time.Second // between two of our PINGs
	silentFor    = 3 * beatEvery    // after which a peer that answers PINGs is taken for dead
)

var (
	errTooLarge = errors.New("message too large")
	errParts    = errors.New("too many parts")
	errNoRoom   = errors.New("other connections hold too much")
)

// wire is one connection that speaks ZMTP.
type wire struct {
	net.Conn
	r     *bufio.Reader
	minor byte         // of the peer's protocol 3
	peer  string       // its socket type
	last  atomic.Int64 // UnixNano of the last frame
	max   int          // bytes of a message

	command func(name, body []byte) // of commands other than PING and PONG; may be nil

	room  *room  // shared with other connections; nil for none
	body  []byte // of the message that is read
	ends  []int
	parts [][]byte

	mu  sync.Mutex // of writing
	out []byte
}

// shake greets the peer, tells our socket type and hears the peer's.
func shake(c net.Conn, socket string, max int) (*wire, error) {
	w := &wire{Conn: c, r: bufio.NewReaderSize(c, 8<<10), max: max}
	_ = c.SetDeadline(time.Now().Add(handshakeFor))
	defer c.SetDeadline(time.Time{})
	var greeting [64]byte
	greeting[0], greeting[9], greeting[10], greeting[11] = 0xff, 0x7f, 3, 1
	copy(greeting[12:], "NULL")
	ready := property([]byte("\x05READY"), "Socket-Type", socket)
	if socket == "DEALER" {
		ready = property(ready, "Identity", "")
	}
	out := appendFrame(append([]byte(nil), greeting[:]...), flagCommand, ready)
	sent := make(chan error, 1)
	go func() { // both sides speak first
		_, err := c.Write(out)
		sent <- err
	}()
	err := w.hear()
	if err != nil {
		c.Close() // ends the write
	}
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	if err != nil {
		return nil, fmt.Errorf("ZeroMQ handshake: %w", err)
	}
	w.last.Store(time.Now().UnixNano())
	return w, nil
}

func property(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// hear reads the peer's greeting and READY.
func (w *wire) hear() error {
	var g [64]byte
	if _, err := io.ReadFull(w.r, g[:]); err != nil {
		return err
	}
	switch {
	case g[0] != 0xff || g[9]&1 == 0 || g[10] < 3:
		return errors.New("the peer does not speak ZMTP 3")
	case string(bytes.TrimRight(g[12:32], "\x00")) != "NULL":
		return fmt.Errorf("the peer wants the mechanism %q, and only NULL is known", bytes.TrimRight(g[12:32], "\x00"))
	}
	w.minor = g[11]
	flags, size, err := w.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errors.New("no READY")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(w.r, body); err != nil {
		return err
	}
	name, body, ok := cutName(body)
	if !ok || string(name) != "READY" {
		return fmt.Errorf("%q instead of READY", name)
	}
	for len(body) > 0 {
		key, rest, ok := cutName(body)
		if !ok || len(rest) < 4 {
			return errors.New("bad READY")
		}
		n := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(n) > uint64(len(rest)) {
			return errors.New("bad READY")
		}
		if bytes.EqualFold(key, []byte("Socket-Type")) {
			w.peer = string(rest[:n])
		}
		body = rest[n:]
	}
	return nil
}

func cutName(b []byte) (name, rest []byte, ok bool) {
	if len(b) == 0 || int(b[0]) >= len(b) {
		return nil, nil, false
	}
	return b[1 : 1+b[0]], b[1+b[0]:], true
}

func (w *wire) header() (flags byte, size uint64, err error) {
	if flags, err = w.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, fmt.Errorf("frame with flags %#x", flags)
	}
	if flags&flagLong == 0 {
		n, err := w.r.ReadByte()
		return flags, uint64(n), err
	}
	var b [8]byte
	for i := range b {
		if b[i], err = w.r.ReadByte(); err != nil {
			return 0, 0, err
		}
	}
	return flags, binary.BigEndian.Uint64(b[:]), nil
}

// read returns the parts of the next message, valid until the next read. errTooLarge, errParts and errNoRoom leave the
// connection in order: the message was read over.
func (w *wire) read() ([][]byte, error) {
	w.leave()
	w.body, w.ends = w.body[:0], w.ends[:0]
	if cap(w.body) > keep {
		w.body = nil
	}
	var bad error
	for {
		flags, size, err := w.header()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := w.obey(size); err != nil {
				return nil, err
			}
			continue
		}
		switch {
		case bad != nil:
		case len(w.ends) == maxParts:
			bad = errParts
		case size > uint64(w.max-len(w.body)):
			bad = errTooLarge
		}
		if bad != nil {
			if size > 1<<40 {
				return nil, errors.New("a frame of more than a terabyte")
			}
			if _, err := io.CopyN(io.Discard, w.r, int64(size)); err != nil {
				return nil, err
			}
		} else {
			for left := int(size); left > 0; { // memory is taken for what came, not for what was announced
				n := min(left, 64<<10)
				at := len(w.body)
				if !w.room.take(over(at, at+n)) {
					bad = errNoRoom
					if _, err := io.CopyN(io.Discard, w.r, int64(left)); err != nil {
						return nil, err
					}
					break
				}
				w.body = append(w.body, make([]byte, n)...)
				if _, err := io.ReadFull(w.r, w.body[at:]); err != nil {
					return nil, err
				}
				w.last.Store(time.Now().UnixNano())
				left -= n
			}
			w.ends = append(w.ends, len(w.body))
		}
		if flags&flagMore != 0 {
			continue
		}
		w.last.Store(time.Now().UnixNano())
		if bad != nil {
			return nil, bad
		}
		w.parts = w.parts[:0]
		from := 0
		for _, end := range w.ends {
			w.parts = append(w.parts, w.body[from:end:end])
			from = end
		}
		return w.parts, nil
	}
}

// leave gives back the room of the message that was read last.
func (w *wire) leave() {
	w.room.give(over(0, len(w.body)))
	w.body = w.body[:0]
}

func (w *wire) obey(size uint64) error {
	if size > maxCommand {
		return errors.New("command too large")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(w.r, body); err != nil {
		return err
	}
	w.last.Store(time.Now().UnixNano())
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return errors.New("bad command")
	}
	name, body := body[1:1+body[0]], body[1+body[0]:]
	switch string(name) {
	case "PING":
		if len(body) < 2 {
			return errors.New("bad PING")
		}
		return w.send(flagCommand, append([]byte("\x04PONG"), body[2:]...))
	case "PONG":
	case "ERROR":
		return fmt.Errorf("the peer says: %.100q", body)
	default:
		if w.command != nil {
			w.command(name, body)
		}
	}
	return nil
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// send writes a message of these parts, or a command.
func (w *wire) send(flags byte, parts ...[]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = w.out[:0]
	for i, p := range parts {
		f := flags
		if i < len(parts)-1 {
			f |= flagMore
		}
		w.out = appendFrame(w.out, f, p)
	}
	_ = w.SetWriteDeadline(time.Now().Add(writeFor))
	_, err := w.Write(w.out)
	return err
}

// subscribe asks a PUB for topics by their start.
func (w *wire) subscribe(filter string) error {
	if w.minor >= 1 {
		return w.send(flagCommand, append([]byte("\x09SUBSCRIBE"), filter...))
	}
	return w.send(0, append([]byte{1}, filter...))
}

// beat sends PINGs to a peer that knows them, and closes the connection when nothing comes any more, or when ctx ends.
func (w *wire) beat(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	defer w.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if w.minor == 0 {
				continue // TCP's own keepalive must do
			}
			if now.UnixNano()-w.last.Load() > int64(silentFor) || w.send(flagCommand, []byte("\x04PING\x01\x2c")) != nil {
				return
			}
		}
	}
}
