// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Curve is one line of a plot: a value for each step of time, NaN where there is none.
type Curve struct {
	Name   string
	Color  int  // index into the palette
	Dashed bool // for what was asked beside what was given
	Values []float64
}

// Plot is a chart of curves over time.
type Plot struct {
	Title, Unit string
	Step        float64 // seconds between two values
	Curves      []Curve
	Mark        float64 // a time to mark, none when 0
	MarkText    string
}

// palette is legible on white and on black, and to the colour-blind.
var palette = []string{"#0b84c6", "#d9730d", "#169c6e", "#c65b98", "#8a7bd1"}

const (
	width, height            = 760, 320
	left, right, top, bottom = 56, 150, 36, 40
)

// SVG draws the plot. It depends on nothing but the values, and takes its ink from the reader's light or dark scheme.
func (p *Plot) SVG() string {
	most, steps := 0.0, 1
	for _, c := range p.Curves {
		steps = max(steps, len(c.Values)-1)
		for _, v := range c.Values {
			if !math.IsNaN(v) {
				most = max(most, v)
			}
		}
	}
	tick := nice(most / 5)
	ceiling := math.Max(tick, math.Ceil(most/tick)*tick)
	x := func(seconds float64) float64 {
		return left + seconds/(float64(steps)*p.Step)*(width-left-right)
	}
	y := func(v float64) float64 { return height - bottom - v/ceiling*(height-top-bottom) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label=%q>`+"\n",
		width, height, width, height, html.EscapeString(p.Title))
	b.WriteString(`<style>
text{font:12px system-ui,sans-serif;fill:#333}
.grid{stroke:#888;stroke-opacity:.25}
.mark{stroke:#888;stroke-dasharray:2 3}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.dashed{stroke-dasharray:5 4;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#ccc}}
</style>
`)
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor=%q>%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	text(left, 20, "start", p.Title+", "+p.Unit)
	for v := 0.0; v <= ceiling+tick/2; v += tick {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+"\n", left, width-right, y(v), y(v))
		text(left-8, y(v)+4, "end", fmt.Sprintf("%.4g", v))
	}
	whole := float64(steps) * p.Step
	for s, each := 0.0, nice(whole/6); s <= whole+0.001; s += each {
		text(x(s), height-bottom+18, "middle", fmt.Sprintf("%.4g s", s))
	}
	if p.Mark > 0 {
		fmt.Fprintf(&b, `<line class="mark" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", x(p.Mark), x(p.Mark), top, height-bottom)
		text(x(p.Mark)+6, top+4, "start", p.MarkText)
	}
	for i, c := range p.Curves {
		class, color := "curve", palette[c.Color%len(palette)]
		if c.Dashed {
			class += " dashed"
		}
		var path strings.Builder
		move := "M"
		for k, v := range c.Values {
			if math.IsNaN(v) {
				move = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", move, x(float64(k)*p.Step), y(v))
			move = "L"
		}
		if path.Len() > 0 {
			fmt.Fprintf(&b, `<path class=%q stroke=%q d=%q/>`+"\n", class, color, path.String())
		}
		at := float64(top + 14 + 20*i)
		fmt.Fprintf(&b, `<path class=%q stroke=%q d="M%d %.1fh20"/>`+"\n", class, color, width-right+12, at-4)
		text(width-right+38, at, "start", c.Name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// nice is the least of 1, 2, 5, 10, 20, 50, … and their tenths that is not below v.
func nice(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	ten := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*ten >= v*0.999 {
			return m * ten
		}
	}
	return 10 * ten
}
