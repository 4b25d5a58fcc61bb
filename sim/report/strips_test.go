// SPDX-License-Identifier: Apache-2.0

package report

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestStripsHaveRoom has values of many characters beside strips, which bold letters of 7 px must not carry over the edge.
func TestStripsHaveRoom(t *testing.T) {
	const value = "0.933 ms"
	svg := string(strips("t", "s", []strip{{name: "gateway", strong: true, values: []float64{0.9, 1}, text: value}}, strconvText, 0, false))
	at := regexp.MustCompile(`<text x="([0-9.]+)"[^>]*>` + regexp.QuoteMeta(value)).FindStringSubmatch(svg)
	if at == nil {
		t.Fatalf("no %s in %s", value, strings.ReplaceAll(svg, "><", ">\n<"))
	}
	if x, err := strconv.ParseFloat(at[1], 64); err != nil || x+7*float64(len(value)) > plotWidth {
		t.Errorf("%s begins at %s of %d", value, at[1], plotWidth)
	}
}

func strconvText(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
