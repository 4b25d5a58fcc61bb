// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/plugin"
)

// Unit is what the value of a parameter is.
type Unit string

// The units of parameters. Lengths and spans may be random: 1200 is always that, 100-2000 is
// anything between, and 1200~0.8 is log-normal with that median and the sigma of its logarithm (of
// 0.8, one in ten is above 2.8 times the median).
const (
	Tokens    Unit = "tokens"     // a length
	Calls     Unit = "calls"      // a length
	Span      Unit = "span"       // a length in time, 20s or 20s~1
	Duration  Unit = "duration"   // 90s, 10m
	Count     Unit = "count"      // a whole number
	PerSecond Unit = "per second" // requests
	Number    Unit = "number"     // a decimal
	Share     Unit = "share"      // 0 to 1
	Shares    Unit = "shares"     // 0.7,0.2,0.1
	Word      Unit = "word"       // a name
)

// Param describes one parameter of a kind of work or of a fault.
type Param struct {
	Name    string
	Unit    Unit
	Default string
	// Choices are the words it may be; none means any.
	Choices []string
	Doc     string
	// Min and Max bound numbers, and the longest that a random length is cut to.
	Min, Max float64
}

const (
	maxSpec  = 16 << 10 // bytes of a spec
	maxValue = 200      // bytes of one value
)

// values are the parameters of one spec, the defaults filled in. The first thing wrong is kept.
type values struct {
	what   string // as it stands in errors
	params []Param
	set    map[string]string
	err    error
}

// parseValues reads key=value&key=value. Defaults of the kind may be changed by those given, which
// come before the spec's own.
func parseValues(what, query string, params []Param) (*values, error) {
	v := &values{what: what, params: params, set: map[string]string{}}
	if query == "" {
		return v, nil
	}
	for part := range strings.SplitSeq(query, "&") {
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%s: %q is not a parameter; write key=value and & between two", what, clip(part))
		}
		if len(value) > maxValue {
			return nil, fmt.Errorf("%s: %s: is %d bytes long; at most %d make sense", what, clip(key), len(value), maxValue)
		}
		if v.find(key) == nil {
			return nil, unknown(what+": no parameter", key, v.names())
		}
		if _, twice := v.set[key]; twice {
			return nil, fmt.Errorf("%s: %s is given twice", what, key)
		}
		v.set[key] = value
	}
	return v, nil
}

func (v *values) find(name string) *Param {
	if i := slices.IndexFunc(v.params, func(p Param) bool { return p.Name == name }); i >= 0 {
		return &v.params[i]
	}
	return nil
}

func (v *values) names() []string {
	names := make([]string, len(v.params))
	for i, p := range v.params {
		names[i] = p.Name
	}
	return names
}

// given tells whether the spec says it.
func (v *values) given(name string) bool { _, ok := v.set[name]; return ok }

// get is the parameter and its text. A name that the kind did not declare is our mistake.
func (v *values) get(name string) (*Param, string) {
	p := v.find(name)
	if p == nil {
		panic("work: " + v.what + " has no parameter " + name)
	}
	if s, ok := v.set[name]; ok {
		return p, s
	}
	return p, p.Default
}

func (v *values) wrong(p *Param, s, want string) {
	if v.err == nil {
		v.err = fmt.Errorf("%s: %s: is %q; want %s", v.what, p.Name, clip(s), want)
	}
}

// number reads one within the bounds of its parameter.
func (v *values) number(name string) float64 {
	p, s := v.get(name)
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !p.holds(x) {
		v.wrong(p, s, "a number "+p.bounds("", num))
		return p.Min
	}
	return x
}

func (v *values) count(name string) int {
	p, s := v.get(name)
	n, err := strconv.Atoi(s)
	if err != nil || !p.holds(float64(n)) {
		v.wrong(p, s, "a whole number "+p.bounds("", num))
		return int(p.Min)
	}
	return n
}

func (v *values) duration(name string) time.Duration {
	p, s := v.get(name)
	d, err := time.ParseDuration(s)
	if s == "0" {
		d, err = 0, nil
	}
	if err != nil || !p.holds(d.Seconds()) {
		v.wrong(p, s, "a duration such as 90s or 10m, "+p.bounds("", secs))
		return 0
	}
	return d
}

func (v *values) word(name string) string {
	p, s := v.get(name)
	if len(p.Choices) > 0 && !slices.Contains(p.Choices, s) && v.err == nil {
		v.err = unknown(v.what+": "+name+": no", s, p.Choices)
	}
	return s
}

// shares reads parts of a whole, which add up to 1.
func (v *values) shares(name string) []float64 {
	p, s := v.get(name)
	if s == "" {
		return nil
	}
	var list []float64
	sum := 0.0
	for part := range strings.SplitSeq(s, ",") {
		x, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(x > 0 && x <= 1) {
			v.wrong(p, s, "shares such as 0.7,0.2,0.1")
			return nil
		}
		list = append(list, x)
		sum += x
	}
	if math.Abs(sum-1) > 1e-6 {
		v.wrong(p, s, "shares that add up to 1; these are "+num(sum))
		return nil
	}
	return list
}

// length reads a length that may be random, in tokens, calls or, for a span, seconds.
func (v *values) length(name string) length {
	p, s := v.get(name)
	one := func(s string) (float64, bool) {
		if p.Unit == Span && s != "0" {
			d, err := time.ParseDuration(s)
			return d.Seconds(), err == nil
		}
		x, err := strconv.ParseFloat(s, 64)
		return x, err == nil && !math.IsNaN(x)
	}
	want, shape := "a number, or 100-2000 for anything between, or 1200~0.8 for log-normal, ", num
	if p.Unit == Span {
		want, shape = "a span such as 20s, or 1s-9s for anything between, or 20s~0.8 for log-normal, ", secs
	}
	want += p.bounds("", shape)
	l := length{max: p.Max, min: p.Min}
	var ok bool
	if median, sigma, random := strings.Cut(s, "~"); random {
		var err error
		l.a, ok = one(median)
		l.sigma, err = strconv.ParseFloat(sigma, 64)
		if !ok || err != nil || !p.holds(l.a) || !(l.sigma >= 0 && l.sigma <= 4) {
			v.wrong(p, s, want+", with a sigma of at most 4")
		}
		l.b = l.a
		return l
	}
	from, to, random := strings.Cut(s, "-")
	if l.a, ok = one(from); !ok || !p.holds(l.a) {
		v.wrong(p, s, want)
	}
	l.b = l.a
	if random {
		if l.b, ok = one(to); !ok || !p.holds(l.b) || l.b < l.a {
			v.wrong(p, s, want)
		}
	}
	return l
}

func (p *Param) holds(x float64) bool { return x >= p.Min && x <= p.Max }

func (p *Param) bounds(unit string, show func(float64) string) string {
	return "from " + show(p.Min) + " to " + show(p.Max) + unit
}

func num(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

func secs(x float64) string { return time.Duration(x * float64(time.Second)).String() }

// clip keeps what others wrote short enough for an error.
func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:57], "") + "…"
	}
	return s
}

// unknown is the error for a name that is not one of those known.
func unknown(what, name string, known []string) error {
	if near := plugin.Nearest(name, known); near != "" {
		return fmt.Errorf("%s %q; did you mean %s?", what, clip(name), near)
	}
	if len(known) == 0 {
		return fmt.Errorf("%s %q", what, clip(name))
	}
	return fmt.Errorf("%s %q; there are %s", what, clip(name), strings.Join(known, ", "))
}

var errLong = errors.New("the text is longer than 16 KiB")
