// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds on what a file may make us do. A value counts each time an alias repeats it.
const (
	maxFile   = 4 << 20
	maxValues = 1 << 20
	maxDepth  = 100
)

// parse splits YAML or JSON into its documents, as trees without aliases and merge keys. What
// cannot be read is reported and ends the file.
func parse(data []byte, file string, report func(Problem)) []*yaml.Node {
	if len(data) > maxFile {
		report(Problem{Severity: Error, File: file, Text: fmt.Sprintf("is larger than %d MiB", maxFile>>20)})
		return nil
	}
	var docs []*yaml.Node
	t := tidier{left: maxValues, anchors: map[*yaml.Node]extent{}, report: func(line int, text string) {
		report(Problem{Severity: Error, File: file, Line: line, Text: text})
	}}
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			line, text := syntaxError(err)
			line = lineOfError(data, text, line)
			t.report(line, "cannot be read as YAML: "+text+hint(data, text, line))
			return docs
		}
		if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
			continue
		}
		root, _ := t.tidy(n.Content[0], 0)
		if t.broken {
			return docs
		}
		if !isNull(root) {
			docs = append(docs, root)
		}
	}
}

var lineOf = regexp.MustCompile(`^line (\d+): `)

// syntaxError takes the line out of a message of the YAML library.
func syntaxError(err error) (int, string) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := lineOf.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	return line, text
}

// lineOfError finds the line that makes the library say text: it says so from there on only.
// The line that the library gives may be the one where the enclosing block began.
func lineOfError(data []byte, text string, given int) int {
	if len(data) > maxFile/4 {
		return given
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	return 1 + sort.Search(len(lines)-1, func(i int) bool {
		n := 0
		for _, l := range lines[:i+1] {
			n += len(l)
		}
		dec := yaml.NewDecoder(bytes.NewReader(data[:n]))
		for {
			if err := dec.Decode(new(yaml.Node)); err != nil {
				_, says := syntaxError(err)
				return says == text
			}
		}
	})
}

// hint explains the commonest mistakes behind the library's words.
func hint(data []byte, text string, line int) string {
	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) || !strings.Contains(text, "cannot start any token") {
		return ""
	}
	l := lines[line-1]
	if indent := l[:len(l)-len(bytes.TrimLeft(l, " \t"))]; bytes.Contains(indent, []byte("\t")) {
		return ": indent with spaces, not with tabs"
	}
	return ": put the value in quotes"
}

// tidier makes plain trees: aliases and merge keys are replaced by what they stand for, double
// keys are reported.
type tidier struct {
	left    int
	broken  bool
	anchors map[*yaml.Node]extent
	report  func(line int, text string)
}

// extent tells how much an alias stands for; values is 0 while its node is being read.
type extent struct{ values, height int }

func (t *tidier) fail(line int, format string, args ...any) {
	if !t.broken {
		t.broken = true
		t.report(line, fmt.Sprintf(format, args...))
	}
}

// take counts values against the bounds.
func (t *tidier) take(n *yaml.Node, values, depth int) {
	if t.left -= values; t.left < 0 {
		t.fail(n.Line, "holds more than %d values, aliases counted each time", maxValues)
	}
	if depth > maxDepth {
		t.fail(n.Line, "is nested more than %d levels deep", maxDepth)
	}
}

// tidy returns the node to use in place of n, and how many levels it has.
func (t *tidier) tidy(n *yaml.Node, depth int) (*yaml.Node, int) {
	if n.Kind == yaml.AliasNode {
		e := t.anchors[n.Alias]
		if e.values == 0 {
			t.fail(n.Line, "*%s refers to itself", n.Value)
		}
		t.take(n, e.values, depth+e.height)
		return n.Alias, e.height
	}
	before, height := t.left, 1
	t.take(n, 1, depth)
	if n.Anchor != "" {
		t.anchors[n] = extent{}
	}
	switch {
	case t.broken:
	case n.Kind == yaml.SequenceNode:
		for i, c := range n.Content {
			child, h := t.tidy(c, depth+1)
			n.Content[i], height = child, max(height, h+1)
		}
	case n.Kind == yaml.MappingNode:
		height = t.mapping(n, depth)
	}
	if n.Anchor != "" {
		t.anchors[n] = extent{before - t.left, height}
	}
	return n, height
}

func (t *tidier) mapping(n *yaml.Node, depth int) (height int) {
	lines := make(map[string]int, len(n.Content)/2)
	own, merged := make([]*yaml.Node, 0, len(n.Content)), []*yaml.Node(nil)
	for i := 0; i+1 < len(n.Content) && !t.broken; i += 2 {
		key, _ := t.tidy(n.Content[i], depth+1)
		value, h := t.tidy(n.Content[i+1], depth+1)
		height = max(height, h)
		if key.Kind != yaml.ScalarNode {
			t.fail(key.Line, "a key must be a word, not a list or an object")
			break
		}
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if first, twice := lines[key.Value]; twice {
			t.report(key.Line, fmt.Sprintf("%s is written twice, first on line %d", short(key.Value), first))
			continue
		}
		lines[key.Value] = key.Line
		if empty := isNull(value) && value.Value == ""; empty || value == n.Content[i+1] && value.Kind != yaml.ScalarNode {
			value.Line = key.Line // where one would look, rather than where its content begins
		}
		own = append(own, key, value)
	}
	for _, m := range merged {
		own = t.merge(own, m, lines)
	}
	n.Content = own
	return height + 1
}

// merge appends the pairs of a merge key's value whose keys are not there yet.
func (t *tidier) merge(own []*yaml.Node, from *yaml.Node, have map[string]int) []*yaml.Node {
	switch from.Kind {
	case yaml.SequenceNode:
		for _, m := range from.Content {
			if m.Kind != yaml.MappingNode {
				t.fail(m.Line, "<<: want objects to merge")
				return own
			}
			own = t.merge(own, m, have)
		}
	case yaml.MappingNode:
		t.take(from, len(from.Content), 0)
		for i := 0; i+1 < len(from.Content) && !t.broken; i += 2 {
			if _, ok := have[from.Content[i].Value]; !ok {
				have[from.Content[i].Value] = from.Content[i].Line
				own = append(own, from.Content[i], from.Content[i+1])
			}
		}
	default:
		t.fail(from.Line, "<<: want an object to merge")
	}
	return own
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

// field returns the value under a key of an object, or nil.
func field(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// text returns the scalar under a key, or "".
func text(n *yaml.Node, key string) string {
	if v := field(n, key); v != nil && v.Kind == yaml.ScalarNode && !isNull(v) {
		return v.Value
	}
	return ""
}

// step matches the first step of a path: .name, name, [2] or ["a.b/c"].
var step = regexp.MustCompile(`^(?:\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\])`)

// line finds the line of the value at a path below n, or of the nearest thing above it.
func line(n *yaml.Node, path string) int {
	for path != "" {
		m := step.FindStringSubmatch(path)
		if m == nil {
			break
		}
		path = path[len(m[0]):]
		next := (*yaml.Node)(nil)
		switch {
		case m[1] != "":
			next = field(n, m[1])
		case m[2] != "":
			if i, err := strconv.Atoi(m[2]); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
			}
		default:
			if key, err := strconv.Unquote(m[3]); err == nil {
				next = field(n, key)
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return n.Line
}

var plain = regexp.MustCompile(`^[A-Za-z_][\w-]*$`)

// join appends a key to a path.
func join(path, key string) string {
	if !plain.MatchString(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// index appends a position to a path.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
