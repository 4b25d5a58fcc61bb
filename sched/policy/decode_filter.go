// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// DecodeFilter keeps endpoints that may decode: those whose label llm-d.ai/role is decode, prefill-decode,
// both, encode-decode or encode-prefill-decode, and those without that label. It takes no parameters.
type DecodeFilter struct{}

// Filter implements [sched.Filter].
func (*DecodeFilter) Filter(c *sched.Cycle, keep []bool) { keepRoles(c, keep, decodes, true) }

// Reason implements [sched.Reasoner].
func (*DecodeFilter) Reason() string { return "llm-d.ai/role is there and includes no decode" }

// Fixed implements [sched.Fixed].
func (*DecodeFilter) Fixed() {}
