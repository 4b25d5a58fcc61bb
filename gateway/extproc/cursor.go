// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-project/penstock/gateway/wire"
)

var errMalformed = errors.New("malformed protobuf")

// cursor reads the protobuf wire format out of the pieces of a received message, where values
// may lie across the border of two. Whatever is asked for beyond the end is malformed.
type cursor struct {
	data []wire.Piece
	at   int    // the current piece
	p    []byte // what is left of it
	left int    // what is left of all
}

func newCursor(data []wire.Piece) cursor {
	c := cursor{data: data, left: sizeOf(data)}
	if len(data) > 0 {
		c.p = data[0].P
	}
	return c
}

func sizeOf(data []wire.Piece) int {
	n := 0
	for i := range data {
		n += len(data[i].P)
	}
	return n
}

// fill makes p non-empty; it must not be called at the end.
func (c *cursor) fill() {
	for len(c.p) == 0 {
		c.at++
		c.p = c.data[c.at].P
	}
}

func (c *cursor) advance(n int) {
	c.p = c.p[n:]
	c.left -= n
}

// varint reads a number.
func (c *cursor) varint() (uint64, error) {
	if len(c.p) > 0 && c.p[0] < 0x80 {
		v := uint64(c.p[0])
		c.advance(1)
		return v, nil
	}
	var v uint64
	for shift := uint(0); shift < 70 && c.left > 0; shift += 7 {
		c.fill()
		b := c.p[0]
		c.advance(1)
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errMalformed
}

// tag reads a field's number and type.
func (c *cursor) tag() (protowire.Number, protowire.Type, error) {
	v, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	if v>>3 < uint64(protowire.MinValidNumber) || v>>3 > uint64(protowire.MaxValidNumber) {
		return 0, 0, errMalformed
	}
	return protowire.Number(v >> 3), protowire.Type(v & 7), nil
}

// length reads the length of what follows, which must be there.
func (c *cursor) length() (int, error) {
	v, err := c.varint()
	if err != nil || v > uint64(c.left) {
		return 0, errMalformed
	}
	return int(v), nil
}

// skip goes on by n bytes, which must be there.
func (c *cursor) skip(n int) {
	for n > 0 {
		c.fill()
		k := min(n, len(c.p))
		c.advance(k)
		n -= k
	}
}

// bytes reads n bytes, which must be there. They are copied only if they lie across a border.
func (c *cursor) bytes(n int) []byte {
	if n == 0 {
		return nil
	}
	c.fill()
	if n <= len(c.p) {
		b := c.p[:n:n]
		c.advance(n)
		return b
	}
	b := make([]byte, 0, n)
	for n > 0 {
		c.fill()
		k := min(n, len(c.p))
		b = append(b, c.p[:k]...)
		c.advance(k)
		n -= k
	}
	return b
}

// pieces reads n bytes, which must be there, as they lie in the message. It takes no references.
func (c *cursor) pieces(to []wire.Piece, n int) []wire.Piece {
	for n > 0 {
		c.fill()
		k := min(n, len(c.p))
		to = append(to, wire.Piece{P: c.p[:k:k], Buffer: c.data[c.at].Buffer})
		c.advance(k)
		n -= k
	}
	return to
}

// other skips a field that nobody asked for.
func (c *cursor) other(num protowire.Number, typ protowire.Type) error {
	n := 0
	switch typ {
	case protowire.VarintType:
		_, err := c.varint()
		return err
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	case protowire.BytesType:
		var err error
		if n, err = c.length(); err != nil {
			return err
		}
	case protowire.StartGroupType:
		rest := *c // groups have not been in use for long: copying is fine
		if n = protowire.ConsumeFieldValue(num, typ, rest.bytes(rest.left)); n < 0 {
			return errMalformed
		}
	default:
		return errMalformed
	}
	if n > c.left {
		return errMalformed
	}
	c.skip(n)
	return nil
}
