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
	"unicode/utf8"
)

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
