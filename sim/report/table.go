// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Width is how many columns Table fills at most.
const Width = 80

// column is a figure of a terminal's table. One that says nothing is left out; those with the highest drop
// go first when there is no room.
type column struct {
	figure
	time bool // in the unit of TTFT
	span bool // its min–max, where there are several seeds
	drop int
	dull string // left out when it is this everywhere
}

var columns = []column{
	{figure: figTTFT, time: true},
	{figure: figure{title: "min–max", of: meanTTFT}, time: true, span: true},
	{figure: figP50, time: true, drop: 2},
	{figure: figP90, time: true, drop: 1},
	{figure: figP99, time: true},
	{figure: figTPOT},
	{figure: figHit},
	{figure: figGood},
	{figure: figRate},
	{figure: figQueue, time: true, dull: "0"},
	{figure: figErr, dull: "0%"},
	{figure: figJain, drop: 3, dull: "1.00"},
}

// Table writes what a person at a terminal reads, Width columns wide: a block for each workload and rate
// with a line for each policy, then regret where policies were compared on several, errors, notes, and
// the command that repeats it.
func (r *Report) Table(w io.Writer) error {
	r.finish()
	b := bufio.NewWriter(w)
	rungs := r.rungs()
	if len(rungs) == 0 {
		_, _ = fmt.Fprintln(b, "nothing was run")
	}
	marks := legend{baseline: r.Baseline}
	for _, g := range rungs {
		r.block(b, g, &marks)
	}
	if len(r.Regret) > 1 && len(rungs) > 1 {
		r.regretBlock(b, len(rungs))
	}
	marks.write(b)
	for _, slo := range r.slos() {
		_, _ = fmt.Fprintln(b, "good: requests that kept "+slo.String())
	}
	r.errorLines(b)
	r.clientLines(b)
	for _, n := range r.Notes {
		_, _ = fmt.Fprintf(b, "note: %s\n", plain(n))
	}
	if r.Command != "" {
		_, _ = fmt.Fprintf(b, "again: %s\n", plain(r.Command))
	}
	return b.Flush()
}

// legend remembers which marks need to be explained.
type legend struct {
	best, near, failed bool
	baseline           string // with one, nothing is the best
}

func (l *legend) mark(g *rung, w *row) string {
	switch {
	case l.baseline != "":
		return "  "
	case w.best:
		l.best = true
		return "* "
	case w.failed:
		l.failed = true
		return "! "
	}
	if best := g.best(); best != nil && w.ttft.N > 1 && w.ttft.Min <= best.ttft.Max {
		l.near = true
		return "~ "
	}
	return "  "
}

func (l *legend) write(b io.Writer) {
	if l.best {
		_, _ = fmt.Fprintln(b, "* least mean TTFT")
	}
	if l.near {
		_, _ = fmt.Fprintln(b, "~ not told apart from the best by these seeds (min–max overlap)")
	}
	if l.failed {
		_, _ = fmt.Fprintln(b, "! dropped requests that another policy completed, so its times flatter")
	}
}

// block is one rung.
func (r *Report) block(b io.Writer, g *rung, marks *legend) {
	unit, in := "ms", 1.0
	requests := 0
	var seeds []uint64
	for i := range g.rows {
		for _, x := range g.rows[i].runs {
			if x.TTFT.P99 >= 9999.5 {
				unit, in = "s", 1e3
			}
			requests = max(requests, x.Requests)
			if !slices.Contains(seeds, x.Seed) {
				seeds = append(seeds, x.Seed)
			}
		}
	}
	head := fmt.Sprintf("%s, %s", plain(g.String()), count(requests, "request"))
	if len(seeds) > 1 {
		head += fmt.Sprintf(", mean of %d seeds", len(seeds))
	} else {
		head += fmt.Sprintf(", seed %d", seeds[0])
	}
	wrap(b, head)

	var cells [][]string // by column; the first is the title
	var kept []column
	for _, c := range columns {
		if cs := c.cells(g, in, r.Baseline); cs != nil {
			cells, kept = append(cells, cs), append(kept, c)
		}
	}
	names := []string{"policy"}
	for i := range g.rows {
		names = append(names, plain(g.rows[i].policy))
	}
	for i := range g.rows {
		if d := g.rows[i].policy; r.Baseline != "" && d != r.Baseline && g.row(r.Baseline) != nil {
			names = append(names, "− "+plain(r.Baseline))
		}
	}
	name := min(24, longest(names))
	for drop := 3; ; drop-- {
		room := Width - 2
		for _, c := range cells {
			room -= 1 + longest(c)
		}
		if room >= name {
			break
		}
		if name > 16 && room >= 12 || drop == 0 {
			name = max(12, room)
			break
		}
		for i := len(kept) - 1; i >= 0; i-- {
			if kept[i].drop == drop {
				cells, kept = slices.Delete(cells, i, i+1), slices.Delete(kept, i, i+1)
			}
		}
	}

	over := "" // which columns are times to the first token
	at, end := 2+name, 2+name
	for i, c := range kept {
		end += 1 + longest(cells[i])
		if c.title == "p99" {
			break
		}
	}
	if label := "TTFT, " + unit; end-at > len(label)+4 && kept[0].title == figTTFT.title {
		rest := end - at - 1 - len(label) - 2
		over = strings.Repeat(" ", at+1) + strings.Repeat("─", rest/2) + " " + label + " " + strings.Repeat("─", rest-rest/2)
		if slices.ContainsFunc(kept, func(c column) bool { return c.title == "TPOT" }) {
			over += strings.Repeat(" ", max(1, 1+longest(cells[slices.IndexFunc(kept, func(c column) bool { return c.title == "TPOT" })])-2)) + "ms"
		}
	}
	if over != "" {
		_, _ = fmt.Fprintln(b, over)
	}
	for line := range names {
		mark := "  "
		if line > 0 && line <= len(g.rows) {
			mark = marks.mark(g, &g.rows[line-1])
		}
		text := mark + padRight(shorten(names[line], name), name)
		for _, c := range cells {
			text += " " + padLeft(c[line], longest(c))
		}
		_, _ = fmt.Fprintln(b, strings.TrimRight(text, " "))
	}
	_, _ = fmt.Fprintln(b)
}

// cells are a column's title, a cell for each row, and one for each difference to the baseline; nil when it says nothing.
func (c column) cells(g *rung, in float64, baseline string) []string {
	out := []string{c.title}
	says := false
	text := c.text
	if text == nil {
		text = number
	}
	if !c.time {
		in = 1
	}
	var base Stat
	if w := g.row(baseline); w != nil {
		base = w.over(c.of)
	}
	var diffs []string
	for i := range g.rows {
		w := &g.rows[i]
		s := w.over(c.of)
		switch {
		case c.span && s.N > 1:
			out, says = append(out, text(s.Min/in)+"–"+text(s.Max/in)), true
		case c.span:
			out = append(out, "")
		case s.N == 0:
			out = append(out, "–")
		default:
			out = append(out, text(s.Mean/in))
			says = says || out[len(out)-1] != c.dull
		}
		if baseline != "" && w.policy != baseline && g.row(baseline) != nil {
			d := ""
			if !c.span && s.N > 0 && base.N > 0 {
				d = text((s.Mean - base.Mean) / in)
				if s.Mean >= base.Mean {
					d = "+" + d
				}
			}
			diffs = append(diffs, d)
		}
	}
	if !says {
		return nil
	}
	return append(out, diffs...)
}

// slos are those that were asked for, without what is said twice.
func (r *Report) slos() []SLO {
	var out []SLO
	for i := range r.Runs {
		if s := r.Runs[i].SLO; s != (SLO{}) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func (r *Report) regretBlock(b io.Writer, cells int) {
	wrap(b, fmt.Sprintf("TTFT regret over %d workloads and rates: (TTFT + 0.1 s) / (the best's + 0.1 s)", cells))
	names := []string{"policy"}
	for _, p := range r.Regret {
		names = append(names, plain(p.Policy))
	}
	name := min(24, longest(names))
	_, _ = fmt.Fprintf(b, "  %s   mean  worst  where\n", padRight("policy", name))
	for i, p := range r.Regret {
		mark := "  "
		if i == 0 && p.Failed == 0 {
			mark = "* "
		}
		mean, worst, where := "–", "–", ""
		if p.Mean > 0 {
			mean, worst = number(p.Mean), number(p.Worst)
			for _, c := range p.Cells {
				if c.Regret == p.Worst && p.Worst > 1 {
					where = plain(at(c.Workload, c.Rate))
					break
				}
			}
		}
		if p.Failed > 0 {
			mark = "! "
			where += fmt.Sprintf(" (dropped work in %d)", p.Failed)
		}
		text := fmt.Sprintf("%s%s %6s %6s  %s", mark, padRight(shorten(plain(p.Policy), name), name), mean, worst,
			shorten(strings.TrimSpace(where), Width-2-name-16))
		_, _ = fmt.Fprintln(b, strings.TrimRight(text, " "))
	}
	_, _ = fmt.Fprintln(b)
}

// errorLines say which kinds of errors there were, and whose.
func (r *Report) errorLines(b io.Writer) {
	total := map[string]int{}
	by := map[string]map[string]int{}
	for i := range r.Runs {
		for kind, n := range r.Runs[i].Errors {
			if by[kind] == nil {
				by[kind] = map[string]int{}
			}
			total[kind] += n
			by[kind][r.Runs[i].Policy] += n
		}
	}
	kinds := slices.SortedFunc(maps.Keys(total), func(a, b string) int {
		return cmp.Or(cmp.Compare(total[b], total[a]), cmp.Compare(a, b))
	})
	for _, kind := range kinds {
		var parts []string
		for _, p := range r.policies() {
			if n := by[kind][p]; n > 0 {
				parts = append(parts, plain(p)+" "+commas(float64(n)))
			}
		}
		wrap(b, fmt.Sprintf("error %s: %s", plain(kind), strings.Join(parts, ", ")))
	}
}

// clientLines say what it cost to send the load, where it was sent in real time.
func (r *Report) clientLines(b io.Writer) {
	for i := range r.Runs {
		x := &r.Runs[i]
		if c := x.Client; c != nil {
			text := fmt.Sprintf("client, %s: %s of %s, sent %s late (p99)", plain(x.Policy), percent(c.Busy), count(c.Cores, "core"), span(c.Late.P99))
			if c.Saturated {
				text += ": SATURATED, these times are partly its own; send less or from more cores"
			}
			wrap(b, text)
		}
	}
}

// wrap writes a line of words in lines of Width.
func wrap(b io.Writer, text string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > Width {
			_, _ = fmt.Fprintln(b, line)
			line = "   "
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	_, _ = fmt.Fprintln(b, line)
}

// plain has no control characters: names come from files, and a terminal would obey them.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return commas(float64(n)) + " " + what
}

func longest(texts []string) int {
	n := 0
	for _, t := range texts {
		n = max(n, utf8.RuneCountInString(t))
	}
	return n
}

// shorten leaves the middle out: names differ at their ends.
func shorten(s string, n int) string {
	c := []rune(s)
	if len(c) <= n {
		return s
	}
	if n < 2 {
		return "…"
	}
	tail := (n - 1) / 2
	return string(c[:n-1-tail]) + "…" + string(c[len(c)-tail:])
}

func padRight(s string, n int) string {
	return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s)))
}
func padLeft(s string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s
}
