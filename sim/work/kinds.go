// SPDX-License-Identifier: Apache-2.0

package work

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// recipe is a kind of work with what makes it of parameters.
type recipe struct {
	Kind
	make func(v *values) plan
}

// plan is a kind of work with its parameters read: what a generator is opened from.
type plan struct {
	name   string
	labels labels
	maker  func(rng *rand.Rand) maker
	calls  float64 // of a session, in the mean
	single bool

	rate        float64 // calls per second
	cv          float64
	shape       shape
	users       int
	join        time.Duration
	rest        length
	several     length
	requests    int
	lead, until time.Duration
	before      time.Duration
}

const longest = 4 << 20 // tokens of one piece of a prompt

func tokens(name, def, doc string) Param {
	return Param{Name: name, Unit: Tokens, Default: def, Min: 1, Max: longest, Doc: doc}
}

// optional are tokens of something that there may be none of.
func optional(name, def, doc string) Param {
	p := tokens(name, def, doc)
	p.Min = 0
	return p
}

func count(name, def string, low, high float64, doc string) Param {
	return Param{Name: name, Unit: Count, Default: def, Min: low, Max: high, Doc: doc}
}

func calls(name, def string, high float64, doc string) Param {
	return Param{Name: name, Unit: Calls, Default: def, Min: 1, Max: high, Doc: doc}
}

func span(name, def, doc string) Param {
	return Param{Name: name, Unit: Span, Default: def, Max: 24 * 3600, Doc: doc}
}

func share(name, def, doc string) Param {
	return Param{Name: name, Unit: Share, Default: def, Max: 1, Doc: doc}
}

func zipf(def, doc string) Param {
	return Param{Name: "zipf", Unit: Number, Default: def, Max: 4, Doc: doc + ": the i-th in proportion to 1/i^zipf, 0 is all alike"}
}

var shapes = []string{"flat", "step", "burst", "idle", "ramp", "diurnal"}

// loop are the parameters that every kind has.
func loop(rate, priority string) []Param {
	return []Param{
		{Name: "rate", Unit: PerSecond, Default: rate, Min: 1e-6, Max: 1e6, Doc: "calls in an open loop, which does not wait for answers: those of sessions are counted in, in the mean"},
		{Name: "cv", Unit: Number, Default: "1", Max: 10, Doc: "how arrivals bunch: 0 regular, 1 Poisson, above it in bursts (gamma)"},
		count("users", "0", 0, crowd, "a closed loop with so many users, each of whom waits for the answer; 0 is the open loop"),
		span("rest", "0", "of a user of a closed loop, between two sessions"),
		{Name: "join", Unit: Duration, Default: "5s", Max: week, Doc: "in which the users of a closed loop come"},
		count("requests", "0", 0, 1e9, "calls in all; 0 is as many as come in the time"),
		{Name: "for", Unit: Duration, Default: "5m", Max: week, Doc: "how long it lasts: nothing begins after it. Without end if requests is given and this is not"},
		{Name: "start", Unit: Duration, Default: "0", Max: week, Doc: "when it begins"},
		{Name: "shape", Unit: Word, Default: "flat", Choices: shapes, Doc: "of the rate over time, with factor, at, hold and period: flat; step to the factor at a time, for a while; burst to the factor at the beginning of every period; idle till then, the factor for a while, and the rate after it; ramp over a period; diurnal, whose peak is factor times its trough and comes in the middle of the period"},
		{Name: "factor", Unit: Number, Default: "4", Min: 1e-3, Max: 1e4, Doc: "of the shape"},
		{Name: "at", Unit: Duration, Default: "1m", Max: week, Doc: "when the shape's step begins or its idleness ends"},
		{Name: "hold", Unit: Duration, Default: "1m", Max: week, Doc: "how long the factor holds; 0 is to the end"},
		{Name: "period", Unit: Duration, Default: "5m", Min: 1, Max: week, Doc: "of burst, ramp and diurnal"},
		{Name: "tenant", Unit: Word, Doc: "who asks"},
		{Name: "objective", Unit: Word, Doc: "the name of an InferenceObjective"},
		{Name: "priority", Unit: Count, Default: priority, Min: -1e6, Max: 1e6, Doc: "below 0 may be shed"},
		{Name: "model", Unit: Word, Doc: "the model or adapter asked for"},
		{Name: "class", Unit: Word, Doc: "the kind of work in reports; the kind's name if not given"},
	}
}

// read fills in what every kind has.
func (p *plan) read(v *values, kind string) {
	p.name = kind
	p.rate, p.cv = v.number("rate"), v.number("cv")
	p.users, p.rest, p.join = v.count("users"), v.length("rest"), v.duration("join")
	p.requests, p.lead, p.until = v.count("requests"), v.duration("start"), v.duration("for")
	if v.find("before") != nil {
		p.before = v.duration("before")
	}
	if p.requests > 0 && !v.given("for") {
		p.until = week * time.Second
	}
	if p.until == 0 {
		v.wrong(v.find("for"), "0", "a time in which something can begin")
	}
	p.shape = shape{v.word("shape"), v.number("factor"), v.duration("at").Seconds(), v.duration("hold").Seconds(), v.duration("period").Seconds()}
	for _, name := range []string{"factor", "at", "hold", "period"} {
		if v.given(name) && p.shape.kind == "flat" && v.err == nil {
			v.wrong(v.find(name), v.set[name], "a shape with it: "+join(shapes[1:]))
		}
	}
	if p.users > 0 && (v.given("rate") || v.given("shape")) {
		v.wrong(v.find("users"), v.set["users"], "either users or a rate: a closed loop is as fast as the answers")
	}
	p.labels = labels{tenant: v.word("tenant"), objective: v.word("objective"), priority: v.count("priority"), model: v.word("model"), class: v.word("class")}
	if p.labels.class == "" {
		p.labels.class = kind
	}
}

var recipes = []recipe{
	{
		Kind{"plain", "Calls that share nothing with one another. By themselves they have the lengths of calls for code completion in the Azure trace of 2023.", slices.Concat([]Param{
			tokens("prompt", "1500~0.8", "of a prompt"),
			tokens("output", "30~0.6", "of an answer"),
		}, loop("10", "0"))},
		func(v *values) plan {
			k := plain{prompt: v.length("prompt"), output: v.length("output")}
			return plan{calls: 1, single: true, maker: func(*rand.Rand) maker { return &k }}
		},
	},
	{
		Kind{"groups", "Groups of calls that begin with the same long text, as the tenants of an application do.", slices.Concat([]Param{
			count("groups", "20", 1, 1e5, "how many there are"),
			count("prompts", "0", 0, 1e4, "different prompts of each group, which come again and again; 0 is a new one each time"),
			tokens("prefix", "2000", "that a group shares"),
			tokens("own", "200", "of each prompt, after it"),
			tokens("output", "200", "of an answer"),
			zipf("0", "how popular groups are"),
		}, loop("10", "0"))},
		func(v *values) plan {
			k := groups{groups: v.count("groups"), prompts: v.count("prompts"), prefix: v.length("prefix"), own: v.length("own"), output: v.length("output")}
			if k.groups*k.prompts > 1e6 {
				v.wrong(v.find("prompts"), strconv.Itoa(k.prompts), "at most a million prompts in all groups")
				return plan{}
			}
			z := v.number("zipf")
			popular := newPopularity(k.groups, z)
			return plan{calls: 1, single: true, maker: func(rng *rand.Rand) maker {
				k := k
				k.popular = popular
				if k.prompts > 0 && z == 0 {
					k.order = rng.Perm(k.groups * k.prompts)
				}
				return &k
			}}
		},
	},
	{
		Kind{"chat", "Conversations of people with assistants: each turn is the whole talk so far and a new question.", slices.Concat([]Param{
			count("apps", "8", 1, 1e5, "assistants, each with a system prompt of its own"),
			zipf("1", "how popular assistants are"),
			optional("system", "800", "of a system prompt"),
			calls("turns", "5~0.7", 1000, "of a conversation"),
			tokens("first", "200~1", "of the first question"),
			tokens("question", "80~1", "of each one after it"),
			tokens("output", "250~0.7", "of an answer"),
			span("think", "20s~0.9", "between an answer and the next question"),
			count("context", "32768", 1, longest, "tokens that the model takes: of longer talks the oldest half is dropped"),
			{Name: "before", Unit: Duration, Default: "30m", Max: week, Doc: "how far back those that are under way at the beginning began, in an open loop"},
		}, loop("4", "0"))},
		func(v *values) plan {
			k := chat{system: v.length("system"), turns: v.length("turns"), first: v.length("first"), question: v.length("question"), output: v.length("output"), think: v.length("think"), context: v.count("context")}
			k.popular = newPopularity(v.count("apps"), v.number("zipf"))
			return plan{calls: k.turns.mean(), maker: func(*rand.Rand) maker { return &k }}
		},
	},
	{
		Kind{"agents", "Agents that work with tools: many short turns close on one another, whose context only grows, and some that send out others.", slices.Concat([]Param{
			count("kinds", "4", 1, 1e5, "of agents, each with instructions and tools of its own"),
			zipf("1", "how popular kinds are"),
			optional("system", "6000", "of the instructions and tools"),
			tokens("task", "1500~0.8", "of a task"),
			calls("turns", "30~0.7", 2000, "of an agent"),
			tokens("tool", "500~1.2", "that a tool answers"),
			tokens("output", "150~0.8", "of an answer"),
			span("gap", "1.3s~0.86", "that a tool takes"),
			count("context", "131072", 1, longest, "tokens that the model takes: a longer context is replaced by a summary"),
			share("summary", "0.1", "of the context, that a summary is"),
			share("spawn", "0.03", "of turns that send out sub-agents, and wait for them"),
			calls("fan", "1-3", 64, "sub-agents at a time"),
			calls("subturns", "8~0.6", 1000, "of a sub-agent"),
			share("fork", "0.2", "of sub-agents that begin with all that their agent knows; the others with its instructions"),
			{Name: "before", Unit: Duration, Default: "30m", Max: week, Doc: "how far back those that are under way at the beginning began, in an open loop"},
		}, loop("6", "0"))},
		func(v *values) plan {
			k := agents{
				system: v.length("system"), task: v.length("task"), turns: v.length("turns"), tool: v.length("tool"), output: v.length("output"), gap: v.length("gap"),
				context: v.count("context"), summary: v.number("summary"), spawn: v.number("spawn"), fan: v.length("fan"), subturns: v.length("subturns"), fork: v.number("fork"),
			}
			k.popular = newPopularity(v.count("kinds"), v.number("zipf"))
			mean := k.turns.mean()
			mean += max(0, mean-1) * k.spawn * k.fan.mean() * k.subturns.mean()
			return plan{calls: mean, maker: func(*rand.Rand) maker {
				k := k
				k.rng = rand.New(&k.pcg)
				return &k
			}}
		},
	},
	{
		Kind{"documents", "Questions about documents that stand before them, as retrieval puts them there: some documents are asked about much more often than others.", slices.Concat([]Param{
			count("documents", "500", 1, 1e6, "how many there are"),
			zipf("1", "how popular documents are"),
			tokens("document", "3000~0.6", "of a document"),
			count("each", "3", 1, 64, "documents in a prompt"),
			{Name: "order", Unit: Word, Default: "rank", Choices: []string{"rank", "random"}, Doc: "in which they stand: by popularity, so that prompts share more, or by chance"},
			optional("system", "300", "of the system prompt before them"),
			tokens("question", "60~0.6", "after them"),
			tokens("output", "250~0.6", "of an answer"),
		}, loop("4", "0"))},
		func(v *values) plan {
			k := documents{document: v.length("document"), each: v.count("each"), random: v.word("order") == "random", system: v.length("system"), question: v.length("question"), output: v.length("output")}
			n := v.count("documents")
			if k.each > n {
				v.wrong(v.find("each"), strconv.Itoa(k.each), "no more than there are documents")
				return plan{}
			}
			k.popular = newPopularity(n, v.number("zipf"))
			return plan{calls: 1, single: true, maker: func(*rand.Rand) maker { k := k; return &k }}
		},
	},
	{
		Kind{"lora", "Calls for many adapters of one base model, some of them much more popular than others.", slices.Concat([]Param{
			count("adapters", "32", 1, 1e5, "how many there are: adapter-1 is the most popular"),
			zipf("1", "how popular adapters are"),
			share("base", "0.1", "of calls that want no adapter"),
			optional("prefix", "600", "that the calls of an adapter share"),
			tokens("own", "300~0.8", "of each prompt, after it"),
			tokens("output", "150~0.7", "of an answer"),
		}, loop("15", "0"))},
		func(v *values) plan {
			k := lora{base: v.number("base"), prefix: v.length("prefix"), own: v.length("own"), output: v.length("output")}
			n := v.count("adapters")
			k.popular = newPopularity(n, v.number("zipf"))
			k.names = make([]string, n)
			for i := range k.names {
				k.names[i] = "adapter-" + strconv.Itoa(i+1)
			}
			return plan{calls: 1, single: true, maker: func(*rand.Rand) maker { return &k }}
		},
	},
	{
		Kind{"batch", "Jobs that nobody waits for: many calls at once, which share instructions. They may be shed.", slices.Concat([]Param{
			calls("items", "40~0.5", 1e5, "calls of a job, all of them at once"),
			optional("prefix", "1500", "that the calls of a job share"),
			tokens("own", "800~0.5", "of each prompt, after it"),
			tokens("output", "400~0.5", "of an answer"),
		}, loop("4", "-1"))},
		func(v *values) plan {
			k := batch{prefix: v.length("prefix"), own: v.length("own"), output: v.length("output")}
			items := v.length("items")
			return plan{calls: 1, single: true, several: items, maker: func(*rand.Rand) maker { return &k }}
		},
	},
}

type plain struct {
	alone
	prompt, output length
}

func (k *plain) turn(s *session) int {
	s.add(s.own(0, partAsked), k.prompt.whole(s.rng))
	return k.output.whole(s.rng)
}

type groups struct {
	alone
	groups, prompts     int
	prefix, own, output length
	popular             popularity
	order               []int // of all prompts, as they come again and again
}

func (k *groups) turn(s *session) int {
	group, prompt := 0, 0
	switch {
	case k.order != nil:
		i := k.order[s.n%len(k.order)]
		group, prompt = i/k.prompts, i%k.prompts
	default:
		group = k.popular.pick(s.rng)
		if k.prompts > 0 {
			prompt = s.rng.IntN(k.prompts)
		}
	}
	s.common(partSystem, group, k.prefix)
	if k.prompts > 0 {
		s.common(partAsked, group*k.prompts+prompt, k.own)
	} else {
		s.add(s.own(0, partAsked), k.own.whole(s.rng))
	}
	return k.output.whole(s.rng)
}

type chat struct {
	popular                 popularity
	system, first, question length
	turns, output, think    length
	context                 int
}

func (k *chat) begin(s *session) {
	s.turns = k.turns.whole(s.rng)
	s.common(partSystem, k.popular.pick(s.rng), k.system)
}

func (k *chat) turn(s *session) int {
	ask, output := k.question, k.output.whole(s.rng)
	if s.turn == 0 {
		ask = k.first
	}
	n := ask.whole(s.rng)
	if s.turn > 0 && s.size+n+output > k.context {
		s.forget(k.context / 2)
	}
	s.add(s.own(s.turn, partAsked), n)
	return output
}

func (k *chat) ended(s *session, ok bool) {
	if ok {
		s.add(s.current.Answer, s.current.Output)
	}
}

func (k *chat) pause(s *session) time.Duration { return k.think.span(s.rng) }

// forget drops the oldest turns, until no more than keep tokens are left. What is pinned stays.
func (s *session) forget(keep int) {
	from := 0
	if s.pinned {
		from = 1
	}
	n := from
	for n < len(s.history) && s.size > keep {
		s.size -= int(s.history[n].Tokens)
		n++
	}
	s.history = append(s.history[:from], s.history[n:]...)
}

type agents struct {
	popular             popularity
	system, task, turns length
	tool, output, gap   length
	context             int
	summary             float64
	spawn, fork         float64
	fan, subturns       length

	pcg rand.PCG
	rng *rand.Rand // to look ahead at what a sub-agent will draw
}

func (k *agents) begin(s *session) {
	s.turns = k.turns.whole(s.rng)
	s.common(partSystem, k.popular.pick(s.rng), k.system)
	if k.spawn == 0 {
		return
	}
	for range s.turns {
		n := 0
		if s.rng.Float64() < k.spawn {
			n = k.fan.whole(s.rng)
		}
		s.spawns = append(s.spawns, int32(n))
	}
}

// childID is the content of the i-th sub-agent.
func childID(s *session, i int) uint64 { return mix(s.id, 1<<48|uint64(i)) }

// childTurns is how many turns the i-th sub-agent will have.
func (k *agents) childTurns(s *session, i int) int {
	k.pcg.Seed(childID(s, i), chance)
	return k.subturns.whole(k.rng)
}

// wait is about how long an agent waits for its sub-agents.
func (k *agents) wait() time.Duration {
	turn := time.Duration(k.output.mean())*usualStep + time.Duration(k.gap.mean()*float64(time.Second))
	return time.Duration(k.subturns.mean()) * turn
}

// branch makes c the i-th sub-agent of its parent.
func (k *agents) branch(c *session, i int) {
	p := c.parent
	c.id = childID(p, i)
	c.pcg.Seed(c.id, chance)
	c.number = (i+1)<<32 | p.number
	c.turns = k.subturns.whole(c.rng)
	shared := p.history
	if c.rng.Float64() >= k.fork {
		shared = nil
		if p.pinned {
			shared = p.history[:1]
		}
	}
	for _, piece := range shared {
		c.add(piece.ID, int(piece.Tokens))
	}
	c.pinned = p.pinned
}

func (k *agents) turn(s *session) int {
	said, part := k.tool, partAsked
	if s.turn == 0 {
		said, part = k.task, partTask
	}
	n, output := said.whole(s.rng), k.output.whole(s.rng)
	if s.turn > 0 && s.size+n+output > k.context {
		s.forget(0)
		s.add(s.own(s.turn, partSummary), int(k.summary*float64(k.context)))
	}
	s.add(s.own(s.turn, part), n)
	return output
}

func (k *agents) ended(s *session, ok bool) {
	if ok {
		s.add(s.current.Answer, s.current.Output)
	}
}

func (k *agents) pause(s *session) time.Duration { return k.gap.span(s.rng) }

type documents struct {
	alone
	popular                            popularity
	document, system, question, output length
	each                               int
	random                             bool
	picked                             []int
}

func (k *documents) turn(s *session) int {
	s.common(partSystem, 0, k.system)
	k.picked = k.picked[:0]
	for tries := 0; len(k.picked) < k.each; tries++ {
		i := k.popular.pick(s.rng)
		for tries > 20*k.each && slices.Contains(k.picked, i) { // nearly all asked for: take the next
			i = (i + 1) % len(k.popular.upTo)
		}
		if !slices.Contains(k.picked, i) {
			k.picked = append(k.picked, i)
		}
	}
	if !k.random {
		slices.Sort(k.picked)
	}
	for _, i := range k.picked {
		s.common(partTask, i, k.document)
	}
	s.add(s.own(0, partAsked), k.question.whole(s.rng))
	return k.output.whole(s.rng)
}

type lora struct {
	alone
	popular             popularity
	base                float64
	prefix, own, output length
	names               []string
}

func (k *lora) turn(s *session) int {
	i := len(k.names) // the base model
	if s.rng.Float64() >= k.base {
		i = k.popular.pick(s.rng)
		s.model = k.names[i]
	}
	s.common(partSystem, i, k.prefix)
	s.add(s.own(0, partAsked), k.own.whole(s.rng))
	return k.output.whole(s.rng)
}

type batch struct {
	alone
	prefix, own, output length
}

func (k *batch) turn(s *session) int {
	s.common(partSystem, s.group, k.prefix)
	s.add(s.own(0, partAsked), k.own.whole(s.rng))
	return k.output.whole(s.rng)
}
