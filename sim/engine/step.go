// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"
)

// Begin plans one iteration and tells how long it takes. busy is false, and no step is open, when
// there is nothing to compute. Otherwise the driver calls [Engine.End] at now + took.
func (e *Engine) Begin(now time.Duration) (took time.Duration, busy bool) {
	if e.open {
		panic("engine: Begin before the End of the step before")
	}
	if !e.Busy() {
		return 0, false
	}
	preempted := e.stats.Preemptions
	budget := e.cfg.MaxNumBatchedTokens
	budget = e.carryOn(budget, true)
	budget = e.carryOn(budget, false)
	e.stats.Deferred = 0
	if e.stats.Preemptions == preempted { // no room was just made only to be given to a newcomer
		e.admit(now, budget)
	}
	prefill, seqs, kv, pairs := 0, 0, 0, 0
	for _, s := range e.running {
		if s.planned == 0 {
			continue
		}
		seqs++
		kv += s.computed + s.planned
		if !s.decoding() {
			prefill += s.planned
			pairs += s.planned*s.computed + s.planned*(s.planned+1)/2
		}
	}
	if seqs == 0 {
		return 0, false
	}
	e.open = true
	return e.cfg.Timing.Step(prefill, seqs, kv, pairs), true
}

// carryOn plans the running sequences that decode, or those that still prefill, and returns what is
// left of the budget.
func (e *Engine) carryOn(budget int, decode bool) int {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		if s.planned > 0 || s.decoding() != decode {
			continue
		}
		n := min(s.total()-s.computed, budget)
		need := e.blocksFor(s.computed+n) - len(s.blocks)
		for need > e.cache.free() {
			last := e.running[len(e.running)-1]
			budget += last.planned
			e.preempt(last)
			if last == s {
				return budget // it was the last in the batch
			}
		}
		e.grow(s, need)
		s.planned = n
		budget -= n
	}
	return budget
}

// preempt puts a running sequence, the last one, back to the front of the queue. Its blocks are free
// (and found again if nobody takes them meanwhile); what was not found is computed again.
func (e *Engine) preempt(s *Seq) {
	e.running = e.running[:len(e.running)-1]
	e.drop(s)
	s.Preemptions++
	e.stats.Preemptions++
	e.waiting.pushFront(s)
}

// drop takes a sequence's blocks away.
func (e *Engine) drop(s *Seq) {
	e.cache.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.computed, s.planned = 0, 0
}

// admit plans waiting sequences, first come first served, while batch, budget and blocks allow.
func (e *Engine) admit(now time.Duration, budget int) {
	e.adapters = e.adapters[:0]
	for _, s := range e.running {
		e.addAdapter(s)
	}
	var next *Seq
	for s := e.waiting.front; s != nil && budget > 0 && len(e.running) < e.cfg.MaxNumSeqs; s = next {
		next = s.next
		if !e.adapterFits(s) {
			e.stats.Deferred++
			continue
		}
		bs := e.cfg.BlockSize
		reusable := s.hashes[:min(len(s.hashes), (s.total()-1)/bs)] // the last token must be computed
		hits, idle := e.cache.match(reusable)
		if e.blocksFor(s.total())-hits > e.cache.free()-idle {
			return
		}
		for i := range hits {
			s.blocks = append(s.blocks, e.cache.share(reusable, i))
		}
		s.computed = hits * bs
		s.planned = min(s.total()-s.computed, budget)
		budget -= s.planned
		e.grow(s, e.blocksFor(s.computed+s.planned)-len(s.blocks))
		e.waiting.remove(s)
		e.running = append(e.running, s)
		e.addAdapter(s)
		if s.Admitted < 0 {
			s.Admitted = now
			s.Cached = s.computed
			if !e.cfg.NoPrefixCaching {
				e.stats.PrefixQueries += uint64(s.PromptLen)
				e.stats.PrefixHits += uint64(s.computed)
			}
		}
	}
}

// adapterFits tells whether the batch may hold the sequence's adapter beside those it holds.
func (e *Engine) adapterFits(s *Seq) bool {
	return s.Adapter == "" || e.cfg.MaxLoRAs == 0 || len(e.adapters) < e.cfg.MaxLoRAs || slices.Contains(e.adapters, s.Adapter)
}

// addAdapter notes that the batch holds the sequence's adapter.
func (e *Engine) addAdapter(s *Seq) {
	if s.Adapter != "" && e.cfg.MaxLoRAs != 0 && !slices.Contains(e.adapters, s.Adapter) {
		e.adapters = append(e.adapters, s.Adapter)
	}
}

func (e *Engine) blocksFor(tokens int) int { return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize }

// grow gives a sequence n more blocks.
func (e *Engine) grow(s *Seq, n int) {
	for range n {
		id, evicted := e.cache.take()
		if evicted {
			e.stats.Evictions++
			if e.cfg.Events != nil {
				e.cfg.Events.Removed(e.cache.blocks[id].hash)
			}
		}
		s.blocks = append(s.blocks, id)
	}
}

// End closes the step that Begin opened and returns the tokens it made, in the order of the batch.
// Full blocks that it computed are reusable from now on, whether their prompt is complete or not.
// The result is valid until the next End.
func (e *Engine) End(now time.Duration) []Token {
	if !e.open {
		panic("engine: End without Begin")
	}
	e.open = false
	e.stats.Steps++
	e.tokens = e.tokens[:0]
	kept := e.running[:0]
	for _, s := range e.running {
		e.finish(s, now)
		if s.Done || s.Aborted {
			s.Finished = now
			e.drop(s)
			continue
		}
		kept = append(kept, s)
	}
	clear(e.running[len(kept):])
	e.running = kept
	return e.tokens
}

// finish takes one sequence through the end of a step.
func (e *Engine) finish(s *Seq, now time.Duration) {
	n := s.planned
	if n == 0 {
		return
	}
	before := s.computed / e.cfg.BlockSize
	s.planned = 0
	s.computed += n
	e.stats.ComputedTokens += uint64(n)
	first, end := before, min(s.computed/e.cfg.BlockSize, len(s.hashes))
	for i := before; i < end; i++ {
		if !e.cache.key(s.blocks[i], s.hashes, i) {
			e.stored(s, first, i)
			first = i + 1
		}
	}
	e.stored(s, first, end)
	if s.Aborted || s.computed < s.total() {
		return
	}
	s.Generated++
	e.stats.GenerationTokens++
	e.said(s)
	if s.FirstToken < 0 {
		s.FirstToken = now
		e.stats.PromptTokens += uint64(s.PromptLen)
		e.stats.CachedTokens += uint64(s.Cached)
	}
	if s.Generated == s.MaxTokens {
		s.Done = true
		e.stats.Finished++
	}
	e.tokens = append(e.tokens, Token{s, s.Done})
}

// stored tells of a sequence's blocks from first to before end.
func (e *Engine) stored(s *Seq, first, end int) {
	if e.cfg.Events == nil || first >= end {
		return
	}
	parent := uint64(0)
	if first > 0 {
		parent = s.hashes[first-1]
	}
	e.cfg.Events.Stored(s, first, parent, s.hashes[first:end:end])
}

// Step is a whole iteration for a driver that does nothing in between.
func (e *Engine) Step(now time.Duration) (took time.Duration, tokens []Token) {
	took, busy := e.Begin(now)
	if !busy {
		return 0, nil
	}
	return took, e.End(now + took)
}

// Abort ends a sequence early. Between steps it leaves at once; in the middle of one, which no
// engine can stop, it makes no more token and leaves at the End. Aborting twice, or after the last
// token, does nothing.
func (e *Engine) Abort(now time.Duration, s *Seq) {
	if s.Done || s.Aborted {
		return
	}
	s.Aborted = true
	e.stats.Aborted++
	if s.waiting {
		e.waiting.remove(s)
		s.Finished = now
		return
	}
	if e.open && s.planned > 0 {
		return
	}
	if i := slices.Index(e.running, s); i >= 0 {
		e.running = slices.Delete(e.running, i, i+1)
	}
	s.Finished = now
	e.drop(s)
}
