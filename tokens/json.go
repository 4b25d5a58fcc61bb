// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A JSON text becomes the values that templates work with, as Python's json module would make them: nil, bool, int64,
// *big.Int, float64, string, *list and *dict, whose keys keep their order, the last of equal ones their value.

// list is a Python list, or a tuple.
type list struct {
	items []any
	tuple bool
}

// dict is a Python dictionary with strings for keys, in the order they came in. Few keys are looked for one by one.
type dict struct {
	keys  []string
	vals  []any
	index map[string]int
}

const smallDict = 8

func (d *dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if k == key {
			return i
		}
	}
	return -1
}

func (d *dict) get(key string) (any, bool) {
	if i := d.find(key); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

func (d *dict) set(key string, v any) {
	if i := d.find(key); i >= 0 {
		d.vals[i] = v
		return
	}
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	if d.index != nil {
		d.index[key] = len(d.keys) - 1
	} else if len(d.keys) > smallDict {
		d.index = make(map[string]int, 2*len(d.keys))
		for i, k := range d.keys {
			d.index[k] = i
		}
	}
}

func (d *dict) drop(key string) {
	i := d.find(key)
	if i < 0 {
		return
	}
	c := dict{}
	for j, k := range d.keys {
		if j != i {
			c.set(k, d.vals[j])
		}
	}
	*d = c
}

func (d *dict) clone() *dict {
	c := &dict{}
	for i, k := range d.keys {
		c.set(k, d.vals[i])
	}
	return c
}

const maxDepth = 200

type jsonReader struct {
	s   string
	pos int
}

func parseJSON(s string) (any, error) {
	r := jsonReader{s: s}
	v, err := r.value(0)
	if err == nil {
		if r.space(); r.pos < len(s) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", r.pos, err)
	}
	return v, nil
}

func (r *jsonReader) space() {
	for r.pos < len(r.s) {
		switch r.s[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

func (r *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("too deep")
	}
	r.space()
	if r.pos >= len(r.s) {
		return nil, errors.New("it ends early")
	}
	switch c := r.s[r.pos]; c {
	case '{':
		return r.object(depth)
	case '[':
		r.pos++
		l := &list{}
		if r.space(); r.pos < len(r.s) && r.s[r.pos] == ']' {
			r.pos++
			return l, nil
		}
		for {
			v, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, v)
			r.space()
			if r.pos >= len(r.s) {
				return nil, errors.New("a list without its end")
			}
			r.pos++
			switch r.s[r.pos-1] {
			case ']':
				return l, nil
			case ',':
			default:
				return nil, errors.New("a list wants a comma")
			}
		}
	case '"':
		return r.text()
	case 't', 'f', 'n', 'N', 'I':
		for word, v := range map[string]any{"true": true, "false": false, "null": nil, "NaN": math.NaN(), "Infinity": math.Inf(1)} {
			if strings.HasPrefix(r.s[r.pos:], word) {
				r.pos += len(word)
				return v, nil
			}
		}
	case '-':
		if strings.HasPrefix(r.s[r.pos:], "-Infinity") {
			r.pos += len("-Infinity")
			return math.Inf(-1), nil
		}
		return r.number()
	default:
		if c >= '0' && c <= '9' {
			return r.number()
		}
	}
	return nil, errors.New("no value")
}

func (r *jsonReader) object(depth int) (any, error) {
	r.pos++
	d := &dict{}
	if r.space(); r.pos < len(r.s) && r.s[r.pos] == '}' {
		r.pos++
		return d, nil
	}
	for {
		if r.space(); r.pos >= len(r.s) || r.s[r.pos] != '"' {
			return nil, errors.New("an object wants a key")
		}
		key, err := r.text()
		if err != nil {
			return nil, err
		}
		if r.space(); r.pos >= len(r.s) || r.s[r.pos] != ':' {
			return nil, errors.New("a key wants a colon")
		}
		r.pos++
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		d.set(key, v)
		r.space()
		if r.pos >= len(r.s) {
			return nil, errors.New("an object without its end")
		}
		r.pos++
		switch r.s[r.pos-1] {
		case '}':
			return d, nil
		case ',':
		default:
			return nil, errors.New("an object wants a comma")
		}
	}
}

func (r *jsonReader) number() (any, error) {
	start := r.pos
	digits := func() bool {
		from := r.pos
		for r.pos < len(r.s) && r.s[r.pos] >= '0' && r.s[r.pos] <= '9' {
			r.pos++
		}
		return r.pos > from
	}
	if r.s[r.pos] == '-' {
		r.pos++
	}
	zero := r.pos < len(r.s) && r.s[r.pos] == '0'
	from := r.pos
	if !digits() || zero && r.pos > from+1 {
		return nil, errors.New("no number")
	}
	whole := true
	if r.pos+1 < len(r.s) && r.s[r.pos] == '.' {
		r.pos++
		whole = false
		if !digits() {
			return nil, errors.New("no number")
		}
	}
	if r.pos < len(r.s) && r.s[r.pos]|0x20 == 'e' {
		r.pos++
		whole = false
		if r.pos < len(r.s) && (r.s[r.pos] == '+' || r.s[r.pos] == '-') {
			r.pos++
		}
		if !digits() {
			return nil, errors.New("no number")
		}
	}
	text := r.s[start:r.pos]
	if whole {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i, nil
		}
		if len(text) > 4300 { // as Python
			return nil, errors.New("a number with too many digits")
		}
		b, _ := new(big.Int).SetString(text, 10)
		return b, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, errors.New("no number")
	}
	return f, nil
}

// errSurrogate is half a character: what Python reads but no engine takes as a text.
var errSurrogate = errors.New("a lone surrogate")

func (r *jsonReader) text() (string, error) {
	r.pos++
	start := r.pos
	for r.pos < len(r.s) {
		switch c := r.s[r.pos]; {
		case c == '"':
			s := r.s[start:r.pos]
			r.pos++
			return s, nil
		case c == '\\':
			return r.escaped(start)
		case c < 0x20:
			return "", errors.New("a control character in a text")
		}
		r.pos++
	}
	return "", errors.New("a text without its end")
}

func (r *jsonReader) escaped(start int) (string, error) {
	b := append(make([]byte, 0, max(64, 2*(r.pos-start))), r.s[start:r.pos]...)
	for r.pos < len(r.s) {
		c := r.s[r.pos]
		r.pos++
		switch {
		case c == '"':
			return string(b), nil
		case c < 0x20:
			return "", errors.New("a control character in a text")
		case c != '\\':
			from := r.pos - 1
			for r.pos < len(r.s) && r.s[r.pos] != '"' && r.s[r.pos] != '\\' && r.s[r.pos] >= 0x20 {
				r.pos++
			}
			b = append(b, r.s[from:r.pos]...)
			continue
		}
		if r.pos >= len(r.s) {
			break
		}
		c = r.s[r.pos]
		r.pos++
		switch c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			u, err := r.hex()
			if err != nil {
				return "", err
			}
			if u >= 0xd800 && u < 0xdc00 && strings.HasPrefix(r.s[r.pos:], `\u`) {
				r.pos += 2
				low, err := r.hex()
				if err != nil {
					return "", err
				}
				if low < 0xdc00 || low >= 0xe000 {
					return "", errSurrogate
				}
				u = (u-0xd800)<<10 + low - 0xdc00 + 0x10000
			} else if u >= 0xd800 && u < 0xe000 {
				return "", errSurrogate
			}
			b = utf8.AppendRune(b, u)
		default:
			return "", errors.New("an unknown escape")
		}
	}
	return "", errors.New("a text without its end")
}

func (r *jsonReader) hex() (rune, error) {
	if r.pos+4 > len(r.s) {
		return 0, errors.New("a \\u without four digits")
	}
	v := rune(0)
	for range 4 {
		c := r.s[r.pos]
		r.pos++
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, errors.New("a \\u without four digits")
		}
	}
	return v, nil
}
