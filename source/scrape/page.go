// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// State tells whether a value can be used.
type State uint8

// The states of a value.
const (
	Absent State = iota // the page does not have it
	Known
	Bad // the page has it, but it cannot be: it counts as absent, and is flagged
)

// Value is a field as a page has it.
type Value struct {
	Value float64
	State State
	// Row is where it was read. Of a Bad value, Value is what stood there.
	Row  *Row
	rank int
	n    int // series
}

// Page is what a metrics page says. Its byte slices point into the page.
type Page struct {
	Waiting, Running, KVUsage Value
	BlockSize, NumBlocks      Value
	Started                   Value
	MaxAdapters               int
	// Adapters and Queued are lists with commas, escaped as on the page; see [Split].
	Adapters, Queued []byte
	// Extra are the values of the mapping's attributes, in its order.
	Extra []Value

	self string
	lora float64
}

// Known reports whether the page has any signal.
func (p *Page) Known() bool {
	return p.Waiting.State == Known || p.Running.State == Known || p.KVUsage.State == Known
}

// Engine names the engine whose names the page has, "" when it has none.
func (p *Page) Engine() string {
	for _, v := range []*Value{&p.Waiting, &p.Running, &p.KVUsage} {
		if v.Row != nil {
			return v.Row.Engine
		}
	}
	return ""
}

// Scan reads a page in the Prometheus text format once and fills p. It builds nothing and does not
// allocate. What it cannot read, it skips: a page of anything else is a page without values.
//
// Several series of one family (engines, ranks, models) are one value: requests and blocks
// are summed, of usage and block size the largest counts, an attribute says itself. One series
// that cannot be (not a number, negative, a share above 1) makes the whole value [Bad].
//
// Histograms are not read: their lines bear longer names than any row's. self is the endpoint's
// own pod, for [Where].
func Scan(page []byte, m *Mapping, self string, p *Page) {
	extra := slices.Grow(p.Extra[:0], len(m.extras))[:len(m.extras)]
	clear(extra)
	*p = Page{Extra: extra, self: self}
	for len(page) > 0 {
		line := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			line, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		if len(line) < 2 {
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			if line = blanks(line); len(line) < 2 {
				continue
			}
		}
		for k := range m.blocks {
			b := &m.blocks[k]
			if len(line) <= b.offset {
				continue
			}
			for mask := b.first[line[0]] & b.later[line[b.offset]]; mask != 0; mask &= mask - 1 {
				i := bits.TrailingZeros64(mask)
				if r := &b.rows[i]; len(line) > len(r.Family) && string(line[:len(r.Family)]) == r.Family {
					p.line(line[len(r.Family):], r, b.rank+i)
				}
			}
		}
	}
	for i := range p.Extra {
		p.Extra[i].finish()
	}
}

// line reads what follows the family's name.
func (p *Page) line(b []byte, r *Row, rank int) {
	if c := b[0]; c != '{' && c != ' ' && c != '\t' {
		return // a longer name
	}
	labels := series{}
	b = blanks(b)
	if len(b) > 0 && b[0] == '{' {
		var ok bool
		if b, ok = labels.read(b[1:], r, p.self); !ok {
			return
		}
	}
	if !labels.chosen(r) {
		return
	}
	v, ok := sampleValue(b)
	if !ok {
		return
	}
	p.take(v, r, rank, &labels)
}

func (p *Page) take(v float64, r *Row, rank int, labels *series) {
	switch r.Field {
	case Waiting:
		p.Waiting.take(v, r, rank, 0, math.MaxFloat64, Sum)
	case Running:
		p.Running.take(v, r, rank, 0, math.MaxFloat64, Sum)
	case KVUsage:
		p.KVUsage.take(v, r, rank, 0, 1, Largest)
	case BlockSize:
		p.BlockSize.take(v, r, rank, 0, maxCount, Largest)
	case NumBlocks:
		p.NumBlocks.take(v, r, rank, 0, maxCount, Sum)
	case Started:
		p.Started.take(v, r, rank, 0, math.MaxFloat64, Largest)
	case CacheInfo:
		if n, ok := count(labels.size); ok {
			p.BlockSize.take(float64(n), r, rank, 0, maxCount, Largest)
		}
		if n, ok := count(labels.count); ok {
			p.NumBlocks.take(float64(n), r, rank, 0, maxCount, Sum)
		}
	case LoRA:
		if v > p.lora {
			p.lora, p.Adapters, p.Queued = v, labels.running, labels.waiting
			p.MaxAdapters, _ = count(labels.max)
		}
	case Extra:
		p.Extra[r.Extra.slot].take(v, r, rank, r.Extra.Min, r.Extra.Max, r.Extra.Combine)
	}
}

const maxCount = 1 << 40

// take adds one series to the value.
func (a *Value) take(v float64, r *Row, rank int, least, most float64, by Combine) {
	if a.Row != nil && rank > a.rank {
		return // a better name has spoken
	}
	if a.Row == nil || rank < a.rank {
		*a = Value{Row: r, rank: rank, State: Known}
	}
	a.n++
	switch {
	case a.State == Bad:
	case !(v >= least && v <= most): // also what is not a number
		a.State, a.Value = Bad, v
	case a.n == 1:
		a.Value = v
	case by == Largest:
		a.Value = max(a.Value, v)
	case by == Smallest:
		a.Value = min(a.Value, v)
	default:
		a.Value += v
	}
}

// finish makes an attribute's value of what its series were.
func (a *Value) finish() {
	if a.State != Known {
		return
	}
	if e := a.Row.Extra; e.Combine == Mean {
		a.Value /= float64(a.n)
	}
	a.Value *= a.Row.Extra.Scale
	if math.IsInf(a.Value, 0) {
		a.State = Bad // a sum of what cannot be summed
	}
}

// series holds the label values that rows ask for, escaped as they stand.
type series struct {
	met, other            uint64 // bits of the row's Where: that hold, that do not
	size, count           []byte
	running, waiting, max []byte
}

// read reads labels after their opening brace and returns what follows the closing one.
func (s *series) read(b []byte, r *Row, self string) ([]byte, bool) {
	for {
		if b = blanks(b); len(b) == 0 {
			return nil, false
		}
		if b[0] == '}' {
			return b[1:], true
		}
		var name, value []byte
		var ok bool
		if name, b, ok = labelName(b); !ok {
			return nil, false
		}
		if value, b, ok = quoted(blanks(b)); !ok {
			return nil, false
		}
		s.keep(name, value, r, self)
		if b = blanks(b); len(b) == 0 {
			return nil, false
		}
		switch b[0] {
		case ',':
			b = b[1:]
		case '}':
		default:
			return nil, false
		}
	}
}

// chosen reports whether the labels are those that the row asks for.
func (s *series) chosen(r *Row) bool {
	for i := range r.Where {
		if bit := uint64(1) << i; s.other&bit != 0 || s.met&bit == 0 && !r.Where[i].Self {
			return false
		}
	}
	return true
}

func (s *series) keep(name, value []byte, r *Row, self string) {
	for i := range r.Where {
		w := &r.Where[i]
		switch {
		case string(name) != w.Label:
		case w.Self && len(value) == 0: // as good as missing
		case w.Self && string(value) == self, !w.Self && string(value) == w.Value:
			s.met |= 1 << i
		default:
			s.other |= 1 << i
		}
	}
	switch {
	case r.Field == CacheInfo:
		switch string(name) {
		case r.Size:
			s.size = value
		case r.Count:
			s.count = value
		}
	case r.Field == LoRA:
		switch string(name) {
		case "running_lora_adapters":
			s.running = value
		case "waiting_lora_adapters":
			s.waiting = value
		case "max_lora":
			s.max = value
		}
	}
}

// labelName reads a name, bare or quoted, and its equals sign.
func labelName(b []byte) (name, rest []byte, ok bool) {
	if b[0] == '"' {
		if name, b, ok = quoted(b); !ok {
			return nil, nil, false
		}
		b = blanks(b)
		if len(b) == 0 || b[0] != '=' {
			return nil, nil, false
		}
		return name, b[1:], true
	}
	i := bytes.IndexByte(b, '=')
	if i <= 0 {
		return nil, nil, false
	}
	return bytes.TrimRight(b[:i], " \t"), b[i+1:], true
}

// quoted reads a string in quotes and leaves its escapes.
func quoted(b []byte) (value, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return b[1:i], b[i+1:], true
		}
	}
	return nil, nil, false
}

func blanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// sampleValue reads the value after name and labels. A time stamp may follow.
func sampleValue(b []byte) (float64, bool) {
	b = blanks(b)
	n := 0
	for n < len(b) && b[n] > ' ' {
		n++
	}
	v, ok := parse(b[:n])
	if !ok {
		return 0, false
	}
	rest, _, _ := bytes.Cut(blanks(b[n:]), []byte("#")) // OpenMetrics may add an exemplar
	for _, c := range bytes.TrimRight(rest, " \t\r") {  // a timestamp
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	return v, true
}

var tens = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// parse reads a number; the short ones without strconv, and to the same bit.
func parse(b []byte) (float64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	if len(b) <= 16 {
		var n uint64
		point, digits := -1, 0
		for i, c := range b {
			switch {
			case c >= '0' && c <= '9':
				n = n*10 + uint64(c-'0')
				digits++
			case c == '.' && point < 0:
				point = i
			default:
				return parseSlow(b)
			}
		}
		if digits > 0 && digits <= 15 {
			if point < 0 {
				return float64(n), true
			}
			return float64(n) / tens[len(b)-1-point], true
		}
	}
	return parseSlow(b)
}

func parseSlow(b []byte) (float64, bool) {
	if bytes.ContainsAny(b, "pPxX_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}

// count reads a small whole number.
func count(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 12 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= maxCount
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// Split makes names of a list with commas, as label values hold it.
func Split(list []byte) []string {
	s := string(list)
	if strings.Contains(s, `\`) {
		s = unescape.Replace(s)
	}
	var names []string
	for n := range strings.SplitSeq(s, ",") {
		if n = strings.TrimSpace(n); n != "" {
			names = append(names, n)
		}
	}
	return names
}
