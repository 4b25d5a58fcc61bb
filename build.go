// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/source/dns"
	"github.com/penstock-project/penstock/source/scrape"
)

// inherent are plugin types that need no building: what they ask for always happens.
var inherent = map[string]bool{
	"file-discovery": true, "multicluster-file-discovery": true, "endpoint-notification-source": true, // the store notifies
	"openai-parser": true, "anthropic-parser": true, "vllmhttp-parser": true, "passthrough-parser": true,
}

// options tell config which plugins this build acts on and how to check their parameters.
func options(namespace string) config.Options {
	return config.Options{
		Namespace: namespace,
		Default:   policy.Default().Config(),
		Active:    func(name string) bool { return inherent[name] || name == "flowControl" || active(name) },
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
	store  *fleet.Store
	names  *dns.Names // stand before the store
	gw     *gateway.Gateway
	log    *slog.Logger
	plans  scrape.Plans   // what is polled of the pools' endpoints
	feeds  feeds          // what engines publish of their caches
	models models         // tokenizers
	near   func([]string) // takes the labels that say where endpoints stand; nil for nobody

	lanes   map[fleet.ID]lane
	sources map[string]bool // endpoint files

	mu     sync.Mutex
	unread map[string]bool // endpoint files that were never read
	cfg    *config.Config  // in force
	// problems are what is wrong with the configuration that was last read.
	problems []config.Problem
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

// apply puts a configuration into force. On an error nothing has changed. One call at a time.
func (s *site) apply(ctx context.Context, cfg *config.Config) error {
	lanes, next := gateway.Lanes{}, map[fleet.ID]lane{}
	plans := map[fleet.ID]*scrape.Plan{}
	pools := []fleet.PoolSpec{} // nil would leave those of before
	var wrong []error
	unused := map[*config.Picker]bool{}
	for _, p := range cfg.Pools {
		if unused[p.Picker] {
			continue
		}
		id := fleet.ID{Namespace: p.Namespace, Name: p.Name}
		l, err := s.buildLane(id, p.Picker)
		if err == nil {
			plans[id], err = scrapePlan(p.Picker)
		}
		if err != nil {
			wrong, unused[p.Picker] = append(wrong, &unfit{p.Picker.File, err}), true
			continue
		}
		if old, ok := s.lanes[id]; ok && old.from == l.from {
			l = old // with what its index knows
		} else if ok {
			l.inherit(old)
		}
		next[id], lanes[id] = l, l.Lane
		pools = append(pools, fleet.PoolSpec{ID: id, Selector: p.Selector, H2C: p.H2C, Picker: p.PickerRef, Objectives: p.Objectives, Rewrites: rewrites(p.Rewrites)})
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	d, err := s.discovery(cfg)
	if err != nil {
		return err
	}
	d.Pools = pools
	s.names.Learn(ctx, d.Change) // before anything changes, since it may take a moment
	both := maps.Clone(lanes)
	for id, l := range s.lanes { // a pool that goes away still has requests that found it
		if both[id] == nil {
			both[id] = l.Lane
		}
	}
	s.mu.Lock()
	s.unread, s.cfg = d.unread, cfg
	s.mu.Unlock()
	s.sources, s.lanes = d.files, next
	s.plans.Set(plans)
	s.gw.SetLanes(both)
	s.names.Apply(ctx, d.Change)
	s.gw.SetLanes(lanes)
	s.feeds.set(s, next)
	s.tellNear()
	return nil
}

// tellNear says which labels somebody asks for to know where endpoints stand.
func (s *site) tellNear() {
	if s.near == nil {
		return
	}
	var labels []string
	for _, l := range s.lanes {
		labels = append(labels, l.near...)
	}
	s.near(labels)
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

// logProblems logs the problems of a configuration, each with its place.
func logProblems(log *slog.Logger, problems []config.Problem) {
	levels := map[config.Severity]slog.Level{
		config.Note: slog.LevelDebug, config.Warning: slog.LevelWarn, config.Skipped: slog.LevelError, config.Error: slog.LevelError,
	}
	for _, p := range problems {
		log.Log(context.Background(), levels[p.Severity], "configuration", slog.String("problem", p.String()))
	}
}
