// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/source/file"
)

// discovery is what a configuration says of endpoints: by its manifests, and by the files that it names.
type discovery struct {
	fleet.Change
	files, unread map[string]bool // all that tell of endpoints; those that could not be read yet
}

// discovery reads the endpoints of a configuration. It is an error when a file that is new to us cannot be
// used, except at the start, when it may still come.
func (s *site) discovery(cfg *config.Config) (discovery, error) {
	d := discovery{files: map[string]bool{}, unread: map[string]bool{}}
	d.Endpoints = map[string][]fleet.EndpointSpec{}
	put := func(path string, l file.List) {
		d.Endpoints[file.Source(path)] = l.Over(s.names.Told(file.Source(path)), s.log)
	}
	for _, path := range discoveries(cfg) {
		d.files[path] = true
		data, err := file.Read(path)
		var l file.List
		if err == nil {
			l = parseEndpoints(path, data)
			if l.Unusable() {
				err = errors.Join(l.Errors...)
			}
		}
		switch {
		case err == nil:
			put(path, l)
		case s.sources[path]: // whoever follows the file tells of it, and what it said stays
		case s.lanes != nil:
			return d, err
		default:
			s.log.Error("endpoints file", slog.Any("error", err))
			d.unread[path] = true
		}
	}
	for _, f := range cfg.Endpoints {
		d.files[f.File] = true
		put(f.File, listOf(f))
	}
	for old := range s.sources {
		if !d.files[old] {
			d.Endpoints[file.Source(old)] = nil
		}
	}
	return d, nil
}

// parseEndpoints reads a list of endpoints.
func parseEndpoints(path string, data []byte) file.List {
	if len(bytes.TrimSpace(data)) == 0 { // such as a file that is being written
		return file.List{Errors: []error{fmt.Errorf("%s: is empty: write endpoints: [] for none", path)}}
	}
	entries, problems := config.ParseEndpoints(data, path)
	l := listOf(entries)
	for _, p := range problems {
		if p.Severity >= config.Skipped {
			l.Errors = append(l.Errors, errors.New(p.String()))
		}
	}
	return l
}

// listOf turns a list of endpoints into what the store takes.
func listOf(f config.EndpointFile) file.List {
	var l file.List
	for _, e := range f.Entries {
		l.Endpoints = append(l.Endpoints, fleet.EndpointSpec{
			ID:          fleet.ID{Namespace: e.Namespace, Name: e.Name},
			Address:     e.HostPort(),
			Scrape:      e.Metrics,
			Pod:         e.Pod,
			NodeAddress: e.Node,
			Labels:      e.Labels,
			Anywhere:    e.Anywhere(),
		})
	}
	for _, e := range f.Broken {
		l.Broken = append(l.Broken, fleet.ID{Namespace: e.Namespace, Name: e.Name})
	}
	return l
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

// follow watches what may change: the manifests, and the endpoint files that pickers name.
func (p *process) follow(ctx context.Context, g *errgroup.Group, cfg *config.Config) {
	g.Go(func() error { return p.names.Run(ctx) })
	g.Go(func() error {
		round, stop := p.discoverAll(ctx, cfg)
		defer func() { stop(); _ = round.Wait() }()
		if p.reload == nil {
			return round.Wait()
		}
		started, current := cfg, cfg
		return file.Watch(ctx, p.watched(cfg), func() []string {
			next, problems := p.reload()
			if next != nil && next.Digest == current.Digest {
				return p.watched(current)
			}
			logProblems(p.log, problems)
			if path := emptied(current, next); path != "" {
				p.log.Error("a file is empty, as one is that is being written: delete it, or write endpoints: [] for no endpoints", slog.String("path", path))
				next = nil
			}
			if next == nil {
				p.log.Error("the configuration has errors; the last good one stays in force")
				return p.watched(current)
			}
			stop() // nobody is to tell of a file that is withdrawn
			_ = round.Wait()
			err := p.apply(ctx, next)
			if err == nil {
				current = next
			}
			round, stop = p.discoverAll(ctx, current)
			if err != nil {
				p.log.Error("the configuration cannot be used; the last good one stays in force", slog.Any("error", err))
				return p.watched(current)
			}
			p.setTrust(next.Penstock.Trust)
			p.setHealth(next.Penstock.Health)
			if next.Penstock.Listeners != started.Penstock.Listeners || next.Penstock.Limits != started.Penstock.Limits {
				p.log.Warn("spec.listeners and spec.limits take effect at the next start")
			}
			p.log.Info("configuration reloaded", slog.Int("pools", len(next.Pools)))
			return p.watched(next)
		})
	})
}

// watched are the paths that a reload depends on: those that were named, and the files found there.
func (p *process) watched(cfg *config.Config) []string {
	return append(slices.Clone(p.files), cfg.Files...)
}

// emptied is a file in which something was written and nothing is any more; empty for none.
func emptied(before, now *config.Config) string {
	if now != nil {
		for _, path := range now.Blank {
			if slices.Contains(before.Files, path) && !slices.Contains(before.Blank, path) {
				return path
			}
		}
	}
	return ""
}

// discoverAll follows the endpoint files of a configuration until stop is called.
func (p *process) discoverAll(ctx context.Context, cfg *config.Config) (*errgroup.Group, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, path := range discoveries(cfg) {
		g.Go(func() error { return p.discover(ctx, path) })
	}
	return g, stop
}

// discover follows one endpoint file.
func (p *process) discover(ctx context.Context, path string) error {
	source := file.Source(path)
	parse := func(data []byte) file.List {
		l := parseEndpoints(path, data)
		if !l.Unusable() {
			p.mu.Lock()
			delete(p.unread, path)
			p.mu.Unlock()
		}
		return l
	}
	last := func() []fleet.EndpointSpec { return p.names.Told(source) }
	tell := func(list []fleet.EndpointSpec) {
		p.names.Apply(ctx, fleet.Change{Endpoints: map[string][]fleet.EndpointSpec{source: list}})
	}
	return file.Endpoints(ctx, path, parse, last, tell, p.log)
}
