// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// LabelSelectorFilter keeps endpoints whose labels match a Kubernetes label selector. An empty
// selector keeps all.
type LabelSelectorFilter struct {
	// MatchLabels are labels that must have exactly these values.
	MatchLabels map[string]string `json:"matchLabels"`
	// MatchExpressions are further requirements; all must hold.
	MatchExpressions []Requirement `json:"matchExpressions"`
}

// Requirement is one expression of a label selector.
type Requirement struct {
	// Key is the label.
	Key string `json:"key"`
	// Operator is In, NotIn, Exists or DoesNotExist.
	Operator string `json:"operator"`
	// Values are the values for In and NotIn.
	Values []string `json:"values"`
}

// Validate reports an operator that does not exist or whose values do not fit it.
func (p *LabelSelectorFilter) Validate() error {
	for i, r := range p.MatchExpressions {
		switch r.Operator {
		case "In", "NotIn":
			if len(r.Values) == 0 {
				return fmt.Errorf("matchExpressions[%d].values: %s needs at least one", i, r.Operator)
			}
		case "Exists", "DoesNotExist":
			if len(r.Values) > 0 {
				return fmt.Errorf("matchExpressions[%d].values: %s takes none", i, r.Operator)
			}
		default:
			return fmt.Errorf("matchExpressions[%d].operator: want In, NotIn, Exists or DoesNotExist, got %q", i, r.Operator)
		}
	}
	return nil
}

// Filter implements [sched.Filter].
func (p *LabelSelectorFilter) Filter(c *sched.Cycle, keep []bool) {
	for i, e := range c.Candidates {
		keep[i] = p.matches(e.Labels)
	}
}

// Reason implements [sched.Reasoner].
func (p *LabelSelectorFilter) Reason() string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(p.MatchLabels)) {
		all = append(all, k+"="+p.MatchLabels[k])
	}
	for _, r := range p.MatchExpressions {
		switch r.Operator {
		case "Exists":
			all = append(all, r.Key)
		case "DoesNotExist":
			all = append(all, "!"+r.Key)
		default:
			all = append(all, fmt.Sprintf("%s %s (%s)", r.Key, strings.ToLower(r.Operator), strings.Join(r.Values, ", ")))
		}
	}
	return "its labels are not " + strings.Join(all, ", ")
}

func (p *LabelSelectorFilter) matches(labels map[string]string) bool {
	for k, v := range p.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, r := range p.MatchExpressions {
		have, ok := labels[r.Key]
		in := ok && slices.Contains(r.Values, have)
		switch r.Operator {
		case "In":
			ok = in
		case "NotIn":
			ok = !in
		case "DoesNotExist":
			ok = !ok
		}
		if !ok {
			return false
		}
	}
	return true
}

// Fixed implements [sched.Fixed].
func (*LabelSelectorFilter) Fixed() {}
