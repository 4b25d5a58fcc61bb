// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

// Severity tells what a problem means for the configuration that has it.
type Severity int

// The severities, from the mildest. An Error makes the configuration unusable. Skipped is one
// entry of a list of endpoints that was left out, while the rest is used. A Warning is
// accepted. A Note is for whoever asks what was ignored.
const (
	Note Severity = iota
	Warning
	Skipped
	Error
)

// Problem is something the operator should know.
type Problem struct {
	Severity Severity
	// File is as the operator named it; Line counts from 1, 0 for the file as a whole.
	File string
	Line int
	// Path is the field, such as plugins[2].parameters.path; empty for the document.
	Path string
	// Text is what is wrong and what would be right.
	Text string
	// Elsewhere tells that an object names a pool that is not here, which may be another gateway's.
	Elsewhere bool
}

// String renders the problem as file:line: path: text.
func (p Problem) String() string { return p.render("") }

// render puts a word for the severity behind the line.
func (p Problem) render(word string) string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(word)
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Problems is an error made of problems.
type Problems []Problem

// Error lists the problems, a line each.
func (ps Problems) Error() string {
	lines := make([]string, 0, len(ps))
	for _, p := range ps {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Failed reports whether the problems make a configuration unusable.
func Failed(ps []Problem) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.Severity == Error })
}
