// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// What the page shows at most, so that it stays readable and below a few megabytes whatever was run. The rest is in the JSON.
const (
	mostRungs  = 40 // with a table of results
	mostDetail = 12 // with distributions
	mostCurves = 3 * inks
	mostTimed  = 24 // plots over time of one sort
	mostRows   = 24 // of a heat strip
	mostPeople = 12 // tenants
)

// HTML writes one page that needs nothing else: no network, no script.
func (r *Report) HTML(w io.Writer) error {
	r.finish()
	p := &painter{r: r, rungs: r.rungs(), policies: r.policies()}
	var b strings.Builder
	if err := pageTemplate.Execute(&b, p.page()); err != nil {
		return err
	}
	// The template takes care of markup; what turns the direction of a text, or is no text, goes here.
	_, err := io.WriteString(w, strings.Map(func(c rune) rune {
		if c != '\n' && !unicode.IsPrint(c) {
			return '\uFFFD'
		}
		return c
	}, b.String()))
	return err
}

// page is what the template shows.
type page struct {
	Title    string
	Answers  []string
	Scope    string
	Command  string
	Sections []section
	Reading  []string
}

type section struct {
	ID, Title, Text string
	Blocks          []block
}

type block struct {
	Title, Text, Note string
	Tables            []table
	Key               []swatch
	Figs              []fig
}

type swatch struct{ Name, Ink string }

type fig struct {
	Title, Text string
	SVG         template.HTML
	Numbers     *table
}

type table struct {
	Title string
	Head  []string
	Rows  []line
}

type line struct {
	Name  string
	More  string
	Ink   string
	Best  bool
	Cells []cell
}

type cell struct{ Text, More, Class string }

// painter makes the parts of the page.
type painter struct {
	r        *Report
	rungs    []*rung
	policies []string
}

func (p *painter) ink(policy string) int { return slices.Index(p.policies, policy) }

func (p *painter) page() *page {
	out := &page{Title: p.r.Title, Command: p.r.Command, Reading: p.reading()}
	if out.Title == "" {
		out.Title = "Penstock report"
	}
	out.Answers, out.Scope = p.answers(), p.scope()
	for _, s := range []section{
		p.results(), p.notes(), p.regret(), p.ladder(), p.latency(), p.sideBySide(), p.queue(), p.tenants(), p.classes(), p.endpoints(), p.errors(), p.client(),
	} {
		if len(s.Blocks) > 0 {
			out.Sections = append(out.Sections, s)
		}
	}
	return out
}

// answers are the sentences at the top.
func (p *painter) answers() []string {
	if p.r.Baseline != "" {
		return p.differences()
	}
	if len(p.policies) < 2 {
		return nil
	}
	var out []string
	if len(p.rungs) == 1 {
		g := p.rungs[0]
		best := g.best()
		if best == nil {
			return []string{"Nothing was completed."}
		}
		var rest []string
		for i := range g.rows {
			if w := &g.rows[i]; w.policy != best.policy && w.ttft.N > 0 && len(rest) < 4 {
				rest = append(rest, fmt.Sprintf("%s %s", w.policy, span(w.ttft.Mean)))
			}
		}
		return []string{fmt.Sprintf("%s has the least mean time to first token: %s (%s).", best.policy, span(best.ttft.Mean), strings.Join(rest, ", "))}
	}
	wins := map[string]int{}
	for _, g := range p.rungs {
		if b := g.best(); b != nil {
			wins[b.policy]++
		}
	}
	var parts []string
	for _, q := range slices.SortedStableFunc(slices.Values(p.policies), func(a, b string) int { return wins[b] - wins[a] }) {
		if wins[q] > 0 && len(parts) < 4 {
			parts = append(parts, fmt.Sprintf("%s in %d", q, wins[q]))
		}
	}
	if len(parts) > 0 {
		out = append(out, fmt.Sprintf("Least mean time to first token, of %d workloads and rates: %s.", len(p.rungs), strings.Join(parts, ", ")))
	}
	if len(p.r.Regret) > 0 {
		if b := p.r.Regret[0]; b.Failed == 0 && b.Mean > 0 {
			out = append(out, fmt.Sprintf("Least regret over all of them: %s, mean %s, worst %s.", b.Policy, number(b.Mean), number(b.Worst)))
		}
	}
	return out
}

// differences say what a policy costs over the baseline.
func (p *painter) differences() []string {
	var out []string
	for _, g := range p.rungs {
		base := g.row(p.r.Baseline)
		for i := range g.rows {
			w := &g.rows[i]
			if base == nil || w == base || len(out) > 4 {
				continue
			}
			a, b := w.over(figP50.of), base.over(figP50.of)
			c, d := w.over(figP99.of), base.over(figP99.of)
			if a.N == 0 || b.N == 0 {
				continue
			}
			out = append(out, fmt.Sprintf("%s against %s: time to first token %s at the median, %s at p99.", w.policy, base.policy, signed(a.Mean-b.Mean), signed(c.Mean-d.Mean)))
		}
	}
	return out
}

func signed(ms float64) string {
	if ms >= 0 {
		return "+" + span(ms)
	}
	return "−" + span(-ms)
}

func (p *painter) scope() string {
	requests := 0
	var seeds []uint64
	for i := range p.r.Runs {
		requests += p.r.Runs[i].Requests
		if s := p.r.Runs[i].Seed; !slices.Contains(seeds, s) && len(seeds) <= 8 {
			seeds = append(seeds, s)
		}
	}
	if len(p.r.Runs) == 0 {
		return "Nothing was run."
	}
	var rates []float64
	for _, g := range p.rungs {
		if !slices.Contains(rates, g.rate) {
			rates = append(rates, g.rate)
		}
	}
	policies := fmt.Sprintf("%d policies", len(p.policies))
	if len(p.policies) <= 3 {
		policies = strings.Join(p.policies, ", ")
	}
	text := fmt.Sprintf("%s, %s, %s, ", policies, count(len(p.r.Workloads), "workload"), count(len(rates), "rate"))
	if len(seeds) == 1 {
		text += fmt.Sprintf("seed %d", seeds[0])
	} else if len(seeds) <= 8 {
		var names []string
		for _, s := range seeds {
			names = append(names, strconv.FormatUint(s, 10))
		}
		text += "seeds " + strings.Join(names, ", ")
	} else {
		text += "many seeds"
	}
	text += fmt.Sprintf(": %s, %s.", count(len(p.r.Runs), "run"), count(requests, "request"))
	for i, s := range p.r.slos() {
		if i < 3 {
			text += " SLO: " + s.String() + "."
		}
	}
	return text
}

// results is the table of each rung.
func (p *painter) results() section {
	s := section{ID: "results", Title: "Results"}
	for i, g := range p.rungs {
		if i == mostRungs {
			s.Text = fmt.Sprintf("The first %d of %d workloads and rates; the others are in the JSON.", mostRungs, len(p.rungs))
			break
		}
		s.Blocks = append(s.Blocks, block{Title: g.String(), Tables: []table{p.result(g)}})
	}
	return s
}

func (p *painter) result(g *rung) table {
	type col struct {
		figure
		time  bool
		dull  bool // left out when 0 everywhere
		noise bool // with min–max, where there are several seeds
	}
	cols := []col{
		{figure: figure{name: "TTFT mean", of: meanTTFT}, time: true, noise: true},
		{figure: figure{name: "p50", of: figP50.of}, time: true},
		{figure: figure{name: "p90", of: figP90.of}, time: true},
		{figure: figure{name: "p99", of: figP99.of}, time: true},
		{figure: figure{name: "TPOT mean", of: figTPOT.of}, time: true},
		{figure: figHit}, {figure: figGood, dull: true, noise: true}, {figure: figRate},
		{figure: figure{name: "queue", of: figQueue.of}, time: true, dull: true}, {figure: figErr, dull: true}, {figure: figJain, dull: true},
		{figure: figure{name: "regret", of: func(x *Run) (float64, bool) {
			return x.Regret, x.Regret > 0 && len(p.policies) > 1 && p.r.Baseline == ""
		}, text: number}, dull: true},
		{figure: figure{name: "output tok/s", of: func(x *Run) (float64, bool) { return x.OutputTokensPerS, true }, text: number, higher: true}, dull: true},
	}
	t := table{Title: "Results of " + g.String(), Head: []string{"policy"}}
	for i := range g.rows {
		w := &g.rows[i]
		more := ""
		if w.failed {
			more = "dropped work"
		}
		t.Rows = append(t.Rows, line{Name: w.policy, More: more, Ink: ink(p.ink(w.policy)), Best: w.best})
	}
	type shown struct {
		text  func(float64) string
		stats []Stat
	}
	var kept []shown
	for _, c := range cols {
		text := c.text
		if c.time {
			text = span
		}
		stats := make([]Stat, len(g.rows))
		says, best := false, math.Inf(1)
		for i := range g.rows {
			stats[i] = g.rows[i].over(c.of)
			says = says || stats[i].N > 0 && (!c.dull || stats[i].Max > 0)
			if v := stats[i].Mean; stats[i].N > 0 && !g.rows[i].failed {
				if c.higher {
					v = -v
				}
				best = min(best, v)
			}
		}
		same := true
		for i := range stats {
			same = same && text(stats[i].Mean) == text(stats[0].Mean)
		}
		if !says || c.title == figJain.title && same {
			continue
		}
		t.Head = append(t.Head, c.name)
		kept = append(kept, shown{text, stats})
		for i, s := range stats {
			if s.N == 0 {
				t.Rows[i].Cells = append(t.Rows[i].Cells, cell{Text: "–"})
				continue
			}
			x := cell{Text: text(s.Mean)}
			if low, high := text(s.Min), text(s.Max); c.noise && s.N > 1 && low != high {
				x.More = between(low, high)
			}
			if v := s.Mean; (v == best || c.higher && -v == best) && !same && !g.rows[i].failed && p.r.Baseline == "" {
				x.Class = "best"
			}
			t.Rows[i].Cells = append(t.Rows[i].Cells, x)
		}
	}
	at := slices.IndexFunc(g.rows, func(w row) bool { return w.policy == p.r.Baseline })
	for i := range g.rows {
		if at < 0 || i == at {
			continue
		}
		l := line{Name: g.rows[i].policy + " − " + p.r.Baseline}
		for _, k := range kept {
			x, sign := cell{}, "+"
			if k.stats[i].N > 0 && k.stats[at].N > 0 {
				d := k.stats[i].Mean - k.stats[at].Mean
				if d < 0 {
					d, sign = -d, "−"
				}
				x.Text = sign + k.text(d)
			}
			l.Cells = append(l.Cells, x)
		}
		t.Rows = append(t.Rows, l)
	}
	return t
}

// between is a range whose unit stands once: 312–314 ms.
func between(low, high string) string {
	if low == high {
		return low
	}
	if _, unit, ok := strings.Cut(high, " "); ok {
		low = strings.TrimSuffix(low, " "+unit)
	}
	if strings.HasSuffix(high, "%") {
		low = strings.TrimSuffix(low, "%")
	}
	return low + "–" + high
}
