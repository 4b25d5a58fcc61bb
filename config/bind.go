// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// bind connects the documents: pools with their pickers, objectives and rewrites.
func (l *loader) bind() {
	d := newLoader(Options{Active: l.o.Active})
	for _, root := range parse([]byte(cmp.Or(l.o.Default, fieldsDefault)), "", d.report) {
		d.document(&document{loader: d, root: root})
	}
	l.cfg.fallback = d.cfg.Pickers[0]
	l.cfg.fallback.Line = 0
	l.unnamed()
	if !l.o.Experimental && !l.cfg.Penstock.AllowExperimentalPlugins {
		for _, p := range l.unproven {
			if !l.o.Refuse {
				p.Severity = Warning
			}
			l.report(p)
		}
	}
	for _, p := range l.cfg.Pools {
		p.Picker = l.cfg.PickerFor(p.Namespace, p.PickerRef)
		p.Objectives = map[string]int{}
		if p.Picker == l.cfg.fallback && slices.ContainsFunc(l.cfg.Pickers, func(p *Picker) bool { return !p.own }) {
			text := fmt.Sprintf("no EndpointPickerConfig is named %q: the default decides for pool %s", p.PickerRef, p.Name)
			if p.PickerRef == "" {
				text = fmt.Sprintf("is missing while there are %d EndpointPickerConfigs with names: the default decides for pool %s", len(l.cfg.Pickers), p.Name)
			}
			l.report(Problem{Severity: Warning, File: p.File, Line: p.Line, Path: "spec.endpointPickerRef.name", Text: text})
		}
	}
	for _, o := range l.cfg.Objectives {
		l.objective(o)
	}
	l.rewrites()
	for _, p := range l.pods {
		entries := p.endpoints(l.cfg.Pools)
		p.endpointFile().add(EndpointFile{Entries: entries})
	}
}

// unnamed reports several pickers that could each be the one for all. When files are only
// checked they need not belong together.
func (l *loader) unnamed() {
	var first *Picker
	for _, p := range l.cfg.Pickers {
		switch {
		case p.Name != "":
		case first == nil:
			first = p
		case !l.partial:
			l.report(Problem{Severity: Error, File: p.File, Line: p.Line, Path: "metadata.name",
				Text: fmt.Sprintf("is missing, as at %s: of several configurations each needs the endpointPickerRef.name of its pool", place{first.File, first.Line})})
		}
	}
}

// PickerFor is the configuration that decides for a pool of that namespace whose
// endpointPickerRef.name is ref: the one of that name, else the one without a name, else the
// only one, unless that is of a ConfigMap for pools that name it, else the default.
func (c *Config) PickerFor(namespace, ref string) *Picker {
	here := func(p *Picker) bool { return p.Namespace == "" || p.Namespace == namespace }
	if i := slices.IndexFunc(c.Pickers, func(p *Picker) bool { return p.Name != "" && p.Name == ref && here(p) }); i >= 0 {
		return c.Pickers[i]
	}
	if i := slices.IndexFunc(c.Pickers, func(p *Picker) bool { return p.Name == "" }); i >= 0 {
		return c.Pickers[i]
	}
	if len(c.Pickers) == 1 && !c.Pickers[0].own {
		return c.Pickers[0]
	}
	return c.fallback
}

// objective gives an objective to its pools. One without a namespace takes theirs.
func (l *loader) objective(o Objective) {
	found := map[string]bool{}
	for _, p := range l.cfg.Pools {
		named := slices.Contains(o.PoolRefs, p.Name)
		if cmp.Or(o.Namespace, p.Namespace) != p.Namespace || !named && (o.PoolSelector == nil || !o.PoolSelector.Matches(p.Labels)) {
			continue
		}
		if named {
			found[p.Name] = true
		}
		if other, twice := p.Objectives[o.Name]; twice && other != o.Priority {
			l.report(Problem{Severity: Error, File: o.File, Line: o.Line, Path: "metadata.name",
				Text: fmt.Sprintf("pool %s has an objective %s of priority %d already", p.Name, o.Name, other)})
		}
		p.Objectives[o.Name] = o.Priority
	}
	var lost []string
	for _, name := range o.PoolRefs {
		if !found[name] {
			lost = append(lost, name)
		}
	}
	if len(lost) > 0 {
		l.elsewhere(o.File, o.Line, "objective "+o.Name, lost)
	}
}

// elsewhere reports pools that an object names and that are not here.
func (l *loader) elsewhere(file string, line int, who string, lost []string) {
	l.report(Problem{Severity: Warning, File: file, Line: line, Path: "spec", Elsewhere: true,
		Text: fmt.Sprintf("%s names %s, which is not among the pools here", who, strings.Join(lost, ", "))})
}

// rewrites gives the rules of rewrites to their pools. Of rules for one model the first counts: that of
// the older object, those without a creation time being the youngest; then by namespace and name of the
// object; then in the order of its rules.
func (l *loader) rewrites() {
	slices.SortStableFunc(l.cfg.Rewrites, func(a, b Rewrite) int {
		if a.Created.IsZero() != b.Created.IsZero() {
			if a.Created.IsZero() {
				return 1
			}
			return -1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range l.cfg.Rewrites {
		l.rewrite(&l.cfg.Rewrites[i])
	}
}

// rewrite gives a rewrite's rules to its pools. One without a namespace takes theirs.
func (l *loader) rewrite(w *Rewrite) {
	lost := slices.Clone(w.PoolRefs)
	for _, p := range l.cfg.Pools {
		if cmp.Or(w.Namespace, p.Namespace) != p.Namespace || !slices.Contains(w.PoolRefs, p.Name) {
			continue
		}
		lost = slices.DeleteFunc(lost, func(name string) bool { return name == p.Name })
		for i, r := range w.Rules {
			if r = l.unclaimed(w, p, i); len(r.Models) > 0 || r.All {
				p.Rewrites = append(p.Rewrites, r)
			}
		}
	}
	if len(lost) > 0 {
		l.elsewhere(w.File, w.Line, "rewrite "+w.Name, lost)
	}
}

// unclaimed is what an earlier rule of the pool leaves of the i-th rule, and says when that is less.
func (l *loader) unclaimed(w *Rewrite, p *Pool, i int) RewriteRule {
	r := w.Rules[i]
	models := r.Models
	r.Models = nil
	claimed := func(what string, by func(RewriteRule) bool) bool {
		k := slices.IndexFunc(p.Rewrites, by)
		if k >= 0 {
			l.report(Problem{Severity: Warning, File: w.File, Line: r.Line, Path: index("spec.rules", i),
				Text: fmt.Sprintf("never decides on %s to pool %s: an earlier rule, of %s, does", what, p.Name, p.Rewrites[k].Name)})
		}
		return k >= 0
	}
	for _, m := range models {
		if !slices.Contains(r.Models, m) && !claimed(fmt.Sprintf("requests for %q", short(m)), func(o RewriteRule) bool { return slices.Contains(o.Models, m) }) {
			r.Models = append(r.Models, m)
		}
	}
	r.All = r.All && !claimed("requests for all models", func(o RewriteRule) bool { return o.All })
	return r
}
