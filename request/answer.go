// SPDX-License-Identifier: Apache-2.0

package request

import "bytes"

// carryLimit bounds what is kept of a line, and of an event, that arrives in several pieces.
// An event with more is read as it passes; whether it carries output is told by its kind alone.
const carryLimit = 64 << 10

// Answer reads a response as it passes, in pieces of any size. It never fails: what it does not
// understand it passes over.
//
// A stream is a text/event-stream. Anything else is taken for one JSON document, in which only
// the usage is of interest. One Answer serves many responses, one after the other; it must not
// be copied.
type Answer struct {
	// Events counts the events that carried output: not a role alone, not a usage, not a ping.
	Events int
	// First and Output tell whether the latest Feed brought the very first output, and any.
	// Of a JSON document every byte is output.
	First, Output bool
	// Done tells that the stream's end marker was seen, or, after Finish, that the JSON
	// document was whole. A stream that ended without it ended abnormally.
	Done bool
	// Usage is the last one told.
	Usage Usage

	api    API
	sse    bool
	begun  bool   // a line was seen
	skipLF bool   // the last piece ended in the middle of CR LF
	part   []byte // of the line under way, whose rest is still to come
	long   bool   // that line is too long for part, and is
	mute   bool   // of no interest, or read by scan
	ev     pending
	held   []byte // an event's data that had to be copied
	hint   int    // where in the last event the key was that carried output
	scan   usageScan
}

// pending is the event whose blank line is still to come.
type pending struct {
	name    event  // by its event: line
	hasData bool   // there was a data: line
	long    bool   // its data is not in data, but went through scan
	data    []byte // in the piece being fed, in part, or in held
	held    bool
}

// Reset prepares for an answer of an API: a stream of events, or one JSON document.
func (a *Answer) Reset(api API, sse bool) {
	a.Events, a.First, a.Output, a.Done, a.Usage = 0, false, false, false, Usage{-1, -1, -1}
	a.api, a.sse = api, sse
	a.begun, a.skipLF, a.long, a.mute, a.ev = false, false, false, false, pending{}
	a.part, a.held, a.hint = a.part[:0], a.held[:0], 1
	if cap(a.part) > carryLimit/4 {
		a.part = nil
	}
	if cap(a.held) > carryLimit/4 {
		a.held = nil
	}
	a.scan.usage, a.scan.merge = a.Usage, api == Messages
	a.scan.start()
}

// Feed reads the next piece. It neither keeps nor changes p.
func (a *Answer) Feed(p []byte) {
	a.First, a.Output = false, false
	if len(p) == 0 {
		return
	}
	if !a.sse {
		a.First, a.Output, a.begun = !a.begun, true, true
		a.scan.walk.feed(p)
		a.Usage = a.scan.usage
		return
	}
	if a.skipLF && p[0] == '\n' {
		p = p[1:]
	}
	a.skipLF = false
	lf, cr := -1, -1 // the next of each; looked for once, so that a stream without CR costs one scan
	for len(p) > 0 {
		if lf < 0 {
			lf = indexOrLen(p, '\n')
		}
		if cr < 0 {
			cr = indexOrLen(p, '\r')
		}
		end := min(lf, cr)
		if end == len(p) {
			break
		}
		a.lineEnd(p[:end])
		n := end + 1
		if p[end] == '\r' {
			if a.skipLF = n == len(p); !a.skipLF && p[n] == '\n' {
				n++
			}
		}
		p, lf, cr = p[n:], lf-n, cr-n
	}
	a.settle()
	a.linePart(p)
}

func indexOrLen(p []byte, c byte) int {
	if i := bytes.IndexByte(p, c); i >= 0 {
		return i
	}
	return len(p)
}

// Finish reads what was left over at the end. An event without its blank line counts if it is
// whole; one that was cut off does not.
func (a *Answer) Finish() {
	a.First, a.Output = false, false
	if !a.sse {
		a.Done = a.scan.walk.complete()
		return
	}
	if len(a.part) > 0 || a.long {
		a.lineEnd(nil)
	}
	if !a.ev.hasData {
		return
	}
	if !a.ev.long && !isDone(a.ev.data) {
		usage := a.scan.usage
		a.scan.start()
		a.scan.walk.feed(a.ev.data)
		a.scan.usage = usage
	}
	if isDone(a.ev.data) || a.scan.walk.complete() {
		a.dispatch()
	}
}

// settle copies the pending event's data out of memory that is not ours to keep.
func (a *Answer) settle() {
	if !a.ev.hasData || a.ev.long || a.ev.held {
		return
	}
	a.held = append(a.held[:0], a.ev.data...)
	a.ev.data, a.ev.held = a.held, true
}

// linePart keeps the beginning of a line, or reads on in a long one.
func (a *Answer) linePart(p []byte) {
	if a.long {
		a.longMore(p)
		return
	}
	n := min(len(p), carryLimit+1-len(a.part))
	a.part = append(a.part, p[:n]...)
	if len(a.part) > carryLimit {
		a.longBegin(a.part)
		a.longMore(p[n:])
	}
}

// lineEnd reads a line whose last bytes are p.
func (a *Answer) lineEnd(p []byte) {
	if len(a.part) > 0 && !a.long {
		a.linePart(p)
		p = a.part
	} else if a.long {
		a.longMore(p)
	} else if len(p) > carryLimit {
		a.longBegin(p)
	}
	a.part = a.part[:0] // its bytes stay until the next linePart, after settle
	if a.long {
		a.long = false
		return
	}
	p = a.unmarked(p)
	if len(p) == 0 {
		a.dispatch()
		return
	}
	switch name, value := field(p); string(name) {
	case "data":
		a.addData(value)
	case "event":
		a.ev.name = eventOf(value)
	}
}

// unmarked cuts the byte order mark off the first line.
func (a *Answer) unmarked(line []byte) []byte {
	if a.begun {
		return line
	}
	a.begun = true
	return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
}

// field splits a line of an event into its name and its value.
func field(line []byte) (name, value []byte) {
	i := 0
	for i < len(line) && line[i] != ':' {
		if i++; i > len("event") { // no name that matters is longer
			return nil, nil
		}
	}
	if name = line[:i]; i < len(line) {
		value = line[i+1:]
	}
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return name, value
}

func (a *Answer) addData(value []byte) {
	switch e := &a.ev; {
	case !e.hasData:
		e.hasData, e.data = true, value
	case !e.long && len(e.data)+1+len(value) <= carryLimit:
		a.settle()
		a.held = append(append(a.held, '\n'), value...)
		e.data = a.held
	default:
		a.toLong()
		a.scan.walk.feed(value)
	}
}

// toLong passes the event's data so far to the scan, which the rest is to follow.
func (a *Answer) toLong() {
	e := &a.ev
	if !e.long {
		a.scan.start()
		a.scan.walk.feed(e.data)
	}
	if e.hasData {
		a.scan.walk.feed([]byte{'\n'})
	}
	e.hasData, e.long, e.data = true, true, nil
}

// longBegin reads the first bytes of a long line.
func (a *Answer) longBegin(head []byte) {
	a.long = true
	name, value := field(a.unmarked(head))
	if a.mute = string(name) != "data"; !a.mute {
		a.toLong()
		a.scan.walk.feed(value)
	}
}

func (a *Answer) longMore(p []byte) {
	if !a.mute {
		a.scan.walk.feed(p)
	}
}

// dispatch reads the event that a blank line completes.
func (a *Answer) dispatch() {
	e := a.ev
	a.ev = pending{}
	switch {
	case !e.hasData:
		return
	case isDone(e.data):
		a.Done = true
		return
	case e.long:
		a.Usage = a.scan.usage
		a.judge(a.scan.kind, e.name, true)
		return
	}
	kind := eventOther
	if a.typed() {
		if kind = typeOf(e.data); kind == eventOther && e.name == eventOther {
			a.read(e.data)
			kind = a.scan.kind
		}
	}
	a.judge(kind, e.name, a.carries(e.data))
	if tellsUsage(e.data) {
		a.read(e.data)
	}
}

// judge counts an event by its type, or else by its name.
func (a *Answer) judge(kind, name event, carries bool) {
	if kind == eventOther {
		kind = name
	}
	if !a.typed() {
		kind = eventDelta
	}
	switch {
	case kind == eventDone:
		a.Done = true
	case kind == eventDelta && carries:
		a.First = a.First || a.Events == 0
		a.Output = true
		a.Events++
	}
}

// typed tells that the API's events have types.
func (a *Answer) typed() bool { return a.api == Messages || a.api == Responses }

// read scans an event's whole data.
func (a *Answer) read(data []byte) {
	a.scan.start()
	a.scan.walk.feed(data)
	a.Usage = a.scan.usage
}

func isDone(data []byte) bool {
	return len(data) > 0 && data[0] == '[' && string(bytes.TrimRight(data, " \t")) == "[DONE]"
}
