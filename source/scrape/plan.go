// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-project/penstock/fleet"
)

// Plan says what is polled of the endpoints of a pool, and what is read of it. It is never changed.
type Plan struct {
	polls []*poll
	from  string
}

// Poll is a source with the extractors that read what it brings.
type Poll struct {
	// Name is unique in a plan; Type labels what fails.
	Name, Type string
	Source     Source
	Extractors []Named
}

// Named is an extractor with its name and its type.
type Named struct {
	Name, Type string
	Extractor  Extractor
}

// poll is a [Poll] made ready.
type poll struct {
	fetch
	name, typ  string
	extractors []Named
	creds      credentials
	// by tells the engine of an endpoint; mappings are by engine, that of "" for all others.
	by       func(*fleet.Endpoint) string
	mappings map[string]*Mapping
	// core is the place among extractors of the one that makes a reading, -1 for none.
	core int
	// rank orders the polls of a plan that make readings; alone tells that there is one.
	rank  int
	alone bool
}

// NewPlan makes a plan. It reads the certificates and tokens that sources name; what is wrong begins
// with the name of the source or the extractor.
func NewPlan(polls ...Poll) (*Plan, error) {
	p := &Plan{}
	var from strings.Builder
	cores := 0
	for _, in := range polls {
		out := &poll{fetch: in.Source.fetch(), name: in.Name, typ: in.Type, extractors: in.Extractors, core: -1}
		if slices.ContainsFunc(p.polls, func(o *poll) bool { return o.name == in.Name }) {
			return nil, fmt.Errorf("%s: is listed twice as a source", in.Name)
		}
		out.creds.HTTP = out.HTTP
		if _, _, err := out.creds.read(); err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
		if err := out.compile(); err != nil {
			return nil, err
		}
		if out.core >= 0 {
			out.rank = cores
			cores++
		}
		p.polls = append(p.polls, out)
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		from.Write(b)
	}
	for _, o := range p.polls {
		o.alone = cores == 1
	}
	p.from = from.String()
	return p, nil
}

// String names the sources and, in parentheses, their extractors.
func (p *Plan) String() string {
	var b strings.Builder
	for i, o := range p.polls {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(o.name + "(")
		for k, x := range o.extractors {
			if k > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(x.Name)
		}
		b.WriteByte(')')
	}
	return b.String()
}

// compile makes the mappings of what the extractors read.
func (p *poll) compile() error {
	engines := map[string]bool{"": true}
	var all []reads
	for i, x := range p.extractors {
		r := x.Extractor.reads()
		switch {
		case r.models != p.models && r.models:
			return fmt.Errorf("%s: reads lists of models, and %s brings metrics: list it under a %s", x.Name, p.name, ModelsSource)
		case r.models != p.models:
			return fmt.Errorf("%s: reads metrics, and %s brings lists of models: list it under a %s", x.Name, p.name, MetricsSource)
		}
		if j := slices.IndexFunc(p.extractors[:i], func(o Named) bool { return o.Type == x.Type }); j >= 0 {
			return fmt.Errorf("%s: is a second %s beside %s: want one for each source", x.Name, x.Type, p.extractors[j].Name)
		}
		if r.by != nil {
			p.by, p.core = r.by, i
		}
		for e := range r.rows {
			engines[e] = true
		}
		all = append(all, r)
	}
	if p.models {
		return nil
	}
	p.mappings = map[string]*Mapping{}
	for e := range engines {
		var rows []Row
		for i, r := range all {
			own, ok := r.rows[e]
			if !ok {
				own = r.rows[""]
			}
			for _, row := range own {
				if row.Extra != nil {
					x := *row.Extra
					x.owner, row.Extra = i, &x
				}
				rows = append(rows, row)
			}
		}
		slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Field/Extra, b.Field/Extra) }) // attributes last
		m, err := NewMapping(rows...)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		p.mappings[e] = m
	}
	return nil
}

// mapping is what is read of an endpoint's page.
func (p *poll) mapping(ep *fleet.Endpoint) *Mapping {
	if p.by != nil {
		if m := p.mappings[p.by(ep)]; m != nil {
			return m
		}
	}
	return p.mappings[""]
}

// DefaultPlan is the plan of who wrote none: metrics and models.
func DefaultPlan() *Plan {
	var polls []Poll
	for _, pair := range [][2]string{{MetricsSource, MetricsExtractor}, {ModelsSource, ModelsExtractor}} {
		source, x := pair[0], pair[1]
		polls = append(polls, Poll{Name: source, Type: source, Source: Sources[source](), Extractors: []Named{{x, x, Extractors[x]()}}})
	}
	p, err := NewPlan(polls...)
	if err != nil {
		panic(err) // no file and no name of anybody's is in it
	}
	return p
}

// Plans hold the plans of pools, for a [Run] that goes on. Pools without one have the default.
// The zero value holds none.
type Plans struct {
	mu      sync.Mutex
	by      map[fleet.ID]*Plan
	none    *Plan
	changed chan struct{}
}

// Set replaces the plans. One that says what the pool's last one said goes on undisturbed.
func (p *Plans) Set(by map[fleet.ID]*Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[fleet.ID]*Plan, len(by))
	for id, plan := range by {
		if old := p.by[id]; old != nil && old.from == plan.from {
			plan = old
		}
		next[id] = plan
	}
	p.by = next
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// now returns the plan of each pool and a channel that is closed when it is out of date.
func (p *Plans) now() (of func(fleet.ID) *Plan, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	if p.none == nil {
		p.none = DefaultPlan()
	}
	by, none := p.by, p.none
	return func(id fleet.ID) *Plan {
		if plan := by[id]; plan != nil {
			return plan
		}
		return none
	}, p.changed
}
