// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/penstock-project/penstock/sched"
)

// roleLabel says which legs of a request an endpoint serves.
const roleLabel = "llm-d.ai/role"

// The roles that serve each leg. encode-decode is a documented value: it serves both.
var (
	decodes  = []string{"decode", "prefill-decode", "both", "encode-prefill-decode", "encode-decode"}
	prefills = []string{"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
	encodes  = []string{"encode", "encode-prefill", "encode-prefill-decode", "encode-decode"}
)

func keepRoles(c *sched.Cycle, keep []bool, roles []string, unlabelled bool) {
	for i, e := range c.Candidates {
		role, ok := e.Labels[roleLabel]
		keep[i] = !ok && unlabelled || ok && slices.Contains(roles, role)
	}
}
