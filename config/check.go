// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"strings"
)

// Check reads files and folders and prints what there is to say about them, sorted by file and
// line, and a summary. The files need not be a whole deployment. It returns the exit status: 1
// when something is wrong, else 0.
func Check(w io.Writer, paths []string, o Options) int {
	l := newLoader(o)
	l.partial = true
	l.paths(paths)
	_, ps := l.finish()
	return l.print(w, ps)
}

// print writes the problems and the summary, and returns the exit status.
func (l *loader) print(w io.Writer, ps []Problem) int {
	wrong, warnings := 0, 0
	for _, p := range ps {
		switch p.Severity {
		case Note:
			fmt.Fprintln(w, p.render("note: "))
		case Warning:
			warnings++
			fmt.Fprintln(w, p.render("warning: "))
		default:
			wrong++
			fmt.Fprintln(w, p)
		}
	}
	if len(l.old) > 0 {
		fmt.Fprintf(w, "penstock migrate %s shows what to write today\n", strings.Join(l.old, " "))
	}
	fmt.Fprintf(w, "%s, %s: %s, %s\n", count(len(l.files), "file"), count(l.docs, "document"), count(wrong, "error"), count(warnings, "warning"))
	if wrong > 0 {
		return 1
	}
	return 0
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
