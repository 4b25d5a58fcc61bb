// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"math"
	"math/bits"
	"slices"
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
// [Index.Expect]: provisional), or its engine said so ([Engine]). An endpoint is known by its load's slot.
//
// What is known of one block is a word: up to two holders, or the name of a set of holders that blocks share. A holder is
// named by a lot, a part of what an endpoint holds that lives and ends as a whole: one for what each part of its engine
// confirmed, one for what was provisionally added at a time. So an endpoint is cleared, a deadline kept and the least
// recently used forgotten without a look at the blocks; those are tidied a few at a time as others are written.
//
// A block held by one or two endpoints costs 20 to 22 bytes, and as much where an engine has a name for it that no other
// engine uses; more holders cost something only where their set is not shared with other blocks. An Index may be used by
// many goroutines. Lookups take no lock and wait for nobody: one that overlaps a write sees the block before or after it.
type Index struct {
	shards []shard
	mask   uint64 // of their numbers
	sets   pages[atomic.Pointer[set]]
	words  pages[atomic.Uint64] // of each lot: its slot plus one, and whether it is confirmed; 0 when it has ended
	used   atomic.Int64         // blocks, with those whose lots have ended
	parted atomic.Bool          // whether a slot may have two holders in a block
	epoch  atomic.Uint64        // told on before a lot's word changes
	due    atomic.Int64         // the time that was told last; now follows when somebody has the lock
	hopes  hopes

	mu       sync.Mutex // for all that follows and all writes; see lock
	budget   int64
	room     int64 // of budget, for tables, sets and names
	bytes    int64 // but for names
	lots     []lot
	free     queue // lots to use again
	dying    queue // ended lots that blocks may still name, in the order of their end
	slots    []holdings
	now      atomic.Int64
	wheel    []uint32 // by deadline, modulo its length, the first of its lots
	byHash   map[uint64]uint32
	freeSets queue
	gen      uint32
	hand     int // the shard and the row to be tidied next
	handRow  int
	turnLots int // of dying, those that had ended when this turn began
	memo     memo
	list     []uint32
	again    []uint32 // for tidying
	keys     []uint64
	evictAt  int
	names    *names // nil until an engine is followed
	stats    Stats
}

// Stats are figures about an index.
type Stats struct {
	// Blocks are distinct, Sets are shared sets of three holders or more, Names are engines' names of blocks.
	Blocks, Sets, Names int
	// Bytes are held, NameBytes of them for names, of at most Budget.
	Bytes, NameBytes, Budget int64
	// Evicted blocks made room within the budget; Refused writes found none.
	Evicted, Refused uint64
	// Expired counts what endpoints held provisionally until its deadline.
	Expired uint64
}

// How full a table is when it is made anew, and then.
const fullest, emptiest = 0.82, 0.72

const (
	leastShards = 64
	mostShards  = 4096
	rowBytes    = 16
	minRows     = 8
	// An endpoint's provisional blocks are forgotten in lots of a 64th of its capacity.
	lotsInSlot = 64
	// span is how many generations ahead a deadline can lie.
	span      = 4096
	lotBytes  = 48 + 8      // with its word and its place in a queue
	setBytes  = 48 + 8 + 24 // with its place in sets and in byHash
	slotBytes = 64
	partBytes = 16
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
	older, newer uint32 // in the slot
	prev, next   uint32 // with the same deadline
	part         uint16 // of the slot's engine that confirmed it
	sure         bool   // confirmed
	doubted      bool   // was confirmed
	until        int64
}

// holdings is what one slot holds. Lot 0 is none.
type holdings struct {
	said           []said // by each part of its engine
	oldest, newest uint32 // what is provisional, by time of use
	held           int    // all, sure and doubted among them
	sure, doubted  int
}

// said is what a part of an engine, a rank's or a group's own cache, confirmed.
type said struct {
	lot   uint32
	tiers [tiers]int32 // blocks by their fastest
}

const sureBit = 1 << 32

// NewIndex returns an empty index that may grow without bound.
func NewIndex() *Index { return NewBoundedIndex(math.MaxInt64) }

// NewBoundedIndex returns an empty index that holds at most that many bytes, a 16th of which is kept for the books of
// slots and deadlines. At the bound a CLOCK evicts what was not written for longest. While a table is made anew, at most a
// 64th of all is there twice.
func NewBoundedIndex(bytes int64) *Index {
	n := leastShards // so many that none is large, for it is made anew in one breath
	for bytes < math.MaxInt64 && n < mostShards && int64(n)*rowBytes*4096 < bytes {
		n *= 2
	}
	x := &Index{budget: bytes, room: bytes - bytes/16, lots: make([]lot, 1), shards: make([]shard, n), mask: uint64(n) - 1}
	x.epoch.Store(1)
	x.words.grow(1)
	x.bytes = int64(cap(x.lots))*lotBytes + int64(n)*40
	if bytes < math.MaxInt64 {
		x.wheel = make([]uint32, span)
		x.bytes += span * 4
	}
	return x
}

// Scratch is memory that lookups reuse between calls.
type Scratch struct {
	at      []int32 // slot → position in slots plus one
	race    []racer // by position
	round   uint32  // of whose racers are in the race
	alive   []int32 // positions that are in the race, and some that no longer are
	left    int     // are in the race
	touched []int32
	found   []Evidence
}

// racer is a candidate as a lookup goes along a prompt.
type racer struct {
	from  int32         // the block since which it is of its kind
	entry uint32        // the last holder that was counted
	round uint32        // the scratch's while it is in the race
	kind  uint8         // none at first
	count [kinds]uint16 // its holders in the block at hand
}

const (
	provisional = tiers
	kinds       = 4
	none        = kinds
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
	n := len(slots)
	if len(s.race) < n {
		s.race, s.alive, s.found = make([]racer, n), make([]int32, 0, n), make([]Evidence, n)
		s.touched = make([]int32, 0, 4*n)
	}
	for i, v := range slots {
		s.at[v] = int32(i + 1)
	}
}

// compact takes those out of alive that are no longer in the race.
func (s *Scratch) compact() {
	if len(s.alive) == s.left {
		return
	}
	kept := s.alive[:0]
	for _, p := range s.alive {
		if s.race[p].round == s.round {
			kept = append(kept, p)
		}
	}
	s.alive = kept
}

// racer is the candidate that has a holder, and how it holds; nil if no candidate has.
func (s *Scratch) racer(e uint32, words []*[pageLen]atomic.Uint64) (r *racer, p int32, kind uint32) {
	n := e & lotMask
	w := words[n/pageLen][n%pageLen].Load()
	slot := uint32(w) - 1 // of no slot when the lot has ended
	if uint64(slot) >= uint64(len(s.at)) {
		return nil, 0, 0
	}
	if p = s.at[slot] - 1; p < 0 {
		return nil, 0, 0
	}
	if r = &s.race[p]; w&sureBit == 0 {
		return r, p, provisional
	}
	return r, p, uint32(bits.TrailingZeros32(e>>lotBits)) & 3
}

// start lets in who holds a prompt's first block.
func (s *Scratch) start(here []uint32, words []*[pageLen]atomic.Uint64) {
	if s.round++; s.round == 0 {
		clear(s.race)
		s.round = 1
	}
	s.alive = s.alive[:0]
	for _, e := range here {
		r, p, k := s.racer(e, words)
		if r == nil {
			continue
		}
		if r.round != s.round {
			*r = racer{round: s.round, kind: none}
			s.alive = append(s.alive, p)
		}
		r.count[k]++
		r.entry = e
	}
	s.left = len(s.alive)
}

// recount counts all holders of a block.
func (s *Scratch) recount(here []uint32, words []*[pageLen]atomic.Uint64) {
	s.compact()
	for _, p := range s.alive {
		s.race[p].count = [kinds]uint16{}
	}
	for _, e := range here {
		if r, _, k := s.racer(e, words); r != nil && r.round == s.round {
			r.count[k]++
			r.entry = e
		}
	}
}

// step counts on from one block's holders to another's. Both are sorted.
func (s *Scratch) step(before, here []uint32, words []*[pageLen]atomic.Uint64) {
	s.touched = s.touched[:0]
	i, j := 0, 0
	const some = 16 // are compared at once
	for {
		for i+some <= len(before) && j+some <= len(here) && *(*[some]uint32)(before[i:]) == *(*[some]uint32)(here[j:]) {
			i += some
			j += some
		}
		for i < len(before) && j < len(here) && before[i] == here[j] {
			i++
			j++
		}
		if i < len(before) && (j == len(here) || before[i] < here[j]) {
			if r, p, k := s.racer(before[i], words); r != nil && r.round == s.round {
				r.count[k]--
				s.touched = append(s.touched, p)
			}
			i++
		} else if j < len(here) {
			if r, p, k := s.racer(here[j], words); r != nil && r.round == s.round {
				r.count[k]++
				r.entry = here[j]
				s.touched = append(s.touched, p)
			}
			j++
		} else {
			return
		}
	}
}

// still tells whether each one in the race holds the next block as it held the last.
func (s *Scratch) still(here []uint32) bool {
	s.compact()
	for _, p := range s.alive {
		if _, ok := slices.BinarySearch(here, s.race[p].entry); !ok {
			return false
		}
	}
	return true
}

// settle writes down how a candidate went until block i if it goes on in another way.
func (s *Scratch) settle(p int32, i int, found []Evidence) {
	r := &s.race[p]
	k := uint8(0)
	for k < kinds && r.count[k] == 0 {
		k++
	}
	if k == r.kind || r.round != s.round {
		return
	}
	s.credit(p, i, found)
	r.kind, r.from = k, int32(i)
	if k == none {
		r.round = 0
		s.left--
	}
}

func (s *Scratch) credit(p int32, i int, found []Evidence) {
	switch r := &s.race[p]; {
	case r.kind < tiers:
		found[p].Tiers[r.kind] += int32(i) - r.from
	case r.kind == provisional:
		found[p].Provisional += int32(i) - r.from
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

// InTier counts the blocks from the start of one prompt that the engine in a slot said it holds in that tier, whatever faster one has them, too.
// It allocates nothing and takes no lock.
func (x *Index) InTier(keys []uint64, slot uint32, tier Tier) (n int) {
	var pair [2]uint32
	for ; n < len(keys); n++ {
		r, _ := x.find(norm(keys[n]))
		held := false
		for try := 0; r != nil && try < 8; try++ {
			w := r.word.Load() &^ recent
			here, ok := x.holders(w, &pair)
			held = ok && slices.ContainsFunc(here, func(e uint32) bool {
				return e>>lotBits&(1<<tier) != 0 && x.words.at(e&lotMask).Load() == uint64(slot)+1|sureBit
			})
			if ok && r.word.Load()&^recent == w {
				break
			}
		}
		if !held {
			break
		}
	}
	return n
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

// few is how many candidates are looked for one by one in a set that is much larger.
const few = 4

// lookOne walks one prompt. Blocks in a row mostly have the same holders, hence the same word; where it changes, the
// holders before and after are compared and only those that differ are looked at.
func (x *Index) lookOne(keys []uint64, found []Evidence, s *Scratch) {
	var words, leaps, ends [batch]uint64
	var pairs [2][2]uint32
	fetched, leapt, turn, unit := -1, -1, 0, batch
	if len(keys) > long {
		unit = stride
	}
	var last uint64
	var here []uint32
	counted, epoch := false, uint64(0) // whether the counts are those of here, and when the lots' words were read
	s.alive = s.alive[:0]
	i := 0
walk:
	for ; i < len(keys); i++ {
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
		if i/unit != fetched {
			fetched = i / unit
			x.fetch(keys[fetched*unit:min((fetched+1)*unit, len(keys))], &words)
		}
		w := words[i%unit]
		if w == last && w != 0 {
			continue
		}
		before := here
		turn ^= 1
		all, same := true, false
		for try := 0; ; try++ {
			if w == 0 || try == 8 { // 8: a block that changes faster than it is read
				break walk
			}
			now, ok := x.epoch.Load(), true
			if here, ok = x.holders(w, &pairs[turn]); ok {
				dir := *x.words.dir.Load()
				all, same = true, false
				switch known := now == epoch; {
				case i == 0:
					s.start(here, dir)
					counted = true
				case known && s.left <= few && len(here) > 4*few && !x.parted.Load() && s.still(here):
					same, counted = true, false
				case known && counted:
					if s.step(before, here, dir); x.epoch.Load() == now {
						all = false
						break
					}
					fallthrough
				default:
					now = x.epoch.Load()
					s.recount(here, dir)
					counted = true
				}
			}
			r, _ := x.find(norm(keys[i]))
			if r == nil {
				break walk
			}
			v := r.word.Load() &^ recent
			if ok && v == w {
				epoch = now
				break
			}
			w, counted = v, false // it changed meanwhile
		}
		last = w
		switch {
		case same:
		case all:
			for _, p := range s.alive {
				s.settle(p, i, found)
			}
		default:
			for _, p := range s.touched {
				s.settle(p, i, found)
			}
		}
		if s.left == 0 {
			return
		}
	}
	for _, p := range s.alive {
		if s.race[p].round == s.round {
			s.credit(p, i, found)
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
		t := x.shards[m&x.mask].table.Load()
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

// holders lists a word's holders; false when its set is no longer.
func (x *Index) holders(w uint64, pair *[2]uint32) ([]uint32, bool) {
	if w&isSet != 0 {
		h := x.sets.at(uint32(w & halfMask)).Load()
		if h == nil || uint64(h.gen) != w>>half&halfMask {
			return nil, false
		}
		return h.holders, true
	}
	pair[0], pair[1] = uint32(w&halfMask), uint32(w>>half&halfMask)
	if pair[1] == 0 {
		return pair[:1], true
	}
	return pair[:], true
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
	s := &x.shards[m&x.mask]
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
// expected again lives until the newest deadline. While others write it is left to them to write this down, within the next 512 blocks of theirs.
func (x *Index) Expect(keys []uint64, slot uint32, capacity int, until int64) {
	if len(keys) > capacity {
		keys = keys[:max(0, capacity)]
	}
	x.hope(hope{slot: slot, capacity: capacity, until: until}, keys)
}

// Unexpect takes back what was expected of the endpoint in that slot until that deadline or an earlier one, and not
// confirmed since. Another request of the same generation that expects the same blocks loses its promise, too. It is left to others as
// Expect is.
func (x *Index) Unexpect(keys []uint64, slot uint32, until int64) {
	x.hope(hope{slot: slot, until: until, ends: true}, keys)
}

// expect writes down what is expected, under the lock.
func (x *Index) expect(h hope, keys []uint64) {
	x.advance()
	slot, until := h.slot, h.until
	if h.ends {
		for i := 0; i < len(keys) && int(slot) < len(x.slots); i++ {
			x.write(keys[i], change{do: unexpect, slot: slot, until: until})
		}
		return
	}
	if until != Forever {
		if until = min(until, x.now.Load()+span-1); until <= x.now.Load() {
			return
		}
	}
	size := int32(min(max(1, h.capacity/lotsInSlot), math.MaxInt32))
	x.slot(slot)
	// From the end to the start: the start of a prompt becomes the most recently used, so
	// that what is forgotten first is a chain's tail and no chain loses its head.
	for i := len(keys) - 1; i >= 0; i-- {
		lot := x.open(slot, until, size)
		if lot == 0 {
			x.stats.Refused++
			break
		}
		x.write(keys[i], change{do: expect, slot: slot, lot: lot})
		for at := &x.slots[slot]; at.held-at.sure > h.capacity && at.oldest != 0; {
			x.end(at.oldest)
		}
	}
	x.tidyLot(slot)
}

// breathe lets other writers in now and then.
func (x *Index) breathe(i int) {
	if i%breath == breath-1 {
		x.unlock()
		x.lock()
	}
}

// Doubt makes all that is confirmed of the endpoint in that slot provisional until a deadline, because events were
// missed. It does not look at the blocks.
func (x *Index) Doubt(slot uint32, until int64) {
	x.lock()
	defer x.unlock()
	x.advance()
	if int(slot) >= len(x.slots) {
		return
	}
	h := &x.slots[slot]
	for i := range h.said {
		n := h.said[i].lot
		if n == 0 {
			continue
		}
		h.said[i] = said{}
		l := &x.lots[n]
		l.sure, l.doubted = false, true
		h.sure -= int(l.count)
		h.doubted += int(l.count)
		x.epoch.Add(1)
		x.words.at(n).Store(uint64(slot) + 1)
		x.line(n, until)
		if until <= x.now.Load() {
			x.end(n)
		}
	}
}

// Clear forgets all that the endpoint in that slot holds. It does not look at the blocks.
func (x *Index) Clear(slot uint32) {
	x.lock()
	defer x.unlock()
	x.clear(slot)
}

func (x *Index) clear(slot uint32) {
	if int(slot) >= len(x.slots) {
		return
	}
	h := &x.slots[slot]
	for i := range h.said {
		x.endPart(slot, uint16(i))
	}
	for h.oldest != 0 {
		x.end(h.oldest)
	}
}

// endPart forgets what one part of a slot's engine confirmed, also what was doubted since.
func (x *Index) endPart(slot uint32, part uint16) {
	if int(slot) >= len(x.slots) {
		return
	}
	h := &x.slots[slot]
	if int(part) < len(h.said) && h.said[part].lot != 0 {
		x.end(h.said[part].lot)
	}
	for n := h.oldest; n != 0; {
		l := x.lots[n]
		if l.doubted && l.part == part {
			x.end(n)
		}
		n = l.newer
	}
}

// Advance tells the time, in generations that the caller defines; what was expected until then or earlier is
// forgotten. Time does not go back. It waits for nobody: where others write, it is left to the next that expects something. When the
// generation is not new it costs next to nothing.
func (x *Index) Advance(now int64) {
	for due := x.due.Load(); now > due && !x.due.CompareAndSwap(due, now); {
		due = x.due.Load()
	}
	if x.due.Load() > x.now.Load() && x.mu.TryLock() {
		x.catchUp()
		x.advance()
		x.unlock()
	}
}

// advance makes it the time that was told last, under the lock.
func (x *Index) advance() {
	before, now := x.now.Load(), x.due.Load()
	if now <= before {
		return
	}
	x.now.Store(now)
	if x.wheel == nil {
		return
	}
	for t := max(before+1, now-span+1); t <= now; t++ {
		for n := x.wheel[t%span]; n != 0; n = x.wheel[t%span] {
			x.stats.Expired += uint64(x.lots[n].count)
			x.end(n)
		}
	}
}

// Held counts the blocks that the endpoint in that slot holds, once for each part of its engine that does.
func (x *Index) Held(slot uint32) int {
	h := x.Holdings(slot)
	return h.Confirmed() + h.Provisional
}

// Holdings tell what an endpoint holds, in blocks, once for each part of its engine (a data-parallel rank, a group of
// attention layers) that does.
type Holdings struct {
	// Tiers counts the blocks that the engine said it holds, each in the fastest tier that has it.
	Tiers [tiers]int
	// Provisional counts the others, Doubted those among them that were confirmed before events were missed.
	Provisional, Doubted int
}

// Confirmed counts the blocks that the engine said it holds.
func (h Holdings) Confirmed() int { return h.Tiers[GPU] + h.Tiers[CPU] + h.Tiers[Disk] }

// Holdings tell what the endpoint in that slot holds. It does not look at the blocks.
func (x *Index) Holdings(slot uint32) (h Holdings) {
	x.lock()
	defer x.unlock()
	if int(slot) >= len(x.slots) {
		return h
	}
	s := &x.slots[slot]
	for i := range s.said {
		for t, n := range s.said[i].tiers {
			h.Tiers[t] += int(n)
		}
	}
	h.Provisional, h.Doubted = s.held-s.sure, s.doubted
	return h
}

// Stats tells figures. Blocks that ended with their lots may still be among them.
func (x *Index) Stats() Stats {
	x.lock()
	defer x.unlock()
	s := x.stats
	s.Blocks, s.Bytes, s.Budget = int(x.used.Load()), x.total(), x.budget
	if x.names != nil {
		s.Names, s.NameBytes = x.names.count, x.names.bytes
	}
	return s
}
