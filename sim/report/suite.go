// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Suite is the figures of a report that are checked in, as a table of Markdown, so that a change that makes
// one worse is noticed.
type Suite []SuiteRow

// SuiteRow is what one policy did with one workload and rate.
type SuiteRow struct {
	Workload string
	Rate     float64
	Policy   string
	Seeds    int
	Figures  []Stat // in the order of the table's columns; N is 0 for one that was not measured
}

// inSuite are the columns of a suite's table, as far as anything has them.
var inSuite = []figure{figTTFT, figP99, figLight, figTPOT, figHit, figGood, figRate, figErr, figJain}

// where are the columns before the figures.
var where = []string{"workload", "rate", "policy", "seeds"}

// Suite picks the figures of a suite.
func (r *Report) Suite() Suite {
	r.finish()
	var out Suite
	for _, g := range r.rungs() {
		for i := range g.rows {
			row := SuiteRow{Workload: g.workload, Rate: g.rate, Policy: g.rows[i].policy, Seeds: len(g.rows[i].runs)}
			for _, f := range inSuite {
				s := g.rows[i].over(f.of)
				s.Mean, s.Min, s.Max = four(s.Mean), four(s.Min), four(s.Max)
				row.Figures = append(row.Figures, s)
			}
			out = append(out, row)
		}
	}
	return out
}

// four keeps four digits: what a table shows is what is compared.
func four(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return x
}

// Markdown writes the table: a mean, and in brackets the least and the most over seeds where they differ.
func (s Suite) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	has := func(f int) bool { return slices.ContainsFunc(s, func(r SuiteRow) bool { return r.Figures[f].N > 0 }) }
	_, _ = b.WriteString("| " + strings.Join(where, " | ") + " |")
	under := "\n|---|--:|---|--:|"
	for i, f := range inSuite {
		if has(i) {
			_, _ = fmt.Fprintf(b, " %s |", f.name)
			under += "--:|"
		}
	}
	_, _ = b.WriteString(under + "\n")
	for i := range s {
		row := &s[i]
		_, _ = fmt.Fprintf(b, "| %s | %s | %s | %d |", cellText(row.Workload), exactly(row.Rate), cellText(row.Policy), row.Seeds)
		for i, f := range row.Figures {
			switch {
			case f.N == 0 && !has(i):
			case f.N == 0:
				_, _ = b.WriteString(" – |")
			case f.Min == f.Max:
				_, _ = fmt.Fprintf(b, " %s |", exactly(f.Mean))
			default:
				_, _ = fmt.Fprintf(b, " %s (%s–%s) |", exactly(f.Mean), exactly(f.Min), exactly(f.Max))
			}
		}
		_ = b.WriteByte('\n')
	}
	return b.Flush()
}

// Put writes the table in place of the one that stands in a text, or behind a text without.
func (s Suite) Put(text string) string {
	var table strings.Builder
	_ = s.Markdown(&table)
	lines := strings.SplitAfter(text, "\n")
	from := slices.IndexFunc(lines, func(line string) bool { _, ok := suiteHead(line); return ok })
	if from < 0 {
		if text != "" {
			text = strings.TrimRight(text, "\n") + "\n\n"
		}
		return text + table.String()
	}
	to := from
	for to < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[to]), "|") {
		to++
	}
	return strings.Join(lines[:from], "") + table.String() + strings.Join(lines[to:], "")
}

// suiteHead reads the columns of figures of the first line of a suite's table.
func suiteHead(line string) (figures []string, ok bool) {
	cells, ok := splitRow(strings.TrimSpace(line))
	if !ok || len(cells) < len(where) || !slices.Equal(cells[:len(where)], where) {
		return nil, false
	}
	return cells[len(where):], true
}

func exactly(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// cellText cannot end a cell or a line.
func cellText(s string) string { return strings.ReplaceAll(plain(s), "|", "/") }

// ParseSuite reads the table that Markdown wrote, wherever it stands in a text. Errors name the line.
func ParseSuite(in io.Reader) (Suite, error) {
	var out Suite
	lines := bufio.NewScanner(io.LimitReader(in, 16<<20))
	lines.Buffer(nil, 1<<20)
	var order []int // of the columns: the figure that stands there, or -1
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		cells, ok := splitRow(line)
		switch {
		case !ok && order != nil:
			return out, nil
		case !ok:
		case order == nil:
			figures, ok := suiteHead(line)
			if !ok {
				continue
			}
			order = []int{}
			for _, c := range figures {
				order = append(order, slices.IndexFunc(inSuite, func(f figure) bool { return f.name == c }))
			}
		case strings.HasPrefix(cells[0], "---"):
		default:
			row, err := parseRow(cells, order)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			out = append(out, row)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if order == nil {
		return nil, fmt.Errorf("there is no table that begins with the columns %s", strings.Join(where, ", "))
	}
	return out, nil
}

func splitRow(line string) ([]string, bool) {
	inner, ok := strings.CutPrefix(line, "|")
	if !ok {
		return nil, false
	}
	cells := strings.Split(strings.TrimSuffix(inner, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells, true
}

func parseRow(cells []string, order []int) (SuiteRow, error) {
	if len(cells) != len(where)+len(order) {
		return SuiteRow{}, fmt.Errorf("%d columns; the table has %d", len(cells), len(where)+len(order))
	}
	rate, err := parseNumber(cells[1])
	if err != nil {
		return SuiteRow{}, fmt.Errorf("rate: %w", err)
	}
	seeds, err := strconv.Atoi(cells[3])
	if err != nil || seeds < 1 {
		return SuiteRow{}, fmt.Errorf("seeds: %q; want a number above 0", cells[3])
	}
	row := SuiteRow{Workload: cells[0], Rate: rate, Policy: cells[2], Seeds: seeds, Figures: make([]Stat, len(inSuite))}
	for i, text := range cells[len(where):] {
		if order[i] < 0 || text == "–" {
			continue
		}
		s := Stat{N: seeds}
		mean, rest, several := strings.Cut(text, " (")
		if s.Mean, err = parseNumber(mean); err != nil {
			return row, fmt.Errorf("%s: %w", inSuite[order[i]].name, err)
		}
		s.Min, s.Max = s.Mean, s.Mean
		if several {
			low, high, ok := strings.Cut(strings.TrimSuffix(rest, ")"), "–")
			if !ok {
				return row, fmt.Errorf("%s: %q; want a mean, or mean (min–max)", inSuite[order[i]].name, text)
			}
			if s.Min, err = parseNumber(low); err == nil {
				s.Max, err = parseNumber(high)
			}
			if err != nil {
				return row, fmt.Errorf("%s: %w", inSuite[order[i]].name, err)
			}
		}
		row.Figures[order[i]] = s
	}
	return row, nil
}

func parseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return v, nil
}

// Change is a figure that differs by more than its noise.
type Change struct {
	Workload, Policy string
	Rate             float64
	Figure           string // empty when the whole row is missing
	Before, After    Stat
	Noise            float64
	Worse            bool
}

// String says it in a line.
func (c Change) String() string {
	where := at(c.Workload, c.Rate) + ", " + c.Policy
	if c.Figure == "" {
		return where + ": was measured before and is not now"
	}
	word := "better"
	if c.Worse {
		word = "worse"
	}
	if c.After.N == 0 {
		return fmt.Sprintf("%s: %s was %s and is not measured now", where, c.Figure, exactly(c.Before.Mean))
	}
	return fmt.Sprintf("%s: %s is %s: before %s, after %s, noise %s", where, c.Figure, word, exactly(c.Before.Mean), exactly(c.After.Mean), exactly(two(c.Noise)))
}

// two keeps two digits.
func two(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 2, 64), 64)
	return x
}

// deviation is the standard deviation of a normal quantity by the expected range of so many values of it.
func (s *Stat) deviation() float64 {
	ranges := [...]float64{0, 0, 1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078}
	if s.N < 2 {
		return 0
	}
	return (s.Max - s.Min) / ranges[min(s.N, len(ranges)-1)]
}

// sigmas is how many standard deviations a difference must have to be none of chance. With some hundred figures in a table
// one in a thousand is too many.
const sigmas = 4

// Compare holds a suite against an earlier one. A figure changed when its mean differs from the one before by more than its
// noise: four standard deviations of a difference between two means over as many seeds. The deviation is that of its own
// seeds or, because a few may happen to agree, that which three quarters of all rows stay below, relative to their means. What does
// not matter (5 ms, half a percent …) or is less than 2 % is no change either. A row or figure that is missing now is worse;
// a new one is nothing. Worse ones come first, otherwise the order is that of before.
func Compare(before, after Suite) []Change {
	usual := make([]float64, len(inSuite)) // relative deviations
	for f := range inSuite {
		var all []float64
		for i := range before {
			if s := &before[i].Figures[f]; s.N > 1 && s.Mean != 0 {
				all = append(all, s.deviation()/math.Abs(s.Mean))
			}
		}
		if slices.Sort(all); len(all) > 0 {
			usual[f] = all[len(all)*3/4]
		}
	}
	var worse, better []Change
	for i := range before {
		b := &before[i]
		c := Change{Workload: b.Workload, Policy: b.Policy, Rate: b.Rate}
		at := slices.IndexFunc(after, func(a SuiteRow) bool {
			return cellText(a.Workload) == cellText(b.Workload) && a.Rate == b.Rate && cellText(a.Policy) == cellText(b.Policy)
		})
		if at < 0 {
			c.Worse = true
			worse = append(worse, c)
			continue
		}
		for f := range inSuite {
			c.Figure, c.Before, c.After = inSuite[f].name, b.Figures[f], after[at].Figures[f]
			mean := math.Abs(c.Before.Mean)
			chance := sigmas * max(c.Before.deviation(), usual[f]*mean) * math.Sqrt(2/float64(max(1, c.Before.N)))
			c.Noise = max(chance, inSuite[f].least, 0.02*mean)
			switch d := c.After.Mean - c.Before.Mean; {
			case c.Before.N == 0:
			case c.After.N == 0:
				c.Worse = true
				worse = append(worse, c)
			case math.Abs(d) <= c.Noise:
			case (d > 0) != inSuite[f].higher:
				c.Worse = true
				worse = append(worse, c)
			default:
				c.Worse = false
				better = append(better, c)
			}
		}
	}
	return append(worse, better...)
}
