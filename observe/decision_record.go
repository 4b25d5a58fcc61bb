// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// The form of /debug/decisions. Times are in the unit that their names end with.
type (
	// Record is why one request went where it went, waited, or was turned away. It holds nothing of the prompt and
	// no values of headers but for the id, the tenant and the model.
	Record struct {
		Summary
		Door      string      `json:"door"`
		API       string      `json:"api,omitempty"`
		Stream    bool        `json:"stream"`
		Profile   string      `json:"profile,omitempty"`
		Picker    string      `json:"picker,omitempty"`
		RefusedBy string      `json:"refused_by,omitempty"` // the admitter
		Flow      *FlowRecord `json:"flow_control,omitempty"`
		Message   string      `json:"message,omitempty"`
		Pick      string      `json:"pick,omitempty"` // what was chosen first
		Fallbacks []string    `json:"fallbacks,omitempty"`
		// Endpoints is how many the pool had, Scored how many of them no stage dropped.
		Endpoints  int         `json:"endpoints"`
		Scored     int         `json:"scored"`
		Candidates []Candidate `json:"candidates"` // in rank order, then those dropped
		Dropped    []DropCount `json:"dropped,omitempty"`
		// Unlisted counts the endpoints that there was no room for.
		Unlisted   int           `json:"unlisted,omitempty"`
		Attempts   []AttemptView `json:"attempts,omitempty"`
		SlowTTFTMS float64       `json:"slow_ttft_above_ms,omitempty"` // the bound that a slow one went beyond
		SlowEndMS  float64       `json:"slow_duration_above_ms,omitempty"`
		BodyMS     float64       `json:"body_ms"`
		ScheduleUS float64       `json:"schedule_us"`
		DecisionUS float64       `json:"decision_us"` // from the whole body, without the wait
		Tokens     TokenView     `json:"tokens"`
		Blocks     int           `json:"prompt_blocks,omitempty"`
		BlockSize  int           `json:"block_size,omitempty"` // tokens
	}
	// FlowRecord is what flow control made of the request. What it waited for and where it stood are of the moment in
	// which it began to wait, and absent when it went at once.
	FlowRecord struct {
		Outcome string `json:"outcome"`
		For     string `json:"waited_for,omitempty"`      // endpoints, room, ceiling or turn
		Ahead   int    `json:"ahead,omitempty"`           // with its priority or a higher one
		Own     int    `json:"ahead_of_tenant,omitempty"` // of its tenant and priority
		Flows   int    `json:"tenants,omitempty"`         // that waited with its priority, its own included
	}
	// Summary is a record in a list.
	Summary struct {
		ID         string    `json:"id"`
		Time       time.Time `json:"time"` // when it came
		Pool       string    `json:"pool,omitempty"`
		Model      string    `json:"model,omitempty"`
		Target     string    `json:"target,omitempty"` // the model that its endpoint was asked for
		Tenant     string    `json:"tenant,omitempty"`
		Priority   int       `json:"priority"`
		Outcome    End       `json:"outcome"`
		Status     int       `json:"status"`
		Reason     string    `json:"reason,omitempty"`
		Endpoint   string    `json:"endpoint,omitempty"` // that served, or was tried last
		Address    string    `json:"address,omitempty"`
		Total      *float64  `json:"total,omitempty"`  // of the pick
		Margin     *float64  `json:"margin,omitempty"` // over the next one
		Slow       bool      `json:"slow,omitempty"`
		Retries    int       `json:"retries"`
		QueueMS    float64   `json:"queue_ms"`
		TTFTMS     float64   `json:"ttft_ms,omitempty"`
		DurationMS float64   `json:"duration_ms"`
	}
	// Candidate is one endpoint as the decision saw it.
	Candidate struct {
		Rank     int    `json:"rank,omitempty"` // 1 is the pick; 0 for one that was dropped or not ranked
		Endpoint string `json:"endpoint"`
		Address  string `json:"address"`
		// Verdict is picked, served (after the pick failed), failed, fallback, kept or dropped.
		Verdict string           `json:"verdict"`
		By      string           `json:"by,omitempty"` // the stage that dropped it
		Why     string           `json:"why,omitempty"`
		Total   *float64         `json:"total,omitempty"`
		Scores  []CandidateScore `json:"scores,omitempty"`
		// Penalty is what the Unseen requests took off the total.
		Penalty      float64 `json:"penalty,omitempty"`
		Unseen       int     `json:"unseen"` // requests in flight that no signal showed
		InFlight     int     `json:"in_flight"`
		Work         int64   `json:"inflight_tokens"`
		CachedBlocks int     `json:"cached_blocks"`
		// ConfirmedBlocks are those of CachedBlocks that the engine said it holds; the others are expected of it, since requests with
		// them were sent there. Absent where nobody
		// listens to engines.
		ConfirmedBlocks *int                  `json:"confirmed_blocks,omitempty"`
		CachedTokens    int                   `json:"cached_tokens"`
		Signals         map[string]SignalView `json:"signals"`
		Attrs           []AttributeView       `json:"attributes,omitempty"`
		Health          *HealthView           `json:"health,omitempty"` // absent for healthy
	}
	// CandidateScore is one scorer's part of a total.
	CandidateScore struct {
		Scorer string  `json:"scorer"`
		Score  float64 `json:"score"` // 0 to 1
		Weight float64 `json:"weight"`
		Share  float64 `json:"share"` // of the total
	}
	// DropCount is how many endpoints a stage dropped.
	DropCount struct {
		By    string `json:"by"`
		Why   string `json:"why,omitempty"`
		Count int    `json:"count"`
	}
	// AttemptView is an endpoint that failed.
	AttemptView struct {
		Endpoint string `json:"endpoint"`
		Address  string `json:"address"`
		Cause    string `json:"cause"`
	}
	// TokenView are counts of tokens; absent where nobody told.
	TokenView struct {
		// Estimated is what the prompt was taken for before it was sent: counted by Tokenizer, where that is not estimate. Untold says in
		// a word why the tokenizer that was asked could not.
		Estimated int    `json:"estimated"`
		Tokenizer string `json:"tokenizer,omitempty"`
		Untold    string `json:"untold,omitempty"`

		Prompt          *int `json:"prompt,omitempty"`
		Output          *int `json:"output,omitempty"`
		PredictedCached int  `json:"predicted_cached"`
		Cached          *int `json:"cached,omitempty"`
	}
)

// Verdicts of candidates.
const (
	Picked   = "picked"
	Served   = "served"
	Failed   = "failed"
	Fallback = "fallback"
	Left     = "kept"
	Dropped  = "dropped"
)

func (r *kept) slow() bool { return r.slowTTFT > 0 || r.slowEnd > 0 }

// summary renders the record for a list.
func (r *kept) summary() Summary {
	o := &r.out
	s := Summary{
		ID: o.ID, Time: o.Start.UTC(), Pool: o.Pool, Model: o.Model, Target: o.Target, Tenant: o.Tenant, Priority: o.Priority,
		Outcome: o.End, Status: o.Status, Reason: o.Reason, Endpoint: o.Endpoint, Address: o.Address,
		Slow: r.slow(), Retries: o.Retries, QueueMS: inMS(o.Queue), TTFTMS: inMS(o.TTFT), DurationMS: inMS(o.Duration),
	}
	if len(r.order) > 0 {
		total := wide(r.seats[r.order[0]].total)
		s.Total = &total
		if next, ok := r.next(); ok {
			margin := rounded(total - wide(next))
			s.Margin = &margin
		}
	}
	return s
}

// next is the highest total beside the pick's.
func (r *kept) next() (total float32, ok bool) {
	for at := range r.seats[:r.stay] {
		if s := &r.seats[at]; at != int(r.order[0]) && (!ok || s.total > total) {
			total, ok = s.total, true
		}
	}
	return total, ok
}

// record renders all of it.
func (r *kept) record() Record {
	o := &r.out
	v := Record{
		Summary: r.summary(), Door: o.Door, API: o.API, Stream: o.Stream, RefusedBy: r.refused, Message: o.Message,
		Endpoints: r.endpoints, Scored: r.scored, Candidates: []Candidate{},
		SlowTTFTMS: inMS(r.slowTTFT), SlowEndMS: inMS(r.slowEnd), BodyMS: inMS(o.Body),
		ScheduleUS: inUS(o.Schedule), DecisionUS: inUS(o.Deciding), Blocks: r.blocks, BlockSize: r.blockSize,
		Tokens: TokenView{
			Estimated: o.EstimatedTokens, Tokenizer: o.Tokenizer, Untold: o.Untold,
			Prompt: counted(o.PromptTokens), Output: counted(o.OutputTokens), PredictedCached: o.PredictedCached, Cached: counted(o.Cached),
		},
	}
	if w := o.Wait; w.Outcome != "" {
		v.Flow = &FlowRecord{w.Outcome, w.For, w.Ahead, w.Own, w.Flows}
	}
	for _, a := range o.Attempts {
		v.Attempts = append(v.Attempts, AttemptView(a))
	}
	if r.stages == nil {
		return v
	}
	v.Profile, v.Picker = r.stages.Profile, r.stages.Picker
	for f, n := range r.drops {
		if f > 0 && n > 0 {
			v.Dropped = append(v.Dropped, DropCount{r.stages.Drops[f].Name, r.stages.Drops[f].Why, int(n)})
		}
	}
	for rank, at := range r.ranked() {
		c := r.candidate(at)
		if at < r.stay && len(r.order) > 0 {
			c.Rank = rank + 1
		}
		r.judge(&c, at)
		switch c.Verdict {
		case Fallback:
			v.Fallbacks = append(v.Fallbacks, c.Endpoint)
		case Served:
			v.Fallbacks = append(v.Fallbacks, c.Endpoint)
		}
		if c.Rank == 1 {
			v.Pick = c.Endpoint
		}
		v.Candidates = append(v.Candidates, c)
	}
	v.Unlisted = r.endpoints - len(r.seats)
	return v
}

// ranked lists the seats: the pick and its fallbacks, the others by falling total, those dropped.
func (r *kept) ranked() []int {
	out := make([]int, 0, len(r.seats))
	for _, at := range r.order {
		out = append(out, int(at))
	}
	for at := range r.seats[:r.stay] {
		if !slices.Contains(r.order, int16(at)) {
			out = append(out, at)
		}
	}
	slices.SortStableFunc(out[len(r.order):], func(a, b int) int {
		switch x, y := r.seats[a].total, r.seats[b].total; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for at := r.stay; at < len(r.seats); at++ {
		out = append(out, at)
	}
	return out
}

// candidate renders a seat, but for its rank and verdict.
func (r *kept) candidate(at int) Candidate {
	s := &r.seats[at]
	c := Candidate{
		Endpoint: r.roster.names[s.at].String(), Address: r.roster.addresses[s.at],
		Unseen: int(s.unseen), InFlight: int(s.flying), Work: s.work, CachedBlocks: int(s.match),
		CachedTokens: int(s.match) * r.blockSize,
		Signals:      map[string]SignalView{"waiting": s.waiting.view(), "running": s.running.view(), "kv_usage": s.kv.view()},
	}
	if at < r.stay && s.sure >= 0 {
		sure := int(s.sure)
		c.ConfirmedBlocks = &sure
	}
	if r.out.EstimatedTokens > 0 {
		c.CachedTokens = min(c.CachedTokens, r.out.EstimatedTokens)
	}
	if at < r.stay && len(r.order) > 0 {
		total, sum := wide(s.total), 0.0
		c.Total = &total
		n := len(r.stages.Scorers)
		for k, score := range r.scores[at*n : at*n+n] {
			w := r.stages.Scorers[k]
			share := rounded(wide(score) * w.Weight)
			sum += share
			c.Scores = append(c.Scores, CandidateScore{w.Name, wide(score), w.Weight, share})
		}
		if s.unseen > 0 {
			c.Penalty = math.Max(0, rounded(sum-total))
		}
	}
	for i := range r.attrs {
		if a := &r.attrs[i]; int(a.seat) == at {
			c.Attrs = append(c.Attrs, AttributeView{a.name, a.producer, a.view()})
		}
	}
	for _, ill := range r.ill {
		if int(ill.Endpoint) == at {
			c.Health = &HealthView{State: ill.State, Failures: ill.Failures, Cause: ill.Cause}
		}
	}
	return c
}

// judge says what became of a candidate.
func (r *kept) judge(c *Candidate, at int) {
	if at >= r.stay {
		d := r.stages.Drops[r.seats[at].fate]
		c.Verdict, c.By, c.Why = Dropped, d.Name, d.Why
		if c.Health != nil && c.Health.State == fleet.Ejected && c.Health.Cause != "" && int(r.seats[at].fate) == healthFate(r.stages) {
			c.Why += ": " + c.Health.Cause
		}
		return
	}
	for _, a := range r.out.Attempts {
		if a.Endpoint == c.Endpoint {
			c.Verdict, c.Why = Failed, a.Cause
			return
		}
	}
	rank := slices.Index(r.order, int16(at))
	switch {
	case c.Endpoint == r.out.Endpoint && rank == 0:
		c.Verdict = Picked
	case c.Endpoint == r.out.Endpoint:
		c.Verdict = Served
	case rank >= 0 && r.out.Endpoint != "":
		c.Verdict = Fallback
	default:
		c.Verdict = Left
	}
}

// healthFate is the number of the stage that passes over the ejected; -1 when there is none.
func healthFate(s *Stages) int {
	return slices.IndexFunc(s.Drops, func(d Drop) bool { return d.Name == "health" })
}

func (r reading) view() SignalView {
	v := SignalView{State: r.state.String()}
	if r.state != absent {
		value, age := wide(r.value), int64(r.age)
		v.Value, v.AgeMS = &value, &age
	}
	return v
}

func counted(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

// wide is the number that is written as v is; what cannot be written is 0.
func wide(v float32) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// rounded cuts what float32 could not hold.
func rounded(v float64) float64 { return math.Round(v*1e6) / 1e6 }

func inMS(d time.Duration) float64 { return float64(max(0, d).Microseconds()) / 1e3 }
func inUS(d time.Duration) float64 { return float64(max(0, d).Nanoseconds()/100) / 10 }
