// SPDX-License-Identifier: Apache-2.0

package work

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	maxLate   = 1 << 16 // rows that one may come after its turn
	maxModels = 1 << 12 // that are counted
	maxTalks  = 1 << 16 // sessions that are remembered
	maxHeld   = 1 << 14 // rows that wait for an end; others are sent when they came
)

var traceKind = Kind{"trace", "Recorded work, at the times at which it came. A call of a session waits for the end of the one before it, if that takes longer than it did.", []Param{
	count("repeat", "1", 1, 1e6, "times that it runs, one after the other, with content of its own each time"),
	count("requests", "0", 0, 1e9, "calls in all; 0 is all there are"),
	{Name: "from", Unit: Duration, Default: "0", Max: week, Doc: "leaves out what came before"},
	{Name: "for", Unit: Duration, Default: "0", Max: 52 * week, Doc: "leaves out what came so long after from; 0 leaves out nothing"},
	{Name: "wait", Unit: Count, Default: "1", Min: 0, Max: 1, Doc: "0 sends the calls of a session when they came, whether the last one has ended or not"},
	{Name: "shares", Unit: Shares, Doc: "hands conversations out to tenant-0, tenant-1… in these shares"},
	{Name: "tenant", Unit: Word, Doc: "who asks, where the trace does not tell"},
	{Name: "objective", Unit: Word, Doc: "the name of an InferenceObjective"},
	{Name: "priority", Unit: Count, Default: "0", Min: -1e6, Max: 1e6, Doc: "where the trace does not tell"},
	{Name: "base", Unit: Word, Doc: "the model that is the base of the fleet, others are adapters of it; that of most calls if not given"},
	{Name: "class", Unit: Word, Doc: "the kind of work in reports; the format's name if not given"},
}}

// TraceKind describes the parameters that may follow the file of a trace, after a ?.
func TraceKind() Kind { return traceKind }

// cutTrace cuts "mooncake:FILE".
func cutTrace(spec string) (format, file string, ok bool) {
	format, file, ok = strings.Cut(spec, ":")
	return format, file, ok && slices.Contains([]string{mooncake, azure, accessLog, whichever}, format)
}

// recording is a trace that was looked through.
type recording struct {
	file   string
	format string
	block  int
	rows   int           // within from and for
	first  time.Duration // by the file's clock
	span   time.Duration // from the first to the last
	late   int           // how many rows one may come after its turn

	repeat, requests int
	from, length     time.Duration
	wait             bool
	shares           []float64
	base             string // model
	labels           labels
}

func parseTrace(format, spec string) (part, error) {
	file, query, _ := strings.Cut(spec, "?")
	v, err := parseValues(format+":"+clip(file), query, traceKind.Params)
	if err != nil {
		return part{}, err
	}
	rec := &recording{
		file: file, format: format, repeat: v.count("repeat"), requests: v.count("requests"), from: v.duration("from"), length: v.duration("for"),
		wait: v.count("wait") == 1, shares: v.shares("shares"), base: v.word("base"),
		labels: labels{tenant: v.word("tenant"), objective: v.word("objective"), priority: v.count("priority"), class: v.word("class")},
	}
	if v.err != nil {
		return part{}, v.err
	}
	if file == "" {
		return part{}, fmt.Errorf("workload: %s: names no file; write %s:FILE", format, format)
	}
	in, err := os.Open(file)
	if err != nil {
		return part{}, fmt.Errorf("workload: %w", err)
	}
	defer in.Close()
	if err := rec.scan(in); err != nil {
		return part{}, err
	}
	if rec.labels.class == "" {
		rec.labels.class = rec.format
	}
	return part{rate: rec.rate(), requests: rec.requests, open: func(seed uint64, times float64, b *budget) (Workload, error) {
		return rec.open(seed, times, b), nil
	}}, nil
}

// scan looks through the whole trace: is every row right, do they come in order or nearly so?
func (rec *recording) scan(in io.Reader) error {
	r, err := newRows(rec.file, in, rec.format)
	if err != nil {
		return err
	}
	rec.format = r.format
	// high holds, of the last rows, the latest time up to each: a row that is late goes before the
	// first one that is above it.
	var w row
	var high []time.Duration
	var last time.Duration
	models := map[string]int{}
	n := 0
	for ; ; n++ {
		if err := r.next(&w); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if n == 0 {
			rec.first, last = w.at, w.at
		}
		if _, ok := models[w.model]; ok || len(models) < maxModels {
			models[w.model]++
		}
		if w.at < last {
			i, _ := slices.BinarySearch(high, w.at+1)
			if i == 0 && n > len(high) {
				return r.lines.wrong("comes %v before rows far above it; sort the trace by time (a row may be up to %d rows late)", last-w.at, maxLate)
			}
			rec.late = max(rec.late, len(high)-i)
		}
		rec.first, last = min(rec.first, w.at), max(last, w.at)
		if len(high) == 2*maxLate {
			high = high[:copy(high, high[maxLate:])]
		}
		high = append(high, last)
	}
	if n == 0 {
		return fmt.Errorf("%s: has no rows", rec.file)
	}
	if rec.base == "" {
		for name, calls := range models {
			if calls > models[rec.base] || calls == models[rec.base] && name < rec.base {
				rec.base = name
			}
		}
	}
	rec.rows, rec.span, rec.block = n, last-rec.first, r.block
	if rec.block == 0 {
		rec.block = blocks[0]
	}
	if rec.from > rec.span {
		return fmt.Errorf("%s: from: is %v; the trace is %v long", rec.file, rec.from, rec.span)
	}
	if rec.from > 0 || rec.length > 0 {
		kept := rec.span - rec.from
		if rec.length > 0 {
			kept = min(kept, rec.length)
		}
		rec.rows = int(float64(rec.rows) * float64(kept+1) / float64(rec.span+1))
		rec.span = kept
	}
	return nil
}

// rate is calls per second, in the mean.
func (rec *recording) rate() float64 {
	return float64(max(1, rec.rows)) / max(rec.span.Seconds(), 1e-3)
}

// open starts the trace.
func (rec *recording) open(seed uint64, times float64, b *budget) *trace {
	return &trace{rec: rec, seed: seed, times: times, budget: b, talks: map[uint64]*talk{}}
}

// trace is a recording that is played.
type trace struct {
	rec    *recording
	seed   uint64
	times  float64
	budget *budget
	err    error

	in     *os.File
	rows   *rows
	repeat int
	late   lateRows
	known  known

	index int
	n     int
	talks map[uint64]*talk
	begun int
	held  int // rows that wait
	free  []*row
	out   []*Request
}

// talk is a session of a trace.
type talk struct {
	number  int
	turn    int
	busy    bool
	waiting []*row // for the end of the one before
}

func (t *trace) Name() string { return short(t.rec.file) }
func (t *trace) Total() int   { return t.rec.rows * t.rec.repeat }
func (t *trace) Err() error   { return t.err }

// short is the name of a file without its folder and what it ends with.
func short(file string) string {
	file = filepath.Base(file)
	for _, end := range []string{".gz", ".jsonl", ".json", ".csv", ".log"} {
		file = strings.TrimSuffix(file, end)
	}
	return file
}

// Next implements [Workload].
func (t *trace) Next() (*Request, bool) {
	for t.err == nil && t.budget.left != 0 {
		w := t.read()
		if w == nil {
			return nil, false
		}
		if w.talk = t.talk(w); w.talk != nil && t.rec.wait {
			if w.talk.busy && t.held < maxHeld {
				t.held++
				w.talk.waiting = append(w.talk.waiting, w)
				continue
			}
			w.talk.busy = true
		}
		t.budget.take(1)
		return t.request(w), true
	}
	return nil, false
}

// read is the next row in order of time, nil at the end or when something is wrong.
func (t *trace) read() *row {
	for {
		if t.rows == nil && !t.begin() {
			return nil
		}
		for len(t.late) <= t.rec.late {
			w := t.row()
			err := t.rows.next(w)
			if errors.Is(err, io.EOF) {
				t.free = append(t.free, w)
				break
			}
			if err != nil {
				t.err = err
				return nil
			}
			w.n, w.repeat = t.n, t.repeat
			t.n++
			if w.at -= t.rec.first + t.rec.from; w.at < 0 || t.rec.length > 0 && w.at >= t.rec.length {
				t.free = append(t.free, w)
				continue
			}
			heap.Push(&t.late, w)
		}
		if len(t.late) == 0 {
			t.end()
			continue
		}
		w := heap.Pop(&t.late).(*row)
		// One repetition follows the other with a gap as between two rows.
		gap := time.Duration(float64(time.Second) / t.rec.rate())
		w.at = time.Duration(float64(w.at+time.Duration(w.repeat)*(t.rec.span+gap)) / t.times)
		return w
	}
}

// begin opens the file for the next repetition.
func (t *trace) begin() bool {
	if t.repeat >= t.rec.repeat {
		return false
	}
	in, err := os.Open(t.rec.file)
	if err != nil {
		t.err = fmt.Errorf("workload: %w", err)
		return false
	}
	t.in = in
	if t.rows, t.err = newRows(t.rec.file, in, t.rec.format); t.err != nil {
		return false
	}
	t.rows.block = t.rec.block
	t.n, t.known = 0, known{}
	return true
}

func (t *trace) end() {
	_ = t.in.Close()
	t.rows = nil
	t.repeat++
}

func (t *trace) row() *row {
	if n := len(t.free); n > 0 {
		w := t.free[n-1]
		t.free = t.free[:n-1]
		return w
	}
	return &row{}
}

// talk is the row's session, nil for none.
func (t *trace) talk(w *row) *talk {
	if w.session == 0 {
		return nil
	}
	key := mix(w.session, uint64(w.repeat))
	k := t.talks[key]
	if k == nil {
		if len(t.talks) >= maxTalks {
			for key, old := range t.talks {
				if !old.busy {
					delete(t.talks, key)
				}
			}
		}
		k = &talk{number: t.begun}
		t.begun++
		t.talks[key] = k
	}
	return k
}

// request makes the row's request.
func (t *trace) request(w *row) *Request {
	w.live = true
	t.content(w)
	l := t.rec.labels
	w.request = Request{
		At: w.at, Index: t.index, Session: -1, Tenant: w.tenant, Objective: l.objective, Priority: w.priority, Model: w.model, Class: l.class,
		Prompt: w.prompt, Answer: t.answer(w), Output: w.output, row: w,
	}
	t.index++
	r := &w.request
	if r.Model == t.rec.base {
		r.Model = ""
	}
	if r.Tenant == "" {
		r.Tenant = l.tenant
	}
	if r.Priority == 0 {
		r.Priority = l.priority
	}
	if w.talk != nil {
		r.Session, r.Turn = w.talk.number, w.talk.turn
		w.talk.turn++
	}
	if t.rec.shares != nil {
		r.Tenant = t.share(w)
	}
	return r
}

func (t *trace) answer(w *row) uint64 { return mix(mix(t.seed, 3), uint64(w.repeat)<<40|uint64(w.n)) }

// content makes the prompt: a segment of each block that has an id, and what is left is its own.
func (t *trace) content(w *row) {
	w.prompt = w.prompt[:0]
	left := w.input
	base := mix(mix(t.seed, 1), uint64(w.repeat))
	for _, id := range w.ids {
		n := min(left, t.rec.block)
		w.prompt = append(w.prompt, Segment{mix(base, id), int32(n)})
		left -= n
	}
	fresh := mix(mix(t.seed, 2), uint64(w.repeat)<<40|uint64(w.n))
	if len(w.ids) == 0 && w.cached >= 0 {
		left -= t.known.recall(w, base)
	}
	if left > 0 {
		w.prompt = append(w.prompt, Segment{fresh, int32(left)})
	}
	if len(w.ids) == 0 && w.cached >= 0 {
		t.known.learn(w, Segment{t.answer(w), int32(w.output)})
	}
}

// share is the tenant to whom the row's conversation was handed. Conversations are told apart by
// their second block: many begin with the same one.
func (t *trace) share(w *row) string {
	var key uint64
	switch {
	case w.session != 0:
		key = w.session
	case len(w.ids) > 1:
		key = w.ids[1]
	case len(w.ids) > 0:
		key = w.ids[0]
	default:
		key = uint64(w.n)
	}
	x := float64(mix(mix(t.seed, 4), key)>>11) / (1 << 53)
	for i, share := range t.rec.shares {
		if x -= share; x < 0 || i == len(t.rec.shares)-1 {
			return tenantName(i)
		}
	}
	return ""
}

// Ended implements [Workload].
func (t *trace) Ended(r *Request, at time.Duration, _ bool) []*Request {
	t.out = t.out[:0]
	w := r.row
	if w == nil || !w.live || w.request.Answer != r.Answer {
		return nil
	}
	w.live = false
	k := w.talk
	if k != nil && t.rec.wait {
		if k.busy = len(k.waiting) > 0 && t.budget.left != 0; k.busy {
			next := k.waiting[0]
			k.waiting = slices.Delete(k.waiting, 0, 1)
			next.at = max(next.at, at)
			t.held--
			t.budget.take(1)
			t.out = append(t.out, t.request(next))
		}
	}
	t.free = append(t.free, w)
	return t.out
}

// lateRows are rows in order of time; those of one moment in order of the file.
type lateRows []*row

func (l lateRows) Len() int { return len(l) }
func (l lateRows) Less(i, j int) bool {
	return l[i].at < l[j].at || l[i].at == l[j].at && l[i].n < l[j].n
}
func (l lateRows) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l *lateRows) Push(w any)   { *l = append(*l, w.(*row)) }
func (l *lateRows) Pop() any {
	w := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return w
}
