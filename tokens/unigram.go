// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unigram cuts a piece so that the sum of the tokens' scores is highest.
type unigram struct {
	ids      map[string]uint32
	scores   []float64
	nodes    []trieStep
	unk      int64
	unkScore float64
	fallback *[256]uint32
}

type unigramJSON struct {
	Vocab    []scored `json:"vocab"`
	Unk      *int     `json:"unk_id"`
	Fallback bool     `json:"byte_fallback"`
}

// scored is a token with its score: a list of two in the file.
type scored struct {
	token string
	score float64
}

// UnmarshalJSON reads ["token", score].
func (s *scored) UnmarshalJSON(b []byte) error {
	var score json.Number
	if err := json.Unmarshal(b, &[]any{&s.token, &score}); err != nil {
		return err
	}
	s.score = serdeFloat(string(score))
	return nil
}

// serdeFloat reads a number as tokenizers does, whose JSON reader takes the digits for a whole number and scales that: the
// last bit may differ from the nearest float, and with it which of two ways of equal score is taken.
func serdeFloat(s string) float64 {
	digits, exp, _ := strings.Cut(strings.ToLower(s), "e")
	digits, neg := strings.CutPrefix(digits, "-")
	whole, frac, _ := strings.Cut(digits, ".")
	e, _ := strconv.Atoi(exp)
	n, err := strconv.ParseUint(whole+frac, 10, 64)
	if e -= len(frac); err != nil || e < -308 || e > 308 {
		f, _ := strconv.ParseFloat(s, 64)
		return f
	}
	f := float64(n)
	if e < 0 {
		f /= math.Pow10(-e)
	} else {
		f *= math.Pow10(e)
	}
	if neg {
		f = -f
	}
	return f
}

// unkPenalty is how much worse than the worst token a character is that no token holds.
const unkPenalty = 10

type trieStep struct {
	edges []trieEdge
	id    int32 // or -1
}

type latticeNode struct {
	score float64
	start int32 // or -1
	id    int32
}

func newUnigram(j *unigramJSON) (*unigram, error) {
	if len(j.Vocab) == 0 {
		return nil, errors.New("model: vocab: empty")
	}
	u := &unigram{ids: make(map[string]uint32, len(j.Vocab)), unk: -1, nodes: []trieStep{{id: -1}}}
	if j.Unk != nil {
		if *j.Unk < 0 || *j.Unk >= len(j.Vocab) {
			return nil, fmt.Errorf("model: unk_id %d is not in the vocabulary", *j.Unk)
		}
		u.unk = int64(*j.Unk)
	}
	low := j.Vocab[0].score
	for i, v := range j.Vocab {
		u.ids[v.token] = uint32(i)
		u.scores = append(u.scores, v.score)
		low = min(low, v.score)
		at := int32(0)
		for k := range len(v.token) {
			next := u.step(at, v.token[k])
			if next < 0 {
				next = int32(len(u.nodes))
				u.nodes = append(u.nodes, trieStep{id: -1})
				e := u.nodes[at].edges
				n, _ := slices.BinarySearchFunc(e, v.token[k], func(e trieEdge, b byte) int { return int(e.b) - int(b) })
				u.nodes[at].edges = slices.Insert(e, n, trieEdge{v.token[k], next})
			}
			at = next
		}
		if at != 0 {
			u.nodes[at].id = int32(i)
		}
	}
	u.unkScore = low - unkPenalty
	if j.Fallback {
		u.fallback = new([256]uint32)
		for c := range 256 {
			id, ok := u.ids[fmt.Sprintf("<0x%02X>", c)]
			if !ok {
				return nil, fmt.Errorf("model: byte_fallback, but no token <0x%02X>", c)
			}
			u.fallback[c] = id
		}
	}
	return u, nil
}

func (u *unigram) id(token string) (uint32, bool) {
	id, ok := u.ids[token]
	return id, ok
}

func (u *unigram) size() int { return len(u.scores) }

func (u *unigram) step(at int32, b byte) int32 {
	edges := u.nodes[at].edges
	if len(edges) > 8 {
		if n, ok := slices.BinarySearchFunc(edges, b, func(e trieEdge, b byte) int { return int(e.b) - int(b) }); ok {
			return edges[n].to
		}
		return -1
	}
	for _, e := range edges {
		if e.b == b {
			return e.to
		}
	}
	return -1
}

func (u *unigram) encode(s *scratch, piece string) {
	best := slices.Grow(s.nodes[:0], len(piece)+1)[:len(piece)+1]
	s.nodes = best
	for i := range best {
		best[i] = latticeNode{start: -1}
	}
	for start := 0; start < len(piece); {
		here := best[start].score
		_, width := utf8.DecodeRuneInString(piece[start:])
		single := false
		at := int32(0)
		for end := start; end < len(piece); {
			if at = u.step(at, piece[end]); at < 0 {
				break
			}
			end++
			id := u.nodes[at].id
			if id < 0 {
				continue
			}
			if score := u.scores[id] + here; best[end].start < 0 || score > best[end].score {
				best[end] = latticeNode{score, int32(start), id}
			}
			single = single || end-start == width
		}
		if !single {
			end := start + width
			if score := u.unkScore + here; best[end].start < 0 || score > best[end].score {
				best[end] = latticeNode{score, int32(start), int32(u.unk)}
			}
		}
		start += width
	}
	// From the end to the start; neighbours that are unknown become one.
	from := len(s.ids)
	for end := len(piece); end > 0; {
		n := best[end]
		start := int(n.start)
		if int64(n.id) != u.unk {
			s.ids = append(s.ids, uint32(n.id))
			end = start
			continue
		}
		for start > 0 && int64(best[start].id) == u.unk {
			start = int(best[start].start)
		}
		unknown := piece[start:end]
		if id, ok := u.ids[unknown]; ok {
			s.ids = append(s.ids, id)
		} else if u.fallback != nil {
			for i := len(unknown) - 1; i >= 0; i-- {
				s.ids = append(s.ids, u.fallback[unknown[i]])
			}
		} else if u.unk >= 0 {
			s.ids = append(s.ids, uint32(u.unk))
		}
		end = start
	}
	slices.Reverse(s.ids[from:])
}
