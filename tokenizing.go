// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/vllm"
)

// tokenizer gives a token-producer what reads prompts for it.
func (b *planner) tokenizer(p *policy.TokenProducer) error {
	if p.Simulated {
		p.Use("simulated", simulatedTokens{})
	}
	return nil
}

// simulatedTokens reads prompts as simulated engines do.
type simulatedTokens struct{}

// Tokenize implements [policy.Tokenizing].
func (simulatedTokens) Tokenize(c *sched.Cycle, body []byte) (err error) {
	if c.Prompts.IDs, c.Prompts.Starts, err = vllm.Tokenize(c.API, body, c.Prompts.IDs, c.Prompts.Starts); err != nil {
		return &policy.Untold{Why: "refused", Err: err}
	}
	return nil
}
