// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// story is what spans tell of a request. Nothing in it is the request's any more.
type story struct {
	Outcome // without its decision
	decided bool
	at      time.Time // when the decision began
	profile string
	picker  string
	known   int // endpoints of the pool
	left    int // candidates that no filter dropped
	dropped []droppedBy
	scorers []scorerStory
	top     []string // the best candidates, the pick first
	totals  []float64
}

type droppedBy struct {
	name string
	n    int
}

type scorerStory struct {
	name             string
	weight, max, avg float64
}

// topEndpoints is how many of the best candidates a span names.
const topEndpoints = 3

// storyOf copies what is to be told.
func storyOf(out *Outcome) *story {
	s := &story{Outcome: *out}
	s.Decision, s.Parts, s.Attempts = nil, nil, slices.Clone(out.Attempts)
	for _, text := range []*string{&s.ID, &s.Model, &s.Target, &s.Tenant, &s.Path, &s.Message} { // clients', and many may wait
		*text = short(*text, maxText)
	}
	d := out.Decision
	if d == nil || d.Stages == nil {
		return s
	}
	s.decided, s.at, s.profile, s.picker = true, d.At, d.Profile, d.Picker
	s.known, s.left = len(d.Endpoints), len(d.Origin)
	for f, stage := range d.Drops {
		n := 0
		for _, fate := range d.Fates {
			if int(fate) == f {
				n++
			}
		}
		if f > 0 && n > 0 {
			s.dropped = append(s.dropped, droppedBy{stage.Name, n})
		}
	}
	for k, w := range d.Scorers {
		scores := d.Scores[min(k*s.left, len(d.Scores)):min((k+1)*s.left, len(d.Scores))]
		if len(scores) == 0 {
			continue
		}
		sum := 0.0
		for _, v := range scores {
			sum += float64(v)
		}
		s.scorers = append(s.scorers, scorerStory{w.Name, w.Weight, float64(slices.Max(scores)), sum / float64(len(scores))})
	}
	for _, i := range d.Order[:min(topEndpoints, len(d.Order))] {
		s.top = append(s.top, d.Endpoints[d.Origin[i]].ID.String())
		s.totals = append(s.totals, float64(d.Total[i]))
	}
	return s
}

// tell makes the spans of a request.
func (t *Tracing) tell(s *story) {
	c := s.Trace
	ctx := context.Background()
	if c.parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, c.parent)
	}
	t.ids.trace, t.ids.span = c.span.TraceID(), c.span.SpanID()
	end := s.Start.Add(s.Duration)
	ctx, request := t.tracer.Start(ctx, "gateway.request", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(s.Start), trace.WithAttributes(
		attribute.String("gen_ai.request.model", s.Model), attribute.String("gen_ai.request.id", s.ID), attribute.String("url.path", s.Path),
		attribute.Bool("gen_ai.request.stream", s.Stream), attribute.String("penstock.door", s.Door), attribute.String("penstock.pool", s.Pool), attribute.String("penstock.end", string(s.End))))
	if s.Status > 0 {
		request.SetAttributes(attribute.Int("http.response.status_code", s.Status))
	}
	if s.PromptTokens >= 0 {
		request.SetAttributes(attribute.Int("gen_ai.usage.input_tokens", s.PromptTokens), attribute.Int("gen_ai.usage.output_tokens", s.OutputTokens))
	}
	if s.Reason != "" {
		request.SetAttributes(attribute.String("penstock.drop_reason", s.Reason))
	}
	if why, failed := s.failure(); failed {
		request.SetStatus(codes.Error, why)
	}
	placed := s.Start.Add(s.Body + s.Deciding + s.Queue)
	if s.decided && placed.Before(s.at.Add(s.Schedule)) { // it was taken back, and decided again
		placed = s.at.Add(s.Schedule)
	}
	if placed.After(end) {
		placed = end
	}
	if s.Deciding > 0 || s.Queue > 0 {
		t.orchestration(ctx, s, placed)
	}
	if s.Endpoint != "" {
		t.forward(ctx, s, placed, end)
	}
	request.End(trace.WithTimestamp(end))
}

// failure says why a request did not end well, if so. A client that leaves is no failure of ours.
func (s *story) failure() (string, bool) {
	switch {
	case s.End == Broken, s.End == Refused, s.End == Evicted:
		return cmp.Or(s.Message, s.Reason, string(s.End)), true
	case s.Status >= http.StatusInternalServerError:
		return cmp.Or(s.Message, http.StatusText(s.Status)), true
	}
	return "", false
}

// orchestration tells what happened between the whole body and the decision.
func (t *Tracing) orchestration(ctx context.Context, s *story, placed time.Time) {
	ctx, span := t.tracer.Start(ctx, "gateway.request_orchestration", trace.WithTimestamp(s.Start.Add(s.Body)), trace.WithAttributes(
		attribute.String("target_model", s.Target), attribute.Int("request_prio", s.Priority), attribute.String("fairness_id", s.Tenant)))
	if s.End == Refused {
		span.SetStatus(codes.Error, cmp.Or(s.Message, s.Reason))
	}
	if s.Queue > 0 {
		until := placed
		if s.decided {
			until = s.at
		}
		_, wait := t.tracer.Start(ctx, "wait_in_flow_control", trace.WithTimestamp(until.Add(-s.Queue)), trace.WithAttributes(
			attribute.String("outcome", s.Wait.Outcome), attribute.String("waited_for", s.Wait.For), attribute.Int("ahead", s.Wait.Ahead),
			attribute.Int("ahead_of_tenant", s.Wait.Own), attribute.Int("tenants", s.Wait.Flows)))
		if !s.decided {
			wait.SetStatus(codes.Error, s.Reason)
		}
		wait.End(trace.WithTimestamp(until))
	}
	if s.decided {
		t.scheduling(ctx, s, placed)
	}
	span.End(trace.WithTimestamp(placed))
}

// scheduling tells how the decision was made. Single steps are as long as plugin_duration_seconds tells, not these spans.
func (t *Tracing) scheduling(ctx context.Context, s *story, placed time.Time) {
	begin := placed.Add(-s.Schedule)
	ctx, span := t.tracer.Start(ctx, "run_scheduler_profile", trace.WithTimestamp(begin), trace.WithAttributes(
		attribute.String("profile", s.profile), attribute.Int("prompt_tokens", s.EstimatedTokens), attribute.Int("predicted_cached_tokens", s.PredictedCached)))
	step := func(name string, at time.Time, attributes ...attribute.KeyValue) {
		_, step := t.tracer.Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attributes...))
		step.End(trace.WithTimestamp(at))
	}
	filters := []attribute.KeyValue{attribute.Int("candidate_endpoints", s.known), attribute.Int("filtered_endpoints", s.left)}
	for _, d := range s.dropped {
		filters = append(filters, attribute.Int("dropped_by."+d.name, d.n))
	}
	step("filter_endpoints", begin, filters...)
	for _, p := range s.scorers {
		step("llm_d.epp.scorer."+p.name, begin, attribute.Int("count", s.left), attribute.Float64("weight", p.weight), attribute.Float64("max_score", p.max),
			attribute.Float64("avg_score", p.avg), attribute.Int("endpoints_scored", s.left))
	}
	if len(s.top) > 0 {
		step("pick_endpoints", placed, attribute.String("picker", s.picker), attribute.Int("candidates", s.left),
			attribute.StringSlice("top_endpoints", s.top), attribute.Float64Slice("top_scores", s.totals))
	}
	span.End(trace.WithTimestamp(placed))
}

// forward tells of the time with endpoints; whose spans are its children.
func (t *Tracing) forward(ctx context.Context, s *story, placed, end time.Time) {
	t.ids.span = s.Trace.next
	_, span := t.tracer.Start(ctx, "forward_request", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(placed), trace.WithAttributes(
		attribute.String("endpoint", s.Endpoint), attribute.String("server.address", s.Address), attribute.Int("retries", s.Retries)))
	for _, a := range s.Attempts {
		span.AddEvent("endpoint failed", trace.WithTimestamp(end), trace.WithAttributes(
			attribute.String("endpoint", a.Endpoint), attribute.String("server.address", a.Address), attribute.String("cause", a.Cause)))
	}
	if s.TTFT > 0 {
		span.SetAttributes(attribute.Float64("ttft_ms", float64(s.TTFT)/float64(time.Millisecond)))
	}
	if why, failed := s.failure(); failed {
		span.SetStatus(codes.Error, why)
	}
	span.End(trace.WithTimestamp(end))
}
