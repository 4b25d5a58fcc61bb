// SPDX-License-Identifier: Apache-2.0

// Package observe answers: what happened?
//
// Stages return outcomes; this room alone turns them into metrics and log lines. What it
// exports is named after the field's contract (llm_d_epp_…) where that applies, and
// penstock_… where it is ours alone.
package observe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-project/penstock/fleet"
)

// Options are what an Observer is made of.
type Options struct {
	// Store is where pool metrics are read from, at the time they are asked for.
	Store *fleet.Store
	// Log takes what the observer itself has to say; nil for [slog.Default].
	Log *slog.Logger
	// Access gets one JSON line for each request, in batches of whole lines; nil for none.
	Access io.Writer
	// Stale is the age beyond which a signal is unknown; 0 for 2 s.
	Stale time.Duration
	// Tracing is told of sampled requests; nil for nobody.
	Tracing *Tracing
	// Streams counts the streams of the ext_proc door.
	Streams bool
	// Commit and Build name this build.
	Commit, Build string
}

// Observer counts and writes what happened. Its methods may be called from any goroutine.
type Observer struct {
	store   *fleet.Store
	log     *slog.Logger
	stale   time.Duration
	access  *access
	traces  *Tracing
	streams *Streams

	registry *prometheus.Registry
	table    table
	attempts attempts
	ends     map[End]prometheus.Counter

	schedule, request, answer prometheus.Histogram
	plugins                   *prometheus.HistogramVec
	pollErrors, extractErrors *prometheus.CounterVec
	droppedHeaders            *prometheus.CounterVec
	ejections                 prometheus.Counter
	rewrites                  *prometheus.CounterVec
	health                    atomic.Pointer[fleet.HealthPolicy]
	open, buffered            atomic.Pointer[func() int64]
	decisions                 decisions
	queues                    queues
	caches                    caches
	kube                      Kube
	configErrors              prometheus.Gauge
	predicted, prompts        prometheus.Histogram
	tokenizers                *prometheus.CounterVec

	mu     sync.Mutex
	causes map[*fleet.Load]string // why the metrics page of an incarnation was last not read
	timed  map[[3]string]bool     // plugins that have a series
}

// New returns an observer with a registry of its own.
func New(opt Options) *Observer {
	o := &Observer{
		store: opt.Store, log: opt.Log, stale: opt.Stale,
		traces: opt.Tracing, registry: prometheus.NewRegistry(), causes: map[*fleet.Load]string{}, timed: map[[3]string]bool{}, ends: map[End]prometheus.Counter{},
	}
	if o.store == nil {
		o.store = fleet.NewStore()
	}
	if o.log == nil {
		o.log = slog.Default()
	}
	if o.stale == 0 {
		o.stale = 2 * time.Second
	}
	if opt.Access != nil {
		o.access = newAccess(opt.Access)
	}
	o.table = table{served: o.served, sets: map[Labels]*series{}, models: map[string]bool{}, tenants: map[string]bool{"default-flow": true}}
	o.attempts.init(o.store)
	o.queues.init(o)
	o.caches.o = o
	o.kube.init()
	o.decisions.healthy.max, o.decisions.troubled.max = ringBytes, ringBytes
	o.SetHealth(fleet.DefaultHealth())
	o.register(opt)
	o.store.OnGone(o.gone)
	return o
}

func (o *Observer) register(opt Options) {
	histogram := func(name, help string, bounds []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: bounds})
	}
	o.schedule = histogram("scheduler_e2e_duration_seconds", "Filters, scorers and picker of one decision.", shortBounds)
	o.request = histogram("request_processing_duration_seconds", "From the request's start to the decision, without the wait in flow control.", requestBounds)
	o.answer = histogram("response_processing_duration_seconds", "Our own work on one answer.", answerBounds)
	o.plugins = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "plugin_duration_seconds",
		Help: "Time in one plugin.", Buckets: shortBounds}, []string{"extension_point", "plugin_type", "plugin_name"})
	o.pollErrors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "datalayer_poll_errors_total",
		Help: "Polls of endpoints that failed."}, []string{"source_type"})
	o.extractErrors = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "datalayer_extract_errors_total",
		Help: "Polls whose answer lacked what was looked for, or had a value that cannot be."}, []string{"source_type", "extractor_type"})
	o.predicted = histogram("prefix_predicted_cached_tokens", "Prompt tokens that the chosen endpoint was predicted to have cached.", tokenBounds)
	o.prompts = histogram("prefix_prompt_tokens", "Prompt tokens as they were counted before the decision.", tokenBounds)
	o.tokenizers = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_tokenizer_requests_total",
		Help: "Requests by who counted their tokens; reason says why not the tokenizer that was asked first."}, []string{"tokenizer", "reason"})
	o.droppedHeaders = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_control_headers_dropped_total",
		Help: "Headers of callers that only we may set, or that need trust, and were dropped."}, []string{"door"})
	o.ejections = prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_endpoint_ejections_total",
		Help: "Endpoints passed over because requests to them failed."})
	o.rewrites = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "model_rewrite_decisions_total",
		Help: "Requests whose model a rule of an InferenceModelRewrite chose."}, []string{"model_rewrite_name", "model_name", "target_model"})
	o.configErrors = prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_config_errors",
		Help: "Errors in the files and objects that say what is to be served, as last read. What they said before stays in force, or they count for nothing."})
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "info", Help: "This build.",
		ConstLabels: prometheus.Labels{"commit": opt.Commit, "build_ref": opt.Build}})
	info.Set(1)
	ends := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_request_end_total", Help: "Requests by the way they ended."}, []string{"end"})
	for _, e := range []End{Complete, ClientLeft, Broken, Refused, Evicted} {
		o.ends[e] = ends.WithLabelValues(string(e))
	}
	dropped := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "penstock_access_lines_dropped_total",
		Help: "Access lines lost because their writer was too slow."}, func() float64 {
		if o.access == nil {
			return 0
		}
		return float64(o.access.dropped.Load())
	})
	if opt.Streams {
		o.streams = newStreams(o.registry)
	}
	lost := lostTraces()
	if o.traces != nil {
		lost = o.traces.lost
	}
	o.registry.MustRegister(&o.table, &o.attempts, &o.queues, &o.caches, &pools{o: o}, o.predicted, o.prompts, o.tokenizers, o.schedule, o.request, o.answer, o.plugins, o.pollErrors,
		o.extractErrors, o.droppedHeaders, o.ejections, o.rewrites, o.configErrors, info, ends, dropped, lost, &o.kube, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// ConfigErrors tells how many errors there are in what was last read of the configuration.
func (o *Observer) ConfigErrors(n int) { o.configErrors.Set(float64(n)) }

// served reports whether some endpoint serves the model, or a rule names it.
func (o *Observer) served(model string) bool {
	for _, p := range o.store.Load().Pools {
		if p.Rewrites.Exact[model] != nil {
			return true
		}
		for _, e := range p.Endpoints {
			for _, m := range e.Models {
				if m == model {
					return true
				}
			}
		}
	}
	return false
}

// Watch tells where to read the number of open exchanges and the bytes of bodies held, for
// penstock_inflight_drift and penstock_buffered_bytes.
func (o *Observer) Watch(open, buffered func() int64) {
	o.open.Store(&open)
	o.buffered.Store(&buffered)
}

// Handler serves the metrics page.
func (o *Observer) Handler() http.Handler {
	return promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{
		ErrorLog: printer{o.log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Registry: o.registry,
	})
}

type printer struct{ log *slog.Logger }

// Println implements [promhttp.Logger].
func (p printer) Println(v ...any) {
	p.log.Warn("metrics page", slog.String("error", strings.TrimSpace(fmt.Sprintln(v...))))
}

// Running is a request's share of request_running. The zero Running has none.
type Running struct{ s *series }

// Running counts a request as running, until Done is called on what it returns.
func (o *Observer) Running(l Labels) Running {
	s := o.table.of(l)
	s.running.Add(1)
	return Running{s}
}

// Done ends the share. Further calls do nothing.
func (r *Running) Done() {
	if r.s != nil {
		r.s.running.Add(-1)
		r.s = nil
	}
}

// Done counts an outcome, writes its access line and remembers why it ended so. It keeps nothing of out.
func (o *Observer) Done(out *Outcome) {
	s := o.table.of(out.Labels)
	s.count(out)
	if c := o.ends[out.End]; c != nil {
		c.Inc()
	}
	if out.Schedule > 0 {
		o.schedule.Observe(out.Schedule.Seconds())
		o.attempts.count(s.labels.Target, out)
	}
	if out.Tokenizer != "" {
		o.tokenizers.WithLabelValues(out.Tokenizer, out.Untold).Inc()
	}
	if out.Endpoint != "" && out.EstimatedTokens > 0 {
		o.predicted.Observe(float64(out.PredictedCached))
		o.prompts.Observe(float64(out.EstimatedTokens))
	}
	if out.Rewrite != "" {
		if c, err := o.rewrites.GetMetricWithLabelValues(out.Rewrite, s.labels.Model, s.labels.Target); err == nil { // else it is no UTF-8
			c.Inc()
		}
	}
	if out.Endpoint != "" {
		o.request.Observe((out.Body + out.Deciding).Seconds())
	}
	if out.Answering > 0 {
		o.answer.Observe(out.Answering.Seconds())
	}
	if o.access != nil {
		o.access.line(out)
	}
	if out.Trace != nil {
		o.traces.keep(out)
	}
	o.decisions.keep(out)
}

// Trace says where a request stands in the trace that its headers tell of, or in a new one; nil where it is not sampled.
func (o *Observer) Trace(headers interface{ Get(string) string }) *TraceContext {
	if o.traces == nil {
		return nil
	}
	return o.traces.begin(headers)
}

// maxPlugins bounds the series of plugin_duration_seconds over all reloads; later names are Other.
const maxPlugins = 1000

// Plugin returns where the durations of one plugin at one extension point are told.
func (o *Observer) Plugin(point, kind, name string) func(time.Duration) {
	o.mu.Lock()
	if key := [3]string{point, kind, name}; !o.timed[key] {
		if len(o.timed) < maxPlugins {
			o.timed[key] = true
		} else {
			name = Other
		}
	}
	o.mu.Unlock()
	h := o.plugins.WithLabelValues(point, kind, name)
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}

// PollFailed counts a poll that failed and keeps its cause, which penstock_endpoint_stale
// shows while the endpoint is stale. A load of nil is fine.
func (o *Observer) PollFailed(source string, load *fleet.Load, cause string) {
	o.pollErrors.WithLabelValues(source).Inc()
	o.because(source, load, cause)
}

// ExtractFailed counts a poll whose answer could not be used, as PollFailed does.
func (o *Observer) ExtractFailed(source, extractor string, load *fleet.Load, cause string) {
	o.extractErrors.WithLabelValues(source, extractor).Inc()
	o.because(source, load, cause)
}

// Dropped counts a caller's control header that was dropped at a door.
func (o *Observer) Dropped(door string) { o.droppedHeaders.WithLabelValues(door).Inc() }

// Ejected counts an endpoint that is passed over from now on.
func (o *Observer) Ejected() { o.ejections.Inc() }

// SetHealth tells by which policy endpoints are judged, for whoever looks.
func (o *Observer) SetHealth(p fleet.HealthPolicy) { o.health.Store(&p) }

func (o *Observer) because(source string, load *fleet.Load, cause string) {
	if load == nil || !strings.HasSuffix(source, "metrics-data-source") { // the multicluster one, too
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !load.Ended() {
		o.causes[load] = cause
	}
}

// gone forgets incarnations that ended.
func (o *Observer) gone(loads []*fleet.Load) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range loads {
		delete(o.causes, l)
	}
}

// Run writes access lines and sends traces until ctx ends, then the rest of them. Without it lines are written
// by Flush alone. A writer that fails costs the lines, never a request.
func (o *Observer) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if o.traces != nil {
		wg.Go(func() { o.traces.run(ctx) })
	}
	if o.access == nil {
		<-ctx.Done()
		return nil
	}
	var said sync.Once
	o.access.run(ctx, func(err error) {
		said.Do(func() { o.log.Warn("access lines are lost", slog.Any("error", err)) })
	})
	return nil
}

// Flush writes the access lines that wait.
func (o *Observer) Flush() error {
	if o.access == nil {
		return nil
	}
	return o.access.flush()
}
