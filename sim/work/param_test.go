// SPDX-License-Identifier: Apache-2.0

package work

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var testParams = []Param{
	{Name: "size", Unit: Tokens, Default: "1200", Min: 1, Max: 10000},
	{Name: "think", Unit: Span, Default: "20s", Max: 3600},
	{Name: "tenants", Unit: Shares},
	{Name: "order", Unit: Word, Default: "rank", Choices: []string{"rank", "random"}},
}

func TestLengths(t *testing.T) {
	for _, c := range []struct {
		text        string
		mean, sigma float64 // of the mean: how far the mean of 20,000 draws may be off
	}{
		{"1200", 1200, 0},
		{"100-2000", 1050, 5},
		{"1200~0.5", 1200 * math.Exp(0.125), 7}, // hardly ever cut
		{"5000~1", 0, 40},                       // cut at 10000: the closed form against the draws
	} {
		v, err := parseValues("test", "size="+c.text, testParams)
		if err != nil {
			t.Fatal(err)
		}
		l := v.length("size")
		rng, sum := rand.New(rand.NewPCG(1, 1)), 0.0
		for range 20000 {
			sum += l.draw(rng)
		}
		want := c.mean
		if want == 0 {
			want = l.mean()
		}
		if got := sum / 20000; v.err != nil || math.Abs(got-want) > 4*c.sigma+1e-6 || math.Abs(l.mean()-want) > 0.001*want {
			t.Errorf("%s: drew %.1f in the mean, said %.1f, want %.1f; %v", c.text, got, l.mean(), want, v.err)
		}
	}
	v, _ := parseValues("test", "think=2s-4s&tenants=0.7,0.2,0.1&order=random", testParams)
	rng := rand.New(rand.NewPCG(1, 1))
	if d := v.length("think").span(rng); d < 2*time.Second || d > 4*time.Second {
		t.Errorf("think: %v", d)
	}
	if v.length("think").whole(rng) < 2 || v.length("think").some(rng) > 4 {
		t.Error("whole numbers of 2 to 4 are others")
	}
	if got := v.shares("tenants"); !slices.Equal(got, []float64{0.7, 0.2, 0.1}) || v.word("order") != "random" || !v.given("order") || v.err != nil {
		t.Errorf("got %v, %v", got, v.err)
	}
}

func TestValuesWrong(t *testing.T) {
	for _, c := range []struct{ query, want string }{
		{"size=1e9", `test: size: is "1e9"; want a number, or 100-2000 for anything between, or 1200~0.8 for log-normal, from 1 to 10000`},
		{"size=NaN", "want a number"},
		{"size=20-10", "want a number"},
		{"size=20~9", "a sigma of at most 4"},
		{"think=20", "want a span such as 20s"},
		{"tenants=0.5,0.6", "shares that add up to 1; these are 1.1"},
		{"order=ramdom", `test: order: no "ramdom"; did you mean random?`},
		{"order=" + strings.Repeat("x", 300), "at most 200 make sense"},
	} {
		v, err := parseValues("test", c.query, testParams)
		if err == nil {
			v.length("size")
			v.length("think")
			v.shares("tenants")
			v.word("order")
			err = v.err
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", clip(c.query), err, c.want)
		}
	}
}
