// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Plan is what decides for one pool. Its lists are in the order in which they run.
type Plan struct {
	// Screeners each see all candidates; one stays that all of them keep.
	Screeners []Named[Filter]
	Producers []Named[Producer]
	Admitters []Named[Admitter]
	Handler   Handler
	Profiles  []*Profile
	// Reporters see nothing but answers.
	Reporters []Named[Answerer]

	placers     []Placer
	leavers     []Leaver
	answerers   []Answerer
	identifiers []Identifier
	reservers   []Reserver
}

// Ready finds out what the plugins are beside their roles. It must be called once, before the first request.
func (p *Plan) Ready() *Plan {
	var all []any
	add := func(name string, v any) {
		if v == nil || slices.Contains(all, v) { // in two profiles, or in two roles
			return
		}
		all = append(all, v)
		if n, ok := v.(Namer); ok {
			n.SetName(name)
		}
		if w, ok := v.(Placer); ok {
			p.placers = append(p.placers, w)
		}
		if w, ok := v.(Reserver); ok {
			p.reservers = append(p.reservers, w)
		}
		if w, ok := v.(Leaver); ok {
			p.leavers = append(p.leavers, w)
		}
		if w, ok := v.(Answerer); ok {
			p.answerers = append(p.answerers, w)
		}
		if w, ok := v.(Identifier); ok {
			p.identifiers = append(p.identifiers, w)
		}
	}
	for _, s := range p.Screeners {
		add(s.Name, s.Plugin)
	}
	for _, s := range p.Producers {
		add(s.Name, s.Plugin)
	}
	for _, s := range p.Admitters {
		add(s.Name, s.Plugin)
	}
	add("", p.Handler)
	for _, profile := range p.Profiles {
		for _, s := range profile.Filters {
			add(s.Name, s.Plugin)
		}
		for _, s := range profile.Scorers {
			add(s.Name, s.Plugin)
		}
		add(profile.Picker.Name, profile.Picker.Plugin)
	}
	for _, s := range p.Reporters {
		add(s.Name, s.Plugin)
	}
	return p
}

// Identity is on whose behalf a request is, where nobody named a fairness id; empty for nobody.
func (p *Plan) Identity(h Headers) string {
	for _, w := range p.identifiers {
		if v := w.Identity(h); v != "" {
			return v
		}
	}
	return ""
}

// Fix drops the candidates that fixed filters drop in any case: of a plan with one profile, which decides for all
// requests. The filters are asked again when it decides.
func (p *Plan) Fix(c *Cycle) {
	if len(p.Profiles) != 1 {
		return
	}
	for k, f := range p.Profiles[0].Filters {
		if fixed, ok := f.Plugin.(Fixed); ok {
			fixed.Filter(c, c.Mask())
			c.Drop(FirstStage + Fate(len(p.Screeners)+k))
		}
	}
}

// Screen drops the candidates that a screener does not want. All screeners see the same candidates.
func (p *Plan) Screen(c *Cycle) {
	for k := range p.Screeners {
		s := &p.Screeners[k]
		at := start(s.Took)
		s.Plugin.Filter(c, c.Mask())
		for i, ok := range c.keep {
			if f := &c.Fates[c.Origin[i]]; !ok && *f == Kept {
				*f = FirstStage + Fate(k)
			}
		}
		done(s.Took, at)
	}
	if c.after = FirstStage + Fate(len(p.Screeners)); c.after > FirstStage {
		c.compact()
	}
}

// Produce runs the producers. It may be long (a prompt is hashed here) and needs no lock.
func (p *Plan) Produce(c *Cycle) {
	for k := range p.Producers {
		pr := &p.Producers[k]
		at := start(pr.Took)
		pr.Plugin.Produce(c)
		done(pr.Took, at)
	}
}

// Admit asks the admitters. It returns the name of the first that says no, and why.
func (p *Plan) Admit(c *Cycle) (name, why string) {
	for k := range p.Admitters {
		a := &p.Admitters[k]
		at := start(a.Took)
		why = a.Plugin.Admit(c)
		done(a.Took, at)
		if why != "" {
			return a.Name, why
		}
	}
	return "", ""
}

// Choose finds the profile that decides, or says why there is none.
func (p *Plan) Choose(c *Cycle) (*Profile, string) { return p.Handler.Choose(c, p.Profiles) }

// Refresh brings what producers found up to date. It comes before a profile's Decide, and Reserve after it, in one
// step.
func (p *Plan) Refresh(c *Cycle) {
	for _, w := range p.reservers {
		w.Refresh(c)
	}
}

// Reserve tells the choice to producers in the step in which it is made.
func (p *Plan) Reserve(c *Cycle, chosen *fleet.Endpoint) {
	for _, w := range p.reservers {
		w.Reserve(c, chosen)
	}
}

// Placed tells the plugins what was decided.
func (p *Plan) Placed(c *Cycle, chosen *fleet.Endpoint) {
	for _, w := range p.placers {
		w.Placed(c, chosen)
	}
}

// Answers reports whether some plugin adds headers to answers.
func (p *Plan) Answers() bool { return len(p.answerers) > 0 }

// Answered collects the headers that plugins add to the answer.
func (p *Plan) Answered(c *Cycle, served *fleet.Endpoint, set func(name, value string)) {
	for _, w := range p.answerers {
		w.Answered(c, served, set)
	}
}

// Gone tells the plugins that incarnations ended.
func (p *Plan) Gone(loads []*fleet.Load) {
	for _, w := range p.leavers {
		w.Gone(loads)
	}
}

// Renewed tells the plugins that an engine's process is another than the one that was last seen at the time given.
func (p *Plan) Renewed(l *fleet.Load, seen time.Time) {
	for _, w := range p.leavers {
		if r, ok := w.(Renewer); ok {
			r.Renewed(l, seen)
		} else {
			w.Gone([]*fleet.Load{l})
		}
	}
}

// Stage names what a fate means in this plan and profile: the plugin's name, or "" for the causes before
// [FirstStage]; and why it drops candidates, where it says.
func (p *Plan) Stage(profile *Profile, f Fate) (name, why string) {
	k := int(f) - int(FirstStage)
	var stage Named[Filter]
	switch {
	case k < 0:
		return "", ""
	case k < len(p.Screeners):
		stage = p.Screeners[k]
	case profile != nil && k-len(p.Screeners) < len(profile.Filters):
		stage = profile.Filters[k-len(p.Screeners)]
	}
	if r, ok := stage.Plugin.(Reasoner); ok {
		why = r.Reason()
	}
	return stage.Name, why
}
