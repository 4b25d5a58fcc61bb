// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// flatKeys are the keys of disagg-profile-handler from before it had profiles and deciders, each
// with its place there. Of two with one place the first is the newer.
var flatKeys = [...]struct{ old, group, key string }{
	{"decodeProfile", "profiles", "decode"},
	{"prefillProfile", "profiles", "prefill"},
	{"encodeProfile", "profiles", "encode"},
	{"prefillDeciderPluginName", "deciders", "prefill"},
	{"deciderPluginName", "deciders", "prefill"},
	{"encodeDeciderPluginName", "deciders", "encode"},
}

// stage is a leg of disaggregated serving as a handler's parameters have it; the paths are empty for
// what is not written.
type stage struct {
	name               string
	profile, profileAt string
	decider, deciderAt string
}

// disaggregation checks what a handler for separate prefill and encode refers to.
func (p *pickerDocument) disaggregation() {
	h := p.picker.Handler
	if h == nil || h.Type != "disagg-profile-handler" && h.Type != "pd-profile-handler" {
		return
	}
	at := index("plugins", slices.Index(p.picker.Plugins, h))
	stages := []*stage{{name: "decode"}, {name: "prefill"}, {name: "encode"}}
	for _, s := range stages {
		s.fill(h.parameters, at+".parameters")
	}
	p.flat(h, at+".parameters", stages)
	if pd := "prefix-based-pd-decider"; h.Type == "pd-profile-handler" && stages[1].decider == "" {
		if slices.ContainsFunc(p.picker.Plugins, func(pl *Plugin) bool { return pl.Name == pd }) {
			stages[1].decider, stages[1].deciderAt = pd, at
		}
	}
	for _, s := range stages[1:] {
		if s.decider != "" {
			p.ref(s.deciderAt, s.decider, Error, plugin.Decider)
		}
	}
	if len(p.spec.SchedulingProfiles) > 0 {
		p.stages(h, at, stages)
	}
}

// fill reads the stage from a handler's profiles and deciders.
func (s *stage) fill(parameters *yaml.Node, at string) {
	s.profile = s.name
	if name := text(field(parameters, "profiles"), s.name); name != "" {
		s.profile, s.profileAt = name, at+".profiles."+s.name
	}
	if name := text(field(parameters, "deciders"), s.name); name != "" {
		s.decider, s.deciderAt = name, at+".deciders."+s.name
	}
}

// flat reads the old keys, which may not stand beside the new ones.
func (p *pickerDocument) flat(h *Plugin, at string, stages []*stage) {
	nested := field(h.parameters, "profiles") != nil || field(h.parameters, "deciders") != nil
	for _, k := range flatKeys {
		name := text(h.parameters, k.old)
		switch {
		case field(h.parameters, k.old) == nil:
			continue
		case nested:
			p.fail(at+"."+k.old, "belongs to the form without profiles and deciders: write %s: {%s: %s}", k.group, k.key, short(name))
			continue
		case h.Type == "disagg-profile-handler":
			p.warn(at+"."+k.old, "is deprecated: write %s: {%s: %s}", k.group, k.key, short(name))
		}
		s := stages[slices.IndexFunc(stages, func(s *stage) bool { return s.name == k.key })]
		switch {
		case name == "":
		case k.group == "profiles":
			s.profile, s.profileAt = name, at+"."+k.old
		case s.decider == "":
			s.decider, s.deciderAt = name, at+"."+k.old
		}
	}
}

// stages checks the profiles of a handler's stages against those there are.
func (p *pickerDocument) stages(h *Plugin, at string, stages []*stage) {
	for _, s := range stages {
		if slices.ContainsFunc(p.spec.SchedulingProfiles, func(o api.SchedulingProfile) bool { return o.Name == s.profile }) {
			continue
		}
		switch {
		case s.name == "decode":
			p.fail(cmp.Or(s.profileAt, at), "%s needs a profile for decode: schedulingProfiles has none named %s", h.Name, short(s.profile))
		case s.profileAt != "":
			p.warn(s.profileAt, "schedulingProfiles has none named %s: no request has a separate %s", short(s.profile), s.name)
		case s.decider != "":
			p.warn(s.deciderAt, "has no effect: schedulingProfiles has none named %s", s.profile)
		}
	}
	for i, o := range p.spec.SchedulingProfiles {
		if o.Name != "" && !slices.ContainsFunc(stages, func(s *stage) bool { return s.profile == o.Name }) {
			p.warn(index("schedulingProfiles", i), "%s never runs this profile: it runs %s, %s and %s", h.Name, stages[0].profile, stages[1].profile, stages[2].profile)
		}
	}
}
