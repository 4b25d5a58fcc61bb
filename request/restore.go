// SPDX-License-Identifier: Apache-2.0

package request

import "bytes"

// Restorer gives an answer the model's name back that the client asked for, as the answer passes
// in pieces of any size. What it replaces is the content of one string: "model" at the top of a
// JSON document, or in the object in which the API's events have it, and only where it is the
// name that the engine was asked for. All other bytes stay as they are, text that looks alike
// included.
//
// It keeps back no more than the beginning of such a string. What it does not understand it
// passes on. One Restorer serves many answers, one after the other; it must not be copied.
type Restorer struct {
	api    API
	sse    bool
	target string // the name to be replaced
	with   []byte // what replaces it, without quotes

	walk  walker
	found bool  // this document's model was seen; there is no other
	torn  int64 // where in the document a string began that goes on in another line; -1 for none

	line    lineState
	matched int  // bytes of "data:" that begin the line
	marked  int  // bytes of a byte order mark that begin the stream
	skipLF  bool // the last line ended with CR
	within  bool // a data line of this event was seen

	p       []byte // being fed
	base    int64  // what to take from an offset in the document for an index in p
	done    int    // how much of p is in out, or left out
	held    []byte // the beginning of a string, kept back
	out     []byte
	spelled []byte // a name without its escapes
}

// lineState is where in a line of an event stream we are.
type lineState uint8

const (
	lineName  lineState = iota // in what may become "data:"
	lineData                   // in its value
	lineOther                  // in another field
)

// The roles of values in an answer.
const (
	restoreModel  role = iota + 1
	restoreNested      // an object that may have the model
	restoreRoot   = plain
)

// Reset prepares for an answer of an API, a stream of events or one JSON document, in which
// target is to become name.
func (r *Restorer) Reset(api API, sse bool, target, name string) {
	r.api, r.sse, r.target, r.with = api, sse, target, appendContent(r.with[:0], name)
	r.line, r.matched, r.marked, r.skipLF, r.within = lineName, 0, 0, false, false
	r.held = r.held[:0]
	if cap(r.out) > large {
		r.out = nil
	}
	r.start()
}

// start prepares for the next document.
func (r *Restorer) start() {
	r.walk.reset(r)
	r.found, r.torn = false, -1
}

// Feed reads the next piece and gives what is to be passed on now, which may be nothing: p
// itself or a beginning of it when nothing changes, else bytes that are good until the next
// call. It does not change p.
func (r *Restorer) Feed(p []byte) []byte {
	if len(p) == 0 {
		return p
	}
	r.p, r.done, r.out = p, 0, r.out[:0]
	if !r.sse {
		r.read(0, len(p))
	} else {
		r.lines()
	}
	r.p = nil
	keep := len(p) // from where on p is kept back
	if r.holding() {
		keep = max(int(r.walk.start-r.base), 0)
	}
	if keep > 0 {
		r.flush() // it is too long for the name
	}
	rest := p[r.done:keep]
	if len(r.out) > 0 || r.done > 0 {
		r.out = append(r.out, rest...)
		rest = r.out
	}
	r.held = append(r.held, p[keep:]...)
	return rest
}

// Finish gives what was kept back when the answer ended in the middle of a name.
func (r *Restorer) Finish() []byte {
	rest := r.held
	r.held = r.held[:0]
	return rest
}

// flush passes on what was kept back.
func (r *Restorer) flush() {
	r.out, r.held = append(r.out, r.held...), r.held[:0]
}

// holding reports whether the string under way may be the name.
func (r *Restorer) holding() bool {
	w := &r.walk
	return w.state == inText && w.role == restoreModel && !r.found && !w.long && w.start != r.torn
}

// read goes on in the document with p[from:to].
func (r *Restorer) read(from, to int) {
	if r.found {
		return
	}
	r.base = r.walk.off - int64(from)
	r.walk.feed(r.p[from:to])
}

// lines reads a piece of a stream of events.
func (r *Restorer) lines() {
	p := r.p
	for i := 0; i < len(p); {
		if r.line == lineName {
			r.name(p[i])
			i++
			continue
		}
		end := lineEnd(p, i)
		if r.line == lineData {
			r.read(i, end)
		}
		if end < len(p) {
			r.newLine(p[end])
			end++
		}
		i = end
	}
}

// lineEnd is the index of the first CR or LF from i on, or the length of p.
func lineEnd(p []byte, i int) int {
	end := i + indexOrLen(p[i:], '\n')
	return i + indexOrLen(p[i:end], '\r')
}

// name reads a byte of what begins a line.
func (r *Restorer) name(c byte) {
	const mark, field = "\xef\xbb\xbf", "data:"
	lf := r.skipLF && c == '\n'
	r.skipLF = false
	switch {
	case lf:
	case r.marked < len(mark) && c == mark[r.marked]:
		r.marked++
	case c == '\n' || c == '\r':
		if r.matched == 0 { // the event is complete
			r.within = false
		}
		r.newLine(c)
	case c != field[r.matched]:
		r.line = lineOther
	default:
		if r.matched++; r.matched == len(field) {
			r.data()
		}
	}
}

// data begins the value of a data line. Several lines of an event are one document.
func (r *Restorer) data() {
	r.line = lineData
	switch {
	case !r.within:
		r.within = true
		r.start()
	case !r.found:
		r.walk.feed([]byte{'\n'})
	}
}

// newLine ends a line. A string that goes on in another one is left alone.
func (r *Restorer) newLine(c byte) {
	if r.line == lineData && r.walk.state == inText {
		r.torn = r.walk.start
		r.flush()
	}
	r.line, r.matched, r.marked, r.skipLF = lineName, 0, 3, c == '\r'
}

// key implements visitor.
func (r *Restorer) key(in role, name []byte) role {
	switch string(name) {
	case "model":
		return restoreModel
	case "response":
		if in == restoreRoot && r.api == Responses {
			return restoreNested
		}
	case "message":
		if in == restoreRoot && r.api == Messages {
			return restoreNested
		}
	}
	return skip
}

// open implements visitor.
func (r *Restorer) open(in role, isObject bool, _ int64) role {
	if isObject && (in == restoreRoot || in == restoreNested) {
		return in
	}
	return skip
}

// text implements visitor.
func (r *Restorer) text(of role, t token) {
	if of != restoreModel || r.found { // of several the first counts, wherever the answer is cut
		return
	}
	r.found = true
	if t.long || t.Off == r.torn || !r.same(t.raw) {
		r.flush()
		return
	}
	from, to := int(t.Off-r.base), int(t.Off+t.Len-r.base)
	if from < 0 { // it began in an earlier piece
		r.held, from = r.held[:0], 0
	}
	r.out = append(append(r.out, r.p[r.done:from]...), r.with...)
	r.done = to
}

// shut implements visitor.
func (r *Restorer) shut(role, int64) {}

// scalar implements visitor.
func (r *Restorer) scalar(role, token) {}

// keep implements visitor: each byte of a name can be written as an escape of six.
func (r *Restorer) keep(role) int { return 6 * len(r.target) }

// same reports whether the content of a JSON string is the name to be replaced.
func (r *Restorer) same(raw []byte) bool {
	if bytes.IndexByte(raw, '\\') >= 0 {
		r.spelled = unescape(r.spelled[:0], raw)
		raw = r.spelled
	}
	return string(raw) == r.target
}
