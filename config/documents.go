// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"slices"
)

// Document is a document that stands in no file, such as an object of an API server.
type Document struct {
	// Name is what problems call it, in the place of a file.
	Name string
	Data []byte
	// Needed documents make the whole unusable when they are wrong; others are left out.
	Needed bool
	// Lines tells that a person wrote the text, so that the lines of problems mean something.
	Lines bool
	// Namespace is given to objects in it that name none; empty for [Options.Namespace].
	Namespace string
	// Picker is the name of an EndpointPickerConfig in it that has none, which decides for nobody else then.
	Picker string
}

// Documents reads documents, and files and folders beside them, as [Load] does. Of what is wrong only the
// needed documents and the files make the Config nil: another document with an [Error] is left out as a whole.
// Problems name the documents in File.
func Documents(docs []Document, o Options, files ...string) (*Config, []Problem) {
	var wrong []Problem
	for {
		l := newLoader(o)
		l.paths(files)
		bare := map[string]bool{}
		for _, d := range docs {
			bare[d.Name] = !d.Lines
			l.one(d)
		}
		cfg, problems := l.finish()
		for i := range problems {
			if bare[problems[i].File] {
				problems[i].Line = 0
			}
		}
		left := slices.DeleteFunc(slices.Clone(docs), func(d Document) bool {
			return !d.Needed && slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == Error && p.File == d.Name })
		})
		problems = append(wrong, problems...)
		if cfg != nil || len(left) == len(docs) {
			if cfg != nil {
				cfg.Warnings = problems
			}
			return cfg, problems
		}
		wrong = slices.DeleteFunc(problems, func(p Problem) bool {
			return slices.ContainsFunc(left, func(d Document) bool { return d.Name == p.File }) || !slices.ContainsFunc(docs, func(d Document) bool { return d.Name == p.File })
		})
		docs = left
	}
}

// one reads a document of another source than a file.
func (l *loader) one(d Document) {
	if d.Namespace != "" {
		defer func(before string) { l.o.Namespace = before }(l.o.Namespace)
		l.o.Namespace = d.Namespace
	}
	before := len(l.cfg.Pickers)
	l.files = append(l.files, d.Name)
	l.digestOf(d.Name, d.Data)
	if len(bytes.TrimSpace(d.Data)) == 0 && d.Needed {
		l.report(Problem{Severity: Error, File: d.Name, Text: "is empty"})
	}
	for _, root := range parse(d.Data, d.Name, l.report) {
		l.document(&document{loader: l, file: d.Name, abs: d.Name, size: len(d.Data), root: root})
	}
	for _, p := range l.cfg.Pickers[before:] {
		if p.Name == "" && d.Picker != "" {
			p.Name, p.Namespace, p.own = d.Picker, d.Namespace, true
		}
	}
}
