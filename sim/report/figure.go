// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strconv"
	"strings"
)

// figure is one number of a run that tables, plots and suites show.
type figure struct {
	name   string // in a suite's table, with its unit
	title  string // in a terminal's table
	of     func(*Run) (float64, bool)
	text   func(float64) string
	higher bool    // is better
	least  float64 // a smaller difference is nothing
}

var (
	figTTFT = figure{name: "TTFT mean, ms", title: "mean", of: meanTTFT, text: number, least: 5}
	figP50  = figure{name: "TTFT p50, ms", title: "p50", of: distOf(func(x *Run) *Dist { return &x.TTFT }, func(d *Dist) float64 { return d.P50 }), text: number, least: 5}
	figP90  = figure{name: "TTFT p90, ms", title: "p90", of: distOf(func(x *Run) *Dist { return &x.TTFT }, func(d *Dist) float64 { return d.P90 }), text: number, least: 5}
	figP99  = figure{name: "TTFT p99, ms", title: "p99", of: distOf(func(x *Run) *Dist { return &x.TTFT }, func(d *Dist) float64 { return d.P99 }), text: number, least: 10}
	figTPOT = figure{name: "TPOT mean, ms", title: "TPOT", of: distOf(func(x *Run) *Dist { return &x.TPOT }, func(d *Dist) float64 { return d.Mean }), text: number, least: 0.5}
	figHit  = figure{name: "hit rate", title: "hit", of: func(x *Run) (float64, bool) { return x.HitRate, x.PromptTokens > 0 }, text: percent, higher: true, least: 0.005}
	figGood = figure{name: "goodput", title: "good", of: func(x *Run) (float64, bool) {
		if x.Goodput == nil {
			return 0, false
		}
		return x.Goodput.Share, x.Requests > 0
	}, text: percent, higher: true, least: 0.005}
	figRate  = figure{name: "requests/s", title: "req/s", of: func(x *Run) (float64, bool) { return x.ThroughputRPS, x.DurationS > 0 }, text: number, higher: true, least: 0.01}
	figQueue = figure{name: "queue mean, ms", title: "queue", of: distOf(func(x *Run) *Dist { return &x.Queue }, func(d *Dist) float64 { return d.Mean }), text: number, least: 5}
	figErr   = figure{name: "errors", title: "err", of: func(x *Run) (float64, bool) {
		return per(float64(x.Requests-x.Completed), float64(x.Requests)), x.Requests > 0
	}, text: percent, least: 0.002}
	figJain = figure{name: "Jain", title: "Jain", of: func(x *Run) (float64, bool) { return x.Jain, x.Jain > 0 }, text: func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }, higher: true, least: 0.01}
	// The worst p99 among tenants that asked for less than an equal part: the ones to be protected.
	figLight = figure{name: "light tenants' TTFT p99, ms", title: "light", of: lightP99, text: number, least: 10}
)

func distOf(dist func(*Run) *Dist, value func(*Dist) float64) func(*Run) (float64, bool) {
	return func(x *Run) (float64, bool) {
		d := dist(x)
		return value(d), d.Count > 0
	}
}

func lightP99(x *Run) (float64, bool) {
	total := int64(0)
	for i := range x.Tenants {
		total += x.Tenants[i].PromptTokens
	}
	worst, ok := 0.0, false
	for i := range x.Tenants {
		t := &x.Tenants[i]
		if t.PromptTokens*int64(len(x.Tenants)) < total && t.TTFT.Count > 0 {
			worst, ok = max(worst, t.TTFT.P99), true
		}
	}
	return worst, ok
}

// number has three digits and as few signs as it can: 0.713, 57.4, 1,234, 12.3k.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case a == 0:
		return "0"
	case a < 0.0005:
		return strconv.FormatFloat(v, 'e', 0, 64)
	case a < 0.9995:
		return digits(v, 3)
	case a < 9.995:
		return digits(v, 2)
	case a < 99.95:
		return digits(v, 1)
	case a < 9999.5:
		return commas(v)
	case a < 99.95e3:
		return digits(v/1e3, 1) + "k"
	case a < 999.5e3:
		return digits(v/1e3, 0) + "k"
	case a < 9.995e6:
		return digits(v/1e6, 2) + "M"
	case a < 99.95e6:
		return digits(v/1e6, 1) + "M"
	case a < 9999.5e6:
		return commas(v/1e6) + "M"
	}
	return strconv.FormatFloat(v, 'e', 1, 64)
}

func digits(v float64, n int) string { return strconv.FormatFloat(v, 'f', n, 64) }

// commas is a whole number in groups of three digits.
func commas(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	var b strings.Builder
	if v < 0 {
		b.WriteByte('-')
	}
	for i := range len(s) {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// percent has no more than four signs where it can: 0.3%, 41%, 99.7%.
func percent(v float64) string {
	p := v * 100
	switch a := math.Abs(p); {
	case a == 0:
		return "0%"
	case a < 0.05:
		return strconv.FormatFloat(p, 'g', 1, 64) + "%"
	case a < 9.95, a > 99 && a < 99.95:
		return digits(p, 1) + "%"
	}
	return digits(p, 0) + "%"
}

// span is a time in ms, for people: 3 µs, 0.3 ms, 712 ms, 3.21 s, 1,234 s.
func span(ms float64) string {
	if a := math.Abs(ms); a > 0 && a < 0.00995 {
		return number(ms*1e3) + " µs"
	}
	if math.Abs(ms) < 9999.5 {
		if math.Abs(ms) >= 999.5 {
			return digits(ms/1e3, 2) + " s"
		}
		return number(ms) + " ms"
	}
	return number(ms/1e3) + " s"
}
