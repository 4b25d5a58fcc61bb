// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"unicode/utf8"
)

// wordPiece takes the longest token that a word begins with, then the longest of the rest. WordLevel knows whole words only.
type wordPiece struct {
	vocab    map[string]uint32
	unk      uint32
	hasUnk   bool
	prefix   string
	maxChars int
	whole    bool
	longest  int // bytes
}

type wordPieceJSON struct {
	Vocab    map[string]uint32 `json:"vocab"`
	Unk      string            `json:"unk_token"`
	Prefix   string            `json:"continuing_subword_prefix"`
	MaxChars int               `json:"max_input_chars_per_word"`
	whole    bool
}

func newWordPiece(j *wordPieceJSON) (*wordPiece, error) {
	w := &wordPiece{vocab: j.Vocab, prefix: j.Prefix, maxChars: j.MaxChars, whole: j.whole}
	w.unk, w.hasUnk = j.Vocab[j.Unk]
	if !w.hasUnk && !j.whole {
		return nil, fmt.Errorf("model: unk_token %q is not in the vocabulary", j.Unk)
	}
	for token := range j.Vocab {
		w.longest = max(w.longest, len(token))
	}
	return w, nil
}

func (w *wordPiece) id(token string) (uint32, bool) {
	id, ok := w.vocab[token]
	return id, ok
}

func (w *wordPiece) size() int { return len(w.vocab) }

func (w *wordPiece) encode(s *scratch, piece string) {
	if w.whole {
		if id, ok := w.vocab[piece]; ok {
			s.ids = append(s.ids, id)
		} else if w.hasUnk {
			s.ids = append(s.ids, w.unk)
		}
		return
	}
	if utf8.RuneCountInString(piece) > w.maxChars {
		s.ids = append(s.ids, w.unk)
		return
	}
	from := len(s.ids)
	for start := 0; start < len(piece); {
		lead := ""
		if start > 0 {
			lead = w.prefix
		}
		end := min(len(piece), start+w.longest)
		for end < len(piece) && end > start && !utf8.RuneStart(piece[end]) {
			end--
		}
		found := false
		for end > start {
			s.bytes = append(append(s.bytes[:0], lead...), piece[start:end]...)
			if id, ok := w.vocab[string(s.bytes)]; ok {
				s.ids = append(s.ids, id)
				found = true
				break
			}
			_, n := utf8.DecodeLastRuneInString(piece[:end])
			end -= n
		}
		if !found {
			s.ids = append(s.ids[:from], w.unk)
			return
		}
		start = end
	}
}
