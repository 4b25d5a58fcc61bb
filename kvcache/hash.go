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
//
// After [Hasher.ResetTokens] it hashes token ids, for the keys that an [Engine] computes from what engines tell. The chain
// then runs in cells of a size that divides every block, the engines' and ours, so that the state after any engine
// block is one number:
//
//	s(0) = xxh64(model), s(i) = xxh64(LE8(c(i)) ‖ LE8(s(i-1))),
//	c(i) = xxh64(the cell's ids as LE4), or xxh64(LE8(that) ‖ LE8(len) ‖ extra ‖ …) where the cell has extras
//
// and a block's key is the state at its end. Where a cell is a block this is the rule above. A salt is the last extra
// of the first cell, as engines have it.
type Hasher struct {
	// Keys are the keys so far; Starts[i] is where prompt i begins in Keys.
	Keys   []uint64
	Starts []int32

	root  uint64
	size  int // bytes in a block or cell
	max   int // keys per prompt
	first int // index of the current prompt's first key
	bytes int64
	part  []byte // the block, or the cell, being filled
	chain chain
	salt  string
	cells int // in a block of tokens; 0 for text
	cell  int // of the block, the one being filled
}

// chain is the state of a chain of blocks or cells.
type chain struct {
	state  uint64
	extras []byte
}

// extra adds something other than tokens that the next block depends on.
func (c *chain) extra(s string) {
	if len(c.extras) == 0 {
		c.extras = append(c.extras, 0, 0, 0, 0, 0, 0, 0, 0) // for the hash of the tokens
	}
	c.extras = binary.LittleEndian.AppendUint64(c.extras, uint64(len(s)))
	c.extras = append(c.extras, s...)
}

// next goes on by one block or cell.
func (c *chain) next(block []byte) uint64 {
	var b [16]byte
	content := xxhash.Sum64(block)
	if len(c.extras) > 0 {
		binary.LittleEndian.PutUint64(c.extras, content)
		content = xxhash.Sum64(c.extras)
		c.extras = c.extras[:0]
	}
	binary.LittleEndian.PutUint64(b[:8], content)
	binary.LittleEndian.PutUint64(b[8:], c.state)
	c.state = xxhash.Sum64(b[:])
	return c.state
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
	h.salt, h.cells = "", 0
	h.rewind()
}

// ResetTokens begins anew for token ids of a model or adapter, with blocks of that many tokens in cells of cellTokens,
// which divides them, and at most maxBlocks keys a prompt (0 for no bound). Only full blocks have keys.
func (h *Hasher) ResetTokens(model, salt string, blockTokens, cellTokens, maxBlocks int) {
	h.Reset(model, "", cellTokens, maxBlocks)
	h.salt, h.cells = salt, blockTokens/cellTokens
}

// rewind begins a prompt.
func (h *Hasher) rewind() {
	h.chain.state, h.chain.extras, h.cell = h.root, h.chain.extras[:0], 0
	h.first = len(h.Keys)
}

// Start begins a new prompt.
func (h *Hasher) Start() {
	h.flush()
	h.rewind()
	h.Starts = append(h.Starts, int32(len(h.Keys)))
}

// WriteTokens adds token ids to the prompt, after ResetTokens.
func (h *Hasher) WriteTokens(ids []uint32) {
	var b [TokenBytes]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(b[:], id)
		h.part = append(h.part, b[:]...)
		h.bytes += TokenBytes
		if len(h.part) >= h.size {
			h.add(h.part)
			h.part = h.part[:0]
		}
	}
}

// Extra adds something other than tokens that the cell about to be filled depends on, such as the hash of an
// image of which it holds a part. Extras of a cell are in the order of their places.
func (h *Hasher) Extra(s string) { h.chain.extra(s) }

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
		if h.cells == 0 {
			h.add(h.part)
		}
		h.part = h.part[:0]
	}
}

func (h *Hasher) add(block []byte) {
	if h.full() {
		return
	}
	if h.salt != "" && h.cell == 0 && len(h.Keys) == h.first {
		h.chain.extra(h.salt)
	}
	h.chain.next(block)
	if h.cell++; h.cell >= h.cells {
		h.cell = 0
		h.Keys = append(h.Keys, h.chain.state)
	}
}
