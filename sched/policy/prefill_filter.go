// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// PrefillFilter keeps endpoints that may prefill: those whose label llm-d.ai/role is prefill, prefill-decode,
// both, encode-prefill or encode-prefill-decode. It takes no parameters.
type PrefillFilter struct{}

// Filter implements [sched.Filter].
func (*PrefillFilter) Filter(c *sched.Cycle, keep []bool) { keepRoles(c, keep, prefills, false) }

// Reason implements [sched.Reasoner].
func (*PrefillFilter) Reason() string { return "llm-d.ai/role includes no prefill" }

// Fixed implements [sched.Fixed].
func (*PrefillFilter) Fixed() {}
