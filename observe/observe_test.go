// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sampled is an outcome with everything in it.
func sampled() *Outcome {
	return &Outcome{
		Labels: Labels{Model: "m", Target: "m-base", Tenant: "acme", Priority: 5},
		ID:     "req-1", Door: "proxy", API: "chat", Path: "/v1/chat/completions", Pool: "default/p", Rewrite: "w", Endpoint: "default/e1",
		Address: "10.0.0.1:8000", Stream: true, End: Complete, Status: 200, Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Body: time.Millisecond, Queue: 1500 * time.Microsecond, Wait: Wait{Outcome: "Dispatched", For: "room", Ahead: 7, Own: 2, Flows: 3}, Schedule: 12 * time.Microsecond, Deciding: 30 * time.Microsecond,
		TTFT: 50 * time.Millisecond, Last: 1050 * time.Millisecond, Duration: 1100 * time.Millisecond, Candidates: 4, Score: 3.9853,
		Parts:  []Part{{"queue-scorer", 0.5, 2}, {"kv-cache-utilization-scorer", 0.75, 2}, {"prefix-cache-scorer", 1, 3}},
		Events: 101, RequestBytes: 1000, ResponseBytes: 20000, PromptTokens: 300, OutputTokens: 101, Cached: 128,
		EstimatedTokens: 290, PredictedCached: 256,
	}
}

// page reads the metrics page with Prometheus' own parser.
func page(t *testing.T, o *Observer) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	o.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatalf("the page cannot be read: %v", err)
	}
	return families
}

// lines shows a family's samples, one a line, sorted.
func lines(f *dto.MetricFamily) string {
	var out []string
	for _, m := range f.GetMetric() {
		var l []string
		for _, p := range m.Label {
			l = append(l, p.GetName()+"="+p.GetValue())
		}
		v := ""
		switch {
		case m.Counter != nil:
			v = fmt.Sprint(m.Counter.GetValue())
		case m.Gauge != nil:
			v = fmt.Sprintf("%.4g", m.Gauge.GetValue())
		case m.Histogram != nil:
			v = fmt.Sprintf("n=%d sum=%.6g buckets=%d", m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum(), len(m.Histogram.Bucket))
		}
		out = append(out, strings.Join(l, ",")+" "+v)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestDoneCountsByTheContract(t *testing.T) {
	o := New(Options{Commit: "c", Build: "b"})
	o.Done(sampled())
	f := page(t, o)
	const m = "fairness_id=acme,model_name=m,priority=5,target_model_name=m-base"
	for name, want := range map[string]string{
		"request_total":                        m + " 1",
		"request_running":                      m + " 0",
		"request_duration_seconds":             m + " n=1 sum=1.1 buckets=36", // with +Inf
		"request_size_bytes":                   m + " n=1 sum=1000 buckets=26",
		"response_size_bytes":                  m + " n=1 sum=20000 buckets=16",
		"request_input_tokens":                 m + " n=1 sum=300 buckets=20",
		"request_output_tokens":                m + " n=1 sum=101 buckets=13",
		"request_cached_tokens":                m + " n=1 sum=128 buckets=20",
		"request_ntpot_seconds":                m + " n=1 sum=0.0108911 buckets=14",
		"request_ttft_seconds":                 strings.Replace(m, "target", "streaming=true,target", 1) + " n=1 sum=0.05 buckets=25",
		"request_streaming_tpot_seconds":       m + " n=1 sum=0.01 buckets=20",
		"request_streaming_itl_seconds":        m + " n=100 sum=1 buckets=16",
		"scheduler_e2e_duration_seconds":       " n=1 sum=1.2e-05 buckets=11",
		"scheduler_attempts_total":             "endpoint_name=e1,namespace=default,port=8000,status=success,target_model_name=m-base 1",
		"request_processing_duration_seconds":  " n=1 sum=0.00103 buckets=15",
		"response_processing_duration_seconds": " n=0 sum=0 buckets=16",
		"info":                                 "build_ref=b,commit=c 1",
		"model_rewrite_decisions_total":        "model_name=m,model_rewrite_name=w,target_model=m-base 1",
		"request_error_total":                  "",
	} {
		if got := lines(f["llm_d_epp_"+name]); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	if f["go_goroutines"] == nil || f["process_cpu_seconds_total"] == nil {
		t.Error("the Go runtime and the process are not on the page")
	}
}

func TestBuckets(t *testing.T) {
	for name, b := range map[string]struct {
		got         []float64
		first, last float64
	}{
		"request_size": {sizeBounds, 64, 1 << 30}, "response_size": {responseBounds, 1, 65536}, "tokens": {tokenBounds, 1, 1 << 20},
		"output": {outputBounds, 1, 8192}, "duration": {durationBounds, .005, 3600}, "ttft": {ttftBounds, .005, 120},
		"ntpot": {ntpotBounds, .001, 10}, "tpot": {tpotBounds, .0005, 2}, "itl": {itlBounds, .001, 2}, "short": {shortBounds, .0001, .1},
		"request": {requestBounds, .0005, 10}, "answer": {answerBounds, .0001, 5},
	} {
		if !slices.IsSorted(b.got) || b.got[0] != b.first || b.got[len(b.got)-1] != b.last {
			t.Errorf("%s: got %v, want from %v to %v", name, b.got, b.first, b.last)
		}
	}
}

func TestHistogramBoundsAreInclusive(t *testing.T) {
	var h hist
	s := newSeries(Labels{})
	h = hist{bounds: []float64{1, 2, 4}, counts: s.duration.counts[:4]}
	for _, v := range []float64{0, 1, 1.5, 2, 4, 4.1, 100} {
		h.observe(v)
	}
	w, any := h.write()
	var got []uint64
	for _, b := range w.Bucket {
		got = append(got, b.GetCumulativeCount())
	}
	if !any || !slices.Equal(got, []uint64{2, 4, 5}) || w.GetSampleCount() != 7 {
		t.Errorf("got %v of %d", got, w.GetSampleCount())
	}
}

func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		end    End
		status int
		want   string
	}{
		{Complete, 200, ""}, {Complete, 404, "ModelServerError"}, {Complete, 503, "ModelServerError"}, {Broken, 200, "ModelServerError"},
		{ClientLeft, 200, "ClientCancelled"}, {ClientLeft, 0, "ClientCancelled"}, {Evicted, 429, "ResourceExhausted"},
		{Refused, 400, "BadRequest"}, {Refused, 413, "BadRequest"}, {Refused, 415, "BadRequest"}, {Refused, 401, "Unauthorized"},
		{Refused, 403, "Forbidden"}, {Refused, 404, "NotFound"}, {Refused, 412, "PreconditionFailed"}, {Refused, 429, "ResourceExhausted"},
		{Refused, 500, "Internal"}, {Refused, 503, "ServiceUnavailable"}, {Refused, 502, "ModelServerError"}, {Refused, 418, "Unknown"},
	} {
		o := New(Options{})
		o.Done(&Outcome{End: c.end, Status: c.status})
		got := ""
		if f := page(t, o)["llm_d_epp_request_error_total"]; f != nil {
			for _, l := range f.Metric[0].Label {
				if l.GetName() == "error_code" {
					got = l.GetValue()
				}
			}
		}
		if got != c.want {
			t.Errorf("%s %d: got %q, want %q", c.end, c.status, got, c.want)
		}
	}
}

func TestRunning(t *testing.T) {
	o := New(Options{})
	l := Labels{Model: "m", Target: "m", Tenant: "default-flow"}
	a, b := o.Running(l), o.Running(l)
	if got := lines(page(t, o)["llm_d_epp_request_running"]); !strings.HasSuffix(got, " 2") {
		t.Errorf("got %q, want 2", got)
	}
	for range 3 { // once counts
		a.Done()
	}
	b.Done()
	var zero Running
	zero.Done()
	if got := lines(page(t, o)["llm_d_epp_request_running"]); !strings.HasSuffix(got, " 0") {
		t.Errorf("got %q, want 0", got)
	}
}

func TestUnknownCountsAreNotCounted(t *testing.T) {
	o := New(Options{})
	out := sampled()
	out.PromptTokens, out.OutputTokens, out.Cached, out.TTFT, out.Stream = Unknown, Unknown, Unknown, 0, false
	o.Done(out)
	f := page(t, o)
	for _, n := range []string{"request_input_tokens", "request_output_tokens", "request_cached_tokens", "request_ntpot_seconds", "request_ttft_seconds", "request_streaming_tpot_seconds"} {
		if f["llm_d_epp_"+n] != nil {
			t.Errorf("%s was counted", n)
		}
	}
}

// A stream that reports no usage counts by its events.
func TestOutputTokensOfStreamsWithoutUsage(t *testing.T) {
	o, out := New(Options{}), sampled()
	out.OutputTokens, out.Events = Unknown, 21
	o.Done(out)
	f := page(t, o)
	if got := lines(f["llm_d_epp_request_output_tokens"]); !strings.HasSuffix(got, " n=1 sum=21 buckets=13") {
		t.Errorf("got %s", got)
	}
	if got := lines(f["llm_d_epp_request_streaming_tpot_seconds"]); !strings.HasSuffix(got, " n=1 sum=0.05 buckets=20") {
		t.Errorf("got %s", got)
	}
}

func TestGaps(t *testing.T) {
	o, out := New(Options{}), sampled()
	out.Gaps.Add(3 * time.Millisecond)
	out.Gaps.Add(3 * time.Second)
	o.Done(out)
	if got := lines(page(t, o)["llm_d_epp_request_streaming_itl_seconds"]); !strings.HasSuffix(got, " n=2 sum=3.003 buckets=16") {
		t.Errorf("got %s", got)
	}
}

// BL-15: what clients write into labels neither floods the page nor breaks it.
func TestLabelsAreBounded(t *testing.T) {
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "p"}}})
	store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "e"}, Address: "1:1"}})
	store.TellModels(fleet.ID{Name: "e"}, store.Load().Pools[0].Endpoints[0].Load, []string{"real"}, nil)
	o := New(Options{Store: store})
	for i := range 100_000 {
		o.Done(&Outcome{Labels: Labels{Model: "real", Target: "real", Tenant: fmt.Sprint("tenant", i)}, End: Complete, Status: 200})
	}
	for i := range 50_000 {
		m := fmt.Sprint("model", i)
		o.Done(&Outcome{Labels: Labels{Model: m, Target: m, Tenant: fmt.Sprint("tenant", i%1500)}, End: Refused, Status: 404})
	}
	odd := strings.Repeat("x", 8<<10) + "\"\n\\" // 8 KB, with quotes and line breaks
	o.Done(&Outcome{Labels: Labels{Model: "a\"b\nc\\d\x00\xff e", Target: odd, Tenant: odd}, End: Complete})
	o.Done(&Outcome{Labels: Labels{Model: "real", Target: "real", Tenant: "late"}, End: Complete, Status: 200})
	f := gather(t, o) // reading the whole text takes the parser too long
	models, tenants, total := map[string]bool{}, map[string]bool{}, 0.0
	for _, m := range f["llm_d_epp_request_total"].Metric {
		total += m.Counter.GetValue()
		for _, l := range m.Label {
			if len(l.GetValue()) > MaxLabel || strings.ContainsAny(l.GetValue(), "\"\\\n\x00") {
				t.Errorf("got the value %q", l.GetValue())
			}
			switch l.GetName() {
			case "model_name":
				models[l.GetValue()] = true
			case "fairness_id":
				tenants[l.GetValue()] = true
			}
		}
	}
	if n := len(f["llm_d_epp_request_total"].Metric); n > MaxSets+MaxValues+10 || total != 150_002 {
		t.Errorf("got %d series that sum up to %v, want at most %d and 150002", n, total, MaxSets+MaxValues+10)
	}
	if len(models) > MaxValues+2 || len(tenants) > MaxValues+2 || !models[Other] || !tenants[Other] || !models["real"] {
		t.Errorf("got %d models and %d tenants", len(models), len(tenants))
	}
	o2 := New(Options{Store: store})
	for i := range MaxValues + 100 {
		o2.Done(&Outcome{Labels: Labels{Model: fmt.Sprint(i), Target: fmt.Sprint(i)}, End: Refused, Status: 404})
	}
	o2.Done(&Outcome{Labels: Labels{Model: "real", Target: "real"}, End: Complete, Status: 200})
	if got := lines(gather(t, o2)["llm_d_epp_request_total"]); !strings.Contains(got, "model_name=real,") {
		t.Error("a model that is served was folded after many that are not")
	}
}

// The page stays readable whatever clients and operators write.
func TestOddLabelsDoNotBreakThePage(t *testing.T) {
	o := New(Options{})
	for _, v := range []string{"a\"b", "a\nb", `a\b`, "\x00\x7f\xff", "\u2028\u0085", "{x=\"y\"} 1\n# EOF\n", strings.Repeat("é\"", 4<<10)} {
		o.Done(&Outcome{Labels: Labels{Model: v, Target: v, Tenant: v}, Schedule: 1, Endpoint: v, Address: v, End: Complete, Status: 200})
	}
	f := page(t, o)
	for _, name := range []string{"llm_d_epp_request_total", "llm_d_epp_scheduler_attempts_total"} {
		if n := len(f[name].GetMetric()); n != 5 { // the first three are one when they are clean
			t.Errorf("got %d series of %s, want 5", n, name)
		}
	}
}

func gather(t *testing.T, o *Observer) map[string]*dto.MetricFamily {
	t.Helper()
	list, err := o.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	f := map[string]*dto.MetricFamily{}
	for _, m := range list {
		f[m.GetName()] = m
	}
	return f
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "meta-llama/Llama-3.3": "meta-llama/Llama-3.3", "modèle 模型": "modèle 模型", "a\nb\"c\\d": "a_b_c_d", "\xff\u2028": "__",
		strings.Repeat("x", 200): strings.Repeat("x", 128), strings.Repeat("é", 100): strings.Repeat("é", 64), "x" + strings.Repeat("é", 100): "x" + strings.Repeat("é", 63),
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// storeOf returns a store of one pool with n endpoints, e0 and so on.
func storeOf(n int, pools ...fleet.PoolSpec) (*fleet.Store, []*fleet.Endpoint) {
	s := fleet.NewStore()
	if pools == nil {
		pools = []fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}}
	}
	s.SetPools(pools)
	var specs []fleet.EndpointSpec
	for i := range n {
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i), Labels: map[string]string{"a": "b"}})
	}
	s.SetEndpoints("test", specs)
	return s, s.Load().Pools[0].Endpoints
}

func tell(s *fleet.Store, e *fleet.Endpoint, at time.Time, waiting, running, kv float64) {
	s.Tell(e.ID, e.Load, fleet.Reading{Waiting: fleet.Signal{Value: waiting, At: at}, Running: fleet.Signal{Value: running, At: at}, KVUsage: fleet.Signal{Value: kv, At: at}})
	s.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}}) // publishes at once
}

func TestPoolMetrics(t *testing.T) {
	s, e := storeOf(4)
	o := New(Options{Store: s})
	// BL-18: while nothing is known, nothing is exported, rather than 0.
	f := page(t, o)
	for _, n := range []string{"average_kv_cache_utilization", "average_queue_size", "average_running_requests", "std_dev_queue_size", "per_endpoint_queue_size"} {
		if f["llm_d_epp_"+n] != nil {
			t.Errorf("%s is exported while unknown: %s", n, lines(f["llm_d_epp_"+n]))
		}
	}
	if got := lines(f["llm_d_epp_ready_endpoints"]); got != "name=p 0" {
		t.Errorf("got %q ready", got)
	}
	now := time.Now()
	tell(s, e[0], now, 4, 10, 0.5)
	tell(s, e[1], now, 8, 20, 0.7)
	tell(s, e[2], now.Add(-time.Hour), 100, 100, 1)
	o.PollFailed("metrics-data-source", e[2].Load, "timeout")
	o.PollFailed("models-data-source", e[2].Load, "refused")
	o.ExtractFailed("metrics-data-source", "core-metrics-extractor", e[3].Load, "no-signals")
	h := e[0].Load.Take(time.Time{}, 77, 0)
	defer h.Release()
	f = page(t, o)
	for name, want := range map[string]string{
		"llm_d_epp_ready_endpoints":                "name=p 2",
		"llm_d_epp_average_queue_size":             "name=p 6",
		"llm_d_epp_average_running_requests":       "name=p 15",
		"llm_d_epp_average_kv_cache_utilization":   "name=p 0.6",
		"llm_d_epp_std_dev_queue_size":             "name=p 2",
		"llm_d_epp_std_dev_running_requests":       "name=p 5",
		"llm_d_epp_std_dev_kv_cache_utilization":   "name=p 0.1",
		"llm_d_epp_per_endpoint_queue_size":        "model_server_endpoint=e0,name=p 4\nmodel_server_endpoint=e1,name=p 8",
		"penstock_endpoints":                       "pool=default/p 4",
		"penstock_endpoint_stale":                  "cause=no-signals,endpoint=default/e3,pool=default/p 1\ncause=timeout,endpoint=default/e2,pool=default/p 1",
		"llm_d_epp_datalayer_poll_errors_total":    "source_type=metrics-data-source 1\nsource_type=models-data-source 1",
		"llm_d_epp_datalayer_extract_errors_total": "extractor_type=core-metrics-extractor,source_type=metrics-data-source 1",
	} {
		if got := lines(f[name]); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	const counted = "endpoint_name=e0,namespace=default,producer_name=inflight-load-producer "
	if got := lines(f["llm_d_epp_inflight_tokens"]); !strings.Contains(got, counted+"77") {
		t.Errorf("got %s", got)
	}
	if got := lines(f["llm_d_epp_inflight_requests"]); !strings.Contains(got, counted+"1") {
		t.Errorf("got %s", got)
	}
	if got := lines(f["penstock_endpoint_inflight_tokens"]); !strings.Contains(got, "endpoint=default/e0,pool=default/p 77") {
		t.Errorf("got %s", got)
	}
}

func TestOddNamesOfPoolsAndEndpoints(t *testing.T) {
	s := fleet.NewStore()
	s.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "\xff", Name: "p\n\"\xfe"}}})
	s.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "\x00", Name: "\xff\n"}, Address: "1:1", Anywhere: true}})
	if got := lines(page(t, New(Options{Store: s}))["penstock_endpoint_stale"]); got != "cause=never-read,endpoint=_/__,pool=_/p___ 1" {
		t.Errorf("got %q", got)
	}
}

func TestPoolsOfOneName(t *testing.T) {
	s, _ := storeOf(1, fleet.PoolSpec{ID: fleet.ID{Namespace: "x", Name: "p"}}, fleet.PoolSpec{ID: fleet.ID{Namespace: "y", Name: "p"}})
	if got := lines(page(t, New(Options{Store: s}))["llm_d_epp_ready_endpoints"]); got != "name=x/p 0\nname=y/p 0" {
		t.Errorf("got %q", got)
	}
}

func TestCausesOfTheGoneAreForgotten(t *testing.T) {
	s, e := storeOf(2)
	o := New(Options{Store: s})
	for _, e := range e {
		o.PollFailed("metrics-data-source", e.Load, "refused")
	}
	s.SetEndpoints("test", []fleet.EndpointSpec{})
	page(t, o)
	if len(o.causes) != 0 {
		t.Errorf("got %d causes of endpoints that are gone", len(o.causes))
	}
}

// So they are when nobody reads the metrics.
func TestCausesOfTheEndedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := storeOf(2)
		o := New(Options{Store: s})
		o.PollFailed("metrics-data-source", e[0].Load, "refused")
		s.SetEndpoints("test", []fleet.EndpointSpec{})
		time.Sleep(fleet.Grace)
		synctest.Wait()
		o.PollFailed("metrics-data-source", e[1].Load, "refused") // a poll that was on its way
		if len(o.causes) != 0 {
			t.Errorf("got %d causes of endpoints that ended", len(o.causes))
		}
	})
}

func TestDrift(t *testing.T) {
	s, e := storeOf(2)
	o := New(Options{Store: s})
	if page(t, o)["penstock_inflight_drift"] != nil {
		t.Error("a drift is exported though nobody can know it")
	}
	open := int64(0)
	o.Watch(func() int64 { return open }, func() int64 { return 4096 })
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"nothing", func() {}, " 0"},
		{"two open, one in flight", func() { open = 2; e[0].Load.Take(time.Time{}, 1, 0) }, " 0"},
		{"two open, three in flight", func() { e[1].Load.Take(time.Time{}, 1, 0); e[1].Load.Take(time.Time{}, 1, 0) }, " 1"},
		{"none open", func() { open = 0 }, " 3"},
	} {
		c.do()
		if got := lines(page(t, o)["penstock_inflight_drift"]); got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
	if got := lines(page(t, o)["penstock_buffered_bytes"]); got != " 4096" {
		t.Errorf("got %q", got)
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	s, _ := storeOf(1)
	o := New(Options{Store: s})
	for i := range 3 * maxAttempts {
		o.Done(&Outcome{Labels: Labels{Model: "m"}, Schedule: 1, Endpoint: fmt.Sprint("default/gone", i), Address: "1:1", End: Complete})
	}
	o.Done(&Outcome{Labels: Labels{Model: "m"}, Schedule: 1, Endpoint: "default/e0", Address: "1:1", End: Complete})
	o.Done(&Outcome{Labels: Labels{Model: "m"}, Schedule: 1, End: Refused, Status: 503})
	f := page(t, o)["llm_d_epp_scheduler_attempts_total"]
	if n := len(f.Metric); n > maxAttempts+1 {
		t.Errorf("got %d series", n)
	}
	for _, want := range []string{"endpoint_name=e0,", "status=failure,"} {
		if !strings.Contains(lines(f), want) {
			t.Errorf("no series with %s", want)
		}
	}
}

// A pod that is made again under its name has another address, and no second series of the same labels.
func TestAttemptsOfAPodMadeAgain(t *testing.T) {
	s, _ := storeOf(1)
	o := New(Options{Store: s})
	for _, address := range []string{"10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"} {
		o.Done(&Outcome{Labels: Labels{Model: "m"}, Schedule: 1, Endpoint: "default/e0", Address: address, End: Complete})
	}
	if got := lines(page(t, o)["llm_d_epp_scheduler_attempts_total"]); got != "endpoint_name=e0,namespace=default,port=8000,status=success,target_model_name= 3" {
		t.Errorf("got %q", got)
	}
}

func TestPlugin(t *testing.T) {
	o := New(Options{})
	o.Plugin("Scorer", "queue-scorer", "q")(time.Millisecond)
	if got := lines(page(t, o)["llm_d_epp_plugin_duration_seconds"]); got != "extension_point=Scorer,plugin_name=q,plugin_type=queue-scorer n=1 sum=0.001 buckets=11" {
		t.Errorf("got %q", got)
	}
}

func TestPluginsAreBounded(t *testing.T) {
	o := New(Options{})
	for i := range maxPlugins + 100 {
		o.Plugin("Scorer", "queue-scorer", fmt.Sprint(i))(time.Millisecond)
	}
	if got := len(page(t, o)["llm_d_epp_plugin_duration_seconds"].Metric); got != maxPlugins+1 {
		t.Errorf("got %d series, want %d", got, maxPlugins+1)
	}
}

func TestMux(t *testing.T) {
	s, e := storeOf(2)
	tell(s, e[0], time.Now(), 4, 10, 0.5)
	o := New(Options{Store: s})
	ready := errors.New("no endpoints were told yet")
	for _, pprof := range []bool{false, true} {
		m := o.Mux(MuxOptions{Ready: func() error { return ready }, Pprof: pprof})
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			m.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			return w
		}
		for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/readyz": 503, "/debug/fleet": 200, "/debug/pprof/cmdline": map[bool]int{false: 404, true: 200}[pprof], "/": 404} {
			if got := get(path); got.Code != want {
				t.Errorf("%s: got %d, want %d", path, got.Code, want)
			}
		}
		if got := get("/readyz").Body.String(); !strings.Contains(got, "no endpoints") {
			t.Errorf("got %q", got)
		}
		var v FleetView
		if err := json.Unmarshal(get("/debug/fleet").Body.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		p := v.Pools[0]
		if p.Name != "p" || p.Ready != 1 || len(p.Endpoints) != 2 || p.Endpoints[0].Signals["waiting"].State != "fresh" ||
			*p.Endpoints[0].Signals["waiting"].Value != 4 || p.Endpoints[1].Signals["kv_usage"].State != "absent" || p.Endpoints[1].Cause != "never-read" {
			t.Errorf("got %+v", v)
		}
	}
}

// All but health is for whoever is let in.
func TestMuxAllow(t *testing.T) {
	m := New(Options{}).Mux(MuxOptions{Pprof: true, Allow: func(r *http.Request) (int, string) {
		switch r.Header.Get("Authorization") {
		case "":
			return http.StatusUnauthorized, "who are you?"
		case "Bearer good":
			return 0, ""
		}
		return http.StatusForbidden, "not for you"
	}})
	for path, open := range map[string]bool{"/healthz": true, "/readyz": true, "/metrics": false, "/debug/fleet": false, "/debug/kvcache": false, "/debug/decisions": false,
		"/debug/decisions/x": false, "/debug/pprof/": false, "/debug/pprof/cmdline": false, "/debug/pprof/heap": false, "/": false, "/none": false, "/healthz/x": false} {
		for token, want := range map[string]int{"": 401, "Bearer good": 0, "Bearer bad": 403} {
			r := httptest.NewRequest("GET", path, nil)
			if token != "" {
				r.Header.Set("Authorization", token)
			}
			w := httptest.NewRecorder()
			m.ServeHTTP(w, r)
			if refused := w.Code == 401 || w.Code == 403; refused != (!open && want != 0) || refused && w.Code != want {
				t.Errorf("%s with %q: got %d", path, token, w.Code)
			}
			if got := w.Header().Get("WWW-Authenticate"); (w.Code == 401) != (got == "Bearer") {
				t.Errorf("%s with %q: WWW-Authenticate %q with %d", path, token, got, w.Code)
			}
		}
	}
}

func TestNewLogger(t *testing.T) {
	for v, want := range []string{"WARN ERROR", "WARN ERROR", "INFO WARN ERROR", "INFO WARN ERROR", "DEBUG INFO WARN ERROR", "TRACE DEBUG INFO WARN ERROR", "TRACE DEBUG INFO WARN ERROR"} {
		var b bytes.Buffer
		log := NewLogger(&b, LogOptions{Level: Level(v), Stack: Panic})
		for _, l := range []slog.Level{Trace, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, "x")
		}
		var got []string
		for line := range strings.Lines(b.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			got = append(got, m["level"].(string))
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("-v %d: got %s, want %s", v, g, want)
		}
	}
}

func TestDoneDoesNotAllocate(t *testing.T) {
	o := New(Options{Access: io.Discard})
	out := sampled()
	o.Done(out)
	o.decisions.allowance = allowance{used: 1e9, at: time.Now().Add(time.Hour)} // it is not among those remembered
	n := testing.AllocsPerRun(1000, func() {
		r := o.Running(out.Labels)
		r.Done()
		o.Done(out)
		if len(o.access.buf) > accessFull {
			_ = o.Flush()
		}
	})
	if n > 0.1 && !raceEnabled { // the buffer of access lines may still grow
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkDone(b *testing.B) {
	for _, access := range []bool{false, true} {
		b.Run(map[bool]string{false: "metrics", true: "metrics and access line"}[access], func(b *testing.B) {
			opt := Options{}
			if access {
				opt.Access = io.Discard
			}
			o, out := New(opt), sampled()
			b.ReportAllocs()
			for b.Loop() {
				r := o.Running(out.Labels)
				r.Done()
				o.Done(out)
				if access && len(o.access.buf) > accessFull {
					_ = o.Flush()
				}
			}
		})
	}
}

// What a page said is shown with the names it was read from; a value that cannot be is shown as it stood there.
func TestFleetShowsWhatPagesSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fleet.NewStore()
		store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
		id, now := fleet.ID{Namespace: "default", Name: "a"}, time.Now()
		store.SetEndpoints("test", []fleet.EndpointSpec{{ID: id, Address: "10.0.0.1:8000"}})
		load := store.Load().Pools[0].Endpoints[0].Load
		store.Tell(id, load, fleet.Reading{WaitingName: "w", RunningName: "r", KVName: "k",
			Refused: []fleet.Refused{{Metric: "k", Value: 87}, {Metric: "r", Value: math.NaN()}}})
		tell := func(name, producer string) {
			store.TellAttributes(id, load, "x", []fleet.Attribute{{Name: name, Producer: producer, Signal: fleet.Signal{Value: 0.5, At: now}}})
			time.Sleep(2 * fleet.Coalesce)
		}
		tell("GPUUtilization", "dcgm-extractor")
		o := New(Options{Store: store})
		w := httptest.NewRecorder()
		o.Mux(MuxOptions{}).ServeHTTP(w, httptest.NewRequest("GET", "/debug/fleet", nil))
		var v FleetView
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatal(err, w.Body)
		}
		e := v.Pools[0].Endpoints[0]
		if e.WaitName != "w" || e.RunName != "r" || e.KVName != "k" || !slices.Equal(e.Refused, []RefusedView{{"k", "87"}, {"r", "NaN"}}) {
			t.Errorf("got %+v", e)
		}
		if len(e.Attrs) != 1 || e.Attrs[0].Name != "GPUUtilization" || e.Attrs[0].State != "fresh" || *e.Attrs[0].Value != 0.5 {
			t.Errorf("got %+v", e.Attrs)
		}
		if v.Pools[0].Ready != 0 {
			t.Error("an endpoint is ready by its GPU alone")
		}
		tell("llm-d.ai/multicluster-queue-size", "")
		if n := o.Fleet().Pools[0].Ready; n != 1 {
			t.Errorf("a cluster that told its averages is not ready: %d", n)
		}
	})
}

// Log lines look as they are wanted; times are those of 2024-05-06 07:08:09.123456789 in UTC+2.
func TestLogOptions(t *testing.T) {
	at := time.Date(2024, 5, 6, 7, 8, 9, 123456789, time.FixedZone("", 7200))
	for _, x := range []struct {
		opt  LogOptions
		want string
	}{
		{LogOptions{Stack: Panic}, `{"time":"2024-05-06T07:08:09.123456789+02:00","level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: Panic, Times: "epoch"}, `{"time":1714972089.1234567,"level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: Panic, Times: "millis"}, `{"time":1714972089123.4568,"level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: Panic, Times: "nano"}, `{"time":1714972089123456789,"level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: Panic, Times: "iso8601"}, `{"time":"2024-05-06T07:08:09.123+0200","level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: Panic, Times: "rfc3339"}, `{"time":"2024-05-06T07:08:09+02:00","level":"WARN","msg":"m","a":{"time":1}}`},
		{LogOptions{Stack: slog.LevelError, Console: true, Times: "rfc3339nano"}, `time=2024-05-06T07:08:09.123456789+02:00 level=WARN msg=m a.time=1`},
		{LogOptions{Stack: Panic, Level: slog.LevelError}, ``},
	} {
		var b bytes.Buffer
		h := NewLogger(&b, x.opt).WithGroup("a").Handler()
		r := slog.NewRecord(at, slog.LevelWarn, "m", 0)
		r.AddAttrs(slog.Int("time", 1))
		if h.Enabled(t.Context(), r.Level) {
			if err := h.Handle(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.TrimSpace(b.String()); got != x.want {
			t.Errorf("%+v: got %s, want %s", x.opt, got, x.want)
		}
	}
	var b bytes.Buffer
	log := NewLogger(&b, LogOptions{Stack: slog.LevelError}).With("x", 1)
	log.Warn("w")
	log.Error("e")
	if lines := strings.Split(b.String(), "\n"); len(lines) != 3 || strings.Contains(lines[0], "stack") || !strings.Contains(lines[1], `"x":1,"stacktrace":"goroutine`) {
		t.Errorf("got %s", &b)
	}
}
