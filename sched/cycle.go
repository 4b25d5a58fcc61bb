// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/penstock-project/penstock/clock"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
)

// Prompt feeds the prompt's normalized bytes to a hasher; nil when there is none.
type Prompt func(*kvcache.Hasher)

// Headers reads the request's headers by lower-case name; empty for one that is not there, or that the
// caller is not trusted to set.
type Headers interface {
	Get(name string) string
}

// Header is one name, lower case, and its value.
type Header struct{ Name, Value string }

// Attribute is a fact about the request that a producer found, such as its session.
type Attribute struct {
	Name, Producer string
	Value          string
}

// Prefix tells, by one producer, how much of the prompt each candidate holds in its KV cache.
type Prefix struct {
	// Producer is the configured name of whoever found it.
	Producer string
	// Match is the cached prefix of each candidate, and Blocks the whole prompt, in blocks of
	// BlockTokens tokens. Blocks is 0 when nobody looked.
	Match       []int32
	Blocks      int
	BlockTokens int
	// Evidence tells how each Match is known, where the producer says; Tiers is what a block in each tier is worth, where one
	// is worth less than another.
	Evidence []kvcache.Evidence
	Tiers    *[3]float64
	// Precise tells that engines say what they hold: it is the default, if there is one.
	Precise bool
	// Asked is the time, by the producer's own count, at which it looked.
	Asked uint64
	// Hash are the prompt's block keys; nil when nobody looked. Index is where they were looked up that engines tell of; nil when there
	// is none.
	Hash  *kvcache.Hasher
	Index *kvcache.Index
	// ByName tells that only those who name the producer read it.
	ByName bool

	memory []kvcache.Evidence // for Evidence
}

// Encoded tells, by one producer, how much of the request's media each candidate has encoded before.
type Encoded struct {
	// Producer is the configured name of whoever found it.
	Producer string
	// Match is how many of the cycle's Items each candidate knows.
	Match []int32
}

// Source is the endpoint that holds most of the prompt, from which another can pull it.
type Source struct {
	Endpoint *fleet.Endpoint // nil for none
	Tokens   int64           // of the prompt that it holds
}

// A Worker says how many tokens of work a request brings to candidate i: of its prompt, before its answer
// can begin, and of its output where that counts.
type Worker interface {
	Work(c *Cycle, i int) (prefill, output int64)
}

// Prompts are a request's prompts as its engine reads them.
type Prompts struct {
	// IDs are the tokens of all prompts, Starts where each begins.
	IDs    []uint32
	Starts []int32
	// Media are the items that are no text, by their place in IDs.
	Media []MediaTokens
}

// MediaTokens are the places of an image, sound or video among the tokens of a prompt.
type MediaTokens struct {
	At, Len int
	// Hash is the engine's name of the content.
	Hash string
}

// A Receipt is what a plugin keeps of a request that it saw placed, until its end.
type Receipt interface {
	// Settle is told once how it ended, after the cycle is gone.
	Settle(e Ending)
}

// Ending is how a request ended at the endpoint that it was placed on last.
type Ending struct {
	Now time.Time
	// Served tells that its answer came, or at least began.
	Served bool
	// Prompt and Cached are tokens as the engine reported, below 0 for what it did not say.
	Prompt, Cached int64
}

// Fate tells why an endpoint of the pool is not among the candidates: [Kept], one of the causes
// below, or the stage that dropped it, counted from [FirstStage]: the plan's screeners, then the
// profile's filters.
type Fate uint8

// The fates of endpoints.
const (
	Kept        Fate = iota
	NotServing       // it does not list the model, and others do
	NotInSubset      // the data plane's subset leaves it out
	Ejected          // it failed lately
	FirstStage
)

// Body is a request's.
type Body interface {
	// Append adds the whole body to what is given.
	Append(into []byte) []byte
}

// Cycle is one decision: what is asked, who may serve it, and what was found on the way.
// Slices indexed by candidate are parallel to Candidates. A Cycle is reused; nobody keeps
// it or its slices after the decision.
type Cycle struct {
	// Context ends when the caller leaves.
	Context context.Context
	// Now and Rand are the decision's time and chance.
	Now  time.Time
	Rand *rand.Rand
	// Stale is the age beyond which a signal counts as unknown.
	Stale time.Duration
	// Clock is what plugins that wait wait by; nil for the wall's. Wait waits until done is closed or the caller leaves,
	// and reports which; nil for [Cycle.Await]'s own way, in which the goroutine waits.
	Clock clock.Clock
	Wait  func(done <-chan struct{}) bool

	// ID is the request's id; Model is what it asks for, after any rewrite; Salt keeps its cache apart.
	ID, Model, Salt string
	// Tenant is the fairness id; Priority comes from the objective.
	Tenant   string
	Priority int
	// Headers are the request's; nil for none.
	Headers Headers
	// MaxTokens is the caller's cap on output tokens, 0 for none.
	MaxTokens int64
	// Recomputes tells that the engine computes the whole prompt, whatever its cache has of it.
	Recomputes bool
	Prompt     Prompt
	// API is the dialect of the request, such as chat, and Body appends its body as the endpoint will get it, but for a
	// rewrite of the model; nil when there is none.
	API  string
	Body Body
	// Media appends the hash of each image, sound or video of the prompt; nil when there is none.
	Media func(into []uint64) []uint64
	// Tokens estimates the prompt, in tokens; set by the first producer that knows.
	Tokens int64
	// Prompts are the prompts as token ids; empty when nobody told: see [Cycle.Tokenized].
	Prompts Prompts
	// Tokenizer says who counted the tokens, and Untold why not the one that was asked first, in a word; both are for people
	// and counters.
	Tokenizer, Untold string

	// All are the pool's endpoints, and Fates what became of each; not to be changed.
	All   []*fleet.Endpoint
	Fates []Fate
	// Candidates are those that may still serve.
	Candidates []*fleet.Endpoint
	// Origin is the place of each candidate in All.
	Origin []int32
	// Prefixes are what producers found of cached prefixes, Encodings what they found of encoded media.
	Prefixes  []Prefix
	Encodings []Encoded
	// Source is where a KV cache can be pulled from.
	Source Source
	// Worker says how much work the request brings; nil for what is not cached of its prompt.
	Worker Worker
	// Attributes are what producers found about the request.
	Attributes []Attribute
	// Profile is the name of the profile that decides, once there is one.
	Profile string
	// Peer is the endpoint that does another leg of the same request; nil for none.
	Peer *fleet.Endpoint

	// Scores holds each scorer's scores in the order of the profile, Total their weighted sum less what
	// [Reserve] takes for requests that are Unseen.
	Scores [][]float64
	Total  []float64
	Unseen []int64
	// Order lists candidates, the pick first, then its fallbacks from the best.
	Order []int

	// Receipts are told how the request ends. Whoever places it again finds its own here.
	Receipts []Receipt
	// Set are headers that plugins add to the request on its way to the endpoint.
	Set []Header

	hashed  []*hashed // the first hashes of them are this request's
	hashes  int
	items   []uint64
	listed  bool // items are this request's
	starts  []int32
	scratch kvcache.Scratch
	keep    []bool
	slots   []uint32
	keys    []float64
	after   Fate // the first filter's
	none    Prefix
}

// Begin makes all endpoints candidates. What an earlier decision left is forgotten.
func (c *Cycle) Begin(all []*fleet.Endpoint) {
	n := len(all)
	c.All, c.Fates, c.Origin = all, sized(c.Fates, n), sized(c.Origin, n)
	c.Candidates = append(c.Candidates[:0], all...)
	clear(c.Fates)
	for i := range c.Origin {
		c.Origin[i] = int32(i)
	}
	c.Prefixes, c.Encodings, c.Attributes, c.Set, c.Order = c.Prefixes[:0], c.Encodings[:0], c.Attributes[:0], c.Set[:0], c.Order[:0]
	c.Prompts.IDs, c.Prompts.Starts, c.Prompts.Media, c.Receipts = c.Prompts.IDs[:0], c.Prompts.Starts[:0], c.Prompts.Media[:0], c.Receipts[:0]
	c.Tokenizer, c.Untold = "", ""
	c.Tokens, c.Peer, c.Profile, c.Source, c.Worker, c.hashes, c.listed, c.after = 0, nil, "", Source{}, nil, 0, false, FirstStage
}

// Await waits until done is closed, and reports true, or until the caller leaves.
func (c *Cycle) Await(done <-chan struct{}) bool {
	if c.Wait != nil {
		return c.Wait(done)
	}
	select {
	case <-done:
		return true
	case <-c.Context.Done():
		return false
	}
}

// Mask is memory for [Cycle.Drop]: true for each candidate.
func (c *Cycle) Mask() []bool {
	c.keep = sized(c.keep, len(c.Candidates))
	for i := range c.keep {
		c.keep[i] = true
	}
	return c.keep
}

// Drop removes the candidates that are false in the last [Cycle.Mask], and notes why.
func (c *Cycle) Drop(why Fate) {
	for i, ok := range c.keep {
		if !ok {
			c.Fates[c.Origin[i]] = why
		}
	}
	c.compact()
}

// compact removes the candidates that have a fate.
func (c *Cycle) compact() {
	k := 0
	for i, at := range c.Origin {
		if c.Fates[at] != Kept {
			continue
		}
		if k != i {
			c.Candidates[k], c.Origin[k] = c.Candidates[i], at
			for p := range c.Prefixes {
				f := &c.Prefixes[p]
				f.Match[k] = f.Match[i]
				if f.Evidence != nil {
					f.Evidence[k] = f.Evidence[i]
				}
			}
			for p := range c.Encodings {
				m := c.Encodings[p].Match
				m[k] = m[i]
			}
		}
		k++
	}
	c.Candidates, c.Origin = c.Candidates[:k], c.Origin[:k]
	for p := range c.Prefixes {
		f := &c.Prefixes[p]
		f.Match = f.Match[:k]
		if f.Evidence != nil {
			f.Evidence = f.Evidence[:k]
		}
	}
	for p := range c.Encodings {
		c.Encodings[p].Match = c.Encodings[p].Match[:k]
	}
}

// hashed is the prompt in blocks of one size.
type hashed struct {
	kvcache.Hasher
	form
}

// form is how a prompt is hashed: as text when cell is 0, else as tokens.
type form struct {
	block, cell, limit int
	adapter            string
}

// Hash is the prompt in keys of blocks of that many tokens, at most limit of them a prompt (0 for no bound).
// Producers that ask for the same share it. It holds until the decision is over and is not to be changed.
func (c *Cycle) Hash(block, limit int) *kvcache.Hasher {
	h, done := c.hasher(form{block: block, limit: limit})
	if !done {
		h.Reset(c.Model, c.Salt, block, limit)
		if c.Prompt != nil {
			c.Prompt(h)
		}
		h.Finish()
	}
	return h
}

func (c *Cycle) hasher(f form) (h *kvcache.Hasher, done bool) {
	for _, h := range c.hashed[:c.hashes] {
		if h.form == f {
			return &h.Hasher, true
		}
	}
	if c.hashes == len(c.hashed) {
		c.hashed = append(c.hashed, new(hashed))
	}
	made := c.hashed[c.hashes]
	c.hashes++
	made.form = f
	return &made.Hasher, false
}

// Tokenized reports whether the prompts are known as token ids.
func (c *Cycle) Tokenized() bool { return len(c.Prompts.Starts) > 0 }

// HashTokens is the prompts in keys of blocks of token ids, as [kvcache.Engine] makes them of what engines tell; see
// [kvcache.Hasher.ResetTokens]. The adapter is empty for the engine's own model. A prompt has no key for a block
// that ends with it: its last token is computed in any case, so that the block is never read from the cache.
func (c *Cycle) HashTokens(block, cell, limit int, adapter string) *kvcache.Hasher {
	h, done := c.hasher(form{block, cell, limit, adapter})
	if done {
		return h
	}
	h.ResetTokens(adapter, c.Salt, block, cell, limit)
	p := &c.Prompts
	item := 0
	for k, at := range p.Starts {
		end := len(p.IDs)
		if k+1 < len(p.Starts) {
			end = int(p.Starts[k+1])
		}
		h.Start()
		from := int(at)
		to := max(from, from+(end-from-1)/block*block) // behind the last block that can be read
		if len(p.Media) == 0 {
			h.WriteTokens(p.IDs[from:to])
			continue
		}
		for ; from < to; from += block {
			for item < len(p.Media) && p.Media[item].At+p.Media[item].Len <= from {
				item++
			}
			for _, m := range p.Media[item:] {
				if m.At >= from+block {
					break
				}
				h.Extra(m.Hash)
			}
			h.WriteTokens(p.IDs[from : from+block])
		}
	}
	h.Finish()
	return h
}

// AddPrefix makes room for what a producer of that name finds; until it tells, nothing matches. The
// pointer holds until the next AddPrefix.
func (c *Cycle) AddPrefix(producer string) *Prefix {
	p := another(&c.Prefixes)
	*p = Prefix{Producer: producer, Match: sized(p.Match, len(c.Candidates)), memory: p.memory}
	clear(p.Match)
	return p
}

// another makes a list one longer. What it returns has the memory, and the values, of an earlier use.
func another[T any](list *[]T) *T {
	k := len(*list)
	if k < cap(*list) {
		*list = (*list)[:k+1]
	} else {
		*list = append(*list, *new(T))
	}
	return &(*list)[k]
}

// Prefix is what the producer of that name found; the empty name is the default one, the first that is
// precise, else the first, of those that are not read by their name alone. Where nobody looked, nothing matches.
func (c *Cycle) Prefix(producer string) *Prefix {
	var usual *Prefix
	for i := range c.Prefixes {
		p := &c.Prefixes[i]
		if p.Producer == producer {
			return p
		}
		if producer == "" && !p.ByName && (usual == nil || p.Precise && !usual.Precise) {
			usual = p
		}
	}
	if usual != nil {
		return usual
	}
	c.none.Match = sized(c.none.Match, len(c.Candidates)) // which nobody writes to
	return &c.none
}

// Share is the cached part of the prompt at candidate i, 0 to 1; 0 when nobody looked.
func (p *Prefix) Share(i int) float64 {
	if p.Blocks == 0 {
		return 0
	}
	worth := float64(p.Match[i])
	if p.Tiers != nil && p.Evidence != nil {
		e := &p.Evidence[i]
		worth = float64(e.Provisional)
		for t, n := range e.Tiers {
			worth += p.Tiers[t] * float64(n)
		}
	}
	return min(1, worth/float64(p.Blocks))
}

// Cached is the cached part of the prompt at candidate i that its engine will use, in tokens, by the producer of that name.
func (c *Cycle) Cached(producer string, i int) int64 {
	p := c.Prefix(producer)
	if c.Recomputes {
		return 0
	}
	return min(int64(p.Match[i])*int64(p.BlockTokens), c.Tokens)
}

// MostCached is the largest cached part of the prompt that any candidate has, in tokens.
func (c *Cycle) MostCached() (most int64) {
	for i := range c.Candidates {
		most = max(most, c.Cached("", i))
	}
	return most
}

// Attribute is what a producer found about the request; an empty producer is any.
func (c *Cycle) Attribute(name, producer string) string {
	for i := range c.Attributes {
		if a := &c.Attributes[i]; a.Name == name && (producer == "" || a.Producer == producer) {
			return a.Value
		}
	}
	return ""
}

// Header reads a header of the request.
func (c *Cycle) Header(name string) string {
	if c.Headers == nil {
		return ""
	}
	return c.Headers.Get(name)
}

// SetHeader adds a header to the request on its way to the endpoint, in place of one that was set before.
func (c *Cycle) SetHeader(name, value string) {
	for i := range c.Set {
		if c.Set[i].Name == name {
			c.Set[i].Value = value
			return
		}
	}
	c.Set = append(c.Set, Header{name, value})
}

// Keys is memory for a picker's sort keys, one for each candidate.
func (c *Cycle) Keys() []float64 {
	c.keys = sized(c.keys, len(c.Candidates))
	return c.keys
}

// Top fills Order with the candidates that have the highest keys, in falling order. Equals are put
// into an order by chance; NaN comes last.
func (c *Cycle) Top(key []float64) {
	type entry struct {
		key float64
		tie uint64
		i   int
	}
	var top [Ranked]entry
	n := 0
	salt := c.Rand.Uint64()
	for i, k := range key {
		if math.IsNaN(k) {
			k = math.Inf(-1)
		}
		if n == Ranked && k < top[n-1].key {
			continue
		}
		e := entry{k, mix(salt + uint64(i)), i}
		at := n
		for at > 0 && (top[at-1].key < k || top[at-1].key == k && top[at-1].tie < e.tie) {
			at--
		}
		if at == Ranked {
			continue
		}
		n = min(n+1, Ranked)
		copy(top[at+1:n], top[at:n-1])
		top[at] = e
	}
	c.Order = c.Order[:0]
	for _, e := range top[:n] {
		c.Order = append(c.Order, e.i)
	}
}

// mix makes neighbours independent (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// LookUp fills p from an index by the keys of h.
func (c *Cycle) LookUp(x *kvcache.Index, h *kvcache.Hasher, p *Prefix) {
	p.Hash, p.Blocks = h, len(h.Keys)
	c.lookUp(x, h.Keys, h.Starts, p.Match)
}

// LookUpEvidence is LookUp with the evidence.
func (c *Cycle) LookUpEvidence(x *kvcache.Index, h *kvcache.Hasher, p *Prefix) {
	p.Hash, p.Blocks = h, len(h.Keys)
	p.memory = sized(p.memory, len(c.Candidates))
	p.Evidence = p.memory
	x.Look(h.Keys, h.Starts, c.slotsOf(), p.Evidence, &c.scratch)
	for i := range p.Evidence {
		p.Match[i] = p.Evidence[i].Blocks()
	}
}

// Items are the hashes of the prompt's images, sounds and videos. They hold until the decision is over.
func (c *Cycle) Items() []uint64 {
	if !c.listed {
		c.items, c.listed = c.items[:0], true
		if c.Media != nil {
			c.items = c.Media(c.items)
		}
	}
	return c.items
}

// AddEncoded makes room for what a producer of that name finds of the request's media. The pointer holds
// until the next AddEncoded.
func (c *Cycle) AddEncoded(producer string) *Encoded {
	m := another(&c.Encodings)
	m.Producer, m.Match = producer, sized(m.Match, len(c.Candidates))
	clear(m.Match)
	return m
}

// Encoded is what the producer of that name found; the empty name is the first. Nil when nobody looked.
func (c *Cycle) Encoded(producer string) *Encoded {
	for i := range c.Encodings {
		if producer == "" || c.Encodings[i].Producer == producer {
			return &c.Encodings[i]
		}
	}
	return nil
}

// LookUpItems fills m from an index, item by item.
func (c *Cycle) LookUpItems(x *kvcache.Index, m *Encoded) {
	items := c.Items()
	c.starts = sized(c.starts, len(items))
	for i := range c.starts {
		c.starts[i] = int32(i) // each stands for itself
	}
	c.lookUp(x, items, c.starts, m.Match)
}

func (c *Cycle) lookUp(x *kvcache.Index, keys []uint64, starts, match []int32) {
	x.Match(keys, starts, c.slotsOf(), match, &c.scratch)
}

func (c *Cycle) slotsOf() []uint32 {
	c.slots = c.slots[:0]
	for _, e := range c.Candidates {
		c.slots = append(c.slots, e.Load.Slot)
	}
	return c.slots
}

// Work is how many tokens of work the request brings to candidate i.
func (c *Cycle) Work(i int) (prefill, output int64) {
	if c.Worker != nil {
		return c.Worker.Work(c, i)
	}
	return c.Tokens - c.Cached("", i), 0
}
