// SPDX-License-Identifier: Apache-2.0

// Package kvcache answers: who holds which prefix?
//
// A prompt becomes a chain of block keys; an [Index] remembers which endpoints were
// given which blocks and tells how long a prefix each may hold. It does no I/O.
package kvcache

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// TokenBytes is how many bytes of text count as one token where no tokenizer is at hand.
const TokenBytes = 4

// MinBlockTokens is the smallest block of the approximate index, whatever the engine's
// own block is: smaller blocks cost memory and tell little.
const MinBlockTokens = 64

// Hasher turns prompts into block keys. Every key stands for its block and all before it:
//
//	h(0) = xxh64(model ‖ salt), h(i) = xxh64(LE8(xxh64(block i)) ‖ LE8(h(i-1)))
//
// A last block that is not full has a key, too, so that an equal prompt matches whole.
// It implements the sink that a request's prompt is fed to. The zero Hasher is ready
// after Reset; its memory is reused.
type Hasher struct {
	// Keys are the keys so far; Starts[i] is where prompt i begins in Keys.
	Keys   []uint64
	Starts []int32

	root  uint64
	prev  uint64
	size  int // bytes in a block
	max   int // keys per prompt
	first int // index of the current prompt's first key
	bytes int64
	part  []byte // the block being filled
}

// Reset begins anew for a model and a salt, with blocks of that many tokens and at most
// maxBlocks keys a prompt (0 for no bound).
func (h *Hasher) Reset(model, salt string, blockTokens, maxBlocks int) {
	h.Keys, h.Starts = h.Keys[:0], h.Starts[:0]
	h.size, h.max, h.bytes = blockTokens*TokenBytes, maxBlocks, 0
	h.part = slices.Grow(h.part[:0], h.size)
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(model)
	_, _ = d.WriteString(salt)
	h.root = d.Sum64()
	h.prev, h.first = h.root, 0
}

// Start begins a new prompt.
func (h *Hasher) Start() {
	h.flush()
	h.prev, h.first = h.root, len(h.Keys)
	h.Starts = append(h.Starts, int32(len(h.Keys)))
}

// Write adds bytes to the prompt. It keeps nothing of p.
func (h *Hasher) Write(p []byte) {
	h.bytes += int64(len(p))
	if len(h.part) > 0 {
		n := min(h.size-len(h.part), len(p))
		h.part = append(h.part, p[:n]...)
		p = p[n:]
		if len(h.part) < h.size {
			return
		}
		h.add(h.part)
		h.part = h.part[:0]
	}
	for len(p) >= h.size {
		if h.full() {
			return
		}
		h.add(p[:h.size])
		p = p[h.size:]
	}
	h.part = append(h.part, p...)
}

// Finish closes the last prompt and returns the estimate of all prompt tokens.
func (h *Hasher) Finish() int64 {
	h.flush()
	return h.Tokens()
}

// Tokens estimates the tokens of all prompts so far.
func (h *Hasher) Tokens() int64 { return (h.bytes + TokenBytes - 1) / TokenBytes }

func (h *Hasher) full() bool { return h.max > 0 && len(h.Keys)-h.first >= h.max }

func (h *Hasher) flush() {
	if len(h.part) > 0 {
		h.add(h.part)
		h.part = h.part[:0]
	}
}

func (h *Hasher) add(block []byte) {
	if h.full() {
		return
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], xxhash.Sum64(block))
	binary.LittleEndian.PutUint64(b[8:], h.prev)
	h.prev = xxhash.Sum64(b[:])
	h.Keys = append(h.Keys, h.prev)
}
