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
	t := tidier{left: maxValues, report: func(line int, text string) {
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
			t.report(lineOfError(data, text, line), "cannot be read as YAML: "+text)
			return docs
		}
		if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
			continue
		}
		root := t.tidy(n.Content[0], 0)
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

// tidier makes plain trees: aliases and merge keys are replaced by what they stand for, double
// keys are reported.
type tidier struct {
	left   int
	broken bool
	report func(line int, text string)
}

func (t *tidier) fail(line int, format string, args ...any) {
	if !t.broken {
		t.broken = true
		t.report(line, fmt.Sprintf(format, args...))
	}
}

func (t *tidier) tidy(n *yaml.Node, depth int) *yaml.Node {
	if t.left--; t.left < 0 {
		t.fail(n.Line, "holds more than %d values, aliases counted each time", maxValues)
	}
	if depth > maxDepth {
		t.fail(n.Line, "is nested more than %d levels deep", maxDepth)
	}
	if t.broken {
		return n
	}
	switch n.Kind {
	case yaml.AliasNode:
		return t.tidy(n.Alias, depth+1)
	case yaml.SequenceNode:
		for i, c := range n.Content {
			n.Content[i] = t.tidy(c, depth+1)
		}
	case yaml.MappingNode:
		t.mapping(n, depth)
	}
	return n
}

func (t *tidier) mapping(n *yaml.Node, depth int) {
	lines := make(map[string]int, len(n.Content)/2)
	var own, merged []*yaml.Node
	for i := 0; i+1 < len(n.Content) && !t.broken; i += 2 {
		key, value := n.Content[i], t.tidy(n.Content[i+1], depth+1)
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			t.fail(key.Line, "a key must be a word, not a list or an object")
			return
		}
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if first, twice := lines[key.Value]; twice {
			t.report(key.Line, fmt.Sprintf("%s is written twice, first on line %d", key.Value, first))
			continue
		}
		lines[key.Value] = key.Line
		if isNull(value) && value.Value == "" {
			value.Line = key.Line
		}
		own = append(own, key, value)
	}
	for _, m := range merged {
		own = t.merge(own, m, lines)
	}
	n.Content = own
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
		if t.left -= len(from.Content); t.left < 0 {
			t.fail(from.Line, "holds more than %d values, aliases counted each time", maxValues)
		}
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
