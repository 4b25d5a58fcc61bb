// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/penstock-project/penstock/fleet"
)

// taker is a collector.
type taker struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
	sizes []int
	takes time.Duration
	err   error
}

func (c *taker) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.mu.Lock()
	takes := c.takes
	c.mu.Unlock()
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.spans, c.sizes = append(c.spans, slices.Clone(spans)...), append(c.sizes, len(spans))
	}
	return c.err
}

// with changes how it is.
func (c *taker) with(err error, takes time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.takes = err, takes
}

func (*taker) Shutdown(context.Context) error { return nil }

func tracingTo(t *testing.T, c *taker, log io.Writer) *Tracing {
	t.Helper()
	return newTracing(c, resource.Empty(), slog.New(slog.NewTextHandler(log, nil)), "test")
}

// traceparent are a caller's headers.
type traceparent string

func (p traceparent) Get(name string) string {
	if name == "traceparent" {
		return string(p)
	}
	return ""
}

const (
	sampledCaller = traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	quietCaller   = traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
)

// Spans say when what happened: a request of 10:00:00 whose body took 1 s, which waited for 5 s and was decided in 10 ms.
func TestSpans(t *testing.T) {
	start := time.Date(2024, 1, 2, 10, 0, 0, 0, time.UTC)
	pool := []*fleet.Endpoint{}
	for _, name := range []string{"a", "b", "c"} {
		pool = append(pool, &fleet.Endpoint{ID: fleet.ID{Namespace: "n", Name: name}})
	}
	decision := &Decision{
		Stages: &Stages{Profile: "p", Picker: "max", Drops: []Drop{{}, {Name: "model"}, {Name: "f"}}, Scorers: []WeightedName{{"s", 2}}},
		At:     start.Add(6 * time.Second), Endpoints: pool, Fates: []uint8{0, 2, 0}, Origin: []int32{0, 2}, Scores: []float32{0.25, 0.75}, Total: []float32{0.5, 1.5}, Order: []int32{1, 0},
	}
	for _, x := range []struct {
		name string
		out  Outcome
		want string
	}{
		{"waited, tried twice", Outcome{
			Labels: Labels{Model: "m", Target: "t", Tenant: "x", Priority: 3}, ID: "i", Endpoint: "n/c", Address: "1.2.3.4:8000", Status: 200, End: Complete, Retries: 1,
			Body: time.Second, Queue: 5 * time.Second, Deciding: 10 * time.Millisecond, Schedule: 2 * time.Millisecond, TTFT: 7 * time.Second, Duration: 9 * time.Second,
			Wait: Wait{Outcome: "Dispatched", For: "room", Ahead: 4, Own: 1, Flows: 2}, Attempts: []Attempt{{"n/a", "1.1.1.1:8000", "reset"}}, Decision: decision, PromptTokens: 7, OutputTokens: 5,
		}, `0s +9s gateway.request gen_ai.request.id=i gen_ai.request.model=m gen_ai.usage.input_tokens=7 gen_ai.usage.output_tokens=5 http.response.status_code=200 penstock.end=complete
 1s +5.01s gateway.request_orchestration fairness_id=x request_prio=3 target_model=t
  1s +5s wait_in_flow_control ahead=4 ahead_of_tenant=1 outcome=Dispatched tenants=2 waited_for=room
  6.008s +2ms run_scheduler_profile predicted_cached_tokens=0 profile=p prompt_tokens=0
   6.008s +0s filter_endpoints candidate_endpoints=3 dropped_by.f=1 filtered_endpoints=2
   6.008s +0s llm_d.epp.scorer.s avg_score=0.5 count=2 endpoints_scored=2 max_score=0.75 weight=2
   6.01s +0s pick_endpoints candidates=2 picker=max top_endpoints=[n/c n/a] top_scores=[1.5 0.5]
 6.01s +2.99s forward_request endpoint=n/c retries=1 server.address=1.2.3.4:8000 ttft_ms=7000 !endpoint failed n/a 1.1.1.1:8000 reset
`},
		{"its wait ended badly", Outcome{
			Labels: Labels{Model: "m", Target: "t", Tenant: "x"}, ID: "i", Status: 503, End: Refused, Reason: "rejected-ttl-expired", Message: "waited too long",
			Body: time.Second, Queue: 5 * time.Second, Deciding: 10 * time.Millisecond, Duration: 6100 * time.Millisecond, Wait: Wait{Outcome: "EvictedTTL", For: "turn"}, PromptTokens: Unknown,
		}, `0s +6.1s gateway.request gen_ai.request.id=i gen_ai.request.model=m http.response.status_code=503 penstock.drop_reason=rejected-ttl-expired penstock.end=refused ERROR waited too long
 1s +5.01s gateway.request_orchestration fairness_id=x request_prio=0 target_model=t ERROR waited too long
  1.01s +5s wait_in_flow_control ahead=0 ahead_of_tenant=0 outcome=EvictedTTL tenants=0 waited_for=turn ERROR rejected-ttl-expired
`},
		{"before its body was whole", Outcome{ID: "i", End: ClientLeft, Duration: time.Second, PromptTokens: Unknown},
			"0s +1s gateway.request gen_ai.request.id=i penstock.end=client-disconnect\n"},
	} {
		c := &taker{}
		tr := tracingTo(t, c, io.Discard)
		x.out.Start, x.out.Trace = start, tr.begin(sampledCaller)
		tr.tell(storyOf(&x.out))
		if got := tree(tr.batch.spans, x.out.Trace.parent.SpanID().String(), start, ""); got != x.want {
			t.Errorf("%s: got\n%swant\n%s", x.name, got, x.want)
		}
	}
}

// tree tells spans below a parent; attributes that are empty are left out.
func tree(spans []sdktrace.ReadOnlySpan, parent string, start time.Time, indent string) string {
	var b strings.Builder
	for _, s := range slices.SortedStableFunc(slices.Values(spans), func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) }) {
		if s.Parent().SpanID().String() != parent || s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			continue
		}
		fmt.Fprintf(&b, "%s%v +%v %s", indent, s.StartTime().Sub(start), s.EndTime().Sub(s.StartTime()), s.Name())
		all := map[string]string{}
		for _, a := range s.Attributes() {
			if v := fmt.Sprint(a.Value.AsInterface()); v != "" && v != "false" {
				all[string(a.Key)] = v
			}
		}
		for _, k := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(&b, " %s=%s", k, all[k])
		}
		for _, e := range s.Events() {
			fmt.Fprintf(&b, " !%s", e.Name)
			for _, a := range e.Attributes {
				fmt.Fprintf(&b, " %s", a.Value.AsString())
			}
		}
		if s.Status().Description != "" {
			fmt.Fprintf(&b, " ERROR %s", s.Status().Description)
		}
		b.WriteString("\n" + tree(spans, s.SpanContext().SpanID().String(), start, indent+" "))
	}
	return b.String()
}

// Callers decide; of the others one in ten is traced, unless the environment says so.
func TestSampler(t *testing.T) {
	share := func() float64 {
		tr := tracingTo(t, &taker{}, io.Discard)
		n := 0
		for range 2000 {
			if tr.begin(traceparent("")) != nil {
				n++
			}
		}
		return float64(n) / 2000
	}
	for _, x := range []struct {
		name, arg      string
		low, high      float64
		sampled, quiet bool // what becomes of requests whose caller decided
	}{
		{"", "", 0.07, 0.13, true, false},
		{"", "0.5", 0.45, 0.55, true, false},
		{"parentbased_traceidratio", "0", 0, 0, true, false},
		{"traceidratio", "0", 0, 0, false, false},
		{"traceidratio", "", 1, 1, true, true},
		{"always_on", "", 1, 1, true, true},
		{"always_off", "", 0, 0, false, false},
		{"parentbased_always_on", "", 1, 1, true, false},
		{"parentbased_always_off", "", 0, 0, true, false},
		{"jaeger_remote", "x", 0.07, 0.13, true, false},
	} {
		t.Setenv("OTEL_TRACES_SAMPLER", x.name)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", x.arg)
		if got := share(); got < x.low || got > x.high {
			t.Errorf("%s %s: %v are sampled", x.name, x.arg, got)
		}
		tr := tracingTo(t, &taker{}, io.Discard)
		if s, q := tr.begin(sampledCaller) != nil, tr.begin(quietCaller) != nil; s != x.sampled || q != x.quiet {
			t.Errorf("%s %s: of callers that decided, sampled %t and %t", x.name, x.arg, s, q)
		}
	}
}

// A collector that is slow or away costs traces, which are counted, and nobody waits for it.
func TestCollectorTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
		t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
		c := &taker{err: errors.New("connection refused")}
		var log bytes.Buffer
		tr := tracingTo(t, c, &log)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); tr.run(ctx) }()
		keep := func(n int) {
			for range n {
				tr.keep(&Outcome{Trace: tr.begin(sampledCaller), Start: time.Now(), PromptTokens: Unknown})
				synctest.Wait()
			}
		}
		lost := func(reason string) float64 {
			var m dto.Metric
			if err := tr.lost.WithLabelValues(reason).Write(&m); err != nil {
				t.Fatal(err)
			}
			return m.GetCounter().GetValue()
		}
		keep(5)
		if lost("export") > 0 || len(c.sizes) > 0 {
			t.Error("five are sent at once")
		}
		time.Sleep(6 * time.Second) // 5 s are how long they wait for company
		keep(10)
		if got := lost("export"); got != 15 {
			t.Errorf("the collector is away: %v are lost", got)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings: %s", n, &log)
		}
		c.with(nil, 0)
		keep(10)
		if got := lost("export"); got != 15 || len(c.spans) != 10 || !strings.Contains(log.String(), "takes spans again") {
			t.Errorf("%v are lost, %d are there: %s", got, len(c.spans), &log)
		}
		c.with(nil, time.Hour)
		keep(10)  // are being sent
		keep(150) // 100 of them wait
		if got := lost("queue"); got != 50 {
			t.Errorf("the collector is silent: %v are lost", got)
		}
		c.with(nil, 0)
		time.Sleep(40 * time.Second) // an export takes 30 s at most, and 5 s are how long the last ones wait for company
		synctest.Wait()
		if got := lost("export"); got != 25 || len(c.spans) != 110 {
			t.Errorf("%v are lost, %d are there", got, len(c.spans))
		}
		keep(3)
		c.with(nil, time.Hour)
		before := time.Now()
		stop()
		<-done
		if took := time.Since(before); took != leaving {
			t.Errorf("it took %v to leave", took)
		}
	})
}

// What waits for a collector is bounded, whatever clients write: some 2,000 paths of 256 KiB would be 512 MiB.
func TestStoryBounded(t *testing.T) {
	long := strings.Repeat("é", 128<<10)
	s := storyOf(&Outcome{Labels: Labels{Model: long, Target: long, Tenant: long}, ID: long, Path: long, Message: long})
	for i, text := range []string{s.Model, s.Target, s.Tenant, s.ID, s.Path, s.Message} {
		if len(text) == 0 || len(text) > maxText || !strings.HasPrefix(long, text) || len(text)%2 != 0 {
			t.Errorf("text %d has %d bytes, want at most %d, whole runes", i, len(text), maxText)
		}
	}
}

// Where the environment names no exporter nothing is traced, and what it says wrongly is told.
func TestTracingEnvironment(t *testing.T) {
	names := []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_SDK_DISABLED"}
	for _, x := range []struct {
		env  string
		on   bool
		want string // of the error
	}{
		{"", false, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://x:1", false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://x:1", false, ""},
		{"OTEL_TRACES_EXPORTER=console", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://127.0.0.1:1/v1/traces OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, `OTEL_TRACES_EXPORTER="zipkin": want otlp, console or none`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=ftp://collector", false, `OTEL_EXPORTER_OTLP_ENDPOINT="ftp://collector": want a URL, such as http://collector:4317`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json", false, `OTEL_EXPORTER_OTLP_PROTOCOL="http/json": want grpc or http/protobuf`},
	} {
		for _, name := range names {
			t.Setenv(name, "")
		}
		for _, pair := range strings.Fields(x.env) {
			name, value, _ := strings.Cut(pair, "=")
			t.Setenv(name, value)
		}
		tr, err := NewTracing(t.Context(), slog.New(slog.DiscardHandler), "test")
		if (tr != nil) != x.on || (err == nil) != (x.want == "") || err != nil && !strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("%s: got %v, %v", x.env, tr, err)
		}
		if tr != nil {
			_ = tr.exporter.Shutdown(t.Context())
		}
	}
}

// Without tracing a request costs nothing more.
func TestNoTracing(t *testing.T) {
	o := New(Options{})
	h := http.Header{"Traceparent": {string(sampledCaller)}}
	if n := testing.AllocsPerRun(100, func() {
		if o.Trace(h) != nil {
			t.Error("it is sampled")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
