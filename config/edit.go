// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// editor changes a YAML or JSON text at the places of its nodes and leaves the rest as it is, to the
// byte. A change it is not sure of it does not make: its methods then return false.
type editor struct {
	text  string
	lines []int // where each begins
	json  bool
	eol   string
	edits []edit
}

// edit replaces text[from:to].
type edit struct {
	from, to int
	text     string
}

func newEditor(text string) *editor {
	e := &editor{text: text, lines: []int{0}, json: json.Valid([]byte(text)), eol: "\n"}
	if strings.HasPrefix(text, "\ufeff") {
		e.lines[0] = len("\ufeff")
	}
	if strings.Contains(text, "\r\n") {
		e.eol = "\r\n"
	}
	for i, r := range text { // as YAML counts lines
		switch r {
		case '\n', '\u0085', '\u2028', '\u2029':
			e.lines = append(e.lines, i+utf8.RuneLen(r))
		case '\r':
			if !strings.HasPrefix(text[i:], "\r\n") {
				e.lines = append(e.lines, i+1)
			}
		}
	}
	return e
}

// apply returns the text with its edits.
func (e *editor) apply() string {
	slices.SortStableFunc(e.edits, func(a, b edit) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	var b strings.Builder
	at := 0
	for _, d := range e.edits {
		b.WriteString(e.text[at:d.from])
		b.WriteString(d.text)
		at = d.to
	}
	b.WriteString(e.text[at:])
	return b.String()
}

// try makes the edits of a change, all of them or none. One that overlaps what was changed before
// has to wait until that is applied.
func (e *editor) try(change func() bool) bool {
	before := len(e.edits)
	ok := change()
	for i := before; ok && i < len(e.edits); i++ {
		if slices.ContainsFunc(e.edits[:i], e.edits[i].overlaps) {
			e.edits = e.edits[:before]
			return before > 0
		}
	}
	if !ok {
		e.edits = e.edits[:before]
	}
	return ok
}

func (d edit) overlaps(o edit) bool { return d.from < o.to && o.from < d.to }

func (e *editor) replace(from, to int, text string) bool {
	e.edits = append(e.edits, edit{from, to, text})
	return true
}

// start is where a node begins.
func (e *editor) start(n *yaml.Node) (int, bool) {
	if n.Line < 1 || n.Line > len(e.lines) || n.Column < 1 {
		return 0, false
	}
	at := e.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRuneInString(e.text[at:])
		at += size
	}
	return at, at < len(e.text)
}

// end is where a node ends, for the nodes of which that can be told.
func (e *editor) end(n *yaml.Node) (int, bool) {
	at, ok := e.start(n)
	if !ok || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return 0, false
	}
	rest := e.text[at:]
	switch {
	case n.Kind == yaml.AliasNode:
		return at + 1 + len(n.Value), strings.HasPrefix(rest, "*"+n.Value)
	case n.Kind == yaml.ScalarNode:
		size := scalarSize(rest, n)
		return at + size, size > 0
	case n.Style&yaml.FlowStyle != 0:
		return e.flowEnd(n, at+1)
	case len(n.Content) == 0:
		return 0, false
	case n.Kind == yaml.MappingNode:
		return e.entryEnd(n, len(n.Content)-2)
	}
	return e.end(n.Content[len(n.Content)-1])
}

func scalarSize(text string, n *yaml.Node) int {
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0 && text[0] == '"':
		for i := 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
	case n.Style&yaml.SingleQuotedStyle != 0 && text[0] == '\'':
		for i := 1; i < len(text); i++ {
			if text[i] == '\'' {
				if i++; i == len(text) || text[i] != '\'' {
					return i
				}
			}
		}
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0 && strings.HasPrefix(text, n.Value):
		return len(n.Value)
	}
	return 0
}

// flowEnd finds the bracket that closes a flow collection whose inside begins at from.
func (e *editor) flowEnd(n *yaml.Node, from int) (int, bool) {
	at, ok := from, true
	if k := len(n.Content); k > 0 {
		if n.Kind == yaml.MappingNode {
			at, ok = e.entryEnd(n, k-2)
		} else {
			at, ok = e.end(n.Content[k-1])
		}
	}
	for ; ok && at < len(e.text); at++ {
		switch c := e.text[at]; c {
		case ' ', '\t', '\r', '\n', ',':
		case '#':
			if line := strings.IndexByte(e.text[at:], '\n'); line >= 0 {
				at += line
			}
		default:
			return at + 1, c == '}' || c == ']'
		}
	}
	return 0, false
}

// entryEnd is where the value of the pair at Content[i] ends.
func (e *editor) entryEnd(m *yaml.Node, i int) (int, bool) {
	if v := m.Content[i+1]; v.Kind != yaml.ScalarNode || v.Value != "" || v.Style != 0 {
		return e.end(v)
	}
	at, ok := e.end(m.Content[i])
	if !ok {
		return 0, false
	}
	if rest := strings.TrimLeft(e.text[at:], " "); strings.HasPrefix(rest, ":") {
		return len(e.text) - len(rest) + 1, true
	}
	return at, m.Style&yaml.FlowStyle != 0
}

// lineEnd is the end of the line that at is on, its end of line not included.
func (e *editor) lineEnd(at int) int {
	if i := strings.IndexByte(e.text[at:], '\n'); i >= 0 {
		return at + len(strings.TrimSuffix(e.text[at:at+i], "\r"))
	}
	return len(e.text)
}

// indent is the end of line and the spaces that put what follows below at.
func (e *editor) indent(at int) (string, bool) {
	line := e.text[strings.LastIndexByte(e.text[:at], '\n')+1 : at]
	line = strings.TrimPrefix(line, "\ufeff")
	return e.eol + strings.Repeat(" ", utf8.RuneCountInString(line)), !strings.Contains(line, "\t")
}

// comments are those between two places, which would be lost with what stands there: the nodes' own.
func (e *editor) comments(from, to int, nodes ...*yaml.Node) []string {
	known, lost := map[string]bool{}, []string(nil)
	for _, n := range nodes {
		gather(n, known)
	}
	for _, line := range strings.Split(e.text[from:to], "\n") {
		for i := range line {
			if c := strings.TrimSpace(line[i:]); line[i] == '#' && known[c] {
				lost = append(lost, c)
				break
			}
		}
	}
	return lost
}

func gather(n *yaml.Node, into map[string]bool) {
	for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
		for _, line := range strings.Split(c, "\n") {
			into[strings.TrimSpace(line)] = true
		}
	}
	for _, c := range n.Content {
		gather(c, into)
	}
}

// set replaces a scalar.
func (e *editor) set(n *yaml.Node, value string) bool {
	from, ok := e.start(n)
	to, known := e.end(n)
	return ok && known && n.Kind == yaml.ScalarNode && e.replace(from, to, e.word(value))
}

// put replaces the pair at Content[i]. Comments within go above it.
func (e *editor) put(m *yaml.Node, i int, key, value string) bool {
	from, ok := e.start(m.Content[i])
	to, known := e.entryEnd(m, i)
	below, plain := e.indent(from)
	if !ok || !known || !plain {
		return false
	}
	lost := e.comments(from, to, m.Content[i], m.Content[i+1])
	if len(lost) > 0 && m.Style&yaml.FlowStyle != 0 {
		return false
	}
	return e.replace(from, to, strings.Join(append(lost, e.word(key)+": "+value), below))
}

// add appends a pair.
func (e *editor) add(m *yaml.Node, key, value string) bool {
	pair := e.word(key) + ": " + value
	if m.Style&yaml.FlowStyle != 0 {
		return e.addFlow(m, pair)
	}
	if len(m.Content) == 0 {
		return false
	}
	from, ok := e.start(m.Content[0])
	to, known := e.end(m)
	below, plain := e.indent(from)
	return ok && known && plain && e.replace(e.lineEnd(to), e.lineEnd(to), below+pair)
}

func (e *editor) addFlow(n *yaml.Node, text string) bool {
	from, ok := e.start(n)
	if len(n.Content) == 0 {
		return ok && e.replace(from+1, from+1, text)
	}
	to, known := from, false
	if n.Kind == yaml.MappingNode {
		to, known = e.entryEnd(n, len(n.Content)-2)
	} else {
		to, known = e.end(n.Content[len(n.Content)-1])
	}
	return ok && known && e.replace(to, to, ", "+text)
}

// drop removes the pair at Content[i], which must not be the only one.
func (e *editor) drop(m *yaml.Node, i int) bool {
	from, ok := e.start(m.Content[i])
	to, known := e.entryEnd(m, i)
	if !ok || !known || len(m.Content) <= 2 {
		return false
	}
	if m.Style&yaml.FlowStyle != 0 {
		if i+2 < len(m.Content) {
			to, known = e.start(m.Content[i+2])
		} else {
			from, known = e.entryEnd(m, i-2)
		}
		return known && !strings.Contains(e.text[from:to], "#") && e.replace(from, to, "")
	}
	line := strings.LastIndexByte(e.text[:from], '\n') + 1
	if strings.TrimLeft(e.text[line:from], " ") == "" {
		return e.dropLines(line, from, to, m.Content[i], m.Content[i+1])
	}
	if i+2 >= len(m.Content) { // - key: value, which is on one line with the dash
		return false
	}
	next, known := e.start(m.Content[i+2])
	return known && !strings.Contains(e.text[from:next], "#") && e.replace(from, next, "")
}

// dropLines removes what stands from line, where its indentation begins, to to, and keeps comments.
func (e *editor) dropLines(line, from, to int, nodes ...*yaml.Node) bool {
	below, plain := e.indent(from)
	end := e.lineEnd(to)
	lost := e.comments(from, to, nodes...)
	if tail := strings.TrimSpace(e.text[to:end]); tail != "" {
		lost = append(lost, tail)
	}
	if len(lost) > 0 {
		return plain && e.replace(from, end, strings.Join(lost, below))
	}
	if strings.HasPrefix(e.text[end:], e.eol) {
		end += len(e.eol)
	} else if line > 0 { // the last line has no end: the one before becomes like that
		line -= len(e.eol)
	}
	return e.replace(line, end, "")
}

// dash finds the dash before an item of a block list.
func (e *editor) dash(item *yaml.Node) (int, bool) {
	at, ok := e.start(item)
	if !ok {
		return 0, false
	}
	before := strings.TrimRight(e.text[:at], " ")
	return len(before) - 1, strings.HasSuffix(before, "-")
}

// before puts an item in front of a list that has some.
func (e *editor) before(list *yaml.Node, item string) bool {
	if list.Style&yaml.FlowStyle != 0 {
		at, ok := e.start(list.Content[0])
		return ok && e.replace(at, at, item+", ")
	}
	at, ok := e.dash(list.Content[0])
	below, plain := e.indent(max(at, 0))
	return ok && plain && e.replace(at, at, "- "+item+below)
}

// after puts an item behind that at i.
func (e *editor) after(list *yaml.Node, i int, item string) bool {
	to, ok := e.end(list.Content[i])
	if list.Style&yaml.FlowStyle != 0 {
		return ok && e.replace(to, to, ", "+item)
	}
	at, known := e.dash(list.Content[i])
	below, plain := e.indent(max(at, 0))
	return ok && known && plain && e.replace(e.lineEnd(to), e.lineEnd(to), below+"- "+item)
}

// remove takes the item at i out of a list that has others.
func (e *editor) remove(list *yaml.Node, i int) bool {
	to, ok := e.end(list.Content[i])
	if !ok || len(list.Content) < 2 {
		return false
	}
	if list.Style&yaml.FlowStyle != 0 {
		from, known := e.start(list.Content[i])
		if i+1 == len(list.Content) {
			from, known = e.end(list.Content[i-1])
		} else if known {
			to, known = e.start(list.Content[i+1])
		}
		return known && !strings.Contains(e.text[from:to], "#") && e.replace(from, to, "")
	}
	at, ok := e.dash(list.Content[i])
	line := strings.LastIndexByte(e.text[:max(at, 0)], '\n') + 1
	return ok && strings.TrimLeft(e.text[line:at], " ") == "" && e.dropLines(line, at, to, list.Content[i])
}

var plainWord = regexp.MustCompile(`^[\w/][\w./-]*$`)

// word writes a text as a scalar.
func (e *editor) word(s string) string {
	n := yaml.Node{Kind: yaml.ScalarNode, Value: s}
	if !e.json && plainWord.MatchString(s) && n.ShortTag() == "!!str" && !slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(s)) {
		return s
	}
	b, _ := json.Marshal(s) // a string can always be written
	return string(b)
}

// object writes keys and values, which are written already, on one line.
func (e *editor) object(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(e.word(pairs[i]) + ": " + pairs[i+1])
	}
	return "{" + b.String() + "}"
}

func (e *editor) list(items ...string) string { return "[" + strings.Join(items, ", ") + "]" }

// again writes a node of scalars on one line; empty when it holds something else.
func (e *editor) again(n *yaml.Node) string {
	var parts []string
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
			return ""
		}
		if n.ShortTag() == "!!str" {
			return e.word(n.Value)
		}
		return cmp.Or(n.Value, "null")
	case yaml.SequenceNode:
		for _, c := range n.Content {
			parts = append(parts, e.again(c))
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].ShortTag() == "!!merge" {
				return ""
			}
			parts = append(parts, n.Content[i].Value, e.again(n.Content[i+1]))
		}
	}
	if n.Anchor != "" || n.Kind == yaml.AliasNode || slices.Contains(parts, "") {
		return ""
	}
	if n.Kind == yaml.SequenceNode {
		return e.list(parts...)
	}
	return e.object(parts...)
}
