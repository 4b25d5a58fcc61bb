// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

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

// strMethods are the methods of texts.
var strMethods map[string]method

// fillStrings fills the catalogue of the methods that texts have.
func fillStrings() {
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
