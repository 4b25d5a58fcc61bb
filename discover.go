// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

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
	var wrong []error
	named := discoveries(cfg)
	for _, path := range slices.Sorted(maps.Keys(named)) {
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
			wrong = append(wrong, &unfit{named[path], err})
		default:
			s.log.Error("endpoints file", slog.Any("error", err))
			d.unread[path] = true
		}
	}
	if wrong != nil {
		return d, errors.Join(wrong...)
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

// discoveries are the endpoint files that the pools' pickers name and that were not read as manifests, each with the file of such a picker.
func discoveries(cfg *config.Config) map[string]string {
	out := map[string]string{}
	for _, p := range cfg.Pools {
		if d := p.Picker.DiscoveryFile; d != nil && out[d.Path] == "" {
			out[d.Path] = p.Picker.File
		}
	}
	for _, f := range cfg.Endpoints {
		delete(out, f.File)
	}
	return out
}

// follow watches what may change: the manifests, the endpoint files that pickers name, and what an API server tells.
func (p *process) follow(ctx context.Context, g *errgroup.Group, cfg *config.Config) {
	g.Go(func() error { return p.names.Run(ctx) })
	r := &reloading{process: p, started: cfg, current: cfg}
	_, r.said = news(cfg.Warnings, nil) // they were logged at the start
	p.hold(cfg.Warnings)
	r.round, r.stop = p.discoverAll(ctx, cfg)
	if p.cluster != nil {
		p.cluster.again = func() ([]string, error) { return r.again(ctx) }
	}
	g.Go(func() error {
		defer r.end()
		if p.reload == nil {
			return r.round.Wait()
		}
		return file.Watch(ctx, p.watched(cfg), func() []string {
			if p.cluster != nil {
				return p.cluster.anew()
			}
			paths, _ := r.again(ctx)
			return paths
		})
	})
	if p.cluster != nil {
		g.Go(func() error { return p.cluster.Run(ctx) })
		g.Go(func() error { p.cluster.retry(ctx); return nil })
	}
}

// reloading puts what changed into force.
type reloading struct {
	*process
	mu               sync.Mutex
	started, current *config.Config
	round            *errgroup.Group // follows the endpoint files of current
	stop             context.CancelFunc
	said             map[string]bool // problems of objects that were logged
}

func (r *reloading) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop()
	_ = r.round.Wait()
}

// again reads all anew and returns the paths to watch from then on; an error when what was read is not in force,
// which is logged. What is in force, a cluster keeps.
func (r *reloading) again(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, problems := r.reload()
	all := problems
	defer func() { r.hold(all) }()
	unchanged := next != nil && next.Digest == r.current.Digest
	if unchanged && r.cluster == nil {
		return r.watched(r.current), nil
	}
	if r.cluster != nil { // objects come and go one by one
		problems, r.said = news(problems, r.said)
	}
	logProblems(r.log, problems)
	if unchanged {
		if r.cluster != nil {
			r.cluster.keep()
		}
		return r.watched(r.current), nil
	}
	if path := emptied(r.current.Read, next); path != "" {
		r.log.Error(isEmpty, slog.String("path", path))
		all = append(slices.Clip(all), config.Problem{Severity: config.Error, File: path, Text: isEmpty})
		next = nil
	}
	if next == nil {
		if len(problems) > 0 {
			r.log.Error("the configuration has errors; the last good one stays in force")
		}
		return r.watched(r.current), errors.New("the configuration has errors")
	}
	r.stop() // nobody is to tell of a file that is withdrawn
	_ = r.round.Wait()
	err := r.apply(ctx, next)
	if err == nil {
		if r.current = next; r.cluster != nil {
			r.cluster.keep()
		}
	}
	r.round, r.stop = r.discoverAll(ctx, r.current)
	if err != nil {
		r.log.Error("the configuration cannot be used; the last good one stays in force", slog.Any("error", err))
		all = append(slices.Clip(all), config.Problem{Severity: config.Error, Text: err.Error()})
		return r.watched(r.current), err
	}
	r.setTrust(next.Penstock.Trust)
	r.setHealth(next.Penstock.Health)
	if next.Penstock.Listeners != r.started.Penstock.Listeners || next.Penstock.Limits != r.started.Penstock.Limits {
		r.log.Warn("spec.listeners and spec.limits take effect at the next start")
	}
	r.log.Info("configuration reloaded", slog.Int("pools", len(next.Pools)))
	return r.watched(next), nil
}

// hold keeps what is wrong with the configuration that was last read, for /debug/fleet, and counts its errors. In a cluster
// objects may well be for the pools of others.
func (p *process) hold(problems []config.Problem) {
	if p.cluster != nil {
		problems = slices.DeleteFunc(slices.Clone(problems), func(o config.Problem) bool { return o.Elsewhere })
	}
	p.mu.Lock()
	p.problems = problems
	p.mu.Unlock()
	errors := 0
	for _, o := range problems {
		if o.Severity == config.Error {
			errors++
		}
	}
	p.obs.ConfigErrors(errors)
}

// watched are the paths that a reload depends on: those that were named, and the files found there.
func (p *process) watched(cfg *config.Config) []string {
	return append(slices.Clone(p.files), cfg.Files...)
}

// isEmpty is what is wrong with such a file.
const isEmpty = "a file is empty, as one is that is being written: delete it, or write endpoints: [] for no endpoints"

// emptied is a file in which something was written, by what files said before, and nothing is any more; empty for none.
func emptied(before []config.FileText, now *config.Config) string {
	if now != nil {
		for _, f := range before {
			if slices.Contains(now.Blank, f.Path) && len(bytes.TrimSpace(f.Data)) > 0 {
				return f.Path
			}
		}
	}
	return ""
}

// discoverAll follows the endpoint files of a configuration until stop is called.
func (p *process) discoverAll(ctx context.Context, cfg *config.Config) (*errgroup.Group, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for path := range discoveries(cfg) {
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
