// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/plugin"
)

// data finds out who tells each plugin what it reads, adds those who are missing, and sorts the
// producers so that each runs after those that it reads.
func (p *pickerDocument) data() {
	for i := 0; i < len(p.picker.Plugins); i++ { // which grows by those that are added
		pl := p.picker.Plugins[i]
		if !p.runs(pl) {
			continue
		}
		for _, u := range pl.entry.Consumes {
			if u.When == "" || meets(pl.parameters, u) {
				p.use(index("plugins", i), pl, u)
			}
		}
	}
	for _, pl := range p.picker.Plugins {
		if pl.entry.Is(plugin.Producer) {
			p.picker.Producers = append(p.picker.Producers, pl)
		}
		if pl.entry.Is(plugin.Admitter) {
			p.picker.Admitters = append(p.picker.Admitters, pl)
		}
		if pl.entry.Is(plugin.Screener) {
			p.picker.Screeners = append(p.picker.Screeners, pl)
		}
	}
	p.picker.Producers = inOrder(p.picker.Producers)
}

// maxStages bounds the screeners of a document and the filters of one of its profiles together: a decision keeps in one
// byte which of them dropped an endpoint.
const maxStages = 200

func (p *pickerDocument) tooMany() {
	for i, s := range p.picker.Profiles {
		n := len(p.picker.Screeners)
		for _, r := range s.Plugins {
			if r.entry.Is(plugin.Filter) {
				n++
			}
		}
		if n > maxStages {
			p.fail(index("schedulingProfiles", i), "has %d filters, screeners included: want at most %d", n, maxStages)
		}
	}
}

// runs reports whether a plugin has a place where it runs: in a profile, in flow control or,
// for most roles, by being declared.
func (p *pickerDocument) runs(pl *Plugin) bool {
	placed := func(r plugin.Role) bool {
		return r == plugin.Filter || r == plugin.Scorer || r == plugin.Picker || r == plugin.Detector
	}
	if len(pl.entry.Roles) == 0 || !placed(pl.entry.Roles[0]) || pl == p.picker.Detector {
		return true
	}
	return slices.ContainsFunc(p.picker.Profiles, func(s Profile) bool {
		return slices.ContainsFunc(s.Plugins, func(r Ref) bool { return r.Plugin == pl })
	})
}

// meets reports whether the parameters are such that u applies.
func meets(parameters *yaml.Node, u plugin.Use) bool {
	written := scalars(parameters, u.When)
	if len(written) == 0 {
		return slices.Contains(u.Is, "")
	}
	return len(u.Is) == 0 || slices.ContainsFunc(written, func(v string) bool { return slices.Contains(u.Is, v) })
}

// scalars lists the values at a path through objects and lists.
func scalars(n *yaml.Node, path string) []string {
	switch {
	case isNull(n):
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, c := range n.Content {
			all = append(all, scalars(c, path)...)
		}
		return all
	case path == "" && n.Kind == yaml.ScalarNode:
		return []string{n.Value}
	case path != "":
		key, rest, _ := strings.Cut(path, ".")
		return scalars(field(n, key), rest)
	}
	return nil
}

// use finds who tells pl the data, and adds it when it is required and nobody does.
func (p *pickerDocument) use(at string, pl *Plugin, u plugin.Use) {
	if u.Parameter != "" {
		if names := scalars(pl.parameters, u.Parameter); len(names) > 0 && names[0] != "" {
			p.useNamed(at+".parameters."+u.Parameter, pl, u, names[0])
			return
		}
	}
	if by := p.teller(u); by != nil {
		pl.reads = append(pl.reads, reading{u.Data, by})
		return
	}
	e, _ := plugin.Lookup(u.From)
	switch {
	case u.Data == plugin.Topology: // by the usual labels
	case e.Is(plugin.Extractor) && u.Optional:
		p.warn(at, "%s reads %s, which nothing tells: it works without", pl.Name, u.Data)
	case e.Is(plugin.Extractor):
		p.fail(at, "%s reads %s, which nothing tells: %s", pl.Name, u.Data, p.unfed(u.From))
	case e.Is(plugin.Producer) && !u.Optional:
		pl.reads = append(pl.reads, reading{u.Data, p.add(at, pl, u)})
	}
}

// teller is the plugin that tells the data by default: the one named as its type, else the first
// of that type.
func (p *pickerDocument) teller(u plugin.Use) *Plugin {
	if u.Data == plugin.PrefixMatch { // who hears engines knows best
		u.From = cmp.Or(p.declared("precise-prefix-cache-producer"), u.From)
	}
	of := func(match func(*Plugin) bool) *Plugin {
		i := slices.IndexFunc(p.picker.Plugins, func(o *Plugin) bool {
			return o.entry.Tells(u.Data) && match(o) && (!o.entry.Is(plugin.Extractor) || p.fed(o))
		})
		if i < 0 {
			return nil
		}
		return p.picker.Plugins[i]
	}
	if by := of(func(o *Plugin) bool { return o.Name == u.From }); by != nil {
		return by
	}
	return of(func(o *Plugin) bool { return o.Type == u.From || o.entry.ReplacedBy == u.From })
}

// declared is the name of the first plugin of that type that somebody wrote; empty when there is none.
func (p *pickerDocument) declared(typ string) string {
	for _, pl := range p.picker.Plugins {
		if pl.Type == typ && !pl.Implied {
			return pl.Name
		}
	}
	return ""
}

// fed reports whether a source brings an extractor what it reads. Labels need none.
func (p *pickerDocument) fed(extractor *Plugin) bool {
	return extractor.entry.Tells(plugin.Topology) || slices.ContainsFunc(p.picker.Sources, func(s Source) bool { return slices.Contains(s.Extractors, extractor) })
}

// unfed says what to do so that an extractor works.
func (p *pickerDocument) unfed(typ string) string {
	source := strings.Replace(strings.Replace(typ, "extractor", "data-source", 1), "core-", "", 1)
	if dl := p.spec.DataLayer; dl != nil && dl.InjectDefaults != nil && !*dl.InjectDefaults {
		return "dataLayer.injectDefaults is false and no source has the extractor " + typ
	}
	return "want the extractor " + typ + " with the source " + source + " under dataLayer.sources"
}

// useNamed finds the plugin that a parameter names.
func (p *pickerDocument) useNamed(at string, pl *Plugin, u plugin.Use, name string) {
	i := slices.IndexFunc(p.picker.Plugins, func(o *Plugin) bool { return o.Name == name })
	switch {
	case i >= 0 && (p.picker.Plugins[i].entry.Tells(u.Data) || len(p.picker.Plugins[i].entry.Roles) == 0):
		pl.reads = append(pl.reads, reading{u.Data, p.picker.Plugins[i]})
	case i >= 0:
		p.fail(at, "%s does not tell %s: want %s", name, u.Data, p.tellers(u.Data))
	case name != u.From:
		p.fail(at, "no plugin is named %q: want %s", short(name), p.tellers(u.Data))
	case !u.Optional:
		pl.reads = append(pl.reads, reading{u.Data, p.add(at, pl, u)})
	}
}

// tellers names those who can tell the data: the declared plugins, else the types.
func (p *pickerDocument) tellers(d plugin.Data) string {
	var names []string
	for _, pl := range p.picker.Plugins {
		if pl.entry.Tells(d) {
			names = append(names, pl.Name)
		}
	}
	if len(names) > 0 {
		return strings.Join(names, " or ")
	}
	for _, e := range plugin.Catalogue() {
		if e.Tells(d) && e.Stability != plugin.Deprecated {
			names = append(names, e.Type)
		}
	}
	return "a plugin of the type " + strings.Join(names, " or ")
}

// add implies the plugin that tells the data, with its default parameters.
func (p *pickerDocument) add(at string, pl *Plugin, u plugin.Use) *Plugin {
	by := p.imply(u.From)
	if pl.Type == "precise-prefix-cache-scorer" {
		by.parameters, by.decode = pl.parameters, pl.decode // it used to tell itself what it reads
	}
	if !pl.Implied {
		state := ""
		if !by.Active {
			state = ", which is not active yet"
		}
		p.problem(Note, at, "%s reads %s, so %s is added%s", pl.Name, u.Data, by.Name, state)
	}
	return by
}

// inOrder sorts producers so that each comes after those that it reads, and otherwise stays where
// it was. No two read each other: the catalogue has no circle.
func inOrder(producers []*Plugin) []*Plugin {
	sorted := make([]*Plugin, 0, len(producers))
	var visit func(*Plugin)
	visit = func(pl *Plugin) {
		if slices.Contains(sorted, pl) || !slices.Contains(producers, pl) {
			return
		}
		for _, r := range pl.reads {
			visit(r.by)
		}
		sorted = append(sorted, pl)
	}
	for _, pl := range producers {
		visit(pl)
	}
	return sorted
}
