// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/plugin"
)

// Migrate rewrites what is deprecated in a file to what took its place, with the same meaning; all
// else stays as it is, to the byte. Warnings tell what must be rewritten by hand, and why. With an
// error the text is returned as it was.
func Migrate(name, text string) (string, []Problem) {
	var ps []Problem
	parse([]byte(text), name, func(p Problem) { ps = append(ps, p) })
	if len(ps) > 0 {
		return text, ps
	}
	was := text
	for range maxPasses {
		m := migration{editor: newEditor(text), file: name}
		for _, root := range raw(text) {
			m.document(root)
		}
		ps = m.left
		slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		if len(m.edits) == 0 {
			return text, ps
		}
		text = m.apply()
		if len(raw(text)) != len(raw(was)) {
			break // which would be a mistake of ours: better no change than a wrong one
		}
	}
	return was, append(ps, Problem{Severity: Warning, File: name, Text: "must be migrated by hand: it is not written in a way that can be changed safely"})
}

// maxPasses bounds how often a file is rewritten: a change may make another one possible.
const maxPasses = 8

// raw are the documents with all that was written, aliases and comments among it.
func raw(text string) []*yaml.Node {
	var docs []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		var n yaml.Node
		if dec.Decode(&n) != nil { // at the end, too
			return docs
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
			docs = append(docs, n.Content[0])
		}
	}
}

// migration is one pass over a file.
type migration struct {
	*editor
	file string
	left []Problem
	root *yaml.Node
}

// step makes a change or says why it must be made by hand.
func (m *migration) step(at *yaml.Node, what string, change func() bool) bool {
	if m.try(change) {
		return true
	}
	m.byHand(at, what, "it is not written in a way that can be changed safely")
	return false
}

func (m *migration) byHand(at *yaml.Node, what, why string) {
	m.left = append(m.left, Problem{Severity: Warning, File: m.file, Line: at.Line, Text: what + " must be migrated by hand: " + why})
}

// keyAt is the position of a key in an object, -1 for none.
func keyAt(n *yaml.Node, key string) int {
	if n == nil || n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// gone are kinds of the old group whose objects today say other things.
var gone = map[string]string{
	"InferencePool":  "write inference.networking.k8s.io/v1, the selector under selector.matchLabels, targetPortNumber as targetPorts, extensionRef as endpointPickerRef",
	"InferenceModel": "its criticality is an InferenceObjective's priority, its targetModels are an InferenceModelRewrite's targets",
}

func (m *migration) document(root *yaml.Node) {
	if items := field(root, "items"); strings.HasSuffix(text(root, "kind"), "List") && items != nil && items.Kind == yaml.SequenceNode {
		for _, item := range items.Content {
			m.document(item)
		}
		return
	}
	if why := gone[text(root, "kind")]; why != "" && strings.HasPrefix(text(root, "apiVersion"), "inference.networking.x-k8s.io/") {
		m.byHand(root, text(root, "kind"), why)
		return
	}
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == text(root, "kind") })
	if i < 0 {
		return
	}
	k := all[i]
	was := slices.Index(k.versions, text(root, "apiVersion"))
	if was < 0 {
		return
	}
	m.root = root
	old := was >= k.current || k.name == "InferenceObjective" && was > 0
	whole := true
	switch k.name {
	case "InferenceObjective":
		whole = !old || m.poolRefs()
	case "EndpointPickerConfig":
		m.picker()
	case "InferencePool":
		m.pickerPort()
	case "Pod":
		m.annotations()
	}
	if old && whole {
		m.step(root, "apiVersion", func() bool { return m.set(field(root, "apiVersion"), k.versions[0]) })
	}
}

// poolRefs makes a list of v1alpha2's poolRef.
func (m *migration) poolRefs() bool {
	spec := field(m.root, "spec")
	i := keyAt(spec, "poolRef")
	if i < 0 {
		return false // which is an error in either version
	}
	ref := m.again(spec.Content[i+1])
	return m.step(spec.Content[i], "poolRef", func() bool {
		return ref != "" && keyAt(spec, "poolRefs") < 0 && m.put(spec, i, "poolRefs", m.list(ref))
	})
}

// pickerPort writes a port as an API server wants it.
func (m *migration) pickerPort() {
	ref := field(field(m.root, "spec"), "endpointPickerRef")
	if i := keyAt(ref, "port"); i >= 0 && ref.Content[i+1].ShortTag() == "!!int" {
		n := ref.Content[i+1]
		m.step(n, "port", func() bool { return m.put(ref, i, "port", m.object("number", n.Value)) })
	}
}

// annotations renames those of pods.
func (m *migration) annotations() {
	const before, after = "inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"
	all := field(field(m.root, "metadata"), "annotations")
	if i := keyAt(all, before); i >= 0 && keyAt(all, after) < 0 {
		m.step(all.Content[i], before, func() bool { return m.set(all.Content[i], after) })
	}
}

// picker migrates an EndpointPickerConfig.
func (m *migration) picker() {
	if i := keyAt(m.root, "parser"); i >= 0 {
		m.step(m.root.Content[i], "parser", func() bool { return m.parser(i) })
	}
	if i := keyAt(m.root, "saturationDetector"); i >= 0 {
		m.step(m.root.Content[i], "saturationDetector", func() bool {
			return m.move(m.root, i, m.root, "flowControl", "saturationDetector")
		})
	}
	if dl := field(m.root, "dataLayer"); dl != nil && dl.Kind == yaml.MappingNode {
		m.dataLayer(dl)
	}
	if list := field(m.root, "plugins"); list != nil && list.Kind == yaml.SequenceNode {
		for i, pl := range list.Content {
			if pl.Kind == yaml.MappingNode {
				m.plugin(list, i, pl)
			}
		}
	}
}

func (m *migration) parser(i int) bool {
	ref := m.again(m.root.Content[i+1])
	k := keyAt(m.root, "requestHandler")
	if ref == "" {
		return false
	}
	if k < 0 {
		return m.put(m.root, i, "requestHandler", m.object("parsers", m.list(ref)))
	}
	handler := m.root.Content[k+1]
	switch list := field(handler, "parsers"); {
	case isNull(handler):
		return m.put(m.root, k, "requestHandler", m.object("parsers", m.list(ref))) && m.drop(m.root, i)
	case handler.Kind != yaml.MappingNode:
		return false
	case list == nil:
		return m.add(handler, "parsers", m.list(ref)) && m.drop(m.root, i)
	case list.Kind != yaml.SequenceNode:
		return false
	case len(list.Content) == 0:
		return m.put(handler, keyAt(handler, "parsers"), "parsers", m.list(ref)) && m.drop(m.root, i)
	default:
		return m.before(list, ref) && m.drop(m.root, i)
	}
}

// move takes the pair at i of an object to group.key of parent, under which its value stays as it is.
func (m *migration) move(from *yaml.Node, i int, parent *yaml.Node, group, key string) bool {
	value := m.again(from.Content[i+1])
	k := keyAt(parent, group)
	switch {
	case value == "":
		return false
	case k < 0 && from == parent:
		return m.put(from, i, group, m.object(key, value))
	case k < 0:
		return false
	case isNull(parent.Content[k+1]):
		return m.put(parent, k, group, m.object(key, value)) && m.drop(from, i)
	case parent.Content[k+1].Kind != yaml.MappingNode || keyAt(parent.Content[k+1], key) >= 0:
		return false
	case len(parent.Content[k+1].Content) == 0:
		return m.put(parent, k, group, m.object(key, value)) && m.drop(from, i)
	}
	return m.add(parent.Content[k+1], key, value) && m.drop(from, i)
}

func (m *migration) dataLayer(dl *yaml.Node) {
	if d := field(dl, "discovery"); keyAt(d, "pluginRef") >= 0 {
		i := keyAt(d, "pluginRef")
		m.step(d.Content[i], "dataLayer.discovery.pluginRef", func() bool {
			ref := m.again(d.Content[i+1])
			return ref != "" && keyAt(d, "endpoints") < 0 && m.put(d, i, "endpoints", m.object("pluginRef", ref))
		})
	}
	if i := keyAt(dl, "peerDiscovery"); i >= 0 {
		m.step(dl.Content[i], "dataLayer.peerDiscovery", func() bool { return m.move(dl, i, dl, "discovery", "peers") })
	}
	// A pass moves one of them: the other then finds the place.
	for _, k := range [][2]string{{"crossReplicaSyncerPluginRef", "syncerPluginRef"}, {"crossReplicaSyncInterval", "syncInterval"}} {
		if i := keyAt(dl, k[0]); i >= 0 {
			m.step(dl.Content[i], "dataLayer."+k[0], func() bool { return m.move(dl, i, dl, "crossReplica", k[1]) })
			return
		}
	}
}

// plugin migrates a declaration. One change of a pass can stand in the way of another.
func (m *migration) plugin(list *yaml.Node, i int, pl *yaml.Node) {
	typ := text(pl, "type")
	e, _ := plugin.Lookup(typ)
	params := field(pl, "parameters")
	var change func() bool
	why := ""
	m.outdated(typ, pl, params)
	switch typ {
	case "by-label-selector":
		change = func() bool { return m.retype(pl, "label-selector-filter", true) }
	case "tokenizer":
		change = func() bool { return m.retype(pl, e.ReplacedBy, false) }
	case "by-label":
		change, why = m.byLabel(pl, params)
	case "precise-prefix-cache-scorer":
		change, why = m.precise(list, i, pl, params)
	case "pd-profile-handler":
		change, why = m.pd(list, pl, params)
	case "disagg-headers-handler", "prefill-header-handler":
		change, why = m.headers(list, i, pl, params)
	case "disagg-profile-handler":
		if !slices.ContainsFunc(flatKeys[:], func(k struct{ old, group, key string }) bool { return keyAt(params, k.old) >= 0 }) {
			return
		}
		change, why = m.nest(pl, params)
	default:
		return
	}
	if why != "" {
		m.byHand(pl, typ, why)
		return
	}
	m.step(pl, typ, change)
}

// outdated takes out parameters that have no effect any more, one of each in a pass. A block size in characters
// counts where the one in tokens is 0.
func (m *migration) outdated(typ string, pl, params *yaml.Node) {
	var keys []string
	switch typ {
	case "no-hit-lru-scorer":
		keys = []string{"prefixPluginType", "prefixPluginName"}
	case "active-request-scorer":
		keys = []string{"requestTimeout"}
	case "approx-prefix-cache-producer", "multicluster-approx-prefix-cache-producer":
		keys = []string{"blockSize"}
	}
	for _, key := range keys {
		i := keyAt(params, key)
		if i < 0 {
			continue
		}
		at := params.Content[i]
		characters, err := strconv.Atoi(params.Content[i+1].Value)
		tokens := keyAt(params, "blockSizeTokens")
		switch {
		case key != "blockSize" || err != nil || characters <= 0 || tokens < 0 || params.Content[tokens+1].Value != "0":
			m.step(at, key, func() bool {
				if len(params.Content) == 2 {
					return m.drop(pl, keyAt(pl, "parameters"))
				}
				return m.drop(params, i)
			})
		default:
			m.step(at, key, func() bool {
				return m.put(params, tokens, "blockSizeTokens", strconv.Itoa(max(1, characters/4))) && m.drop(params, i)
			})
		}
		return
	}
}

// retype changes a declaration's type. It keeps the name, if there is need of one.
func (m *migration) retype(pl *yaml.Node, typ string, named bool) bool {
	i := keyAt(pl, "type")
	was := pl.Content[i+1].Value
	if text(pl, "name") != "" || !named && !mentioned(m.root, was, pl) {
		return m.set(pl.Content[i+1], typ)
	}
	from, ok := m.start(pl.Content[i])
	between, plain := m.indent(max(from, 0))
	if pl.Style&yaml.FlowStyle != 0 {
		between, plain = ", ", true
	}
	name := m.word("name") + ": " + m.word(was) + between
	return ok && plain && keyAt(pl, "name") < 0 && m.replace(from, from, name) && m.set(pl.Content[i+1], typ)
}

// mentioned reports whether a text is a value anywhere but in except.
func mentioned(n *yaml.Node, value string, except *yaml.Node) bool {
	if n == except {
		return false
	}
	return n.Kind == yaml.ScalarNode && n.Value == value ||
		slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return mentioned(c, value, except) })
}

// parameters replaces a declaration's parameters.
func (m *migration) parameters(pl *yaml.Node, value string) bool {
	if i := keyAt(pl, "parameters"); i >= 0 {
		return m.put(pl, i, "parameters", value)
	}
	return m.add(pl, "parameters", value)
}

// byLabel finds the selector that says what one label and its values say.
func (m *migration) byLabel(pl, params *yaml.Node) (func() bool, string) {
	label, without := text(params, "label"), text(params, "allowsNoLabel") == "true"
	var values []string
	if list := field(params, "validValues"); list != nil && list.Kind == yaml.SequenceNode {
		for _, c := range list.Content {
			values = append(values, m.word(c.Value))
		}
	}
	decode := []string{"both", "decode", "encode-prefill-decode", "prefill-decode"}
	requirement := []string{"key", m.word(label), "operator", m.word("In"), "values", m.list(values...)}
	switch sorted := slices.Sorted(slices.Values(values)); {
	case label == "":
		return nil, "its parameters name no label"
	case label == "llm-d.ai/role" && without && slices.Equal(sorted, decode):
		return func() bool {
			i := keyAt(pl, "parameters")
			return m.retype(pl, "decode-filter", true) && m.drop(pl, i)
		}, ""
	case without && len(values) > 0:
		return nil, "no selector says that a label may be absent or one of several values; give the endpoints the label"
	case without:
		requirement = []string{"key", m.word(label), "operator", m.word("DoesNotExist")}
	case len(values) == 0:
		return nil, "without validValues it keeps no endpoint"
	}
	return func() bool {
		return m.retype(pl, "label-selector-filter", true) &&
			m.parameters(pl, m.object("matchExpressions", m.list(m.object(requirement...))))
	}, ""
}

// precise makes a prefix-cache-scorer of the one that was its own producer, and a producer if there
// is none.
func (m *migration) precise(list *yaml.Node, i int, pl, params *yaml.Node) (func() bool, string) {
	const producer, scorer = "precise-prefix-cache-producer", "prefix-cache-scorer"
	var names []string
	for _, o := range list.Content {
		if text(o, "type") == producer {
			names = append(names, cmp.Or(text(o, "name"), producer))
		}
	}
	of := func(name string) string { return m.object("prefixMatchInfoProducerName", m.word(name)) }
	switch {
	case len(names) > 1:
		return nil, "it does not say which producer it reads"
	case len(names) == 1:
		return func() bool { return m.retype(pl, scorer, true) && m.parameters(pl, of(names[0])) }, ""
	case field(field(params, "indexerConfig"), "tokenizersPoolConfig") != nil:
		return nil, "a producer has no indexerConfig.tokenizersPoolConfig: tokens come from token-producer"
	case mentioned(m.root, producer, nil):
		return nil, "the name " + producer + " is taken"
	}
	return func() bool {
		name := cmp.Or(text(pl, "name"), text(pl, "type"))
		if k := keyAt(pl, "name"); k >= 0 && !m.set(pl.Content[k+1], producer) {
			return false
		}
		item := m.object("name", m.word(name), "type", m.word(scorer), "parameters", of(producer))
		return m.set(field(pl, "type"), producer) && m.after(list, i, item)
	}, ""
}

// pd makes a disagg-profile-handler of its predecessor.
func (m *migration) pd(list, pl, params *yaml.Node) (func() bool, string) {
	const decider = "prefix-based-pd-decider"
	if by := text(params, "prefixMatchInfoProducerName"); by != "" && by != "approx-prefix-cache-producer" {
		return nil, "disagg-profile-handler has no prefixMatchInfoProducerName"
	}
	if port := text(params, "primaryPort"); port != "" && port != "0" {
		return nil, "disagg-profile-handler has no primaryPort"
	}
	name := cmp.Or(text(params, "deciderPluginName"), decider)
	if !slices.ContainsFunc(list.Content, func(o *yaml.Node) bool { return cmp.Or(text(o, "name"), text(o, "type")) == name }) {
		return nil, "no plugin is named " + name + ": declare the decider"
	}
	value, why := m.nested(params, "prefixMatchInfoProducerName", "primaryPort", "deciderPluginName")
	if why != "" {
		return nil, why
	}
	value = append(value, "deciders", m.object("prefill", m.word(name)))
	return func() bool {
		return m.retype(pl, "disagg-profile-handler", false) && m.parameters(pl, m.object(value...))
	}, ""
}

// nest gives a disagg-profile-handler's flat parameters their form of today.
func (m *migration) nest(pl, params *yaml.Node) (func() bool, string) {
	if keyAt(params, "profiles") >= 0 || keyAt(params, "deciders") >= 0 {
		return nil, "it has both forms of parameters"
	}
	value, why := m.nested(params)
	if why != "" {
		return nil, why
	}
	return func() bool { return m.parameters(pl, m.object(value...)) }, ""
}

// nested are the keys and values of parameters with profiles and deciders in place of the flat keys.
func (m *migration) nested(params *yaml.Node, without ...string) ([]string, string) {
	var pairs []string
	groups, have := map[string][]string{}, map[[2]string]bool{}
	for _, k := range flatKeys {
		name := text(params, k.old)
		place := [2]string{k.group, k.key}
		if name == "" || slices.Contains(without, k.old) || have[place] {
			continue
		}
		have[place] = true
		groups[k.group] = append(groups[k.group], k.key, m.word(name))
	}
	if params != nil && params.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(params.Content); i += 2 {
			key := params.Content[i].Value
			if slices.Contains(without, key) || slices.ContainsFunc(flatKeys[:], func(k struct{ old, group, key string }) bool { return k.old == key }) {
				continue
			}
			value := m.again(params.Content[i+1])
			if value == "" {
				return nil, "its parameter " + key + " is not a plain value"
			}
			pairs = append(pairs, key, value)
		}
	}
	for _, g := range []string{"profiles", "deciders"} {
		if len(groups[g]) > 0 {
			pairs = append(pairs, g, m.object(groups[g]...))
		}
	}
	return pairs, ""
}

// headers drops a plugin that writes the headers which disagg-profile-handler writes itself.
func (m *migration) headers(list *yaml.Node, i int, pl, params *yaml.Node) (func() bool, string) {
	k := slices.IndexFunc(list.Content, func(o *yaml.Node) bool { return text(o, "type") == "disagg-profile-handler" })
	name := cmp.Or(text(pl, "name"), text(pl, "type"))
	if k < 0 {
		return nil, "disagg-profile-handler writes these headers, and there is none"
	}
	profiles := field(field(list.Content[k], "parameters"), "profiles")
	for _, s := range []string{"prefill", "encode"} {
		if mine, its := cmp.Or(text(params, s+"Profile"), s), cmp.Or(text(profiles, s), s); mine != its {
			return nil, fmt.Sprintf("its %s profile is %s, and that of disagg-profile-handler %s", s, mine, its)
		}
	}
	if mentioned(m.root, name, pl) {
		return nil, "something refers to " + name
	}
	return func() bool { return m.remove(list, i) }, ""
}
