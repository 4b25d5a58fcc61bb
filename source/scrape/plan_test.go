// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// of makes a source or an extractor of a type, with parameters in JSON over its defaults.
func of[T any](t *testing.T, set map[string]func() T, typ, parameters string) T {
	t.Helper()
	v := set[typ]()
	if parameters != "" {
		if err := json.Unmarshal([]byte(parameters), v); err != nil {
			t.Fatal(err)
		}
	}
	if c, ok := any(v).(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// with makes a poll of a source and extractors, given by turns as type and parameters.
func with(t *testing.T, name, source, parameters string, extractors ...string) Poll {
	t.Helper()
	p := Poll{Name: name, Type: source, Source: of(t, Sources, source, parameters)}
	for x := range slices.Chunk(extractors, 2) {
		p.Extractors = append(p.Extractors, Named{Name: "x-" + x[0], Type: x[0], Extractor: of(t, Extractors, x[0], x[1])})
	}
	return p
}

func plan(t *testing.T, polls ...Poll) *Plan {
	t.Helper()
	p, err := NewPlan(polls...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// plansOf gives the plan to the pool of [start].
func plansOf(p *Plan) *Plans {
	var plans Plans
	plans.Set(map[fleet.ID]*Plan{{Namespace: "default", Name: "p"}: p})
	return &plans
}

// attributes writes what an endpoint has.
func attributes(e *fleet.Endpoint) string {
	var b strings.Builder
	for _, a := range e.Attributes {
		fmt.Fprintf(&b, "%s/%s=%g ", a.Name, a.Producer, a.Value)
	}
	return strings.TrimSpace(b.String())
}

const customs = `{"engineConfigs":[
 {"name":"mine","queuedRequestsSpec":"mine:requests{state=waiting}","runningRequestsSpec":"mine:requests{state=running,tier=\"a\\\"b\"}","kvUsageSpec":"mine:kv",
  "loraSpec":"mine:lora","cacheInfoSpec":"mine:cache","cacheBlockSizeLabelName":"tokens","cacheNumBlocksLabelName":"blocks",
  "customMetrics":[{"attributeKey":"d","metricSpec":"d"},{"attributeKey":"sum","metricSpec":"d","combine":"sum"},{"attributeKey":"min","metricSpec":"d","combine":"min"},
                   {"attributeKey":"mean","metricSpec":"d{a=b}","combine":"mean"}]},
 {"name":"values","cacheBlockSizeSpec":"v:size","cacheNumBlocksSpec":"v:n"},
 {"name":"vllm","queuedRequestsSpec":"vllm:num_requests_running","customMetrics":[{"attributeKey":"d","metricSpec":"vllm:d"}]}]}`

// What is read of a page, by what a configuration says and by an endpoint's label.
func TestMappings(t *testing.T) {
	const legacy, label = "inference.networking.k8s.io/engine-type", "llm-d.ai/engine-type"
	const both = "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nsglang:num_queue_reqs 3\nmine:requests{state=\"waiting\"} 4\n"
	const mine = "mine:requests{state=\"waiting\",x=\"y\"} 4\nmine:requests{state=\"running\"} 1\nmine:requests{state=\"running\",tier=\"a\\\"b\"} 5\nmine:kv 0.5\n" +
		"mine:lora{max_lora=\"2\",running_lora_adapters=\"l\",waiting_lora_adapters=\"\"} 1\nmine:cache{tokens=\"8\",blocks=\"9\"} 1\n" +
		"d{a=\"b\"} 3\nd{a=\"c\"} -7\nd{a=\"b\"} 2\nd_bucket{le=\"1\"} 100\nd_sum 100\n"
	core := func(parameters string) Poll {
		return with(t, "m", MetricsSource, "", MetricsExtractor, parameters)
	}
	dcgm := func() Poll { return with(t, "g", DCGMSource, "", GPUExtractor, "") }
	cluster := func(parameters string) Poll {
		return with(t, "c", MulticlusterSource, "", MulticlusterExtractor, parameters)
	}
	for _, c := range []struct {
		name   string
		poll   Poll
		labels string // key=value
		page   string
		want   string // as show has it, and the attributes
		engine string
	}{
		{"no label: recognised", core(""), "", both, "1 2 - - -", "vllm"},
		{"the label decides", core(""), label + "=sglang", both, "3 - - - -", "sglang"},
		{"the label from before", core(""), legacy + "=sglang", both, "3 - - - -", "sglang"},
		{"an unknown engine: recognised", core(""), label + "=strange", both, "1 2 - - -", "vllm"},
		{"a default engine", core(`{"defaultEngine":"sglang"}`), "", both, "3 - - - -", "sglang"},
		{"a default engine, and an unknown one", core(`{"defaultEngine":"sglang"}`), label + "=strange", both, "3 - - - -", "sglang"},
		{"a default engine, and a known one", core(`{"defaultEngine":"sglang"}`), label + "=vllm", both, "1 2 - - -", "vllm"},
		{"a label of one's own", core(`{"engineLabelKey":"e"}`), "e=sglang", both, "3 - - - -", "sglang"},
		{"a label of one's own, not the usual", core(`{"engineLabelKey":"e"}`), label + "=sglang", both, "1 2 - - -", "vllm"},
		{"an engine of one's own", core(customs), label + "=mine", mine, "4 5 0.5 8 9 lora=[l]/[]/2 d=3 mean=2.5 min=-7 sum=-2", "mine"},
		{"an engine of one's own, recognised", core(customs), "", mine, "4 5 0.5 8 9 lora=[l]/[]/2 d=3 mean=2.5 min=-7 sum=-2", "mine"},
		{"blocks as values", core(customs), label + "=values", "v:size 16\nv:n 7\nv:n 8\n", "- - - 16 15", ""},
		{"a known engine by other names, the rest disabled", core(customs), label + "=vllm", both + "vllm:kv_cache_usage_perc 0.5\nvllm:d 6\n", "2 - - - - d=6", "vllm"},
		{"a better name has spoken", core(customs), "", "d 1\nvllm:d 6\n", "- - - - - d=1 mean=- min=1 sum=1", ""},
		{"an attribute that is no number", core(customs), "", "d 1\nd NaN\n", "- - - - - d=! mean=- min=! sum=!", ""},
		{"a sum beyond all numbers", core(customs), "", "d 1.7e308\nd 1.7e308\n", "- - - - - d=1.7e+308 mean=- min=1.7e+308 sum=!", ""},
		{"GPUs of this pod and of none", dcgm(), "", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"e000\"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\",pod=\"\"} 60\nDCGM_FI_DEV_GPU_UTIL{gpu=\"2\",pod=\"e0\"} 90\nDCGM_FI_DEV_GPU_UTIL{gpu=\"3\",pod=\"e0001\"} 91\n", "- - - - - GPUUtilization=0.6", ""},
		{"GPUs of others alone", dcgm(), "", "DCGM_FI_DEV_GPU_UTIL{pod=\"x\"} 40\n", "- - - - - GPUUtilization=-", ""},
		{"GPUs without a value", dcgm(), "", "DCGM_FI_DEV_GPU_UTIL 9223372036854775794\n", "- - - - - GPUUtilization=!", ""},
		{"a cluster", cluster(""), "", "llm_d_epp_average_queue_size{name=\"a\"} 2.5\nllm_d_epp_average_queue_size{name=\"b\"} 1\nllm_d_epp_average_kv_cache_utilization{name=\"a\"} 0.25\n",
			"- - - - - llm-d.ai/multicluster-kv-cache-utilization=0.25 llm-d.ai/multicluster-queue-size=2.5", ""},
		{"a pool of a cluster", cluster(`{"queueSizeMetric":"q{name=b}","kvCacheUtilizationMetric":""}`), "", "q{name=\"a\"} 2.5\nq{name=\"b\"} 1\n", "- - - - - llm-d.ai/multicluster-queue-size=1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ep := &fleet.Endpoint{ID: fleet.ID{Name: "e000"}, Labels: map[string]string{}}
			if k, v, ok := strings.Cut(c.labels, "="); ok {
				ep.Labels[k] = v
			}
			m := plan(t, c.poll).polls[0].mapping(ep)
			var p Page
			Scan([]byte(c.page), m, ep.Name, &p)
			if got := show(&p) + extras(m, &p); got != c.want || p.Engine() != c.engine {
				t.Errorf("got %s of %q, want %s of %q", got, p.Engine(), c.want, c.engine)
			}
		})
	}
}

// extras writes a page's attributes, sorted by name.
func extras(m *Mapping, p *Page) string {
	all := map[string]string{}
	for i, v := range p.Extra {
		all[m.extras[i].Name] = map[State]string{Absent: "-", Bad: "!", Known: fmt.Sprint(v.Value)}[v.State]
	}
	out := ""
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out += " " + k + "=" + all[k]
	}
	return out
}

func TestSpecs(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		" a ":                        "a",
		"a{}":                        "a",
		"a:b{x=y}":                   `a:b{x="y"}`,
		"a{ x = y z , w = \"1,}\" }": `a{x="y z",w="1,}"}`,
		`a{x="q\"\\\n"}`:             `a{x="q\"\\\n"}`,
		`a{x=q\}`:                    `a{x="q\\"}`,
	} {
		var s, again Spec
		if err := s.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		got, _ := s.MarshalText()
		if string(got) != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
		if err := again.UnmarshalText(got); err != nil || !slices.Equal(again.Where, s.Where) {
			t.Errorf("%s is read back as %v, %v", got, again, err)
		}
	}
	for _, text := range []string{strings.Repeat("a", 2000), "a{a=1,b=2,c=3,d=4,e=5,f=6,g=7,h=8,i=9}"} {
		if _, err := parseSpec(text); err == nil {
			t.Errorf("%.20s: no error", text)
		}
	}
}

func TestPlansThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		want  string
		polls []Poll
	}{
		{"a: is listed twice as a source", []Poll{with(t, "a", MetricsSource, ""), with(t, "a", DCGMSource, "")}},
		{"x-models-data-extractor: reads lists of models, and a brings metrics: list it under a models-data-source", []Poll{with(t, "a", MetricsSource, "", ModelsExtractor, "")}},
		{"x-dcgm-extractor: reads metrics, and a brings lists of models: list it under a metrics-data-source", []Poll{with(t, "a", ModelsSource, "", GPUExtractor, "")}},
		{"x-dcgm-extractor: is a second dcgm-extractor beside x-dcgm-extractor: want one for each source", []Poll{with(t, "a", DCGMSource, "", GPUExtractor, "", GPUExtractor, "")}},
		{"a: caCertPath: open /nowhere: no such file or directory", []Poll{with(t, "a", MulticlusterSource, `{"caCertPath":"/nowhere"}`)}},
		{"a: bearerTokenFile: open /nowhere: no such file or directory", []Poll{with(t, "a", MetricsSource, `{"bearerTokenFile":"/nowhere"}`)}},
	} {
		if _, err := NewPlan(c.polls...); fmt.Sprint(err) != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// Many engines and many attributes are read in one pass all the same.
func TestMappingOfManyRows(t *testing.T) {
	var rows []Row
	var page strings.Builder
	for i := range 200 {
		f := fmt.Sprintf("m%03d", i)
		rows = append(rows, Row{Family: f, Field: Extra, Extra: &ExtraRow{Name: f, Max: 1000, Scale: 1}})
		fmt.Fprintf(&page, "%s %d\n", f, i)
	}
	m, err := NewMapping(rows...)
	if err != nil {
		t.Fatal(err)
	}
	var p Page
	Scan([]byte(page.String()), m, "", &p)
	for i, v := range p.Extra {
		if v.State != Known || v.Value != float64(i) {
			t.Fatalf("%s: got %+v", m.extras[i].Name, v)
		}
	}
	if _, err := NewMapping(make([]Row, maxRows+1)...); err == nil {
		t.Error("no end to rows")
	}
}

// Polls of one endpoint keep apart: what one says stays when another speaks, fails or goes.
func TestSourcesKeepApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := with(t, "m", MetricsSource, "", MetricsExtractor, `{"engineConfigs":[{"name":"vllm","queuedRequestsSpec":"vllm:num_requests_waiting","customMetrics":[{"attributeKey":"d","metricSpec":"d"}]}]}`)
		gpu := with(t, "g", DCGMSource, `{"interval":70000000,"path":"/gpu","useNodeAddress":true}`, GPUExtractor, "")
		plans := plansOf(plan(t, metrics, gpu))
		r := start(t, 1, Options{Plans: plans})
		node := &engine{page: "DCGM_FI_DEV_GPU_UTIL 50\n"}
		r.set(func() {
			r.by["10.1.0.1:9400"] = node
			r.e[0].page = "vllm:num_requests_waiting 4\nd 6\n"
		})
		r.specs[0].NodeAddress = "10.1.0.1"
		r.store.SetEndpoints("test", r.specs)
		pass(time.Second)
		want := func(waiting float64, attrs string) {
			t.Helper()
			if e := r.endpoint(0); e.Waiting.Value != waiting || attributes(e) != attrs {
				t.Errorf("got %g waiting and %s, want %g and %s", e.Waiting.Value, attributes(e), waiting, attrs)
			}
		}
		want(4, "GPUUtilization/dcgm-extractor=0.5 d/core-metrics-extractor=6")
		r.set(func() { r.e[0].page = "vllm:num_requests_waiting 5\n" })
		pass(time.Second)
		want(5, "GPUUtilization/dcgm-extractor=0.5") // unknown at once
		r.set(func() { node.page = "" })
		pass(2 * time.Second)
		want(5, "")
		r.set(func() { node.page = "DCGM_FI_DEV_GPU_UTIL 100\n"; r.e[0].status = 500 })
		pass(2 * time.Second)
		want(5, "GPUUtilization/dcgm-extractor=1") // the last word, with its age
		if e := r.endpoint(0); e.Waiting.Fresh(time.Now(), time.Second) {
			t.Error("the reading of a page that fails is fresh")
		}
		r.set(func() {
			for _, f := range []string{"metrics-data-source status-500", "dcgm-extractor no-signals"} {
				if r.failed[f] == 0 {
					t.Errorf("nothing told of %s: %v", f, r.failed)
				}
			}
			if n := r.failed["core-metrics-extractor no-signals"]; n != 0 {
				t.Errorf("got %d of the other extractor", n)
			}
		})
		plans.Set(map[fleet.ID]*Plan{{Namespace: "default", Name: "p"}: plan(t, metrics)})
		pass(100 * time.Millisecond)
		want(5, "") // nobody asks any more
		var before int
		r.set(func() { before = len(node.asked) + len(node.listed) })
		pass(time.Second)
		r.set(func() {
			if n := len(node.asked) + len(node.listed) - before; n != 0 {
				t.Errorf("asked %d times after it was dropped", n)
			}
		})
	})
}

// A plan that says the same keeps what goes on: no connection is made anew.
func TestSamePlanGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := func() *Plan { return plan(t, with(t, "m", MetricsSource, "", MetricsExtractor, customs)) }
		plans := plansOf(same())
		r := start(t, 1, Options{Plans: plans})
		pass(time.Second)
		r.set(func() { r.dials = 0 })
		plans.Set(map[fleet.ID]*Plan{{Namespace: "default", Name: "p"}: same()})
		pass(time.Second)
		r.set(func() {
			if r.dials != 0 {
				t.Errorf("got %d new connections", r.dials)
			}
		})
		plans.Set(map[fleet.ID]*Plan{{Namespace: "default", Name: "p"}: plan(t)})
		pass(time.Second)
		r.set(func() {
			if r.open != 0 {
				t.Errorf("%d connections of an empty plan", r.open)
			}
		})
	})
}

// Each source has its own interval, and none is below 50 ms; however long it is, all are soon known.
func TestIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, with(t, "m", MetricsSource, `{"interval":1000000}`, MetricsExtractor, ""), with(t, "l", ModelsSource, `{"interval":500000000}`, ModelsExtractor, ""),
			with(t, "g", DCGMSource, `{"interval":10000000000,"port":8001}`, GPUExtractor, ""))
		r := start(t, 20, Options{Plans: plansOf(p), Interval: time.Minute})
		gpus := &engine{page: "DCGM_FI_DEV_GPU_UTIL 50\n"}
		r.set(func() {
			for i := range r.e {
				r.by[strings.Replace(r.specs[i].Address, ":8000", ":8001", 1)] = gpus
			}
		})
		pass(250 * time.Millisecond)
		for i := range r.e {
			if e := r.endpoint(i); e.Waiting.At.IsZero() || len(e.Attributes) == 0 {
				t.Errorf("endpoint %d is not known after 250 ms: %+v", i, e)
			}
		}
		pass(60 * time.Second)
		r.set(func() {
			for _, e := range r.e {
				if n := len(e.asked); n < 1190 || n > 1210 {
					t.Errorf("got %d looks at a page in 60 s, want 1205", n)
				}
				if n := len(e.listed); n < 118 || n > 123 {
					t.Errorf("got %d looks at a list in 60 s, want 121", n)
				}
			}
			if n := len(gpus.asked); n < 20*6 || n > 20*7+2 {
				t.Errorf("got %d looks at 20 exporters in 60 s, want 6 or 7 each", n)
			}
			var tenths [10]int
			for _, at := range gpus.asked {
				if at > 50*time.Second {
					tenths[at%(10*time.Second)/time.Second]++
				}
			}
			if most := slices.Max(tenths[:]); most > 5 {
				t.Errorf("got %v looks in tenths of the interval, want about 2", tenths)
			}
		})
	})
}

// An endpoint of two pools has the plan of the first; pools without a plan have the default.
func TestFirstPoolsPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plans := &Plans{}
		r := start(t, 1, Options{Plans: plans})
		r.store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "b"}}, {ID: fleet.ID{Namespace: "default", Name: "a"}}})
		plans.Set(map[fleet.ID]*Plan{{Namespace: "default", Name: "a"}: plan(t), {Namespace: "default", Name: "b"}: DefaultPlan()})
		pass(time.Second)
		var n int
		r.set(func() { n = len(r.e[0].asked) })
		pass(time.Second)
		r.set(func() {
			if len(r.e[0].asked) != n {
				t.Error("the second pool's plan is in force")
			}
		})
		plans.Set(nil)
		pass(time.Second)
		r.set(func() {
			if d := len(r.e[0].asked) - n; d < 18 || d > 21 {
				t.Errorf("got %d looks by the default plan", d)
			}
		})
	})
}

// Two pages of one endpoint make one reading: of each signal the first's that has it.
func TestTwoPagesOfAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, with(t, "m", MetricsSource, "", MetricsExtractor, ""), with(t, "side", MetricsSource, `{"port":9000}`, MetricsExtractor, `{"defaultEngine":"sglang"}`))
		r := start(t, 1, Options{Plans: plansOf(p)})
		r.set(func() {
			r.e[0].page = "vllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 87\n"
			r.by["10.0.0.1:9000"] = &engine{page: "sglang:num_queue_reqs 9\nsglang:token_usage 0.5\n"}
		})
		pass(time.Second)
		e := r.endpoint(0)
		if e.Waiting.Value != 4 || e.KVUsage.Value != 0.5 || e.KVName != "sglang:token_usage" || e.WaitingName != "vllm:num_requests_waiting" || e.Engine != "vllm" {
			t.Errorf("got %+v", e.Reading)
		}
		if len(e.Refused) != 1 || e.Refused[0] != (fleet.Refused{Metric: "vllm:kv_cache_usage_perc", Value: 87}) {
			t.Errorf("got %+v refused", e.Refused)
		}
	})
}

// A page whose process began later than before is another's, whatever other pages say, and however unsteady the clock.
func TestProcessBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, with(t, "m", MetricsSource, "", MetricsExtractor, ""), with(t, "side", MetricsSource, `{"port":9000}`, MetricsExtractor, ""))
		r := start(t, 1, Options{Interval: time.Second, Plans: plansOf(p)})
		side := &engine{}
		began := func(at string) string { return "process_start_time_seconds " + at + "\n" }
		r.set(func() {
			r.e[0].page = idle
			side.page = idle + began("1796005902.5") // after the other, which is read later
			r.by["10.0.0.1:9000"] = side
		})
		load, renewed := r.endpoint(0).Load, 0
		var seen time.Duration
		r.store.OnRenewed(func(l *fleet.Load, last time.Time) {
			if l != load {
				t.Error("of another endpoint")
			}
			renewed++
			seen = time.Since(last)
		})
		for _, c := range []struct {
			page string
			want int
			seen time.Duration // at the latest
		}{
			{idle, 0, 0},
			{idle + began("1.79600580208e+09"), 0, 0}, // as vLLM has it
			{idle + began("1796005803.08"), 0, 0},     // the kernel rounds otherwise
			{idle + began("1796005804.08"), 0, 0},     // and its clock goes on drifting
			{idle, 0, 0},                              // not told
			{began("1796005999"), 0, 0},               // no engine's
			{idle + began("NaN"), 0, 0},
			{idle + began("1796005806.08"), 1, 4 * 2500 * time.Millisecond}, // the last was four pages ago
			{idle + began("1796005804.08"), 1, 0},                           // the one before, which is still there
			{idle + began("1796005806.08"), 1, 0},
		} {
			r.set(func() { r.e[0].page = c.page })
			pass(2500 * time.Millisecond)
			if renewed != c.want {
				t.Errorf("%q: began anew %d times, want %d", c.page, renewed, c.want)
			}
			if c.seen != 0 && (seen < c.seen-2500*time.Millisecond || seen > c.seen+2500*time.Millisecond) {
				t.Errorf("%q: last seen %v ago, want some %v", c.page, seen, c.seen)
			}
		}
	})
}

// The fixtures F2 of BL-09, as an endpoint shows them.
func TestPagesAsShown(t *testing.T) {
	for _, c := range []struct{ page, want, flagged string }{
		{"vllm:gpu_cache_usage_perc 0.95\n", "vllm - - 0.95 vllm:gpu_cache_usage_perc []", ""},
		{"vllm:kv_cache_usage_perc 0.95\n", "vllm - - 0.95 vllm:kv_cache_usage_perc []", ""},
		{"vllm:gpu_cache_usage_perc 0.10\nvllm:kv_cache_usage_perc 0.95\n", "vllm - - 0.95 vllm:kv_cache_usage_perc []", ""},
		{"vllm:num_requests_waiting{engine=\"0\"} 40\nvllm:num_requests_waiting{engine=\"1\"} 0\n", "vllm 40 - - vllm:num_requests_waiting []", ""},
		{"sglang:num_queue_reqs 12\nsglang:token_usage 0.9\n", "sglang 12 - 0.9 sglang:num_queue_reqs sglang:token_usage []", ""},
		{"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 87\n", "vllm - 3 - vllm:num_requests_running vllm:kv_cache_usage_perc [{vllm:kv_cache_usage_perc 87}]", "core-metrics-extractor bad-value"},
		{"", " - - - []", "core-metrics-extractor no-signals"},
		{"<html><body>login</body></html>", " - - - []", "core-metrics-extractor no-signals"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, 1, Options{})
			r.set(func() { r.e[0].page = c.page })
			pass(time.Second)
			e := r.endpoint(0)
			got := e.Engine
			for _, s := range []fleet.Signal{e.Waiting, e.Running, e.KVUsage} {
				if s.At.IsZero() {
					got += " -"
				} else {
					got += fmt.Sprint(" ", s.Value)
				}
			}
			for _, n := range []string{e.WaitingName, e.RunningName, e.KVName} {
				if n != "" {
					got += " " + n
				}
			}
			if got += fmt.Sprint(" ", e.Refused); got != c.want {
				t.Errorf("%q: got %s, want %s", c.page, got, c.want)
			}
			r.set(func() {
				if (c.flagged != "") != (len(r.failed) > 0) || c.flagged != "" && r.failed[c.flagged] == 0 {
					t.Errorf("%q: got %v, want %s", c.page, r.failed, c.flagged)
				}
			})
		})
	}
}
