// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/source/scrape"
)

// lane is a pool's lane with the text of what it was built from.
type lane struct {
	*gateway.Lane
	from string
	near []string // labels that say where endpoints stand, for those who ask
}

// planner builds a plan from an EndpointPickerConfig. A plugin that is named twice is one value.
type planner struct {
	built map[string]any
	from  strings.Builder
	timed func(point, kind, name string) func(time.Duration)
	// models are the tokenizers that are open; nil opens each anew.
	models *models
	near   []string
}

// buildLane makes what serves a pool from its EndpointPickerConfig.
func (s *site) buildLane(pool fleet.ID, p *config.Picker) (lane, error) {
	b := &planner{built: map[string]any{}, timed: s.gw.Observer.Plugin, models: &s.models}
	plan := &sched.Plan{}
	err := b.plan(p, plan)
	if err != nil {
		return lane{}, err
	}
	gate, err := s.gate(b, pool, p)
	if err != nil {
		return lane{}, err
	}
	return lane{&gateway.Lane{Gate: gate, Plan: plan.Ready(), Queues: p.Gates.FlowControl}, b.from.String(), b.near}, nil
}

func (b *planner) plan(p *config.Picker, plan *sched.Plan) error {
	var err error
	if plan.Screeners, err = several[sched.Filter](b, "Screener", p.Screeners); err != nil {
		return err
	}
	if plan.Producers, err = several[sched.Producer](b, "DataProducer", p.Producers); err != nil {
		return err
	}
	if plan.Admitters, err = several[sched.Admitter](b, "Admitter", p.Admitters); err != nil {
		return err
	}
	for _, profile := range p.Deciding() {
		out, err := b.profile(profile)
		if err != nil {
			return err
		}
		plan.Profiles = append(plan.Profiles, out)
	}
	plan.Handler = policy.Handlers["single-profile-handler"]()
	if h := p.Handler; h != nil && h.Active {
		v, err := b.value(h)
		if err != nil {
			return err
		}
		plan.Handler = v.(sched.Handler)
	}
	for _, d := range p.Plugins {
		if !has(policy.Reporters, d.Type) {
			continue
		}
		v, err := b.value(d)
		if err != nil {
			return err
		}
		plan.Reporters = append(plan.Reporters, sched.Named[sched.Answerer]{Name: d.Name, Plugin: v.(sched.Answerer)})
	}
	return b.places(p)
}

// places tells those who ask how near endpoints are which labels say where they stand.
func (b *planner) places(p *config.Picker) error {
	for _, d := range p.Plugins {
		reader, ok := b.built[d.Name].(interface {
			Topology() string
			SetTopology(*policy.TopologyExtractor)
			Labels() []string
		})
		if !ok {
			continue
		}
		name := cmp.Or(reader.Topology(), "topology-extractor")
		var by *config.Plugin
		for _, o := range p.Plugins {
			if has(policy.Topologies, o.Type) && (o.Name == name || by == nil && reader.Topology() == "") {
				by = o
			}
		}
		if by != nil {
			v, err := b.value(by)
			if err != nil {
				return err
			}
			reader.SetTopology(v.(*policy.TopologyExtractor))
		}
		b.near = append(b.near, reader.Labels()...)
	}
	return nil
}

func (b *planner) profile(p config.Profile) (*sched.Profile, error) {
	out := &sched.Profile{Name: p.Name, Endpoints: 1}
	fmt.Fprintln(&b.from, "profile", p.Name)
	for _, ref := range p.Plugins {
		v, err := b.value(ref.Plugin)
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(&b.from, ref.Name, ref.Weight)
		if f, ok := v.(sched.Filter); ok {
			out.Filters = append(out.Filters, named[sched.Filter](b, "Filter", ref.Plugin, f))
		}
		if s, ok := v.(sched.Scorer); ok {
			out.Scorers = append(out.Scorers, sched.Weighted{Named: named[sched.Scorer](b, "Scorer", ref.Plugin, s), Weight: ref.Weight})
		}
		if k, ok := v.(sched.Picker); ok {
			out.Picker = named[sched.Picker](b, "Picker", ref.Plugin, k)
		}
	}
	if out.Picker.Plugin == nil {
		const typ = "max-score-picker"
		out.Picker = sched.Named[sched.Picker]{Name: typ, Plugin: policy.Pickers[typ]()}
	}
	if n, ok := out.Picker.Plugin.(interface{ Endpoints() int }); ok {
		out.Endpoints = n.Endpoints()
	}
	return out, nil
}

// value is the plugin that a declaration makes, nil for one that is not active or needs no value.
func (b *planner) value(d *config.Plugin) (any, error) {
	if !d.Active {
		return nil, nil
	}
	if v, ok := b.built[d.Name]; ok {
		return v, nil
	}
	v, err := construct(d.Type, d.Decode)
	if err != nil {
		return nil, err
	}
	if t, ok := v.(interface{ Tokens() *policy.TokenProducer }); ok {
		if err := b.tokenizer(t.Tokens()); err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	b.built[d.Name] = v
	text, _ := json.Marshal(v) // plugins are plain structs; one that were not would only rebuild more often
	fmt.Fprintf(&b.from, "%s %s %s\n", d.Name, d.Type, text)
	return v, nil
}

// several makes the active ones of a list.
func several[T any](b *planner, point string, list []*config.Plugin) (out []sched.Named[T], err error) {
	for _, d := range list {
		v, err := b.value(d)
		if err != nil {
			return nil, err
		}
		if _, ok := v.(T); ok {
			out = append(out, named[T](b, point, d, v))
		}
	}
	return out, nil
}

func named[T any](b *planner, point string, d *config.Plugin, v any) sched.Named[T] {
	n := sched.Named[T]{Name: d.Name, Plugin: v.(T)}
	if b.timed != nil {
		n.Took = b.timed(point, d.Type, d.Name)
	}
	return n
}

// maker is a set of plugins, whatever they are.
type maker struct {
	has  func(typ string) bool
	make func(typ string, decode func(any) error) (any, error)
}

func of[T any](set plugin.Set[T]) maker {
	return maker{
		func(typ string) bool { return has(set, typ) },
		func(typ string, decode func(any) error) (any, error) { return set.New(typ, decode) },
	}
}

func has[T any](set plugin.Set[T], typ string) bool { return set[typ] != nil }

// makers are all sets of plugins.
var makers = append([]maker{
	of(policy.Filters), of(policy.Scorers), of(policy.Pickers), of(policy.Producers), of(policy.Screeners), of(policy.Admitters),
	of(policy.Handlers), of(policy.Reporters), of(policy.Topologies), of(scrape.Sources), of(scrape.Extractors),
}, flowMakers...)

// active reports whether a type is made by one of the sets.
func active(typ string) bool {
	return slices.ContainsFunc(makers, func(m maker) bool { return m.has(typ) })
}

// construct makes a plugin of any active type.
func construct(typ string, decode func(any) error) (any, error) {
	for _, m := range makers {
		if m.has(typ) {
			return m.make(typ, decode)
		}
	}
	switch typ {
	case "file-discovery":
		v := &config.FileDiscovery{}
		return v, decode(v)
	case "multicluster-file-discovery":
		v := &config.MulticlusterFileDiscovery{}
		return v, decode(v)
	}
	return nil, nil
}
