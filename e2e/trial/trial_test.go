// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

var (
	report = flag.String("report", "", "folder to write flow-control-report.md and its plots to; without it the trials are short and write nothing")
	length = flag.Duration("for", 2*time.Minute, "length of a load in the report")
)

const (
	engines = 5
	batch   = 4  // sequences that an engine runs at a time
	answer  = 32 // tokens of an answer
	step    = 20 * time.Millisecond

	// capacity is what the engines serve a second at the very most: full batches, each step as short as can be.
	capacity = engines * batch * float64(time.Second) / float64(answer*step)
)

// whole is flow control with everything that it has: three bands, turns for tenants, and batch work that yields.
const whole = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates:
- flowControl
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: ENDPOINTS, watchFile: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: round-robin-fairness-policy
- type: fcfs-ordering-policy
- type: concurrency-detector
  parameters:
    maxConcurrency: 5
    concurrencyMode: requests
    headroom: 0.0
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}
flowControl:
  saturationDetector:
    pluginRef: concurrency-detector
  maxBytes: "10Gi"
  maxRequests: "1k"
  defaultRequestTTL: "60s"
  enableEviction: true
  priorityBands:
  - priority: 100
    maxRequests: "500"
    fairnessPolicyRef: round-robin-fairness-policy
    orderingPolicyRef: fcfs-ordering-policy
  - priority: 0
    maxRequests: "200"
    fairnessPolicyRef: round-robin-fairness-policy
    orderingPolicyRef: fcfs-ordering-policy
  - priority: -10
    maxRequests: "50"
    fairnessPolicyRef: round-robin-fairness-policy
    orderingPolicyRef: fcfs-ordering-policy
`

const classes = `apiVersion: penstock.dev/v1alpha1
kind: Penstock
metadata: {name: default}
spec: {trust: {cidrs: [127.0.0.0/8]}}
---
apiVersion: llm-d.ai/v1
kind: InferenceObjective
metadata: {name: premium-traffic, namespace: default}
spec: {priority: 100, poolRefs: [{name: pool}]}
---
apiVersion: llm-d.ai/v1
kind: InferenceObjective
metadata: {name: standard-traffic, namespace: default}
spec: {priority: 0, poolRefs: [{name: pool}]}
---
apiVersion: llm-d.ai/v1
kind: InferenceObjective
metadata: {name: best-effort-traffic, namespace: default}
spec: {priority: -10, poolRefs: [{name: pool}]}
`

// comparison is flow control with one band and a fairness policy.
const comparison = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: ENDPOINTS, watchFile: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: fcfs-ordering-policy
- type: FAIRNESS
- {type: concurrency-detector, parameters: {maxConcurrency: 5}}
dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxBytes: "10Gi"
  defaultRequestTTL: "60s"
  priorityBands:
  - {priority: 0, maxRequests: "200", fairnessPolicyRef: FAIRNESS, orderingPolicyRef: fcfs-ordering-policy}
`

// shares are the tenants of the trial, by their part of the capacity: twice of it in all.
func shares() []Source {
	return []Source{
		{Class: "premium", Tenant: "gold", Objective: "premium-traffic", Rate: 0.2 * capacity, Words: 20, Tokens: answer},
		{Class: "standard", Tenant: "ann", Objective: "standard-traffic", Rate: 0.3 * capacity, Words: 20, Tokens: answer},
		{Class: "standard", Tenant: "bob", Objective: "standard-traffic", Rate: 0.3 * capacity, Words: 20, Tokens: answer},
		{Class: "standard", Tenant: "greedy", Objective: "standard-traffic", Rate: 0.9 * capacity, Words: 20, Tokens: answer},
		{Class: "best effort", Tenant: "batch", Objective: "best-effort-traffic", Rate: 0.3 * capacity, Words: 20, Tokens: answer},
	}
}

// unequal are tenants that all want more than a third of the engines: one asks often, and one asks for much at once.
func unequal() []Source {
	return []Source{
		{Class: "standard", Tenant: "even", Rate: 15, Words: 40, Tokens: 16},
		{Class: "standard", Tenant: "often", Rate: 30, Words: 40, Tokens: 16},
		{Class: "standard", Tenant: "long", Rate: 15, Words: 8 * 40, Tokens: 16},
	}
}

// door starts engines and a gateway, with Envoy before it where the door is Envoy's.
func door(t *testing.T, name, config string, simulated ...string) (g *rig.Gateway, addr string, sims []string) {
	t.Helper()
	sims = rig.Sims(t, engines, "m", append([]string{"--max-num-seqs", fmt.Sprint(batch), "--step-base", step.String()}, simulated...)...)
	g = rig.Serve(t, sims...)
	g.Write(t, "classes.yaml", classes)
	g.Write(t, "picker.yaml", strings.ReplaceAll(config, "ENDPOINTS", strconv.Quote(filepath.Join(g.Dir, "endpoints.yaml"))))
	g.Signal(syscall.SIGTERM)
	g.Wait(t)
	g.Restart(t) // whom to trust takes effect at start
	g.Listening(t, g.HTTP)
	g.Ready(t, engines)
	addr = g.HTTP
	if name == "Envoy" {
		front := *g
		front.HTTP = rig.Addr(t)
		rig.Envoy(t, &front, "--plaintext")
		addr = front.HTTP
	}
	rig.Eventually(t, "an answer through the door", func() error {
		if a := rig.Ask(t, addr, "hello"); a.Status != 200 {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	return g, addr, sims
}

// load runs a load through a door until each request has its answer, nothing is left of it, and the log tells of all.
func load(t *testing.T, name, doorName, config string, sources []Source, length time.Duration, simulated ...string) *Run {
	t.Helper()
	g, addr, sims := door(t, doorName, config, simulated...)
	run := &Run{Name: name, Sources: sources, Warm: length / 6, Length: length}
	run.All = Offer(t.Context(), addr, sources, length)
	settled(t, g, sims)
	rig.Eventually(t, "each request to be in the log", func() error {
		lines := Lines(g.Log())
		var missing error
		for _, s := range run.All {
			switch l := lines[s.ID]; {
			case len(l) != 1:
				missing = fmt.Errorf("%d lines about %s", len(l), s.ID)
			default:
				s.Logged = l[0]
			}
		}
		return missing
	})
	return run
}

// settled waits until nothing is left of a load: no request waits or runs, here or in an engine.
func settled(t *testing.T, g *rig.Gateway, sims []string) {
	t.Helper()
	zero := func(addr, name string) func() error {
		return func() error {
			v, err := rig.Metric(addr, name)
			if err == nil && v != 0 {
				err = fmt.Errorf("%s is %v", name, v)
			}
			return err
		}
	}
	for _, name := range []string{"llm_d_epp_flow_control_queue_size", "llm_d_epp_flow_control_queue_bytes", "llm_d_epp_request_running",
		"llm_d_epp_flow_control_pool_saturation",
		"penstock_endpoint_inflight_requests", "penstock_endpoint_inflight_tokens", "penstock_inflight_drift"} {
		rig.Eventually(t, name+" to be 0", zero(g.Metrics, name))
	}
	if page, err := rig.Get("http://" + g.Metrics + "/metrics"); err != nil || strings.Contains(page, "pending_reclaim") { // where there is eviction
		rig.Eventually(t, "all that was asked back to be", zero(g.Metrics, "llm_d_epp_flow_control_pending_reclaim"))
	}
	for _, sim := range sims {
		for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting"} {
			rig.Eventually(t, name+" to be 0", zero(sim, name))
		}
	}
}

// check holds a run to what flow control promises. It counts, and measures no time.
func check(t *testing.T, r *Run) {
	t.Helper()
	t.Logf("%s\n%s", r.Name, r.Table())
	pairs := map[string]bool{"429 `rejected-saturated`": true, "429 `rejected-ttl-expired`": true, "429 `evicted`": true}
	for _, s := range r.All {
		if s.Status != 0 && s.Echo != s.ID {
			t.Errorf("the answer to %s has the id %q", s.ID, s.Echo)
		}
		switch {
		case s.Whole:
			if s.Logged.Status != 200 || s.Logged.OutputTokens != answer {
				t.Errorf("%s was served, and is told of as %+v", s.ID, s.Logged)
			}
		case s.Source.Class == "premium":
			t.Errorf("%s of the premium class got %s: %s", s.ID, s.Why(), s.Text)
		case s.Status == 200 && (s.Source.Class != "best effort" || s.Logged.End != "evicted"):
			t.Errorf("%s broke off: %s; %+v", s.ID, s.Text, s.Logged)
		case s.Status != 200 && (!pairs[s.Why()] || s.Reason != s.Logged.Reason || s.Status != s.Logged.Status):
			t.Errorf("%s got %s: %s; told of as %+v", s.ID, s.Why(), s.Text, s.Logged)
		case s.Status != 200 && !strings.HasPrefix(s.Text, `{"error":{"message":"`):
			t.Errorf("an SDK cannot read this error: %s", s.Text)
		case s.Reason == "evicted" && s.Source.Class != "best effort":
			t.Errorf("%s was taken back", s.ID)
		}
	}
	ann, bob, greedy := r.Share("ann"), r.Share("bob"), r.Share("greedy")
	mean := float64(ann+bob+greedy) / 3
	for tenant, n := range map[string]int{"ann": ann, "bob": bob, "greedy": greedy} {
		if float64(n) < 0.75*mean || float64(n) > 1.25*mean {
			t.Errorf("%s was served %d requests under load; the mean of the standard tenants is %.0f", tenant, n, mean)
		}
	}
	batch, refused := r.Of("batch"), 0
	for _, s := range batch {
		if !s.Whole {
			refused++
		}
	}
	if n := r.Share("batch"); n > len(batch)/4 {
		t.Errorf("best effort was served %d of %d under a load of twice the capacity", n, len(batch))
	}
	if refused == 0 {
		t.Errorf("best effort was refused nothing of %d", len(batch))
	}
}

// TestTwice loads each door with twice what the engines can do, in three classes.
func TestTwice(t *testing.T) {
	if *report != "" {
		t.Skip("the report has a longer one")
	}
	for _, name := range []string{"proxy", "Envoy"} {
		t.Run(name, func(t *testing.T) {
			check(t, load(t, name, name, whole, shares(), 12*time.Second))
		})
	}
}

// TestReport writes the report of longer trials.
func TestReport(t *testing.T) {
	if *report == "" {
		t.Skip("for make flow-report")
	}
	var b strings.Builder
	plot := func(name string, p *Plot) {
		t.Helper()
		name = "flow-" + name + ".svg"
		if err := os.WriteFile(filepath.Join(*report, name), []byte(p.SVG()), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "![%s](%s)\n\n", p.Title, name)
	}
	fmt.Fprintf(&b, head, engines, batch, answer, step.Milliseconds(), capacity, *length)
	for _, name := range []string{"proxy", "Envoy"} {
		t.Run(name, func(t *testing.T) {
			r := load(t, name, name, whole, shares(), *length)
			check(t, r)
			fmt.Fprintf(&b, "## Through %s\n\n%s\n", map[string]string{"proxy": "the built-in proxy", "Envoy": "Envoy 1.40"}[name], r.Table())
			plot(strings.ToLower(name)+"-served", r.Throughput("Served, by tenant", ""))
			plot(strings.ToLower(name)+"-waits", r.Waits("Wait in the queue, by class"))
		})
	}
	t.Run("triple", func(t *testing.T) {
		sources := shares()[:4]
		for i := range sources[1:] {
			sources[1+i].Rate = 0.2 * capacity
		}
		sources[3].Later = 3 * sources[3].Rate
		r := load(t, "triple", "proxy", whole, sources, *length)
		b.WriteString(triple + r.Table() + "\n")
		p := r.Throughput("Served, while greedy asks for three times as much", "greedy")
		p.Mark, p.MarkText = r.Length.Seconds()/2, "greedy triples"
		plot("triple", p)
	})
	b.WriteString(compare)
	for _, fairness := range []string{"global-strict-fairness-policy", "round-robin-fairness-policy", "vtc-fairness-policy"} {
		t.Run(fairness, func(t *testing.T) {
			r := load(t, fairness, "proxy", strings.ReplaceAll(comparison, "FAIRNESS", fairness), unequal(), *length/3,
				"--step-base", "40ms", "--prefill-token-time", "200us") // so that a long prompt costs
			var requests, work []float64
			row := "| `" + fairness + "` |"
			for _, s := range r.Sources {
				requests, work = append(requests, float64(r.Share(s.Tenant))), append(work, float64(r.Work(s.Tenant)))
				row += fmt.Sprintf(" %d | %d |", r.Share(s.Tenant), r.Work(s.Tenant))
			}
			fmt.Fprintf(&b, "%s %.2f | %.2f |\n", row, Jain(requests), Jain(work))
			t.Log(row, Jain(requests), Jain(work), "\n"+r.Table())
		})
	}
	b.WriteString(tail)
	if t.Failed() {
		return
	}
	if err := os.WriteFile(filepath.Join(*report, "flow-control-report.md"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What the report says around its tables.
const (
	head = `# Flow control under twice the load

Made by ` + "`make flow-report`" + ` from a run on one machine, of which the counts matter and the times are only as good as the machine was idle.

%d simulated engines run %d sequences each; an answer has %d tokens, and a step takes at least %d ms: at the very most %.1f requests a second. They are offered twice that, whatever
becomes of it: the premium tenant a fifth of the capacity, three standard tenants 0.3, 0.3 and 0.9 of it, best effort 0.3. Each load lasts %v
(` + "`FLOWTIME`" + `; 2m unless told otherwise). The gateway has [the configuration of the guide](flow-control.md#a-configuration-explained), with 5 requests to an endpoint. Callers don't try again.

"Under load" leaves out the first sixth, when nobody had to wait yet, and what was served from the queue after the load had ended. Queue and TTFT are of those that were
served; TTFT is the caller's.

`
	triple = `## A tenant asks for three times as much

Premium and three standard tenants each ask for a fifth of the capacity. Half-way, one of the latter asks for three times as much, 1.2 of the capacity in all: it waits,
and gets what is left over; the others get what they got before.

`
	compare = `## Three ways to be fair

One band, three tenants that each want more than a third of the engines: even and long ask equally often, often twice as often; long's prompts are eight times
as long. Each load lasts a third of the time above. Served under load, in requests and in tokens of prompts and answers, with Jain's index of each (1 when all tenants have the same).

| fairness policy | even | tokens | often | tokens | long | tokens | Jain, requests | Jain, tokens |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
`
	tail = `
By turns each tenant gets the same number of requests, whatever they cost; by work each gets the same number of tokens; in the order in which they came, who asks for most gets most.
`
)
