// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// HeaderLabelAffinityScorer prefers endpoints where a label equals the value of a request header: they score 1, all
// others 0. Without the header all score 0.
type HeaderLabelAffinityScorer struct {
	// HeaderName is the header, in any case of letters.
	HeaderName string `json:"headerName"`
	// LabelKey is the label.
	LabelKey string `json:"labelKey"`

	header string // in lower case
}

// Validate reports what is not there to compare.
func (p *HeaderLabelAffinityScorer) Validate() error {
	if p.HeaderName == "" {
		return errors.New("headerName: is missing: want the request header to compare with the label")
	}
	if p.LabelKey == "" {
		return errors.New("labelKey: is missing: want the label to compare with the header")
	}
	p.header = strings.ToLower(p.HeaderName)
	return headerName("headerName", p.HeaderName)
}

// Score implements [sched.Scorer].
func (p *HeaderLabelAffinityScorer) Score(c *sched.Cycle, score []float64) {
	want := c.Header(p.header)
	if want == "" {
		return
	}
	for i, e := range c.Candidates {
		if e.Labels[p.LabelKey] == want {
			score[i] = 1
		}
	}
}
