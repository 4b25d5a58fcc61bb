// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/source/file"
	"github.com/penstock-project/penstock/source/scrape"
)

// inherent are plugin types that need no building: what they ask for always happens.
var inherent = map[string]bool{
	"file-discovery": true, "openai-parser": true, "anthropic-parser": true, "vllmhttp-parser": true, "passthrough-parser": true,
}

// options tell config which plugins this build acts on and how to check their parameters.
func options(namespace string) config.Options {
	return config.Options{
		Namespace: namespace,
		Active:    func(name string) bool { return inherent[name] || active(name) },
		Validate: func(typ string, decode func(any) error) error {
			v, err := construct(typ, decode)
			if p, ok := v.(interface{ Inactive() []string }); ok && err == nil && len(p.Inactive()) > 0 {
				return config.Inactive(p.Inactive())
			}
			return err
		},
	}
}

// site is what runs: the store, the gateway, and what the configuration last said.
type site struct {
	store *fleet.Store
	gw    *gateway.Gateway
	log   *slog.Logger
	plans scrape.Plans // what is polled of the pools' endpoints

	mu      sync.Mutex
	lanes   map[fleet.ID]lane
	sources map[string]bool // endpoint files
	unread  map[string]bool // those that were never read
}

// ready says which endpoints are not known yet, or nil.
func (s *site) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.unread {
		return fmt.Errorf("the endpoints of %s are not known yet", path)
	}
	return nil
}

// parseEndpoints reads a list of endpoints: those that are right, and what is wrong with others. Both
// are nil for an empty list; no endpoints and errors means that nothing can be used.
func parseEndpoints(path string, data []byte) ([]fleet.EndpointSpec, []error) {
	if len(bytes.TrimSpace(data)) == 0 { // such as a file that is being written
		return nil, []error{fmt.Errorf("%s: is empty: write endpoints: [] for none", path)}
	}
	entries, problems := config.ParseEndpoints(data, path)
	var errs []error
	for _, p := range problems {
		if p.Severity >= config.Skipped {
			errs = append(errs, errors.New(p.String()))
		}
	}
	if config.Failed(problems) {
		return nil, errs
	}
	return specs(entries), errs
}

// readEndpoints reads a file of endpoints; an error means that nothing in it can be used.
func readEndpoints(path string) ([]fleet.EndpointSpec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, errs := parseEndpoints(path, data)
	if len(list) == 0 && len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return list, nil
}

// apply puts a configuration into force. On an error nothing has changed.
func (s *site) apply(cfg *config.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lanes, next := gateway.Lanes{}, map[fleet.ID]lane{}
	plans := map[fleet.ID]*scrape.Plan{}
	var pools []fleet.PoolSpec
	for _, p := range cfg.Pools {
		id := fleet.ID{Namespace: p.Namespace, Name: p.Name}
		l, err := buildLane(p.Picker, s.gw.Observer.Plugin)
		if err != nil {
			return err
		}
		if plans[id], err = scrapePlan(p.Picker); err != nil {
			return err
		}
		if old, ok := s.lanes[id]; ok && old.from == l.from {
			l = old // with what its index knows
		}
		next[id], lanes[id] = l, l.Lane
		pools = append(pools, fleet.PoolSpec{ID: id, Selector: p.Selector, H2C: p.H2C, Picker: p.PickerRef, Objectives: p.Objectives, Rewrites: rewrites(p.Rewrites)})
	}
	files, found, unread := map[string]bool{}, map[string][]fleet.EndpointSpec{}, map[string]bool{}
	for _, path := range discoveries(cfg) {
		files[path] = true
		list, err := readEndpoints(path)
		switch {
		case err == nil:
			found[path] = list
		case s.sources[path]: // whoever follows the file tells of it, and what it said stays
		case s.lanes != nil:
			return err
		default: // at the start: it may still come
			s.log.Error("endpoints file", slog.Any("error", err))
			unread[path] = true
		}
	}
	for path, list := range found {
		s.store.SetEndpoints(file.Source(path), list)
	}
	for _, f := range cfg.Endpoints {
		files[f.File] = true
		s.store.SetEndpoints(file.Source(f.File), specs(f.Entries))
	}
	for old := range s.sources {
		if !files[old] {
			s.store.SetEndpoints(file.Source(old), nil)
		}
	}
	s.sources, s.lanes, s.unread = files, next, unread
	s.gw.SetLanes(lanes)
	s.plans.Set(plans)
	s.store.SetPools(pools)
	return nil
}

// rewrites turns a pool's rules into what the store takes.
func rewrites(rules []config.RewriteRule) fleet.Rewrites {
	var out fleet.Rewrites
	for _, r := range rules {
		w := &fleet.Rewrite{Name: r.Name}
		for _, t := range r.Targets {
			w.Targets = append(w.Targets, fleet.Target{Model: t.Model, Weight: t.Weight})
		}
		for _, m := range r.Models {
			if out.Exact == nil {
				out.Exact = map[string]*fleet.Rewrite{}
			}
			out.Exact[m] = w
		}
		if r.All {
			out.All = w
		}
	}
	return out
}

// specs turns a list of endpoints into what the store takes.
func specs(entries []config.EndpointEntry) []fleet.EndpointSpec {
	out := make([]fleet.EndpointSpec, 0, len(entries))
	for _, e := range entries {
		out = append(out, fleet.EndpointSpec{
			ID:      fleet.ID{Namespace: e.Namespace, Name: e.Name},
			Address: e.HostPort(),
			Labels:  e.Labels,
			// Entries that name no namespace are of "default"; in files they suit any pool.
			Anywhere: e.Namespace == "default",
		})
	}
	return out
}

// discoveries are the endpoint files that the pools' pickers name and that were not read as manifests.
func discoveries(cfg *config.Config) []string {
	read := map[string]bool{}
	for _, f := range cfg.Endpoints {
		read[f.File] = true
	}
	var out []string
	for _, p := range cfg.Pools {
		if d := p.Picker.DiscoveryFile; d != nil && !read[d.Path] {
			read[d.Path] = true
			out = append(out, d.Path)
		}
	}
	return out
}

// report logs the problems of a configuration, each with its place.
func report(log *slog.Logger, problems []config.Problem) {
	levels := map[config.Severity]slog.Level{
		config.Note: slog.LevelDebug, config.Warning: slog.LevelWarn, config.Skipped: slog.LevelError, config.Error: slog.LevelError,
	}
	for _, p := range problems {
		log.Log(context.Background(), levels[p.Severity], "configuration", slog.String("problem", p.String()))
	}
}
