// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// A walker reads one JSON object, in pieces of any size, and builds nothing. It tells a visitor
// what it passes, by role: the visitor gives a role to every key it knows, and all else is
// skipped. What it keeps is bounded: the beginning of one token, and a role per level.
//
// It is no validator. It notices broken structure, but not a bad escape or number; what the
// engine will refuse needs no second judge here.
type walker struct {
	visit visitor
	state state
	esc   bool           // an odd number of backslashes ended the last piece of a string
	role  role           // of the value under way or to come
	depth int            // open containers
	off   int64          // offset of the piece being fed
	start int64          // offset of the token under way, without its quote
	limit int            // how many bytes of it to keep
	long  bool           // it is longer than that
	buf   []byte         // its first bytes, if it began in an earlier piece
	name  []byte         // a key without its escapes
	stack [maxDepth]role // what is within each open container
}

// visitor gives meaning to what a walker passes. Spans are offsets in the document; raw bytes
// are valid during the call.
type visitor interface {
	// key tells the role of the value that follows a key of an object within role in.
	key(in role, name []byte) role
	// open tells the role of what is within the container of role r that begins at an offset:
	// of an object, what key is asked with; of an array, the role of its elements.
	open(r role, object bool, at int64) role
	// shut says that a container is complete; in is what open answered. at is behind its end.
	shut(in role, at int64)
	// text and scalar say that a string or another literal of role r is complete.
	text(r role, t token)
	scalar(r role, t token)
	// keep tells how many bytes of a string of role r the visitor wants to see.
	keep(r role) int
}

// token is a string, without quotes and with its escapes, or a literal.
type token struct {
	Span
	raw  []byte // its first bytes, as many as keep asked for
	long bool   // raw is not all
}

// role is what a value means to a visitor.
type role uint8

const (
	skip   role = 0        // nothing; nor does anything within it
	opaque role = 1 << 7   // flag: nothing within is of interest, but the end is
	object role = 1 << 6   // flag used by the walker alone: the container is an object
	plain  role = 1<<6 - 1 // mask of a visitor's own roles
)

const (
	maxDepth  = 512 // deeper documents are not understood; engines refuse them as well
	keepKey   = 160 // bytes of a key: enough for any known one written in \u escapes
	keepValue = 40  // bytes of a literal: enough for any number that fits an int64
)

type state uint8

const (
	atBegin    state = iota
	atValue          // a value must follow
	atFirst          // a value, or the end of an empty array
	atKey            // a key must follow
	atFirstKey       // a key, or the end of an empty object
	atColon
	atNext // a comma, or the end of the container
	inKey
	inText
	inScalar
	atEnd  // the object is complete; only white space may follow
	broken // not JSON, or not an object
)

// reset prepares for another document.
func (w *walker) reset(v visitor) {
	w.visit, w.state, w.depth, w.off, w.buf = v, atBegin, 0, 0, w.buf[:0]
}

// complete tells whether exactly one object was read.
func (w *walker) complete() bool { return w.state == atEnd }

// feed reads the next piece. It does not keep p.
func (w *walker) feed(p []byte) {
	for i := 0; i < len(p); {
		switch w.state {
		case inKey, inText:
			i = w.inString(p, i)
		case inScalar:
			i = w.inScalar(p, i)
		case broken:
			return
		default:
			i = w.structure(p, i)
		}
	}
	w.off += int64(len(p))
}

// structure reads white space and at most one byte of structure, or a value's first byte.
func (w *walker) structure(p []byte, i int) int {
	if i = passSpace(p, i); i == len(p) {
		return i
	}
	c := p[i]
	at := w.off + int64(i)
	switch {
	case c == '"' && (w.state == atKey || w.state == atFirstKey):
		w.begin(inKey, at+1, w.keyLimit())
	case c == '"' && (w.state == atValue || w.state == atFirst):
		keep := 0
		if w.role != skip {
			keep = w.visit.keep(w.role)
		}
		w.begin(inText, at+1, keep)
	case c == ':' && w.state == atColon:
		w.state = atValue
	case c == ',' && w.state == atNext:
		if within := w.stack[w.depth-1]; within&object != 0 {
			w.state = atKey
		} else {
			w.state, w.role = atValue, element(within)
		}
	case c == '{' && (w.state <= atFirst), c == '[' && (w.state == atValue || w.state == atFirst):
		w.push(c == '{', at)
	case c == '}' && (w.state == atNext || w.state == atFirstKey) && w.stack[w.depth-1]&object != 0,
		c == ']' && (w.state == atNext || w.state == atFirst) && w.stack[w.depth-1]&object == 0:
		w.pop(at + 1)
	case (w.state == atValue || w.state == atFirst) && kind[c]&startsLiteral != 0:
		w.begin(inScalar, at, keepValue)
		return i
	default:
		w.state = broken
	}
	return i + 1
}

// element is the role of what is within an array.
func element(within role) role {
	if within&opaque != 0 {
		return skip
	}
	return within & plain
}

// keyLimit is how much of a key to keep: nothing when nobody will ask.
func (w *walker) keyLimit() int {
	if element(w.stack[w.depth-1]) == skip {
		return 0
	}
	return keepKey
}

func (w *walker) begin(s state, at int64, keep int) {
	w.state, w.start, w.limit, w.buf, w.esc, w.long = s, at, keep, w.buf[:0], false, false
}

func (w *walker) push(isObject bool, at int64) {
	if w.depth == maxDepth {
		w.state = broken
		return
	}
	if w.depth == 0 {
		w.role = plain // the root, a role that every visitor keeps for it
	}
	within := skip
	if w.role != skip {
		within = w.visit.open(w.role, isObject, at)
	}
	if isObject {
		w.stack[w.depth] = within | object
		w.state = atFirstKey
	} else {
		w.stack[w.depth] = within
		w.state, w.role = atFirst, element(within)
	}
	w.depth++
}

func (w *walker) pop(at int64) {
	w.depth--
	if within := w.stack[w.depth] &^ object; within != skip {
		w.visit.shut(within, at)
	}
	w.valued()
}

// valued goes on after a complete value.
func (w *walker) valued() {
	if w.state = atNext; w.depth == 0 {
		w.state = atEnd
	}
}

// inString reads a string up to its quote or the end of the piece. Most bytes of a prompt pass
// here, so it looks at nothing but quotes, and at the backslashes before them.
func (w *walker) inString(p []byte, i int) int {
	from := i // where w.esc speaks of
	for {
		q := quote(p[i:])
		end := i + q
		if q < 0 {
			end = len(p)
		}
		k := end
		for k > from && p[k-1] == '\\' {
			k--
		}
		esc := (end-k)&1 == 1
		if k == from {
			esc = esc != w.esc
		}
		if q < 0 {
			w.esc = esc
			w.keep(p[from0(w, p):])
			return len(p)
		}
		if !esc {
			w.stringEnd(p, end)
			return end + 1
		}
		i, from, w.esc = end+1, end+1, false
	}
}

// quote finds the first quote. Most strings, and the pieces between the quotes in a prompt that
// is code, are so short that it pays to look at some words before calling anybody.
func quote(p []byte) int {
	const ones = 0x0101010101010101
	n := min(len(p)&^7, 32)
	for i := 0; i < n; i += 8 {
		x := binary.LittleEndian.Uint64(p[i:]) ^ '"'*ones
		if zero := (x - ones) &^ x & (0x80 * ones); zero != 0 {
			return i + bits.TrailingZeros64(zero)>>3
		}
	}
	if i := bytes.IndexByte(p[n:], '"'); i >= 0 {
		return n + i
	}
	return -1
}

// from0 is where the token under way begins in p, or 0 when it began before.
func from0(w *walker, p []byte) int { return int(max(w.start-w.off, 0)) }

// keep saves what is wanted of a token that the next piece will go on with.
func (w *walker) keep(p []byte) {
	n := min(len(p), w.limit-len(w.buf))
	w.buf = append(w.buf, p[:n]...)
	w.long = w.long || n < len(p)
}

// token is the one under way, which ends at p[end].
func (w *walker) token(p []byte, end int) token {
	t := token{Span: Span{Off: w.start, Len: w.off + int64(end) - w.start}}
	if w.start >= w.off { // all of it is here
		t.raw = p[w.start-w.off : end]
		if t.long = len(t.raw) > w.limit; t.long {
			t.raw = t.raw[:w.limit]
		}
		return t
	}
	w.keep(p[:end])
	t.raw, t.long = w.buf, w.long
	return t
}

func (w *walker) stringEnd(p []byte, end int) {
	if w.state == inText {
		if w.role != skip {
			w.visit.text(w.role, w.token(p, end))
		}
		w.valued()
		return
	}
	w.state, w.role = atColon, skip
	if w.limit == 0 {
		return
	}
	t := w.token(p, end)
	if t.long {
		return
	}
	name := t.raw
	if bytes.IndexByte(name, '\\') >= 0 {
		w.name = unescape(w.name[:0], name)
		name = w.name
	}
	w.role = w.visit.key(element(w.stack[w.depth-1]), name)
}

// inScalar reads a number, true, false or null.
func (w *walker) inScalar(p []byte, i int) int {
	end := i
	for end < len(p) && kind[p[end]]&literal != 0 {
		end++
	}
	if end == len(p) {
		w.keep(p[from0(w, p):])
		return end
	}
	number := true
	if w.role != skip {
		t := w.token(p, end)
		number = isNumber(t.raw)
		w.visit.scalar(w.role, t)
	}
	w.valued()
	if number && w.stack[w.depth-1]&object == 0 {
		return passNumbers(p, end)
	}
	return end
}

// passNumbers goes on behind further numbers of a list, all of which mean what the first one
// did: a prompt of token ids is passed quickly. What it cannot see the end of it leaves.
func passNumbers(p []byte, i int) int {
	for {
		k := passSpace(p, i)
		if k == len(p) || p[k] != ',' {
			return i
		}
		if k = passSpace(p, k+1); k == len(p) || !isNumber(p[k:]) {
			return i
		}
		for kind[p[k]]&literal != 0 {
			if k++; k == len(p) {
				return i
			}
		}
		i = k
	}
}

func passSpace(p []byte, i int) int {
	for i < len(p) && kind[p[i]]&space != 0 {
		i++
	}
	return i
}

// isNumber tells a number from true, false and null, by how it begins.
func isNumber(raw []byte) bool { return raw[0] == '-' || raw[0]-'0' < 10 }

const (
	startsLiteral = 1 << iota
	literal
	space
)

// kind tells what a byte may be part of.
var kind = func() (k [256]byte) {
	for _, c := range []byte("-0123456789tfn") {
		k[c] |= startsLiteral
	}
	for _, c := range []byte("+-.0123456789eEtrufalsn") {
		k[c] |= literal
	}
	for _, c := range []byte(" \n\r\t") {
		k[c] |= space
	}
	return k
}()

// unescape appends the meaning of a JSON string's content to dst. An escape that means nothing
// stays as it is.
func unescape(dst, raw []byte) []byte {
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 == len(raw) {
			return append(dst, raw...)
		}
		dst, raw = append(dst, raw[:i]...), raw[i:]
		n := 2
		switch c := raw[1]; c {
		case 'n':
			dst = append(dst, '\n')
		case 't':
			dst = append(dst, '\t')
		case 'r':
			dst = append(dst, '\r')
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case '"', '\\', '/':
			dst = append(dst, c)
		case 'u':
			var r rune
			if r, n = unescapeRune(raw); n > 0 {
				dst = utf8.AppendRune(dst, r)
				break
			}
			n = 2
			fallthrough
		default:
			dst = append(dst, raw[:2]...)
		}
		raw = raw[n:]
	}
	return dst
}

// unescapeRune reads \uXXXX, or two that make a pair, and tells their length, 0 when malformed.
func unescapeRune(raw []byte) (rune, int) {
	r, ok := hex4(raw)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if low, ok := hex4(raw[6:]); ok {
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// hex4 reads the number in \uXXXX.
func hex4(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range raw[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
