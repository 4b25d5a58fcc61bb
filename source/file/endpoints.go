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

	"github.com/penstock-project/penstock/fleet"
)

// Parse reads a list of endpoints. An error for one entry does not stop the others.
type Parse func(data []byte) ([]fleet.EndpointSpec, []error)

// Source names the source that a file of endpoints is to the store.
func Source(path string) string { return "file:" + path }

// Endpoints tells the store the endpoints that a file lists, now and at each change, until ctx
// ends. What it told stays told then: who has no more use for it withdraws [Source].
//
// An entry that is wrong is reported and skipped. A file that cannot be read, or in which nothing
// is right, is reported, and what it said before stays. An empty list is a list.
func Endpoints(ctx context.Context, store *fleet.Store, path string, parse Parse, log *slog.Logger) error {
	w := newWatcher([]string{path}, true) // before the first look, so that no change is missed
	return follow(ctx, w, store, path, parse, log)
}

func follow(ctx context.Context, w *watcher, store *fleet.Store, path string, parse Parse, log *slog.Logger) error {
	var last []byte // what was told
	told := false
	load := func() {
		data, err := read(path)
		if err == nil && told && bytes.Equal(data, last) {
			return
		}
		specs, errs := []fleet.EndpointSpec(nil), []error{err}
		if err == nil {
			specs, errs = parse(data)
		}
		for _, err := range errs {
			log.Error("endpoints file", slog.String("path", path), slog.Any("error", err))
		}
		if len(specs) == 0 && len(errs) > 0 {
			log.Error("endpoints file: nothing in it can be used; what it said before stays",
				slog.String("path", path), slog.Bool("loaded_before", told))
			return
		}
		if specs == nil {
			specs = []fleet.EndpointSpec{} // nil would withdraw the source
		}
		store.SetEndpoints(Source(path), specs)
		log.Info("endpoints loaded", slog.String("path", path), slog.Int("endpoints", len(specs)), slog.Int("skipped", len(errs)))
		last, told = data, true
	}
	load()
	return w.run(ctx, load)
}

func read(path string) ([]byte, error) {
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
