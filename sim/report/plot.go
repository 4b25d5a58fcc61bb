// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// A plot is 360 units wide: a phone shows one in its own size, a desktop three in a row.
const plotWidth = 360

// svg is a picture in the making. Coordinates have one decimal; texts are escaped.
type svg struct{ b strings.Builder }

// newSVG begins a picture of a height, which title and summary describe to who cannot see it.
func newSVG(height float64, title, summary string) *svg {
	s := &svg{}
	fmt.Fprintf(&s.b, `<svg viewBox="0 0 %d %s" role="img"><title>%s</title><desc>%s</desc>`,
		plotWidth, coord(height), html.EscapeString(title), html.EscapeString(summary))
	return s
}

func (s *svg) done() template.HTML {
	s.b.WriteString("</svg>")
	return template.HTML(s.b.String()) //nolint:gosec // every text went through EscapeString
}

// coord is a coordinate with no more than one decimal.
func coord(v float64) string {
	t := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(t, ".0")
}

func (s *svg) text(x, y float64, class, text string) {
	fmt.Fprintf(&s.b, `<text x="%s" y="%s" class="%s">%s</text>`, coord(x), coord(y), class, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&s.b, `<path class="%s" d="M%s %sL%s %s"/>`, class, coord(x1), coord(y1), coord(x2), coord(y2))
}

func (s *svg) path(class, d string) { fmt.Fprintf(&s.b, `<path class="%s" d="%s"/>`, class, d) }

func (s *svg) dot(x, y, r float64, class, title string) {
	fmt.Fprintf(&s.b, `<circle cx="%s" cy="%s" r="%s" class="%s"><title>%s</title></circle>`,
		coord(x), coord(y), coord(r), class, html.EscapeString(title))
}

func (s *svg) rect(x, y, w, h float64, class, title string) {
	fmt.Fprintf(&s.b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"><title>%s</title></rect>`,
		coord(x), coord(y), coord(w), coord(h), class, html.EscapeString(title))
}

// ink is the classes of series i: one of seven colours, and beyond them a dash.
func ink(i int) string { return fmt.Sprintf("k%d d%d", i%inks, min(2, i/inks)) }

const inks = 7

// axis maps values to coordinates.
type axis struct {
	low, high float64 // values
	from, to  float64 // coordinates
	log       bool
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, v = math.Log(low), math.Log(high), math.Log(max(v, a.low))
	}
	if high <= low {
		return a.from
	}
	return a.from + min(1, max(0, (v-low)/(high-low)))*(a.to-a.from)
}

// ticks are round values on the axis, about n.
func (a axis) ticks(n int) []float64 {
	var out []float64
	if !a.log {
		step := nice((a.high - a.low) / float64(n))
		for k := math.Ceil(a.low/step - 1e-9); k*step <= a.high*(1+1e-9); k++ {
			out = append(out, k*step)
			if len(out) > 20 {
				break
			}
		}
		return out
	}
	// By powers of ten, or with 2 and 5 between them when these are few.
	decades := math.Log10(a.high / a.low)
	among := []float64{1}
	if decades < 1.2 {
		among = []float64{1, 2, 3, 5}
	} else if decades < float64(n)/2 {
		among = []float64{1, 3}
	}
	skip := max(1, int(math.Ceil(decades/float64(n))))
	for e := int(math.Floor(math.Log10(a.low))); e <= int(math.Ceil(math.Log10(a.high))); e++ {
		for _, m := range among {
			v := m * math.Pow(10, float64(e))
			if v >= a.low*0.999 && v <= a.high*1.001 && (skip == 1 || e%skip == 0) {
				out = append(out, v)
			}
		}
	}
	return out
}

// bare leaves out the zeros that end a round number: 10.0 s is 10 s.
func bare(text string) string {
	point := strings.IndexByte(text, '.')
	if point < 0 {
		return text
	}
	end := point + 1
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	return strings.TrimSuffix(strings.TrimRight(text[:end], "0"), ".") + text[end:]
}

// nice is the least of 1, 2, 5, 10 … and their tenths that is not below v.
func nice(v float64) float64 {
	if !(v > 0) || math.IsInf(v, 0) {
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

// point is a value at a place, with its range over seeds where there is one.
type point struct{ x, y, low, high float64 }

// curve is a line of a plot. Its colour follows from its index.
type curve struct {
	name   string
	ink    int
	strong bool
	points []point
}

// chart is a plot of curves.
type chart struct {
	title, summary string
	curves         []curve
	xText, yText   func(float64) string
	xTicks         []float64 // nil: by itself
	logX, logY     bool
	yHigh          float64 // 0: by itself
	mark           float64 // a value of x to mark, 0 for none
	markText       string
	labels         bool // names at the ends of the lines
	xName          string
}

func (c *chart) draw() template.HTML {
	const top, bottom, height = 14, 34, 220
	left := 40.0
	right := 12.0
	if c.labels {
		right = 124
	}
	x := axis{low: math.Inf(1), high: math.Inf(-1), to: plotWidth - right, log: c.logX}
	y := axis{low: 0, high: c.yHigh, from: height - bottom, to: top, log: c.logY}
	lowY := math.Inf(1)
	for _, k := range c.curves {
		for _, p := range k.points {
			x.low, x.high = min(x.low, p.x), max(x.high, p.x)
			if c.yHigh == 0 {
				y.high = max(y.high, p.y, p.high)
			}
			if v := min(p.y, p.low); v > 0 {
				lowY = min(lowY, v)
			}
		}
	}
	if math.IsInf(x.low, 0) {
		return ""
	}
	if c.mark > 5*x.high || c.mark < x.low/5 {
		c.mark = 0 // far from everything: all or none kept it
	} else if c.mark > 0 {
		x.low, x.high = min(x.low, c.mark*0.95), max(x.high, c.mark*1.05)
	}
	if c.logX {
		x.low = max(x.low, x.high/1e5)
		if x.low <= 0 {
			x.low = 1e-3
		}
		x.high = max(x.high, x.low*2)
	}
	if c.logY {
		if math.IsInf(lowY, 0) {
			lowY = 1
		}
		y.low = max(lowY*0.9, y.high/1e6)
		y.high = max(y.high*1.1, y.low*2)
	} else if c.yHigh == 0 {
		step := nice(y.high / 5)
		y.high = max(step, math.Ceil(y.high/step-1e-9)*step)
	}

	for _, v := range y.ticks(5) {
		left = max(left, 6.7*float64(len([]rune(bare(c.yText(v)))))+8)
	}
	x.from = left

	s := newSVG(height, c.title, c.summary)
	for _, v := range y.ticks(5) {
		s.line(left, y.at(v), x.to, y.at(v), "grid")
		s.text(left-5, y.at(v)+4, "end", bare(c.yText(v)))
	}
	ticks := c.xTicks
	if ticks == nil {
		ticks = x.ticks(5)
	}
	lastEnd := -100.0
	for _, v := range ticks {
		at, label := x.at(v), bare(c.xText(v))
		half := 3.2 * float64(len([]rune(label)))
		if at-half < lastEnd+6 {
			continue
		}
		lastEnd = at + half
		s.line(at, height-bottom, at, height-bottom+4, "tick")
		if c.logX {
			s.line(at, top, at, height-bottom, "grid")
		}
		s.text(min(at, plotWidth-half), height-bottom+16, "mid", label)
	}
	if c.xName != "" {
		s.text((left+x.to)/2, height-4, "mid dim", c.xName)
	}
	if c.mark > 0 {
		at := x.at(c.mark)
		s.line(at, top, at, height-bottom, "mark")
		s.text(at, top-3, "mid tiny dim", c.markText)
	}
	var ends []end
	for _, k := range c.curves {
		if len(k.points) == 0 {
			continue
		}
		var d strings.Builder
		lastX, lastY := -10.0, -10.0
		for i, p := range k.points {
			px, py := x.at(p.x), y.at(p.y)
			switch {
			case i == 0:
				fmt.Fprintf(&d, "M%s %s", coord(px), coord(py))
			case i < len(k.points)-1 && math.Abs(px-lastX) < 2 && math.Abs(py-lastY) < 2:
				continue // nobody could see it
			default:
				fmt.Fprintf(&d, "L%s %s", coord(px), coord(py))
			}
			lastX, lastY = px, py
		}
		class := "curve " + ink(k.ink)
		if k.strong {
			class += " strong"
		}
		s.path(class, d.String())
		if c.labels {
			for _, p := range k.points {
				if p.high > p.low {
					s.line(x.at(p.x), y.at(p.low), x.at(p.x), y.at(p.high), "whisker "+ink(k.ink))
				}
				s.dot(x.at(p.x), y.at(p.y), 2.5, "dot "+ink(k.ink), k.name+": "+c.yText(p.y)+" at "+c.xText(p.x))
			}
			last := k.points[len(k.points)-1]
			ends = append(ends, end{k.name, k.ink, x.at(last.x), y.at(last.y), k.strong})
		}
	}
	s.labels(ends, x.to, top, height-bottom)
	return s.done()
}

// end is where a curve ends and wants its name.
type end struct {
	name   string
	ink    int
	x, y   float64
	strong bool
}

// labels writes the names beside the ends, moved apart where they would lie on each other.
func (s *svg) labels(ends []end, right, top, bottom float64) {
	const apart = 11
	slices.SortStableFunc(ends, func(a, b end) int {
		switch {
		case a.y < b.y:
			return -1
		case a.y > b.y:
			return 1
		}
		return 0
	})
	at := make([]float64, len(ends))
	for i, e := range ends {
		at[i] = e.y
		if i > 0 {
			at[i] = max(at[i], at[i-1]+apart)
		}
	}
	limit := bottom + 4
	for i := len(ends) - 1; i >= 0; i-- {
		at[i] = min(at[i], limit)
		limit = at[i] - apart
	}
	for i, e := range ends {
		s.line(e.x+3, e.y, right+10, at[i], "lead")
		class := "small t" + fmt.Sprint(e.ink%inks)
		if e.strong {
			class += " bold"
		}
		s.text(right+12, max(top-4, at[i]+3), class, shorten(e.name, 16))
	}
}

// strip is a row of a strip plot: a value with a range, or quantiles on a line.
type strip struct {
	name   string
	ink    int
	strong bool
	values []float64 // sorted; the first is the big dot
	low    float64
	high   float64
	text   string
}

// strips draws rows with their names and values beside them; log where they span more than a decade.
func strips(title, summary string, rows []strip, text func(float64) string, high float64, log bool) template.HTML {
	const left, top, each, bottom = 120, 6, 19, 24
	right := 58.0
	for _, r := range rows {
		right = max(right, 10+7*float64(len([]rune(r.text)))) // in bold
	}
	height := top + each*float64(len(rows)) + bottom
	x := axis{low: math.Inf(1), high: high, from: left, to: plotWidth - right}
	for _, r := range rows {
		for _, v := range append([]float64{r.low, r.high}, r.values...) {
			if v > 0 {
				x.low = min(x.low, v)
			}
			if high == 0 {
				x.high = max(x.high, v)
			}
		}
	}
	if math.IsInf(x.low, 0) || x.high == 0 {
		x.low, x.high = 0, 1
	}
	if x.log = log && x.low > 0 && x.high/x.low > 10; !x.log {
		x.low = 0
	} else {
		x.low = max(x.low*0.9, x.high/1e6)
	}
	s := newSVG(height, title, summary)
	lastEnd := -100.0
	for _, v := range x.ticks(3) {
		label := bare(text(v))
		half := 3.2 * float64(len([]rune(label)))
		s.line(x.at(v), top, x.at(v), height-bottom, "grid")
		if x.at(v)-half > lastEnd+6 {
			s.text(x.at(v), height-8, "mid", label)
			lastEnd = x.at(v) + half
		}
	}
	for i, r := range rows {
		y := top + each*(float64(i)+0.5)
		class := "end small"
		if r.strong {
			class += " bold"
		}
		s.text(left-8, y+4, class, shorten(r.name, 17))
		if len(r.values) > 0 {
			low, high := r.low, r.high
			if low < high {
				s.line(x.at(low), y, x.at(high), y, "bar "+ink(r.ink))
			}
			for k, v := range r.values {
				if k == 0 {
					s.dot(x.at(v), y, 4, "dot "+ink(r.ink), r.name+": "+text(v))
				} else {
					s.line(x.at(v), y-4, x.at(v), y+4, "bar "+ink(r.ink))
				}
			}
		}
		class = "small"
		if r.strong {
			class += " bold"
		}
		s.text(plotWidth-right+8, y+4, class, r.text)
	}
	return s.done()
}

// heatRow is a row of a heat strip.
type heatRow struct {
	name   string
	values []float64
}

// heat draws rows of cells, stronger for more; most is the value of the strongest.
func heat(title, summary string, rows []heatRow, most, seconds float64) template.HTML {
	const left, right, top, bottom, levels = 78, 8, 4, 22, 8
	columns := 0
	for _, r := range rows {
		columns = max(columns, len(r.values))
	}
	each := min(16, max(6, 190/float64(max(1, len(rows)))))
	height := top + each*float64(len(rows)) + bottom
	wide := float64(plotWidth-left-right) / float64(max(1, columns))
	s := newSVG(height, title, summary)
	s.rect(left, top, plotWidth-left-right, each*float64(len(rows)), "field", "")
	var paths [levels + 1]strings.Builder
	every := int(math.Ceil(11 / each))
	for i, r := range rows {
		y := top + each*float64(i)
		if i%every == 0 {
			s.text(left-5, y+each/2+3.5, "end tiny", shorten(r.name, 13))
		}
		for c := 0; c < len(r.values); {
			level, from := heatLevel(r.values[c], most, levels), c
			for c < len(r.values) && heatLevel(r.values[c], most, levels) == level {
				c++
			}
			if level > 0 {
				fmt.Fprintf(&paths[level], "M%s %sh%sv%sH%sz", coord(left+wide*float64(from)), coord(y),
					coord(wide*float64(c-from)), coord(max(1, each-1)), coord(left+wide*float64(from)))
			}
		}
	}
	for level := range paths {
		if paths[level].Len() > 0 {
			s.path(fmt.Sprintf("h%d", level), paths[level].String())
		}
	}
	x := axis{low: 0, high: seconds, from: left, to: plotWidth - right}
	for _, v := range clockTicks(seconds) {
		s.line(x.at(v), height-bottom, x.at(v), height-bottom+3, "tick")
		s.text(min(x.at(v), plotWidth-18), height-7, "mid", clock(v))
	}
	return s.done()
}

func heatLevel(v, most float64, levels int) int {
	if v <= 0 || most <= 0 {
		return 0
	}
	return min(levels, 1+int(math.Sqrt(v/most)*float64(levels)*0.9999)) // by the root: a queue of 3 must be told from none beside one of 300
}

// clockTicks are about four round times from 0 to seconds.
func clockTicks(seconds float64) []float64 {
	step := seconds
	for _, each := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400} {
		if seconds/each <= 4.5 {
			step = each
			break
		}
	}
	if seconds < 1 || seconds/step > 10 {
		step = nice(seconds / 4)
	}
	var out []float64
	for k := 0.0; k*step <= seconds*1.0001 && k < 12; k++ {
		out = append(out, k*step)
	}
	return out
}

// clock is a time of a run: 30 s, 5 min, 2 h.
func clock(seconds float64) string {
	switch {
	case seconds == 0:
		return "0"
	case seconds < 60:
		return exactly(brief(seconds)) + " s"
	case seconds < 3600 || seconds < 7200 && math.Mod(seconds, 3600) != 0:
		return exactly(brief(seconds/60)) + " min"
	}
	return exactly(brief(seconds/3600)) + " h"
}

// part is a piece of a stacked bar.
type part struct {
	name  string
	ink   int
	share float64
}

// stack draws bars of parts that sum up to at most 1.
func stack(title, summary string, names []string, bars [][]part, beside []string) template.HTML {
	const left, right, top, each = 120, 44, 16, 22
	height := top + each*float64(len(bars)) + 4
	s := newSVG(height, title, summary)
	for i, bar := range bars {
		y := top + each*float64(i)
		s.text(left-8, y+13, "end small", shorten(names[i], 17))
		x := float64(left)
		for _, p := range bar {
			w := p.share * (plotWidth - left - right)
			s.rect(x, y, max(0, w-1), each-5, fmt.Sprintf("fill k%d", p.ink%inks), p.name+": "+percent(p.share))
			if label := shorten(p.name, 14); w > 6.2*float64(len([]rune(label)))+4 {
				s.text(x+3, y+12.5, "tiny on", label)
			}
			x += w
		}
		s.text(plotWidth-right+6, y+13, "small", beside[i])
	}
	s.text(plotWidth-2, 10, "end tiny dim", "Jain")
	return s.done()
}
