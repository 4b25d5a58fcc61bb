// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// ByLabel keeps endpoints where one label has one of the given values.
type ByLabel struct {
	// Label is the label to look at.
	Label string `json:"label"`
	// ValidValues are the values that it may have.
	ValidValues []string `json:"validValues"`
	// AllowsNoLabel keeps endpoints without the label, too.
	AllowsNoLabel bool `json:"allowsNoLabel"`
}

// Validate reports a filter that looks at nothing, or keeps nothing.
func (p *ByLabel) Validate() error {
	if p.Label == "" {
		return errors.New("label: is missing: want the label to look at")
	}
	if len(p.ValidValues) == 0 && !p.AllowsNoLabel {
		return errors.New("validValues: is empty: no endpoint would be kept")
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *ByLabel) Filter(c *sched.Cycle, keep []bool) {
	for i, e := range c.Candidates {
		value, ok := e.Labels[p.Label]
		keep[i] = !ok && p.AllowsNoLabel || ok && slices.Contains(p.ValidValues, value)
	}
}

// Reason implements [sched.Reasoner].
func (p *ByLabel) Reason() string {
	if len(p.ValidValues) == 0 {
		return "it has the label " + p.Label
	}
	return p.Label + " is not " + strings.Join(p.ValidValues, " or ")
}

// Fixed implements [sched.Fixed].
func (*ByLabel) Fixed() {}
