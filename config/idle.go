// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"

	"github.com/penstock-project/penstock/plugin"
)

// places tell where a plugin of a role must be referred to, so that it does something.
var places = map[plugin.Role]string{
	plugin.Filter: "no profile refers to it", plugin.Scorer: "no profile refers to it", plugin.Picker: "no profile refers to it",
	plugin.Decider:    "no profile handler refers to it",
	plugin.Parser:     "requestHandler.parsers does not refer to it",
	plugin.Source:     "dataLayer.sources does not refer to it",
	plugin.Extractor:  "no source under dataLayer.sources refers to it",
	plugin.Discovery:  "dataLayer.discovery does not refer to it",
	plugin.Detector:   "flowControl.saturationDetector does not refer to it",
	plugin.Fairness:   "no band of flowControl refers to it",
	plugin.Ordering:   "no band of flowControl refers to it",
	plugin.UsageLimit: "flowControl.usageLimitPolicyPluginRef does not refer to it",
}

// idle warns of declared plugins that do nothing.
func (p *pickerDocument) idle() {
	for i, pl := range p.picker.Plugins {
		if pl.Implied || len(pl.entry.Roles) == 0 {
			continue
		}
		if why := places[pl.entry.Roles[0]]; why != "" && !pl.placed && !(pl.entry.Tells(plugin.Topology) && p.read(pl)) {
			p.warn(index("plugins", i), "%s has no effect: %s", pl.Name, why)
		}
		if pl.entry.Tells(plugin.PrefixMatch) && !p.read(pl) {
			p.warn(index("plugins", i), "nobody reads what %s tells: write prefixMatchInfoProducerName: %s in the parameters of who is to", pl.Name, pl.Name)
		}
		if pl.Type == "precise-prefix-cache-scorer" {
			p.precise(index("plugins", i), pl)
		}
	}
	if h := p.picker.Handler; h != nil && !h.Active {
		at := index("plugins", slices.Index(p.picker.Plugins, h))
		alone := ""
		if len(p.picker.Profiles) > 1 {
			alone = fmt.Sprintf(": the profile %s serves alone", p.picker.Deciding()[0].Name)
		}
		if !h.Implied {
			p.warn(at, "accepted, not active yet: %s%s", h.Type, alone)
		}
	}
}

func (p *pickerDocument) read(producer *Plugin) bool {
	return slices.ContainsFunc(p.picker.Plugins, func(o *Plugin) bool {
		return slices.ContainsFunc(o.reads, func(r reading) bool { return r.by == producer })
	})
}

// precise checks the scorer that was its own producer: beside one it is a prefix-cache-scorer.
func (p *pickerDocument) precise(at string, scorer *Plugin) {
	var producers []string
	for _, pl := range p.picker.Plugins {
		if pl.Type == "precise-prefix-cache-producer" && !pl.Implied {
			producers = append(producers, pl.Name)
		}
	}
	switch {
	case len(producers) > 1:
		p.fail(at, "%s can read %s or %s: write type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: %s}", scorer.Name, producers[0], producers[1], producers[0])
	case len(producers) == 1 && !isNull(scorer.parameters):
		p.warn(at+".parameters", "have no effect beside %s, which %s reads", producers[0], scorer.Name)
	}
}
