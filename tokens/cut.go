// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A cutter is one pre-tokenizer: it cuts a piece into pieces and hands each on. front tells that the piece begins where the
// whole text began.
type cutter func(m *matcher, piece string, front bool, next func(piece string, front bool))

// A behavior is what becomes of the text that a pattern matched.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func readBehavior(raw json.RawMessage, or behavior) (behavior, error) {
	if none(raw) {
		return or, nil
	}
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return 0, err
	}
	switch strings.ToLower(name) {
	case "isolated":
		return isolated, nil
	case "removed":
		return removed, nil
	case "mergedwithprevious":
		return mergedWithPrevious, nil
	case "mergedwithnext":
		return mergedWithNext, nil
	case "contiguous":
		return contiguous, nil
	}
	return 0, fmt.Errorf("behavior %q is not known here", name)
}

type span struct {
	start, end int
	match      bool
}

// apply hands on what becomes of spans that cover s.
func (b behavior) apply(s string, spans []span, front bool, next func(string, bool)) {
	var out []span
	switch b {
	case isolated:
		out = spans
	case removed:
		for _, sp := range spans {
			if !sp.match {
				out = append(out, sp)
			}
		}
	case mergedWithPrevious:
		prev := false
		for _, sp := range spans {
			if sp.match && !prev && len(out) > 0 {
				out[len(out)-1].end = sp.end
			} else {
				out = append(out, sp)
			}
			prev = sp.match
		}
	case mergedWithNext:
		prev := false
		for i := len(spans) - 1; i >= 0; i-- {
			sp := spans[i]
			if sp.match && !prev && len(out) > 0 {
				out[len(out)-1].start = sp.start
			} else {
				out = append(out, sp)
			}
			prev = sp.match
		}
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
	case contiguous:
		prev := false
		for _, sp := range spans {
			if sp.match == prev && len(out) > 0 {
				out[len(out)-1].end = sp.end
			} else {
				out = append(out, sp)
			}
			prev = sp.match
		}
	}
	for _, sp := range out {
		if sp.end > sp.start {
			next(s[sp.start:sp.end], front && sp.start == 0)
		}
	}
}

// cutBy cuts by a test of single characters: each that passes is a match.
func cutBy(in func(rune) bool, b behavior) cutter {
	return func(_ *matcher, s string, front bool, next func(string, bool)) {
		var spans []span
		last := 0
		for i, r := range s {
			if in(r) {
				if last < i {
					spans = append(spans, span{last, i, false})
				}
				last = i + utf8.RuneLen(r)
				spans = append(spans, span{i, last, true})
			}
		}
		if last < len(s) {
			spans = append(spans, span{last, len(s), false})
		}
		b.apply(s, spans, front, next)
	}
}

// cutPattern cuts by a pattern.
func cutPattern(p *pattern, b behavior, invert bool) cutter {
	if b == isolated {
		return func(m *matcher, s string, front bool, next func(string, bool)) {
			for pos, from := 0, 0; ; {
				var end int
				start := pos
				if end = p.match(m, s, pos); end < 0 {
					start, end = p.find(m, s, pos)
				}
				if start < 0 {
					if from < len(s) {
						next(s[from:], front && from == 0)
					}
					return
				}
				if from < start {
					next(s[from:start], front && from == 0)
					from = start
				}
				if end > start {
					next(s[start:end], front && start == 0)
					from = end
				}
				pos = max(end, start)
				if end == start { // an empty match cuts, and the search goes on behind the next character
					_, w := utf8.DecodeRuneInString(s[start:])
					pos += max(w, 1)
				}
				if pos >= len(s) {
					if from < len(s) {
						next(s[from:], front && from == 0)
					}
					return
				}
			}
		}
	}
	return func(m *matcher, s string, front bool, next func(string, bool)) {
		var spans []span
		last, pos := 0, 0
		for pos < len(s) {
			start, end := p.find(m, s, pos)
			if start < 0 {
				break
			}
			if last < start {
				spans = append(spans, span{last, start, invert})
			}
			spans = append(spans, span{start, end, !invert})
			last, pos = end, end
			if end == start {
				_, w := utf8.DecodeRuneInString(s[start:])
				pos += max(w, 1)
			}
		}
		if last < len(s) {
			spans = append(spans, span{last, len(s), invert})
		}
		b.apply(s, spans, front, next)
	}
}

// gpt2Pattern is what ByteLevel cuts by.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// pretokenizer is the chain of cutters, and whether pieces are bytes in the end: when ByteLevel comes last and once, its
// characters are left out and the vocabulary is one of bytes.
type pretokenizer struct {
	cutters []cutter
	bytes   bool
}

func readPretokenizer(raw json.RawMessage) (pretokenizer, error) {
	var p pretokenizer
	parts, err := flatten(nil, raw, 0)
	if err != nil {
		return p, err
	}
	for i, part := range parts {
		cs, err := readCutters(part, i == len(parts)-1)
		if err != nil {
			return p, fmt.Errorf("pre_tokenizer: %s: %w", part.Type, err)
		}
		p.cutters = append(p.cutters, cs...)
		p.bytes = part.Type == "ByteLevel"
	}
	return p, nil
}

func flatten(list []*part, raw json.RawMessage, depth int) ([]*part, error) {
	if none(raw) {
		return list, nil
	}
	if depth > 10 || len(list) > maxParts {
		return nil, errors.New("pre_tokenizer: too many")
	}
	p, err := readPart(raw, "pre_tokenizer")
	if err != nil {
		return nil, err
	}
	if p.Type != "Sequence" {
		return append(list, p), nil
	}
	for _, sub := range p.Pretokenizers {
		if list, err = flatten(list, sub, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readCutters returns what a pre-tokenizer does, in one step or several.
func readCutters(p *part, last bool) ([]cutter, error) {
	one := func(c cutter) ([]cutter, error) { return []cutter{c}, nil }
	switch p.Type {
	case "ByteLevel":
		var list []cutter
		if truth(p.AddPrefixSpace, true) {
			list = append(list, func(_ *matcher, s string, front bool, next func(string, bool)) {
				if !strings.HasPrefix(s, " ") {
					s = " " + s
				}
				next(s, front)
			})
		}
		if truth(p.UseRegex, true) {
			pat, err := compile(gpt2Pattern)
			if err != nil {
				return nil, err
			}
			list = append(list, cutPattern(pat, isolated, false))
		}
		if !last {
			list = append(list, func(_ *matcher, s string, front bool, next func(string, bool)) {
				next(string(appendByteChars(nil, s)), front)
			})
		}
		return list, nil
	case "Split":
		b, err := readBehavior(p.Behavior, isolated)
		if err != nil {
			return nil, err
		}
		pat, err := p.Pattern.compile()
		if err != nil {
			return nil, err
		}
		if p.Invert && b == isolated { // inverted or not, each part is by itself
			return one(cutPattern(pat, isolated, false))
		}
		return one(cutPattern(pat, b, p.Invert))
	case "Digits":
		if p.Individual {
			return one(cutBy(isNumeric, isolated))
		}
		return one(cutBy(isNumeric, contiguous))
	case "Punctuation":
		b, err := readBehavior(p.Behavior, isolated)
		if err != nil {
			return nil, err
		}
		return one(cutBy(isPunct, b))
	case "WhitespaceSplit":
		return one(cutBy(isSpace, removed))
	case "Whitespace":
		return one(func(_ *matcher, s string, front bool, next func(string, bool)) {
			kind := func(r rune) int {
				switch {
				case isRustWord(r):
					return 1
				case isSpace(r):
					return 0
				}
				return 2
			}
			start, k := 0, 0
			for i, r := range s {
				if now := kind(r); i == 0 || now != k {
					if k != 0 && i > start {
						next(s[start:i], front && start == 0)
					}
					start, k = i, now
				}
			}
			if k != 0 {
				next(s[start:], front && start == 0)
			}
		})
	case "BertPreTokenizer":
		return []cutter{cutBy(isSpace, removed), cutBy(isPunct, isolated)}, nil
	case "CharDelimiterSplit":
		r, n := utf8.DecodeRuneInString(p.Delimiter)
		if n == 0 || n != len(p.Delimiter) {
			return nil, errors.New("delimiter: one character is needed")
		}
		return one(cutBy(func(q rune) bool { return q == r }, removed))
	case "FixedLength":
		if p.Length <= 0 {
			return nil, errors.New("length: must be above 0")
		}
		return one(func(_ *matcher, s string, front bool, next func(string, bool)) {
			start, n := 0, 0
			for i := range s {
				if n == p.Length {
					next(s[start:i], front && start == 0)
					start, n = i, 0
				}
				n++
			}
			if start < len(s) {
				next(s[start:], front && start == 0)
			}
		})
	case "Metaspace":
		return metaspace(p)
	}
	return nil, errors.New("not known here")
}

func metaspace(p *part) ([]cutter, error) {
	rep := p.Replacement
	r, n := utf8.DecodeRuneInString(rep)
	if n == 0 || n != len(rep) {
		return nil, errors.New("replacement: one character is needed")
	}
	scheme := "always"
	switch {
	case p.Scheme != nil:
		scheme = *p.Scheme
		if p.AddPrefixSpace != nil && !*p.AddPrefixSpace && scheme != "never" {
			return nil, errors.New("add_prefix_space does not fit prepend_scheme")
		}
	case p.AddPrefixSpace != nil && !*p.AddPrefixSpace:
		scheme = "never"
	}
	if scheme != "always" && scheme != "first" && scheme != "never" {
		return nil, fmt.Errorf("prepend_scheme %q is not known here", scheme)
	}
	list := []cutter{func(_ *matcher, s string, front bool, next func(string, bool)) {
		s = strings.ReplaceAll(s, " ", rep)
		if (scheme == "always" || scheme == "first" && front) && !strings.HasPrefix(s, rep) {
			s = rep + s
		}
		next(s, front)
	}}
	if truth(p.Split, true) {
		list = append(list, cutBy(func(q rune) bool { return q == r }, mergedWithNext))
	}
	return list, nil
}
