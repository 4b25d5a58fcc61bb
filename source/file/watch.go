// SPDX-License-Identifier: Apache-2.0

// Package file answers: what do the operator's files say, and when do they say something else?
//
// Files change in many ways: written in place, replaced by a rename, or swapped with all
// their neighbours by one symlink, as ConfigMaps are. What counts is what the files say in
// the end; how it came about does not matter here.
package file

import (
	"context"
	"encoding/binary"
	"hash"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	debounce = 75 * time.Millisecond  // how long files must be quiet before they are read
	patience = 500 * time.Millisecond // how long they may be restless
	poll     = 2 * time.Second        // how often we look ourselves, for what nobody notifies us of
	maxFile  = 8 << 20                // bytes of a file that count
)

// Watch calls changed, one call at a time: once the paths are watched, so that nothing from before is
// missed, and then whenever their files say something else, until ctx ends. A path may be a file or
// a folder, which counts with the files in it, and it need not exist. changed returns the
// paths to watch from then on; when these are others it is called once more.
func Watch(ctx context.Context, paths []string, changed func() []string) error {
	w := newWatcher(paths, true)
	look := func() {
		for range 4 { // each call may find files that are named by those that it found before
			if !w.turn(changed()) {
				return
			}
		}
	}
	look()
	return w.run(ctx, look)
}

// turn watches other paths. It reports whether there are any.
func (w *watcher) turn(paths []string) bool {
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	if slices.Equal(paths, w.paths) {
		return false
	}
	w.paths = paths
	w.listen()
	w.looks, w.content = w.look(false), w.look(true)
	return true
}

// watcher knows what the files said last.
type watcher struct {
	paths   []string
	notify  *fsnotify.Watcher // nil when the system has none to give: then we poll
	watched map[string]bool
	looks   uint64 // sizes, times and targets
	content uint64
}

func newWatcher(paths []string, notify bool) *watcher {
	w := &watcher{paths: slices.Compact(slices.Sorted(slices.Values(paths))), watched: map[string]bool{}}
	if notify {
		w.notify, _ = fsnotify.NewWatcher() // polling is enough without it
	}
	w.listen()
	w.looks, w.content = w.look(false), w.look(true)
	return w
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}

func (w *watcher) run(ctx context.Context, changed func()) error {
	defer w.close()
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var since time.Time // of the first event that was not answered, zero for none
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-errs: // events may be lost; the next poll sees
		case <-events:
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			quiet.Reset(min(debounce, max(0, since.Add(patience).Sub(now))))
		case <-quiet.C:
			since = time.Time{}
			w.check(true, changed)
		case <-tick.C:
			if since.IsZero() {
				w.check(false, changed)
			}
		}
	}
}

// check calls changed when the contents changed. Unless deep, contents are read only when
// the files look different.
func (w *watcher) check(deep bool, changed func()) {
	w.listen()
	looks := w.look(false)
	if !deep && looks == w.looks {
		return
	}
	w.looks = looks
	if content := w.look(true); content != w.content {
		w.content = content
		changed()
	}
}

// listen asks to be notified of all folders in which something can happen to the paths.
func (w *watcher) listen() {
	if w.notify == nil {
		return
	}
	want := map[string]bool{}
	for _, p := range w.paths {
		want[filepath.Dir(p)] = true
		for _, f := range append(files(p), p) {
			if target, err := filepath.EvalSymlinks(f); err == nil {
				want[filepath.Dir(target)] = true
			}
		}
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			want[p] = true
		}
	}
	for _, p := range slices.Sorted(maps.Keys(want)) {
		// A folder that was replaced by one of the same name is another folder, which is why
		// all are added again each time.
		if w.notify.Add(p) == nil {
			w.watched[p] = true
		}
	}
	for p := range w.watched {
		if !want[p] {
			_ = w.notify.Remove(p)
			delete(w.watched, p)
		}
	}
}

// files lists what a path means: itself, or the files of a folder, in order. Names that begin with a
// dot or # or end with ~ do not count: editors have them, and ConfigMaps keep their versions so,
// while what these hold is visible under other names.
func files(path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return []string{path}
	}
	var list []string
	for _, e := range entries {
		if n := e.Name(); n[0] != '.' && n[0] != '#' && n[len(n)-1] != '~' {
			list = append(list, filepath.Join(path, n))
		}
	}
	return list
}

// look sums up the files: their contents, or only how they look from outside.
func (w *watcher) look(content bool) uint64 {
	h := fnv.New64a()
	for _, p := range w.paths {
		for _, path := range files(p) {
			info, err := os.Stat(path) // of what a link points to
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			say(h, path)
			if content {
				sum(h, path)
				continue
			}
			if target, err := filepath.EvalSymlinks(path); err == nil {
				say(h, target)
			}
			number(h, info.Size())
			number(h, info.ModTime().UnixNano())
		}
	}
	return h.Sum64()
}

func sum(h hash.Hash, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	n, _ := io.Copy(h, io.LimitReader(f, maxFile))
	number(h, n)
}

func say(h hash.Hash, s string) {
	_, _ = io.WriteString(h, s)
	number(h, int64(len(s)))
}

func number(h hash.Hash, n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	_, _ = h.Write(b[:])
}
