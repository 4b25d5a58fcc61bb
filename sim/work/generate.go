// SPDX-License-Identifier: Apache-2.0

package work

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// maker makes the calls of one kind of work. Its sessions are independent of one another: each
// draws from its own chance, so that it is the same whatever ends when.
type maker interface {
	// begin plans a session: how many turns it has, and what it shares with others.
	begin(s *session)
	// turn adds to the history what is new in the prompt of s.turn, and says how long the answer is.
	turn(s *session) int
	// ended adds what the turn leaves in the history.
	ended(s *session, ok bool)
	// pause is how long after an end the next turn begins.
	pause(s *session) time.Duration
}

// alone is the part of a maker whose sessions are single calls.
type alone struct{}

func (alone) begin(s *session)             { s.turns = 1 }
func (alone) ended(*session, bool)         {}
func (alone) pause(*session) time.Duration { return 0 }

// usualStep is how long a token of an answer takes where no engine says it.
const usualStep = 20 * time.Millisecond

// spread is the time in which sub-agents that are under way at the beginning begin.
const spread = 5 * time.Second

// mostWarm bounds the sessions that are looked at to find those under way.
const mostWarm = 200_000

// chance is the second half of every session's seed.
const chance = 0x776f726b

// What a segment of a turn is; with the session and the turn it makes the ID.
const (
	partAsked = iota
	partSystem
	partTask
	partSummary
	partAnswer
)

// session is one conversation, agent or single call.
type session struct {
	gen     *generator
	id      uint64 // of its content
	n       int    // which of its generator, from 0
	number  int    // as Request.Session
	pcg     rand.PCG
	rng     *rand.Rand
	turn    int
	turns   int
	history []Segment
	size    int  // tokens of the history
	pinned  bool // the history begins with something that is never forgotten
	model   string
	group   int // of those that arrived together

	// Agents only.
	spawns  []int32 // sub-agents that begin after each turn
	spawned int
	parent  *session
	child   int       // which of those that its parent waits for
	open    int       // sub-agents that it waits for
	results []Segment // of them

	// Of two requests in turn, so that the last one stays as it was until the next has ended.
	requests [2]Request
	flip     int
	current  *Request // that is under way
}

// add puts a piece at the end of the history. Nothing is added for no tokens.
func (s *session) add(id uint64, tokens int) {
	if tokens > 0 {
		s.history = append(s.history, Segment{id, int32(tokens)})
		s.size += tokens
	}
}

// common adds the i-th of the pieces that sessions of the generator share. It has the same length
// each time. At the beginning it is pinned.
func (s *session) common(part, i int, l length) {
	id := mix(s.gen.base, 1<<56|uint64(part)<<40|uint64(i))
	n := 0
	if l.random() {
		s.gen.pcg.Seed(id, chance)
		n = l.some(s.gen.rng)
	} else {
		n = l.some(nil)
	}
	s.pinned = s.pinned || len(s.history) == 0 && n > 0
	s.add(id, n)
}

// own is the ID of a piece that no other session has.
func (s *session) own(turn, part int) uint64 { return mix(s.id, uint64(turn)<<8|uint64(part)) }

// budget is how many calls may still be planned; less than 0 is any number.
type budget struct{ left int }

// take takes up to n.
func (b *budget) take(n int) int {
	if b.left < 0 {
		return n
	}
	n = min(n, b.left)
	b.left -= n
	return n
}

// labels stand on every request of a generator.
type labels struct {
	tenant, objective, model, class string
	priority                        int
}

// generator makes one stream of work, in an open or a closed loop.
type generator struct {
	name   string
	kind   maker
	labels labels
	base   uint64 // of all its content
	single bool   // sessions are single calls
	budget *budget
	total  int

	arrivals arrivals   // open loop
	going    []*Request // of sessions that began before the start, sorted
	lead     time.Duration
	several  length // begin with one arrival, if it is not 0
	due      time.Duration
	items    int // that still begin at due
	group    int
	more     bool

	starts []time.Duration // closed loop: when the users begin, sorted
	rest   length
	until  time.Duration

	pcg rand.PCG
	rng *rand.Rand // for lengths of what is shared

	begun int
	index int
	free  []*session
	out   []*Request
}

func (g *generator) Name() string { return g.name }
func (g *generator) Total() int   { return g.total }
func (g *generator) Err() error   { return nil }

// Next implements [Workload].
func (g *generator) Next() (*Request, bool) {
	if g.budget.left == 0 {
		return nil, false
	}
	if g.begun < len(g.starts) {
		at := g.starts[g.begun]
		g.begun++
		return g.start(at, g.begun-1), true
	}
	if len(g.going) > 0 && (!g.more || g.going[0].At <= g.lead+g.due) {
		r := g.going[0]
		g.going = g.going[1:]
		r.Index = g.number()
		return r, true
	}
	if len(g.starts) > 0 || !g.more {
		return nil, false
	}
	g.begun++
	r := g.start(g.lead+g.due, g.begun-1)
	if g.items--; g.items <= 0 {
		g.advance()
	}
	return r, true
}

// advance finds the next arrival, and how many begin with it.
func (g *generator) advance() {
	g.due, g.more = g.arrivals.next()
	g.items = 1
	if g.several.b > 0 {
		g.items = g.several.whole(g.arrivals.rng)
		g.group++
	}
}

// warm begins the sessions that are under way when the time begins: those that came in the time
// before it, as if each answer had taken its length in usual steps. What they said till then is in
// their history, and in nobody's cache.
func (g *generator) warm(before time.Duration) {
	before = min(before, time.Duration(mostWarm/g.arrivals.rate*float64(time.Second)))
	g.arrivals.t = -before.Seconds()
	for g.budget.left != 0 {
		at, more := g.arrivals.next()
		if !more || at >= 0 {
			break
		}
		s := g.session()
		s.n = g.begun
		g.begun++
		s.id = mix(g.base, uint64(s.n))
		g.seed(s)
		g.kind.begin(s)
		spawning := false
		for at < 0 && s.turn < s.turns && !spawning {
			output := max(1, g.kind.turn(s))
			s.add(s.own(s.turn, partAnswer), output)
			s.turn++
			at += time.Duration(output) * usualStep
			if i := s.turn - 1; i < len(s.spawns) && s.spawns[i] > 0 && s.turn < s.turns {
				wait := g.kind.(*agents).wait()
				if spawning = at+wait >= 0; spawning {
					break
				}
				at += wait
			}
			at += g.kind.pause(s)
		}
		at = max(at, 0)
		if s.turn >= s.turns || at >= g.until-g.lead {
			g.recycle(s)
			continue
		}
		if spawning {
			g.plan(s, s.turn-1)
			if s.spawns[s.turn-1] > 0 {
				g.out = g.out[:0]
				g.spawn(s, g.lead+at+time.Duration(s.rng.Float64()*float64(spread)))
				g.going = append(g.going, g.out...)
				continue
			}
		} else {
			g.plan(s, s.turn)
		}
		g.going = append(g.going, g.call(s, g.lead+at))
	}
	slices.SortStableFunc(g.going, func(a, b *Request) int { return cmp.Compare(a.At, b.At) })
	g.arrivals.t, g.index = 0, 0
}

// start begins the n-th session. In a closed loop those of a user are as many apart as there are
// users, so that each is the same whoever is first.
func (g *generator) start(at time.Duration, n int) *Request {
	s := g.session()
	s.n, s.group = n, g.group
	if len(g.starts) > 0 && g.several.b > 0 {
		s.group = n / int(g.several.mean())
	}
	s.id = mix(g.base, uint64(n))
	g.seed(s)
	g.kind.begin(s)
	g.plan(s, 0)
	return g.call(s, at)
}

// plan takes what the rest of the session will need from the budget. Near its end sessions lose
// sub-agents, then turns. Sub-agents of turns before the given one are over.
func (g *generator) plan(s *session, over int) {
	s.turns = s.turn + max(1, g.budget.take(s.turns-s.turn))
	for i, n := range s.spawns {
		if i < over || i+1 >= s.turns {
			n = 0 // over, or nobody would read what they find
		}
		for k := range n {
			turns := g.kind.(*agents).childTurns(s, s.spawned+int(k))
			if g.budget.left >= 0 && g.budget.left < turns {
				n = k
				break
			}
			g.budget.take(turns)
		}
		s.spawns[i] = n
		s.spawned += int(n)
	}
	s.spawned = 0
}

func (g *generator) seed(s *session) {
	s.pcg.Seed(s.id, chance)
	s.number = -1
	if !g.single {
		s.number = s.n
	}
}

func (g *generator) session() *session {
	if n := len(g.free); n > 0 {
		s := g.free[n-1]
		g.free = g.free[:n-1]
		return s
	}
	s := &session{gen: g}
	s.rng = rand.New(&s.pcg)
	return s
}

func (g *generator) recycle(s *session) {
	*s = session{gen: g, rng: s.rng, history: s.history[:0], spawns: s.spawns[:0], results: s.results[:0], requests: s.requests, flip: s.flip}
	g.free = append(g.free, s)
}

func (g *generator) number() int {
	g.index++
	return g.index - 1
}

// call makes the session's next request.
func (g *generator) call(s *session, at time.Duration) *Request {
	s.flip ^= 1
	r := &s.requests[s.flip]
	*r = Request{
		At: at, Index: g.number(), Session: s.number, Turn: s.turn,
		Tenant: g.labels.tenant, Objective: g.labels.objective, Priority: g.labels.priority, Model: g.labels.model, Class: g.labels.class,
		session: s,
	}
	if s.model != "" {
		r.Model = s.model
	}
	r.Output = max(1, g.kind.turn(s))
	r.Prompt = slices.Clip(s.history)
	r.Answer = s.own(s.turn, partAnswer)
	s.current = r
	return r
}

// Ended implements [Workload].
func (g *generator) Ended(r *Request, at time.Duration, ok bool) []*Request {
	g.out = g.out[:0]
	s := r.session
	if s == nil || s.current == nil || s.current.Answer != r.Answer {
		return nil // not ours, or twice
	}
	g.kind.ended(s, ok)
	if s.parent != nil && ok {
		s.parent.results[s.child] = Segment{r.Answer, int32(r.Output)}
	}
	s.current = nil
	s.turn++
	if s.turn-1 < len(s.spawns) && s.spawns[s.turn-1] > 0 && at < g.until {
		g.spawn(s, at)
	} else {
		g.goOn(s, at)
	}
	return g.out
}

// goOn makes the session's next call, or ends it.
func (g *generator) goOn(s *session, at time.Duration) {
	if s.turn < s.turns {
		if at += g.kind.pause(s); at < g.until {
			g.out = append(g.out, g.call(s, at))
			return
		}
	}
	if p := s.parent; p != nil {
		g.recycle(s)
		if p.open--; p.open == 0 {
			for _, found := range p.results {
				p.add(found.ID, int(found.Tokens))
			}
			g.goOn(p, at)
		}
		return
	}
	if len(g.starts) == 0 {
		g.recycle(s)
		return
	}
	at += g.rest.span(s.rng)
	n := s.n + len(g.starts)
	g.recycle(s)
	if at < g.until && g.budget.left != 0 {
		g.out = append(g.out, g.start(at, n))
	}
}

// spawn begins the sub-agents of the turn that ended. The agent waits for all of them.
func (g *generator) spawn(s *session, at time.Duration) {
	n := int(s.spawns[s.turn-1])
	s.open = n
	s.results = append(s.results[:0], make([]Segment, n)...)
	for k := range n {
		c := g.session()
		c.parent, c.child, c.n = s, k, s.n
		g.kind.(*agents).branch(c, s.spawned+k)
		g.out = append(g.out, g.call(c, at))
	}
	s.spawned += n
}
