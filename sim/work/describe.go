// SPDX-License-Identifier: Apache-2.0

package work

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// List writes, for people, what workloads there are; with a name, the parameters of that kind, or
// what a named one stands for.
func List(out io.Writer, name string) error {
	if name == "" {
		return listAll(out)
	}
	if n := find(name); n != nil {
		_, err := fmt.Fprintf(out, "%s\n\n%s\n\n  %s\n", n.Name, n.Doc, n.Spec)
		return err
	}
	if s, ok := Suites[name]; ok {
		fmt.Fprintf(out, "%s is there %s:\n\n", name, s.Doc)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, n := range s.Workloads {
			fmt.Fprintf(w, "  %s\t%s\n", n, find(n).Doc)
		}
		return w.Flush()
	}
	kinds := slices.Concat(Kinds(), []Kind{traceKind}, faultKinds)
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return unknown("workload: no", name, slices.Concat(kindNames(kinds), everyName(), SuiteNames()))
	}
	fmt.Fprintf(out, "%s\n\n%s\n\n", name, kinds[i].Doc)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range kinds[i].Params {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", p.Name, p.Default, p.Range(), p.Doc)
	}
	return w.Flush()
}

func listAll(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, doc string) { fmt.Fprintf(w, "  %s\t%s\n", name, doc) }
	fmt.Fprintln(w, "Kinds, with parameters as in chat?rate=5&think=10s:")
	for _, k := range Kinds() {
		line(k.Name, k.Doc)
	}
	fmt.Fprintln(w, "\nTraces, with parameters as in trace:FILE?repeat=2:")
	for _, f := range []string{mooncake, azure, accessLog} {
		line(f+":FILE", formats[f])
	}
	line(whichever+":FILE", "any of these")
	fmt.Fprintln(w, "\nNamed ones:")
	for _, n := range named {
		line(n.Name, n.Doc)
	}
	fmt.Fprintln(w, "\nSuites of them:")
	for _, s := range SuiteNames() {
		line(s, Suites[s].Doc+": "+strings.Join(Suites[s].Workloads, ", "))
	}
	fmt.Fprintln(w, "\nSeveral at once, with \" + \" between two: chat?rate=5 + batch?rate=2")
	return w.Flush()
}

// SuiteNames lists the suites, sorted.
func SuiteNames() []string {
	names := make([]string, 0, len(Suites))
	for s := range Suites {
		names = append(names, s)
	}
	slices.Sort(names)
	return names
}

// Range says in words what the parameter may be.
func (p *Param) Range() string {
	switch {
	case len(p.Choices) > 0:
		return strings.Join(p.Choices, ", ")
	case p.Unit == Word, p.Unit == Shares:
		return string(p.Unit)
	case p.Unit == Duration, p.Unit == Span:
		return fmt.Sprintf("%s, %s to %s", p.Unit, secs(p.Min), secs(p.Max))
	}
	return fmt.Sprintf("%s, %s to %s", p.Unit, strconv.FormatFloat(p.Min, 'f', -1, 64), strconv.FormatFloat(p.Max, 'f', -1, 64))
}
