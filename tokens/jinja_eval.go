// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// template is a chat template, compiled once. It is safe for concurrent use.
type template struct {
	body  []stmt
	src   string
	steps int // what a rendering may take
}

func newTemplate(src string) (*template, error) {
	body, err := parseJinja(src)
	if err != nil {
		return nil, err
	}
	return &template{body, src, maxSteps}, nil
}

// What one rendering may cost, so that no template and no body hangs the process or eats its memory.
const (
	maxSteps  = 5_000_000
	maxMade   = 256 << 20 // bytes of all the texts and lists made on the way
	maxOutput = 32 << 20
	maxCalls  = 60 // macros within macros
)

// render is one rendering of a template.
type render struct {
	out   *strings.Builder
	steps int
	limit int // of steps
	bytes int // made on the way
	calls int
	now   func() time.Time
}

// scope is the names that are known in one place, and where to look for others.
type scope struct {
	names []string
	vals  []any
	up    *scope
}

func (s *scope) set(name string, v any) {
	for i, n := range s.names {
		if n == name {
			s.vals[i] = v
			return
		}
	}
	s.names = append(s.names, name)
	s.vals = append(s.vals, v)
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.up {
		for i, n := range s.names {
			if n == name {
				return s.vals[i], true
			}
		}
	}
	return nil, false
}

// loop is the variable of that name.
type loop struct {
	items   []any
	i       int
	depth   int
	stmt    *sFor
	scope   *scope
	changed []any
}

func (l *loop) attr(r *render, name string) *any {
	var v any
	n := len(l.items)
	switch name {
	case "index":
		v = int64(l.i + 1)
	case "index0":
		v = int64(l.i)
	case "revindex":
		v = int64(n - l.i)
	case "revindex0":
		v = int64(n - l.i - 1)
	case "first":
		v = l.i == 0
	case "last":
		v = l.i == n-1
	case "length":
		v = int64(n)
	case "depth":
		v = int64(l.depth + 1)
	case "depth0":
		v = int64(l.depth)
	case "previtem":
		v = any(&undefined{"there is no previous item"})
		if l.i > 0 {
			v = l.items[l.i-1]
		}
	case "nextitem":
		v = any(&undefined{"there is no next item"})
		if l.i+1 < n {
			v = l.items[l.i+1]
		}
	case "cycle":
		v = function(func(r *render, pos []any, _ *dict) any {
			if len(pos) == 0 {
				fail("no items for cycling given")
			}
			return pos[l.i%len(pos)]
		})
	case "changed":
		v = function(func(r *render, pos []any, _ *dict) any {
			same := l.changed != nil && r.equal(&list{items: l.changed}, &list{items: pos})
			l.changed = pos
			return !same
		})
	default:
		return nil
	}
	return &v
}

func (r *render) step(n int) {
	if r.steps += n; r.steps > r.limit {
		fail("the template takes more than %d steps", r.limit)
	}
}

func (r *render) charge(n int) {
	if r.bytes += n; r.bytes > maxMade {
		fail("the template makes more than %d bytes", maxMade)
	}
}

func (r *render) made(s string) string {
	r.charge(len(s))
	return s
}

// flow is how a body ended.
type flow uint8

const (
	onward flow = iota
	broken
	continued
)

// execute renders the template with the variables. Without a clock it has what Jinja has and nothing of transformers.
func (t *template) execute(out *strings.Builder, vars *scope, now func() time.Time) (err error) {
	r := &render{out: out, now: now, limit: t.steps}
	defer func() {
		if e := recover(); e != nil {
			te, ok := e.(*templateError)
			if !ok {
				panic(e)
			}
			err = errors.New(te.what)
		}
	}()
	vars.up = &scope{names: globalNames, vals: globalVals}
	if now == nil {
		vars.up = &scope{names: globalNames[ofTransformers:], vals: globalVals[ofTransformers:]}
	}
	r.run(t.body, vars)
	return nil
}

func (r *render) write(s string) {
	r.charge(len(s) / 8)
	if r.out.Len()+len(s) > maxOutput {
		fail("the template writes more than %d bytes", maxOutput)
	}
	r.out.WriteString(s)
}

// capture returns what f writes.
func (r *render) capture(f func()) string {
	out := r.out
	r.out = new(strings.Builder)
	defer func() { r.out = out }()
	f()
	return r.made(r.out.String())
}

func (r *render) run(body []stmt, s *scope) flow {
	for _, st := range body {
		r.step(1)
		switch st := st.(type) {
		case *sData:
			r.write(st.text)
		case *sOutput:
			r.write(r.str(r.eval(st.e, s)))
		case *sIf:
			then := st.els
			for i, test := range st.tests {
				if truthy(r.eval(test, s)) {
					then = st.thens[i]
					break
				}
			}
			if f := r.run(then, s); f != onward {
				return f
			}
		case *sFor:
			r.loop(st, r.eval(st.iter, s), s, 0)
		case *sSet:
			r.assign(st.target, r.eval(st.e, s), s)
		case *sSetBlock:
			var v any = r.capture(func() { r.run(st.body, &scope{up: s}) })
			if st.filter != nil {
				v = r.through(st.filter, v, s)
			}
			r.assign(st.target, v, s)
		case *sMacro:
			s.set(st.m.name, &macro{st.m, s})
		case *sCall:
			r.write(r.str(r.call(st.call, s, &macro{st.m, s})))
		case *sFilter:
			text := r.capture(func() { r.run(st.body, &scope{up: s}) })
			r.write(r.str(r.through(st.filter, text, s)))
		case *sWith:
			in := &scope{up: s}
			vals := make([]any, len(st.vals))
			for i, e := range st.vals {
				vals[i] = r.eval(e, s)
			}
			for i, t := range st.targets {
				r.assign(t, vals[i], in)
			}
			if f := r.run(st.body, in); f != onward {
				return f
			}
		case *sScope:
			r.run(st.body, &scope{up: s})
		case *sBreak:
			return broken
		case *sContinue:
			return continued
		default:
			panic(fmt.Sprintf("%T", st))
		}
	}
	return onward
}

func (r *render) loop(st *sFor, over any, s *scope, depth int) {
	if depth > maxCalls {
		fail("a loop too deep")
	}
	items := r.iterate(over)
	if st.test != nil {
		kept := make([]any, 0, len(items))
		for _, it := range items {
			r.step(1)
			in := &scope{up: s}
			r.assign(st.target, it, in)
			if truthy(r.eval(st.test, in)) {
				kept = append(kept, it)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		r.run(st.els, &scope{up: s})
		return
	}
	l := &loop{items: items, depth: depth, stmt: st, scope: s}
	in := &scope{up: s}
	var shared bool
	for i, it := range items {
		r.step(1)
		l.i = i
		if shared = shared || holdsScope(in); shared { // a macro keeps the scope it was made in
			in = &scope{up: s}
		} else {
			clear(in.vals)
			in.names, in.vals = in.names[:0], in.vals[:0]
		}
		in.set("loop", l)
		r.assign(st.target, it, in)
		if r.run(st.body, in) == broken {
			break
		}
	}
}

func holdsScope(s *scope) bool {
	for _, v := range s.vals {
		if _, ok := v.(*macro); ok {
			return true
		}
	}
	return false
}

func (r *render) assign(t target, v any, s *scope) {
	switch {
	case t.many != nil:
		items := r.iterate(v)
		if len(items) != len(t.many) {
			fail("%d values for %d names", len(items), len(t.many))
		}
		for i, t := range t.many {
			r.assign(t, items[i], s)
		}
	case t.attr != "":
		obj, _ := s.get(t.name)
		ns, ok := obj.(*namespace)
		if !ok {
			fail("cannot assign attribute on non-namespace object")
		}
		ns.set(t.attr, v)
	default:
		s.set(t.name, v)
	}
}

func (r *render) eval(e expr, s *scope) any {
	r.step(1)
	switch e := e.(type) {
	case *eConst:
		return e.v
	case *eName:
		if v, ok := s.get(e.name); ok {
			return v
		}
		return &undefined{"'" + e.name + "'"}
	case *eAttr:
		return r.attr(r.eval(e.obj, s), e.name)
	case *eItem:
		return r.item(r.eval(e.obj, s), r.eval(e.key, s))
	case *eSlice:
		part := func(x expr) any {
			if x == nil {
				return nil
			}
			return r.eval(x, s)
		}
		return r.slice(r.eval(e.obj, s), part(e.from), part(e.to), part(e.step))
	case *eCall:
		return r.call(e, s, nil)
	case *eFilter:
		return r.through(e, nil, s)
	case *eTest:
		if e.fn == nil {
			fail("no test named '%s'", e.name)
		}
		v := r.eval(e.obj, s)
		pos, _ := r.args(&e.args, s)
		return e.fn(r, v, pos) != e.not
	case *eUnary:
		v := r.eval(e.x, s)
		switch e.op {
		case "not":
			return !truthy(v)
		case "-":
			switch v := v.(type) {
			case float64:
				return -v
			case *big.Int:
				return new(big.Int).Neg(v)
			}
			return r.arith("-", int64(0), v)
		}
		return r.arith("+", int64(0), v)
	case *eBinary:
		l := r.eval(e.l, s)
		switch e.op {
		case "and":
			if !truthy(l) {
				return l
			}
			return r.eval(e.r, s)
		case "or":
			if truthy(l) {
				return l
			}
			return r.eval(e.r, s)
		}
		return r.arith(e.op, l, r.eval(e.r, s))
	case *eConcat:
		var b strings.Builder
		for _, p := range e.parts {
			b.WriteString(r.str(r.eval(p, s)))
		}
		return r.made(b.String())
	case *eCompare:
		l := r.eval(e.first, s)
		for i, op := range e.ops {
			right := r.eval(e.rest[i], s)
			if !r.compare(op, l, right) {
				return false
			}
			l = right
		}
		return true
	case *eCond:
		if truthy(r.eval(e.test, s)) {
			return r.eval(e.yes, s)
		}
		if e.no == nil {
			return &undefined{"the inline if-expression without else"}
		}
		return r.eval(e.no, s)
	case *eList:
		l := &list{items: make([]any, len(e.items)), tuple: e.tuple}
		r.charge(16 * len(e.items))
		for i, x := range e.items {
			l.items[i] = r.eval(x, s)
		}
		return l
	case *eDict:
		d := &dict{}
		r.charge(32 * len(e.keys))
		for i, k := range e.keys {
			key, ok := r.eval(k, s).(string)
			if !ok {
				fail("a dictionary with keys that are not texts is not known here")
			}
			d.set(key, r.eval(e.vals[i], s))
		}
		return d
	}
	panic(fmt.Sprintf("%T", e))
}

func (r *render) compare(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "<":
		return r.less(a, b)
	case ">":
		return r.less(b, a)
	case "<=":
		return r.less(a, b) || r.equal(a, b)
	case ">=":
		return r.less(b, a) || r.equal(a, b)
	case "in":
		return r.contains(b, a)
	}
	return !r.contains(b, a)
}

// args evaluates arguments.
func (r *render) args(a *callArgs, s *scope) (pos []any, named *dict) {
	for _, e := range a.pos {
		pos = append(pos, r.eval(e, s))
	}
	if a.star != nil {
		pos = append(pos, r.iterate(r.eval(a.star, s))...)
	}
	for i, n := range a.names {
		if named == nil {
			named = &dict{}
		}
		named.set(n, r.eval(a.named[i], s))
	}
	if a.starstar != nil {
		d, ok := r.eval(a.starstar, s).(*dict)
		if !ok {
			fail("argument after ** must be a mapping")
		}
		if named == nil {
			named = &dict{}
		}
		for i, k := range d.keys {
			named.set(k, d.vals[i])
		}
	}
	return pos, named
}

// call calls what an expression names; caller is a call block's body.
func (r *render) call(e *eCall, s *scope, caller *macro) any {
	fn := r.eval(e.fn, s)
	pos, named := r.args(&e.args, s)
	if caller != nil {
		m, ok := fn.(*macro)
		if !ok || !m.def.caller {
			fail("a call block wants a macro that uses caller()")
		}
		if named == nil {
			named = &dict{}
		}
		named.set("caller", caller)
	}
	return r.apply(fn, pos, named)
}

func (r *render) apply(fn any, pos []any, named *dict) any {
	switch fn := fn.(type) {
	case function:
		return fn(r, pos, named)
	case *macro:
		return r.macro(fn, pos, named)
	case *loop:
		if !fn.stmt.recursive || len(pos) != 1 {
			fail("the loop must have the 'recursive' marker to be called recursively")
		}
		return r.capture(func() { r.loop(fn.stmt, pos[0], fn.scope, fn.depth+1) })
	case *undefined:
		fn.fail()
	}
	fail("'%s' object is not callable", typeName(fn))
	return nil
}

func (r *render) macro(m *macro, pos []any, named *dict) any {
	if r.calls++; r.calls > maxCalls {
		fail("macros call each other too deep")
	}
	defer func() { r.calls-- }()
	in := &scope{up: m.scope}
	d := m.def
	rest := &dict{}
	if named != nil {
		rest = named.clone()
	}
	for i, name := range d.params {
		if i < len(pos) {
			if rest.find(name) >= 0 {
				fail("macro '%s' got multiple values for argument '%s'", d.name, name)
			}
			in.set(name, pos[i])
			continue
		}
		if v, ok := rest.get(name); ok {
			in.set(name, v)
			rest.drop(name)
			continue
		}
		if at := i - (len(d.params) - len(d.defaults)); at >= 0 {
			in.set(name, r.eval(d.defaults[at], in))
		} else {
			in.set(name, &undefined{fmt.Sprintf("parameter '%s' was not provided, it", name)})
		}
	}
	if c, ok := rest.get("caller"); ok {
		in.set("caller", c)
		rest.drop("caller")
	} else if d.caller && d.name != "caller" {
		in.set("caller", &undefined{"no caller defined; it"})
	}
	if d.kwargs {
		in.set("kwargs", rest)
	} else if len(rest.keys) > 0 {
		fail("macro '%s' takes no keyword argument '%s'", d.name, rest.keys[0])
	}
	if d.varargs {
		l := &list{tuple: true}
		if len(pos) > len(d.params) {
			l.items = pos[len(d.params):]
		}
		in.set("varargs", l)
	} else if len(pos) > len(d.params) {
		fail("macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	return r.capture(func() { r.run(d.body, in) })
}

// through runs a chain of filters whose innermost subject is given, if its expression is nil.
func (r *render) through(f *eFilter, subject any, s *scope) any {
	if f.fn == nil {
		fail("no filter named '%s'", f.name)
	}
	switch obj := f.obj.(type) {
	case nil:
	case *eFilter:
		subject = r.through(obj, subject, s)
	default:
		subject = r.eval(obj, s)
	}
	pos, named := r.args(&f.args, s)
	r.step(1)
	return f.fn(r, subject, pos, named)
}
