// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	r           *render
	ascii       bool
	lines, sort bool
	indent      string
	item, colon string
}

func (j *jsonWriter) line(b []byte, depth int) []byte {
	if !j.lines {
		return b
	}
	b = append(b, '\n')
	for range depth {
		b = append(b, j.indent...)
	}
	j.r.charge(depth*len(j.indent) + 1)
	return b
}

func (j *jsonWriter) append(b []byte, v any, depth int) []byte {
	if depth > maxDepth {
		fail("a value too deep for JSON")
	}
	j.r.step(1)
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case *big.Int:
		return v.Append(b, 10)
	case float64:
		switch {
		case math.IsNaN(v):
			return append(b, "NaN"...)
		case math.IsInf(v, 1):
			return append(b, "Infinity"...)
		case math.IsInf(v, -1):
			return append(b, "-Infinity"...)
		}
		return appendFloat(b, v)
	case string:
		return j.text(b, v)
	case *list:
		if len(v.items) == 0 {
			return append(b, "[]"...)
		}
		b = append(b, '[')
		for i, x := range v.items {
			if i > 0 {
				b = append(b, j.item...)
			}
			b = j.append(j.line(b, depth+1), x, depth+1)
		}
		return append(j.line(b, depth), ']')
	case *dict:
		if len(v.keys) == 0 {
			return append(b, "{}"...)
		}
		order := make([]int, len(v.keys))
		for i := range order {
			order[i] = i
		}
		if j.sort {
			slices.SortFunc(order, func(a, b int) int { return strings.Compare(v.keys[a], v.keys[b]) })
		}
		b = append(b, '{')
		for n, i := range order {
			if n > 0 {
				b = append(b, j.item...)
			}
			b = append(j.text(j.line(b, depth+1), v.keys[i]), j.colon...)
			b = j.append(b, v.vals[i], depth+1)
		}
		return append(j.line(b, depth), '}')
	case *undefined:
		fail("Object of type Undefined is not JSON serializable")
	}
	fail("Object of type %s is not JSON serializable", typeName(v))
	return nil
}

func (j *jsonWriter) text(b []byte, s string) []byte {
	j.r.charge(len(s))
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && (c < utf8.RuneSelf && c != 0x7f || !j.ascii) {
			continue
		}
		b = append(b, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '\b':
			b = append(b, `\b`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c < utf8.RuneSelf && c != 0x7f:
			b = fmt.Appendf(b, `\u%04x`, c)
		case c == 0x7f:
			b = append(b, c)
		default:
			r, w := utf8.DecodeRuneInString(s[i:])
			if r >= 0x10000 {
				r -= 0x10000
				b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				b = fmt.Appendf(b, `\u%04x`, r)
			}
			i += w - 1
		}
		from = i + 1
	}
	return append(append(b, s[from:]...), '"')
}
