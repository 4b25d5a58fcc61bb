// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/penstock-project/penstock/flow"
)

// never is the rank of a request without a deadline: after all that have one.
var never = time.Unix(1<<40, 0)

// FCFSOrderingPolicy serves first who came first. It takes no parameters.
type FCFSOrderingPolicy struct{}

// Rank implements [flow.Ordering].
func (*FCFSOrderingPolicy) Rank(_ *flow.Ask, entered time.Time, _ time.Duration) time.Time {
	return entered
}

// EDFOrderingPolicy serves first whose time to wait ends first. A request without such a time comes after
// all that have one. It takes no parameters.
type EDFOrderingPolicy struct{}

// Rank implements [flow.Ordering].
func (*EDFOrderingPolicy) Rank(_ *flow.Ask, entered time.Time, ttl time.Duration) time.Time {
	if ttl <= 0 {
		return never
	}
	return entered.Add(ttl)
}

// SLODeadlineOrderingPolicy serves first whose answer should begin first: the time of arrival and the TTFT that
// the header x-llm-d-slo-ttft-ms asks for. A request without it comes after all that have one. It takes no
// parameters.
type SLODeadlineOrderingPolicy struct{}

// Rank implements [flow.Ordering].
func (*SLODeadlineOrderingPolicy) Rank(a *flow.Ask, _ time.Time, _ time.Duration) time.Time {
	if a.TTFT <= 0 {
		return never
	}
	return a.Received.Add(a.TTFT)
}
