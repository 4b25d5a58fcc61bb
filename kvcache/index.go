// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Tier is where an engine keeps a block.
type Tier uint8

// The tiers, fastest first.
const (
	GPU Tier = iota
	CPU
	Disk
	tiers = 3
)

// Forever is the deadline of evidence that no time ends.
const Forever = math.MaxInt64

// Evidence tells of one endpoint how many blocks it holds from the start of the prompts without a gap, and how that is
// known. Each block counts once.
type Evidence struct {
	// Tiers counts the blocks that the engine said it holds, each in the fastest tier that has it.
	Tiers [tiers]int32
	// Provisional counts the blocks that a routing decision promises, or that were confirmed before
	// events of the engine were missed.
	Provisional int32
}

// Confirmed counts the blocks that the engine said it holds.
func (e *Evidence) Confirmed() int32 { return e.Tiers[GPU] + e.Tiers[CPU] + e.Tiers[Disk] }

// Blocks counts all.
func (e *Evidence) Blocks() int32 { return e.Confirmed() + e.Provisional }

// Index remembers which endpoint holds which blocks, and how that is known: it was sent a prompt ([Index.Add],
// [Index.Expect]: provisional), or its engine said so ([Index.Confirm]). An endpoint is known by its load's slot.
//
// What is known of one block is a word: up to two holders, or the name of a set of holders that blocks share. A holder is
// named by a lot, a part of what an endpoint holds that lives and ends as a whole: one for all that is confirmed, one for
// what was provisionally added at a time. So an endpoint is cleared, a deadline kept and the least recently used forgotten
// without a look at the blocks; those are tidied a few at a time as others are written.
//
// A block held by one or two endpoints costs 20 to 27 bytes; more holders cost something only where their set is not
// shared with other blocks. An Index may be used by many goroutines. Lookups take no lock and wait for nobody: one that
// overlaps a write sees the block before or after it.
type Index struct {
	shards [shards]shard
	sets   pages[atomic.Pointer[set]]
	words  pages[atomic.Uint64] // of each lot: its slot plus one, and whether it is confirmed; 0 when it has ended
	used   atomic.Int64         // blocks, with those whose lots have ended

	mu       sync.Mutex // for all that follows and all writes
	budget   int64
	room     int64 // of budget, for tables and sets
	bytes    int64
	lots     []lot
	free     queue // lots to use again
	dying    queue // ended lots that blocks may still name, in the order of their end
	slots    []holdings
	now      atomic.Int64
	wheel    [][]claim // lots by deadline, modulo its length
	names    map[uint64]uint32
	freeSets queue
	gen      uint32
	hand     int // the shard and the row to be tidied next
	handRow  int
	turnLots int // of dying, those that had ended when this turn began
	epoch    uint64
	memo     memo
	list     []uint32
	evictAt  int
	stats    Stats
}

// Stats are figures about an index.
type Stats struct {
	// Blocks are distinct, Sets are shared sets of three holders or more.
	Blocks, Sets int
	// Bytes are held, of at most Budget.
	Bytes, Budget int64
	// Evicted blocks made room within the budget; Refused holders found none.
	Evicted, Refused uint64
}

const (
	shards = 64
	// A table is made anew when four fifths of it are filled, then three fifths full, so that a block costs
	// 16/0.8 to 16/0.6 bytes.
	rowBytes = 16
	minRows  = 8
	// An endpoint's provisional blocks are forgotten in lots of a 64th of its capacity.
	lotsInSlot = 64
	// span is how many generations ahead a deadline can lie.
	span     = 4096
	lotBytes = 48 + 8
	setBytes = 48 + 8 + 24 // with its place in sets and in names
	// What writers do between two breaths.
	breath = 512
)

// row is one block: its key, which never changes within a table, and its word.
type row struct{ key, word atomic.Uint64 }

type table struct{ rows []row }

type shard struct {
	table  atomic.Pointer[table]
	filled int // rows with a key
	live   int // rows with a word
	hand   int // of the CLOCK
}

// A word is 0, or two holders of 31 bits (tiers and lot), or isSet, the set's generation and its number. The
// highest bit is the CLOCK's.
const (
	recent   = 1 << 63
	isSet    = 1 << 62
	half     = 31
	halfMask = 1<<half - 1
	lotBits  = 28
	lotMask  = 1<<lotBits - 1
)

// set is three holders or more, sorted, which blocks share. Only refs changes.
type set struct {
	gen     uint32
	refs    int32
	hash    uint64
	holders []uint32
}

// lot is a part of what a slot holds.
type lot struct {
	slot         uint32
	count        int32
	serial       uint32 // tells its uses apart
	older, newer uint32 // in the slot
	sure         bool   // confirmed
	doubted      bool   // was confirmed
	until        int64
}

type claim struct{ lot, serial uint32 }

// holdings is what one slot holds. Lot 0 is none.
type holdings struct {
	sure           uint32 // what the engine said
	oldest, newest uint32 // what is provisional, by time of use
	held           int
}

const sureBit = 1 << 32

// NewIndex returns an empty index that may grow without bound.
func NewIndex() *Index { return NewBoundedIndex(math.MaxInt64) }

// NewBoundedIndex returns an empty index that holds at most that many bytes, a 16th of which is kept for the books of
// slots and deadlines. At the bound a CLOCK evicts what was not written for longest. While a table is made anew, a
// 64th of all is there twice.
func NewBoundedIndex(bytes int64) *Index {
	x := &Index{budget: bytes, room: bytes - bytes/16, lots: make([]lot, 1), memo: memo{epoch: 1}}
	x.words.grow(1)
	x.bytes = int64(cap(x.lots)) * lotBytes
	return x
}

// Scratch is memory that lookups reuse between calls.
type Scratch struct {
	at     []int32 // slot → position in slots plus one
	mark   []uint32
	kind   []uint8
	active []int32
	seen   []int32 // position and kind of a block's holders
	found  []Evidence
	epoch  uint32
}

const (
	provisional = tiers
	kinds       = 4
)

func (s *Scratch) prepare(slots []uint32) {
	top := uint32(0)
	for _, v := range slots {
		top = max(top, v)
	}
	if int(top) >= len(s.at) {
		s.at = make([]int32, top+1)
	}
	clear(s.at)
	if n := len(slots); len(s.mark) < n {
		s.mark, s.kind, s.active = make([]uint32, n), make([]uint8, n), make([]int32, n)
		s.seen, s.found = make([]int32, n), make([]Evidence, n)
	}
	for i, v := range slots {
		s.at[v] = int32(i + 1)
	}
}

// Match tells, for each slot, how many blocks from the start of each prompt it holds without a
// gap, summed over the prompts; match is indexed like slots. starts are the prompts' first
// keys, as [Hasher.Starts]. It allocates nothing and takes no lock. In a prompt of more than 2,048 blocks a gap of fewer
// than 16 between blocks that the very same endpoints hold goes unseen.
func (x *Index) Match(keys []uint64, starts []int32, slots []uint32, match []int32, scratch *Scratch) {
	clear(match)
	if x.used.Load() == 0 {
		return
	}
	scratch.prepare(slots)
	found := scratch.found[:len(slots)]
	x.look(keys, starts, found, scratch)
	for i := range found {
		match[i] = found[i].Blocks()
	}
}

// Look is Match that tells the evidence.
func (x *Index) Look(keys []uint64, starts []int32, slots []uint32, found []Evidence, scratch *Scratch) {
	clear(found)
	if x.used.Load() == 0 {
		return
	}
	scratch.prepare(slots)
	x.look(keys, starts, found, scratch)
}

func (x *Index) look(keys []uint64, starts []int32, found []Evidence, s *Scratch) {
	clear(found)
	for p := range starts {
		end := len(keys)
		if p+1 < len(starts) {
			end = int(starts[p+1])
		}
		x.lookOne(keys[starts[p]:end], found, s)
	}
}

// Prompts of more than long blocks are leapt through by stride blocks: where the block at the end of a leap has the very
// word of the one before it, those between are taken to have it. They do, unless an inner block left before its
// children, which engines do not let happen, or was evicted here, which is no loss to the engine.
const (
	long   = 2048
	stride = 16
)

// batch is how many keys are fetched together, so that the waits for memory overlap.
const batch = 32

var noTable = table{rows: make([]row, 1)}

// lookOne walks one prompt. Blocks in a row mostly have the same holders, hence the same word: only where the word
// changes are the holders looked at.
func (x *Index) lookOne(keys []uint64, found []Evidence, s *Scratch) {
	var words, leaps, ends [batch]uint64
	fetched, leapt := -1, -1
	var last uint64
	from, active := 0, s.active[:0]
	for i := 0; ; i++ {
		var w uint64
		if len(keys) > long && i%stride == 0 && last != 0 {
			if g := i / stride; g/batch != leapt {
				leapt = g / batch
				n := 0
				for j := leapt*batch*stride + stride - 1; j < len(keys) && n < batch; j += stride {
					ends[n] = keys[j]
					n++
				}
				leaps = [batch]uint64{}
				x.fetch(ends[:n], &leaps)
			}
			if leaps[i/stride%batch] == last {
				i += stride - 1
				continue
			}
		}
		if i < len(keys) {
			if i/batch != fetched {
				fetched = i / batch
				x.fetch(keys[fetched*batch:min((fetched+1)*batch, len(keys))], &words)
			}
			if w = words[i%batch]; w == last && w != 0 {
				continue
			}
		}
		for _, p := range active {
			e := &found[p]
			if k := s.kind[p]; k < tiers {
				e.Tiers[k] += int32(i - from)
			} else {
				e.Provisional += int32(i - from)
			}
		}
		if w == 0 {
			return
		}
		from, last = i, w
		seen := x.holders(keys[i], w, s)
		s.epoch++
		active = active[:0]
		for _, v := range seen {
			p := v / kinds
			if i > 0 && s.mark[p] != s.epoch-1 || s.mark[p] == s.epoch {
				continue
			}
			s.mark[p], s.kind[p] = s.epoch, uint8(v%kinds)
			active = append(active, p)
		}
		if len(active) == 0 {
			return
		}
	}
}

// fetch finds the words of some keys, without the CLOCK's bit.
func (x *Index) fetch(keys []uint64, words *[batch]uint64) {
	var tables [batch]*table
	var places [batch]int
	var got [batch]uint64
	for i, key := range keys { // no step of this loop waits for another
		m := mix(norm(key))
		t := x.shards[m%shards].table.Load()
		if t == nil {
			t = &noTable
		}
		tables[i], places[i] = t, t.place(m)
		got[i] = t.rows[places[i]].key.Load()
	}
	for i, key := range keys {
		key = norm(key)
		rows, at, k := tables[i].rows, places[i], got[i]
		for k != key && k != 0 {
			if at++; at == len(rows) {
				at = 0
			}
			k = rows[at].key.Load()
		}
		words[i] = 0
		if k != 0 {
			words[i] = rows[at].word.Load() &^ recent
		}
	}
}

// holders lists positions and kinds of a word's holders. A word that changes meanwhile is read again.
func (x *Index) holders(key, w uint64, s *Scratch) []int32 {
	for range 8 {
		seen := s.seen[:0]
		ok := true
		if w&isSet != 0 {
			h := x.sets.at(uint32(w & halfMask)).Load()
			if ok = h != nil && uint64(h.gen) == w>>half&halfMask; ok {
				dir := *x.words.dir.Load()
				for _, e := range h.holders {
					lot := e & lotMask
					seen = see(seen, e, dir[lot/pageLen][lot%pageLen].Load(), s)
				}
			}
		} else {
			e := uint32(w & halfMask)
			seen = see(seen, e, x.words.at(e&lotMask).Load(), s)
			if b := uint32(w >> half & halfMask); b != 0 {
				seen = see(seen, b, x.words.at(b&lotMask).Load(), s)
			}
		}
		r, _ := x.find(norm(key))
		if r == nil {
			return nil
		}
		now := r.word.Load() &^ recent
		if ok && now == w {
			s.seen = seen[:cap(seen)]
			return seen
		}
		if w = now; w == 0 {
			return nil
		}
	}
	return nil
}

// see adds a holder, whose lot has the word w, if it is among the candidates.
func see(seen []int32, e uint32, w uint64, s *Scratch) []int32 {
	slot := uint32(w) - 1 // of no slot when the lot has ended
	if uint64(slot) >= uint64(len(s.at)) || s.at[slot] == 0 {
		return seen
	}
	kind := int32(provisional)
	if w&sureBit != 0 {
		kind = int32(bits.TrailingZeros32(e >> lotBits))
	}
	return append(seen, (s.at[slot]-1)*kinds+kind)
}

// norm makes room for 0, which is no key in a table.
func norm(key uint64) uint64 {
	if key == 0 {
		return 0x9e3779b97f4a7c15
	}
	return key
}

func mix(key uint64) uint64 {
	key *= 0x9e3779b97f4a7c15
	return key ^ key>>32
}

func (t *table) place(m uint64) int {
	hi, _ := bits.Mul64(m, uint64(len(t.rows)))
	return int(hi)
}

func (x *Index) find(key uint64) (*row, *shard) {
	m := mix(key)
	s := &x.shards[m%shards]
	t := s.table.Load()
	if t == nil {
		return nil, s
	}
	for i := t.place(m); ; {
		r := &t.rows[i]
		switch r.key.Load() {
		case key:
			return r, s
		case 0:
			return nil, s
		}
		if i++; i == len(t.rows) {
			i = 0
		}
	}
}

// Add records that the endpoint in that slot was given the blocks of keys. It keeps at most capacity
// blocks from now on, which may be another number each time, and forgets the least recently used first, a 64th of the
// capacity at a time. What the engine confirms does not count: only the engine takes it back.
func (x *Index) Add(keys []uint64, slot uint32, capacity int) {
	x.Expect(keys, slot, capacity, Forever)
}

// Expect is Add until a deadline, in generations of the clock that [Index.Advance] tells, at most 4,095 ahead. What is
// expected again lives until the newest deadline.
func (x *Index) Expect(keys []uint64, slot uint32, capacity int, until int64) {
	if len(keys) > capacity {
		keys = keys[:max(0, capacity)]
	}
	size := int32(min(max(1, capacity/lotsInSlot), math.MaxInt32))
	x.mu.Lock()
	defer x.mu.Unlock()
	if until != Forever {
		if until = min(until, x.now.Load()+span-1); until <= x.now.Load() {
			return
		}
	}
	x.slot(slot)
	// From the end to the start: the start of a prompt becomes the most recently used, so
	// that what is forgotten first is a chain's tail and no chain loses its head.
	for i := len(keys) - 1; i >= 0; i-- {
		x.write(keys[i], change{do: expect, slot: slot, lot: x.open(slot, until, size)})
		for h := &x.slots[slot]; h.held-int(x.lots[h.sure].count) > capacity && h.oldest != 0; {
			x.end(h.oldest)
		}
		x.breathe(i)
	}
	x.tidyLot(slot)
}

// Unexpect takes back what was expected of the endpoint in that slot until that deadline or an earlier one, and not
// confirmed since. Another request of the same generation that expects the same blocks loses its promise, too.
func (x *Index) Unexpect(keys []uint64, slot uint32, until int64) {
	x.each(keys, slot, change{do: unexpect, slot: slot, until: until})
}

// Confirm records that the engine in that slot said that it holds the blocks of keys in that tier.
func (x *Index) Confirm(keys []uint64, slot uint32, tier Tier) {
	x.confirm(keys, slot, tier, nil)
}

// confirm calls again with each key that was confirmed in that tier before.
func (x *Index) confirm(keys []uint64, slot uint32, tier Tier, again func(key uint64)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, key := range keys {
		before := x.write(key, change{do: confirm, slot: slot, lot: x.openSure(slot), tiers: 1 << tier})
		if again != nil && before>>lotBits&(1<<tier) != 0 {
			again(key)
		}
		x.breathe(i)
	}
	x.tidyLot(slot)
}

// Remove records that the engine in that slot said that the blocks of keys left that tier. A block that is in none is
// forgotten, a promise as well.
func (x *Index) Remove(keys []uint64, slot uint32, tier Tier) {
	x.each(keys, slot, change{do: remove, slot: slot, tiers: 1 << tier})
}

func (x *Index) each(keys []uint64, slot uint32, c change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(slot) >= len(x.slots) {
		return
	}
	for i, key := range keys {
		x.write(key, c)
		x.breathe(i)
	}
}

// breathe lets other writers in now and then.
func (x *Index) breathe(i int) {
	if i%breath == breath-1 {
		x.mu.Unlock()
		x.mu.Lock()
	}
}

// Doubt makes all that is confirmed of the endpoint in that slot provisional until a deadline, because events were
// missed. It does not look at the blocks.
func (x *Index) Doubt(slot uint32, until int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(slot) >= len(x.slots) || x.slots[slot].sure == 0 {
		return
	}
	h := &x.slots[slot]
	n := h.sure
	h.sure = 0
	l := &x.lots[n]
	l.sure, l.doubted = false, true
	x.epoch++
	x.words.at(n).Store(uint64(slot) + 1)
	x.line(n, until)
	if until <= x.now.Load() {
		x.end(n)
	}
}

// Clear forgets all that the endpoint in that slot holds. It does not look at the blocks.
func (x *Index) Clear(slot uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(slot) >= len(x.slots) {
		return
	}
	h := &x.slots[slot]
	if h.sure != 0 {
		x.end(h.sure)
	}
	for h.oldest != 0 {
		x.end(h.oldest)
	}
}

// Advance tells the time, in generations that the caller defines; what was expected until then or earlier is
// forgotten. Time does not go back. When the generation is not new it takes no lock and costs next to nothing.
func (x *Index) Advance(now int64) {
	if now <= x.now.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.now.Load()
	if now <= before {
		return
	}
	x.now.Store(now)
	if x.wheel == nil {
		return
	}
	for t := max(before+1, now-span+1); t <= now; t++ {
		due := x.wheel[t%span]
		for _, c := range due {
			if x.lots[c.lot].serial == c.serial {
				x.end(c.lot)
			}
		}
		x.bytes -= int64(cap(due)) * 8
		x.wheel[t%span] = nil
	}
}

// Len counts the distinct blocks. It may have to look at all.
func (x *Index) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.len()
}

func (x *Index) len() int {
	if x.dying.len() > 0 {
		for i := range x.shards {
			x.rebuild(&x.shards[i], 0)
		}
		x.hand, x.handRow, x.turnLots = 0, 0, 0
		for x.dying.len() > 0 {
			x.free.push(x.dying.pop())
		}
	}
	return int(x.used.Load())
}

// Held counts the blocks that the endpoint in that slot holds.
func (x *Index) Held(slot uint32) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(slot) >= len(x.slots) {
		return 0
	}
	return x.slots[slot].held
}

// Bytes is the memory that the index holds.
func (x *Index) Bytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes
}

// Stats tells figures. Blocks that ended with their lots may still be among them.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Blocks, s.Bytes, s.Budget = int(x.used.Load()), x.bytes, x.budget
	return s
}
