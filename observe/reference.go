// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one family of the metrics page.
type Metric struct {
	Name, Help string
	Labels     []string
}

// Metrics lists what the metrics page can show of us, by name; those of the Go runtime are left out.
func (o *Observer) Metrics() []Metric {
	ch := make(chan *prometheus.Desc, 1024)
	o.registry.Describe(ch)
	close(ch)
	var out []Metric
	for d := range ch {
		if m := described(d); strings.HasPrefix(m.Name, prefix) || strings.HasPrefix(m.Name, "penstock_") {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// A description tells its parts only as text.
var descText = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*")(?:, unit: "[^"]*")?, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func described(d *prometheus.Desc) Metric {
	m := descText.FindStringSubmatch(d.String())
	if m == nil {
		return Metric{}
	}
	name, _ := strconv.Unquote(m[1])
	help, _ := strconv.Unquote(m[2])
	out := Metric{Name: name, Help: help}
	for pair := range strings.SplitSeq(m[3], ",") {
		if k, _, ok := strings.Cut(pair, "="); ok {
			out.Labels = append(out.Labels, k)
		}
	}
	for label := range strings.SplitSeq(m[4], ",") {
		if label != "" {
			out.Labels = append(out.Labels, label)
		}
	}
	return out
}
