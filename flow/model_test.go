// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
)

// model is what a gate does, said as plainly as possible: lists, searched from their beginning each time.
type model struct {
	max, maxBytes  int64
	band, bandSize int64 // bounds of each band
	ttl, none      time.Duration
	bandTTL        map[int]time.Duration
	share          map[int]float64
	robin, edf     bool
	ceiling        float64
	tokens         int64 // that an endpoint takes; 0 when only requests count

	snapshot []*fleet.Endpoint
	busy     map[*fleet.Load]*[2]int64 // requests and tokens, kept places included
	empty    bool
	since    time.Time
	list     []*request // who waits, as they came
	came     int
	rings    map[int][]string // tenants of a band, whose turn it is first
	stamps   map[flow.Key]int // when a flow's length last changed
	clock    int
	credit   map[int]float64
	events   []event
	grants   []*fleet.Load // where the gate kept places, in order
	wrong    string
}

type event struct {
	id      int64
	outcome flow.Outcome
}

type request struct {
	flow.Key
	id, bytes, tokens int64
	class             string
	own               time.Duration
	entered, rank     time.Time
	due               time.Time // zero for never
	seq               int
	load              *fleet.Load // where it is, or a place is kept for it
}

// takes is how many requests an endpoint takes.
func takes(e *fleet.Endpoint) int64 { return int64(e.Name[1]-'0')%3 + 1 }

// has reports whether an endpoint serves a class: "all", or those with even or odd numbers.
func has(class string, e *fleet.Endpoint) bool {
	return class == "all" || (class == "even") == ((e.Name[1]-'0')%2 == 0)
}

func (m *model) room(e *fleet.Endpoint, tokens int64) bool {
	b := m.busy[e.Load]
	if b == nil {
		b = &[2]int64{}
		m.busy[e.Load] = b
	}
	return b[0] < takes(e) && (m.tokens == 0 || b[0] == 0 || b[1]+tokens <= m.tokens)
}

func (m *model) use(l *fleet.Load, n, tokens int64) {
	if m.busy[l] == nil {
		m.busy[l] = &[2]int64{}
	}
	m.busy[l][0] += n
	m.busy[l][1] += n * tokens
}

func (m *model) fleet(list []*fleet.Endpoint, now time.Time) {
	m.snapshot = list
	if empty := len(list) == 0; empty != m.empty {
		m.empty, m.since = empty, now
		for _, r := range m.list {
			m.expire(r)
		}
	}
	m.dispatch()
}

func (m *model) waits(priority int, own time.Duration) time.Duration {
	ttl := m.ttl
	if t := m.bandTTL[priority]; t > 0 {
		ttl = t
	}
	if m.empty {
		ttl = m.none
	}
	if own > 0 && (ttl == 0 || own < ttl) {
		ttl = own
	}
	return ttl
}

func (m *model) expire(r *request) {
	from := r.entered
	if m.since.After(from) {
		from = m.since
	}
	r.due = time.Time{}
	if ttl := m.waits(r.Priority, 0); ttl > 0 {
		r.due = from.Add(ttl)
	}
	if own := r.entered.Add(r.own); r.own > 0 && (r.due.IsZero() || own.Before(r.due)) {
		r.due = own
	}
}

func (m *model) arrive(r *request, now time.Time) {
	m.came++
	r.entered, r.seq, r.rank = now, m.came, now
	if ttl := m.waits(r.Priority, r.own); m.edf {
		r.rank = now.Add(ttl)
		if ttl == 0 {
			r.rank = now.Add(1 << 60)
		}
	}
	m.list = append(m.list, r)
	m.length(r.Key, 1)
	m.dispatch()
	if !slices.Contains(m.list, r) {
		return
	}
	mine := func(o *request) bool { return o.Priority == r.Priority }
	tight := func(count, bytes int64) bool { return count > m.band || bytes > m.bandSize }
	over := func(count, bytes int64) bool {
		return m.max > 0 && count > m.max || m.maxBytes > 0 && bytes > m.maxBytes
	}
	gave := false
	if tight(m.sums(mine)) || over(m.sums(func(o *request) bool { return o.Priority >= r.Priority })) {
		longest, newest := m.longest(r.Priority)
		if own, _ := m.sums(func(o *request) bool { return o.Key == r.Key }); !m.robin || longest <= own ||
			tight(m.sums(func(o *request) bool { return mine(o) && o != newest })) || over(m.sums(func(o *request) bool { return o != newest })) {
			m.refuse(r)
			m.dispatch()
			return
		}
		m.refuse(newest)
		gave = true
	}
	for over(m.sums(func(*request) bool { return true })) {
		lowest := slices.MinFunc(m.list, func(a, b *request) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
		_, newest := m.longest(lowest)
		m.refuse(newest)
		gave = true
	}
	if gave {
		m.dispatch()
	}
	m.expire(r)
}

// longest is the length of the longest flow of a band, of equals the one whose length changed last, and its newest request.
func (m *model) longest(priority int) (longest int64, newest *request) {
	for _, o := range m.list {
		if o.Priority != priority {
			continue
		}
		n, _ := m.sums(func(x *request) bool { return x.Key == o.Key })
		if newest == nil || n > longest || n == longest && m.stamps[o.Key] >= m.stamps[newest.Key] {
			longest, newest = n, o
		}
	}
	return longest, newest
}

func (m *model) sums(of func(*request) bool) (count, bytes int64) {
	for _, r := range m.list {
		if of(r) {
			count, bytes = count+1, bytes+r.bytes
		}
	}
	return count, bytes
}

// length follows the round, and when a flow's length changed.
func (m *model) length(k flow.Key, by int) {
	m.clock++
	m.stamps[k] = m.clock
	n, _ := m.sums(func(r *request) bool { return r.Key == k })
	switch {
	case by > 0 && n == 1:
		m.rings[k.Priority] = append(m.rings[k.Priority], k.Tenant)
	case by < 0 && n == 0:
		m.rings[k.Priority] = slices.DeleteFunc(m.rings[k.Priority], func(t string) bool { return t == k.Tenant })
	}
	if n, _ := m.sums(func(r *request) bool { return r.Priority == k.Priority }); n == 0 {
		m.credit[k.Priority] = 0
	}
}

func (m *model) drop(r *request, how flow.Outcome) {
	m.list = slices.DeleteFunc(m.list, func(o *request) bool { return o == r })
	m.length(r.Key, -1)
	m.events = append(m.events, event{r.id, how})
}

func (m *model) refuse(r *request) {
	if m.empty {
		m.drop(r, flow.RejectedNoEndpoints)
	} else {
		m.drop(r, flow.RejectedCapacity)
	}
}

// until lets time pass.
func (m *model) until(now time.Time) {
	for {
		var due time.Time
		for _, r := range m.list {
			if !r.due.IsZero() && !r.due.After(now) && (due.IsZero() || r.due.Before(due)) {
				due = r.due
			}
		}
		if due.IsZero() {
			return
		}
		for _, r := range slices.Clone(m.list) {
			if r.due.Equal(due) {
				how := flow.EvictedTTL
				if m.empty {
					how = flow.EvictedNoEndpoints
				}
				m.drop(r, how)
			}
		}
		m.dispatch()
	}
}

func (m *model) full() float64 {
	if len(m.snapshot) == 0 {
		return 1
	}
	sum := 0.0
	for _, e := range m.snapshot {
		m.room(e, 0)
		sum += min(1, float64(m.busy[e.Load][0])/float64(takes(e)))
	}
	return sum / float64(len(m.snapshot))
}

func (m *model) dispatch() {
	blocked := map[string]bool{}
	for {
		r := m.next(blocked)
		if r == nil {
			return
		}
		possible := []*fleet.Load{}
		for _, e := range m.snapshot {
			if has(r.class, e) && m.room(e, r.tokens) {
				possible = append(possible, e.Load)
			}
		}
		if len(possible) == 0 {
			blocked[r.class] = true
			continue
		}
		for p, share := range m.share {
			if slices.ContainsFunc(m.list, func(o *request) bool { return o.Priority == p }) {
				m.credit[p] = min(m.credit[p]+share, 2)
			}
		}
		m.credit[r.Priority] = max(0, m.credit[r.Priority]-1)
		ring := m.rings[r.Priority]
		if i := slices.Index(ring, r.Tenant); m.robin {
			m.rings[r.Priority] = append(slices.Delete(ring, i, i+1), r.Tenant)
		}
		m.drop(r, flow.Dispatched)
		// Which endpoint it is, is the gate's choice; it has to be one with room.
		if len(m.grants) == 0 || !slices.Contains(possible, m.grants[0]) {
			m.wrong = fmt.Sprintf("%d goes, where the gate keeps no place with room", r.id)
			m.grants = []*fleet.Load{possible[0]}
		}
		r.load = m.grants[0]
		m.grants = m.grants[1:]
		m.use(r.load, 1, r.tokens)
		clear(blocked) // who is next of a class may need less
	}
}

func (m *model) next(blocked map[string]bool) *request {
	open := slices.DeleteFunc(slices.Clone(m.list), func(r *request) bool { return blocked[r.class] })
	if len(open) == 0 || m.ceiling < 1 && m.full() > m.ceiling-1e-6 {
		return nil
	}
	first := func(of func(*request) bool) *request {
		var best *request
		for _, r := range open {
			if of(r) && (best == nil || cmp.Or(r.rank.Compare(best.rank), cmp.Compare(r.seq, best.seq)) < 0) {
				best = r
			}
		}
		return best
	}
	// Bands whose share earned a turn go first, then the others.
	slices.SortStableFunc(open, func(a, b *request) int { return cmp.Compare(b.Priority, a.Priority) })
	priority := open[0].Priority
	for _, r := range open {
		if m.credit[r.Priority] > 1-1e-6 {
			priority = r.Priority
			break
		}
	}
	if !m.robin {
		return first(func(r *request) bool { return r.Priority == priority })
	}
	for _, tenant := range m.rings[priority] {
		if r := first(func(r *request) bool { return r.Key == flow.Key{Tenant: tenant, Priority: priority} }); r != nil {
			return r
		}
	}
	return nil
}

// sizes is a detector by takes.
type sizes struct{ tokens int64 }

func (d sizes) Room(v flow.View, tokens int64) bool {
	return v.Requests < takes(v.Endpoint) && (d.tokens == 0 || v.Requests == 0 || v.Tokens+tokens <= d.tokens)
}

func (d sizes) Fill(v flow.View) (fill, weight float64) {
	return float64(v.Requests) / float64(takes(v.Endpoint)), 1
}

// witness records outcomes in order.
type witness struct {
	rig
	mu     sync.Mutex // with the timer
	events []event
}

func (w *witness) Left(a *flow.Ask, o flow.Outcome, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{a.Tokens, o})
}

// going is a request that went.
type going struct {
	*request
	ticket flow.Ticket
	hold   fleet.Hold
	placed bool
}

// play has a gate and the model do the same things, chosen by chance, and compares what becomes of each request, in order.
func play(t *testing.T, seed uint64, ops int) (went map[flow.Outcome]int) {
	rng := rand.New(rand.NewPCG(seed, 0))
	some := func(n int) bool { return rng.IntN(n) == 0 }
	m := &model{
		band: 20, bandSize: 1500, ttl: 2 * time.Second, none: 500 * time.Millisecond, bandTTL: map[int]time.Duration{-1: 700 * time.Millisecond},
		share: map[int]float64{}, robin: seed%2 == 0, edf: seed%3 == 0, ceiling: 1,
		busy: map[*fleet.Load]*[2]int64{}, rings: map[int][]string{}, stamps: map[flow.Key]int{}, credit: map[int]float64{},
	}
	if seed%4 < 2 {
		m.max, m.maxBytes = 30, 2500
	}
	if seed%5 == 0 {
		m.tokens = 100
	}
	if seed%5 == 1 {
		m.share[-1], m.share[0] = 0.125, 0.25
	}
	if seed%7 == 0 {
		m.ceiling = 0.7
	}
	if seed%11 == 0 {
		m.ttl = 0
	}
	went = map[flow.Outcome]int{}

	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: poolID}})
	see := &witness{}
	named := func(share float64, ttl time.Duration) flow.BandSpec {
		s := spec(map[bool]string{true: "round-robin-fairness-policy", false: "global-strict-fairness-policy"}[m.robin],
			map[bool]string{true: "edf-ordering-policy", false: "fcfs-ordering-policy"}[m.edf])
		s.MaxRequests, s.MaxBytes, s.Share, s.TTL = m.band, m.bandSize, share, ttl
		return s
	}
	c := flow.New(flow.Options{
		MaxRequests: m.max, MaxBytes: m.maxBytes, TTL: m.ttl, NoEndpointTTL: m.none, Pool: poolID, Store: store, Stale: time.Minute,
		Bands:   map[int]flow.BandSpec{-1: named(m.share[-1], m.bandTTL[-1]), 0: named(m.share[0], 0)},
		Default: named(0, 0), Negative: named(0, 0), Detector: sizes{m.tokens}, Listener: see,
		Limit: &policy.StaticUsageLimitPolicy{Threshold: m.ceiling},
	})
	store.OnPublish(c.Kick)
	var up [6]bool
	refresh := func(class string) func(*fleet.Snapshot, []*fleet.Endpoint) []*fleet.Endpoint {
		return func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
			for _, e := range s.Pool(poolID).Endpoints {
				if has(class, e) {
					into = append(into, e)
				}
			}
			return into
		}
	}
	visitors := map[int64]flow.Visitor{}
	requests := map[int64]*request{}
	var order []int64 // of those that wait, to choose from
	var running []*going
	m.empty, m.since = true, time.Time{}
	var log []string

	// settle compares what happened, after the gate and before the model did what do does.
	settle := func(what string, do func()) {
		log = append(log, what)
		if len(log)%100 == 0 {
			if err := c.Check(); err != nil {
				t.Fatalf("seed %d, after %d operations: %v", seed, len(log), err)
			}
		}
		see.mu.Lock()
		defer see.mu.Unlock()
		for _, e := range see.events {
			if e.outcome == flow.Dispatched {
				m.grants = append(m.grants, visitors[e.id].Place())
			}
		}
		do()
		if !slices.Equal(see.events, m.events) || m.wrong != "" || len(m.grants) > 0 {
			t.Fatalf("seed %d, after %d operations, the last:\n%s\nthe gate: %v\nthe model: %v\n%s", seed, len(log),
				strings.Join(log[max(0, len(log)-15):], "\n"), see.events, m.events, m.wrong)
		}
		for _, e := range see.events {
			went[e.outcome]++
			ticket, _ := visitors[e.id].Take()
			if e.outcome == flow.Dispatched {
				running = append(running, &going{request: requests[e.id], ticket: ticket})
			}
			delete(visitors, e.id)
			delete(requests, e.id)
		}
		see.events, m.events = see.events[:0], m.events[:0]
		if c.Waiting() != len(m.list) {
			t.Fatalf("seed %d: %d wait, want %d", seed, c.Waiting(), len(m.list))
		}
	}
	setFleet := func() {
		specs := []fleet.EndpointSpec{}
		for i, ok := range up {
			if ok {
				specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
			}
		}
		store.SetEndpoints("test", specs)
		settle(fmt.Sprint("fleet ", up), func() { m.fleet(store.Load().Pool(poolID).Endpoints, time.Now()) })
	}
	sleep := func(d time.Duration) {
		time.Sleep(d)
		synctest.Wait()
		settle(fmt.Sprint("sleep ", d), func() { m.until(time.Now()) })
	}
	end := func(i int) {
		g := running[i]
		running[i] = running[len(running)-1]
		running = running[:len(running)-1]
		g.hold.Release()
		g.ticket.End(g.tokens, 0)
		settle(fmt.Sprint("end ", g.id), func() {
			m.use(g.load, -1, g.tokens)
			m.dispatch()
		})
	}
	arrive := func(id int64) {
		r := &request{Key: flow.Key{Tenant: fmt.Sprint("t", rng.IntN(1+rng.IntN(6))), Priority: rng.IntN(4) - 2}, id: id,
			bytes: int64(rng.IntN(150)), tokens: int64(10 + rng.IntN(60)), class: []string{"all", "all", "even", "odd"}[rng.IntN(4)]}
		if some(5) {
			r.own = time.Duration(1+rng.IntN(3000)) * time.Millisecond
		}
		s := store.Load()
		visitors[id] = c.Arrive(&flow.Ask{Key: r.Key, Bytes: r.bytes, Tokens: id, Uncached: r.tokens, TTL: r.own, Received: time.Now(), Now: time.Now(),
			Class: r.class, Refresh: refresh(r.class), Candidates: refresh(r.class)(s, nil), Version: s.Version})
		requests[id] = r
		order = append(order, id)
		settle(fmt.Sprint("arrive ", id, " ", r.Key, " of ", r.class, ", ", r.bytes, " bytes, ", r.tokens, " tokens, for ", r.own), func() { m.arrive(r, time.Now()) })
	}

	for i := range up {
		up[i] = some(2)
	}
	setFleet()
	quiet := false
	for op := range ops {
		if op%500 == 0 {
			quiet = some(3)
		}
		switch n := rng.IntN(100); {
		case n < 44 && !(quiet && some(2)):
			arrive(int64(op))
		case n < 76:
			if len(running) > 0 {
				end(rng.IntN(len(running)))
			}
		case n < 82: // a client leaves
			order = slices.DeleteFunc(order, func(id int64) bool { _, ok := visitors[id]; return !ok })
			if len(order) > 0 {
				id := order[rng.IntN(len(order))]
				r := requests[id]
				visitors[id].Cancel()
				settle(fmt.Sprint("cancel ", id), func() {
					m.drop(r, flow.EvictedContextCancelled)
					m.dispatch()
				})
			}
		case n < 92: // a request takes its place, or another
			if len(running) == 0 || len(m.snapshot) == 0 {
				continue
			}
			g := running[rng.IntN(len(running))]
			e := m.snapshot[rng.IntN(len(m.snapshot))]
			want := e.Load == g.load || m.room(e, g.tokens)
			ok := true
			if g.placed { // it failed there
				g.hold.Release()
				g.hold = g.ticket.Force(e, time.Now(), g.tokens, 0)
			} else {
				var h fleet.Hold
				if h, ok = g.ticket.Place(e, time.Now(), g.tokens, 0); ok != want {
					t.Fatalf("seed %d: placed %t, want %t", seed, ok, want)
				}
				if ok {
					g.hold, g.placed = h, true
				}
			}
			settle(fmt.Sprintf("place %d at %s ", g.id, e.Name), func() {
				if ok {
					m.use(g.load, -1, g.tokens)
					m.use(e.Load, 1, g.tokens)
					g.load = e.Load
					m.dispatch()
				}
			})
		case n < 99:
			sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
		default:
			if some(10) {
				up = [6]bool{}
			} else {
				up[rng.IntN(len(up))] = some(2)
			}
			setFleet()
		}
	}
	// All comes to rest.
	for len(running) > 0 || c.Waiting() > 0 {
		if len(running) > 0 {
			end(rng.IntN(len(running)))
		} else {
			sleep(time.Second)
			up[0], up[1] = true, true
			setFleet()
		}
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	for l, b := range m.busy {
		held, work := l.Reserved()
		if *b != [2]int64{} || l.Requests() != 0 || l.Tokens() != 0 || held != 0 || work != 0 {
			t.Fatalf("seed %d: %v, %d requests, %d tokens, %d and %d kept; want nothing", seed, *b, l.Requests(), l.Tokens(), held, work)
		}
	}
	return went
}

// TestModel plays many games. FLOW_MODEL_OPS in the environment sets how many operations each has: 100,000 make one
// minute.
func TestModel(t *testing.T) {
	ops, games := modelSize()
	total := map[flow.Outcome]int{}
	for seed := range games {
		synctest.Test(t, func(t *testing.T) {
			for outcome, n := range play(t, uint64(seed), ops) {
				total[outcome] += n
			}
		})
	}
	t.Log(total)
	for _, o := range []flow.Outcome{flow.Dispatched, flow.RejectedCapacity, flow.RejectedNoEndpoints, flow.EvictedTTL, flow.EvictedNoEndpoints, flow.EvictedContextCancelled} {
		if total[o] < 20 {
			t.Errorf("only %d were %s", total[o], o)
		}
	}
}
