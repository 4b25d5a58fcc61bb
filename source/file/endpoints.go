// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"

	"github.com/penstock-project/penstock/fleet"
)

// List is what a file of endpoints says.
type List struct {
	Endpoints []fleet.EndpointSpec
	// Broken are the entries that are wrong, as far as their names can be read.
	Broken []fleet.ID
	// Errors are what is wrong. When there are some and no Endpoints, nothing in the file can be used.
	Errors []error
}

// Unusable reports whether nothing in the list can be used, which an empty list is not.
func (l *List) Unusable() bool { return len(l.Endpoints) == 0 && len(l.Errors) > 0 }

// Over returns the list as it is to be told, never nil, after what was told last: a broken entry says
// what it said while it was right.
func (l *List) Over(last []fleet.EndpointSpec, log *slog.Logger) []fleet.EndpointSpec {
	out := make([]fleet.EndpointSpec, 0, len(l.Endpoints))
	out = append(out, l.Endpoints...)
	if len(l.Broken) == 0 || len(last) == 0 {
		return out
	}
	have, was := map[fleet.ID]bool{}, map[fleet.ID]fleet.EndpointSpec{}
	for _, e := range l.Endpoints {
		have[e.ID] = true
	}
	for _, e := range last {
		was[e.ID] = e
	}
	for _, id := range l.Broken {
		if e, ok := was[id]; ok && !have[id] {
			have[id] = true
			out = append(out, e)
			log.Warn("a wrong entry: the endpoint stays as it was", slog.String("endpoint", id.String()), slog.String("address", e.Address))
		}
	}
	return out
}

// Source names the source that a file of endpoints is to the store.
func Source(path string) string { return "file:" + path }

// Endpoints tells the endpoints that a file lists, now and at each change, until ctx ends. What it
// told stays told then: who has no more use for it withdraws it.
//
// An entry that is wrong is reported and skipped, or stays what it was; see [List.Over]. A file that cannot be
// read, or in which nothing is right, is reported, and what it said before stays. An empty list
// is a list. Last is what the file said last, nil for nothing; tell is called when it says something else.
func Endpoints(ctx context.Context, path string, parse func([]byte) List, last func() []fleet.EndpointSpec, tell func([]fleet.EndpointSpec), log *slog.Logger) error {
	w := newWatcher([]string{path}, true) // before the first look, so that no change is missed
	return follow(ctx, w, path, parse, last, tell, log)
}

func follow(ctx context.Context, w *watcher, path string, parse func([]byte) List, last func() []fleet.EndpointSpec, tell func([]fleet.EndpointSpec), log *slog.Logger) error {
	var seen []byte // what was looked at last and could be used
	looked := false
	load := func() {
		data, err := Read(path)
		if err == nil && looked && bytes.Equal(data, seen) {
			return
		}
		l := List{Errors: []error{err}}
		if err == nil {
			l = parse(data)
		}
		for _, err := range l.Errors {
			log.Error("endpoints file", slog.String("path", path), slog.Any("error", err))
		}
		before := last()
		if l.Unusable() {
			log.Error("endpoints file: nothing in it can be used; what it said before stays",
				slog.String("path", path), slog.Bool("loaded_before", before != nil))
			return
		}
		seen, looked = data, true
		specs := l.Over(before, log)
		if before != nil && reflect.DeepEqual(specs, before) {
			return
		}
		tell(specs)
		log.Info("endpoints loaded", slog.String("path", path), slog.Int("endpoints", len(specs)), slog.Int("skipped", len(l.Errors)))
	}
	load()
	return w.run(ctx, load)
}

// Read reads a file of endpoints, up to a bound.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, err
}
