// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"strconv"
	"strings"
	"time"
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
	fillStrings()
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
