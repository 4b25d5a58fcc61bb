// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"

	"github.com/penstock-project/penstock/sched"
)

// trace tells a decision step by step at debug level: what was asked, who could serve it, each scorer's
// score, the totals and the pick. It costs one test when that level is off.
func (g *Gateway) trace(x *Exchange, c *sched.Cycle, p *sched.Profile, ok bool) {
	ctx := context.Background()
	if !g.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	log := g.Log.With(slog.String("id", x.out.ID))
	log.Debug("LLM request assembled", slog.String("incomingModelName", x.out.Model), slog.String("targetModelName", x.out.Target),
		slog.Int64("promptTokens", c.Tokens), slog.Int("priority", x.out.Priority))
	type state struct {
		Endpoint string   `json:"endpoint"`
		KV       *float64 `json:"kv"`
		Queue    *float64 `json:"queue"`
		Running  *float64 `json:"running"`
		InFlight int64    `json:"inFlight"`
	}
	states := make([]state, len(c.Candidates))
	for i, e := range c.Candidates {
		states[i] = state{e.Name, known(e.KVUsage.Value, e.KVUsage.Fresh(c.Now, c.Stale)),
			known(e.Waiting.Value, e.Waiting.Fresh(c.Now, c.Stale)),
			known(e.Running.Value, e.Running.Fresh(c.Now, c.Stale)), e.Load.Requests()}
	}
	log.Debug("Completed running filter plugins", slog.Int("candidates", x.out.Candidates),
		slog.Int("remainingEndpoints", len(c.Candidates)), slog.Any("endpoints", states))
	if !ok {
		return
	}
	for k, s := range p.Scorers {
		for i, e := range c.Candidates {
			log.Debug("Calculated score", slog.String("plugin", s.Name), slog.String("endpoint", e.Name),
				slog.Float64("score", c.Scores[k][i]), slog.Float64("weight", s.Weight))
		}
	}
	type total struct {
		Endpoint string  `json:"endpoint"`
		Score    float64 `json:"score"`
	}
	totals := make([]total, len(c.Candidates))
	for i, e := range c.Candidates {
		totals[i] = total{e.Name, c.Total[i]}
	}
	log.Debug("Candidates for picking", slog.String("picker", p.Picker.Name), slog.Any("weighted", totals))
	pick := c.Candidates[c.Order[0]]
	log.Debug("SELECTED", slog.String("endpoint", pick.ID.String()), slog.String("address", pick.Address))
}

// known is a signal's value, or nil when it is not known.
func known(v float64, fresh bool) *float64 {
	if !fresh {
		return nil
	}
	return &v
}
