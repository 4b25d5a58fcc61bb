// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Python's behaviour of the values that templates work with. Beside those of JSON there are:
type (
	// undefined is what a name or an attribute that is not there gives. It prints as nothing; what is done with it fails.
	undefined struct{ what string }
	// namespace is what {% set ns.x %} sets fields of.
	namespace struct{ dict }
	// function is what can be called: a method, a filter's like, a global.
	function func(r *render, pos []any, named *dict) any
	// macro is one with where it was defined.
	macro struct {
		def   *macroDef
		scope *scope
	}
)

// templateError is why a template failed.
type templateError struct{ what string }

func (e *templateError) Error() string { return e.what }

func fail(format string, args ...any) { panic(&templateError{fmt.Sprintf(format, args...)}) }

func (u *undefined) fail() { fail("%s is undefined", u.what) }

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *list:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *dict:
		return "dict"
	case *undefined:
		v.fail()
	case *namespace:
		return "Namespace"
	}
	return "function"
}

func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case string:
		return v != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	case *undefined:
		return false
	}
	return true
}

// str is what a value prints as.
func (r *render) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case *undefined:
		return ""
	case int64:
		return strconv.FormatInt(v, 10)
	}
	var b []byte
	b = r.repr(b, v, 0)
	return r.made(string(b))
}

func (r *render) repr(b []byte, v any, depth int) []byte {
	if depth > maxDepth {
		fail("a value too deep to print")
	}
	r.step(1)
	switch v := v.(type) {
	case nil:
		return append(b, "None"...)
	case bool:
		if v {
			return append(b, "True"...)
		}
		return append(b, "False"...)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case *big.Int:
		return v.Append(b, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		r.charge(len(v))
		return appendRepr(b, v)
	case *list:
		open, end := byte('['), byte(']')
		if v.tuple {
			open, end = '(', ')'
		}
		b = append(b, open)
		for i, x := range v.items {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = r.repr(b, x, depth+1)
		}
		if v.tuple && len(v.items) == 1 {
			b = append(b, ',')
		}
		return append(b, end)
	case *dict:
		b = append(b, '{')
		for i, k := range v.keys {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = appendRepr(b, k)
			b = append(b, ": "...)
			b = r.repr(b, v.vals[i], depth+1)
		}
		return append(b, '}')
	case *undefined:
		return append(b, "Undefined"...)
	}
	fail("printing a %s is not known here", typeName(v))
	return nil
}

// appendFloat is Python's repr of a float.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mant, exp, _ := strings.Cut(s, "e")
	n, _ := strconv.Atoi(exp)
	if n < -4 || n >= 16 {
		b = append(append(b, mant...), 'e')
		if n < 0 {
			b = append(b, '-')
			n = -n
		} else {
			b = append(b, '+')
		}
		if n < 10 {
			b = append(b, '0')
		}
		return strconv.AppendInt(b, int64(n), 10)
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	b = append(b, s...)
	if strings.IndexByte(s, '.') < 0 {
		b = append(b, ".0"...)
	}
	return b
}

// appendRepr is Python's repr of a string.
func appendRepr(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < 0x20 || r == 0x7f:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x7f:
			b = append(b, byte(r))
		default:
			if c := classOf(r) & maskCat; c < 22 { // neither separator nor control nor unassigned
				b = utf8.AppendRune(b, r)
			} else if r < 0x100 {
				b = fmt.Appendf(b, `\x%02x`, r)
			} else if r < 0x10000 {
				b = fmt.Appendf(b, `\u%04x`, r)
			} else {
				b = fmt.Appendf(b, `\U%08x`, r)
			}
		}
	}
	return append(b, quote)
}

func number(v any) (f float64, i int64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return float64(v), v, true, true
	case float64:
		return v, 0, false, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, 0, false, true
	}
	return 0, 0, false, false
}

func (r *render) equal(a, b any) bool {
	r.step(1)
	switch x := a.(type) {
	case nil:
		return b == nil
	case string:
		y, ok := b.(string)
		return ok && x == y
	case *list:
		y, ok := b.(*list)
		if !ok || x.tuple != y.tuple || len(x.items) != len(y.items) {
			return false
		}
		for i := range x.items {
			if !r.equal(x.items[i], y.items[i]) {
				return false
			}
		}
		return true
	case *dict:
		y, ok := b.(*dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, k := range x.keys {
			v, ok := y.get(k)
			if !ok || !r.equal(x.vals[i], v) {
				return false
			}
		}
		return true
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0
	case function, *macro:
		return false
	}
	fa, ia, inta, ok := number(a)
	fb, ib, intb, ok2 := number(b)
	if !ok || !ok2 {
		return ok == ok2 && a == b
	}
	if inta && intb {
		return ia == ib
	}
	return fa == fb
}

// less reports a < b, and fails for what has no order.
func (r *render) less(a, b any) bool {
	r.step(1)
	for _, v := range []any{a, b} {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
	}
	if x, ok := a.(string); ok {
		if y, ok := b.(string); ok {
			return x < y
		}
	}
	if x, ok := a.(*list); ok {
		if y, ok := b.(*list); ok && x.tuple == y.tuple {
			for i := range min(len(x.items), len(y.items)) {
				if !r.equal(x.items[i], y.items[i]) {
					return r.less(x.items[i], y.items[i])
				}
			}
			return len(x.items) < len(y.items)
		}
	}
	fa, ia, inta, ok := number(a)
	fb, ib, intb, ok2 := number(b)
	if !ok || !ok2 {
		fail("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
	}
	if inta && intb {
		return ia < ib
	}
	return fa < fb
}

func (r *render) contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			fail("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		r.charge(len(in) / 8)
		return strings.Contains(in, s)
	case *list:
		for _, x := range in.items {
			if r.equal(x, v) {
				return true
			}
		}
		return false
	case *dict:
		if s, ok := v.(string); ok {
			return in.find(s) >= 0
		}
		return false
	case *undefined:
		return false
	}
	fail("argument of type '%s' is not iterable", typeName(in))
	return false
}

// length is Python's len.
func length(v any) (int, bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case *list:
		return len(v.items), true
	case *dict:
		return len(v.keys), true
	case *undefined:
		return 0, true
	}
	return 0, false
}

// iterate returns what a loop over v goes through.
func (r *render) iterate(v any) []any {
	switch v := v.(type) {
	case *list:
		return v.items
	case *dict:
		out := make([]any, len(v.keys))
		r.charge(16 * len(out))
		for i, k := range v.keys {
			out[i] = k
		}
		return out
	case string:
		out := make([]any, 0, len(v))
		r.charge(32 * len(v))
		for _, c := range v {
			out = append(out, string(c))
		}
		return out
	case *undefined:
		return nil
	}
	fail("'%s' object is not iterable", typeName(v))
	return nil
}

func toInt(v any) int {
	switch v := v.(type) {
	case int64:
		if v == int64(int(v)) {
			return int(v)
		}
	case bool:
		if v {
			return 1
		}
		return 0
	}
	fail("an integer is wanted, not %s", typeName(v))
	return 0
}

// item is obj[key].
func (r *render) item(obj, key any) any {
	switch o := obj.(type) {
	case *dict:
		if k, ok := key.(string); ok {
			if v, ok := o.get(k); ok {
				return v
			}
		}
	case *list:
		switch key.(type) {
		case int64, bool:
			i := toInt(key)
			if i < 0 {
				i += len(o.items)
			}
			if i >= 0 && i < len(o.items) {
				return o.items[i]
			}
			return &undefined{"an item out of range"}
		}
	case string:
		switch key.(type) {
		case int64, bool:
			i := toInt(key)
			n := len(o)
			if !ascii(o) {
				n = utf8.RuneCountInString(o)
				r.charge(len(o) / 8)
			}
			if i < 0 {
				i += n
			}
			if i < 0 || i >= n {
				return &undefined{"a character out of range"}
			}
			if n == len(o) {
				return o[i : i+1]
			}
			return string([]rune(o)[i])
		}
	case *undefined:
		o.fail()
	case *loop:
		if k, ok := key.(string); ok {
			return r.attr(obj, k)
		}
	}
	if k, ok := key.(string); ok {
		if v := r.attribute(obj, k); v != nil {
			return v
		}
		return &undefined{fmt.Sprintf("%q", k)}
	}
	return &undefined{"an item"}
}

// attr is obj.name: an attribute, else an item.
func (r *render) attr(obj any, name string) any {
	switch o := obj.(type) {
	case *dict:
		if dictMethods[name] == nil { // nearly always
			if v, ok := o.get(name); ok {
				return v
			}
			return &undefined{fmt.Sprintf("'dict object' has no attribute '%s', which", name)}
		}
	case *namespace:
		if v, ok := o.get(name); ok {
			return v
		}
		return &undefined{fmt.Sprintf("%q of a namespace", name)}
	case *loop:
		if v := o.attr(r, name); v != nil {
			return *v
		}
		return &undefined{"loop." + name}
	case *undefined:
		o.fail()
	}
	if v := r.attribute(obj, name); v != nil {
		return v
	}
	return &undefined{fmt.Sprintf("%q", name)}
}

// attribute is a method of a value, or nil.
func (r *render) attribute(obj any, name string) any {
	var m func(r *render, self any, pos []any, named *dict) any
	switch o := obj.(type) {
	case *dict:
		m = dictMethods[name]
	case string:
		m = strMethods[name]
	case *list:
		m = listMethods[name]
	case *macro:
		if name == "name" {
			return o.def.name
		}
	}
	if m == nil {
		return nil
	}
	return function(func(r *render, pos []any, named *dict) any { return m(r, obj, pos, named) })
}

// slice is obj[from:to:step].
func (r *render) slice(obj any, from, to, step any) any {
	switch obj := obj.(type) {
	case string, *list:
	case *undefined:
		obj.fail()
	default:
		fail("'%s' object is not subscriptable", typeName(obj))
	}
	by := 1
	if step != nil {
		if by = toInt(step); by == 0 {
			fail("slice step cannot be zero")
		}
	}
	var runes []rune
	s, isStr := obj.(string)
	plain := isStr && ascii(s)
	n := len(s)
	if isStr && !plain {
		runes = []rune(s)
		r.charge(4 * len(runes))
		n = len(runes)
	}
	l, _ := obj.(*list)
	if l != nil {
		n = len(l.items)
	}
	clip := func(v any, or int) int {
		if v == nil {
			return or
		}
		i := toInt(v)
		if i < 0 {
			i += n
		}
		if by > 0 {
			return min(max(i, 0), n)
		}
		return min(max(i, -1), n-1)
	}
	var a, b int
	if by > 0 {
		a, b = clip(from, 0), clip(to, n)
	} else {
		a, b = clip(from, n-1), clip(to, -1)
	}
	if by == 1 {
		b = max(a, b)
		switch {
		case plain:
			return s[a:b]
		case isStr:
			return r.made(string(runes[a:b]))
		}
		return &list{items: l.items[a:b:b], tuple: l.tuple}
	}
	out := &list{}
	if l != nil {
		out.tuple = l.tuple
	}
	var text strings.Builder
	for i := a; by > 0 && i < b || by < 0 && i > b; i += by {
		switch {
		case plain:
			text.WriteByte(s[i])
		case isStr:
			text.WriteRune(runes[i])
		default:
			out.items = append(out.items, l.items[i])
		}
	}
	if isStr {
		return r.made(text.String())
	}
	r.charge(16 * len(out.items))
	return out
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// arith is a binary operation on numbers, texts and lists.
func (r *render) arith(op string, a, b any) any {
	for _, v := range []any{a, b} {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
	}
	bad := func() {
		fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	}
	if op == "*" {
		if _, n, isInt, ok := number(a); ok && isInt {
			if _, isList := b.(*list); isList {
				return r.times(b, n)
			}
			if _, isStr := b.(string); isStr {
				return r.times(b, n)
			}
		}
	}
	switch x := a.(type) {
	case string:
		switch op {
		case "+":
			if y, ok := b.(string); ok {
				return r.made(x + y)
			}
			fail(`can only concatenate str (not "%s") to str`, typeName(b))
		case "*":
			if _, n, isInt, ok := number(b); ok && isInt {
				return r.times(x, n)
			}
		case "%":
			return r.format(x, b)
		}
		bad()
	case *list:
		if y, ok := b.(*list); ok && op == "+" && x.tuple == y.tuple {
			r.charge(16 * (len(x.items) + len(y.items)))
			return &list{items: append(append(make([]any, 0, len(x.items)+len(y.items)), x.items...), y.items...), tuple: x.tuple}
		}
		if _, n, isInt, ok := number(b); ok && isInt && op == "*" {
			return r.times(x, n)
		}
		bad()
	}
	fa, ia, inta, ok := number(a)
	fb, ib, intb, ok2 := number(b)
	if !ok || !ok2 {
		bad()
	}
	if inta && intb {
		over := func() { fail("an integer beyond 64 bits is not known here") }
		switch op {
		case "+":
			s := ia + ib
			if (s > ia) != (ib > 0) && ib != 0 {
				over()
			}
			return s
		case "-":
			d := ia - ib
			if (d < ia) != (ib > 0) && ib != 0 {
				over()
			}
			return d
		case "*":
			if ia != 0 && ib != 0 {
				if p := ia * ib; p/ib == ia && !(ia == -1 && ib == math.MinInt64) && !(ib == -1 && ia == math.MinInt64) {
					return p
				}
				over()
			}
			return int64(0)
		case "//", "%":
			if ib == 0 {
				fail("integer division or modulo by zero")
			}
			if ib == -1 {
				if op == "%" {
					return int64(0)
				}
				if ia == math.MinInt64 {
					over()
				}
			}
			q, m := ia/ib, ia%ib
			if m != 0 && (m < 0) != (ib < 0) {
				q--
				m += ib
			}
			if op == "%" {
				return m
			}
			return q
		case "**":
			if ib >= 0 {
				out := int64(1)
				for range min(ib, 64) {
					p := out * ia
					if out != 0 && ia != 0 && p/ia != out || ib > 64 && ia != 0 && ia != 1 && ia != -1 {
						over()
					}
					out = p
				}
				if ib > 64 && ia == -1 && ib%2 == 1 {
					return int64(-1)
				}
				return out
			}
		}
	}
	switch op {
	case "+":
		return fa + fb
	case "-":
		return fa - fb
	case "*":
		return fa * fb
	case "/":
		if fb == 0 {
			fail("division by zero")
		}
		return fa / fb
	case "//":
		if fb == 0 {
			fail("float floor division by zero")
		}
		return math.Floor(fa / fb)
	case "%":
		if fb == 0 {
			fail("float modulo")
		}
		m := math.Mod(fa, fb)
		if m != 0 && (m < 0) != (fb < 0) {
			m += fb
		}
		return m
	case "**":
		return math.Pow(fa, fb)
	}
	bad()
	return nil
}

func (r *render) times(v any, n int64) any {
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		if int64(len(v)) > 0 && n > maxMade/int64(len(v)) {
			fail("a text too long")
		}
		return r.made(strings.Repeat(v, int(n)))
	case *list:
		if int64(len(v.items)) > 0 && n > maxMade/16/int64(len(v.items)) {
			fail("a list too long")
		}
		r.charge(16 * len(v.items) * int(n))
		out := make([]any, 0, len(v.items)*int(n))
		for range n {
			if len(v.items) == 0 {
				break
			}
			out = append(out, v.items...)
		}
		return &list{items: out, tuple: v.tuple}
	}
	return nil
}

// format is Python's text % values, as far as templates go.
func (r *render) format(s string, v any) any {
	args := []any{v}
	if l, ok := v.(*list); ok && l.tuple {
		args = l.items
	}
	named, _ := v.(*dict)
	var b []byte
	used := 0
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		i++
		start := i
		var arg any
		have := false
		if i < len(s) && s[i] == '(' {
			end := strings.IndexByte(s[i:], ')')
			if end < 0 || named == nil {
				fail("format requires a mapping")
			}
			arg, have = named.get(s[i+1 : i+end])
			if !have {
				fail("format: %q is missing", s[i+1:i+end])
			}
			i += end + 1
			start = i
		}
		for i < len(s) && strings.IndexByte("#0- +123456789.", s[i]) >= 0 {
			i++
		}
		if i >= len(s) {
			fail("incomplete format")
		}
		spec := s[start:i]
		if len(spec) > 8 {
			fail("a format too wide")
		}
		if s[i] == '%' {
			b = append(b, '%')
			continue
		}
		if !have {
			if used >= len(args) {
				fail("not enough arguments for format string")
			}
			arg = args[used]
			used++
		}
		if u, ok := arg.(*undefined); ok && s[i] != 's' {
			u.fail()
		}
		switch s[i] {
		case 's':
			b = fmt.Appendf(b, "%"+spec+"s", r.str(arg))
		case 'r':
			b = fmt.Appendf(b, "%"+spec+"s", r.repr(nil, arg, 0))
		case 'd', 'i':
			f, n, isInt, ok := number(arg)
			if !ok {
				fail("%%d format: a real number is required, not %s", typeName(arg))
			}
			if !isInt {
				n = int64(f)
			}
			b = fmt.Appendf(b, "%"+spec+"d", n)
		case 'f', 'F', 'e', 'E', 'g':
			f, _, _, ok := number(arg)
			if !ok {
				fail("must be real number, not %s", typeName(arg))
			}
			b = fmt.Appendf(b, "%"+spec+string(s[i]), f)
		case 'x', 'X', 'o':
			_, n, isInt, ok := number(arg)
			if !ok || !isInt {
				fail("%%%c format: an integer is required, not %s", s[i], typeName(arg))
			}
			b = fmt.Appendf(b, "%"+spec+string(s[i]), n)
		default:
			fail("the format %%%c is not known here", s[i])
		}
	}
	if named == nil && used < len(args) {
		fail("not all arguments converted during string formatting")
	}
	return r.made(string(b))
}
