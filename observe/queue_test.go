// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

var queuePool = fleet.ID{Namespace: "default", Name: "p"}

// queued is an observer of one queue, and what that looks like.
func queued() (*Observer, *Queue, *QueueView) {
	o := New(Options{})
	v := &QueueView{Pool: queuePool, Detector: "utilization-detector", Bands: []BandView{
		{Priority: 100, MaxRequests: 500, MaxBytes: 1e9, Ceiling: 1},
		{Priority: 0, MaxRequests: 200, MaxBytes: 1e9, Ceiling: 0.9},
	}}
	o.WatchQueues(func() []QueueView { return []QueueView{*v} })
	return o, o.Queue(queuePool), v
}

func flowLines(t *testing.T, o *Observer) map[string]string {
	out := map[string]string{}
	for name, f := range page(t, o) {
		if short, ok := strings.CutPrefix(name, "llm_d_epp_flow_control_"); ok {
			out[short] = lines(f)
		}
	}
	return out
}

func TestQueueMetricsByTheContract(t *testing.T) {
	o, q, v := queued()
	a := Labels{Model: "m", Target: "m-base", Tenant: "acme", Priority: 0}
	v.Waiting, v.Bytes, v.MaxRequests, v.MaxBytes = 52, 5200, 1000, 10400
	v.Saturation, v.Unknown, v.Stages = 0.75, 1, map[string]float64{"decode": 0.75}
	v.Bands[1].Waiting, v.Bands[1].Bytes = 52, 5200
	b := a
	b.Tenant = "bits"
	v.Waits = []WaitView{{a, 30, 3000}, {a, 20, 2000}, {b, 2, 200}}
	v.Leases = &LeaseView{Tracked: 3, Pending: 1, Target: 2}
	q.Entered(a, "", 30*time.Microsecond)
	q.Entered(a, "Dispatched", 10*time.Microsecond)
	q.Looked(20 * time.Microsecond)
	q.Left(a, "Dispatched", 0)
	q.Left(a, "EvictedTTL", time.Minute)
	q.Revoked(100)
	q.Reclaimed(true, 40*time.Millisecond)
	q.Reclaimed(false, 10*time.Second)
	got := flowLines(t, o)
	const m = "fairness_id=acme,inference_pool=p,model_name=m,"
	for name, want := range map[string][]string{
		"request_queue_duration_seconds": {
			m + "outcome=Dispatched,priority=0,target_model_name=m-base n=1 sum=0 buckets=17",
			m + "outcome=EvictedTTL,priority=0,target_model_name=m-base n=1 sum=60 buckets=17",
		},
		"request_enqueue_duration_seconds": {
			"fairness_id=acme,outcome=Dispatched,priority=0 n=1 sum=1e-05 buckets=11",
			"fairness_id=acme,outcome=NotYetFinalized,priority=0 n=1 sum=3e-05 buckets=11",
		},
		"dispatch_cycle_duration_seconds": {" n=1 sum=2e-05 buckets=11"},
		"queue_size": {
			"fairness_id=,inference_pool=p,model_name=,priority=0,target_model_name= 0",
			"fairness_id=,inference_pool=p,model_name=,priority=100,target_model_name= 0",
			m + "priority=0,target_model_name=m-base 50",
			"fairness_id=bits,inference_pool=p,model_name=m,priority=0,target_model_name=m-base 2",
		},
		"queue_bytes": {
			"fairness_id=,inference_pool=p,model_name=,priority=0,target_model_name= 0",
			"fairness_id=,inference_pool=p,model_name=,priority=100,target_model_name= 0",
			m + "priority=0,target_model_name=m-base 5000",
			"fairness_id=bits,inference_pool=p,model_name=m,priority=0,target_model_name=m-base 200",
		},
		"pool_saturation":                      {"inference_pool=p,stage=decode 0.75", "inference_pool=p,stage=effective 0.75"},
		"stale_endpoints":                      {"detector=utilization-detector 1"},
		"capacity_utilization_requests":        {"inference_pool=p,priority=0 0.26", "inference_pool=p,priority=100 0"},
		"capacity_utilization_bytes":           {"inference_pool=p,priority=0 5.2e-06", "inference_pool=p,priority=100 0"},
		"global_capacity_utilization_requests": {"inference_pool=p 0.052"},
		"global_capacity_utilization_bytes":    {"inference_pool=p 0.5"},
		"revocations_issued_total":             {"inference_pool=p,priority=100 1"},
		"revocations_total":                    {"inference_pool=p,outcome=confirmed 1", "inference_pool=p,outcome=timed_out 1"},
		"reclaim_target":                       {"inference_pool=p 2"},
		"pending_reclaim":                      {"inference_pool=p 1"},
		"revocation_confirmation_seconds":      {"inference_pool=p n=1 sum=0.04 buckets=12"},
	} {
		if want := strings.Join(want, "\n"); got[name] != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got[name], want)
		}
	}
	if n := strings.Count(got["requests_total"], "\n") + 1; n != 16 { // 8 outcomes of 2 bands
		t.Errorf("requests_total has %d series, want 16", n)
	}
	for _, want := range []string{"inference_pool=p,outcome=EvictedTTL,priority=0 1\n", "inference_pool=p,outcome=EvictedTTL,priority=100 0\n"} {
		if !strings.Contains(got["requests_total"], want) {
			t.Errorf("requests_total lacks %s", want)
		}
	}
}

// A queue in which nobody waits still says so, and nothing of a tenant that went.
func TestIdleQueue(t *testing.T) {
	o, _, v := queued()
	v.Waits = []WaitView{{Labels{Model: "m", Tenant: "acme"}, 1, 1}}
	if got := flowLines(t, o)["queue_size"]; !strings.Contains(got, "acme") {
		t.Errorf("queue_size does not show acme: %s", got)
	}
	v.Waits = nil
	got := flowLines(t, o)
	want := "fairness_id=,inference_pool=p,model_name=,priority=0,target_model_name= 0\nfairness_id=,inference_pool=p,model_name=,priority=100,target_model_name= 0"
	if got["queue_size"] != want {
		t.Errorf("queue_size:\n got %s\nwant %s", got["queue_size"], want)
	}
	for _, absent := range []string{"global_capacity_utilization_requests", "reclaim_target", "revocations_total"} {
		if got[absent] != "" {
			t.Errorf("%s = %s, want none without a bound, without eviction", absent, got[absent])
		}
	}
}

// Without the feature gate there is nothing of flow control, whatever was counted before.
func TestNoQueueNoSeries(t *testing.T) {
	o, q, _ := queued()
	q.Left(Labels{}, "Dispatched", 0)
	o.WatchQueues(func() []QueueView { return nil })
	if got := flowLines(t, o); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	o = New(Options{})
	if got := flowLines(t, o); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// However many tenants come, the series are bounded; what waits is counted all the same.
func TestTenantsOfQueuesAreBounded(t *testing.T) {
	o, q, v := queued()
	const n = 3000
	for i := range n {
		l := Labels{Model: "m", Target: "m", Tenant: fmt.Sprint("t", i)}
		v.Waits = append(v.Waits, WaitView{l, 1, 1})
		q.Entered(l, "", 0)
		q.Left(l, "Dispatched", 0)
	}
	f := page(t, o)
	sum := 0.0
	size := f["llm_d_epp_flow_control_queue_size"].Metric
	for _, m := range size {
		sum += m.Gauge.GetValue()
	}
	if sum != n {
		t.Errorf("queue_size sums up to %g, want %d", sum, n)
	}
	for _, name := range []string{"queue_size", "queue_bytes", "request_queue_duration_seconds", "request_enqueue_duration_seconds"} {
		if got := len(f["llm_d_epp_flow_control_"+name].Metric); got > MaxSets+MaxValues {
			t.Errorf("%s has %d series", name, got)
		}
	}
}

func TestProgramMetrics(t *testing.T) {
	o, _, v := queued()
	if got := page(t, o)["llm_d_epp_program_aware_jains_fairness_index"]; got != nil {
		t.Errorf("got %v without a policy that measures", got)
	}
	v.Measured = []MeasureView{
		{Evenness: 0.9, Known: true, Programs: []ProgramView{{"a", 10, 100}, {"b", 1, 50}}},
		{Evenness: 0.5, Known: true, Programs: []ProgramView{{"a", 20, 1}}},
		{Evenness: 0},
	}
	f := page(t, o)
	for name, want := range map[string]string{
		"jains_fairness_index":       " 0.5",
		"avg_wait_time_milliseconds": "program_id=a 20\nprogram_id=b 1",
		"attained_service_tokens":    "program_id=a 101\nprogram_id=b 50",
	} {
		if got := lines(f["llm_d_epp_program_aware_"+name]); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestFleetShowsQueues(t *testing.T) {
	o, _, v := queued()
	o.store.SetPools([]fleet.PoolSpec{{ID: queuePool}, {ID: fleet.ID{Namespace: "default", Name: "other"}}})
	v.Waiting = 3
	v.Bands[1].Waiting, v.Bands[1].Flows, v.Bands[1].Longest = 3, 1, []FlowView{{"a\"b", 3}}
	for i := range 60 {
		v.Bands = append(v.Bands, BandView{Priority: -i - 1})
	}
	w := httptest.NewRecorder()
	o.Mux(MuxOptions{}).ServeHTTP(w, httptest.NewRequest("GET", "/debug/fleet", nil))
	pools := o.Fleet().Pools
	if pools[0].Name != "p" {
		pools[0], pools[1] = pools[1], pools[0]
	}
	q := pools[0].Queue
	if q == nil || pools[1].Queue != nil {
		t.Fatalf("queues: %+v, %+v", q, pools[1].Queue)
	}
	if q.Waiting != 3 || len(q.Bands) != mostBands || q.Unlisted != 12 || q.Bands[1].Longest[0] != (FlowView{"a_b", 3}) {
		t.Errorf("got %+v", q)
	}
	if !strings.Contains(w.Body.String(), `"unlisted_bands": 12`) {
		t.Errorf("the page lacks it: %s", w.Body)
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	_, q, _ := queued()
	l := Labels{Model: "m", Target: "m", Tenant: "acme"}
	if n := testing.AllocsPerRun(100, func() {
		q.Entered(l, "", time.Microsecond)
		q.Looked(time.Microsecond)
		q.Left(l, "Dispatched", time.Millisecond)
		q.Revoked(1)
		q.Reclaimed(true, time.Millisecond)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// What counting costs a request that enters, under the gate's lock.
func BenchmarkQueue(b *testing.B) {
	_, q, _ := queued()
	l := Labels{Model: "meta-llama/Llama-3.1-8B-Instruct", Target: "meta-llama/Llama-3.1-8B-Instruct", Tenant: "acme"}
	b.ReportAllocs()
	for b.Loop() {
		q.Entered(l, "", time.Microsecond)
		q.Looked(time.Microsecond)
		q.Left(l, "Dispatched", time.Millisecond)
	}
}
