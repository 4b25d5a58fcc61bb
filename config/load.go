// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
)

// Load reads files and folders. Of a folder it takes *.yaml, *.yml and *.json, without
// subfolders and names that begin with a dot. The Config is nil when a problem is an [Error].
// Problems are sorted by file and line.
func Load(paths []string, o Options) (*Config, []Problem) {
	l := newLoader(o)
	l.paths(paths)
	return l.finish()
}

// Text reads a configuration from a string, which problems call name.
func Text(name, text string, o Options) (*Config, []Problem) {
	l := newLoader(o)
	l.data(name, name, []byte(text))
	return l.finish()
}

// loader gathers documents, then binds them.
type loader struct {
	o Options
	// partial tells that the files need not be a whole deployment, as when they are checked.
	partial bool

	cfg      Config
	problems []Problem
	files    []string         // as named, in the order read
	read     map[string]bool  // by absolute path
	seen     map[string]place // by kind, namespace and name
	pods     []pod
	unproven []Problem // plugins that want Options.Experimental
	docs     int
	old      []string // files that can be migrated; found when they are only checked
	digest   hash.Hash64
}

// place is where something was first written.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

func newLoader(o Options) *loader {
	if o.Active == nil {
		o.Active = func(string) bool { return true }
	}
	o.Namespace = cmp.Or(o.Namespace, "default")
	l := &loader{o: o, read: map[string]bool{}, seen: map[string]place{}, digest: fnv.New64a()}
	l.cfg.Penstock, l.cfg.Read = api.DefaultPenstock(), []FileText{}
	if o.Pool != nil {
		l.cfg.Pools = append(l.cfg.Pools, o.Pool)
	}
	return l
}

func (l *loader) report(p Problem) { l.problems = append(l.problems, p) }

func (l *loader) finish() (*Config, []Problem) {
	l.bind()
	l.survey()
	order := make(map[string]int, len(l.files))
	for i, f := range l.files {
		order[f] = i
	}
	slices.SortStableFunc(l.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line), cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text))
	})
	l.problems = slices.Compact(l.problems)
	if Failed(l.problems) {
		return nil, l.problems
	}
	cfg := l.cfg
	cfg.Digest = l.digest.Sum64()
	cfg.Warnings = l.problems
	return &cfg, l.problems
}

func (l *loader) paths(paths []string) {
	if l.o.Instead != nil {
		for _, f := range l.o.Instead {
			l.text(f)
		}
		return
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
			l.unreadable(p, err)
		case info.IsDir():
			l.folder(p)
		default:
			l.file(p)
		}
	}
}

func (l *loader) unreadable(path string, err error) {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	l.files = append(l.files, path)
	l.report(Problem{Severity: Error, File: path, Text: err.Error()})
}

func (l *loader) folder(path string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		l.unreadable(path, err)
		return
	}
	if abs, err := filepath.Abs(path); err == nil && !slices.Contains(l.cfg.Folders, abs) {
		l.cfg.Folders = append(l.cfg.Folders, abs)
	}
	found := false
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		if !Manifest(e.Name()) {
			continue
		}
		if info, err := os.Stat(name); err != nil || info.Mode().IsRegular() {
			found = true
			l.file(name)
		}
	}
	if !found {
		l.files = append(l.files, path)
		l.report(Problem{Severity: Warning, File: path, Text: "holds no *.yaml, *.yml or *.json file"})
	}
}

// Manifest reports whether a file of that name in a folder is read: *.yaml, *.yml and *.json,
// unless the name begins with a dot or is an editor's temporary file.
func Manifest(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") {
		return false
	}
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

func (l *loader) file(path string) {
	abs, err := filepath.Abs(path)
	if err != nil {
		l.unreadable(path, err)
		return
	}
	if l.read[abs] {
		return
	}
	l.read[abs] = true
	data, err := readFile(path)
	if err != nil {
		l.cfg.Files = append(l.cfg.Files, abs)
		l.unreadable(path, err)
		return
	}
	l.text(FileText{Name: path, Path: abs, Data: data})
}

// readFile is what a file says; of one that is too long a byte more than it may have.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// text takes what a file says.
func (l *loader) text(f FileText) {
	l.cfg.Files, l.cfg.Read = append(l.cfg.Files, f.Path), append(l.cfg.Read, f)
	l.data(f.Name, f.Path, f.Data)
}

// data takes the documents of one file.
func (l *loader) data(name, abs string, data []byte) {
	l.files = append(l.files, name)
	if l.partial && len(data) <= maxFile {
		if after, _ := Migrate(name, string(data)); after != string(data) {
			l.old = append(l.old, name)
		}
	}
	l.digestOf(abs, data)
	if len(bytes.TrimSpace(data)) == 0 {
		l.cfg.Blank = append(l.cfg.Blank, abs)
	}
	for _, root := range parse(data, name, l.report) {
		l.document(&document{loader: l, file: name, abs: abs, size: len(data), root: root})
	}
}

func (l *loader) digestOf(file string, data []byte) {
	_, _ = fmt.Fprintf(l.digest, "%q %d\n", file, len(data))
	_, _ = l.digest.Write(data)
}

// document is one document of a file, on its way into the configuration.
type document struct {
	*loader
	file, abs string
	size      int // of the file
	root      *yaml.Node
	wrong     []string // paths that could not be decoded
}

// problem reports what is wrong with a value, unless it, or what it is part of, could not even
// be decoded.
func (d *document) problem(s Severity, path, format string, args ...any) {
	for _, w := range d.wrong {
		if rest, below := strings.CutPrefix(path, w); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	d.report(Problem{Severity: s, File: d.file, Line: line(d.root, path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (d *document) fail(path, format string, args ...any) { d.problem(Error, path, format, args...) }

func (d *document) warn(path, format string, args ...any) { d.problem(Warning, path, format, args...) }

// inactive warns when this build does not act on a feature.
func (d *document) inactive(path, feature string) {
	if !d.o.Active(feature) {
		d.warn(path, "accepted, not active yet: %s", feature)
	}
}

// decode fills v, a pointer to a kind's struct.
func (d *document) decode(v any) {
	strict(d.root, d.file, "", v, func(p Problem) {
		d.wrong = append(d.wrong, p.Path)
		d.report(p)
	})
}

// oneOf reports a value that is none of those allowed; empty is left to the default.
func (d *document) oneOf(path, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		d.fail(path, "want %s, got %q", strings.Join(allowed, " or "), short(value))
	}
}

// unique reports an object that was written before.
func (d *document) unique(kind, namespace, name string) {
	key := kind + " " + namespace + "/" + name
	if first, twice := d.seen[key]; twice {
		d.fail("metadata.name", "%s %s is written twice, first at %s", kind, name, first)
		return
	}
	d.seen[key] = place{d.file, d.root.Line}
}
