// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// trace tells a decision step by step at debug level: what was asked, who could serve it, which stage dropped
// whom, each scorer's score, the totals and the pick. A decision that ended before its profile was chosen has none.
// It costs one test when that level is off.
func (g *Gateway) trace(x *Exchange, c *sched.Cycle, p *sched.Profile, ok bool) {
	ctx := context.Background()
	if !g.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	d := x.out.Decision
	log := g.Log.With(slog.String("id", x.out.ID))
	log.Debug("LLM request assembled", slog.String("incomingModelName", x.out.Model), slog.String("targetModelName", x.out.Target),
		slog.Int64("promptTokens", c.Tokens), slog.Int("priority", x.out.Priority))
	log.Debug("Before running filter plugins", slog.Int("endpoints", len(c.All)))
	traceFilters(log, d)
	type state struct {
		Endpoint string   `json:"endpoint"`
		KV       *float64 `json:"kv"`
		Queue    *float64 `json:"queue"`
		Running  *float64 `json:"running"`
		InFlight int32    `json:"inFlight"` // without this request
	}
	states := make([]state, len(c.Candidates))
	for i, e := range c.Candidates {
		states[i] = state{e.Name, known(e.KVUsage.Value, e.KVUsage.Fresh(c.Now, c.Stale)),
			known(e.Waiting.Value, e.Waiting.Fresh(c.Now, c.Stale)),
			known(e.Running.Value, e.Running.Fresh(c.Now, c.Stale)), d.Flying[i]}
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

// traceFilters tells what each stage that dropped endpoints dropped, and why.
func traceFilters(log *slog.Logger, d *observe.Decision) {
	for f, stage := range d.Drops {
		var names []string
		for i, fate := range d.Fates {
			if f > int(sched.Kept) && int(fate) == f {
				names = append(names, d.Endpoints[i].Name)
			}
		}
		if len(names) > 0 {
			log.Debug("Dropped endpoints", slog.String("plugin", stage.Name), slog.String("why", stage.Why), slog.Any("endpoints", names))
		}
	}
}

// known is a signal's value, or nil when it is not known.
func known(v float64, fresh bool) *float64 {
	if !fresh {
		return nil
	}
	return &v
}
