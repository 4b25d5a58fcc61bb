// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/penstock-project/penstock/fleet"
)

// What is kept of decisions. Every request that was dropped, failed, was tried again or was slow is; of the others
// as many as a person could look at, and one of keepOneIn beyond that.
const (
	keepRate  = 50  // healthy ones a second, over time
	keepBurst = 100 // at once
	keepOneIn = 100
	ringBytes = 16 << 20 // of each of the two rings
	maxSeats  = 128      // candidates of one record
	maxAttrs  = 4        // attributes of one candidate
	maxTries  = 16       // failed attempts of one record
	maxText   = 4 * MaxLabel
)

// decisions remembers why requests went where they went. Those in trouble have a memory of their own, so that no
// flood of good ones pushes them out.
type decisions struct {
	healthy, troubled ring
	tails             tails
	allowance         allowance
	rosters           sync.Map // pool name to *roster, the last one
}

// allowance is a token bucket of healthy requests. The zero allowance is full.
type allowance struct {
	mu   sync.Mutex
	used float64
	at   time.Time
}

// take reports whether one more is allowed at now.
func (a *allowance) take(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := now.Sub(a.at); d > 0 {
		a.used = max(0, a.used-d.Seconds()*keepRate)
		a.at = now
	}
	if a.used > keepBurst-1 {
		return false
	}
	a.used++
	return true
}

// roster is who the endpoints of a pool are. Records share it for as long as nobody comes or goes.
type roster struct {
	loads     []*fleet.Load
	names     []fleet.ID
	addresses []string
}

// kept is a request as it is remembered: flat and small, and nothing of a snapshot.
type kept struct {
	out       Outcome // without what it points to, but for its attempts
	bytes     int64
	slowTTFT  time.Duration // the bounds that a slow one went beyond
	slowEnd   time.Duration
	stages    *Stages // nil when it did not come to a decision; so is what follows
	roster    *roster
	at        time.Time
	refused   string
	blocks    int
	blockSize int
	endpoints int     // of the pool
	scored    int     // candidates that no stage dropped
	drops     []int32 // endpoints by fate
	seats     []seat  // candidates, then dropped ones; the first of each where there are too many
	stay      int     // how many seats are candidates'
	scores    []float32
	order     []int16 // seats, the pick first
	ill       []Ill   // Endpoint is a seat
	attrs     []seatAttr
}

// seat is an endpoint in a record.
type seat struct {
	at      int32 // in the roster
	fate    uint8
	total   float32
	unseen  int32
	flying  int32
	match   int32
	sure    int32 // of match; below 0 for not known
	work    int64
	waiting reading
	running reading
	kv      reading
}

// reading is a signal as it was.
type reading struct {
	value float32
	age   int32 // milliseconds
	state state
}

type state uint8

const (
	absent state = iota
	stale
	fresh
)

func (s state) String() string { return [...]string{"absent", "stale", "fresh"}[s] }

// seatAttr is an attribute of a seat.
type seatAttr struct {
	seat           int16
	name, producer string
	reading
}

// keep remembers the request, if it is one to be remembered. It keeps nothing of out.
func (k *decisions) keep(out *Outcome) {
	now := out.Start.Add(out.Duration)
	ttft, end := k.tails.judge(out, now)
	to := &k.troubled
	if ttft == 0 && end == 0 && !inTrouble(out) {
		if to = &k.healthy; !k.allowance.take(now) && rand.N(keepOneIn) != 0 {
			return
		}
	}
	r := k.copy(out)
	r.slowTTFT, r.slowEnd = ttft, end
	to.push(r)
}

// inTrouble reports whether something went wrong that is not the client's mistake.
func inTrouble(o *Outcome) bool {
	switch o.End {
	case Broken, Evicted:
		return true
	case ClientLeft:
		return o.TTFT == 0 // it waited in vain
	}
	return o.Reason != "" || o.Retries > 0 || len(o.Attempts) > 0 || o.Status >= 500
}

// copy makes the record of a request.
func (k *decisions) copy(out *Outcome) *kept {
	r := &kept{out: *out}
	r.out.Parts, r.out.Attempts, r.out.Decision = nil, nil, nil
	r.bytes = int64(unsafe.Sizeof(*r))
	for _, s := range []*string{&r.out.ID, &r.out.Model, &r.out.Target, &r.out.Tenant} { // clients'
		*s = r.own(*s, MaxLabel)
	}
	r.out.Path, r.out.Message = "", r.own(out.Message, maxText)
	r.bytes += int64(len(out.Pool) + len(out.Endpoint) + len(out.Address))
	if n := min(len(out.Attempts), maxTries); n > 0 {
		r.out.Attempts = slices.Clone(out.Attempts[:n])
		for i := range r.out.Attempts {
			a := &r.out.Attempts[i]
			a.Cause = r.own(a.Cause, maxText)
			r.bytes += int64(unsafe.Sizeof(*a)) + int64(len(a.Endpoint)+len(a.Address))
		}
	}
	if d := out.Decision; d != nil && d.Stages != nil {
		k.see(r, d)
	}
	return r
}

// own is a copy of s of its own, cut at limit, which counts.
func (r *kept) own(s string, limit int) string {
	s = short(s, limit)
	r.bytes += int64(len(s))
	return s
}

// short is a copy of s of its own, cut at limit.
func short(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	return strings.Clone(s)
}

// see copies what the decision saw.
func (k *decisions) see(r *kept, d *Decision) {
	r.stages, r.at, r.refused, r.blocks, r.blockSize = d.Stages, d.At, d.Refused, d.Blocks, d.BlockTokens
	r.endpoints, r.scored = len(d.Endpoints), len(d.Origin)
	r.roster = k.rosterOf(r, d.Endpoints)
	dropped := r.endpoints - r.scored
	if dropped > 0 {
		r.drops = make([]int32, len(d.Drops))
		for _, f := range d.Fates {
			if int(f) < len(r.drops) {
				r.drops[f]++
			}
		}
	}
	var buf [maxSeats]int32
	stay := best(d, buf[:0])
	r.stay = len(stay)
	r.seats = make([]seat, 0, min(r.stay+dropped, maxSeats))
	scored := len(d.Total) == r.scored && r.scored > 0
	if scored {
		r.scores = make([]float32, 0, r.stay*len(d.Scorers))
	}
	for _, i := range stay {
		s := seatOf(d, d.Origin[i])
		if int(i) < len(d.Flying) {
			s.flying = d.Flying[i]
		}
		if int(i) < len(d.Work) {
			s.work = d.Work[i]
		}
		if int(i) < len(d.Match) {
			s.match = d.Match[i]
		}
		if s.sure = -1; int(i) < len(d.Sure) {
			s.sure = d.Sure[i]
		}
		if scored {
			s.total, s.unseen = d.Total[i], d.Unseen[i]
			for at := int(i); at < len(d.Scores); at += r.scored {
				r.scores = append(r.scores, d.Scores[at])
			}
		}
		r.seats = append(r.seats, s)
	}
	for at := 0; at < len(d.Fates) && len(r.seats) < cap(r.seats); at++ {
		if d.Fates[at] != 0 {
			r.seats = append(r.seats, seatOf(d, int32(at)))
		}
	}
	r.order = make([]int16, 0, len(d.Order))
	for _, i := range d.Order {
		if at := slices.Index(stay, i); at >= 0 {
			r.order = append(r.order, int16(at))
		}
	}
	k.seeMore(r, d)
	r.bytes += int64(cap(r.seats))*int64(unsafe.Sizeof(seat{})) + int64(4*cap(r.scores)+4*cap(r.drops)+2*cap(r.order))
}

// seeMore copies what few endpoints have: trouble, and attributes.
func (*decisions) seeMore(r *kept, d *Decision) {
	for _, ill := range d.Ill {
		at := slices.IndexFunc(r.seats, func(s seat) bool { return s.at == ill.Endpoint })
		if at < 0 {
			continue
		}
		ill.Endpoint, ill.Cause = int32(at), r.own(ill.Cause, maxText)
		r.ill = append(r.ill, ill)
		r.bytes += int64(unsafe.Sizeof(ill))
	}
	for at, s := range r.seats {
		attrs := d.Endpoints[s.at].Attributes
		for i := range attrs[:min(len(attrs), maxAttrs)] {
			a := &attrs[i]
			if r.attrs == nil {
				r.attrs = make([]seatAttr, 0, len(r.seats)*min(len(attrs), maxAttrs))
			}
			r.attrs = append(r.attrs, seatAttr{int16(at), a.Name, a.Producer, read(a.Signal, d)})
		}
	}
	r.bytes += int64(cap(r.attrs)) * int64(unsafe.Sizeof(seatAttr{}))
}

// best lists the candidates that a record has room for: the pick and its fallbacks, and of the others those with
// the highest totals.
func best(d *Decision, into []int32) []int32 {
	n := len(d.Origin)
	if n <= maxSeats || len(d.Total) != n {
		for i := range min(n, maxSeats) {
			into = append(into, int32(i))
		}
		return into
	}
	into = append(into, d.Order[:min(len(d.Order), maxSeats)]...)
	ranked := len(into)
	for i := range int32(n) {
		if slices.Contains(into[:ranked], i) {
			continue
		}
		rest := into[ranked:]
		if len(into) == maxSeats && (len(rest) == 0 || d.Total[i] <= d.Total[rest[len(rest)-1]]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(rest, d.Total[i], func(o int32, total float32) int {
			if d.Total[o] == total {
				return -1 // behind its equals
			}
			return cmp.Compare(total, d.Total[o])
		})
		if len(into) == maxSeats {
			into = into[:maxSeats-1]
		}
		into = slices.Insert(into, ranked+at, i)
	}
	return into
}

func seatOf(d *Decision, at int32) seat {
	e := d.Endpoints[at]
	s := seat{at: at, waiting: read(e.Waiting, d), running: read(e.Running, d), kv: read(e.KVUsage, d)}
	if int(at) < len(d.Fates) {
		s.fate = d.Fates[at]
	}
	return s
}

func read(s fleet.Signal, d *Decision) reading {
	if s.At.IsZero() {
		return reading{}
	}
	age := d.At.Sub(s.At)
	r := reading{value: float32(s.Value), age: int32(min(max(0, age/time.Millisecond), 1<<31-1)), state: stale}
	if age <= d.Stale { // as [fleet.Signal.Fresh] has it
		r.state = fresh
	}
	return r
}

// rosterOf names the endpoints: the last roster of the pool while it still holds, else a new one, whose memory is
// counted as the record's.
func (k *decisions) rosterOf(r *kept, all []*fleet.Endpoint) *roster {
	if v, ok := k.rosters.Load(r.out.Pool); ok {
		if last := v.(*roster); last.holds(all) {
			return last
		}
	}
	o := &roster{make([]*fleet.Load, len(all)), make([]fleet.ID, len(all)), make([]string, len(all))}
	for i, e := range all {
		o.loads[i], o.names[i], o.addresses[i] = e.Load, e.ID, e.Address
		r.bytes += 56 + int64(len(e.Namespace)+len(e.Name)+len(e.Address))
	}
	k.rosters.Store(r.out.Pool, o)
	return o
}

func (o *roster) holds(all []*fleet.Endpoint) bool {
	if len(o.loads) != len(all) {
		return false
	}
	for i, e := range all {
		if o.loads[i] != e.Load || o.addresses[i] != e.Address {
			return false
		}
	}
	return true
}
