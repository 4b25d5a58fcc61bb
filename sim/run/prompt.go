// SPDX-License-Identifier: Apache-2.0

package run

import (
	"encoding/binary"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sim/work"
)

// The content of a prompt is the same for the gateway, which sees text, and for the engines, which see tokens: token i of a
// segment is four bytes of its text, half of a number that the segment's id and i/2 give. So equal segments are equal text,
// and others are not.

// spread is a number that tells ids apart in all its bits.
func spread(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return x
}

// writer writes prompts as text.
type writer struct{ buf [4096]byte }

// feed writes a prompt to a hasher.
func (w *writer) feed(prompt []work.Segment, h *kvcache.Hasher) {
	h.Start()
	for _, s := range prompt {
		base := spread(s.ID)
		for n := int(s.Tokens) * kvcache.TokenBytes; n > 0; {
			m := min(n, len(w.buf))
			b := w.buf[:(m+7)&^7]
			for i := 0; i < len(b); i += 8 {
				binary.LittleEndian.PutUint64(b[i:], base)
				base += 0x9e3779b97f4a7c15
			}
			h.Write(w.buf[:m])
			n -= m
		}
	}
}

// blocks appends the identities of a prompt's blocks, and of what its answer fills after it: equal content, equal identity.
func blocks(into []uint64, prompt []work.Segment, answer work.Segment, size int) []uint64 {
	id, need := uint64(0), size
	add := func(s work.Segment) {
		for at, n := 0, int(s.Tokens); n > 0; {
			if need == size && n >= size { // most are whole and in one segment
				into = append(into, spread(s.ID+uint64(at)*0x9e3779b97f4a7c15))
				at, n = at+size, n-size
				continue
			}
			m := min(n, need)
			id = spread(id ^ s.ID + uint64(at)*0x9e3779b97f4a7c15 + uint64(m)<<48)
			if at, n, need = at+m, n-m, need-m; need == 0 {
				into = append(into, id)
				id, need = 0, size
			}
		}
	}
	for _, s := range prompt {
		add(s)
	}
	add(answer)
	return into
}
