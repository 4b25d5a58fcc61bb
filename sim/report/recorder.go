// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// Bounds of a Run, whoever chooses the names: what is beyond shares one entry.
const (
	MaxTenants   = 64
	MaxClasses   = 32
	MaxErrors    = 32
	MaxBands     = 16
	MaxEndpoints = 4096

	others = "(others)"
	none   = "(none)"

	fairWindow  = 10 * time.Second
	fairWindows = 512
	bandSteps   = 120

	exactOfGroup = 2048
)

// Setup says what a run is, and what its requests have to keep.
type Setup struct {
	Policy, Workload string
	Seed             uint64
	Rate             float64
	// Warmup is the time from the start in which requests are sent but not counted.
	Warmup time.Duration
	SLO    SLO
	// Endpoints are known by their index here, Kinds by the same one if there are any.
	Endpoints, Kinds []string
	// Exact is how many values of a figure are kept exactly, 16,384 if 0. It bounds the memory.
	Exact int
}

// Recorder makes a Run from what happens. Times count from the start of the run; calls need not come in the
// order of time, but the calls of one request do. Requests are known by a number that the caller chooses
// and that is free again after Done or Failed. It is for one goroutine at a time.
//
// Its memory is bounded by the requests that are open at once, [Setup.Exact], and the bounds of names.
type Recorder struct {
	setup     Setup
	run       Run
	open      map[int]int32
	flights   []flight
	free      []int32
	end       time.Duration
	good      int
	ttft      samples
	tpot      samples
	itl       samples
	e2e       samples
	queue     samples
	schedule  samples
	late      samples
	tenants   []group
	classes   []group
	byTenant  map[string]int32
	byClass   map[string]int32
	endpoints []endpoint
	byName    map[string]int
	steps     int // of an endpoint's series
	bands     []band
	fair      fair
	cpu       time.Duration
	cores     int
}

// flight is an open request.
type flight struct {
	sent, first, last time.Duration
	prompt            int
	tenant, class     int32
	begun, counted    bool
}

// group is what a tenant's or a class's requests have in common.
type group struct {
	name                string
	requests, completed int
	asked, prompt       int64 // tokens of all, and of completed requests
	cached, service     int64
	good                int
	ttft, tpot, queue   samples
}

type endpoint struct {
	name, kind             string
	requests               int
	prompt, cached, output int64
	samples, running       int
	load, kv               series
}

type band struct {
	priority int
	waiting  series
}

// NewRecorder starts a run.
func NewRecorder(s Setup) *Recorder {
	if s.Exact <= 0 {
		s.Exact = 16384
	}
	r := &Recorder{
		setup: s, open: map[int]int32{}, byTenant: map[string]int32{}, byClass: map[string]int32{}, byName: map[string]int{},
		fair: fair{step: fairWindow, most: fairWindows},
		run:  Run{Policy: s.Policy, Workload: s.Workload, Seed: s.Seed, Rate: s.Rate, SLO: s.SLO, Errors: map[string]int{}},
		// An hour on 8 endpoints in half minutes; on 1,000 endpoints in 32 steps.
		steps: min(120, max(32, 8192/max(1, len(s.Endpoints)))) &^ 1,
	}
	for i, name := range s.Endpoints {
		kind := ""
		if i < len(s.Kinds) {
			kind = s.Kinds[i]
		}
		r.Endpoint(name, kind)
	}
	return r
}

// Endpoint is the index of an endpoint that was not in the Setup, which is new when its name is; -1 when
// there are [MaxEndpoints].
func (r *Recorder) Endpoint(name, kind string) int {
	if i, ok := r.byName[name]; ok {
		return i
	}
	if len(r.endpoints) == MaxEndpoints {
		return -1
	}
	i := len(r.endpoints)
	r.byName[name] = i
	r.endpoints = append(r.endpoints, endpoint{name: name, kind: kind,
		load: series{step: time.Second, most: r.steps}, kv: series{step: time.Second, most: r.steps}})
	return i
}

// Sent begins request i: at is when it should have been sent, so that a client or gateway that was late is
// not forgiven. promptTokens may be 0 where they are not known before the answer, see Prompt.
func (r *Recorder) Sent(i int, at time.Duration, tenant, class string, promptTokens int) {
	if _, ok := r.open[i]; ok {
		return
	}
	f := flight{sent: at, prompt: promptTokens, counted: at >= r.setup.Warmup}
	if !f.counted {
		r.run.Warmup++
	} else {
		r.run.Requests++
		f.tenant = place(&r.tenants, r.byTenant, tenant, MaxTenants)
		f.class = place(&r.classes, r.byClass, class, MaxClasses)
		for _, g := range r.groups(&f) {
			g.requests++
			g.asked += int64(promptTokens)
		}
	}
	var slot int32
	if n := len(r.free); n > 0 {
		slot, r.free = r.free[n-1], r.free[:n-1]
		r.flights[slot] = f
	} else {
		slot = int32(len(r.flights))
		r.flights = append(r.flights, f)
	}
	r.open[i] = slot
}

// place finds or makes a group. No name is a group, too.
func place(groups *[]group, index map[string]int32, name string, most int) int32 {
	if i, ok := index[name]; ok {
		return i
	}
	if len(*groups) >= most-1 && name != others {
		return place(groups, index, others, most)
	}
	i := int32(len(*groups))
	index[name] = i
	*groups = append(*groups, group{name: name})
	return i
}

func (r *Recorder) groups(f *flight) [2]*group {
	return [2]*group{&r.tenants[f.tenant], &r.classes[f.class]}
}

func (r *Recorder) flight(i int) *flight {
	slot, ok := r.open[i]
	if !ok {
		return nil
	}
	return &r.flights[slot]
}

// Prompt corrects the number of prompt tokens of request i, once the answer tells it.
func (r *Recorder) Prompt(i, tokens int) {
	f := r.flight(i)
	if f == nil {
		return
	}
	if f.counted {
		for _, g := range r.groups(f) {
			g.asked += int64(tokens - f.prompt)
		}
	}
	f.prompt = tokens
}

// First is the first token of request i. What comes after the first call is left out.
func (r *Recorder) First(i int, at time.Duration) {
	if f := r.flight(i); f != nil && !f.begun {
		f.begun, f.first, f.last = true, at, at
	}
}

// Token tells of n more tokens of request i, which arrived together: each gets its part of the time since
// the last ones. A caller that knows the gap for many requests at once calls Gap instead.
func (r *Recorder) Token(i int, at time.Duration, n int) {
	f := r.flight(i)
	if f == nil || !f.begun || n <= 0 {
		return
	}
	if f.counted {
		r.Gap((at-f.last)/time.Duration(n), n)
	}
	f.last = at
}

// Gap counts n tokens that came d after the one before.
func (r *Recorder) Gap(d time.Duration, n int) {
	if n > 0 {
		r.itl.add(d, uint64(n), r.setup.Exact)
	}
}

// Done ends request i, fully answered by an endpoint's index, or -1 where that is not known. queued is the
// time it waited in the gateway.
func (r *Recorder) Done(i int, at time.Duration, output, cached, endpoint int, queued time.Duration) {
	f := r.take(i, at)
	if f == nil {
		return
	}
	prompt := int64(f.prompt)
	hit := min(int64(max(0, cached)), prompt)
	r.run.Completed++
	r.run.PromptTokens += prompt
	r.run.CachedTokens += hit
	r.run.OutputTokens += int64(output)
	ttft, e2e, tpot := f.first-f.sent, at-f.sent, time.Duration(0)
	exact := r.setup.Exact
	r.e2e.add(e2e, 1, exact)
	r.queue.add(queued, 1, exact)
	if f.begun {
		r.ttft.add(ttft, 1, exact)
		if output > 1 {
			tpot = (at - f.first) / time.Duration(output-1)
			r.tpot.add(tpot, 1, exact)
		}
	}
	slo := &r.setup.SLO
	good := 0
	if keeps(ttft, slo.TTFT) && (f.begun || slo.TTFT == 0) && keeps(tpot, slo.TPOT) && keeps(e2e, slo.E2E) {
		good = 1
	}
	r.good += good
	service := prompt - hit + 2*int64(output)
	for _, g := range r.groups(f) {
		g.completed++
		g.prompt += prompt
		g.cached += hit
		g.service += service
		g.good += good
		g.queue.add(queued, 1, min(exact, exactOfGroup))
		if f.begun {
			g.ttft.add(ttft, 1, min(exact, exactOfGroup))
		}
		if f.begun && output > 1 {
			g.tpot.add(tpot, 1, min(exact, exactOfGroup))
		}
	}
	first := at
	if f.begun {
		first = f.first
	}
	w := r.setup.Warmup
	r.fair.add(int(f.tenant), f.sent-w, first-w, at-w, float64(prompt-hit), 2*float64(output), true)
	if endpoint >= 0 && endpoint < len(r.endpoints) {
		e := &r.endpoints[endpoint]
		e.requests++
		e.prompt += prompt
		e.cached += hit
		e.output += int64(output)
	}
}

func keeps(d, most time.Duration) bool { return most == 0 || d <= most }

// Failed ends request i, which was not answered, or not fully.
func (r *Recorder) Failed(i int, at time.Duration, kind string) {
	f := r.take(i, at)
	if f == nil {
		return
	}
	if _, ok := r.run.Errors[kind]; !ok && len(r.run.Errors) >= MaxErrors-1 {
		kind = others
	}
	r.run.Errors[kind]++
	w := r.setup.Warmup
	r.fair.add(int(f.tenant), f.sent-w, at-w, at-w, float64(f.prompt), 0, false)
}

// take ends a request; nil when it is not known or not counted. What it returns holds until the next Sent.
func (r *Recorder) take(i int, at time.Duration) *flight {
	slot, ok := r.open[i]
	if !ok {
		return nil
	}
	delete(r.open, i)
	r.free = append(r.free, slot)
	f := &r.flights[slot]
	if !f.counted {
		return nil
	}
	r.end = max(r.end, at)
	return f
}

// Sample is an endpoint's state at one time. Take them at equal distances, for all endpoints: the plots and
// the busy share are means of samples. kv is the share of its KV cache in use.
func (r *Recorder) Sample(at time.Duration, endpoint, waiting, running int, kv float64) {
	if endpoint < 0 || endpoint >= len(r.endpoints) {
		return
	}
	e := &r.endpoints[endpoint]
	e.samples++
	if running > 0 {
		e.running++
	}
	e.load.add(at, float64(waiting+running))
	e.kv.add(at, kv)
}

// Queue is how many requests of a priority wait in the gateway at one time. Take them at equal distances.
func (r *Recorder) Queue(at time.Duration, priority, n int) {
	for i := range r.bands {
		if r.bands[i].priority == priority {
			r.bands[i].waiting.add(at, float64(n))
			return
		}
	}
	if len(r.bands) < MaxBands {
		b := band{priority, series{step: time.Second, most: bandSteps}}
		b.waiting.add(at, float64(n))
		r.bands = append(r.bands, b)
	}
}

// Scheduled counts a decision that took d of real time. Virtual time has none to tell: the same seed would
// not give the same bytes.
func (r *Recorder) Scheduled(d time.Duration) { r.schedule.add(d, 1, r.setup.Exact) }

// Late counts a request that a client sent d after it should have.
func (r *Recorder) Late(d time.Duration) { r.late.add(d, 1, r.setup.Exact) }

// Client says what CPU time the client used from the end of the warm-up on, and how many cores it has.
func (r *Recorder) Client(cpu time.Duration, cores int) { r.cpu, r.cores = cpu, cores }

// Run sums up. Requests that are still open count as errors of the kind "unfinished".
//
// The Jain index is that of what tenants got, each divided by its max-min fair share of what all got, in
// windows of 10 s weighted by service: a tenant that wanted little and got it is served fairly.
func (r *Recorder) Run() Run {
	run := r.run
	run.Errors = maps.Clone(r.run.Errors)
	left := run.Requests - run.Completed
	for _, n := range run.Errors {
		left -= n
	}
	if left > 0 {
		run.Errors["unfinished"] += left
	}
	seconds := max(0, r.end-r.setup.Warmup).Seconds()
	run.DurationS = round(seconds)
	run.HitRate = per(float64(run.CachedTokens), float64(run.PromptTokens))
	run.TTFT = r.ttft.dist(time.Millisecond, true)
	run.TPOT = r.tpot.dist(time.Millisecond, true)
	run.ITL = r.itl.dist(time.Millisecond, true)
	run.E2E = r.e2e.dist(time.Millisecond, true)
	run.Queue = r.queue.dist(time.Millisecond, true)
	run.Schedule = r.schedule.dist(time.Microsecond, false)
	run.ThroughputRPS = per(float64(run.Completed), seconds)
	run.PromptTokensPerS = per(float64(run.PromptTokens), seconds)
	run.OutputTokensPerS = per(float64(run.OutputTokens), seconds)
	asked := r.setup.SLO != SLO{}
	if asked {
		run.Goodput = &Goodput{per(float64(r.good), float64(run.Requests)), per(float64(r.good), seconds)}
	}
	if index, ok := r.fair.jain(); ok {
		run.Jain = round(index)
	}
	goodput := func(g *group) float64 {
		if !asked {
			return 0
		}
		return per(float64(g.good), float64(g.requests))
	}
	for _, g := range named(r.tenants) {
		run.Tenants = append(run.Tenants, Tenant{
			Name: g.name, Requests: g.requests, Completed: g.completed, PromptTokens: g.asked, ServiceTokens: g.service,
			HitRate: per(float64(g.cached), float64(g.prompt)), Goodput: goodput(g),
			TTFT: g.ttft.dist(time.Millisecond, false), Queue: g.queue.dist(time.Millisecond, false),
		})
	}
	for _, g := range named(r.classes) {
		run.Classes = append(run.Classes, Class{
			Name: g.name, Requests: g.requests, Completed: g.completed,
			HitRate: per(float64(g.cached), float64(g.prompt)), Goodput: goodput(g),
			TTFT: g.ttft.dist(time.Millisecond, false), TPOT: g.tpot.dist(time.Millisecond, false),
		})
	}
	for i := range r.endpoints {
		e := &r.endpoints[i]
		run.Endpoints = append(run.Endpoints, Endpoint{
			Name: e.name, Kind: e.kind, Requests: e.requests, PromptTokens: e.prompt, OutputTokens: e.output,
			HitRate: per(float64(e.cached), float64(e.prompt)), Busy: per(float64(e.running), float64(e.samples)),
			Load: e.load.done(), KV: e.kv.done(),
		})
	}
	for i := range r.bands {
		run.Bands = append(run.Bands, Band{r.bands[i].priority, r.bands[i].waiting.done()})
	}
	slices.SortFunc(run.Bands, func(a, b Band) int { return cmp.Compare(b.Priority, a.Priority) })
	if r.cores > 0 {
		c := &Client{CPUS: round(r.cpu.Seconds()), Cores: r.cores, Busy: per(r.cpu.Seconds(), seconds*float64(r.cores)),
			Late: r.late.dist(time.Millisecond, false)}
		c.Saturated = c.Busy > 0.8 || c.Late.P99 > 20
		run.Client = c
	}
	return run
}

// named are the groups by name, none of them when nobody had one.
func named(groups []group) []*group {
	if len(groups) == 0 || len(groups) == 1 && groups[0].name == "" {
		return nil
	}
	out := make([]*group, len(groups))
	for i := range groups {
		out[i] = &groups[i]
		if out[i].name == "" {
			out[i].name = none
		}
	}
	slices.SortStableFunc(out, func(a, b *group) int { return cmp.Compare(a.name, b.name) })
	return out
}

// brief keeps three digits, enough for a plot.
func brief(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64)
	return x
}
