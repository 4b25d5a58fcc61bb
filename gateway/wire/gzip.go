// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Encodings of messages that a peer may use, as grpc-encoding names them. What we send is never compressed.
const (
	identity = "identity"
	zipped   = "gzip"
)

// acceptEncoding tells a peer that used another encoding which it may use.
var acceptEncoding = appendField(nil, "grpc-accept-encoding", identity+","+zipped)

// inflators are gzip readers that were used and may be used again: one takes some 40 KiB.
var inflators sync.Pool

// inflate gives what pieces of n bytes in all are when decompressed, in buffers of the message's own. It takes no more
// than the longest message that may come in, and one buffer for one that says of itself that it is longer.
func (s *Server) inflate(pieces []Piece, n int) (m []Piece, total int, status *Status) {
	limit := s.opt.MaxMessage
	keep := uint64(declared(pieces, n)) <= uint64(limit) // else it is only read, to see whether that is so
	in := &pieceReader{list: pieces}
	z, _ := inflators.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	var b *Buffer
	defer func() {
		b.Free()
		in.list = nil // whose buffers go elsewhere
		inflators.Put(z)
		if status != nil {
			freeAll(m)
			m, total = nil, 0
		}
	}()
	err := z.Reset(in)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	for tier := 0; err == nil; tier = min(tier+1, len(bufferSizes)-1) {
		if b == nil {
			b = s.pool.get(tier)
		}
		k := 0
		for k < len(b.b) && err == nil {
			var got int
			got, err = z.Read(b.b[k:])
			k += got
		}
		total += k
		if keep && k > 0 {
			m = append(m, Piece{b.b[:k:k], b})
			b = nil
		}
		if total > limit {
			return m, total, &Status{ResourceExhausted, fmt.Sprintf("grpc: received message after decompression larger than max %d", limit)}
		}
	}
	if err != io.EOF {
		return m, total, &Status{Internal, fmt.Sprintf("grpc: failed to decompress the received message: %v", err)}
	}
	return m, total, nil
}

// declared is how long the decompressed message is by its own account, which its last four bytes are.
func declared(pieces []Piece, n int) uint32 {
	var b [4]byte
	if n < len(b) {
		return 0
	}
	for i, left := len(pieces)-1, len(b); left > 0; i-- {
		p := pieces[i].P
		k := min(left, len(p))
		copy(b[left-k:left], p[len(p)-k:])
		left -= k
	}
	return binary.LittleEndian.Uint32(b[:])
}

// pieceReader reads pieces one after the other, byte by byte too, so that nobody puts a buffer before it.
type pieceReader struct {
	list []Piece
	at   int // in the first
}

// Read implements io.Reader.
func (r *pieceReader) Read(b []byte) (n int, err error) {
	for len(r.list) > 0 && n < len(b) {
		k := copy(b[n:], r.list[0].P[r.at:])
		n += k
		r.step(k)
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// ReadByte implements io.ByteReader.
func (r *pieceReader) ReadByte() (byte, error) {
	for len(r.list) > 0 {
		if r.at < len(r.list[0].P) {
			b := r.list[0].P[r.at]
			r.step(1)
			return b, nil
		}
		r.step(0)
	}
	return 0, io.EOF
}

// step goes on by n bytes of the first piece.
func (r *pieceReader) step(n int) {
	if r.at += n; r.at == len(r.list[0].P) {
		r.list, r.at = r.list[1:], 0
	}
}

// callZipped tells the receiver of a compressed message. That takes its time, so somebody else reads on meanwhile; and
// what waits for a receiver that is away is decompressed in its turn only, so that no queue grows beyond what was sent.
func (s *Stream) callZipped(e *event) {
	s.Detach()
	pieces, n, status := s.c.srv.inflate(e.pieces, e.n)
	freeAll(e.pieces)
	if status == nil {
		s.call(&event{kind: evMessage, pieces: pieces, n: n})
		return
	}
	c := s.c
	c.mu.Lock()
	over := s.silent || s.told || s.gone // the last: who ended it has its end told
	if !over {
		s.told, s.silent = true, true
		s.abort(status)
		if !c.busy {
			c.flush()
		}
	}
	c.mu.Unlock()
	if !over {
		s.r.Closed(s, status)
	}
}
