// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracing tells an OpenTelemetry collector of the requests that are sampled. A request's spans are made when it has
// ended, from its [Outcome], by one goroutine that also sends them: a collector that is slow or away costs spans, which
// are counted, and never a request.
type Tracing struct {
	sampler  sdktrace.Sampler
	exporter sdktrace.SpanExporter
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	ids      *ids
	log      *slog.Logger

	queue          chan *story
	batch          batch
	full           int // spans that are sent at once
	delay, longest time.Duration
	told           string // what was logged last of a collector that does not take spans
	lost           *prometheus.CounterVec
}

// TraceContext is where a sampled request stands in its trace.
type TraceContext struct {
	parent trace.SpanContext // of the caller; the zero one for none
	span   trace.SpanContext // of the request, which the caller's is the parent of
	next   trace.SpanID      // of the span in which an endpoint has the request
	header string
}

// Header is the traceparent for the endpoint.
func (t *TraceContext) Header() string { return t.header }

// leaving is how long spans may take to be sent when a gateway ends.
const leaving = 3 * time.Second

// NewTracing prepares tracing as the environment says (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT and so on, see
// docs/guide/tracing.md); nil where it names no exporter. What the environment says wrongly is logged, and the default
// taken in its place, where there is one; else it is an error.
func NewTracing(ctx context.Context, log *slog.Logger, build string) (*Tracing, error) {
	exporter, err := exporterOf(ctx, log)
	if exporter == nil || err != nil {
		return nil, err
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "llm-d-epp"), attribute.String("service.version", build)), resource.WithFromEnv())
	if err != nil && res == nil {
		return nil, fmt.Errorf("tracing: %w", err)
	} else if err != nil {
		log.Warn("OTEL_RESOURCE_ATTRIBUTES are not all right", slog.Any("error", err))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry", slog.Any("error", err)) }))
	return newTracing(exporter, res, log, build), nil
}

func newTracing(exporter sdktrace.SpanExporter, res *resource.Resource, log *slog.Logger, build string) *Tracing {
	t := &Tracing{
		sampler: samplerOf(log), exporter: exporter, ids: &ids{}, log: log,
		queue: make(chan *story, whole(log, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)), full: whole(log, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512),
		delay:   time.Duration(whole(log, "OTEL_BSP_SCHEDULE_DELAY", 5000)) * time.Millisecond,
		longest: time.Duration(whole(log, "OTEL_BSP_EXPORT_TIMEOUT", 30000)) * time.Millisecond,
		lost:    lostTraces(),
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithSampler(sdktrace.AlwaysSample()), // what comes here is sampled
		sdktrace.WithIDGenerator(t.ids), sdktrace.WithSpanProcessor(&t.batch))
	t.tracer = t.provider.Tracer("github.com/penstock-project/penstock", trace.WithInstrumentationVersion(build))
	return t
}

func lostTraces() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_traces_dropped_total",
		Help: "Sampled requests that no trace tells of: queue, they came faster than they could be sent; export, the collector did not take them."}, []string{"reason"})
	c.WithLabelValues("queue")
	c.WithLabelValues("export")
	return c
}

// exporterOf is where spans go; nil for nowhere.
func exporterOf(ctx context.Context, log *slog.Logger) (sdktrace.SpanExporter, error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	name := os.Getenv("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), name == "none", name == "" && endpoint == "":
		return nil, nil
	case name == "console":
		return stdouttrace.New(stdouttrace.WithPrettyPrint())
	case name != "" && name != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%q: want otlp, console or none", name)
	}
	bare := endpoint != "" && !strings.Contains(endpoint, "://")
	if bare {
		log.Warn("OTEL_EXPORTER_OTLP_ENDPOINT is no URL: http:// is put before it", slog.String("got", endpoint))
		endpoint = "http://" + endpoint
	}
	if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT=%q: want a URL, such as http://collector:4317, or https:// for TLS", endpoint)
	}
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc"); protocol {
	case "grpc":
		var o []otlptracegrpc.Option
		switch {
		case bare:
			o = append(o, otlptracegrpc.WithEndpointURL(endpoint))
		case endpoint == "": // this machine's
			o = append(o, otlptracegrpc.WithInsecure())
		}
		return otlptracegrpc.New(ctx, o...)
	case "http/protobuf":
		var o []otlptracehttp.Option
		switch {
		case bare:
			o = append(o, otlptracehttp.WithEndpointURL(endpoint+"/v1/traces"))
		case endpoint == "":
			o = append(o, otlptracehttp.WithInsecure())
		}
		return otlptracehttp.New(ctx, o...)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%q: want grpc or http/protobuf", protocol)
	}
}

// samplerOf says which requests are traced: of those without a caller that decided, one in ten.
func samplerOf(log *slog.Logger) sdktrace.Sampler {
	ratio := func(or float64) sdktrace.Sampler {
		text := os.Getenv("OTEL_TRACES_SAMPLER_ARG")
		v, err := strconv.ParseFloat(text, 64)
		if text != "" && (err != nil || !(v >= 0 && v <= 1)) {
			log.Warn("OTEL_TRACES_SAMPLER_ARG is no share: want 0 to 1", slog.String("got", text), slog.Float64("taken", or))
		}
		if text == "" || err != nil || !(v >= 0 && v <= 1) {
			v = or
		}
		return sdktrace.TraceIDRatioBased(v)
	}
	switch name := os.Getenv("OTEL_TRACES_SAMPLER"); name {
	case "always_on":
		return sdktrace.AlwaysSample()
	case "always_off":
		return sdktrace.NeverSample()
	case "traceidratio":
		return ratio(1)
	case "parentbased_always_on":
		return sdktrace.ParentBased(sdktrace.AlwaysSample())
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample())
	default:
		log.Warn("OTEL_TRACES_SAMPLER is none that we know: parentbased_traceidratio is taken", slog.String("got", name))
		fallthrough
	case "", "parentbased_traceidratio":
		return sdktrace.ParentBased(ratio(0.1))
	}
}

// whole reads a whole number above 0 from the environment.
func whole(log *slog.Logger, name string, or int) int {
	text := os.Getenv(name)
	n, err := strconv.Atoi(text)
	switch {
	case text == "":
		return or
	case err != nil || n < 1 || n > 1<<24:
		log.Warn(name+" is no whole number above 0", slog.String("got", text), slog.Int("taken", or))
		return or
	}
	return n
}

// begin says where a request stands in its trace; nil where it is not sampled.
func (t *Tracing) begin(h interface{ Get(string) string }) *TraceContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), caller{h})
	parent := trace.SpanContextFromContext(ctx)
	id := parent.TraceID()
	if !parent.IsValid() {
		id = newTrace()
	}
	sampled := t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: id, Name: "gateway.request", Kind: trace.SpanKindServer})
	if sampled.Decision != sdktrace.RecordAndSample {
		return nil
	}
	c := &TraceContext{parent: parent, next: newSpan()}
	c.span = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: newSpan(), TraceFlags: trace.FlagsSampled, TraceState: sampled.Tracestate})
	c.header = "00-" + id.String() + "-" + c.next.String() + "-01"
	return c
}

// caller reads headers for a propagator.
type caller struct {
	h interface{ Get(string) string }
}

// Get implements [propagation.TextMapCarrier].
func (c caller) Get(name string) string { return c.h.Get(name) }

// Set does nothing: nobody tells a caller anything.
func (caller) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (caller) Keys() []string { return nil }

func newTrace() (id trace.TraceID) {
	for !id.IsValid() {
		put(id[:8])
		put(id[8:])
	}
	return id
}

func newSpan() (id trace.SpanID) {
	for !id.IsValid() {
		put(id[:])
	}
	return id
}

func put(b []byte) {
	v := rand.Uint64()
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// ids gives the next spans the ids that were told to callers and endpoints already, and others chance ones.
type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

// NewIDs implements [sdktrace.IDGenerator].
func (g *ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	return g.trace, g.NewSpanID(ctx, g.trace)
}

// NewSpanID implements [sdktrace.IDGenerator].
func (g *ids) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	if id := g.span; id.IsValid() {
		g.span = trace.SpanID{}
		return id
	}
	return newSpan()
}

// batch collects the spans that have ended.
type batch struct{ spans []sdktrace.ReadOnlySpan }

// OnStart implements [sdktrace.SpanProcessor].
func (*batch) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements [sdktrace.SpanProcessor].
func (b *batch) OnEnd(s sdktrace.ReadOnlySpan) { b.spans = append(b.spans, s) }

// Shutdown implements [sdktrace.SpanProcessor].
func (*batch) Shutdown(context.Context) error { return nil }

// ForceFlush implements [sdktrace.SpanProcessor].
func (*batch) ForceFlush(context.Context) error { return nil }

// keep takes a request that has ended, and keeps nothing of out.
func (t *Tracing) keep(out *Outcome) {
	select {
	case t.queue <- storyOf(out):
	default:
		t.lost.WithLabelValues("queue").Inc()
	}
}

// run makes spans and sends them until ctx ends, and then those that wait.
func (t *Tracing) run(ctx context.Context) {
	tick := time.NewTicker(t.delay)
	defer tick.Stop()
	requests := 0
	take := func(s *story) {
		t.tell(s)
		requests++
	}
	send := func(ctx context.Context) {
		t.send(ctx, requests)
		requests = 0
	}
	for {
		select {
		case s := <-t.queue:
			if take(s); len(t.batch.spans) >= t.full {
				send(ctx)
			}
		case <-tick.C:
			send(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
			defer cancel()
			for len(t.queue) > 0 {
				take(<-t.queue)
			}
			send(last)
			_ = errors.Join(t.provider.Shutdown(last), t.exporter.Shutdown(last)) // there is nobody left to be told
			return
		}
	}
}

// send sends the batch, of so many requests.
func (t *Tracing) send(ctx context.Context, requests int) {
	if len(t.batch.spans) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.longest)
	err := t.exporter.ExportSpans(ctx, t.batch.spans)
	cancel()
	clear(t.batch.spans)
	t.batch.spans = t.batch.spans[:0]
	switch {
	case err != nil:
		t.lost.WithLabelValues("export").Add(float64(requests))
		if t.told == "" {
			t.log.Warn("the collector does not take spans: those of now are lost", slog.Any("error", err))
		}
		t.told = err.Error()
	case t.told != "":
		t.told = ""
		t.log.Info("the collector takes spans again")
	}
}
