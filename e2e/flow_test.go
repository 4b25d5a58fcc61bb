// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// queueConfig is flow control with one request at a time for each endpoint, and batch work that yields.
const queueConfig = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: %q, watchFile: true}}
- type: queue-scorer
- type: round-robin-fairness-policy
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxRequests: "6"
  defaultRequestTTL: 5m
  enableEviction: true
  priorityBands:
  - {priority: 100, fairnessPolicyRef: round-robin-fairness-policy}
  - {priority: 0, maxRequests: "5", fairnessPolicyRef: round-robin-fairness-policy}
`

const classes = `apiVersion: penstock.dev/v1alpha1
kind: Penstock
metadata: {name: default}
spec: {trust: {cidrs: [127.0.0.0/8]}}
---
apiVersion: llm-d.ai/v1
kind: InferenceObjective
metadata: {name: premium, namespace: default}
spec: {priority: 100, poolRefs: [{name: pool}]}
---
apiVersion: llm-d.ai/v1
kind: InferenceObjective
metadata: {name: batch, namespace: default}
spec: {priority: -10, poolRefs: [{name: pool}]}
`

// queueing starts a gateway with flow control in front of the engines.
func queueing(t *testing.T, engines []*rig.Engine) *rig.Gateway {
	t.Helper()
	gateway := rig.Serve(t, rig.Addrs(engines)...)
	gateway.Write(t, "classes.yaml", classes)
	gateway.Write(t, "picker.yaml", fmt.Sprintf(queueConfig, filepath.Join(gateway.Dir, "endpoints.yaml")))
	gateway.Signal(syscall.SIGTERM)
	gateway.Wait(t)
	gateway.Restart(t) // whom to trust takes effect at start
	gateway.Listening(t, gateway.HTTP)
	gateway.Ready(t, len(engines))
	return gateway
}

// crowd sends requests that wait, until leave is called or they are served; served tells how many were.
type crowd struct {
	ctx    context.Context
	leave  context.CancelFunc
	all    sync.WaitGroup
	mu     sync.Mutex
	status map[int]int
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{status: map[int]int{}}
	c.ctx, c.leave = context.WithCancel(t.Context())
	t.Cleanup(func() {
		c.leave()
		c.all.Wait()
	})
	return c
}

// send sends a request of a tenant, with an objective or none.
func (c *crowd) send(addr, tenant, objective string, stream bool) {
	c.all.Go(func() {
		request, err := http.NewRequestWithContext(c.ctx, "POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(rig.Body("hello", stream)))
		if err != nil {
			panic(err)
		}
		request.Header.Set("content-type", "application/json")
		request.Header.Set("x-llm-d-inference-fairness-id", tenant)
		if objective != "" {
			request.Header.Set("x-llm-d-inference-objective", objective)
		}
		status := 0
		if response, err := http.DefaultClient.Do(request); err == nil {
			status = response.StatusCode
			var b strings.Builder
			_ = response.Write(&b) // to its end
		}
		c.mu.Lock()
		c.status[status]++
		c.mu.Unlock()
	})
}

// TestAutoscalingQueries asks a real Prometheus what an autoscaler asks it: how much waits, and how much runs.
func TestAutoscalingQueries(t *testing.T) {
	engines := rig.Engines(t, 1)
	gateway := queueing(t, engines)
	prometheus := rig.Scrape(t, gateway.Metrics)
	const waiting, running = "sum(llm_d_epp_flow_control_queue_size)", "sum(llm_d_epp_request_running)"
	prometheus.Becomes(t, waiting, 0) // and not absent, though nobody ever came

	release := engines[0].Hold()
	defer release()
	crowd := newCrowd(t)
	crowd.send(gateway.HTTP, "a", "", true)
	rig.Eventually(t, "the engine to be busy", func() error {
		if len(engines[0].Seen()) == 0 {
			return errors.New("nothing came")
		}
		return nil
	})
	for range 3 {
		crowd.send(gateway.HTTP, "a", "", false)
	}
	crowd.send(gateway.HTTP, "b", "premium", false)
	prometheus.Becomes(t, waiting, 4)
	prometheus.Becomes(t, running, 5)
	for _, x := range []struct {
		expr, label string
		want        map[string]float64
	}{
		{"sum by (fairness_id) (llm_d_epp_flow_control_queue_size)", "fairness_id", map[string]float64{"a": 3, "b": 1, "": 0}},
		{"sum by (priority) (llm_d_epp_flow_control_queue_size)", "priority", map[string]float64{"0": 3, "100": 1}},
		{"sum by (inference_pool) (llm_d_epp_flow_control_queue_size)", "inference_pool", map[string]float64{"pool": 4}},
		{"sum(llm_d_epp_flow_control_queue_bytes) > bool 4 * 3072", "", map[string]float64{"": 1}},
		{"llm_d_epp_flow_control_pool_saturation", "stage", map[string]float64{"effective": 1, "decode": 1}},
		{"llm_d_epp_flow_control_capacity_utilization_requests", "priority", map[string]float64{"0": 0.6, "100": 0.0002}},
		{"round(6 * llm_d_epp_flow_control_global_capacity_utilization_requests)", "", map[string]float64{"": 4}},
		{"llm_d_epp_flow_control_stale_endpoints", "detector", map[string]float64{"concurrency-detector": 0}},
		{"llm_d_epp_flow_control_revocations_total", "outcome", map[string]float64{"confirmed": 0, "timed_out": 0}},
	} {
		got, err := prometheus.Query(x.expr, x.label)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(x.want) {
			t.Errorf("%s: got %v, %v, want %v", x.expr, got, err, x.want)
		}
	}

	release()
	crowd.all.Wait()
	prometheus.Becomes(t, waiting, 0)
	prometheus.Becomes(t, running, 0)
	// The idle tenants' queues are gone; what they went through is counted.
	prometheus.Becomes(t, `count(llm_d_epp_flow_control_queue_size{fairness_id!=""}) or vector(0)`, 0)
	prometheus.Becomes(t, `sum(llm_d_epp_flow_control_requests_total{outcome="Dispatched"})`, 5)
	prometheus.Becomes(t, `sum(llm_d_epp_flow_control_request_queue_duration_seconds_count{outcome="Dispatched", fairness_id="a"})`, 4)
	if n := crowd.status[http.StatusOK]; n != 5 {
		t.Errorf("%d of 5 served: %v", n, crowd.status)
	}
	rig.Eventually(t, "the alert rules to be evaluated", func() error {
		rules, err := prometheus.Rules()
		if err == nil && len(rules) == 0 {
			err = errors.New("there are none")
		}
		for name, health := range rules {
			if health != "ok" {
				err = errors.Join(err, fmt.Errorf("%s: %s", name, health))
			}
		}
		return err
	})
}

// TestNoQueueNoSeries wants nothing of flow control on the page while its gate is off.
func TestNoQueueNoSeries(t *testing.T) {
	gateway := rig.Serve(t, rig.Addrs(rig.Engines(t, 1))...)
	gateway.Ready(t, 1)
	if a := rig.Ask(t, gateway.HTTP, "hello"); a.Status != http.StatusOK {
		t.Fatalf("got %+v", a)
	}
	page, err := rig.Get("http://" + gateway.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page, "flow_control") {
		t.Errorf("the page has series of flow control:\n%s", page)
	}
}

// TestPrometheusReadsAll has promtool read the page, and try the alert rules on made-up series.
func TestPrometheusReadsAll(t *testing.T) {
	engines := rig.Engines(t, 1)
	gateway := queueing(t, engines)
	if a := rig.Ask(t, gateway.HTTP, "hello"); a.Status != http.StatusOK {
		t.Fatalf("got %+v", a)
	}
	page, err := rig.Get("http://" + gateway.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), rig.Promtool(t), "check", "metrics")
	check.Stdin = strings.NewReader(page)
	out, err := check.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() != 3 { // 3 is for advice on names, which are the field's
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	rig.Run(t, nil, rig.Promtool(t), "check", "rules", filepath.Join(rig.Root(), "deploy", "prometheus", "alerts.yaml"))
	rig.Run(t, nil, rig.Promtool(t), "test", "rules", filepath.Join(rig.Root(), "e2e", "testdata", "alerts_test.yaml"))
	// The rules speak of series that there are.
	rules, err := os.ReadFile(filepath.Join(rig.Root(), "deploy", "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.FieldsFunc(string(rules), func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) {
		if strings.HasPrefix(word, "llm_d_epp_") && !strings.HasSuffix(word, "_") && !strings.Contains(page, "\n"+word) {
			t.Errorf("a rule speaks of %s, which is not on the page", word)
		}
	}
}
