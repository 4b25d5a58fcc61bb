// SPDX-License-Identifier: Apache-2.0

package work

import "fmt"

// Parse reads a workload: a kind with parameters ("groups?groups=150&prefix=6000&rate=11"), several
// of them joined by " + ", a named one ("b2b"), or a trace ("mooncake:FILE", "azure:FILE",
// "log:FILE" for an access log, "trace:FILE" for whichever it is).
func Parse(spec string) (Open, error) {
	return nil, fmt.Errorf("workload %q: there are none yet", spec)
}

// Multiplied tells whether the rate given to the [Open] of spec multiplies the workload's own, and
// is not requests per second.
func Multiplied(spec string) bool { return false }

// Suites are the lists of workloads, each a spec for [Parse], that are tried together: routing to
// judge where requests go, qos to judge what tenants do to one another.
var Suites = map[string][]string{}
