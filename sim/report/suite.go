// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"errors"
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
	Figures  []Stat // in the order of the table's columns; N is 0 for one that was not measured
}

// inSuite are the columns of a suite's table.
var inSuite = []figure{figTTFT, figP99, figLight, figTPOT, figHit, figGood, figRate, figQueue, figErr, figJain}

// Suite picks the figures of a suite.
func (r *Report) Suite() Suite {
	r.finish()
	var out Suite
	for _, g := range r.rungs() {
		for i := range g.rows {
			row := SuiteRow{Workload: g.workload, Rate: g.rate, Policy: g.rows[i].policy}
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
	_, _ = b.WriteString("| workload | rate | policy |")
	for _, f := range inSuite {
		_, _ = fmt.Fprintf(b, " %s |", f.name)
	}
	_, _ = b.WriteString("\n|---|--:|---|" + strings.Repeat("--:|", len(inSuite)) + "\n")
	for i := range s {
		row := &s[i]
		_, _ = fmt.Fprintf(b, "| %s | %s | %s |", cellText(row.Workload), exactly(row.Rate), cellText(row.Policy))
		for _, f := range row.Figures {
			switch {
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
			if len(cells) < 3 || cells[0] != "workload" || cells[1] != "rate" || cells[2] != "policy" {
				continue
			}
			order = []int{}
			for _, c := range cells[3:] {
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
		return nil, errors.New("there is no table that begins with the columns workload, rate and policy")
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
	if len(cells) != 3+len(order) {
		return SuiteRow{}, fmt.Errorf("%d columns; the table has %d", len(cells), 3+len(order))
	}
	rate, err := parseNumber(cells[1])
	if err != nil {
		return SuiteRow{}, fmt.Errorf("rate: %w", err)
	}
	row := SuiteRow{Workload: cells[0], Rate: rate, Policy: cells[2], Figures: make([]Stat, len(inSuite))}
	for i, text := range cells[3:] {
		if order[i] < 0 || text == "–" {
			continue
		}
		s := Stat{N: 1}
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
			s.N = 2
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
	noise := "one seed"
	if c.Before.Min < c.Before.Max {
		noise = exactly(c.Before.Min) + "–" + exactly(c.Before.Max)
	}
	return fmt.Sprintf("%s: %s is %s: %s, was %s (%s)", where, c.Figure, word, exactly(c.After.Mean), exactly(c.Before.Mean), noise)
}

// Compare holds a suite against an earlier one. A figure is worse when its mean lies outside of what the
// seeds gave before, on the bad side, by more than 2 % of it and more than what matters (5 ms, half a
// percent …): noise is no change. A row or figure that is missing now is worse; a new one is nothing. Worse
// ones come first, otherwise the order is that of before.
func Compare(before, after Suite) []Change {
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
			switch slack := max(inSuite[f].least, 0.02*math.Abs(c.Before.Mean)); {
			case c.Before.N == 0:
			case c.After.N == 0:
				c.Worse = true
				worse = append(worse, c)
			case c.After.Mean > c.Before.Max+slack:
				c.Worse = !inSuite[f].higher
				if c.Worse {
					worse = append(worse, c)
				} else {
					better = append(better, c)
				}
			case c.After.Mean < c.Before.Min-slack:
				c.Worse = inSuite[f].higher
				if c.Worse {
					worse = append(worse, c)
				} else {
					better = append(better, c)
				}
			}
		}
	}
	return append(worse, better...)
}
