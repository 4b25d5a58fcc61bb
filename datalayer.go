// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"slices"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/source/scrape"
)

// scrapePlan is what a picker's dataLayer says to poll. Sources that are not polled are no matter here.
//
// What is not listed is added by type: metrics and models, unless injectDefaults is false. A plugin
// of the type that was declared and not listed is taken for it, and so a source under another name is
// not polled twice. A source that is listed without extractors has that of its kind.
func scrapePlan(p *config.Picker) (*scrape.Plan, error) {
	b := planner{picker: p, inject: true, have: map[string]bool{}}
	if dl := p.DataLayer; dl != nil {
		b.inject = dl.InjectDefaults == nil || *dl.InjectDefaults
		for _, s := range dl.Sources {
			b.listed = append(b.listed, s.PluginRef)
			for _, x := range s.Extractors {
				b.listed = append(b.listed, x.PluginRef)
			}
		}
		for _, s := range dl.Sources {
			var names []string
			for _, x := range s.Extractors {
				names = append(names, x.PluginRef)
			}
			if pl := b.find(s.PluginRef); pl != nil && scrape.Sources[pl.Type] != nil {
				if err := b.source(pl, names); err != nil {
					return nil, fmt.Errorf("dataLayer: %w", err)
				}
			}
		}
	}
	for _, typ := range []string{scrape.MetricsSource, scrape.ModelsSource} {
		if b.inject && !b.have[typ] {
			if err := b.source(b.declared(typ), nil); err != nil {
				return nil, fmt.Errorf("dataLayer: %w", err)
			}
		}
	}
	plan, err := scrape.NewPlan(b.polls...)
	if err != nil {
		return nil, fmt.Errorf("dataLayer: %w", err)
	}
	return plan, nil
}

// planner gathers the polls of a plan.
type planner struct {
	picker *config.Picker
	inject bool
	listed []string        // names under dataLayer.sources
	have   map[string]bool // types of sources
	polls  []scrape.Poll
}

func (b *planner) find(name string) *config.Plugin {
	i := slices.IndexFunc(b.picker.Plugins, func(p *config.Plugin) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return b.picker.Plugins[i]
}

// declared is the first plugin of the type that nothing lists, or one with the defaults.
func (b *planner) declared(typ string) *config.Plugin {
	for _, p := range b.picker.Plugins {
		if p.Type == typ && !slices.Contains(b.listed, p.Name) {
			return p
		}
	}
	return &config.Plugin{Name: typ, Type: typ}
}

// source adds a source with its extractors. One that nothing reads is not polled.
func (b *planner) source(p *config.Plugin, extractors []string) error {
	b.have[p.Type] = true
	s, err := scrape.Sources.New(p.Type, p.Decode)
	if err != nil {
		return err
	}
	poll := scrape.Poll{Name: p.Name, Type: p.Type, Source: s}
	add := func(p *config.Plugin) error {
		x, err := scrape.Extractors.New(p.Type, p.Decode)
		poll.Extractors = append(poll.Extractors, scrape.Named{Name: p.Name, Type: p.Type, Extractor: x})
		return err
	}
	for _, name := range extractors {
		if x := b.find(name); x != nil && scrape.Extractors[x.Type] != nil {
			if err := add(x); err != nil {
				return err
			}
		}
	}
	if len(extractors) == 0 && b.inject {
		if err := add(b.declared(scrape.ExtractorOf(p.Type))); err != nil {
			return err
		}
	}
	if len(poll.Extractors) > 0 {
		b.polls = append(b.polls, poll)
	}
	return nil
}
