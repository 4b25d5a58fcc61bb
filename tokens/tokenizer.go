// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// tokenizer is what tokenizer.json says: added tokens are found first, what lies between them is normalized, cut into
// pieces and given to the model, and the post-processor puts special tokens around it all.
type tokenizer struct {
	plain, normed matcherSet // added tokens that are looked for before normalizing, and after
	added         map[string]uint32
	normalizers   []normalizer
	cut           pretokenizer
	model         model
	before, after []uint32 // what the post-processor adds
	cache         segments
	scratch       sync.Pool
	usesFront     bool // whether it matters where the text began
}

// scratch is the memory of one encoding.
type scratch struct {
	matcher
	ids     []uint32
	symbols []symbol
	heap    mergeHeap
	bytes   []byte
	nodes   []latticeNode
	steps   []func(string, bool)
}

type tokenizerJSON struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"`
	Special    bool   `json:"special"`
}

// mergesJSON are merges in either form: "a b", or ["a", "b"].
type mergesJSON [][2]string

// UnmarshalJSON reads them.
func (m *mergesJSON) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, (*[][2]string)(m)); err == nil {
		return nil
	}
	var lines []string
	if err := json.Unmarshal(b, &lines); err != nil {
		return errors.New("merges: a list of pairs is needed")
	}
	*m = make(mergesJSON, 0, len(lines))
	for i, l := range lines {
		if strings.HasPrefix(l, "#version") {
			continue
		}
		left, right, ok := strings.Cut(l, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merges: %d: %q is no pair", i, l)
		}
		*m = append(*m, [2]string{left, right})
	}
	return nil
}

func readTokenizer(data []byte, c *config) (*tokenizer, error) {
	var j tokenizerJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	c.remake(&j)
	t := &tokenizer{added: map[string]uint32{}}
	var err error
	if t.normalizers, err = readNormalizers(nil, j.Normalizer, 0); err != nil {
		return nil, err
	}
	if t.cut, err = readPretokenizer(j.PreTokenizer); err != nil {
		return nil, err
	}
	t.usesFront = strings.Contains(string(j.PreTokenizer), `"first"`)
	if t.model, err = readModel(j.Model, t.cut.bytes); err != nil {
		return nil, err
	}
	if b, ok := t.model.(*bpe); t.cut.bytes && !(ok && b.raw) {
		t.cut.cutters = append(t.cut.cutters, func(_ *matcher, s string, front bool, next func(string, bool)) {
			next(string(appendByteChars(nil, s)), front)
		})
	}
	if err := t.add(c.more(j.AddedTokens)); err != nil {
		return nil, err
	}
	if t.before, t.after, err = t.readPost(nil, nil, j.PostProcessor, 0); err != nil {
		return nil, err
	}
	t.cache.init(segmentBudget)
	t.scratch.New = func() any { return new(scratch) }
	return t, nil
}

func readModel(raw json.RawMessage, bytes bool) (model, error) {
	if none(raw) {
		return nil, errors.New("model: missing")
	}
	var kind struct {
		Type   string          `json:"type"`
		Vocab  json.RawMessage `json:"vocab"`
		Merges json.RawMessage `json:"merges"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if kind.Type == "" { // files of before 2021
		switch {
		case !none(kind.Merges):
			kind.Type = "BPE"
		case len(kind.Vocab) > 0 && kind.Vocab[0] == '[':
			kind.Type = "Unigram"
		default:
			kind.Type = "WordPiece"
		}
	}
	switch kind.Type {
	case "BPE":
		var j bpeJSON
		if err := json.Unmarshal(raw, &j); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		return newBPE(&j, bytes)
	case "Unigram":
		var j unigramJSON
		if err := json.Unmarshal(raw, &j); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		return newUnigram(&j)
	case "WordPiece", "WordLevel":
		j := wordPieceJSON{Prefix: "##", MaxChars: 100, whole: kind.Type == "WordLevel"}
		if err := json.Unmarshal(raw, &j); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		return newWordPiece(&j)
	}
	return nil, fmt.Errorf("model: type %q is not known here", kind.Type)
}

// add adds tokens to the vocabulary, in order, and makes the sets anew that look for them. The ids that a file gives them
// say nothing: where they leave holes or are out of order, the original numbers them anew.
func (t *tokenizer) add(list []addedToken) error {
	size := uint32(t.model.size())
	top := int64(-1)
	var special, classic []foundToken
	for _, a := range list {
		if a.Content == "" {
			continue
		}
		id, ok := t.added[a.Content]
		if !ok {
			if id, ok = t.model.id(a.Content); !ok {
				id = size
				if top >= int64(size) || size == 0 {
					id = uint32(top + 1)
				}
			}
		}
		t.added[a.Content] = id
		top = max(top, int64(id))
		f := foundToken{addedToken: a, id: id}
		if a.Special {
			special = append(special, f)
		} else {
			classic = append(classic, f)
		}
	}
	m := new(matcher)
	for _, f := range append(special, classic...) {
		if f.Normalized != nil && !*f.Normalized || f.Normalized == nil && f.Special {
			t.plain.add(f.Content, f)
			continue
		}
		content, _, err := t.normalize(m, f.Content, true)
		if err != nil {
			return fmt.Errorf("added_tokens: %q: %w", f.Content, err)
		}
		t.normed.add(content, f)
	}
	t.plain.close()
	t.normed.close()
	return nil
}

func (t *tokenizer) normalize(m *matcher, s string, front bool) (string, bool, error) {
	for _, n := range t.normalizers {
		out, kept, err := n(m, s)
		if err != nil {
			return "", false, err
		}
		s, front = out, front && kept
	}
	return s, front, nil
}

// encode appends the tokens of a text.
func (t *tokenizer) encode(to []uint32, text string, special bool) ([]uint32, error) {
	s := t.scratch.Get().(*scratch)
	s.ids = to
	if special {
		s.ids = append(s.ids, t.before...)
	}
	err := t.text(s, text)
	if special {
		s.ids = append(s.ids, t.after...)
	}
	to, s.ids = s.ids, nil
	if cap(s.symbols)+cap(s.heap)+cap(s.nodes) > 1<<20 { // not kept for ever because of one long text
		s.symbols, s.heap, s.nodes = nil, nil, nil
	}
	t.scratch.Put(s)
	return to, err
}

func (t *tokenizer) text(s *scratch, text string) error {
	at := 0
	for at < len(text) {
		start, end, stop, f := t.plain.next(text, at)
		if f == nil {
			break
		}
		if at < start {
			if err := t.segment(s, text[at:start], at == 0); err != nil {
				return err
			}
		}
		s.ids = append(s.ids, f.id)
		at = max(end, stop)
	}
	if at < len(text) {
		return t.segment(s, text[at:], at == 0)
	}
	return nil
}

// segment appends the tokens of a text without plain added tokens, remembered if it was met before.
func (t *tokenizer) segment(s *scratch, seg string, front bool) error {
	if len(seg) < minSegment {
		return t.fresh(s, seg, front)
	}
	key := t.cache.key(seg, front && t.usesFront)
	if ids, ok := t.cache.get(key, s.ids); ok {
		s.ids = ids
		return nil
	}
	from := len(s.ids)
	if err := t.fresh(s, seg, front); err != nil {
		return err
	}
	t.cache.put(key, s.ids[from:])
	return nil
}

func (t *tokenizer) fresh(s *scratch, seg string, front bool) error {
	s.matcher.steps = 0
	seg, front, err := t.normalize(&s.matcher, seg, front)
	if err != nil {
		return err
	}
	at := 0
	if !t.normed.empty() {
		for at < len(seg) {
			start, end, stop, f := t.normed.next(seg, at)
			if f == nil {
				break
			}
			if at < start {
				t.pieces(s, seg[at:start], front && at == 0)
			}
			s.ids = append(s.ids, f.id)
			at = max(end, stop)
		}
	}
	if at < len(seg) {
		t.pieces(s, seg[at:], front && at == 0)
	}
	if s.matcher.tooHard(seg) {
		return errTooHard
	}
	return nil
}

// pieces runs the chain of cutters, each handing its pieces to the next, the last to the model.
func (t *tokenizer) pieces(s *scratch, seg string, front bool) {
	if s.steps == nil {
		s.steps = make([]func(string, bool), len(t.cut.cutters)+1)
		s.steps[len(t.cut.cutters)] = func(piece string, _ bool) {
			if piece != "" {
				t.model.encode(s, piece)
			}
		}
		for i := len(t.cut.cutters) - 1; i >= 0; i-- {
			s.steps[i] = func(piece string, front bool) {
				if piece != "" {
					t.cut.cutters[i](&s.matcher, piece, front, s.steps[i+1])
				}
			}
		}
	}
	s.steps[0](seg, front)
}

// templatePiece is one piece of TemplateProcessing.
type templatePiece struct {
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
}

// readPost appends what a post-processor puts before and after the tokens of a text.
func (t *tokenizer) readPost(before, after []uint32, raw json.RawMessage, depth int) ([]uint32, []uint32, error) {
	if none(raw) {
		return before, after, nil
	}
	if depth > 10 || len(before)+len(after) > maxParts {
		return nil, nil, errors.New("post_processor: too many")
	}
	p, err := readPart(raw, "post_processor")
	if err != nil {
		return nil, nil, err
	}
	switch p.Type {
	case "ByteLevel":
		return before, after, nil
	case "Sequence":
		for _, sub := range p.Processors {
			if before, after, err = t.readPost(before, after, sub, depth+1); err != nil {
				return nil, nil, err
			}
		}
		return before, after, nil
	case "BertProcessing", "RobertaProcessing":
		ids := make([]uint32, 2)
		for i, raw := range []json.RawMessage{p.CLS, p.SEP} {
			pair := []any{new(string), &ids[i]}
			if err := json.Unmarshal(raw, &pair); err != nil {
				return nil, nil, fmt.Errorf("post_processor: %s: %w", p.Type, err)
			}
		}
		return slices.Insert(before, 0, ids[0]), append(after, ids[1]), nil
	case "TemplateProcessing":
		var lead, trail []uint32
		seen := false
		for _, piece := range p.Single {
			switch {
			case piece.Sequence != nil && piece.Sequence.ID == "A" && !seen:
				seen = true
			case piece.SpecialToken != nil:
				token, ok := p.SpecialTokens[piece.SpecialToken.ID]
				if !ok {
					return nil, nil, fmt.Errorf("post_processor: special token %q is not described", piece.SpecialToken.ID)
				}
				if seen {
					trail = append(trail, token.IDs...)
				} else {
					lead = append(lead, token.IDs...)
				}
			default:
				return nil, nil, errors.New("post_processor: single: one $A and special tokens are what is known here")
			}
		}
		if !seen {
			return nil, nil, errors.New("post_processor: single: no $A")
		}
		return slices.Concat(lead, before), slices.Concat(after, trail), nil
	}
	return nil, nil, fmt.Errorf("post_processor: %q is not known here", p.Type)
}

// foundToken is an added token with its id.
type foundToken struct {
	addedToken
	id uint32
}

// matcherSet finds the leftmost of a set of texts, the longest of those that begin there.
type matcherSet struct {
	nodes []trieNode
	first [256]bool
	only  int // the only first byte there is, or -1
}

type trieNode struct {
	edges []trieEdge
	token *foundToken
}

type trieEdge struct {
	b  byte
	to int32
}

func (m *matcherSet) empty() bool { return len(m.nodes) == 0 }

// add adds a text; the first of equal ones stays.
func (m *matcherSet) add(text string, f foundToken) {
	if text == "" {
		return
	}
	if m.nodes == nil {
		m.nodes = []trieNode{{}}
	}
	m.first[text[0]] = true
	at := int32(0)
	for i := range len(text) {
		next := int32(-1)
		for _, e := range m.nodes[at].edges {
			if e.b == text[i] {
				next = e.to
			}
		}
		if next < 0 {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, trieNode{})
			m.nodes[at].edges = append(m.nodes[at].edges, trieEdge{text[i], next})
		}
		at = next
	}
	if m.nodes[at].token == nil {
		m.nodes[at].token = &f
	}
}

func (m *matcherSet) close() {
	m.only = -1
	n := 0
	for b, is := range m.first {
		if is {
			m.only = b
			n++
		}
	}
	if n != 1 {
		m.only = -1
	}
}

// next finds the next added token at or after from. It is [start, end), white space it strips included; stop is the end of
// its text. end may lie behind stop only.
func (m *matcherSet) next(s string, from int) (start, end, stop int, found *foundToken) {
	for at := from; at < len(s); {
		if m.only >= 0 {
			n := strings.IndexByte(s[at:], byte(m.only))
			if n < 0 {
				return 0, 0, 0, nil
			}
			at += n
		} else if !m.first[s[at]] {
			at++
			continue
		}
		if m.empty() {
			return 0, 0, 0, nil
		}
		node, best := int32(0), (*foundToken)(nil)
		for i := at; i < len(s); i++ {
			next := int32(-1)
			for _, e := range m.nodes[node].edges {
				if e.b == s[i] {
					next = e.to
					break
				}
			}
			if next < 0 {
				break
			}
			node = next
			if f := m.nodes[node].token; f != nil {
				best, stop = f, i+1
			}
		}
		if best == nil {
			at++
			continue
		}
		start, end = at, stop
		if best.SingleWord {
			left, _ := utf8.DecodeLastRuneInString(s[:start])
			right, _ := utf8.DecodeRuneInString(s[stop:])
			if start > 0 && isRustWord(left) || stop < len(s) && isRustWord(right) {
				at = stop
				continue
			}
		}
		if best.LStrip {
			start = max(len(strings.TrimRightFunc(s[:start], isSpace)), from)
		}
		if best.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[stop:], isSpace))
		}
		return start, end, stop, best
	}
	return 0, 0, 0, nil
}
