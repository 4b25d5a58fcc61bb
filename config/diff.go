// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

const (
	around    = 3    // unchanged lines that are shown beside a change
	maxChange = 4000 // changed lines up to which the fewest are looked for
)

// Diff shows the changes from one text to another as patch reads them; empty when there are none.
func Diff(name, before, after string) string {
	if before == after {
		return ""
	}
	ops := compare(linesOf(before), linesOf(after))
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	a, b := 1, 1 // the line numbers at i
	for i := 0; i < len(ops); {
		first := slices.IndexFunc(ops[i:], op.changes)
		if first < 0 {
			break
		}
		from := max(i, i+first-around)
		a, b = a+from-i, b+from-i
		to, last := i+first, i+first
		for ; to < len(ops) && to <= last+2*around+1; to++ {
			if ops[to].changes() {
				last = to
			}
		}
		to = min(len(ops), last+around+1)
		var text strings.Builder
		olds, news := 0, 0
		for _, o := range ops[from:to] {
			text.WriteByte(o.sign)
			text.WriteString(o.line)
			if !strings.HasSuffix(o.line, "\n") {
				text.WriteString("\n\\ No newline at end of file\n")
			}
			if o.sign != '+' {
				olds++
			}
			if o.sign != '-' {
				news++
			}
		}
		fmt.Fprintf(&out, "@@ -%d,%d +%d,%d @@\n%s", a, olds, b, news, text.String())
		a, b, i = a+olds, b+news, to
	}
	return out.String()
}

func linesOf(s string) []string {
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// op is a line that stays (sign ' '), goes ('-') or comes ('+').
type op struct {
	sign byte
	line string
}

func (o op) changes() bool { return o.sign != ' ' }

// compare finds the fewest lines that go and come, by Myers' algorithm.
func compare(a, b []string) []op {
	var trail [][]int // how far each diagonal was reached, by the number of changes
	reach := map[int]int{1: 0}
	for d := 0; d <= min(len(a)+len(b), maxChange); d++ {
		row := make([]int, 2*d+1)
		for k := -d; k <= d; k += 2 {
			x := reach[k+1]
			if k != -d && (k == d || reach[k-1] >= reach[k+1]) {
				x = reach[k-1] + 1
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			reach[k], row[k+d] = x, x
			if x >= len(a) && x-k >= len(b) {
				return back(a, b, append(trail, row), d)
			}
		}
		trail = append(trail, row)
	}
	ops := make([]op, 0, len(a)+len(b))
	for _, l := range a {
		ops = append(ops, op{'-', l})
	}
	for _, l := range b {
		ops = append(ops, op{'+', l})
	}
	return ops
}

// back follows the trail from the end to the beginning.
func back(a, b []string, trail [][]int, d int) []op {
	var ops []op
	x, y := len(a), len(b)
	for ; d >= 0; d-- {
		k := x - y
		px, py := 0, 0
		if d > 0 {
			row := trail[d-1] // of diagonals -(d-1)…d-1
			at := func(k int) int {
				if i := k + d - 1; i >= 0 && i < len(row) {
					return row[i]
				}
				return -1
			}
			pk := k - 1
			if k == -d || k != d && at(k-1) < at(k+1) {
				pk = k + 1
			}
			px, py = at(pk), at(pk)-pk
		}
		for x > px && y > py && x > 0 && y > 0 {
			x, y = x-1, y-1
			ops = append(ops, op{' ', a[x]})
		}
		switch {
		case d == 0:
		case x > px:
			x--
			ops = append(ops, op{'-', a[x]})
		default:
			y--
			ops = append(ops, op{'+', b[y]})
		}
	}
	slices.Reverse(ops)
	return ops
}
