// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// TestPlotIsXML wants an image that any reader takes, of curves with gaps, of none, and with names that need escapes.
func TestPlotIsXML(t *testing.T) {
	for _, p := range []Plot{
		{Title: "nothing", Unit: "s", Step: 1},
		{Title: `a < b & "c"`, Unit: "1/s", Step: 2, Mark: 2, MarkText: ">", Curves: []Curve{
			{Name: "<a>", Values: []float64{0, math.NaN(), 3, 0.5}}, {Name: "b", Color: 7, Dashed: true, Values: []float64{math.NaN()}}}},
	} {
		svg := p.SVG()
		if svg != p.SVG() {
			t.Errorf("%s: two drawings differ", p.Title)
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%s: a number that is none:\n%s", p.Title, svg)
		}
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", p.Title, err, svg)
			}
		}
	}
}

func TestNice(t *testing.T) {
	for _, x := range []struct{ v, want float64 }{{0, 1}, {0.11, 0.2}, {1, 1}, {3, 5}, {7, 10}, {20, 20}, {math.NaN(), 1}} {
		if got := nice(x.v); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("nice(%v) = %v, want %v", x.v, got, x.want)
		}
	}
}

func TestJain(t *testing.T) {
	for _, x := range []struct {
		of   []float64
		want float64
	}{{nil, 1}, {[]float64{0, 0}, 1}, {[]float64{5, 5, 5}, 1}, {[]float64{1, 0, 0, 0}, 0.25}, {[]float64{1, 3}, 0.8}} {
		if got := Jain(x.of); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("Jain(%v) = %v, want %v", x.of, got, x.want)
		}
	}
}
