// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/config"
)

// The configuration in force, as /debug/fleet shows it: what was written, with defaults filled in. No secrets.
type (
	inForce struct {
		// Problems are those of what was last read, at most shownProblems. What has an error counts for nothing, or what it
		// said before stays in force.
		Problems []string `json:"problems,omitempty"`

		Pools  []poolInForce `json:"pools"`
		Limits api.Limits    `json:"limits"`
		Trust  trustInForce  `json:"trust"`
		Health api.Health    `json:"health"`
		Stale  string        `json:"stale_after"` // the age beyond which a signal is unknown
		// Leader tells who leads, with leader election.
		Leader *leaderInForce `json:"leader,omitempty"`
	}
	leaderInForce struct {
		Here    bool   `json:"here"` // it is this picker
		Holder  string `json:"holder"`
		Address string `json:"health_address,omitempty"`
		Trouble string `json:"trouble,omitempty"` // with the lease
		// Service is the one that leads to the leader, with --ha-service.
		Service *serviceInForce `json:"service,omitempty"`
	}
	serviceInForce struct {
		Name    string `json:"name"`
		Here    bool   `json:"here"` // it leads to this picker
		Trouble string `json:"trouble,omitempty"`
	}
	trustInForce struct {
		CIDRs  []string `json:"cidrs"`
		Header string   `json:"header,omitempty"` // its name; its value stays here
	}
	poolInForce struct {
		Pool   string       `json:"pool"`
		Picker string       `json:"picker"`         // the EndpointPickerConfig
		File   string       `json:"file,omitempty"` // where it was written; empty for the default
		Gates  config.Gates `json:"featureGates"`
		// Plugins are those declared, then those that defaults added, with the parameters in force.
		Plugins   []pluginInForce  `json:"plugins"`
		Profiles  []profileInForce `json:"schedulingProfiles"`
		Handler   string           `json:"profileHandler,omitempty"`
		Screeners []string         `json:"screeners,omitempty"` // and what follows, by name, in running order
		Producers []string         `json:"producers,omitempty"`
		Admitters []string         `json:"admitters,omitempty"`
		Parsers   []string         `json:"parsers,omitempty"`
		Sources   []sourceInForce  `json:"sources,omitempty"`
		Detector  string           `json:"saturationDetector,omitempty"`
		// DataLayer and FlowControl are as written.
		DataLayer   *api.DataLayer   `json:"dataLayer,omitempty"`
		FlowControl *api.FlowControl `json:"flowControl,omitempty"`
	}
	pluginInForce struct {
		Name   string `json:"name"`
		Type   string `json:"type"`
		Active bool   `json:"active"`          // this build acts on it
		Added  bool   `json:"added,omitempty"` // by a default
		Error  string `json:"error,omitempty"`
		Params any    `json:"parameters,omitempty"`
	}
	profileInForce struct {
		Name    string          `json:"name"`
		Plugins []memberInForce `json:"plugins"`
	}
	memberInForce struct {
		Name   string   `json:"name"`
		Weight *float64 `json:"weight,omitempty"` // a scorer's
	}
	sourceInForce struct {
		Name       string   `json:"name"`
		Extractors []string `json:"extractors"`
	}
)

// shownProblems bounds the problems on /debug/fleet.
const shownProblems = 100

// inForce shows the configuration that the last apply put into force.
func (p *process) inForce() any {
	p.mu.Lock()
	cfg, problems := p.cfg, p.problems
	p.mu.Unlock()
	spec := &cfg.Penstock
	v := inForce{Pools: []poolInForce{}, Limits: spec.Limits, Health: spec.Health, Stale: p.stale.String(), Trust: trustInForce{CIDRs: []string{}}}
	for _, o := range problems {
		if o.Severity > config.Note && len(v.Problems) < shownProblems {
			v.Problems = append(v.Problems, o.String())
		}
	}
	if p.election != nil {
		l := p.election.State()
		v.Leader = &leaderInForce{Here: l.Leads, Holder: l.Holder, Address: l.Address, Trouble: l.Trouble}
		if f := p.front; f != nil {
			here, trouble := f.State()
			v.Leader.Service = &serviceInForce{Name: f.Namespace + "/" + f.Service, Here: here, Trouble: trouble}
		}
	}
	for _, c := range spec.Trust.CIDRs {
		v.Trust.CIDRs = append(v.Trust.CIDRs, c.String())
	}
	if h := spec.Trust.Header; h != nil {
		v.Trust.Header = h.Name
	}
	for _, pool := range cfg.Pools {
		v.Pools = append(v.Pools, poolInForceOf(pool))
	}
	return v
}

func poolInForceOf(pool *config.Pool) poolInForce {
	k := pool.Picker
	v := poolInForce{
		Pool: pool.Namespace + "/" + pool.Name, Picker: k.Name, File: k.File, Gates: k.Gates, Handler: nameOf(k.Handler), Detector: nameOf(k.Detector),
		Screeners: namesOf(k.Screeners), Producers: namesOf(k.Producers), Admitters: namesOf(k.Admitters), Parsers: namesOf(k.Parsers),
		DataLayer: k.DataLayer, FlowControl: k.FlowControl,
	}
	for _, d := range k.Plugins {
		v.Plugins = append(v.Plugins, pluginInForceOf(d))
	}
	for _, profile := range k.Profiles {
		out := profileInForce{Name: profile.Name}
		for _, ref := range profile.Plugins {
			m := memberInForce{Name: ref.Name}
			if ref.Weight != 0 {
				m.Weight = &ref.Weight
			}
			out.Plugins = append(out.Plugins, m)
		}
		v.Profiles = append(v.Profiles, out)
	}
	for _, s := range k.Sources {
		v.Sources = append(v.Sources, sourceInForce{nameOf(s.Plugin), namesOf(s.Extractors)})
	}
	return v
}

// pluginInForceOf reads a declaration as the plan did, so that the plugin's own defaults show.
func pluginInForceOf(d *config.Plugin) pluginInForce {
	v := pluginInForce{Name: d.Name, Type: d.Type, Active: d.Active, Added: d.Implied}
	if !d.Active {
		return v
	}
	params, err := construct(d.Type, d.Decode)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.Params = params
	return v
}

func nameOf(d *config.Plugin) string {
	if d == nil {
		return ""
	}
	return d.Name
}

func namesOf(list []*config.Plugin) []string {
	var out []string
	for _, d := range list {
		out = append(out, d.Name)
	}
	return out
}
