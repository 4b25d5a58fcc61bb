// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net"

	"golang.org/x/net/http2"
)

const (
	// worthReferring is the length from which on a piece is written from where it lies. A
	// shorter one is cheaper to copy than to be another element of a vector.
	worthReferring = 1 << 10
	// largestFrame is the most that we put into one DATA frame, however long the peer lets them be.
	largestFrame = 64 << 10
	tlsRecord    = 16 << 10
)

// output is what a connection has to write. All of it is guarded by conn.mu.
type output struct {
	list    []Piece // to be written, in order
	spare   []Piece // an empty list for the next round
	bytes   int     // of list, and of what is being written
	listed  int     // of list alone
	chunk   *Buffer // that short things are copied to
	used    int     // of chunk
	open    bool    // the last of list is the end of what is used of chunk
	writing bool    // somebody writes, and will write what is added meanwhile
}

// room returns n bytes at the end of the output, to be filled in at once.
func (c *conn) room(n int) []byte {
	o := &c.out
	if o.chunk == nil || o.used+n > len(o.chunk.b) {
		o.chunk.Free()
		tier := 0
		for bufferSizes[tier] < n {
			tier++
		}
		o.chunk, o.used, o.open = c.srv.pool.get(tier), 0, false
	}
	from := o.used
	o.used += n
	o.bytes += n
	o.listed += n
	if o.open {
		last := &o.list[len(o.list)-1]
		last.P = last.P[:len(last.P)+n]
	} else {
		o.chunk.Ref()
		o.list = append(o.list, Piece{o.chunk.b[from:o.used], o.chunk})
		o.open = true
	}
	return o.chunk.b[from:o.used]
}

// put adds a piece and takes its reference over.
func (c *conn) put(p Piece) {
	if len(p.P) < worthReferring {
		copy(c.room(len(p.P)), p.P)
		p.Free()
		return
	}
	o := &c.out
	o.list = append(o.list, p)
	o.bytes += len(p.P)
	o.listed += len(p.P)
	o.open = false
}

func putHeader(b []byte, n int, typ http2.FrameType, flags http2.Flags, id uint32) {
	b[0], b[1], b[2] = byte(n>>16), byte(n>>8), byte(n)
	b[3], b[4] = byte(typ), byte(flags)
	binary.BigEndian.PutUint32(b[5:], id)
}

// putFrame adds a whole frame with a short payload, which the caller fills in at once.
func (c *conn) putFrame(n int, typ http2.FrameType, flags http2.Flags, id uint32) []byte {
	b := c.room(9 + n)
	putHeader(b, n, typ, flags, id)
	return b[9:]
}

func (c *conn) put32(typ http2.FrameType, id, v uint32) {
	binary.BigEndian.PutUint32(c.putFrame(4, typ, 0, id), v)
}

// putFields adds a header block.
func (c *conn) putFields(id uint32, block []byte, end bool) {
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
	}
	first := 0
	if c.tellTable { // we use no table, but a peer that makes its smaller wants to hear so
		first, c.tellTable = 1, false
	}
	b := c.putFrame(first+len(block), http2.FrameHeaders, flags, id)
	if first > 0 {
		b[0] = 0x20
	}
	copy(b[first:], block)
}

// flush writes what there is unless somebody does already. What cannot be written at once is
// left to a goroutine, which lives until there is nothing more. It is called with mu held, and
// lets go of it while it writes.
func (c *conn) flush() {
	o := &c.out
	for !o.writing && len(o.list) > 0 {
		if c.lost {
			c.dropOutput()
			return
		}
		list, total := c.takeOutput()
		o.writing = true
		c.mu.Unlock()
		n, err := c.tryWrite(list)
		c.mu.Lock()
		if err == nil && (n < total || c.tls != nil && c.sock.behind() > 0) {
			c.srv.wg.Add(1)
			go c.writeOut(list, n)
			return
		}
		o.writing = false
		c.wrote(list, total)
		if err != nil {
			c.sock.Conn.Close() // which the reader notices
			c.dropOutput()
			return
		}
	}
}

func (c *conn) takeOutput() (list []Piece, total int) {
	o := &c.out
	list, total = o.list, o.listed
	o.list, o.spare, o.listed, o.open = o.spare[:0], nil, 0, false
	return list, total
}

// wrote accounts for a list that is no longer needed.
func (c *conn) wrote(list []Piece, total int) {
	o := &c.out
	freeAll(list)
	if cap(list) <= 1024 {
		o.spare = list[:0]
	}
	o.bytes -= total
	if !o.open && o.chunk != nil && o.chunk.refs.Load() == 1 {
		o.used = 0
	}
	c.wake()
}

func (c *conn) dropOutput() {
	o := &c.out
	list, total := c.takeOutput()
	c.wrote(list, total)
	o.chunk.Free()
	o.chunk = nil
}

// tryWrite writes what it can without waiting.
func (c *conn) tryWrite(list []Piece) (n int, err error) {
	if c.tls == nil {
		return c.sock.try(list, 0)
	}
	if c.sock.raw == nil {
		return 0, nil
	}
	return c.writeTLS(list, true)
}

// writeTLS packs list into records. With try it stops when the socket falls behind.
func (c *conn) writeTLS(list []Piece, try bool) (n int, err error) {
	if c.record == nil {
		c.record = c.srv.pool.get(1)
	}
	plain := c.record.b[:0]
	write := func(p []byte) bool {
		_, err = c.nc.Write(p)
		n += len(p)
		return err == nil && (!try || c.sock.behind() == 0)
	}
	for _, p := range list {
		for b := p.P; len(b) > 0; {
			k := min(len(b), tlsRecord-len(plain))
			if k == tlsRecord { // a record of its own, without a copy
				if !write(b[:k]) {
					return n, err
				}
			} else if plain = append(plain, b[:k]...); len(plain) == tlsRecord {
				if !write(plain) {
					return n, err
				}
				plain = plain[:0]
			}
			b = b[k:]
		}
	}
	if len(plain) > 0 {
		write(plain)
	}
	return n, err
}

// writeOut writes list, less what was written of it, and then all that was added meanwhile.
func (c *conn) writeOut(list []Piece, skip int) {
	defer c.srv.wg.Done()
	var err error
	if c.tls != nil {
		err = c.sock.setWaits(true)
	}
	total := 0
	for _, p := range list {
		total += len(p.P)
	}
	for {
		if err == nil {
			err = c.write(list, skip)
		}
		skip = 0
		c.mu.Lock()
		c.wrote(list, total)
		if err != nil {
			c.sock.Conn.Close()
			c.dropOutput()
		}
		if len(c.out.list) == 0 {
			c.mu.Unlock()
			if c.tls != nil && err == nil {
				err = c.sock.setWaits(false)
			}
			c.mu.Lock()
			if len(c.out.list) == 0 {
				c.out.writing = false
				c.wake()
				c.mu.Unlock()
				return
			}
			if c.tls != nil && err == nil {
				c.mu.Unlock()
				err = c.sock.setWaits(true)
				c.mu.Lock()
			}
		}
		list, total = c.takeOutput()
		c.mu.Unlock()
	}
}

// write writes all of list and waits for the peer as long as that takes; a pass is short, so that
// a peer that is merely slow is seen to be alive.
func (c *conn) write(list []Piece, skip int) error {
	vec := make(net.Buffers, 0, 16)
	for len(list) > 0 {
		if k := min(skip, len(list[0].P)); k == len(list[0].P) {
			skip -= k
			list = list[1:]
			continue
		}
		var err error
		n := 0
		if c.tls != nil {
			one := [1]Piece{{P: list[0].P[skip:]}}
			_, err = c.writeTLS(one[:], false)
			n, skip = 1, 0
		} else {
			for vec = vec[:0]; n < len(list) && n < 16; n++ {
				vec = append(vec, list[n].P[skip:])
				skip = 0
			}
			v := vec
			_, err = v.WriteTo(c.sock.Conn)
		}
		if err != nil {
			return err
		}
		c.moved.Add(1)
		list = list[n:]
	}
	return nil
}

// pump turns what the streams want to send into frames, one of each in turn, as far as the
// peer's windows let it.
func (c *conn) pump() {
	for len(c.ready) > 0 && c.window > 0 {
		s := c.ready[0]
		c.ready[0] = nil
		c.ready = c.ready[1:]
		s.ready = false
		if s.gone || s.unsent == 0 || s.window <= 0 {
			continue
		}
		c.putData(s)
		c.want(s)
	}
	if len(c.ready) == 0 {
		c.ready = nil
	}
}

// want lines s up if there is something that it may send.
func (c *conn) want(s *Stream) {
	if !s.ready && s.unsent > 0 && s.window > 0 {
		s.ready = true
		c.ready = append(c.ready, s)
	}
}

// putData adds one frame of what s wants to send.
func (c *conn) putData(s *Stream) {
	n := min(s.unsent, int(s.window), int(c.window), c.frame)
	putHeader(c.room(9), n, http2.FrameData, 0, s.id)
	s.unsent -= n
	s.window -= int64(n)
	c.window -= int64(n)
	for n > 0 {
		p := s.pending[0]
		if k := len(p.P); k <= n {
			n -= k
			c.put(p)
			s.pending[0] = Piece{}
			s.pending = s.pending[1:]
			continue
		}
		p.Ref()
		c.put(Piece{p.P[:n], p.Buffer})
		s.pending[0].P = p.P[n:]
		n = 0
	}
	if s.unsent == 0 {
		s.pending = nil
		if s.finished {
			c.putTrailers(s)
		}
	}
	c.credit(s, 0)
}

// putTrailers ends s.
func (c *conn) putTrailers(s *Stream) {
	block := s.status.trailers()
	if !s.headed {
		s.headed = true
		block = append(responseHead[:len(responseHead):len(responseHead)], block...)
	}
	c.putFields(s.id, block, true)
	if !s.half {
		c.put32(http2.FrameRSTStream, s.id, uint32(http2.ErrCodeNo))
	}
	c.remove(s)
}
