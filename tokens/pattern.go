// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern is a regular expression as tokenizer.json means it: Oniguruma's, Unicode 16, leftmost and greedy with
// backtracking. It holds what patterns of tokenizers use: classes and their intersections, groups, quantifiers of the three
// kinds, looking ahead and one character behind, (?i:). What else there is in Oniguruma is an error when it is compiled.
//
// It is a list of instructions with an explicit stack of what may be tried yet. A run of one class, which is nearly all
// that these patterns are made of, is one instruction and one entry on that stack, however long.
type pattern struct {
	prog []instr
	sets []*runeSet
	// first[b] has the bit of each top-level alternative that may begin with byte b, or with a character beyond ASCII at 0x80.
	first [129]uint64
	alts  []int // where the alternatives begin
}

type op uint8

const (
	opSet     op = iota // one character of the set
	opRun               // min to max characters of the set, greedy
	opLazy              // the same, as few as will do
	opHold              // the same, greedy, nothing given back
	opSplit             // try x, then y
	opJump              // go on at x
	opLook              // the program from the next instruction to x must match here, or must not
	opBehind            // the character before must be of the set, or must not
	opBegin             // start of text
	opEnd               // end of text
	opLine              // start of a line
	opLineEnd           // end of a line
	opCount             // a loop of an empty-capable body may not go on without having moved: x is its slot
	opAtomic            // the program from the next instruction to x matches here, and nothing of it is tried again
	opMatch
)

type instr struct {
	op       op
	not      bool
	set      int32
	min, max int32
	x, y     int
}

// A runeSet is a set of characters: a bit each, in pages of 256 that are shared where they are the same.
type runeSet struct {
	ascii [2]uint64
	pages [0x1100]*[4]uint64
}

func (s *runeSet) has(r rune) bool {
	return s.pages[r>>8][r>>6&3]>>(r&63)&1 != 0
}

// makeSet makes the set of what passes the test. Between one mark and the next all characters do, or none.
func makeSet(in func(rune) bool, marks []rune) *runeSet {
	marks = slices.Clone(marks)
	slices.Sort(marks)
	marks = slices.Compact(append(marks, 0x110000))
	s := new(runeSet)
	bits := make([]uint64, 0x110000/64)
	at := rune(0)
	for _, m := range marks {
		if m <= at {
			continue
		}
		if in(at) {
			for r := at; r < m; {
				if r&63 == 0 && r+64 <= m {
					bits[r>>6] = math.MaxUint64
					r += 64
				} else {
					bits[r>>6] |= 1 << (r & 63)
					r++
				}
			}
		}
		at = m
	}
	s.share(bits)
	return s
}

// share fills the pages, equal ones once.
func (s *runeSet) share(bits []uint64) {
	same := map[[4]uint64]*[4]uint64{}
	for i := range s.pages {
		page := [4]uint64(bits[4*i:])
		p := same[page]
		if p == nil {
			p = new([4]uint64)
			*p = page
			same[page] = p
		}
		s.pages[i] = p
	}
	s.ascii = [2]uint64{s.pages[0][0], s.pages[0][1]}
}

// folded adds what differs from a member only in case.
func (s *runeSet) folded() *runeSet {
	bits := make([]uint64, 0x110000/64)
	for i, p := range s.pages {
		for j, w := range p {
			bits[4*i+j] |= w
			for b := range 64 {
				if w>>b&1 == 0 {
					continue
				}
				r := rune(i<<8 | j<<6 | b)
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					bits[f>>6] |= 1 << (f & 63)
				}
			}
		}
	}
	t := new(runeSet)
	t.share(bits)
	return t
}

// errTooHard is the answer to a text on which a pattern went through too many steps.
var errTooHard = errors.New("the pattern needs too many steps for this text")

type retry struct {
	pc, pos int
	low     int // a run may give back characters down to here, or -1
	hi      int // a lazy run may take so many characters more, or -1
}

// matcher is the memory of a match, reused.
type matcher struct {
	stack []retry
	loops []int
	steps int
}

func (m *matcher) tooHard(s string) bool { return m.steps > stepsPerByte*(len(s)+64) }

// stepsPerByte bounds what a pattern may cost: what the well-known ones need is below ten.
const stepsPerByte = 2000

// match returns the end of the match that begins at pos, or -1.
func (p *pattern) match(m *matcher, s string, pos int) int {
	b := 0x80
	if pos < len(s) && s[pos] < 0x80 {
		b = int(s[pos])
	}
	mask := p.first[b]
	if pos == len(s) {
		mask = math.MaxUint64
	}
	for i, start := range p.alts {
		if mask>>min(i, 63)&1 == 0 {
			continue
		}
		if end := p.run(m, s, start, pos); end >= 0 {
			return end
		}
	}
	return -1
}

func (p *pattern) run(m *matcher, s string, pc, pos int) int {
	base := len(m.stack)
	for {
		in := &p.prog[pc]
		ok := true
		switch in.op {
		case opSet:
			ok = false
			if pos < len(s) {
				if c := s[pos]; c < 0x80 {
					if p.sets[in.set].ascii[c>>6]>>(c&63)&1 != 0 {
						pos++
						ok = true
					}
				} else if r, w := utf8.DecodeRuneInString(s[pos:]); p.sets[in.set].has(r) {
					pos += w
					ok = true
				}
			}
			pc++
		case opRun, opHold:
			set := p.sets[in.set]
			start, n := pos, int32(0)
			low := pos
			for n < in.max && pos < len(s) {
				if c := s[pos]; c < 0x80 {
					if set.ascii[c>>6]>>(c&63)&1 == 0 {
						break
					}
					pos++
				} else {
					r, w := utf8.DecodeRuneInString(s[pos:])
					if !set.has(r) {
						break
					}
					pos += w
				}
				n++
				if n == in.min {
					low = pos
				}
			}
			m.steps += (pos - start) / 8
			if in.min == 0 {
				low = start
			}
			pc++
			if ok = n >= in.min; ok && in.op == opRun && pos > low && p.prog[pc].op != opMatch {
				m.stack = append(m.stack, retry{pc: pc, pos: pos, low: low, hi: -1})
			}
		case opLazy:
			set := p.sets[in.set]
			n := int32(0)
			for n < in.min && ok {
				if r, w := utf8.DecodeRuneInString(s[pos:]); w > 0 && set.has(r) {
					pos += w
					n++
				} else {
					ok = false
				}
			}
			if ok && in.max > in.min {
				m.stack = append(m.stack, retry{pc: pc, pos: pos, low: -1, hi: int(in.max - in.min)})
			}
			pc++
		case opSplit:
			m.stack = append(m.stack, retry{pc: in.y, pos: pos, low: -1, hi: -1})
			pc = in.x
		case opJump:
			pc = in.x
		case opLook:
			end := p.run(m, s, pc+1, pos)
			ok = (end >= 0) != in.not
			pc = in.x
		case opAtomic:
			if end := p.run(m, s, pc+1, pos); end >= 0 {
				pos = end
			} else {
				ok = false
			}
			pc = in.x
		case opBehind:
			r, w := utf8.DecodeLastRuneInString(s[:pos])
			ok = (w > 0 && p.sets[in.set].has(r)) != in.not
			pc++
		case opBegin:
			ok = pos == 0
			pc++
		case opEnd:
			ok = pos == len(s)
			pc++
		case opLine:
			ok = pos == 0 || s[pos-1] == '\n'
			pc++
		case opLineEnd:
			ok = pos == len(s) || s[pos] == '\n'
			pc++
		case opCount:
			for len(m.loops) <= in.x {
				m.loops = append(m.loops, -1)
			}
			if in.not { // entering the loop
				m.loops[in.x] = -1
			} else {
				ok = m.loops[in.x] != pos
				m.loops[in.x] = pos
			}
			pc++
		case opMatch:
			m.stack = m.stack[:base]
			return pos
		}
		m.steps++
		for !ok {
			if len(m.stack) == base || m.tooHard(s) {
				m.stack = m.stack[:base]
				return -1
			}
			m.steps++
			top := &m.stack[len(m.stack)-1]
			pc, pos = top.pc, top.pos
			switch {
			case top.low >= 0: // a run gives back its last character
				_, w := utf8.DecodeLastRuneInString(s[:pos])
				pos -= w
				if pos <= top.low {
					m.stack = m.stack[:len(m.stack)-1]
				} else {
					top.pos = pos
				}
				ok = true
			case top.hi >= 0: // a lazy run takes one more
				set := p.sets[p.prog[pc].set]
				r, w := utf8.DecodeRuneInString(s[pos:])
				if w == 0 || !set.has(r) {
					m.stack = m.stack[:len(m.stack)-1]
					continue
				}
				pos += w
				if top.hi--; top.hi == 0 {
					m.stack = m.stack[:len(m.stack)-1]
				} else {
					top.pos = pos
				}
				pc++
				ok = true
			default:
				m.stack = m.stack[:len(m.stack)-1]
				ok = true
			}
		}
	}
}

// find returns the first match at or after pos, or -1.
func (p *pattern) find(m *matcher, s string, pos int) (start, end int) {
	for ; pos <= len(s); pos++ {
		if pos < len(s) && !utf8.RuneStart(s[pos]) {
			continue
		}
		if end := p.match(m, s, pos); end >= 0 {
			return pos, end
		}
	}
	return -1, -1
}

// compile reads a pattern.
func compile(expr string) (*pattern, error) {
	c := compiler{src: expr, sets: map[string]int32{}, marks: baseMarks(), p: new(pattern)}
	n, err := c.alternation(0)
	if err == nil && c.pos < len(expr) {
		err = fmt.Errorf("%q is left over", expr[c.pos:])
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", expr, err)
	}
	alts := []*node{n}
	if n.kind == nAlt {
		alts = n.subs
	}
	for i, alt := range alts {
		if len(c.p.prog) > maxProgram {
			return nil, fmt.Errorf("pattern %.100q: it is too large", expr)
		}
		c.p.alts = append(c.p.alts, len(c.p.prog))
		c.emit(alt)
		c.add(instr{op: opMatch})
		for b := range 129 {
			if c.mayBegin(alt, b) {
				c.p.first[b] |= 1 << min(i, 63)
			}
		}
	}
	if len(c.p.prog) > maxProgram {
		return nil, fmt.Errorf("pattern %.100q: it is too large", expr)
	}
	return c.p, nil
}

type nodeKind uint8

const (
	nSet nodeKind = iota
	nSeq
	nAlt
	nRepeat
	nLook
	nBehind
	nAnchor
)

type node struct {
	kind     nodeKind
	set      int32
	subs     []*node
	min, max int32
	how      byte // 0 greedy, '?' lazy, '+' possessive or atomic
	not      bool
	op       op
}

type compiler struct {
	src   string
	pos   int
	fold  bool
	loops int
	sets  map[string]int32
	marks []rune // where sets may change: see makeSet
	p     *pattern
}

// What a pattern may be: repetitions within repetitions multiply.
const (
	maxRepeat  = 1000
	maxProgram = 20000
)

func (c *compiler) add(in instr) int {
	if len(c.p.prog) < maxProgram+1 {
		c.p.prog = append(c.p.prog, in)
	}
	return len(c.p.prog) - 1
}

func (c *compiler) mark(lo, hi rune) { c.marks = append(c.marks, lo, hi+1) }

func (c *compiler) peek() byte {
	if c.pos < len(c.src) {
		return c.src[c.pos]
	}
	return 0
}

func (c *compiler) take(s string) bool {
	if strings.HasPrefix(c.src[c.pos:], s) {
		c.pos += len(s)
		return true
	}
	return false
}

func (c *compiler) alternation(depth int) (*node, error) {
	if depth > 50 {
		return nil, errors.New("groups lie too deep")
	}
	fold := c.fold
	defer func() { c.fold = fold }()
	var alts []*node
	for {
		seq := &node{kind: nSeq}
		for c.pos < len(c.src) && c.peek() != '|' && c.peek() != ')' {
			n, err := c.quantified(depth)
			if err != nil {
				return nil, err
			}
			if n != nil {
				seq.subs = append(seq.subs, n)
			}
		}
		alts = append(alts, seq)
		if !c.take("|") {
			break
		}
	}
	if len(alts) == 1 {
		return alts[0], nil
	}
	return &node{kind: nAlt, subs: alts}, nil
}

func (c *compiler) quantified(depth int) (*node, error) {
	n, err := c.atom(depth)
	if err != nil || n == nil {
		return n, err
	}
	for c.pos < len(c.src) {
		lo, hi := int32(0), int32(math.MaxInt32)
		counted := false
		switch c.peek() {
		case '*':
			c.pos++
		case '+':
			lo = 1
			c.pos++
		case '?':
			hi = 1
			c.pos++
		case '{':
			end := strings.IndexByte(c.src[c.pos:], '}')
			if end < 0 {
				return nil, errors.New("{ without }")
			}
			from, to, both := strings.Cut(c.src[c.pos+1:c.pos+end], ",")
			a, errA := strconv.Atoi(from)
			if from == "" && both {
				a, errA = 0, nil
			}
			b, errB := a, error(nil)
			if both {
				if b, errB = strconv.Atoi(to); to == "" {
					b, errB = math.MaxInt32, nil
				}
			}
			if errA != nil || errB != nil || a < 0 || a > maxRepeat || b < a || b > maxRepeat && b != math.MaxInt32 {
				return nil, fmt.Errorf("%s is no count", c.src[c.pos:c.pos+end+1])
			}
			lo, hi = int32(a), int32(b)
			c.pos += end + 1
			counted = true
		default:
			return n, nil
		}
		how := byte(0)
		if c.peek() == '?' {
			how = '?'
			c.pos++
		} else if c.peek() == '+' && !counted { // {1,3}+ repeats the repetition
			how = '+'
			c.pos++
		}
		if n.kind == nLook || n.kind == nBehind || n.kind == nAnchor {
			return nil, errors.New("a repeated look or anchor")
		}
		n = &node{kind: nRepeat, subs: []*node{n}, min: lo, max: hi, how: how}
	}
	return n, nil
}

func (c *compiler) atom(depth int) (*node, error) {
	switch b := c.peek(); b {
	case '(':
		c.pos++
		if !c.take("?") {
			return c.group(depth, func(n *node) *node { return n })
		}
		switch {
		case c.take(":"):
			return c.group(depth, func(n *node) *node { return n })
		case c.take("="):
			return c.group(depth, func(n *node) *node { return &node{kind: nLook, subs: []*node{n}} })
		case c.take("!"):
			return c.group(depth, func(n *node) *node { return &node{kind: nLook, not: true, subs: []*node{n}} })
		case c.take(">"):
			return c.group(depth, func(n *node) *node { return &node{kind: nRepeat, min: 1, max: 1, how: '+', subs: []*node{n}} })
		case c.take("<=") || c.take("<!"):
			not := c.src[c.pos-1] == '!'
			var bad error
			n, err := c.group(depth, func(n *node) *node {
				for n.kind == nSeq && len(n.subs) == 1 {
					n = n.subs[0]
				}
				if n.kind != nSet {
					bad = errors.New("looking behind at more than one character")
				}
				return &node{kind: nBehind, not: not, set: n.set}
			})
			return n, errors.Join(err, bad)
		case c.take("i:"):
			c.fold = true
			n, err := c.group(depth, func(n *node) *node { return n })
			c.fold = false
			return n, err
		case c.take("i)"):
			c.fold = true
			return nil, nil
		}
		return nil, fmt.Errorf("(?%.3s… is not known here", c.src[c.pos:])
	case '[':
		start := c.pos
		in, err := c.class(0)
		if err != nil {
			return nil, err
		}
		return c.set(c.src[start:c.pos], in), nil
	case '.':
		c.pos++
		return c.set(".", func(r rune) bool { return r != '\n' }), nil
	case '^', '$':
		c.pos++
		if b == '^' {
			return &node{kind: nAnchor, op: opLine}, nil
		}
		return &node{kind: nAnchor, op: opLineEnd}, nil
	case '*', '+', '?', ')':
		return nil, fmt.Errorf("nothing before %c", b)
	case '\\':
		if c.pos+1 < len(c.src) {
			switch c.src[c.pos+1] {
			case 'A':
				c.pos += 2
				return &node{kind: nAnchor, op: opBegin}, nil
			case 'z':
				c.pos += 2
				return &node{kind: nAnchor, op: opEnd}, nil
			}
		}
		start := c.pos
		in, _, err := c.escape()
		if err != nil {
			return nil, err
		}
		return c.set(c.src[start:c.pos], in), nil
	}
	r, w := utf8.DecodeRuneInString(c.src[c.pos:])
	c.pos += w
	c.mark(r, r)
	return c.set(string(r), func(q rune) bool { return q == r }), nil
}

func (c *compiler) group(depth int, wrap func(*node) *node) (*node, error) {
	n, err := c.alternation(depth + 1)
	if err != nil {
		return nil, err
	}
	if !c.take(")") {
		return nil, errors.New("( without )")
	}
	return wrap(n), nil
}

// set makes the node of a set; text is what it was written as, which tells equal ones.
func (c *compiler) set(text string, in func(rune) bool) *node {
	if c.fold {
		text = "(?i)" + text
	}
	i, ok := c.sets[text]
	if !ok {
		i = int32(len(c.p.sets))
		set := makeSet(in, c.marks)
		if c.fold {
			set = set.folded()
		}
		c.p.sets = append(c.p.sets, set)
		c.sets[text] = i
	}
	return &node{kind: nSet, set: i}
}

// escape reads a backslash and what follows: a set, and the character where it is just one.
func (c *compiler) escape() (in func(rune) bool, lit rune, err error) {
	c.pos++
	if c.pos >= len(c.src) {
		return nil, -1, errors.New(`\ at the end`)
	}
	r, w := utf8.DecodeRuneInString(c.src[c.pos:])
	c.pos += w
	not := func(f func(rune) bool) func(rune) bool { return func(r rune) bool { return !f(r) } }
	word := func(r rune) bool { return classOf(r)&bitOnigWord != 0 }
	digit := func(r rune) bool { return classOf(r)&maskCat == catNd }
	hex := func(r rune) bool { return r < 0x80 && strings.ContainsRune("0123456789abcdefABCDEF", r) }
	switch r {
	case 's':
		return isSpace, -1, nil
	case 'S':
		return not(isSpace), -1, nil
	case 'w':
		return word, -1, nil
	case 'W':
		return not(word), -1, nil
	case 'd':
		return digit, -1, nil
	case 'D':
		return not(digit), -1, nil
	case 'h':
		return hex, -1, nil
	case 'H':
		return not(hex), -1, nil
	case 'p', 'P':
		end := strings.IndexByte(c.src[c.pos:], '}')
		if c.peek() != '{' || end < 0 {
			return nil, -1, fmt.Errorf(`\%c without {name}`, r)
		}
		name := c.src[c.pos+1 : c.pos+end]
		c.pos += end + 1
		name, neg := strings.CutPrefix(name, "^")
		var marks []rune
		in, marks, err = property(name)
		c.marks = append(c.marks, marks...)
		if err == nil && neg != (r == 'P') {
			in = not(in)
		}
		return in, -1, err
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'f':
		r = '\f'
	case 'v':
		r = '\v'
	case 'a':
		r = '\a'
	case 'e':
		r = 0x1b
	case 'u', 'x':
		digits := ""
		if r == 'x' && c.peek() == '{' {
			end := strings.IndexByte(c.src[c.pos:], '}')
			if end < 0 {
				return nil, -1, errors.New(`\x{ without }`)
			}
			digits = c.src[c.pos+1 : c.pos+end]
			c.pos += end + 1
		} else {
			n := 4
			if r == 'x' {
				n = 2
			}
			for len(digits) < n && c.pos < len(c.src) && hex(rune(c.src[c.pos])) {
				digits += string(c.src[c.pos])
				c.pos++
			}
		}
		v, err := strconv.ParseUint(digits, 16, 21)
		if err != nil || v > unicode.MaxRune {
			return nil, -1, fmt.Errorf(`\%c%s is no character`, r, digits)
		}
		r = rune(v)
	default:
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return nil, -1, fmt.Errorf(`\%c is not known here`, r)
		}
	}
	c.mark(r, r)
	return func(q rune) bool { return q == r }, r, nil
}

// class reads [...], with what lies inside it.
func (c *compiler) class(depth int) (func(rune) bool, error) {
	if depth > 20 {
		return nil, errors.New("classes lie too deep")
	}
	c.pos++ // [
	neg := c.take("^")
	var and []func(rune) bool // the parts between &&
	var or []func(rune) bool
	anyOf := func(fs []func(rune) bool) func(rune) bool {
		return func(r rune) bool { return slices.ContainsFunc(fs, func(f func(rune) bool) bool { return f(r) }) }
	}
	for first := true; ; first = false {
		if c.pos >= len(c.src) {
			return nil, errors.New("[ without ]")
		}
		if c.peek() == ']' && !first {
			c.pos++
			break
		}
		if c.take("&&") {
			and = append(and, anyOf(or))
			or = nil
			continue
		}
		if c.peek() == '[' {
			if strings.HasPrefix(c.src[c.pos:], "[:") {
				return nil, fmt.Errorf("%.10s is not known here", c.src[c.pos:])
			}
			in, err := c.class(depth + 1)
			if err != nil {
				return nil, err
			}
			or = append(or, in)
			continue
		}
		one := func() (func(rune) bool, rune, error) {
			if c.peek() == '\\' {
				return c.escape()
			}
			r, w := utf8.DecodeRuneInString(c.src[c.pos:])
			c.pos += w
			c.mark(r, r)
			return func(q rune) bool { return q == r }, r, nil
		}
		in, lo, err := one()
		if err != nil {
			return nil, err
		}
		if lo >= 0 && c.peek() == '-' && c.pos+1 < len(c.src) && c.src[c.pos+1] != ']' {
			c.pos++
			_, hi, err := one()
			if err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, errors.New("a range that ends before it begins")
			}
			c.mark(lo, hi)
			in = func(r rune) bool { return r >= lo && r <= hi }
		}
		or = append(or, in)
	}
	parts := append(and, anyOf(or))
	return func(r rune) bool {
		for _, f := range parts {
			if !f(r) {
				return neg
			}
		}
		return !neg
	}, nil
}

func (c *compiler) emit(n *node) {
	if len(c.p.prog) > maxProgram {
		return
	}
	switch n.kind {
	case nSet:
		c.add(instr{op: opSet, set: n.set})
	case nSeq:
		for _, s := range n.subs {
			c.emit(s)
		}
	case nAlt:
		var ends []int
		for i, s := range n.subs {
			if i == len(n.subs)-1 {
				c.emit(s)
				break
			}
			split := c.add(instr{op: opSplit})
			c.p.prog[split].x = len(c.p.prog)
			c.emit(s)
			ends = append(ends, c.add(instr{op: opJump}))
			c.p.prog[split].y = len(c.p.prog)
		}
		for _, e := range ends {
			c.p.prog[e].x = len(c.p.prog)
		}
	case nRepeat:
		c.emitRepeat(n)
	case nLook:
		look := c.add(instr{op: opLook, not: n.not})
		c.emit(n.subs[0])
		c.add(instr{op: opMatch})
		c.p.prog[look].x = len(c.p.prog)
	case nBehind:
		c.add(instr{op: opBehind, not: n.not, set: n.set})
	case nAnchor:
		c.add(instr{op: n.op})
	}
}

func (c *compiler) emitRepeat(n *node) {
	sub := n.subs[0]
	for sub.kind == nSeq && len(sub.subs) == 1 {
		sub = sub.subs[0]
	}
	if sub.kind == nSet {
		o := map[byte]op{0: opRun, '?': opLazy, '+': opHold}[n.how]
		c.add(instr{op: o, set: sub.set, min: n.min, max: n.max})
		return
	}
	if n.how == '+' { // nothing given back: run it by itself, as a look that moves
		c.p.prog = append(c.p.prog, instr{op: opMatch}) // replaced below
		at := len(c.p.prog) - 1
		c.emitRepeat(&node{kind: nRepeat, subs: n.subs, min: n.min, max: n.max})
		c.add(instr{op: opMatch})
		c.p.prog[at] = instr{op: opAtomic, x: len(c.p.prog)}
		return
	}
	for range n.min {
		c.emit(sub)
	}
	branch := func() int {
		at := c.add(instr{op: opSplit})
		return at
	}
	aim := func(at, body, after int) {
		if n.how == '?' {
			body, after = after, body
		}
		c.p.prog[at].x, c.p.prog[at].y = body, after
	}
	if n.max == math.MaxInt32 {
		slot := c.loops
		c.loops++
		c.add(instr{op: opCount, x: slot, not: true})
		top := branch()
		body := len(c.p.prog)
		c.add(instr{op: opCount, x: slot})
		c.emit(sub)
		c.add(instr{op: opJump, x: top})
		aim(top, body, len(c.p.prog))
		return
	}
	var tops []int
	for range n.max - n.min {
		tops = append(tops, branch())
		c.emit(sub)
	}
	for _, at := range tops {
		aim(at, at+1, len(c.p.prog))
	}
}

// mayBegin reports whether what n matches may begin with the byte, 0x80 being all beyond ASCII, or may be empty.
func (c *compiler) mayBegin(n *node, b int) bool {
	may, empty := c.begins(n, b)
	return may || empty
}

// begins reports whether n may begin with b, and whether it may match nothing, in which case it may begin with anything.
func (c *compiler) begins(n *node, b int) (may, empty bool) {
	switch n.kind {
	case nSet:
		if b < 0x80 {
			return c.p.sets[n.set].ascii[b>>6]>>(b&63)&1 != 0, false
		}
		return true, false
	case nSeq:
		for _, s := range n.subs {
			m, e := c.begins(s, b)
			may = may || m
			if !e {
				return may, false
			}
		}
		return true, true
	case nAlt:
		for _, s := range n.subs {
			m, e := c.begins(s, b)
			may, empty = may || m, empty || e
		}
		return may || empty, empty
	case nRepeat:
		may, empty = c.begins(n.subs[0], b)
		empty = empty || n.min == 0
		return may, empty
	}
	return false, true // a look or an anchor takes nothing: what follows decides
}
