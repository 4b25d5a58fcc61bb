// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// InflightLoadProducer says how many tokens of work a request brings to an endpoint, which count there as long as
// it is in flight.
//
// These are the tokens of its prompt that the endpoint has not cached and, with AddEstimatedOutputTokens, an
// estimate of its output: the least of the prompt's tokens times OutputRatio, the caller's own cap and
// MaxEstimatedOutputTokens. Without the estimate the prompt's tokens are taken off with the first output; with it
// all stay until the end. Requests are counted whether or not it is configured.
type InflightLoadProducer struct {
	// AddEstimatedOutputTokens counts an estimate of the output, too.
	AddEstimatedOutputTokens bool `json:"addEstimatedOutputTokens"`
	// OutputRatio is how many tokens of output are expected for one of the prompt.
	OutputRatio float64 `json:"outputRatio"`
	// MaxEstimatedOutputTokens bounds the estimate; no bound when it is left out.
	MaxEstimatedOutputTokens *int64 `json:"maxEstimatedOutputTokens"`
	// PrefixMatchInfoProducerName names who tells what is cached; empty for the default one.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
	// SyncCrossReplicaState is accepted and has no effect: each replica counts its own requests.
	SyncCrossReplicaState bool `json:"syncCrossReplicaState"`
}

// Validate reports estimates that cannot be.
func (p *InflightLoadProducer) Validate() error {
	switch {
	case !(p.OutputRatio >= 0):
		return errors.New("outputRatio: must not be below 0")
	case p.MaxEstimatedOutputTokens != nil && *p.MaxEstimatedOutputTokens < 0:
		return errors.New("maxEstimatedOutputTokens: must not be below 0")
	}
	return nil
}

// Produce implements [sched.Producer].
func (p *InflightLoadProducer) Produce(c *sched.Cycle) { c.Worker = p }

// Work implements [sched.Worker].
func (p *InflightLoadProducer) Work(c *sched.Cycle, i int) (prefill, output int64) {
	prefill = c.Tokens - c.Cached(p.PrefixMatchInfoProducerName, i)
	if !p.AddEstimatedOutputTokens {
		return prefill, 0
	}
	const most = 1 << 40 // far above any output, far below what overflows a sum
	output = int64(min(math.Round(float64(c.Tokens)*p.OutputRatio), most))
	if c.MaxTokens > 0 {
		output = min(output, c.MaxTokens)
	}
	if p.MaxEstimatedOutputTokens != nil {
		output = min(output, *p.MaxEstimatedOutputTokens)
	}
	return prefill, output
}
