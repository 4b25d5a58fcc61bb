// SPDX-License-Identifier: Apache-2.0

package request

import "bytes"

// The questions of this file are asked of every event of every stream. They search for a key
// in place; a quote within a JSON string is escaped, so that `"usage"` cannot be part of a text.

// tellsUsage tells whether there is a usage that is not null.
func tellsUsage(data []byte) bool {
	for {
		value := after(data, "usage")
		if value == nil {
			return false
		}
		if value[0] != 'n' {
			return true
		}
		data = value
	}
}

// carries tells whether an event carries output, and not a role, a usage or an error alone.
func (a *Answer) carries(data []byte) bool {
	key := "delta"
	switch a.api {
	case Completions:
		key = "text"
	case Generate:
		key = "token_ids"
	case Unknown:
		return !bytes.HasPrefix(data, []byte(`{"error"`))
	}
	// The events of a stream are alike: look first where the key was in the last one.
	if a.hint < len(data) && bytes.HasPrefix(data[a.hint:], []byte(key)) && outputs(after(data[a.hint-1:], key)) {
		return true
	}
	for rest := data; ; {
		value := after(rest, key)
		if value == nil {
			return false
		}
		if outputs(value) {
			a.hint = max(bytes.LastIndex(data[:len(data)-len(value)], []byte(key)), 1)
			return true
		}
		rest = value
	}
}

// outputs tells whether the value of a key that brings output brings any.
func outputs(value []byte) bool {
	if len(value) > 0 && value[0] == '{' {
		return deltaCarries(value[1:])
	}
	return len(value) > 0 && filled(value)
}

// after gives data from the value of a key on, nil when there is none, else never empty.
func after(data []byte, key string) []byte {
	for {
		// The key's first letter is rarer than a quote: look for that.
		i := bytes.Index(data, []byte(key))
		if i < 0 {
			return nil
		}
		quoted := i > 0 && data[i-1] == '"'
		data = data[i+len(key):]
		if !quoted || len(data) == 0 || data[0] != '"' {
			continue
		}
		if rest := blank(data[1:]); len(rest) > 0 && rest[0] == ':' {
			if value := blank(rest[1:]); len(value) > 0 {
				return value
			}
		}
	}
}

// blank cuts off white space.
func blank(p []byte) []byte {
	for len(p) > 0 && (p[0] == ' ' || p[0] == '\t' || p[0] == '\n' || p[0] == '\r') {
		p = p[1:]
	}
	return p
}

// filled tells whether a value is a string, list or object with something in it.
func filled(value []byte) bool {
	rest := blank(value[1:])
	switch value[0] {
	case '"':
		return len(value) > 1 && value[1] != '"'
	case '[':
		return len(rest) > 0 && rest[0] != ']'
	case '{':
		return len(rest) > 0 && rest[0] != '}'
	}
	return false
}

// deltaCarries reads the keys of a delta up to the first one with something in it. Its role and
// type are no output.
func deltaCarries(p []byte) bool {
	for {
		if p = blank(p); len(p) > 0 && p[0] == ',' {
			p = blank(p[1:])
		}
		if len(p) == 0 || p[0] != '"' {
			return false
		}
		n := bytes.IndexByte(p[1:], '"')
		if n < 0 {
			return false
		}
		key := p[1 : 1+n]
		if p = blank(p[n+2:]); len(p) == 0 || p[0] != ':' {
			return false
		}
		if p = blank(p[1:]); len(p) == 0 {
			return false
		}
		if string(key) != "role" && string(key) != "type" && filled(p) {
			return true
		}
		p = pass(p)
	}
}

// pass goes behind a value that is a short string without escapes, empty, or a literal.
func pass(p []byte) []byte {
	end := -1
	switch p[0] {
	case '"':
		end = bytes.IndexByte(p[1:], '"') + 1
	case '[':
		end = bytes.IndexByte(p, ']')
	case '{':
		end = bytes.IndexByte(p, '}')
	default:
		if end = bytes.IndexAny(p, ",}"); end >= 0 {
			return p[end:]
		}
	}
	if end <= 0 {
		return nil
	}
	return p[end+1:]
}

// typeOf reads the type that an event's data begins with, as all engines write it.
func typeOf(data []byte) event {
	if len(data) == 0 || data[0] != '{' {
		return eventOther
	}
	data = blank(data[1:])
	if !bytes.HasPrefix(data, []byte(`"type"`)) {
		return eventOther
	}
	value := after(data, "type")
	if value == nil || value[0] != '"' {
		return eventOther
	}
	end := bytes.IndexByte(value[1:], '"')
	if end < 0 {
		return eventOther
	}
	return eventOf(value[1 : 1+end])
}
