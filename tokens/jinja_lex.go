// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The lexer of Jinja 3.1 as transformers sets it up: trim_blocks, lstrip_blocks, no trailing newline.

type tokKind uint8

const (
	tEOF tokKind = iota
	tData
	tBlockBegin
	tBlockEnd
	tVarBegin
	tVarEnd
	tName
	tString
	tInt
	tFloat
	tOp
)

type tok struct {
	kind tokKind
	text string // a string is unescaped
	num  any
	line int
}

func (t tok) String() string {
	switch t.kind {
	case tEOF:
		return "end of template"
	case tData:
		return "text"
	case tBlockBegin:
		return "{%"
	case tBlockEnd:
		return "%}"
	case tVarBegin:
		return "{{"
	case tVarEnd:
		return "}}"
	}
	return strconv.Quote(t.text)
}

// syntaxError is what is wrong with a template's source.
type syntaxError struct {
	line int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.what) }

// pySpace is what Python's str.strip strips and \s of its re matches.
func pySpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

type jinjaLexer struct {
	src       string
	pos, line int
	toks      []tok
	lineStart bool
}

func lexJinja(src string) (toks []tok, err error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &jinjaLexer{src: src, line: 1, lineStart: true}
	defer func() {
		if e, ok := recover().(*syntaxError); ok {
			err = e
		}
	}()
	l.root()
	return append(l.toks, tok{kind: tEOF, line: l.line}), nil
}

func (l *jinjaLexer) fail(format string, args ...any) {
	panic(&syntaxError{l.line, fmt.Sprintf(format, args...)})
}

func (l *jinjaLexer) add(kind tokKind, text string) {
	l.toks = append(l.toks, tok{kind: kind, text: text, line: l.line})
}

// advance moves over n bytes.
func (l *jinjaLexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// sign is the character behind a tag's begin that says what becomes of the white space before it.
func (l *jinjaLexer) sign(at int) byte {
	if at < len(l.src) && (l.src[at] == '-' || l.src[at] == '+') {
		return l.src[at]
	}
	return 0
}

// data adds the text before a tag, stripped as the tag wants it.
func (l *jinjaLexer) data(text string, sign byte, isVar bool) {
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, pySpace)
	case sign != '+' && !isVar:
		at := strings.LastIndexByte(text, '\n') + 1
		if (at > 0 || l.lineStart) && at < len(text) && strings.TrimFunc(text[at:], pySpace) == "" {
			text = text[:at]
		}
	}
	if text != "" {
		l.add(tData, text)
	}
}

func (l *jinjaLexer) root() {
	for l.pos < len(l.src) {
		at := l.pos
		for {
			n := strings.IndexByte(l.src[at:], '{')
			if n < 0 || at+n+1 >= len(l.src) {
				l.add(tData, l.src[l.pos:])
				l.advance(len(l.src) - l.pos)
				return
			}
			at += n
			if c := l.src[at+1]; c == '{' || c == '%' || c == '#' {
				break
			}
			at++
		}
		kind := l.src[at+1]
		sign := l.sign(at + 2)
		text := l.src[l.pos:at]
		l.data(text, sign, kind == '{')
		l.advance(len(text) + 2)
		if sign != 0 {
			l.advance(1)
		}
		switch kind {
		case '#':
			l.comment()
		case '{':
			l.add(tVarBegin, "")
			l.expression(tVarEnd)
		case '%':
			if l.raw() {
				continue
			}
			l.add(tBlockBegin, "")
			l.expression(tBlockEnd)
		}
	}
}

// endTag moves over the end of a block or comment: its white space is taken, or one newline, or nothing.
func (l *jinjaLexer) endTag(end string, trim bool) bool {
	rest := l.src[l.pos:]
	switch {
	case strings.HasPrefix(rest, "-"+end):
		n := 1 + len(end)
		n += len(rest[n:]) - len(strings.TrimLeftFunc(rest[n:], pySpace))
		l.lineStart = n > 1+len(end) && rest[n-1] == '\n'
		l.advance(n)
	case trim && strings.HasPrefix(rest, "+"+end):
		l.lineStart = false
		l.advance(1 + len(end))
	case strings.HasPrefix(rest, end):
		n := len(end)
		l.lineStart = false
		if trim && strings.HasPrefix(rest[n:], "\n") {
			n++
			l.lineStart = true
		}
		l.advance(n)
	default:
		return false
	}
	return true
}

func (l *jinjaLexer) comment() {
	n := strings.Index(l.src[l.pos:], "#}")
	if n < 0 {
		l.fail("a comment without #}")
	}
	if n > 0 && (l.src[l.pos+n-1] == '-' || l.src[l.pos+n-1] == '+') {
		n--
	}
	l.advance(n)
	l.endTag("#}", true)
}

// raw reads {% raw %} to {% endraw %}, if that is what follows.
func (l *jinjaLexer) raw() bool {
	rest := l.src[l.pos:]
	word := strings.TrimLeftFunc(rest, pySpace)
	after, ok := strings.CutPrefix(word, "raw")
	if !ok {
		return false
	}
	end := strings.TrimLeftFunc(after, pySpace)
	if !strings.HasPrefix(end, "%}") && !strings.HasPrefix(end, "-%}") {
		return false
	}
	l.advance(len(rest) - len(end))
	l.endTag("%}", false)
	start := l.pos
	for at := start; ; {
		n := strings.Index(l.src[at:], "{%")
		if n < 0 {
			l.fail("raw without endraw")
		}
		at += n
		p := at + 2
		sign := l.sign(p)
		if sign != 0 {
			p++
		}
		tail := strings.TrimLeftFunc(l.src[p:], pySpace)
		tail, ok := strings.CutPrefix(tail, "endraw")
		if tail = strings.TrimLeftFunc(tail, pySpace); !ok || !strings.HasPrefix(tail, "%}") && !strings.HasPrefix(tail, "-%}") && !strings.HasPrefix(tail, "+%}") {
			at += 2
			continue
		}
		l.data(l.src[start:at], sign, false)
		l.advance(len(l.src) - len(tail) - l.pos)
		l.endTag("%}", true)
		return true
	}
}

var jinjaOps = []string{"**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

func (l *jinjaLexer) expression(end tokKind) {
	var open []byte
	for {
		rest := l.src[l.pos:]
		if n := len(rest) - len(strings.TrimLeftFunc(rest, pySpace)); n > 0 {
			l.advance(n)
			continue
		}
		if rest == "" {
			l.fail("a tag without its end")
		}
		if len(open) == 0 {
			if text := "%}"; end == tBlockEnd && (strings.HasPrefix(rest, text) || strings.HasPrefix(rest, "-"+text) || strings.HasPrefix(rest, "+"+text)) {
				l.add(tBlockEnd, "")
				l.endTag(text, true)
				return
			}
			if text := "}}"; end == tVarEnd && (strings.HasPrefix(rest, text) || strings.HasPrefix(rest, "-"+text)) {
				l.add(tVarEnd, "")
				l.endTag(text, false)
				return
			}
		}
		r, w := utf8.DecodeRuneInString(rest)
		switch {
		case r == '_' || unicode.IsLetter(r):
			n := w
			for n < len(rest) {
				r, w := utf8.DecodeRuneInString(rest[n:])
				if r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) {
					break
				}
				n += w
			}
			l.add(tName, rest[:n])
			l.advance(n)
		case r >= '0' && r <= '9':
			l.number(rest)
		case r == '"' || r == '\'':
			n := 1
			for n < len(rest) && rest[n] != byte(r) {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			if n >= len(rest) {
				l.fail("a string without its end")
			}
			l.add(tString, l.unescape(rest[1:n]))
			l.advance(n + 1)
		default:
			op := ""
			for _, o := range jinjaOps {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			switch op {
			case "":
				l.fail("unexpected %q", r)
			case "(", "[", "{":
				open = append(open, op[0])
			case ")", "]", "}":
				want := map[string]byte{")": '(', "]": '[', "}": '{'}[op]
				if len(open) == 0 || open[len(open)-1] != want {
					l.fail("unexpected %s", op)
				}
				open = open[:len(open)-1]
			}
			l.add(tOp, op)
			l.advance(len(op))
		}
	}
}

func (l *jinjaLexer) number(rest string) {
	n := 0
	digits := func() {
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_') {
			n++
		}
	}
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		n = 2
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n]|0x20 >= 'a' && rest[n]|0x20 <= 'f' || rest[n] == '_') {
			n++
		}
	} else {
		digits()
		float := false
		if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
			float = true
			n++
			digits()
		}
		if n < len(rest) && rest[n]|0x20 == 'e' {
			m := n + 1
			if m < len(rest) && (rest[m] == '+' || rest[m] == '-') {
				m++
			}
			if m < len(rest) && rest[m] >= '0' && rest[m] <= '9' {
				float = true
				n = m
				digits()
			}
		}
		if float {
			f, err := strconv.ParseFloat(strings.ReplaceAll(rest[:n], "_", ""), 64)
			if err != nil {
				l.fail("%s is no number", rest[:n])
			}
			l.toks = append(l.toks, tok{kind: tFloat, text: rest[:n], num: f, line: l.line})
			l.advance(n)
			return
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	var num any
	if len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9' {
		text = strings.TrimLeft(text, "0")
		if text == "" {
			text = "0"
		}
	}
	if i, err := strconv.ParseInt(text, 0, 64); err == nil {
		num = i
	} else if b, ok := new(big.Int).SetString(text, 0); ok && len(text) < 1000 {
		num = b
	} else {
		l.fail("%s is no number", rest[:n])
	}
	l.toks = append(l.toks, tok{kind: tInt, text: rest[:n], num: num, line: l.line})
	l.advance(n)
}

// unescape is Python's unicode-escape.
func (l *jinjaLexer) unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		hex := 0
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte('\v')
		case 'x':
			hex = 2
		case 'u':
			hex = 4
		case 'U':
			hex = 8
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := i
			for n < len(s) && n < i+3 && s[n] >= '0' && s[n] <= '7' {
				n++
			}
			v, _ := strconv.ParseUint(s[i:n], 8, 16)
			b.WriteRune(rune(v))
			i = n - 1
		case 'N':
			l.fail(`\N{…} is not known here`)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
		if hex > 0 {
			v, err := strconv.ParseUint(s[i+1:min(len(s), i+1+hex)], 16, 32)
			if err != nil || i+1+hex > len(s) || v > unicode.MaxRune || v >= 0xd800 && v < 0xe000 {
				l.fail("a broken escape in a string")
			}
			b.WriteRune(rune(v))
			i += hex
		}
	}
	return b.String()
}
