// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"slices"
)

// The syntax tree of a template.

type stmt interface{}

type (
	sData   struct{ text string }
	sOutput struct{ e expr }
	sIf     struct {
		tests []expr
		thens [][]stmt
		els   []stmt
	}
	sFor struct {
		target    target
		iter      expr
		test      expr
		body, els []stmt
		recursive bool
	}
	sSet struct {
		target target
		e      expr
	}
	sSetBlock struct {
		target target
		filter *eFilter // its innermost subject is nil
		body   []stmt
	}
	sMacro struct{ m *macroDef }
	sCall  struct {
		call *eCall
		m    *macroDef
	}
	sFilter struct {
		filter *eFilter
		body   []stmt
	}
	sWith struct {
		targets []target
		vals    []expr
		body    []stmt
	}
	sScope    struct{ body []stmt } // {% generation %}
	sBreak    struct{}
	sContinue struct{}
)

type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last parameters
	body     []stmt
	varargs  bool
	kwargs   bool
	caller   bool
}

// target is what is assigned to: a name, a namespace's field, or several targets.
type target struct {
	name, attr string
	many       []target
}

type expr interface{}

type (
	eConst struct{ v any }
	eName  struct{ name string }
	eList  struct {
		items []expr
		tuple bool
	}
	eDict struct{ keys, vals []expr }
	eAttr struct {
		obj  expr
		name string
	}
	eItem struct {
		obj, key expr
	}
	eSlice struct {
		obj      expr
		from, to expr
		step     expr
	}
	eCall struct {
		fn   expr
		args callArgs
	}
	eFilter struct {
		obj  expr
		name string
		fn   filterFunc
		args callArgs
	}
	eTest struct {
		obj  expr
		name string
		fn   testFunc
		args callArgs
		not  bool
	}
	eUnary struct {
		op string
		x  expr
	}
	eBinary struct {
		op   string
		l, r expr
	}
	eConcat  struct{ parts []expr }
	eCompare struct {
		first expr
		ops   []string
		rest  []expr
	}
	eCond struct{ test, yes, no expr }
)

type callArgs struct {
	pos      []expr
	names    []string
	named    []expr
	star     expr
	starstar expr
}

type jinjaParser struct {
	toks  []tok
	pos   int
	depth int
	loops int
}

const maxNesting = 100

func parseJinja(src string) (body []stmt, err error) {
	toks, err := lexJinja(src)
	if err != nil {
		return nil, err
	}
	p := &jinjaParser{toks: toks}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*syntaxError)
			if !ok {
				panic(r)
			}
			err = e
		}
	}()
	body = p.body()
	if p.cur().kind != tEOF {
		p.fail("unexpected %s", p.cur())
	}
	return body, nil
}

func (p *jinjaParser) cur() tok { return p.toks[p.pos] }

func (p *jinjaParser) next() tok {
	t := p.toks[p.pos]
	if t.kind != tEOF {
		p.pos++
	}
	return t
}

func (p *jinjaParser) fail(format string, args ...any) {
	panic(&syntaxError{p.cur().line, fmt.Sprintf(format, args...)})
}

func (p *jinjaParser) op(text string) bool { return p.cur().kind == tOp && p.cur().text == text }

func (p *jinjaParser) takeOp(text string) bool {
	if p.op(text) {
		p.next()
		return true
	}
	return false
}

func (p *jinjaParser) needOp(text string) {
	if !p.takeOp(text) {
		p.fail("%s is wanted, not %s", text, p.cur())
	}
}

func (p *jinjaParser) word(text string) bool { return p.cur().kind == tName && p.cur().text == text }

func (p *jinjaParser) takeWord(text string) bool {
	if p.word(text) {
		p.next()
		return true
	}
	return false
}

func (p *jinjaParser) name() string {
	if p.cur().kind != tName {
		p.fail("a name is wanted, not %s", p.cur())
	}
	return p.next().text
}

func (p *jinjaParser) blockEnd() {
	if p.cur().kind != tBlockEnd {
		p.fail("%%} is wanted, not %s", p.cur())
	}
	p.next()
}

func (p *jinjaParser) down() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("it lies too deep")
	}
	return func() { p.depth-- }
}

// body reads statements to the first of the ends, whose word is the current token then.
func (p *jinjaParser) body(ends ...string) []stmt {
	defer p.down()()
	var out []stmt
	for {
		switch t := p.cur(); t.kind {
		case tData:
			p.next()
			out = append(out, &sData{t.text})
		case tVarBegin:
			p.next()
			e := p.tuple(true)
			if p.cur().kind != tVarEnd {
				p.fail("}} is wanted, not %s", p.cur())
			}
			p.next()
			out = append(out, &sOutput{e})
		case tBlockBegin:
			p.next()
			if p.cur().kind == tName && slices.Contains(ends, p.cur().text) {
				return out
			}
			out = append(out, p.statement())
		default:
			if len(ends) > 0 {
				p.fail("%s is missing", ends[0])
			}
			return out
		}
	}
}

// until reads %} and statements to one of the ends, and returns that.
func (p *jinjaParser) until(ends ...string) ([]stmt, string) {
	p.blockEnd()
	b := p.body(ends...)
	return b, p.next().text
}

func (p *jinjaParser) statement() stmt {
	word := p.name()
	switch word {
	case "if":
		s := &sIf{}
		for {
			s.tests = append(s.tests, p.tuple(false))
			body, end := p.until("elif", "else", "endif")
			s.thens = append(s.thens, body)
			if end == "elif" {
				continue
			}
			if end == "else" {
				s.els, _ = p.until("endif")
			}
			p.blockEnd()
			return s
		}
	case "for":
		s := &sFor{target: p.target(false, "in")}
		if !p.takeWord("in") {
			p.fail("in is wanted, not %s", p.cur())
		}
		s.iter = p.tuple(false, "recursive")
		if p.takeWord("if") {
			s.test = p.expression()
		}
		s.recursive = p.takeWord("recursive")
		p.loops++
		body, end := p.until("endfor", "else")
		p.loops--
		s.body = body
		if end == "else" {
			s.els, _ = p.until("endfor")
		}
		p.blockEnd()
		return s
	case "set":
		t := p.target(true)
		if p.takeOp("=") {
			e := p.tuple(true)
			p.blockEnd()
			return &sSet{t, e}
		}
		s := &sSetBlock{target: t}
		if p.op("|") {
			s.filter = p.filters(nil).(*eFilter)
		}
		s.body, _ = p.until("endset")
		p.blockEnd()
		return s
	case "macro":
		m := &macroDef{name: p.name()}
		p.signature(m)
		p.macroBody(m, "endmacro")
		return &sMacro{m}
	case "call":
		m := &macroDef{name: "caller"}
		if p.op("(") {
			p.signature(m)
		}
		call, ok := p.expression().(*eCall)
		if !ok {
			p.fail("call wants a call")
		}
		p.macroBody(m, "endcall")
		return &sCall{call, m}
	case "filter":
		// The first name has no | before it.
		s := &sFilter{filter: p.filterCall(nil)}
		if f, ok := p.filters(s.filter).(*eFilter); ok {
			s.filter = f
		}
		s.body, _ = p.until("endfilter")
		p.blockEnd()
		return s
	case "with":
		s := &sWith{}
		for p.cur().kind != tBlockEnd {
			if len(s.targets) > 0 {
				p.needOp(",")
			}
			s.targets = append(s.targets, p.target(false))
			p.needOp("=")
			s.vals = append(s.vals, p.expression())
		}
		s.body, _ = p.until("endwith")
		p.blockEnd()
		return s
	case "generation":
		s := &sScope{}
		loops := p.loops
		p.loops = 0
		s.body, _ = p.until("endgeneration")
		p.loops = loops
		p.blockEnd()
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside of a loop", word)
		}
		p.blockEnd()
		if word == "break" {
			return &sBreak{}
		}
		return &sContinue{}
	}
	p.fail("the tag %q is not known here", word)
	return nil
}

func (p *jinjaParser) macroBody(m *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	from := p.pos
	m.body, _ = p.until(end)
	p.loops = loops
	p.blockEnd()
	for _, t := range p.toks[from:p.pos] {
		if t.kind == tName {
			m.varargs = m.varargs || t.text == "varargs"
			m.kwargs = m.kwargs || t.text == "kwargs"
			m.caller = m.caller || t.text == "caller"
		}
	}
}

func (p *jinjaParser) signature(m *macroDef) {
	p.needOp("(")
	for !p.op(")") {
		if len(m.params) > 0 {
			p.needOp(",")
		}
		m.params = append(m.params, p.name())
		if p.takeOp("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("a parameter without a default behind one with")
		}
	}
	p.needOp(")")
}

func (p *jinjaParser) target(namespace bool, ends ...string) target {
	one := func() target {
		if p.takeOp("(") {
			t := p.target(false)
			p.needOp(")")
			return t
		}
		t := target{name: p.name()}
		if namespace && p.takeOp(".") {
			t.attr = p.name()
		}
		switch t.name {
		case "true", "false", "none", "True", "False", "None":
			p.fail("%s cannot be assigned to", t.name)
		}
		return t
	}
	first := one()
	if !p.op(",") {
		return first
	}
	many := []target{first}
	for p.takeOp(",") {
		if p.cur().kind == tBlockEnd || p.op("=") || p.op(")") || p.cur().kind == tName && slices.Contains(ends, p.cur().text) {
			break
		}
		many = append(many, one())
	}
	return target{many: many}
}

// tuple reads an expression, or several with commas. With ends, a name of theirs ends it.
func (p *jinjaParser) tuple(cond bool, ends ...string) expr {
	one := func() expr {
		if cond {
			return p.expression()
		}
		return p.or()
	}
	isEnd := func() bool {
		t := p.cur()
		return t.kind == tVarEnd || t.kind == tBlockEnd || t.kind == tOp && t.text == ")" || t.kind == tName && slices.Contains(ends, t.text)
	}
	if isEnd() {
		p.fail("an expression is wanted, not %s", p.cur())
	}
	first := one()
	if !p.op(",") {
		return first
	}
	items := []expr{first}
	for p.takeOp(",") {
		if isEnd() {
			break
		}
		items = append(items, one())
	}
	return &eList{items: items, tuple: true}
}

func (p *jinjaParser) expression() expr {
	defer p.down()()
	e := p.or()
	for p.takeWord("if") {
		test := p.or()
		var no expr
		if p.takeWord("else") {
			no = p.expression()
		}
		e = &eCond{test, e, no}
	}
	return e
}

func (p *jinjaParser) or() expr {
	l := p.and()
	for p.takeWord("or") {
		l = &eBinary{"or", l, p.and()}
	}
	return l
}

func (p *jinjaParser) and() expr {
	l := p.not()
	for p.takeWord("and") {
		l = &eBinary{"and", l, p.not()}
	}
	return l
}

func (p *jinjaParser) not() expr {
	if p.takeWord("not") {
		defer p.down()()
		return &eUnary{"not", p.not()}
	}
	return p.compare()
}

func (p *jinjaParser) compare() expr {
	first := p.sum()
	var ops []string
	var rest []expr
	for {
		switch t := p.cur(); {
		case t.kind == tOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			p.next()
			ops = append(ops, t.text)
		case p.word("in"):
			p.next()
			ops = append(ops, "in")
		case p.word("not") && p.toks[p.pos+1].kind == tName && p.toks[p.pos+1].text == "in":
			p.pos += 2
			ops = append(ops, "not in")
		default:
			if ops == nil {
				return first
			}
			return &eCompare{first, ops, rest}
		}
		rest = append(rest, p.sum())
	}
}

func (p *jinjaParser) sum() expr {
	l := p.concat()
	for p.op("+") || p.op("-") {
		op := p.next().text
		l = &eBinary{op, l, p.concat()}
	}
	return l
}

func (p *jinjaParser) concat() expr {
	first := p.product()
	if !p.op("~") {
		return first
	}
	parts := []expr{first}
	for p.takeOp("~") {
		parts = append(parts, p.product())
	}
	return &eConcat{parts}
}

func (p *jinjaParser) product() expr {
	l := p.power()
	for p.op("*") || p.op("/") || p.op("//") || p.op("%") {
		op := p.next().text
		l = &eBinary{op, l, p.power()}
	}
	return l
}

func (p *jinjaParser) power() expr {
	l := p.unary(true)
	for p.takeOp("**") {
		l = &eBinary{"**", l, p.unary(true)}
	}
	return l
}

func (p *jinjaParser) unary(filter bool) expr {
	defer p.down()()
	var e expr
	if p.op("-") || p.op("+") {
		op := p.next().text
		e = &eUnary{op, p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if filter {
		e = p.filters(e)
	}
	return e
}

func (p *jinjaParser) primary() expr {
	t := p.next()
	switch t.kind {
	case tName:
		switch t.text {
		case "true", "True":
			return &eConst{true}
		case "false", "False":
			return &eConst{false}
		case "none", "None":
			return &eConst{nil}
		}
		return &eName{t.text}
	case tString:
		for p.cur().kind == tString {
			t.text += p.next().text
		}
		return &eConst{t.text}
	case tInt, tFloat:
		return &eConst{t.num}
	case tOp:
		switch t.text {
		case "(":
			if p.takeOp(")") {
				return &eList{tuple: true}
			}
			e := p.tuple(true)
			p.needOp(")")
			return e
		case "[":
			l := &eList{}
			for !p.op("]") {
				if len(l.items) > 0 {
					p.needOp(",")
					if p.op("]") {
						break
					}
				}
				l.items = append(l.items, p.expression())
			}
			p.needOp("]")
			return l
		case "{":
			d := &eDict{}
			for !p.op("}") {
				if len(d.keys) > 0 {
					p.needOp(",")
					if p.op("}") {
						break
					}
				}
				d.keys = append(d.keys, p.expression())
				p.needOp(":")
				d.vals = append(d.vals, p.expression())
			}
			p.needOp("}")
			return d
		}
	}
	p.pos = max(p.pos-1, 0)
	p.fail("unexpected %s", p.cur())
	return nil
}

func (p *jinjaParser) postfix(e expr) expr {
	for {
		switch {
		case p.takeOp("."):
			switch t := p.next(); t.kind {
			case tName:
				e = &eAttr{e, t.text}
			case tInt:
				e = &eItem{e, &eConst{t.num}}
			default:
				p.fail("a name or a number is wanted behind a point")
			}
		case p.takeOp("["):
			e = p.subscript(e)
		case p.op("("):
			e = &eCall{e, p.args()}
		default:
			return e
		}
	}
}

func (p *jinjaParser) subscript(obj expr) expr {
	part := func() expr {
		if p.op(":") || p.op("]") {
			return nil
		}
		return p.expression()
	}
	from := part()
	if p.takeOp("]") {
		if from == nil {
			p.fail("an empty subscript")
		}
		return &eItem{obj, from}
	}
	if p.op(",") {
		p.fail("a subscript of several is not known here")
	}
	s := &eSlice{obj: obj, from: from}
	p.needOp(":")
	s.to = part()
	if p.takeOp(":") {
		s.step = part()
	}
	p.needOp("]")
	return s
}

func (p *jinjaParser) args() callArgs {
	defer p.down()()
	var a callArgs
	p.needOp("(")
	for first := true; !p.op(")"); first = false {
		if !first {
			p.needOp(",")
			if p.op(")") {
				break
			}
		}
		switch {
		case p.takeOp("**"):
			a.starstar = p.expression()
		case p.takeOp("*"):
			a.star = p.expression()
		case p.cur().kind == tName && p.toks[p.pos+1].kind == tOp && p.toks[p.pos+1].text == "=":
			a.names = append(a.names, p.name())
			p.next()
			a.named = append(a.named, p.expression())
		default:
			if len(a.names) > 0 || a.star != nil {
				p.fail("an argument without a name behind one with")
			}
			a.pos = append(a.pos, p.expression())
		}
	}
	p.needOp(")")
	return a
}

// filters reads what follows an expression: filters and tests.
func (p *jinjaParser) filters(e expr) expr {
	for {
		switch {
		case p.takeOp("|"):
			e = p.filterCall(e)
		case e != nil && p.word("is"):
			p.next()
			e = p.test(e)
		case e != nil && p.op("("):
			e = &eCall{e, p.args()}
		default:
			return e
		}
	}
}

func (p *jinjaParser) filterCall(e expr) *eFilter {
	f := &eFilter{obj: e, name: p.name()}
	for p.takeOp(".") {
		f.name += "." + p.name()
	}
	f.fn = filters[f.name] // one that is not known fails when it is come to
	if p.op("(") {
		f.args = p.args()
	}
	return f
}

func (p *jinjaParser) test(e expr) expr {
	t := &eTest{obj: e, not: p.takeWord("not")}
	t.name = p.name()
	for p.takeOp(".") {
		t.name += "." + p.name()
	}
	t.fn = tests[t.name]
	switch c := p.cur(); {
	case p.op("("):
		t.args = p.args()
	case c.kind == tString || c.kind == tInt || c.kind == tFloat || c.kind == tOp && (c.text == "[" || c.text == "{") ||
		c.kind == tName && c.text != "else" && c.text != "or" && c.text != "and":
		if p.word("is") {
			p.fail("tests cannot be chained")
		}
		t.args.pos = []expr{p.postfix(p.primary())}
	}
	return t
}
