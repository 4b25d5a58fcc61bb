// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/sched"
)

// AgentIdentity derives the identity of an agent's session from the headers that agents send: the first that is
// there of additionalSessionHeaders, x-claude-code-session-id, x-session-affinity, session-id and session_id.
//
// It tells it as the attribute agent-identity of the request, which session-affinity-filter and its
// scorer can read. Of a caller who may name a fairness id it is the fairness id where none is named; other callers stay in
// the default flow, or each could have as many flows as it likes. An identity of more than 256 bytes is none.
type AgentIdentity struct {
	// AdditionalSessionHeaders are looked at before the others, in this order.
	AdditionalSessionHeaders []string `json:"additionalSessionHeaders"`

	name    string
	headers []string // in lower case
}

// agentAttribute is the name by which an agent's identity is told.
const agentAttribute = "agent-identity"

var agentHeaders = []string{"x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"}

// SetName implements [sched.Namer].
func (p *AgentIdentity) SetName(name string) { p.name = name }

// Validate reports names that no header has, and too many of them.
func (p *AgentIdentity) Validate() error {
	if len(p.AdditionalSessionHeaders) > 32 {
		return fmt.Errorf("additionalSessionHeaders: %d are too many, at most 32", len(p.AdditionalSessionHeaders))
	}
	p.headers = nil
	for i, h := range p.AdditionalSessionHeaders {
		if h == "" {
			return fmt.Errorf("additionalSessionHeaders[%d]: is empty", i)
		}
		if err := headerName(fmt.Sprintf("additionalSessionHeaders[%d]", i), h); err != nil {
			return err
		}
		p.headers = append(p.headers, strings.ToLower(h))
	}
	return nil
}

// Produce implements [sched.Producer].
func (p *AgentIdentity) Produce(c *sched.Cycle) {
	if c.Headers == nil {
		return
	}
	if id := p.Identity(c.Headers); id != "" {
		c.Attributes = append(c.Attributes, sched.Attribute{Name: agentAttribute, Producer: p.name, Value: id})
	}
}

// Identity implements [sched.Identifier].
func (p *AgentIdentity) Identity(h sched.Headers) string {
	for _, names := range [2][]string{p.headers, agentHeaders} {
		for _, name := range names {
			if v := strings.TrimSpace(h.Get(name)); v != "" && len(v) <= maxIdentity {
				return v
			}
		}
	}
	return ""
}
