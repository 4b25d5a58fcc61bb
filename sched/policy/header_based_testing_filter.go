// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// HeaderBasedTestingFilter keeps the endpoints that the header test-epp-endpoint-selection lists, in its order:
// addresses, or addresses with ports, with commas between them. Without the header none is kept.
//
// Of several endpoints of one address the first that is listed is kept. It is a scorer, too: what is listed first
// scores highest, so that a picker of the highest score follows the list. It takes no parameters.
type HeaderBasedTestingFilter struct{}

const testSelection = "test-epp-endpoint-selection"

// Filter implements [sched.Filter].
func (*HeaderBasedTestingFilter) Filter(c *sched.Cycle, keep []bool) {
	clear(keep)
	for want := range strings.SplitSeq(c.Header(testSelection), ",") {
		if i := listed(c, strings.TrimSpace(want)); i >= 0 && !taken(c, keep, host(c.Candidates[i].Address)) {
			keep[i] = true
		}
	}
}

// Score implements [sched.Scorer].
func (*HeaderBasedTestingFilter) Score(c *sched.Cycle, score []float64) {
	next := 1.0
	for want := range strings.SplitSeq(c.Header(testSelection), ",") {
		if i := listed(c, strings.TrimSpace(want)); i >= 0 && score[i] == 0 {
			score[i] = next
			next /= 2
		}
	}
}

// Reason implements [sched.Reasoner].
func (*HeaderBasedTestingFilter) Reason() string {
	return "the header " + testSelection + " does not list it"
}

// listed is the first candidate of that address; -1 for none.
func listed(c *sched.Cycle, want string) int {
	if want == "" {
		return -1
	}
	for i, e := range c.Candidates {
		if e.Address == want || host(e.Address) == want {
			return i
		}
	}
	return -1
}

func taken(c *sched.Cycle, keep []bool, address string) bool {
	for i, k := range keep {
		if k && host(c.Candidates[i].Address) == address {
			return true
		}
	}
	return false
}

// host is an address without its port and without the brackets of IPv6.
func host(address string) string {
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		address = address[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}
