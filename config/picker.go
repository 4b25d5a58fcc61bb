// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// fieldsDefault is what decides in the field when nobody wrote an EndpointPickerConfig; see [Options.Default].
const fieldsDefault = `
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
`

// pickerDocument is an EndpointPickerConfig on its way to a [Picker].
type pickerDocument struct {
	*document
	spec   api.EndpointPickerConfig
	picker *Picker
	v1     bool
}

func readPicker(d *document) {
	p := &pickerDocument{document: d, picker: &Picker{File: d.file, Line: d.root.Line}}
	d.decode(&p.spec)
	p.v1 = p.spec.APIVersion == "llm-d.ai/v1"
	p.picker.Name, p.picker.Namespace = p.spec.Metadata.Name, p.spec.Metadata.Namespace
	if p.picker.Name != "" {
		d.unique("EndpointPickerConfig", p.picker.Namespace, p.picker.Name)
	}
	p.gates()
	p.plugins()
	p.handler()
	p.profiles()
	p.parsers()
	p.dataLayer()
	p.flowControl()
	p.data()
	p.tooMany()
	p.disaggregation()
	p.byHeader()
	p.idle()
	d.cfg.Pickers = append(d.cfg.Pickers, p.picker)
}

func (p *pickerDocument) gates() {
	g := &p.picker.Gates
	g.HAPopulateNonLeaderDatastore = true
	known := map[string]*bool{"flowControl": &g.FlowControl, "haPopulateNonLeaderDatastore": &g.HAPopulateNonLeaderDatastore}
	names := []string{"flowControl", "haPopulateNonLeaderDatastore"}
	for i, s := range p.spec.FeatureGates {
		at := index("featureGates", i)
		name, value, given := strings.Cut(s, "=")
		gate := known[name]
		switch {
		case gate == nil:
			near := cmp.Or(plugin.Nearest(name, names), strings.Join(names, " or "))
			p.fail(at, "unknown feature gate %q: want %s", short(name), near)
		case given && value != "true" && value != "false":
			p.fail(at, "want %s=true or %s=false, got %q", name, name, short(value))
		default:
			*gate = value != "false"
		}
	}
}

func (p *pickerDocument) plugins() {
	for i, s := range p.spec.Plugins {
		at := index("plugins", i)
		pl := &Plugin{Name: cmp.Or(s.Name, s.Type), Type: s.Type}
		if twice := slices.IndexFunc(p.picker.Plugins, func(o *Plugin) bool { return o.Name == pl.Name }); twice >= 0 && pl.Name != "" {
			p.fail(at, "two plugins are named %s: give one of them another name", short(pl.Name))
		}
		p.picker.Plugins = append(p.picker.Plugins, pl)
		if s.Type == "" {
			p.fail(at+".type", "is missing")
			continue
		}
		p.classify(pl, at)
		p.parameters(pl, s.Parameters.Node, at)
	}
}

// classify looks the type up and says what we think of it.
func (p *pickerDocument) classify(pl *Plugin, at string) {
	e, known := plugin.Lookup(pl.Type)
	if !known && !p.extra(pl.Type) {
		p.fail(at+".type", "%v", plugin.Unknown(short(pl.Type), plugin.Types()))
		return
	}
	pl.entry = e
	pl.Active = byFile(pl.Type) || p.o.Active(pl.Type)
	switch e.Stability {
	case plugin.Deprecated:
		p.warn(at+".type", "%s is deprecated: use %s", pl.Type, e.ReplacedBy)
	case plugin.Alpha:
		p.unproven(at, pl.Type, "an alpha plugin")
	case plugin.Testing:
		p.unproven(at, pl.Type, "for tests only")
	}
	if !pl.Active && !e.Is(plugin.ProfileHandler) {
		p.warn(at, "accepted, not active yet: %s", pl.Type)
	}
}

// unproven tells of a plugin that must be allowed, which is known when all documents are read.
func (p *pickerDocument) unproven(at, typ, why string) {
	p.loader.unproven = append(p.loader.unproven, Problem{
		Severity: Error, File: p.file, Line: line(p.root, at+".type"), Path: at + ".type",
		Text: fmt.Sprintf("%s is %s: say that it is meant with --allow-experimental-plugins, or with spec: {allowExperimentalPlugins: true} in a Penstock document", typ, why),
	})
}

// extra reports a type that is not the field's but this build's own.
func (p *pickerDocument) extra(typ string) bool {
	return p.o.Types != nil && p.o.Types(typ)
}

// parameters keeps what was written for later and, for an active plugin, tries it now.
func (p *pickerDocument) parameters(pl *Plugin, n *yaml.Node, at string) {
	at += ".parameters"
	if !isNull(n) && n.Kind != yaml.MappingNode {
		p.fail(at, "want an object, got %s", got(n))
		return
	}
	file := p.file
	pl.parameters = n
	pl.decode = func(v any) error {
		var ps Problems
		if !isNull(n) {
			strict(n, file, at, v, func(q Problem) { ps = append(ps, q) })
		}
		if len(ps) > 0 {
			return ps
		}
		return nil
	}
	switch {
	case byFile(pl.Type):
		p.discoveryFile(pl, at)
		return
	case pl.Type == "single-profile-handler" && !isNull(n) && len(n.Content) > 0:
		p.warn(at, "have no effect: single-profile-handler takes none, scorers and pickers stand in schedulingProfiles")
		pl.decode = nil
		return
	}
	if !pl.Active || p.o.Validate == nil {
		return
	}
	p.invalid(p.o.Validate(pl.Type, pl.decode), at)
}

var pathOf = regexp.MustCompile(`^([A-Za-z]\w*(?:\[\d+\]|\.[A-Za-z]\w*)*): `)

// invalid reports the error of a plugin. What Validate says begins with a path below at.
func (p *pickerDocument) invalid(err error, at string) {
	var ps Problems
	var inactive Inactive
	joined, several := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
	case errors.As(err, &inactive):
		for _, text := range inactive {
			under, text := below(at, text)
			p.warn(under, "%s", text)
		}
	case errors.As(err, &ps):
		for _, q := range ps {
			p.report(q)
		}
	case several:
		for _, e := range joined.Unwrap() {
			p.invalid(e, at)
		}
	default:
		under, text := below(at, err.Error())
		p.fail(under, "%s", text)
	}
}

// below takes the path off a text that begins with one, and adds it to at.
func below(at, text string) (path, rest string) {
	if m := pathOf.FindStringSubmatch(text); m != nil {
		return at + "." + m[1], text[len(m[0]):]
	}
	return at, text
}

// Inactive is what Options.Validate returns for parameters that are right and have no effect, or are deprecated: a
// path below the parameters and a text each, as in "vllm: accepted, not active yet". They become warnings.
type Inactive []string

// Error implements error.
func (i Inactive) Error() string { return strings.Join(i, "; ") }

// byFile reports the types that name a file of endpoints.
func byFile(typ string) bool { return typ == "file-discovery" || typ == "multicluster-file-discovery" }

func (p *pickerDocument) discoveryFile(pl *Plugin, at string) {
	var f FileDiscovery
	if err := pl.decode(&f); err != nil {
		p.invalid(err, at)
		return
	}
	if f.Path == "" {
		p.fail(at+".path", "is missing: want the file with the list of endpoints")
		return
	}
	f.Path = beside(f.Path, p.abs)
	pl.file = &f
}

// beside makes a path absolute: relative to the working directory or, when nothing is there but
// something is in the folder of file, relative to that.
func beside(path, file string) string {
	abs, err := filepath.Abs(path)
	if err != nil || filepath.IsAbs(path) {
		return path
	}
	if _, err := os.Stat(abs); err != nil && filepath.IsAbs(file) {
		near := filepath.Join(filepath.Dir(file), path)
		if _, err := os.Stat(near); err == nil {
			return near
		}
	}
	return abs
}

// implicit are the plugins that may be referred to without being declared.
var implicit = []string{"fcfs-ordering-policy", "global-strict-fairness-policy", "static-usage-limit-policy", "utilization-detector"}

// ref finds the plugin that name refers to. One with none of the roles is reported with the
// given severity.
func (p *pickerDocument) ref(path, name string, s Severity, roles ...plugin.Role) *Plugin {
	if name == "" {
		p.fail(path, "is missing: want the name of a plugin")
		return nil
	}
	i := slices.IndexFunc(p.picker.Plugins, func(o *Plugin) bool { return o.Name == name })
	if i < 0 && slices.Contains(implicit, name) {
		return p.imply(name)
	}
	if i < 0 {
		p.dangling(path, name)
		return nil
	}
	pl := p.picker.Plugins[i]
	pl.placed = true
	if len(pl.entry.Roles) > 0 && !slices.ContainsFunc(roles, pl.entry.Is) {
		p.problem(s, path, "%s is %s: want %s", name, article(pl.entry.Roles[0]), either(roles))
	}
	return pl
}

func (p *pickerDocument) dangling(path, name string) {
	if slices.Contains(p.wrong, "plugins") {
		return
	}
	var names []string
	for _, pl := range p.picker.Plugins {
		if !pl.Implied {
			names = append(names, pl.Name)
		}
	}
	_, known := plugin.Lookup(name)
	near := plugin.Nearest(name, names)
	switch {
	case known:
		p.fail(path, "no plugin is named %s: declare it with - type: %s under plugins", name, name)
	case near != "":
		p.fail(path, "no plugin is named %q: did you mean %s?", short(name), near)
	default:
		p.fail(path, "no plugin is named %q: plugins declares %s", short(name), cmp.Or(strings.Join(names, ", "), "none"))
	}
}

func article(r plugin.Role) string {
	if strings.ContainsRune("aeio", rune(r[0])) { // but "a usage limit policy"
		return "an " + string(r)
	}
	return "a " + string(r)
}

func either(roles []plugin.Role) string {
	s := article(roles[0])
	for i, r := range roles[1:] {
		if i == len(roles)-2 {
			s += " or " + string(r)
		} else {
			s += ", " + string(r)
		}
	}
	return s
}

// imply finds the plugin of a type that a default wants: the one named as its type, else the first
// declared, else one that is added, with its default parameters.
func (p *pickerDocument) imply(typ string) *Plugin {
	name, taken := typ, false
	for _, pl := range p.picker.Plugins {
		if pl.Name == typ && pl.Type == typ {
			pl.placed = true
			return pl
		}
		taken = taken || pl.Name == typ
	}
	if i := slices.IndexFunc(p.picker.Plugins, func(pl *Plugin) bool { return pl.Type == typ }); i >= 0 {
		p.picker.Plugins[i].placed = true
		return p.picker.Plugins[i]
	}
	if taken {
		name += "-default"
	}
	e, _ := plugin.Lookup(typ)
	pl := &Plugin{Name: name, Type: typ, Active: p.o.Active(typ), Implied: true, entry: e}
	p.picker.Plugins = append(p.picker.Plugins, pl)
	return pl
}
