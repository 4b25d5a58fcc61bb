// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"container/heap"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// A model turns pieces into tokens.
type model interface {
	encode(s *scratch, piece string)
	// id of a token of the vocabulary, without what was added to it.
	id(token string) (uint32, bool)
	size() int
}

// bpe is byte-pair encoding: the pair with the lowest rank is merged, the leftmost of equal ones first, until none is left.
type bpe struct {
	vocab        map[string]uint32 // as written
	words        map[string]uint32 // in bytes if raw, else as written
	raw          bool              // pieces are bytes, not characters
	bytes        [256]int64        // raw: the token of each byte, or -1
	merges       mergeTable
	unk          int64 // or -1
	prefix       string
	suffix       string
	fuse         bool
	fallback     *[256]uint32 // the tokens <0x00> … <0xFF>, nil if a byte has none
	someFallback map[byte]uint32
	ignoreMerges bool
	// meta is the character before which a piece may be cut without changing its tokens, for no merge reaches over it: ▁.
	meta string
	memo memo
}

type bpeJSON struct {
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       mergesJSON        `json:"merges"`
	Dropout      *float64          `json:"dropout"`
	Unk          *string           `json:"unk_token"`
	Prefix       *string           `json:"continuing_subword_prefix"`
	Suffix       *string           `json:"end_of_word_suffix"`
	Fuse         bool              `json:"fuse_unk"`
	Fallback     bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
}

func newBPE(j *bpeJSON, raw bool) (*bpe, error) {
	if j.Dropout != nil && *j.Dropout != 0 {
		return nil, fmt.Errorf("model: dropout %v makes tokens random", *j.Dropout)
	}
	b := &bpe{vocab: j.Vocab, words: j.Vocab, unk: -1, fuse: j.Fuse, ignoreMerges: j.IgnoreMerges}
	if j.Prefix != nil {
		b.prefix = *j.Prefix
	}
	if j.Suffix != nil {
		b.suffix = *j.Suffix
	}
	if j.Unk != nil {
		id, ok := j.Vocab[*j.Unk]
		if ok {
			b.unk = int64(id)
		} else {
			return nil, fmt.Errorf("model: unk_token %q is not in the vocabulary", *j.Unk)
		}
	}
	if j.Fallback {
		b.someFallback = map[byte]uint32{}
		for c := range 256 {
			if id, ok := j.Vocab[fmt.Sprintf("<0x%02X>", c)]; ok {
				b.someFallback[byte(c)] = id
			}
		}
		if len(b.someFallback) == 256 {
			b.fallback = new([256]uint32)
			for c, id := range b.someFallback {
				b.fallback[c] = id
			}
		}
	}
	b.raw = raw && !j.Fallback && b.prefix == "" && b.suffix == ""
	if b.raw {
		b.words = make(map[string]uint32, len(j.Vocab))
		for i := range b.bytes {
			b.bytes[i] = -1
		}
		buf := make([]byte, 0, 64)
	vocab:
		for token, id := range j.Vocab {
			buf = buf[:0]
			for _, r := range token {
				c, ok := charBytes[r]
				if !ok {
					continue vocab // no piece is ever written so
				}
				buf = append(buf, c)
			}
			b.words[string(buf)] = id
			if len(buf) == 1 {
				b.bytes[buf[0]] = int64(id)
			}
		}
	}
	b.merges.init(len(j.Merges))
	reaches := false
	var joined []byte
	for rank, m := range j.Merges {
		left, ok := j.Vocab[m[0]]
		right, ok2 := j.Vocab[m[1]]
		if len(m[1]) < len(b.prefix) {
			return nil, fmt.Errorf("model: merge %d: %q lacks the prefix", rank, m[1])
		}
		joined = append(append(joined[:0], m[0]...), m[1][len(b.prefix):]...)
		to, ok3 := j.Vocab[string(joined)]
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("model: merge %d, %q and %q: not all of it is in the vocabulary", rank, m[0], m[1])
		}
		b.merges.set(left, right, uint32(rank), to)
		reaches = reaches || strings.Contains(strings.TrimLeft(string(joined), metaChar), metaChar)
	}
	_, hasMeta := b.vocab[metaChar]
	if !b.raw && !reaches && hasMeta && b.prefix == "" && b.suffix == "" && !b.ignoreMerges {
		b.meta = metaChar
	}
	return b, nil
}

const metaChar = "▁"

func (b *bpe) id(token string) (uint32, bool) {
	id, ok := b.vocab[token]
	return id, ok
}

func (b *bpe) size() int { return len(b.vocab) }

// encode appends the tokens of a piece.
func (b *bpe) encode(s *scratch, piece string) {
	if b.meta == "" {
		b.word(s, piece)
		return
	}
	for start := 0; start < len(piece); {
		end := start
		for strings.HasPrefix(piece[end:], b.meta) {
			end += len(b.meta)
		}
		if n := strings.Index(piece[end:], b.meta); n >= 0 {
			end += n
		} else {
			end = len(piece)
		}
		b.word(s, piece[start:end])
		start = end
	}
}

// word appends the tokens of what no merge reaches out of.
func (b *bpe) word(s *scratch, w string) {
	if b.ignoreMerges {
		if id, ok := b.words[w]; ok {
			s.ids = append(s.ids, id)
			return
		}
	}
	if len(w) > maxMemoWord {
		b.merge(s, w)
		return
	}
	hash := maphash.String(seed, w)
	if known := b.memo.get(hash, w); known != nil {
		s.ids = append(s.ids, known.ids...)
		return
	}
	from := len(s.ids)
	b.merge(s, w)
	b.memo.put(hash, w, s.ids[from:])
}

type symbol struct {
	id         uint32
	prev, next int32
}

func (b *bpe) merge(s *scratch, w string) {
	sy := s.symbols[:0]
	if b.raw {
		unk := int64(-1)
		for i := range len(w) {
			if id := b.bytes[w[i]]; id >= 0 {
				if unk >= 0 {
					sy = append(sy, symbol{id: uint32(unk)})
					unk = -1
				}
				sy = append(sy, symbol{id: uint32(id)})
			} else if b.unk >= 0 {
				if unk >= 0 && !b.fuse {
					sy = append(sy, symbol{id: uint32(unk)})
				}
				unk = b.unk
			}
		}
		if unk >= 0 {
			sy = append(sy, symbol{id: uint32(unk)})
		}
	} else {
		sy = b.characters(s, sy, w)
	}
	s.symbols = sy
	if len(sy) < 2 {
		for _, x := range sy {
			s.ids = append(s.ids, x.id)
		}
		return
	}
	if len(sy) <= 48 {
		b.mergeShort(s, sy)
	} else {
		b.mergeLong(s, sy)
	}
}

// characters appends the first symbols of w: a token for each character, or for its bytes, or the unknown one. An unknown
// one that waits is overtaken by bytes, as it is in the original.
func (b *bpe) characters(s *scratch, sy []symbol, w string) []symbol {
	unk := int64(-1)
	for i := 0; i < len(w); {
		_, n := utf8.DecodeRuneInString(w[i:])
		c := w[i : i+n]
		if b.prefix != "" && i > 0 {
			c = b.prefix + c
		}
		i += n
		if b.suffix != "" && i == len(w) {
			c += b.suffix
		}
		if id, ok := b.vocab[c]; ok {
			if unk >= 0 {
				sy = append(sy, symbol{id: uint32(unk)})
				unk = -1
			}
			sy = append(sy, symbol{id: id})
			continue
		}
		if b.fallback != nil {
			for j := range len(c) {
				sy = append(sy, symbol{id: b.fallback[c[j]]})
			}
			continue
		}
		if b.someFallback != nil {
			from := len(sy)
			for j := range len(c) {
				id, ok := b.someFallback[c[j]]
				if !ok {
					break
				}
				sy = append(sy, symbol{id: id})
			}
			if len(sy)-from == len(c) {
				continue
			}
			sy = sy[:from]
		}
		if b.unk >= 0 {
			if unk >= 0 && !b.fuse {
				sy = append(sy, symbol{id: uint32(unk)})
			}
			unk = b.unk
		}
	}
	if unk >= 0 {
		sy = append(sy, symbol{id: uint32(unk)})
	}
	return sy
}

// mergeShort looks for the best pair anew after each merge: the ranks lie beside the symbols.
func (b *bpe) mergeShort(s *scratch, sy []symbol) {
	var ranks [48]uint32
	var to [48]uint32
	n := len(sy)
	for i := range n - 1 {
		ranks[i], to[i] = b.merges.get(sy[i].id, sy[i+1].id)
	}
	for {
		best, at := noRank, -1
		for i := range n - 1 {
			if ranks[i] < best {
				best, at = ranks[i], i
			}
		}
		if at < 0 {
			break
		}
		sy[at].id = to[at]
		copy(sy[at+1:], sy[at+2:n])
		copy(ranks[at+1:], ranks[at+2:n])
		copy(to[at+1:], to[at+2:n])
		n--
		if at+1 < n {
			ranks[at], to[at] = b.merges.get(sy[at].id, sy[at+1].id)
		} else {
			ranks[at] = noRank
		}
		if at > 0 {
			ranks[at-1], to[at-1] = b.merges.get(sy[at-1].id, sy[at].id)
		}
	}
	for _, x := range sy[:n] {
		s.ids = append(s.ids, x.id)
	}
}

type merge struct {
	rank, to uint32
	at       int32
}

type mergeHeap []merge

func (h mergeHeap) Len() int { return len(h) }
func (h mergeHeap) Less(i, j int) bool {
	return h[i].rank < h[j].rank || h[i].rank == h[j].rank && h[i].at < h[j].at
}
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *mergeHeap) Push(x any)   { *h = append(*h, x.(merge)) }
func (h *mergeHeap) Pop() any     { panic("not used") }

func (h *mergeHeap) push(m merge) {
	*h = append(*h, m)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.Less(i, up) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (h *mergeHeap) pop() merge {
	q := *h
	top := q[0]
	n := len(q) - 1
	q[0] = q[n]
	q = q[:n]
	*h = q
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && q.Less(c+1, c) {
			c++
		}
		if !q.Less(c, i) {
			break
		}
		q[i], q[c] = q[c], q[i]
		i = c
	}
	return top
}

const gone = int32(-2)

// mergeLong keeps the pairs in a heap. A pair that is not there any more is passed over when it comes up.
func (b *bpe) mergeLong(s *scratch, sy []symbol) {
	h := s.heap[:0]
	for i := range sy {
		sy[i].prev, sy[i].next = int32(i)-1, int32(i)+1
		if i+1 < len(sy) {
			if rank, to := b.merges.get(sy[i].id, sy[i+1].id); rank != noRank {
				h = append(h, merge{rank, to, int32(i)})
			}
		}
	}
	sy[len(sy)-1].next = -1
	heap.Init(&h)
	for len(h) > 0 {
		top := h.pop()
		left := &sy[top.at]
		if left.prev == gone || left.next < 0 {
			continue
		}
		right := &sy[left.next]
		if rank, to := b.merges.get(left.id, right.id); rank == noRank || to != top.to {
			continue
		}
		left.id = top.to
		left.next = right.next
		right.prev = gone
		if left.next >= 0 {
			sy[left.next].prev = top.at
			if rank, to := b.merges.get(left.id, sy[left.next].id); rank != noRank {
				h.push(merge{rank, to, top.at})
			}
		}
		if left.prev >= 0 {
			if rank, to := b.merges.get(sy[left.prev].id, left.id); rank != noRank {
				h.push(merge{rank, to, left.prev})
			}
		}
	}
	s.heap = h
	for i := int32(0); i >= 0; i = sy[i].next {
		s.ids = append(s.ids, sy[i].id)
	}
}

// mergeTable finds the merge of a pair: open addressing, half full at most.
type mergeTable struct {
	slots []mergeSlot
	mask  uint64
}

type mergeSlot struct {
	left, right uint32
	rank, to    uint32
}

const noRank = ^uint32(0)

func (t *mergeTable) init(n int) {
	size := 16
	for size < 2*n {
		size *= 2
	}
	t.slots = make([]mergeSlot, size)
	for i := range t.slots {
		t.slots[i].rank = noRank
	}
	t.mask = uint64(size - 1)
}

func (t *mergeTable) at(left, right uint32) *mergeSlot {
	h := (uint64(left)<<32 | uint64(right)) * 0x9e3779b97f4a7c15
	for i := h >> 20; ; i++ {
		s := &t.slots[i&t.mask]
		if s.rank == noRank || s.left == left && s.right == right {
			return s
		}
	}
}

// set keeps a pair's merge; the last of equal pairs stays, as in the original.
func (t *mergeTable) set(left, right, rank, to uint32) {
	*t.at(left, right) = mergeSlot{left, right, rank, to}
}

func (t *mergeTable) get(left, right uint32) (rank, to uint32) {
	s := t.at(left, right)
	return s.rank, s.to
}

var seed = maphash.MakeSeed()

// memo remembers the tokens of words: a slot per hash, where the newest stays. So it is bounded, and read without a lock.
type memo struct {
	slots [memoSlots]atomic.Pointer[known]
}

type known struct {
	word string
	ids  []uint32
}

const (
	memoSlots   = 1 << 15
	maxMemoWord = 64
)

func (m *memo) get(hash uint64, w string) *known {
	if k := m.slots[hash%memoSlots].Load(); k != nil && k.word == w {
		return k
	}
	return nil
}

func (m *memo) put(hash uint64, w string, ids []uint32) {
	k := &known{word: strings.Clone(w), ids: append([]uint32(nil), ids...)}
	m.slots[hash%memoSlots].Store(k)
}
