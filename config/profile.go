// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// handler finds the profile handler: the declared one or, with one profile, the default.
func (p *pickerDocument) handler() {
	for i, pl := range p.picker.Plugins {
		if !pl.entry.Is(plugin.ProfileHandler) {
			continue
		}
		if p.picker.Handler != nil {
			p.fail(index("plugins", i), "%s is a second profile handler beside %s: want one", pl.Name, p.picker.Handler.Name)
			continue
		}
		p.picker.Handler = pl
	}
	several := len(p.spec.SchedulingProfiles) > 1
	switch h := p.picker.Handler; {
	case h == nil && several:
		p.fail("schedulingProfiles", "%d profiles need a profile handler: declare one under plugins", len(p.spec.SchedulingProfiles))
	case h == nil:
		p.picker.Handler = p.imply("single-profile-handler")
	case several && h.Type == "single-profile-handler":
		p.fail("schedulingProfiles", "single-profile-handler takes one profile, got %d", len(p.spec.SchedulingProfiles))
	}
}

func (p *pickerDocument) profiles() {
	if len(p.spec.SchedulingProfiles) == 0 {
		p.picker.Profiles = []Profile{p.everything()}
		return
	}
	names := map[string]bool{}
	for i, s := range p.spec.SchedulingProfiles {
		at := index("schedulingProfiles", i)
		switch {
		case s.Name == "":
			p.fail(at+".name", "is missing")
		case names[s.Name]:
			p.fail(at+".name", "two profiles are named %s", short(s.Name))
		}
		names[s.Name] = true
		p.picker.Profiles = append(p.picker.Profiles, p.profile(at, s))
	}
}

// everything is the profile of a document that has none: all its filters, scorers and pickers.
func (p *pickerDocument) everything() Profile {
	profile := Profile{Name: "default"}
	for _, pl := range p.picker.Plugins {
		if pl.entry.Is(plugin.Filter) && !pl.entry.Is(plugin.Detector) || pl.entry.Is(plugin.Scorer) {
			pl.placed = true
			profile.Plugins = append(profile.Plugins, Ref{Plugin: pl, Weight: 1})
		}
	}
	profile.Plugins = append(profile.Plugins, Ref{Plugin: p.defaultChoice()})
	return profile
}

// byHeader warns of a default profile that is not there, so that the header is a must.
func (p *pickerDocument) byHeader() {
	h := p.picker.Handler
	if h == nil || h.Type != "header-profile-handler" || len(p.picker.Profiles) < 2 {
		return
	}
	name := cmp.Or(text(h.parameters, "defaultProfile"), "decode")
	var names []string
	for _, s := range p.picker.Profiles {
		names = append(names, s.Name)
	}
	if !slices.Contains(names, name) {
		at := index("plugins", slices.Index(p.picker.Plugins, h)) + ".parameters.defaultProfile"
		p.warn(at, "no profile is named %s, so requests without the header are refused: want %s", short(name), strings.Join(names, " or "))
	}
}

func (p *pickerDocument) profile(at string, s api.SchedulingProfile) Profile {
	profile := Profile{Name: s.Name}
	var pick *Plugin
	scorers := 0
	for i, r := range s.Plugins {
		at := index(at+".plugins", i)
		pl := p.ref(at+".pluginRef", r.PluginRef, Warning, plugin.Filter, plugin.Scorer, plugin.Picker)
		if pl == nil {
			scorers++ // it may have been meant to be one
			continue
		}
		ref := Ref{Plugin: pl, Weight: 1}
		if r.Weight != nil {
			ref.Weight = *r.Weight
			p.weight(at+".weight", ref)
		}
		switch {
		case pl.entry.Is(plugin.Picker) && pick != nil:
			p.fail(at+".pluginRef", "%s is a second picker beside %s: want one", pl.Name, pick.Name)
		case pl.entry.Is(plugin.Picker):
			pick = pl
			continue
		case pl.entry.Is(plugin.Scorer):
			scorers++
			if slices.ContainsFunc(profile.Plugins, func(o Ref) bool { return o.Plugin == pl }) {
				p.warn(at+".pluginRef", "%s is here twice: it counts with the sum of its weights", pl.Name)
			}
		}
		profile.Plugins = append(profile.Plugins, ref)
	}
	if pick == nil || !pick.Active {
		pick = p.defaultChoice()
	}
	if scorers == 0 && len(s.Plugins) > 0 && pick.Type != "random-picker" && pick.Type != "round-robin-picker" {
		p.warn(at, "has no scorer: every endpoint scores 0, so %s draws at random", pick.Type)
	}
	if len(s.Plugins) == 0 {
		p.warn(at, "has no plugins: endpoints are drawn at random")
	}
	profile.Plugins = append(profile.Plugins, Ref{Plugin: pick})
	return profile
}

// mostWeight leaves room to add up and to show what the scorers of a profile say.
const mostWeight = 1e30

func (p *pickerDocument) weight(path string, r Ref) {
	switch {
	case len(r.entry.Roles) > 0 && !r.entry.Is(plugin.Scorer):
		p.warn(path, "is ignored: %s is %s, only scorers have a weight", r.Name, article(r.entry.Roles[0]))
	case math.Abs(r.Weight) > mostWeight:
		p.fail(path, "must be within ±%g", mostWeight)
	case r.Weight < 0:
		p.warn(path, "is negative, so %s prefers what it scores low", r.Name)
	case r.Weight == 0:
		p.warn(path, "is zero, so %s has no say", r.Name)
	case r.Weight > 1e6:
		p.warn(path, "is so large that other scorers hardly count beside %s", r.Name)
	}
}

// defaultChoice is the picker of a profile that names none: the first declared one that is
// active, else max-score-picker.
func (p *pickerDocument) defaultChoice() *Plugin {
	i := slices.IndexFunc(p.picker.Plugins, func(pl *Plugin) bool { return pl.Active && pl.entry.Is(plugin.Picker) })
	if i >= 0 {
		p.picker.Plugins[i].placed = true
		return p.picker.Plugins[i]
	}
	return p.imply("max-score-picker")
}

// parsers keeps v1's requestHandler.parsers, or the deprecated parser, or the default.
func (p *pickerDocument) parsers() {
	if old := p.spec.Parser; old != nil {
		p.warn("parser", "is deprecated: write requestHandler: {parsers: [{pluginRef: %s}]}", old.PluginRef)
		if pl := p.ref("parser.pluginRef", old.PluginRef, Error, plugin.Parser); pl != nil {
			p.picker.Parsers = append(p.picker.Parsers, pl)
		}
	}
	if h := p.spec.RequestHandler; h != nil {
		for i, r := range h.Parsers {
			if pl := p.ref(index("requestHandler.parsers", i)+".pluginRef", r.PluginRef, Error, plugin.Parser); pl != nil {
				p.picker.Parsers = append(p.picker.Parsers, pl)
			}
		}
	}
	if p.picker.Parsers == nil {
		for _, typ := range []string{"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"} {
			p.picker.Parsers = append(p.picker.Parsers, p.imply(typ))
		}
	}
}

// Deciding are the profiles that the handler chooses among. Where it is not active yet, the one named decode serves
// alone, else the first.
func (p *Picker) Deciding() []Profile {
	if len(p.Profiles) == 1 || p.Handler != nil && p.Handler.Active {
		return p.Profiles
	}
	for _, profile := range p.Profiles {
		if profile.Name == "decode" {
			return []Profile{profile}
		}
	}
	return p.Profiles[:1]
}
