// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// ContextLengthAware fits the length of the prompt to the range of lengths that endpoints are labelled for, such as
// 0-8192. It is a scorer and, where enableFiltering says so, a filter.
//
// With a range of width w, a prompt of n tokens in it scores 0.3 + 0.7·(0.7/(1 + w/10000) + 0.3·(max−n)/w),
// so that the tightest range wins, or 1 where w is 0. A prompt that is d tokens outside of it scores
// 0.3/(1 + d/1000). An endpoint without the label scores 0.5, one whose label is no range 0. As a filter it keeps
// endpoints with the prompt in their range, and those without the label. Where the length is unknown all
// endpoints score 0.5 and are kept.
type ContextLengthAware struct {
	// Label is the label with the range, min-max in tokens, both included.
	Label string `json:"label"`
	// EnableFiltering drops endpoints for whose range the prompt is too short or too long.
	EnableFiltering bool `json:"enableFiltering"`
}

func newContextLengthAware() *ContextLengthAware {
	return &ContextLengthAware{Label: "llm-d.ai/context-length-range"}
}

// Validate reports that there is no label to read.
func (p *ContextLengthAware) Validate() error {
	if p.Label == "" {
		return errors.New("label: is empty: want the label with the range of lengths")
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *ContextLengthAware) Filter(c *sched.Cycle, keep []bool) {
	if !p.EnableFiltering || c.Tokens <= 0 {
		return
	}
	for i, e := range c.Candidates {
		if label, ok := e.Labels[p.Label]; ok {
			lo, hi, ok := lengths(label)
			keep[i] = ok && lo <= c.Tokens && c.Tokens <= hi
		}
	}
}

// Score implements [sched.Scorer].
func (p *ContextLengthAware) Score(c *sched.Cycle, score []float64) {
	for i, e := range c.Candidates {
		label, labelled := e.Labels[p.Label]
		if !labelled || c.Tokens <= 0 {
			score[i] = 0.5
			continue
		}
		lo, hi, ok := lengths(label)
		width := float64(hi - lo)
		switch n := c.Tokens; {
		case !ok:
			score[i] = 0
		case n < lo:
			score[i] = 0.3 / (1 + float64(lo-n)/1000)
		case n > hi:
			score[i] = 0.3 / (1 + float64(n-hi)/1000)
		case width == 0:
			score[i] = 1
		default:
			score[i] = 0.3 + 0.7*(0.7/(1+width/10000)+0.3*float64(hi-n)/width)
		}
	}
}

// Reason implements [sched.Reasoner].
func (p *ContextLengthAware) Reason() string { return "the prompt's length is not in " + p.Label }

// lengths reads min-max.
func lengths(label string) (lo, hi int64, ok bool) {
	a, b, dash := strings.Cut(label, "-")
	lo, first := digits(a)
	hi, second := digits(b)
	return lo, hi, dash && first && second && lo <= hi
}

// digits reads a number of up to 15 digits, with spaces around it.
func digits(s string) (n int64, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > 15 {
		return 0, false
	}
	for _, d := range []byte(s) {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = 10*n + int64(d-'0')
	}
	return n, true
}
