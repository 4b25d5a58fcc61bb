// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Mirror is what the engines of one pool hold, as far as they said so: an index, and a [Follower] for each of them.
// Its methods may be called from any goroutine.
type Mirror struct {
	// Index is read and written by routing, too: promises stand beside what engines said.
	Index *Index

	fixed int           // blocks of that many tokens; 0 for what engines tell
	most  int           // blocks that are followed of one engine
	began atomic.Int64  // UnixNano
	sizes atomic.Uint64 // block and cell, once known

	// What is read without a lock is made anew by each change.
	followers atomic.Pointer[[]*Follower] // by slot
	adapters  atomic.Pointer[map[string]bool]

	mu sync.Mutex // for changes
}

// mostBlock is the largest block, in tokens, that an engine is believed to have.
const mostBlock = 1 << 14

// mostCell is the largest cell of a chain, in tokens.
const mostCell = 16

// How many blocks of one engine are followed: as many as would fill the index with ownBytes each, twice what a block takes, so that
// an engine that tells of ever new ones does not have all of it, and nobody else's are forgotten.
const (
	ownBytes      = 96
	leastFollowed = 1 << 12
	mostFollowed  = 1 << 22
)

// mostAdapters bounds the names of adapters that a Mirror remembers.
const mostAdapters = 4096

// NewMirror returns a Mirror whose index holds at most that many bytes, in blocks of that many tokens; 0 takes the size that
// engines tell.
func NewMirror(bytes int64, blockTokens int) *Mirror {
	m := &Mirror{Index: NewBoundedIndex(bytes), fixed: blockTokens, most: int(min(max(bytes/ownBytes, leastFollowed), mostFollowed))}
	m.followers.Store(new([]*Follower))
	m.adapters.Store(&map[string]bool{})
	return m
}

// Sizes are our block and the cell of its chain, in tokens, once they are known: told is what an engine says of its
// own blocks, 0 for nothing. The first call that knows decides; until then both are 0. Where no size was configured, most
// engines may decide otherwise later.
func (m *Mirror) Sizes(told int) (block, cell int) {
	if s := m.sizes.Load(); s != 0 {
		return int(s >> 32), int(uint32(s))
	}
	block = m.fixed
	if block <= 0 && told <= mostBlock {
		block = told
	}
	if block <= 0 {
		return 0, 0
	}
	if !m.sizes.CompareAndSwap(0, packed(block)) {
		return m.Sizes(0)
	}
	return block, cellOf(block)
}

func packed(block int) uint64 { return uint64(block)<<32 | uint64(cellOf(block)) }

// cellOf is the largest power of two up to mostCell that divides a block.
func cellOf(block int) int {
	cell := 1
	for cell < mostCell && block%(2*cell) == 0 {
		cell *= 2
	}
	return cell
}

// serves tells whether engines' blocks of a size are well followed with ours of another: they can be, as cheaply as with their own, and
// are not found in much coarser or much finer steps.
func serves(block, size int) bool {
	return size%cellOf(block) == 0 && cellOf(block) >= cellOf(size) && block <= 4*size && size <= 16*block
}

// vote lets most of the engines that told the size of their blocks take another than the first to tell did. What was known is void then, and
// engines are to be asked again.
func (m *Mirror) vote() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fixed > 0 {
		return
	}
	votes, all, best := map[int]int{}, 0, 0
	for _, f := range *m.followers.Load() {
		if f == nil || f.size.Load() == 0 {
			continue
		}
		size := int(f.size.Load())
		votes[size]++
		all++
		if votes[size] > votes[best] {
			best = size
		}
	}
	if 2*votes[best] <= all || serves(m.Block(), best) {
		return
	}
	m.sizes.Store(packed(best))
	for slot, f := range *m.followers.Load() {
		if f != nil {
			f.anew()
		} else {
			m.Index.Clear(uint32(slot))
		}
	}
}

// Block is our block in tokens, 0 until Sizes decided.
func (m *Mirror) Block() int { return int(m.sizes.Load() >> 32) }

// Tick moves the index's clock and returns its generation, seconds from the first call.
func (m *Mirror) Tick(now time.Time) int64 {
	n := now.UnixNano()
	m.began.CompareAndSwap(0, n)
	g := max(0, n-m.began.Load())/int64(time.Second) + 1
	m.Index.Advance(g)
	return g
}

// Adapter reports whether engines hold blocks of an adapter of that name.
func (m *Mirror) Adapter(name string) bool { return (*m.adapters.Load())[name] }

// Follow returns the follower of the endpoint in that slot, which is made at the first call; nil while nobody told how large
// blocks are. told is the engine's block in tokens, 0 for unknown.
func (m *Mirror) Follow(slot uint32, told int) *Follower {
	if block, _ := m.Sizes(told); block == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.Of(slot); f != nil {
		return f
	}
	f := &Follower{mirror: m, slot: slot}
	f.engine.Store(m.engine(slot))
	m.set(slot, f)
	return f
}

// set changes a slot's follower, under the lock.
func (m *Mirror) set(slot uint32, f *Follower) {
	old := *m.followers.Load()
	list := make([]*Follower, max(len(old), int(slot)+1))
	copy(list, old)
	list[slot] = f
	m.followers.Store(&list)
}

func (m *Mirror) engine(slot uint32) *Engine {
	block, cell := m.Sizes(0)
	return NewEngine(m.Index, EngineOptions{Slot: slot, BlockTokens: block, CellTokens: cell, MaxBlocks: m.most})
}

// Gone forgets the endpoint in that slot. What its follower is told afterwards does nothing.
func (m *Mirror) Gone(slot uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.Of(slot)
	if f == nil {
		m.Index.Clear(slot)
		return
	}
	m.set(slot, nil)
	f.end()
}

// Renewed forgets what the engine in that slot held: its process is another than the one that was last seen at the time given. Where
// its events told of a restart since then, they were first, and all is as they say.
func (m *Mirror) Renewed(slot uint32, seen time.Time) {
	f := m.Of(slot)
	switch {
	case f == nil:
		m.Index.Clear(slot)
	case f.restarted.Load() < seen.UnixNano():
		f.size.Store(0)
		f.engine.Load().Renew()
	}
}

// Of is the follower of the endpoint in that slot, nil if there is none.
func (m *Mirror) Of(slot uint32) *Follower {
	if list := *m.followers.Load(); int(slot) < len(list) {
		return list[slot]
	}
	return nil
}

// Followers lists all, by slot.
func (m *Mirror) Followers() []*Follower {
	return slices.DeleteFunc(slices.Clone(*m.followers.Load()), func(f *Follower) bool { return f == nil })
}

// learn remembers an adapter's name.
func (m *Mirror) learn(adapter string) {
	if adapter == "" || m.Adapter(adapter) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := *m.adapters.Load(); len(old) < mostAdapters {
		list := maps.Clone(old)
		list[adapter] = true
		m.adapters.Store(&list)
	}
}

// Follower applies the events of one endpoint's engine, unless it is not believed.
type Follower struct {
	mirror *Mirror
	slot   uint32
	engine atomic.Pointer[Engine]
	heard  atomic.Bool
	events atomic.Uint64
	quiet  atomic.Int32 // requests in a row without a word
	up     atomic.Pointer[func() bool]
	ranks  [4]atomic.Uint64 // bits of those that told something
	size   atomic.Int32     // of the engine's blocks, as it told first

	restarted atomic.Int64 // UnixNano of when events told so last

	mu      sync.Mutex // after the mirror's
	ended   bool
	strikes int
	judged  int          // requests since it is believed
	agreed  float64      // their mean agreement, of late
	until   atomic.Int64 // UnixNano until when it is not believed; 0 for never
	again   bool         // what it said before is to be asked for again
}

// Slot is the endpoint's.
func (f *Follower) Slot() uint32 { return f.slot }

// Counts tell what became of the engine's events.
func (f *Follower) Counts() Counts { return f.engine.Load().Counts() }

// Connected has up asked whether events can come.
func (f *Follower) Connected(up func() bool) { f.up.Store(&up) }

// Up reports whether events can come, as far as known.
func (f *Follower) Up() bool {
	up := f.up.Load()
	return up == nil || (*up)()
}

// Told reports whether a rank said that it holds something.
func (f *Follower) Told(rank int) bool {
	r := uint(rank)
	return r < mostRanks && f.ranks[r/64].Load()&(1<<(r%64)) != 0
}

// Live reports whether the engine's word is to be had: it is heard, connected and believed.
func (f *Follower) Live(now time.Time) bool {
	return f != nil && f.heard.Load() && f.Up() && !f.Muted(now)
}

// Muted reports whether the engine's word is not taken, since it proved wrong.
func (f *Follower) Muted(now time.Time) bool {
	until := f.until.Load()
	return until != 0 && now.UnixNano() < until
}

// How long an engine is not believed that was wrong: first, and at most, doubling in between.
const (
	firstMute = time.Minute
	mostMute  = time.Hour
)

// Mute forgets all that the engine said and does not believe it for a while, longer each time.
func (f *Follower) Mute(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return // its endpoint is gone
	}
	f.until.Store(now.Add(min(firstMute<<min(f.strikes, 10), mostMute)).UnixNano())
	f.strikes++
	f.forget()
}

// forget begins with an engine of which nothing is known, under the lock.
func (f *Follower) forget() {
	f.again, f.judged, f.agreed = true, 0, 0
	f.engine.Swap(f.mirror.engine(f.slot)).Close()
}

// anew forgets all that the engine said, which is to be asked again.
func (f *Follower) anew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until.Load() == 0 {
		f.until.Store(1)
	}
	f.forget()
}

// end forgets all, for good.
func (f *Follower) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.engine.Load().Close()
}

// Believe reports whether an event that comes now counts, and whether it is the first after a time when none did: then all that
// the engine holds is to be asked for again.
func (f *Follower) Believe(now time.Time) (ok, again bool) {
	if f.Muted(now) {
		return false, false
	}
	if f.until.Load() == 0 {
		return true, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if again, f.again = f.again, false; again && !f.ended {
		f.engine.Swap(f.mirror.engine(f.slot)).Close() // what came since then is told again, too
	}
	return true, again
}

// Events counts the events that told of blocks that can be followed.
func (f *Follower) Events() uint64 {
	if f == nil {
		return 0
	}
	return f.events.Load()
}

// mostQuiet is how many requests in a row may compute blocks without an event.
const mostQuiet = 3

// Silent is told that the engine computed blocks, and how many events had come before. It reports whether the engine is
// taken for one that does not publish, which it is until its next event.
func (f *Follower) Silent(before uint64) bool {
	if f.events.Load() != before {
		f.quiet.Store(0)
		return !f.heard.Load()
	}
	if f.quiet.Add(1) >= mostQuiet {
		f.heard.Store(false)
	}
	return !f.heard.Load()
}

// An engine is believed as long as it does not report much less of prompts as cached than it said it holds.
const (
	leastAgreement = 0.7
	leastJudged    = 8
	agreementOver  = 16
)

// Judge compares what the engine had said of a prompt with what it reported, in tokens, and mutes it when that was wrong
// too often. That it reports more is no fault: it may hold what it said before we listened.
func (f *Follower) Judge(now time.Time, said, reported, prompt int64) {
	agree := 1 - float64(max(0, said-reported))/float64(max(prompt, 1))
	f.mu.Lock()
	f.judged++
	f.agreed += (agree - f.agreed) / float64(min(f.judged, agreementOver))
	wrong := f.judged >= leastJudged && f.agreed < leastAgreement
	f.mu.Unlock()
	if wrong {
		f.Mute(now)
	}
}

// Stored, Removed, Cleared, Restarted and Gap apply one event each; see [Engine]. Their callers ask Believe before.

// Stored tells of blocks that the engine holds.
func (f *Follower) Stored(s *Stored) {
	f.mirror.learn(s.Adapter)
	if r := uint(s.Rank); r < mostRanks && !f.Told(s.Rank) {
		f.ranks[r/64].Or(1 << (r % 64))
	}
	if f.size.Load() == 0 && s.BlockTokens > 0 && s.BlockTokens <= mostBlock && Follows(s.Kind) && f.size.CompareAndSwap(0, int32(s.BlockTokens)) {
		f.mirror.vote()
	}
	if f.engine.Load().Store(s) {
		f.events.Add(1)
		f.heard.Store(true)
	}
}

// Removed tells of blocks that left a tier.
func (f *Follower) Removed(hashes []uint64, tier Tier, group, rank int) {
	f.engine.Load().Remove(hashes, tier, group, rank)
}

// Cleared tells that a rank forgot all.
func (f *Follower) Cleared(rank int) { f.engine.Load().Clear(rank) }

// Restarted tells that a rank began anew.
func (f *Follower) Restarted(rank int, now time.Time) {
	f.restarted.Store(now.UnixNano())
	f.size.Store(0)
	f.engine.Load().Restart(rank)
}

// Once tells that the engine computed the blocks of these keys, which it had said that it holds.
func (f *Follower) Once(keys []uint64) { f.engine.Load().Once(keys) }

// doubted is for how many generations blocks are still expected of an engine after a gap in its events.
const doubted = 120

// Gap tells that some events are lost for good.
func (f *Follower) Gap(missed uint64, now time.Time) {
	f.engine.Load().Gap(missed, f.mirror.Tick(now)+doubted)
}
