// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"html"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

type (
	filterFunc func(r *render, v any, pos []any, named *dict) any
	testFunc   func(r *render, v any, pos []any) bool
	method     func(r *render, self any, pos []any, named *dict) any
)

// arg is the i-th argument, or the one of that name, or nil.
func arg(pos []any, named *dict, i int, name string) any {
	if i < len(pos) {
		return pos[i]
	}
	if named != nil {
		if v, ok := named.get(name); ok {
			return v
		}
	}
	return nil
}

func has(pos []any, named *dict, i int, name string) bool {
	return i < len(pos) || named != nil && named.find(name) >= 0
}

func text(v any) string {
	s, ok := v.(string)
	if !ok {
		fail("a text is wanted, not %s", typeName(v))
	}
	return s
}

func upper(s string) string {
	if ascii(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lowerPy(s string) string {
	if ascii(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return titleRune(s[:n]) + lowerPy(s[n:])
}

func titleRune(s string) string {
	return strings.Map(unicode.ToTitle, s)
}

// titlePy is Python's str.title.
func titlePy(s string) string {
	var b strings.Builder
	inWord := false
	for _, c := range s {
		cased := unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
		switch {
		case cased && inWord:
			b.WriteRune(unicode.ToLower(c))
		case cased:
			b.WriteRune(unicode.ToTitle(c))
		default:
			b.WriteRune(c)
		}
		inWord = cased
	}
	return b.String()
}

// stripper is what strip and its sisters take away.
func stripper(pos []any) func(rune) bool {
	if len(pos) == 0 || pos[0] == nil {
		return pySpace
	}
	set := text(pos[0])
	return func(c rune) bool { return strings.ContainsRune(set, c) }
}

func (r *render) texts(parts []string) *list {
	l := &list{items: make([]any, len(parts))}
	r.charge(16 * len(parts))
	for i, p := range parts {
		l.items[i] = p
	}
	return l
}

func splitLimit(v any) int {
	if v == nil {
		return -1
	}
	return toInt(v)
}

func splitPy(s string, sep any, limit int, right bool) []string {
	if sep == nil {
		var out []string
		if right && limit >= 0 {
			for {
				s = strings.TrimRightFunc(s, pySpace)
				if s == "" {
					break
				}
				at := strings.LastIndexFunc(s, pySpace)
				if limit == 0 || at < 0 {
					out = append(out, strings.TrimLeftFunc(s, func(rune) bool { return false }))
					break
				}
				_, w := utf8.DecodeRuneInString(s[at:])
				out = append(out, s[at+w:])
				s = s[:at]
				limit--
			}
			slices.Reverse(out)
			return out
		}
		for {
			s = strings.TrimLeftFunc(s, pySpace)
			if s == "" {
				return out
			}
			at := strings.IndexFunc(s, pySpace)
			if limit == 0 || at < 0 {
				return append(out, func() string {
					if limit == 0 {
						return strings.TrimRightFunc(s, pySpace)
					}
					return s
				}())
			}
			out = append(out, s[:at])
			s = s[at:]
			limit--
		}
	}
	sp := text(sep)
	if sp == "" {
		fail("empty separator")
	}
	if !right || limit < 0 {
		if limit < 0 {
			return strings.Split(s, sp)
		}
		return strings.SplitN(s, sp, limit+1)
	}
	var out []string
	for ; limit > 0; limit-- {
		at := strings.LastIndex(s, sp)
		if at < 0 {
			break
		}
		out = append(out, s[at+len(sp):])
		s = s[:at]
	}
	out = append(out, s)
	slices.Reverse(out)
	return out
}

func lineBreak(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

func splitLines(s string, keep bool) []string {
	var out []string
	for s != "" {
		at := strings.IndexFunc(s, lineBreak)
		if at < 0 {
			return append(out, s)
		}
		_, w := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			w = 2
		}
		if keep {
			out = append(out, s[:at+w])
		} else {
			out = append(out, s[:at])
		}
		s = s[at+w:]
	}
	return out
}

func all(s string, in func(rune) bool) bool {
	for _, c := range s {
		if !in(c) {
			return false
		}
	}
	return s != ""
}

// prefixes are what startswith takes: a text or a tuple of them.
func prefixes(v any) []string {
	l, ok := v.(*list)
	if !ok || !l.tuple {
		return []string{text(v)}
	}
	var out []string
	for _, x := range l.items {
		out = append(out, text(x))
	}
	return out
}

func (r *render) pad(s string, pos []any, where byte) any {
	if len(pos) == 0 {
		fail("a width is wanted")
	}
	fill := " "
	if len(pos) > 1 {
		fill = text(pos[1])
	}
	n := toInt(pos[0]) - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	if n > maxMade/4 {
		fail("a text too long")
	}
	r.charge(n)
	left := map[byte]int{'l': 0, 'r': n, 'c': n/2 + (n & (n + utf8.RuneCountInString(s)) & 1)}[where]
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left)
}

// find is str.find and its sisters, in characters.
func find(s string, pos []any, last bool) int64 {
	if len(pos) != 1 {
		fail("find with a range is not known here")
	}
	at := strings.Index(s, text(pos[0]))
	if last {
		at = strings.LastIndex(s, text(pos[0]))
	}
	if at < 0 {
		return -1
	}
	return int64(utf8.RuneCountInString(s[:at]))
}

var strMethods map[string]method

var dictMethods = map[string]method{
	"get": func(r *render, self any, pos []any, named *dict) any {
		if len(pos) == 0 {
			fail("get wants a key")
		}
		if k, ok := pos[0].(string); ok {
			if v, ok := self.(*dict).get(k); ok {
				return v
			}
		}
		return arg(pos, named, 1, "default")
	},
	"items": func(r *render, self any, _ []any, _ *dict) any { return r.pairs(self.(*dict)) },
	"keys":  func(r *render, self any, _ []any, _ *dict) any { return &list{items: r.iterate(self)} },
	"values": func(r *render, self any, _ []any, _ *dict) any {
		return &list{items: self.(*dict).vals}
	},
	"copy":       func(r *render, self any, _ []any, _ *dict) any { return self.(*dict).clone() },
	"pop":        unsafe("pop"),
	"update":     unsafe("update"),
	"setdefault": unsafe("setdefault"),
	"clear":      unsafe("clear"),
	"popitem":    unsafe("popitem"),
}

// unsafe is a method that the sandbox does not let templates call.
func unsafe(name string) method {
	return func(*render, any, []any, *dict) any {
		fail("access to attribute '%s' is unsafe", name)
		return nil
	}
}

func (r *render) pairs(d *dict) *list {
	l := &list{items: make([]any, len(d.keys))}
	r.charge(64 * len(d.keys))
	for i, k := range d.keys {
		l.items[i] = &list{items: []any{k, d.vals[i]}, tuple: true}
	}
	return l
}

var listMethods = map[string]method{
	"index": func(r *render, self any, pos []any, _ *dict) any {
		for i, x := range self.(*list).items {
			if len(pos) > 0 && r.equal(x, pos[0]) {
				return int64(i)
			}
		}
		fail("the value is not in the list")
		return nil
	},
	"count": func(r *render, self any, pos []any, _ *dict) any {
		n := int64(0)
		for _, x := range self.(*list).items {
			if len(pos) > 0 && r.equal(x, pos[0]) {
				n++
			}
		}
		return n
	},
	"copy":    func(r *render, self any, _ []any, _ *dict) any { return &list{items: self.(*list).items} },
	"append":  unsafe("append"),
	"extend":  unsafe("extend"),
	"insert":  unsafe("insert"),
	"pop":     unsafe("pop"),
	"remove":  unsafe("remove"),
	"reverse": unsafe("reverse"),
	"sort":    unsafe("sort"),
	"clear":   unsafe("clear"),
}

var (
	filters     map[string]filterFunc
	tests       map[string]testFunc
	globalNames []string
	globalVals  []any
)

// ofTransformers is how many of the globals, the first, are not Jinja's own.
const ofTransformers = 2

// The catalogues are filled here, for what is in them refers to them.
func init() {
	simple := func(f func(string) string) method {
		return func(r *render, self any, _ []any, _ *dict) any { return r.made(f(self.(string))) }
	}
	is := func(in func(rune) bool) method {
		return func(r *render, self any, _ []any, _ *dict) any { return all(self.(string), in) }
	}
	hasCase := func(s string) bool {
		return strings.IndexFunc(s, func(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) }) >= 0
	}
	strMethods = map[string]method{
		"strip": func(r *render, self any, pos []any, _ *dict) any {
			return strings.TrimFunc(self.(string), stripper(pos))
		},
		"lstrip": func(r *render, self any, pos []any, _ *dict) any {
			return strings.TrimLeftFunc(self.(string), stripper(pos))
		},
		"rstrip": func(r *render, self any, pos []any, _ *dict) any {
			return strings.TrimRightFunc(self.(string), stripper(pos))
		},
		"split": func(r *render, self any, pos []any, named *dict) any {
			r.charge(len(self.(string)) / 2)
			return r.texts(splitPy(self.(string), arg(pos, named, 0, "sep"), splitLimit(arg(pos, named, 1, "maxsplit")), false))
		},
		"rsplit": func(r *render, self any, pos []any, named *dict) any {
			r.charge(len(self.(string)) / 2)
			return r.texts(splitPy(self.(string), arg(pos, named, 0, "sep"), splitLimit(arg(pos, named, 1, "maxsplit")), true))
		},
		"splitlines": func(r *render, self any, pos []any, named *dict) any {
			return r.texts(splitLines(self.(string), truthy(arg(pos, named, 0, "keepends"))))
		},
		"startswith": func(r *render, self any, pos []any, named *dict) any {
			if len(pos) != 1 {
				fail("startswith wants one text")
			}
			return slices.ContainsFunc(prefixes(pos[0]), func(p string) bool { return strings.HasPrefix(self.(string), p) })
		},
		"endswith": func(r *render, self any, pos []any, named *dict) any {
			if len(pos) != 1 {
				fail("endswith wants one text")
			}
			return slices.ContainsFunc(prefixes(pos[0]), func(p string) bool { return strings.HasSuffix(self.(string), p) })
		},
		"upper":      simple(upper),
		"lower":      simple(lowerPy),
		"casefold":   simple(func(s string) string { return cases.Fold().String(s) }),
		"title":      simple(titlePy),
		"capitalize": simple(capitalize),
		"swapcase": simple(func(s string) string {
			return strings.Map(func(c rune) rune {
				if unicode.IsUpper(c) {
					return unicode.ToLower(c)
				}
				return unicode.ToUpper(c)
			}, s)
		}),
		"replace": func(r *render, self any, pos []any, named *dict) any {
			s, old, with := self.(string), text(arg(pos, named, 0, "old")), text(arg(pos, named, 1, "new"))
			n := splitLimit(arg(pos, named, 2, "count"))
			r.charge(len(s) / 8)
			if c := strings.Count(s, old); c > 0 && len(with) > 0 {
				if c > maxMade/len(with) {
					fail("a text too long")
				}
				r.charge(len(s) + c*len(with))
			}
			return strings.Replace(s, old, with, n)
		},
		"find":  func(r *render, self any, pos []any, _ *dict) any { return find(self.(string), pos, false) },
		"rfind": func(r *render, self any, pos []any, _ *dict) any { return find(self.(string), pos, true) },
		"index": func(r *render, self any, pos []any, _ *dict) any {
			n := find(self.(string), pos, false)
			if n < 0 {
				fail("substring not found")
			}
			return n
		},
		"count": func(r *render, self any, pos []any, _ *dict) any {
			if len(pos) != 1 {
				fail("count wants one text")
			}
			return int64(strings.Count(self.(string), text(pos[0])))
		},
		"join": func(r *render, self any, pos []any, _ *dict) any {
			if len(pos) != 1 {
				fail("join wants one list")
			}
			var b strings.Builder
			for i, x := range r.iterate(pos[0]) {
				if i > 0 {
					b.WriteString(self.(string))
				}
				b.WriteString(text(x))
				r.charge(len(self.(string)))
			}
			return r.made(b.String())
		},
		"isdigit": is(func(c rune) bool {
			return unicode.IsDigit(c) || strings.ContainsRune("²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", c)
		}),
		"isdecimal": is(unicode.IsDigit),
		"isnumeric": is(unicode.IsNumber),
		"isalpha":   is(unicode.IsLetter),
		"isalnum":   is(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
		"isspace":   is(pySpace),
		"isupper": func(r *render, self any, _ []any, _ *dict) any {
			s := self.(string)
			return hasCase(s) && strings.IndexFunc(s, unicode.IsLower) < 0
		},
		"islower": func(r *render, self any, _ []any, _ *dict) any {
			s := self.(string)
			return hasCase(s) && strings.IndexFunc(s, unicode.IsUpper) < 0
		},
		"istitle": func(r *render, self any, _ []any, _ *dict) any {
			return hasCase(self.(string)) && titlePy(self.(string)) == self.(string)
		},
		"partition": func(r *render, self any, pos []any, _ *dict) any {
			if len(pos) != 1 {
				fail("partition wants one text")
			}
			a, b, ok := strings.Cut(self.(string), text(pos[0]))
			if !ok {
				return &list{items: []any{self, "", ""}, tuple: true}
			}
			return &list{items: []any{a, pos[0], b}, tuple: true}
		},
		"rpartition": func(r *render, self any, pos []any, _ *dict) any {
			if len(pos) != 1 {
				fail("rpartition wants one text")
			}
			s, sep := self.(string), text(pos[0])
			at := strings.LastIndex(s, sep)
			if at < 0 {
				return &list{items: []any{"", "", s}, tuple: true}
			}
			return &list{items: []any{s[:at], sep, s[at+len(sep):]}, tuple: true}
		},
		"removeprefix": func(r *render, self any, pos []any, _ *dict) any {
			return strings.TrimPrefix(self.(string), text(arg(pos, nil, 0, "")))
		},
		"removesuffix": func(r *render, self any, pos []any, _ *dict) any {
			return strings.TrimSuffix(self.(string), text(arg(pos, nil, 0, "")))
		},
		"ljust":  func(r *render, self any, pos []any, _ *dict) any { return r.pad(self.(string), pos, 'l') },
		"rjust":  func(r *render, self any, pos []any, _ *dict) any { return r.pad(self.(string), pos, 'r') },
		"center": func(r *render, self any, pos []any, _ *dict) any { return r.pad(self.(string), pos, 'c') },
		"zfill": func(r *render, self any, pos []any, _ *dict) any {
			if len(pos) != 1 {
				fail("zfill wants a width")
			}
			s := self.(string)
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			return sign + r.pad(s, []any{int64(toInt(pos[0]) - len(sign)), "0"}, 'r').(string)
		},
		"format": func(r *render, self any, pos []any, named *dict) any { return r.braces(self.(string), pos, named) },
	}
	fillFilters()
	fillTests()
	globals := []struct {
		name string
		v    any
	}{
		{"raise_exception", function(func(r *render, pos []any, named *dict) any {
			fail("%s", r.str(arg(pos, named, 0, "message")))
			return nil
		})},
		{"strftime_now", function(func(r *render, pos []any, named *dict) any {
			return strftime(r.now(), text(arg(pos, named, 0, "format")))
		})},
		{"range", function(func(r *render, pos []any, _ *dict) any {
			from, to, step := 0, 0, 1
			switch len(pos) {
			case 1:
				to = toInt(pos[0])
			case 2:
				from, to = toInt(pos[0]), toInt(pos[1])
			case 3:
				from, to, step = toInt(pos[0]), toInt(pos[1]), toInt(pos[2])
			default:
				fail("range expected 1 to 3 arguments")
			}
			if step == 0 {
				fail("range() arg 3 must not be zero")
			}
			n := 0
			if step > 0 && to > from {
				n = (to-from-1)/step + 1
			} else if step < 0 && to < from {
				n = (from-to-1)/-step + 1
			}
			if n > 100000 || n < 0 {
				fail("range too big, maximum size for range is 100000")
			}
			r.charge(24 * n)
			l := &list{items: make([]any, n)}
			for i := range n {
				l.items[i] = int64(from + i*step)
			}
			return l
		})},
		{"dict", function(func(r *render, pos []any, named *dict) any {
			d := &dict{}
			for _, p := range pos {
				if from, ok := p.(*dict); ok {
					for i, k := range from.keys {
						d.set(k, from.vals[i])
					}
					continue
				}
				for _, pair := range r.iterate(p) {
					kv := r.iterate(pair)
					if len(kv) != 2 {
						fail("dictionary update sequence element has length %d; 2 is required", len(kv))
					}
					d.set(text(kv[0]), kv[1])
				}
			}
			if named != nil {
				for i, k := range named.keys {
					d.set(k, named.vals[i])
				}
			}
			return d
		})},
		{"namespace", function(func(r *render, pos []any, named *dict) any {
			ns := &namespace{}
			for _, p := range pos {
				if from, ok := p.(*dict); ok {
					for i, k := range from.keys {
						ns.set(k, from.vals[i])
					}
				}
			}
			if named != nil {
				for i, k := range named.keys {
					ns.set(k, named.vals[i])
				}
			}
			return ns
		})},
		{"joiner", function(func(r *render, pos []any, named *dict) any {
			sep, used := ", ", false
			if v := arg(pos, named, 0, "sep"); v != nil {
				sep = text(v)
			}
			return function(func(*render, []any, *dict) any {
				if !used {
					used = true
					return ""
				}
				return sep
			})
		})},
	}
	for _, g := range globals {
		globalNames = append(globalNames, g.name)
		globalVals = append(globalVals, g.v)
	}
}

// strftime is Python's, as far as templates go.
func strftime(t time.Time, layout string) string {
	var b strings.Builder
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' || i+1 == len(layout) {
			b.WriteByte(layout[i])
			continue
		}
		i++
		pad := true
		if layout[i] == '-' && i+1 < len(layout) {
			pad = false
			i++
		}
		num := func(n, width int) {
			if !pad {
				width = 0
			}
			fmt.Fprintf(&b, "%0*d", width, n)
		}
		hour := func() int {
			if h := t.Hour() % 12; h != 0 {
				return h
			}
			return 12
		}
		switch layout[i] {
		case 'Y':
			b.WriteString(strconv.Itoa(t.Year()))
		case 'y':
			num(t.Year()%100, 2)
		case 'm':
			num(int(t.Month()), 2)
		case 'd':
			num(t.Day(), 2)
		case 'e':
			fmt.Fprintf(&b, "%2d", t.Day())
		case 'H':
			num(t.Hour(), 2)
		case 'I':
			num(hour(), 2)
		case 'M':
			num(t.Minute(), 2)
		case 'S':
			num(t.Second(), 2)
		case 'f':
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case 'j':
			num(t.YearDay(), 3)
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Format("Jan"))
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Format("Mon"))
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'w':
			b.WriteString(strconv.Itoa(int(t.Weekday())))
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T':
			b.WriteString(t.Format("15:04:05"))
		case 'D':
			b.WriteString(t.Format("01/02/06"))
		case 'Z', 'z': // a naive time has no zone
		case '%':
			b.WriteByte('%')
		default:
			fail("strftime: %%%c is not known here", layout[i])
		}
	}
	return b.String()
}

// braces is str.format, as far as templates go: {}, {0}, {name}, and a width or precision of numbers.
func (r *render) braces(s string, pos []any, named *dict) any {
	var b []byte
	auto := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "{{"), strings.HasPrefix(s[i:], "}}"):
			b = append(b, s[i])
			i++
		case s[i] == '}':
			fail("Single '}' encountered in format string")
		case s[i] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				fail("Single '{' encountered in format string")
			}
			name, spec, _ := strings.Cut(s[i+1:i+end], ":")
			i += end
			var v any
			if n, err := strconv.Atoi(name); err == nil || name == "" {
				if name == "" {
					n = auto
					auto++
				}
				if n < 0 || n >= len(pos) {
					fail("Replacement index %d out of range", n)
				}
				v = pos[n]
			} else if named == nil || named.find(name) < 0 {
				fail("format: %q is not known", name)
			} else {
				v, _ = named.get(name)
			}
			switch f, n, isInt, ok := number(v); {
			case spec == "":
				b = append(b, r.str(v)...)
			case len(spec) < 8 && ok && !isInt && strings.HasSuffix(spec, "f"):
				b = fmt.Appendf(b, "%"+spec, f)
			case len(spec) < 8 && ok && isInt && strings.Trim(spec, "0123456789d") == "":
				b = fmt.Appendf(b, "%"+strings.TrimSuffix(spec, "d")+"d", n)
			default:
				fail("the format %q is not known here", spec)
			}
		default:
			b = append(b, s[i])
		}
	}
	return r.made(string(b))
}

// attrGetter is what map(attribute=…) and its like look up: names and numbers with points between.
func (r *render) attrGetter(path any) func(any) any {
	if n, ok := path.(int64); ok {
		return func(v any) any { return r.item(v, n) }
	}
	parts := strings.Split(text(path), ".")
	return func(v any) any {
		for _, p := range parts {
			r.step(1)
			if n, err := strconv.Atoi(p); err == nil {
				v = r.item(v, int64(n))
			} else {
				v = r.item(v, p)
			}
		}
		return v
	}
}

// chosen is select and its sisters.
func (r *render) chosen(v any, pos []any, byAttr, want bool) any {
	get := func(x any) any { return x }
	if byAttr {
		if len(pos) == 0 {
			fail("Missing parameter for attribute name")
		}
		get = r.attrGetter(pos[0])
		pos = pos[1:]
	}
	test := func(x any) bool { return truthy(x) }
	if len(pos) > 0 {
		name := text(pos[0])
		fn := tests[name]
		if fn == nil {
			fail("no test named '%s'", name)
		}
		rest := pos[1:]
		test = func(x any) bool { return fn(r, x, rest) }
	}
	out := &list{}
	for _, x := range r.iterate(v) {
		r.step(1)
		if test(get(x)) == want {
			out.items = append(out.items, x)
		}
	}
	r.charge(16 * len(out.items))
	return out
}

// folded is a text as case-insensitive filters compare it.
func folded(v any, sensitive bool) any {
	if s, ok := v.(string); ok && !sensitive {
		return lowerPy(s)
	}
	return v
}

func (r *render) sorted(items []any, key func(any) any, reverse bool) []any {
	type pair struct{ k, v any }
	ps := make([]pair, len(items))
	r.charge(48 * len(items))
	for i, v := range items {
		ps[i] = pair{key(v), v}
	}
	slices.SortStableFunc(ps, func(a, b pair) int {
		if reverse {
			a, b = b, a
		}
		if r.less(a.k, b.k) {
			return -1
		}
		if r.less(b.k, a.k) {
			return 1
		}
		return 0
	})
	out := make([]any, len(ps))
	for i, p := range ps {
		out[i] = p.v
	}
	return out
}

func fillFilters() {
	txt := func(f func(string) string) filterFunc {
		return func(r *render, v any, _ []any, _ *dict) any { return r.made(f(r.str(v))) }
	}
	count := func(r *render, v any, _ []any, _ *dict) any {
		n, ok := length(v)
		if !ok {
			fail("object of type '%s' has no len()", typeName(v))
		}
		return int64(n)
	}
	byDefault := func(r *render, v any, pos []any, named *dict) any {
		_, undef := v.(*undefined)
		if undef || truthy(arg(pos, named, 1, "boolean")) && !truthy(v) {
			if has(pos, named, 0, "default_value") {
				return arg(pos, named, 0, "default_value")
			}
			return ""
		}
		return v
	}
	extreme := func(max bool) filterFunc {
		return func(r *render, v any, pos []any, named *dict) any {
			sensitive := truthy(arg(pos, named, 0, "case_sensitive"))
			get := func(x any) any { return x }
			if a := arg(pos, named, 1, "attribute"); a != nil {
				get = r.attrGetter(a)
			}
			var best any = &undefined{"the extreme of an empty sequence"}
			for i, x := range r.iterate(v) {
				k := folded(get(x), sensitive)
				if i == 0 || max && r.less(folded(get(best), sensitive), k) || !max && r.less(k, folded(get(best), sensitive)) {
					best = x
				}
			}
			return best
		}
	}
	filters = map[string]filterFunc{
		"abs": func(r *render, v any, _ []any, _ *dict) any {
			if truthy(r.less(v, int64(0))) {
				return r.arith("-", int64(0), v)
			}
			return v
		},
		"attr": func(r *render, v any, pos []any, named *dict) any {
			name := text(arg(pos, named, 0, "name"))
			if l, ok := v.(*loop); ok {
				return r.attr(l, name)
			}
			if ns, ok := v.(*namespace); ok {
				return r.attr(ns, name)
			}
			if m := r.attribute(v, name); m != nil {
				return m
			}
			return &undefined{fmt.Sprintf("%q", name)}
		},
		"batch": func(r *render, v any, pos []any, named *dict) any {
			n := toInt(arg(pos, named, 0, "linecount"))
			if n < 1 {
				fail("batch: a count above 0 is wanted")
			}
			fill, out := arg(pos, named, 1, "fill_with"), &list{}
			items := r.iterate(v)
			for len(items) > 0 {
				k := min(n, len(items))
				row := slices.Clone(items[:k])
				for fill != nil && len(row) < n {
					r.charge(16)
					row = append(row, fill)
				}
				out.items = append(out.items, &list{items: row})
				items = items[k:]
				r.charge(64)
			}
			return out
		},
		"capitalize": txt(capitalize),
		"center": func(r *render, v any, pos []any, named *dict) any {
			w := arg(pos, named, 0, "width")
			if w == nil {
				w = int64(80)
			}
			return r.pad(r.str(v), []any{w}, 'c')
		},
		"count":   count,
		"length":  count,
		"default": byDefault,
		"d":       byDefault,
		"dictsort": func(r *render, v any, pos []any, named *dict) any {
			d, ok := v.(*dict)
			if !ok {
				fail("dictsort wants a mapping, not %s", typeName(v))
			}
			at, sensitive := int64(0), truthy(arg(pos, named, 0, "case_sensitive"))
			if by := arg(pos, named, 1, "by"); by == "value" {
				at = 1
			}
			return &list{items: r.sorted(r.pairs(d).items, func(x any) any { return folded(r.item(x, at), sensitive) }, truthy(arg(pos, named, 2, "reverse")))}
		},
		"e":           txt(escapeHTML),
		"escape":      txt(escapeHTML),
		"forceescape": txt(escapeHTML),
		"safe":        txt(func(s string) string { return s }),
		"string":      txt(func(s string) string { return s }),
		"first": func(r *render, v any, _ []any, _ *dict) any {
			if items := r.iterate(v); len(items) > 0 {
				return items[0]
			}
			return &undefined{"the first item of an empty sequence"}
		},
		"last": func(r *render, v any, _ []any, _ *dict) any {
			if items := r.iterate(v); len(items) > 0 {
				return items[len(items)-1]
			}
			return &undefined{"the last item of an empty sequence"}
		},
		"float": func(r *render, v any, pos []any, named *dict) any {
			if f, _, _, ok := number(v); ok {
				return f
			}
			if s, ok := v.(string); ok {
				if f, err := strconv.ParseFloat(strings.TrimFunc(s, pySpace), 64); err == nil || math.IsInf(f, 0) {
					return f
				}
			}
			if d := arg(pos, named, 0, "default"); d != nil {
				return d
			}
			return 0.0
		},
		"int": func(r *render, v any, pos []any, named *dict) any {
			base := 10
			if b := arg(pos, named, 1, "base"); b != nil {
				base = toInt(b)
			}
			switch v := v.(type) {
			case *big.Int:
				return v
			case string:
				s := strings.TrimFunc(v, pySpace)
				if base == 16 {
					s = strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X")
				}
				if i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), base, 64); err == nil {
					return i
				}
				if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
					return int64(f)
				}
			default:
				if f, i, isInt, ok := number(v); ok {
					if isInt {
						return i
					}
					if math.Abs(f) < 1<<62 {
						return int64(f)
					}
				}
			}
			if d := arg(pos, named, 0, "default"); d != nil {
				return d
			}
			return int64(0)
		},
		"format": func(r *render, v any, pos []any, named *dict) any {
			if named != nil {
				return r.format(r.str(v), named)
			}
			return r.format(r.str(v), &list{items: pos, tuple: true})
		},
		"groupby": func(r *render, v any, pos []any, named *dict) any {
			get := r.attrGetter(arg(pos, named, 0, "attribute"))
			sensitive := truthy(arg(pos, named, 2, "case_sensitive"))
			key := func(x any) any {
				k := get(x)
				if _, ok := k.(*undefined); ok {
					k = arg(pos, named, 1, "default")
				}
				return folded(k, sensitive)
			}
			out := &list{}
			var last *list
			var lastKey any
			for _, x := range r.sorted(r.iterate(v), key, false) {
				if k := key(x); last == nil || !r.equal(k, lastKey) {
					lastKey = k
					last = &list{}
					out.items = append(out.items, &list{items: []any{get(x), last}, tuple: true})
				}
				last.items = append(last.items, x)
			}
			return out
		},
		"indent": func(r *render, v any, pos []any, named *dict) any {
			s, pad := r.str(v), "    "
			switch w := arg(pos, named, 0, "width").(type) {
			case string:
				pad = w
			case int64:
				if w > 1000 {
					fail("indent: too wide")
				}
				pad = strings.Repeat(" ", max(0, int(w)))
			}
			blank := truthy(arg(pos, named, 2, "blank"))
			s += "\n" // as the original: so that the last line counts
			var b strings.Builder
			lines := splitLines(s, false)
			r.charge(len(s) + len(lines)*len(pad))
			for i, l := range lines {
				if i > 0 {
					b.WriteByte('\n')
					if blank || l != "" {
						b.WriteString(pad)
					}
				}
				b.WriteString(l)
			}
			out := b.String()
			if truthy(arg(pos, named, 1, "first")) {
				out = pad + out
			}
			return out
		},
		"items": func(r *render, v any, _ []any, _ *dict) any {
			if _, ok := v.(*undefined); ok {
				return &list{}
			}
			d, ok := v.(*dict)
			if !ok {
				fail("Can only get item pairs from a mapping.")
			}
			return r.pairs(d)
		},
		"join": func(r *render, v any, pos []any, named *dict) any {
			sep := ""
			if d := arg(pos, named, 0, "d"); d != nil {
				sep = r.str(d)
			}
			get := func(x any) any { return x }
			if a := arg(pos, named, 1, "attribute"); a != nil {
				get = r.attrGetter(a)
			}
			var b strings.Builder
			for i, x := range r.iterate(v) {
				if i > 0 {
					b.WriteString(sep)
				}
				b.WriteString(r.str(get(x)))
				r.charge(len(sep))
			}
			return r.made(b.String())
		},
		"list":  func(r *render, v any, _ []any, _ *dict) any { return &list{items: slices.Clone(r.iterate(v))} },
		"lower": txt(lowerPy),
		"upper": txt(upper),
		"title": txt(func(s string) string {
			var b strings.Builder
			start := true
			for _, c := range s {
				switch {
				case pySpace(c) || strings.ContainsRune("-({[<", c):
					start = true
					b.WriteRune(c)
				case start:
					b.WriteString(upper(string(c)))
					start = false
				default:
					b.WriteString(lowerPy(string(c)))
				}
			}
			return b.String()
		}),
		"map": func(r *render, v any, pos []any, named *dict) any {
			out := &list{}
			if a := arg(nil, named, 0, "attribute"); len(pos) == 0 && a != nil {
				get := r.attrGetter(a)
				def := arg(nil, named, 0, "default")
				for _, x := range r.iterate(v) {
					y := get(x)
					if _, ok := y.(*undefined); ok && def != nil {
						y = def
					}
					out.items = append(out.items, y)
				}
				return out
			}
			if len(pos) == 0 {
				fail("map requires a filter argument")
			}
			name := text(pos[0])
			fn := filters[name]
			if fn == nil {
				fail("no filter named '%s'", name)
			}
			for _, x := range r.iterate(v) {
				r.step(1)
				out.items = append(out.items, fn(r, x, pos[1:], named))
			}
			r.charge(16 * len(out.items))
			return out
		},
		"max":        extreme(true),
		"min":        extreme(false),
		"select":     func(r *render, v any, pos []any, _ *dict) any { return r.chosen(v, pos, false, true) },
		"reject":     func(r *render, v any, pos []any, _ *dict) any { return r.chosen(v, pos, false, false) },
		"selectattr": func(r *render, v any, pos []any, _ *dict) any { return r.chosen(v, pos, true, true) },
		"rejectattr": func(r *render, v any, pos []any, _ *dict) any { return r.chosen(v, pos, true, false) },
		"replace": func(r *render, v any, pos []any, named *dict) any {
			return strMethods["replace"](r, r.str(v), []any{r.str(arg(pos, named, 0, "old")), r.str(arg(pos, named, 1, "new")), arg(pos, named, 2, "count")}, nil)
		},
		"reverse": func(r *render, v any, _ []any, _ *dict) any {
			items := slices.Clone(r.iterate(v))
			slices.Reverse(items)
			if _, ok := v.(string); ok {
				var b strings.Builder
				for _, x := range items {
					b.WriteString(x.(string))
				}
				return b.String()
			}
			return &list{items: items}
		},
		"round": func(r *render, v any, pos []any, named *dict) any {
			f, _, _, ok := number(v)
			if !ok {
				fail("round wants a number, not %s", typeName(v))
			}
			digits, how := 0, "common"
			if p := arg(pos, named, 0, "precision"); p != nil {
				digits = toInt(p)
			}
			if m := arg(pos, named, 1, "method"); m != nil {
				how = text(m)
			}
			if digits > 300 || digits < -300 {
				fail("round: too precise")
			}
			scale := math.Pow(10, float64(digits))
			switch how {
			case "ceil":
				return math.Ceil(f*scale) / scale
			case "floor":
				return math.Floor(f*scale) / scale
			}
			if digits < 0 {
				return math.RoundToEven(f*scale) / scale
			}
			out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64) // to even, exactly
			return out
		},
		"slice": func(r *render, v any, pos []any, named *dict) any {
			n := toInt(arg(pos, named, 0, "slices"))
			if n < 1 || n > 100000 {
				fail("slice: a count above 0 is wanted")
			}
			items, fill, out := r.iterate(v), arg(pos, named, 1, "fill_with"), &list{}
			r.charge(64 * n)
			each, extra, at := len(items)/n, len(items)%n, 0
			for i := range n {
				k := each
				if i < extra {
					k++
				}
				row := slices.Clone(items[at : at+k])
				at += k
				if fill != nil && i >= extra {
					row = append(row, fill)
				}
				out.items = append(out.items, &list{items: row})
			}
			return out
		},
		"sort": func(r *render, v any, pos []any, named *dict) any {
			sensitive := truthy(arg(pos, named, 1, "case_sensitive"))
			key := func(x any) any { return folded(x, sensitive) }
			if a := arg(pos, named, 2, "attribute"); a != nil {
				get := r.attrGetter(a)
				key = func(x any) any { return folded(get(x), sensitive) }
			}
			return &list{items: r.sorted(r.iterate(v), key, truthy(arg(pos, named, 0, "reverse")))}
		},
		"sum": func(r *render, v any, pos []any, named *dict) any {
			get := func(x any) any { return x }
			if a := arg(pos, named, 0, "attribute"); a != nil {
				get = r.attrGetter(a)
			}
			var total any = int64(0)
			if s := arg(pos, named, 1, "start"); s != nil {
				total = s
			}
			for _, x := range r.iterate(v) {
				total = r.arith("+", total, get(x))
			}
			return total
		},
		"trim": func(r *render, v any, pos []any, named *dict) any {
			return strings.TrimFunc(r.str(v), stripper([]any{arg(pos, named, 0, "chars")}))
		},
		"truncate": func(r *render, v any, pos []any, named *dict) any {
			s, n, end, leeway := r.str(v), 255, "...", 5
			if a := arg(pos, named, 0, "length"); a != nil {
				n = toInt(a)
			}
			if a := arg(pos, named, 2, "end"); a != nil {
				end = text(a)
			}
			if a := arg(pos, named, 3, "leeway"); a != nil {
				leeway = toInt(a)
			}
			runes := []rune(s)
			if len(runes) <= n+leeway {
				return s
			}
			keep := n - utf8.RuneCountInString(end)
			if keep < 0 {
				fail("truncate: the length is too small")
			}
			cut := string(runes[:keep])
			if !truthy(arg(pos, named, 1, "killwords")) {
				if at := strings.LastIndexByte(cut, ' '); at >= 0 {
					cut = cut[:at]
				}
			}
			return cut + end
		},
		"tojson": func(r *render, v any, pos []any, named *dict) any {
			j := jsonWriter{r: r, ascii: truthy(arg(pos, named, 0, "ensure_ascii")), item: ", ", colon: ": ", sort: truthy(arg(pos, named, 3, "sort_keys"))}
			switch in := arg(pos, named, 1, "indent").(type) {
			case nil:
			case string:
				j.indent, j.lines, j.item = in, true, ","
			default:
				n := max(toInt(in), 0)
				if n > 1000 {
					fail("tojson: too wide an indent")
				}
				j.indent, j.lines, j.item = strings.Repeat(" ", n), true, ","
			}
			if l, ok := arg(pos, named, 2, "separators").(*list); ok && len(l.items) == 2 {
				j.item, j.colon = text(l.items[0]), text(l.items[1])
			}
			return r.made(string(j.append(nil, v, 0)))
		},
		"unique": func(r *render, v any, pos []any, named *dict) any {
			sensitive := truthy(arg(pos, named, 0, "case_sensitive"))
			get := func(x any) any { return x }
			if a := arg(pos, named, 1, "attribute"); a != nil {
				get = r.attrGetter(a)
			}
			out, seen := &list{}, []any{}
			for _, x := range r.iterate(v) {
				k := folded(get(x), sensitive)
				if !slices.ContainsFunc(seen, func(y any) bool { return r.equal(k, y) }) {
					seen = append(seen, k)
					out.items = append(out.items, x)
				}
			}
			return out
		},
		"wordcount": func(r *render, v any, _ []any, _ *dict) any {
			n := int64(0)
			in := false
			for _, c := range r.str(v) {
				word := classOf(c)&bitRustWord != 0
				if word && !in {
					n++
				}
				in = word
			}
			return n
		},
	}
}

func escapeHTML(s string) string { return html.EscapeString(s) }

func fillTests() {
	one := func(f func(r *render, a, b any) bool) testFunc {
		return func(r *render, v any, pos []any) bool {
			if len(pos) != 1 {
				fail("the test wants one argument")
			}
			return f(r, v, pos[0])
		}
	}
	cmp := func(op string) testFunc {
		return one(func(r *render, a, b any) bool { return r.compare(op, a, b) })
	}
	whole := func(v any) (int64, bool) {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
		f, i, isInt, ok := number(v)
		if !ok {
			fail("a number is wanted, not %s", typeName(v))
		}
		if !isInt {
			return int64(f), f == math.Trunc(f)
		}
		return i, true
	}
	tests = map[string]testFunc{
		"defined":   func(_ *render, v any, _ []any) bool { _, u := v.(*undefined); return !u },
		"undefined": func(_ *render, v any, _ []any) bool { _, u := v.(*undefined); return u },
		"none":      func(_ *render, v any, _ []any) bool { return v == nil },
		"boolean":   func(_ *render, v any, _ []any) bool { _, ok := v.(bool); return ok },
		"true":      func(_ *render, v any, _ []any) bool { return v == true },
		"false":     func(_ *render, v any, _ []any) bool { return v == false },
		"integer": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		},
		"float":  func(_ *render, v any, _ []any) bool { _, ok := v.(float64); return ok },
		"number": func(_ *render, v any, _ []any) bool { _, _, _, ok := number(v); return ok },
		"string": func(_ *render, v any, _ []any) bool { _, ok := v.(string); return ok },
		"mapping": func(_ *render, v any, _ []any) bool {
			_, ok := v.(*dict)
			return ok
		},
		"iterable": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case string, *list, *dict, *undefined:
				return true
			}
			return false
		},
		"sequence": func(_ *render, v any, _ []any) bool {
			switch v := v.(type) {
			case string, *list, *dict:
				return true
			case *undefined:
				v.fail()
			}
			return false
		},
		"callable": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case function, *macro, *loop, *undefined:
				return true
			}
			return false
		},
		"escaped": func(*render, any, []any) bool { return false },
		"odd":     func(_ *render, v any, _ []any) bool { n, ok := whole(v); return ok && n%2 != 0 },
		"even":    func(_ *render, v any, _ []any) bool { n, ok := whole(v); return ok && n%2 == 0 },
		"divisibleby": one(func(_ *render, a, b any) bool {
			n, ok := whole(a)
			m, ok2 := whole(b)
			if m == 0 {
				fail("integer modulo by zero")
			}
			return ok && ok2 && n%m == 0
		}),
		"lower": func(r *render, v any, _ []any) bool { return strMethods["islower"](r, r.str(v), nil, nil) == true },
		"upper": func(r *render, v any, _ []any) bool { return strMethods["isupper"](r, r.str(v), nil, nil) == true },
		"sameas": one(func(r *render, a, b any) bool {
			switch a.(type) {
			case nil, bool:
				return a == b
			case *list, *dict, *namespace, *macro:
				return a == b
			}
			return r.equal(a, b) && typeName(a) == typeName(b)
		}),
		"filter": func(_ *render, v any, _ []any) bool { return filters[text(v)] != nil },
		"test":   func(_ *render, v any, _ []any) bool { return tests[text(v)] != nil },
		"in":     cmp("in"),
		"eq":     cmp("=="), "equalto": cmp("=="), "==": cmp("=="),
		"ne": cmp("!="), "!=": cmp("!="),
		"lt": cmp("<"), "lessthan": cmp("<"), "<": cmp("<"),
		"le": cmp("<="), "<=": cmp("<="),
		"gt": cmp(">"), "greaterthan": cmp(">"), ">": cmp(">"),
		"ge": cmp(">="), ">=": cmp(">="),
	}
}

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
