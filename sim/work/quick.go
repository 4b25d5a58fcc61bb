// SPDX-License-Identifier: Apache-2.0

package work

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// quick reads the lines that traces mostly have: one flat object of plain numbers, plain texts and
// hash_ids. It is false for any other, right or wrong: encoding/json knows those, and takes ten
// times as long.
func (c *record) quick(line []byte) bool {
	s := scanner{text: line}
	if !s.is('{') {
		return false
	}
	for first := true; ; first = false {
		if s.is('}') {
			s.space()
			return len(s.text) == 0
		}
		if !first && !s.is(',') {
			return false
		}
		key, ok := s.string()
		if !ok || !s.is(':') {
			return false
		}
		s.space()
		if len(s.text) == 0 {
			return false
		}
		switch from := s.text; s.text[0] {
		case '"':
			v, ok := s.string()
			if !ok || !c.text(string(key), v, from[:len(v)+2]) {
				return false
			}
		case '[':
			if string(key) != "hash_ids" || len(c.IDs) > 0 || !s.whole(&c.IDs) {
				return false
			}
		default:
			v, n, ok := s.number()
			if !ok || !c.number(string(key), v, from[:n]) {
				return false
			}
		}
	}
}

func (c *record) text(key string, v, raw []byte) bool {
	switch key {
	case "session":
		c.Session = append(c.Session[:0], raw...)
	case "chat_id":
		c.Chat = append(c.Chat[:0], raw...)
	case "model":
		c.Model = string(v)
	case "tenant":
		c.Tenant = string(v)
	case "time":
		c.Time = string(v)
	case "msg":
		c.Msg = string(v)
	case "timestamp", "input_length", "output_length", "hash_ids", "priority", "duration_ms", "request_bytes", "prompt_tokens", "output_tokens", "cached_tokens":
		return false
	}
	return true
}

func (c *record) number(key string, v float64, raw []byte) bool {
	switch key {
	case "timestamp":
		c.Timestamp = v
	case "input_length":
		c.Input = v
	case "output_length":
		c.Output = v
	case "session":
		c.Session = append(c.Session[:0], raw...)
	case "chat_id":
		c.Chat = append(c.Chat[:0], raw...)
	case "priority":
		c.Priority = int(v)
		return v == math.Trunc(v) && math.Abs(v) < 1e15
	case "duration_ms":
		c.Duration = v
	case "request_bytes":
		c.Bytes = v
	case "prompt_tokens":
		c.PromptTokens = v
	case "output_tokens":
		c.OutputTokens = v
	case "cached_tokens":
		c.Cached = v
	case "hash_ids", "model", "tenant", "time", "msg":
		return false
	}
	return true
}

// scanner cuts tokens off the beginning of a text.
type scanner struct{ text []byte }

func (s *scanner) space() {
	for len(s.text) > 0 && (s.text[0] == ' ' || s.text[0] == '\t') {
		s.text = s.text[1:]
	}
}

// is takes one character, if it is next.
func (s *scanner) is(c byte) bool {
	s.space()
	if len(s.text) == 0 || s.text[0] != c {
		return false
	}
	s.text = s.text[1:]
	return true
}

// string takes a text that needs no unescaping.
func (s *scanner) string() ([]byte, bool) {
	if !s.is('"') {
		return nil, false
	}
	for i, c := range s.text {
		switch {
		case c == '"':
			v := s.text[:i]
			s.text = s.text[i+1:]
			return v, true
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return nil, false
		}
	}
	return nil, false
}

// digits takes a whole number without a leading 0, of up to 18 digits.
func (s *scanner) digits() (uint64, bool) {
	n, i := uint64(0), 0
	for i < len(s.text) && i < 19 && '0' <= s.text[i] && s.text[i] <= '9' {
		n = n*10 + uint64(s.text[i]-'0')
		i++
	}
	if i == 0 || i > 18 || i > 1 && s.text[0] == '0' {
		return 0, false
	}
	s.text = s.text[i:]
	return n, true
}

// number takes a number, and says how many characters it had.
func (s *scanner) number() (v float64, n int, ok bool) {
	from := s.text
	negative := s.text[0] == '-'
	if negative {
		s.text = s.text[1:]
	}
	whole, ok := s.digits()
	if !ok {
		return 0, 0, false
	}
	v = float64(whole)
	if len(s.text) > 0 && s.text[0] == '.' {
		s.text = s.text[1:]
		i := 0
		for i < len(s.text) && '0' <= s.text[i] && s.text[i] <= '9' {
			i++
		}
		if i == 0 {
			return 0, 0, false
		}
		s.text = s.text[i:]
		n = len(from) - len(s.text)
		var err error
		v, err = strconv.ParseFloat(string(from[:n]), 64)
		return v, n, err == nil
	}
	if negative {
		v = -v
	}
	return v, len(from) - len(s.text), true
}

// whole takes an array of whole numbers.
func (s *scanner) whole(into *[]uint64) bool {
	if !s.is('[') {
		return false
	}
	if s.is(']') {
		return true
	}
	for {
		s.space()
		n, ok := s.digits()
		if !ok {
			return false
		}
		*into = append(*into, n)
		if s.is(']') {
			return true
		}
		if !s.is(',') {
			return false
		}
	}
}
