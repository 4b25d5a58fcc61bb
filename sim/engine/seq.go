// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Request is what the engine is asked for.
type Request struct {
	// Tokens is the prompt. It may be reused by the caller after Submit.
	Tokens []uint32
	// Blocks stands for Tokens when only the identity of its blocks is known, as in a trace: one
	// value per BlockSize tokens of PromptLen tokens. Equal values after equal values are the same
	// content. It may be reused by the caller after Submit.
	Blocks []uint64
	// Whole tells that Blocks go on with the tokens that will be generated, as far as they fill blocks, so
	// that these can be reused by the next turn of the conversation.
	Whole bool
	// PromptLen is the length of the prompt in tokens; it may be left 0 when Tokens is given.
	PromptLen int
	// MaxTokens is how many tokens will be generated. The model does not choose an end by itself.
	MaxTokens int
	// Output holds the tokens that will be generated, so that their blocks can be reused by the next
	// turn of the conversation. It may be nil (then they cannot) or shorter than MaxTokens. It must
	// not be changed while the sequence lives.
	Output []uint32
	// Adapter and Salt keep prefixes of different adapters and of different salts apart. The empty
	// adapter is the base model.
	Adapter, Salt string
	// Tag is the caller's own.
	Tag any
}

// Seq is a request in the engine. Its exported fields are to be read only.
type Seq struct {
	Request // Tokens and Blocks are nil

	Generated   int // tokens generated so far
	Cached      int // prompt tokens found in the prefix cache when it was first admitted
	Preemptions int
	Done        bool // all tokens were generated
	Aborted     bool

	// When things happened, as the driver told the time; -1 before.
	Submitted, Admitted, FirstToken, Finished time.Duration

	computed int      // tokens whose KV is in blocks
	planned  int      // tokens to compute in the open step
	blocks   []int32  // the blocks it holds, in order
	hashes   []uint64 // chained hash of every full block whose content is known
	tail     []uint32 // known tokens after the last hashed block
	partial  bool     // tail is unknown: generated blocks get no hash
	waiting  bool
	prev     *Seq
	next     *Seq
}

// Token says that a sequence has one more token. Seq.Generated counts it.
type Token struct {
	Seq  *Seq
	Last bool // the sequence is done and has left the engine
}

// ErrTooLong is returned for a request that the cache could not hold even alone.
var ErrTooLong = errors.New("prompt and answer do not fit into the KV cache")

// Submit queues a request. It may be called between Begin and End.
func (e *Engine) Submit(now time.Duration, r Request) (*Seq, error) {
	bs := e.cfg.BlockSize
	if r.PromptLen == 0 {
		r.PromptLen = len(r.Tokens)
	}
	switch {
	case r.PromptLen <= 0:
		return nil, errors.New("the prompt is empty")
	case r.MaxTokens <= 0:
		return nil, fmt.Errorf("max tokens must be above 0, is %d", r.MaxTokens)
	case r.Tokens != nil && len(r.Tokens) != r.PromptLen:
		return nil, fmt.Errorf("prompt length is %d, but there are %d tokens", r.PromptLen, len(r.Tokens))
	case r.Tokens == nil && len(r.Blocks) < r.PromptLen/bs:
		return nil, fmt.Errorf("%d blocks cannot describe %d tokens", len(r.Blocks), r.PromptLen)
	case (r.PromptLen+r.MaxTokens-1+bs-1)/bs > e.cfg.NumBlocks: // the last token is never computed
		return nil, fmt.Errorf("%w: %d + %d tokens, capacity %d", ErrTooLong, r.PromptLen, r.MaxTokens, e.Capacity())
	}
	s := &Seq{Request: r, Submitted: now, Admitted: -1, FirstToken: -1, Finished: -1}
	s.Tokens, s.Blocks = nil, nil
	if !e.cfg.NoPrefixCaching {
		e.hash(s, r.Tokens, r.Blocks)
	}
	e.waiting.pushBack(s)
	return s, nil
}

// hash computes the chained hashes of the prompt's full blocks. A block's hash covers everything
// before it, so that equal hashes mean equal prefixes.
func (e *Engine) hash(s *Seq, tokens []uint32, blocks []uint64) {
	bs := e.cfg.BlockSize
	if tokens == nil {
		known := s.PromptLen
		if s.Whole {
			known += s.MaxTokens
		}
		blocks = blocks[:min(len(blocks), known/bs)]
		s.hashes = make([]uint64, 0, len(blocks))
		s.partial = true
		parent := root(s.Adapter, s.Salt)
		var buf [16]byte
		for _, id := range blocks {
			binary.LittleEndian.PutUint64(buf[:], parent)
			binary.LittleEndian.PutUint64(buf[8:], id)
			parent = xxhash.Sum64(buf[:])
			s.hashes = append(s.hashes, parent)
		}
		return
	}
	s.hashes = make([]uint64, 0, s.PromptLen/bs)
	s.partial = s.Output == nil
	for len(tokens) >= bs {
		s.hashes = append(s.hashes, e.chain(s, tokens[:bs]))
		tokens = tokens[bs:]
	}
	if !s.partial {
		s.tail = append(make([]uint32, 0, bs), tokens...)
	}
}

// root is the hash before the first block.
func root(adapter, salt string) uint64 {
	h := xxhash.NewWithSeed(uint64(len(adapter)))
	_, _ = h.WriteString(adapter)
	_, _ = h.WriteString(salt)
	return h.Sum64()
}

// chain is the hash of a block of tokens after all blocks hashed so far.
func (e *Engine) chain(s *Seq, tokens []uint32) uint64 {
	parent := uint64(0)
	if n := len(s.hashes); n > 0 {
		parent = s.hashes[n-1]
	} else {
		parent = root(s.Adapter, s.Salt)
	}
	e.hashBuf = binary.LittleEndian.AppendUint64(e.hashBuf[:0], parent)
	for _, t := range tokens {
		e.hashBuf = binary.LittleEndian.AppendUint32(e.hashBuf, t)
	}
	return xxhash.Sum64(e.hashBuf)
}

// said takes note of the content of the token that was just generated.
func (e *Engine) said(s *Seq) {
	if s.partial || e.cfg.NoPrefixCaching {
		return
	}
	if s.Generated > len(s.Output) {
		s.partial = true
		return
	}
	s.tail = append(s.tail, s.Output[s.Generated-1])
	if len(s.tail) == e.cfg.BlockSize {
		s.hashes = append(s.hashes, e.chain(s, s.tail))
		s.tail = s.tail[:0]
	}
}

// total is the number of tokens that are known: the prompt and what was generated.
func (s *Seq) total() int { return s.PromptLen + s.Generated }

// decoding tells whether only the last generated token is left to compute.
func (s *Seq) decoding() bool { return s.Generated > 0 && s.computed == s.total()-1 }

// queue is a list of waiting sequences, linked through them so that an abort costs the same anywhere.
type queue struct {
	front, back *Seq
	len         int
}

func (q *queue) pushBack(s *Seq) {
	s.waiting, s.prev, s.next = true, q.back, nil
	if q.back != nil {
		q.back.next = s
	} else {
		q.front = s
	}
	q.back = s
	q.len++
}

func (q *queue) pushFront(s *Seq) {
	s.waiting, s.prev, s.next = true, nil, q.front
	if q.front != nil {
		q.front.prev = s
	} else {
		q.back = s
	}
	q.front = s
	q.len++
}

func (q *queue) remove(s *Seq) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		q.front = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		q.back = s.prev
	}
	s.waiting, s.prev, s.next = false, nil, nil
	q.len--
}
