// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// EncodeFilter keeps endpoints that may encode media: those whose label llm-d.ai/role is encode,
// encode-prefill, encode-decode or encode-prefill-decode. It takes no parameters.
type EncodeFilter struct{}

// Filter implements [sched.Filter].
func (*EncodeFilter) Filter(c *sched.Cycle, keep []bool) { keepRoles(c, keep, encodes, false) }

// Reason implements [sched.Reasoner].
func (*EncodeFilter) Reason() string { return "llm-d.ai/role includes no encode" }

// Fixed implements [sched.Fixed].
func (*EncodeFilter) Fixed() {}
