// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// decisions are recycled: each request has one until it ends.
var decisions = sync.Pool{New: func() any { return new(observe.Decision) }}

// stagesOf names what a decision of the profile goes through.
func stagesOf(plan *sched.Plan, p *sched.Profile) *observe.Stages {
	s := &observe.Stages{Drops: []observe.Drop{
		sched.Kept: {}, sched.NotServing: {Name: "model", Why: "it does not serve the model, and others do"},
		sched.NotInSubset: {Name: "subset", Why: "the data plane's subset leaves it out"},
		sched.Ejected:     {Name: "health", Why: "requests to it failed"},
	}}
	for f := sched.FirstStage; int(f) < int(sched.FirstStage)+len(plan.Screeners)+filters(p); f++ {
		name, why := plan.Stage(p, f)
		s.Drops = append(s.Drops, observe.Drop{Name: name, Why: why})
	}
	if p == nil {
		return s
	}
	s.Profile, s.Picker = p.Name, p.Picker.Name
	for _, w := range p.Scorers {
		s.Scorers = append(s.Scorers, observe.WeightedName{Name: w.Name, Weight: w.Weight})
	}
	return s
}

func filters(p *sched.Profile) int {
	if p == nil {
		return 0
	}
	return len(p.Filters)
}

// keepDecision copies what the decision saw, for whoever asks why, in place of what an earlier one did: a request that was
// taken back decides again. Without a profile that is all there is to it. What is in flight does not count this request:
// nothing of it is reserved yet.
func (x *Exchange) keepDecision(c *sched.Cycle, p *sched.Profile) *observe.Decision {
	d := x.out.Decision
	if d == nil {
		d = decisions.Get().(*observe.Decision)
		x.out.Decision = d
	}
	d.Stages, d.At, d.Stale = x.lane.stages(p), c.Now, c.Stale
	d.Endpoints = c.All
	d.Fates = d.Fates[:0]
	for _, f := range c.Fates {
		d.Fates = append(d.Fates, uint8(f))
	}
	d.Origin = append(d.Origin[:0], c.Origin...)
	d.Flying, d.Work, d.Ill = d.Flying[:0], d.Work[:0], d.Ill[:0]
	for _, e := range c.Candidates {
		d.Flying, d.Work = append(d.Flying, int32(e.Load.Requests())), append(d.Work, e.Load.Tokens())
	}
	health := x.g.Health()
	for i, e := range c.All {
		if h := e.Health(c.Now, health, c.Stale); h.State != fleet.Healthy || h.Fails > 0 {
			d.Ill = append(d.Ill, observe.Ill{Endpoint: int32(i), State: h.State, Failures: h.Fails, Cause: h.Cause})
		}
	}
	d.Scores, d.Total, d.Unseen, d.Order, d.Refused = d.Scores[:0], d.Total[:0], d.Unseen[:0], d.Order[:0], ""
	prefix := c.Prefix("")
	d.Match, d.Blocks, d.BlockTokens = append(d.Match[:0], prefix.Match...), prefix.Blocks, prefix.BlockTokens
	d.Sure = d.Sure[:0]
	for i := range prefix.Evidence {
		d.Sure = append(d.Sure, prefix.Evidence[i].Confirmed())
	}
	if p == nil {
		x.g.trace(x, c, nil, false)
	}
	return d
}

// keepScores adds to what [Exchange.keepDecision] copied what the profile made of the candidates.
func keepScores(d *observe.Decision, c *sched.Cycle) {
	for _, scores := range c.Scores {
		for _, v := range scores {
			d.Scores = append(d.Scores, float32(v))
		}
	}
	for i, v := range c.Total {
		d.Total = append(d.Total, float32(v))
		d.Unseen = append(d.Unseen, int32(c.Unseen[i]))
	}
	for _, i := range c.Order {
		d.Order = append(d.Order, int32(i))
	}
}

// forget lets the decision go.
func (x *Exchange) forget() {
	if d := x.out.Decision; d != nil {
		x.out.Decision = nil
		d.Forget()
		decisions.Put(d)
	}
}

// decisionHeader asks for, and carries, the decision in a line; trusted callers only.
const decisionHeader = "x-penstock-decision"

// brief is the decision in a line, with names that belong into a header.
func (x *Exchange) brief() string {
	d := x.out.Decision
	if d == nil || len(d.Order) == 0 {
		return ""
	}
	var b strings.Builder
	pick := d.Order[0]
	fmt.Fprintf(&b, "id=%s; endpoint=%s; score=%.4g", x.out.ID, x.out.Endpoint, d.Total[pick])
	if len(d.Order) > 1 {
		next := d.Order[1]
		fmt.Fprintf(&b, "; margin=%.4g; over=%s", d.Total[pick]-d.Total[next], d.Endpoints[d.Origin[next]].ID)
	}
	fmt.Fprintf(&b, "; candidates=%d; of=%d; cached=%d; retries=%d", len(d.Origin), len(d.Endpoints), x.out.PredictedCached, x.out.Retries)
	return b.String()
}
