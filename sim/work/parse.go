// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// part is one stream of a workload, before it is opened.
type part struct {
	// rate is its own, in calls per second; 0 of a closed loop.
	rate float64
	// open starts it with its rate multiplied. Parts with one budget share it.
	open func(seed uint64, times float64, b *budget) (Workload, error)
	// requests bounds the calls of all parts that share the budget; 0 does not.
	requests int
	// budget numbers the bounds within the workload.
	budget int
}

// Parse reads a workload: a kind with parameters ("groups?groups=150&prefix=6000&rate=11"), a
// named one ("shared-prefix"), a trace ("mooncake:FILE", "azure:FILE", "log:FILE" for an access
// log, "trace:FILE" for whichever it is), or several of these with " + " between two. A trace is
// read once to its end, so that what is wrong with it is said now, with its line.
func Parse(spec string) (Open, error) {
	if len(spec) > maxSpec {
		return nil, fmt.Errorf("workload: %w", errLong)
	}
	spec = strings.TrimSpace(spec)
	name, multiplied := spec, Multiplied(spec)
	if named := find(spec); named != nil {
		spec = named.Spec
	}
	parts, err := parseParts(spec, 0)
	if err != nil {
		return nil, err
	}
	if len(parts) == 1 && !strings.Contains(name, "?") {
		name = short(name)
	}
	own := 0.0
	for i := range parts {
		own += parts[i].rate
	}
	return func(seed uint64, rate float64) (Workload, error) {
		if !(rate >= 0 && rate <= 1e6) {
			return nil, fmt.Errorf("%s: rate: is %v; want a number above 0 and up to a million", clip(name), rate)
		}
		times := rate
		switch {
		case rate == 0:
			times = 1
		case multiplied:
		case own == 0:
			return nil, fmt.Errorf("%s: a closed loop has no rate; change its users", clip(name))
		default:
			times = rate / own
		}
		return open(name, parts, seed, times)
	}, nil
}

// Multiplied tells whether the rate given to the [Open] of spec multiplies the workload's own, and
// is not requests per second: so it is with traces and with named workloads.
func Multiplied(spec string) bool {
	spec = strings.TrimSpace(spec)
	if find(spec) != nil {
		return true
	}
	for one := range strings.SplitSeq(spec, " + ") {
		if _, _, trace := cutTrace(strings.TrimSpace(one)); !trace {
			return false
		}
	}
	return true
}

// OwnRate is the rate of a spec that is no [Multiplied] one, in requests per second; 0 of a closed loop.
func OwnRate(spec string) (float64, error) {
	parts, err := parseParts(strings.TrimSpace(spec), 0)
	own := 0.0
	for i := range parts {
		own += parts[i].rate
	}
	return own, err
}

// parseParts reads what stands between " + ". Named workloads may stand in one another to a depth.
func parseParts(spec string, depth int) ([]part, error) {
	if spec == "" {
		return nil, unknown("workload: no", "", everyName())
	}
	var parts []part
	for one := range strings.SplitSeq(spec, " + ") {
		one = strings.TrimSpace(one)
		var more []part
		var err error
		if named := find(one); named != nil && depth < 2 {
			more, err = parseParts(named.Spec, depth+1)
		} else {
			more, err = parseOne(one)
		}
		if err != nil {
			return nil, err
		}
		first := 0
		if len(parts) > 0 {
			first = parts[len(parts)-1].budget + 1
		}
		for i := range more {
			more[i].budget += first
		}
		parts = append(parts, more...)
		if len(parts) > 1000 {
			return nil, errors.New("workload: more than 1000 streams; write fewer tenants")
		}
	}
	return parts, nil
}

func parseOne(spec string) ([]part, error) {
	if format, file, ok := cutTrace(spec); ok {
		p, err := parseTrace(format, file)
		return []part{p}, err
	}
	name, query, _ := strings.Cut(spec, "?")
	if name == tenantsKind.Name {
		return parseTenants(query)
	}
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.Name == name })
	switch {
	case i < 0 && strings.Contains(name, "+"):
		return nil, fmt.Errorf("workload: no %q; write \" + \" with a space on either side between two", clip(name))
	case i < 0 && (strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".csv") || strings.HasSuffix(name, ".gz")):
		return nil, fmt.Errorf("workload: no %q; write trace:%s for a file", clip(name), clip(name))
	case i < 0:
		return nil, unknown("workload: no", name, everyName())
	}
	v, err := parseValues(name, query, recipes[i].Params)
	if err != nil {
		return nil, err
	}
	p := recipes[i].make(v)
	p.read(v, name)
	if v.err != nil {
		return nil, v.err
	}
	return []part{p.part()}, nil
}

// part makes a part of a plan.
func (p plan) part() part {
	own := p.rate
	if p.users > 0 {
		own = 0
	}
	return part{rate: own, requests: p.requests, open: func(seed uint64, times float64, b *budget) (Workload, error) {
		return p.open(seed, times, b), nil
	}}
}

// open starts a generator.
func (p plan) open(seed uint64, times float64, b *budget) *generator {
	g := &generator{
		name: p.name, labels: p.labels, base: mix(seed, 1), single: p.single, budget: b,
		lead: p.lead, several: p.several, rest: p.rest, until: p.lead + p.until,
	}
	g.rng = rand.New(&g.pcg)
	rng := rand.New(rand.NewPCG(seed, 2))
	g.kind = p.maker(rng)
	if p.users > 0 {
		users := min(max(1, int(float64(p.users)*times+0.5)), 10*crowd)
		g.starts = make([]time.Duration, users)
		for i := range g.starts {
			g.starts[i] = p.lead + time.Duration(float64(p.join)*float64(i)/float64(users))
		}
		return g
	}
	g.arrivals = arrivals{rng: rng, rate: p.rate * times / p.calls / p.together(), cv: p.cv, shape: p.shape, until: p.until.Seconds()}
	g.total = most
	if p.until < day { // longer ones end by their number of requests
		g.total = int(p.rate * times * p.until.Seconds() * p.shape.mean(p.until.Seconds()))
	}
	if p.before > 0 {
		g.warm(p.before)
	}
	g.advance()
	return g
}

// together is how many sessions one arrival begins, in the mean.
func (p plan) together() float64 {
	if p.several.b > 0 {
		return p.several.mean()
	}
	return 1
}

// open starts the parts, as one workload if they are several.
func open(name string, parts []part, seed uint64, times float64) (Workload, error) {
	budgets := map[int]*budget{}
	list := make([]Workload, len(parts))
	for i, p := range parts {
		b := budgets[p.budget]
		if b == nil {
			b = &budget{left: -1}
			if p.requests > 0 {
				b.left = p.requests
			}
			budgets[p.budget] = b
		}
		w, err := p.open(mix(seed, uint64(i)), times, b)
		if err != nil {
			return nil, err
		}
		list[i] = w
	}
	return newMixture(name, list, parts), nil
}

var tenantsKind = Kind{"tenants", "Many tenants that do the same kind of work, a few of them most of it; one may ask for much more for a while.", []Param{
	count("tenants", "8", 1, 1000, "how many there are: tenant-0 is the largest"),
	{Name: "skew", Unit: Number, Default: "1", Max: 4, Doc: "how different they are: the i-th asks in proportion to 1/i^skew, 0 is all alike"},
	{Name: "shares", Unit: Shares, Doc: "what each asks for, instead of tenants and skew"},
	{Name: "of", Unit: Word, Default: "chat", Choices: kindNames(kindsOf()), Doc: "the kind of work; its parameters may follow. Nothing is shared between tenants"},
	{Name: "aggressor", Unit: Number, Default: "1", Min: 1, Max: 1000, Doc: "how many times as much tenant-0 asks for in its time, which is at and hold of its shape"},
	{Name: "apart", Unit: Count, Default: "0", Min: 0, Max: 1, Doc: "1 gives each a priority of its own: that of the first, and one less for each after it"},
}}

func kindsOf() []Kind {
	kinds := make([]Kind, len(recipes))
	for i, r := range recipes {
		kinds[i] = r.Kind
	}
	return kinds
}

// parseTenants makes one part of each tenant. They share the budget.
func parseTenants(query string) ([]part, error) {
	of := "chat"
	for one := range strings.SplitSeq(query, "&") {
		if value, ok := strings.CutPrefix(strings.TrimSpace(one), "of="); ok {
			of = strings.TrimSpace(value)
		}
	}
	i := max(0, slices.IndexFunc(recipes, func(r recipe) bool { return r.Name == of })) // a wrong one is named below
	v, err := parseValues(tenantsKind.Name, query, slices.Concat(tenantsKind.Params, recipes[i].Params))
	if err != nil {
		return nil, err
	}
	v.word("of")
	shares := v.shares("shares")
	n := v.count("tenants")
	switch {
	case shares != nil && (v.given("tenants") || v.given("skew")):
		v.wrong(v.find("shares"), v.set["shares"], "either shares, or tenants and skew")
	case shares == nil && v.err == nil:
		sizes := newPopularity(n, v.number("skew"))
		for i := range n {
			shares = append(shares, sizes.share(i))
		}
	}
	aggressor, apart := v.number("aggressor"), v.count("apart")
	if v.given("tenant") {
		v.wrong(v.find("tenant"), v.set["tenant"], "none: they are tenant-0, tenant-1…")
	}
	if v.given("users") && aggressor > 1 {
		v.wrong(v.find("aggressor"), v.set["aggressor"], "an open loop, with a rate")
	}
	if aggressor > 1 && !v.given("shape") {
		v.params = slices.Clone(v.params) // at and hold are the aggressor's
		v.find("shape").Default = "step"
	}
	p := recipes[i].make(v)
	p.read(v, recipes[i].Name)
	if v.err != nil {
		return nil, v.err
	}
	parts := make([]part, len(shares))
	for i, share := range shares {
		one := p
		one.labels.tenant = tenantName(i)
		one.labels.priority -= i * apart
		one.rate *= share
		if one.users > 0 {
			one.users = max(1, int(float64(one.users)*share+0.5))
		}
		switch {
		case aggressor > 1 && i == 0:
			one.shape.kind, one.shape.factor = "step", aggressor
		case aggressor > 1 && !v.given("shape"):
			one.shape.kind = "flat"
		}
		parts[i] = one.part()
	}
	return parts, nil
}

// Kinds lists the kinds of work that are made up, with their parameters. The slice is the caller's.
func Kinds() []Kind { return append(kindsOf(), tenantsKind) }

// everyName lists what a workload may begin with.
func everyName() []string {
	names := kindNames(Kinds())
	for _, n := range named {
		names = append(names, n.Name)
	}
	return append(names, "mooncake:", "azure:", "log:", "trace:")
}

func tenantName(i int) string { return "tenant-" + strconv.Itoa(i) }

func join(words []string) string { return strings.Join(words, ", ") }
