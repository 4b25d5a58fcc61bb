// SPDX-License-Identifier: Apache-2.0

// Package engine answers: what would a model server do with these requests, and how long would it
// take? It is a model of one vLLM-like engine: continuous batching under a token budget, chunked
// prefill, a block-wise KV cache with prefix reuse, queueing and preemption.
//
// It is pure: no goroutine, no wall clock, no chance. A driver passes time in and decides whether to
// wait for the durations that come out (the real-time server) or to jump over them (the simulator).
// Same calls, same results.
//
//	for {
//		took, busy := e.Begin(now) // plan one iteration
//		if !busy { … wait for a Submit … }
//		now += took                // sleep, or just add
//		for _, t := range e.End(now) { … t.Seq has one more token … }
//	}
//
// Where vLLM 0.32 has a rule, this is that rule: running sequences before waiting ones, first come
// first served, the newest is preempted, a prompt is admitted only when all of it would fit, the
// last prompt token is always computed, tails of a freed chain are evicted before its head.
package engine

import (
	"errors"
	"fmt"
	"time"
)

// Config is the size and the speed of an engine. [Default] is where to start from.
type Config struct {
	// BlockSize is the number of tokens in a KV-cache block.
	BlockSize int
	// NumBlocks is the number of KV-cache blocks.
	NumBlocks int
	// MaxNumSeqs is the largest number of sequences in a batch.
	MaxNumSeqs int
	// MaxNumBatchedTokens is the largest number of tokens computed in one step.
	MaxNumBatchedTokens int
	// MaxLoRAs is the largest number of different adapters in a batch; 0 means no limit.
	MaxLoRAs int
	// NoPrefixCaching turns the reuse of computed blocks off.
	NoPrefixCaching bool
	// Timing is how long a step takes.
	Timing Timing
	// Events, if not nil, is told how the set of reusable blocks changes.
	Events Events
}

// Events takes the changes of the set of reusable blocks, in their order, as the calls that make them happen: removals
// come from [Engine.Begin], what is stored from [Engine.End]. It must not call the engine.
type Events interface {
	// Stored tells that blocks of a sequence can be found from now on: those with these hashes, of which the first is the
	// sequence's block number first, from 0. parent is the hash of the block before, nothing when first is 0. The blocks'
	// tokens are those of the prompt followed by [Request.Output], which whoever submitted the sequence has. hashes is the engine's.
	Stored(s *Seq, first int, parent uint64, hashes []uint64)
	// Removed tells that the block with that hash was given away.
	Removed(hash uint64)
	// Cleared tells that nothing can be found any more.
	Cleared()
}

// Timing is how long a step takes: the sum of its parts.
type Timing struct {
	// Base is the cost of a step whatever is in it: kernel launches, scheduling, reading the weights.
	Base time.Duration
	// PerPrefillToken is the cost of each prompt token computed.
	PerPrefillToken time.Duration
	// PerSeq is the cost of each sequence in the batch: sampling, detokenizing, its decode token.
	PerSeq time.Duration
	// PerKVToken is the cost of each token of context that attention reads.
	PerKVToken time.Duration
	// PerMPairs is the cost of attention in prefill: of a million pairs of a prompt token computed and a token that it
	// attends to, before it or itself. It is what makes long prompts slower than their length.
	PerMPairs time.Duration
}

// Default is a small GPU with a model of about 8B that feels quick on a laptop: 8 ms a step (some
// 110 tokens/s for a lone answer), 20,000 prompt tokens/s, room for 131,072 tokens of KV cache.
// Batch limits are vLLM's defaults for its API server on such a GPU.
func Default() Config {
	return Config{
		BlockSize:           16,
		NumBlocks:           8192,
		MaxNumSeqs:          256,
		MaxNumBatchedTokens: 2048,
		Timing: Timing{
			Base:            8 * time.Millisecond,
			PerPrefillToken: 50 * time.Microsecond,
			PerSeq:          60 * time.Microsecond,
			PerKVToken:      50 * time.Nanosecond,
		},
	}
}

// Validate reports sizes that no engine can have.
func (c *Config) Validate() error {
	var errs []error
	above := func(name string, v int) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be above 0, is %d", name, v))
		}
	}
	above("block size", c.BlockSize)
	above("number of blocks", c.NumBlocks)
	above("max number of sequences", c.MaxNumSeqs)
	above("max number of batched tokens", c.MaxNumBatchedTokens)
	if c.MaxLoRAs < 0 {
		errs = append(errs, fmt.Errorf("max LoRAs: must not be below 0, is %d", c.MaxLoRAs))
	}
	t := c.Timing
	if t.Base < 0 || t.PerPrefillToken < 0 || t.PerSeq < 0 || t.PerKVToken < 0 || t.PerMPairs < 0 {
		errs = append(errs, errors.New("timing: no part may be below 0"))
	}
	if t.Base+t.PerSeq <= 0 {
		errs = append(errs, errors.New("timing: a step must take some time (base or per sequence above 0)"))
	}
	return errors.Join(errs...)
}

// Step is the time of a step that computes prefill prompt tokens for seqs sequences, which read kv
// tokens of context; pairs are those of [Timing.PerMPairs].
func (t Timing) Step(prefill, seqs, kv, pairs int) time.Duration {
	return t.Base + time.Duration(prefill)*t.PerPrefillToken + time.Duration(seqs)*t.PerSeq + time.Duration(kv)*t.PerKVToken +
		time.Duration(float64(pairs)/1e6*float64(t.PerMPairs))
}

// Faster is the timing of an engine that is factor times as fast.
func (t Timing) Faster(factor float64) Timing {
	div := func(d time.Duration) time.Duration { return time.Duration(float64(d) / factor) }
	return Timing{div(t.Base), div(t.PerPrefillToken), div(t.PerSeq), div(t.PerKVToken), div(t.PerMPairs)}
}

// Stats are an engine's gauges and its counters since [New].
type Stats struct {
	Waiting  int     // sequences in the queue, those waiting for an adapter included
	Deferred int     // of these: passed over in the last step because the batch holds other adapters
	Running  int     // sequences in the batch
	KVUsage  float64 // share of blocks that sequences hold, 0 to 1; reusable blocks of nobody are free

	PrefixQueries    uint64 // prompt tokens looked up in the prefix cache
	PrefixHits       uint64 // of these: found
	PromptTokens     uint64 // prompt tokens of sequences whose prefill ended, found ones included
	CachedTokens     uint64 // of these: found
	GenerationTokens uint64
	ComputedTokens   uint64 // all tokens computed, recomputation after preemption included
	Preemptions      uint64
	Evictions        uint64 // reusable blocks that were given to someone else
	Finished         uint64
	Aborted          uint64
	Steps            uint64
}

// Engine is the model of one engine. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	cache   cache
	waiting queue
	running []*Seq // in order of admission; the last is preempted first
	tokens  []Token
	hashBuf []byte
	open    bool // between Begin and End

	adapters []string // in the batch, known while admitting
	stats    Stats
}

// New makes an idle engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{cfg: cfg, cache: newCache(cfg.NumBlocks)}, nil
}

// Config is what the engine was made with.
func (e *Engine) Config() Config { return e.cfg }

// Stats is the engine's state now.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Waiting, s.Running = e.waiting.len, len(e.running)
	s.KVUsage = float64(e.cfg.NumBlocks-e.cache.free()) / float64(e.cfg.NumBlocks)
	return s
}

// Capacity is the largest prompt plus answer, in tokens, that fits into the cache.
func (e *Engine) Capacity() int { return e.cfg.NumBlocks * e.cfg.BlockSize }

// Busy tells whether there is anything to compute.
func (e *Engine) Busy() bool { return len(e.running) > 0 || e.waiting.len > 0 }

// Findable counts the blocks that can be reused.
func (e *Engine) Findable() int { return e.cache.byHash.used }

// Each calls f for every sequence, those in the batch first, in order.
func (e *Engine) Each(f func(s *Seq, running bool)) {
	for _, s := range e.running {
		f(s, true)
	}
	for s := e.waiting.front; s != nil; s = s.next {
		f(s, false)
	}
}

// ResetPrefixCache forgets all reusable blocks. Like vLLM it refuses while sequences hold blocks.
func (e *Engine) ResetPrefixCache() bool {
	if e.cache.free() != e.cfg.NumBlocks {
		return false
	}
	e.cache = newCache(e.cfg.NumBlocks)
	if e.cfg.Events != nil {
		e.cfg.Events.Cleared()
	}
	return true
}
