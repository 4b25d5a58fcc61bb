// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/sim/engine"
)

// gauges takes over the engine's numbers for the page.
func (m *metrics) gauges(s engine.Stats) {
	m.stats = s
	m.running, m.waiting = float64(s.Running), float64(s.Waiting)
	m.deferred, m.capacity = float64(s.Deferred), float64(max(0, s.Waiting-s.Deferred))
	m.localCompute = s.PromptTokens - s.CachedTokens
}

// process is what Prometheus' Python client says of its process.
func (p *page) process() {
	generations := func(name, help string, values ...string) {
		p.family(name, "counter", help)
		for i, v := range values {
			p.fixed(fmt.Sprintf(`%s{generation="%d"}`, name, i), v)
		}
	}
	generations("python_gc_objects_collected_total", "Objects collected during gc", "15503.0", "2617.0", "694.0")
	generations("python_gc_objects_uncollectable_total", "Uncollectable objects found during GC", "0.0", "0.0", "0.0")
	generations("python_gc_collections_total", "Number of times this generation was collected", "1615.0", "147.0", "10.0")
	p.family("python_info", "gauge", "Python platform information")
	p.fixed(`python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"}`, "1.0")
	one := func(name, kind, help, value string) {
		p.family(name, kind, help)
		p.fixed(name, value)
	}
	one("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", "4.75973632e+09")
	one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", "9.50095872e+08")
	one("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", p.at)
	one("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", "19.39")
	one("process_open_fds", "gauge", "Number of open file descriptors.", "34.0")
	one("process_max_fds", "gauge", "Maximum number of open file descriptors.", "65536.0")
}

// state is what the scheduler says of the moment.
func (p *page) state(m *metrics) {
	perf := "(for Model Flops Utilization calculations)."
	p.counter("vllm:estimated_flops_per_gpu", "Estimated number of floating point operations per GPU "+perf, "", series{})
	p.counter("vllm:estimated_read_bytes_per_gpu", "Estimated number of bytes read from memory per GPU "+perf, "", series{})
	p.counter("vllm:estimated_write_bytes_per_gpu", "Estimated number of bytes written to memory per GPU "+perf, "", series{})
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", "", series{value: &m.running})
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", "", series{value: &m.waiting})
	p.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "+
		"scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "+
		"Sum of all reasons equals vllm:num_requests_waiting.", "reason",
		series{label: "capacity", value: &m.capacity}, series{label: "deferred", value: &m.deferred})
	p.family("vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "+
		"awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
	p.fixed("vllm:engine_sleep_state"+p.labels("sleep_state", "awake"), "1.0")
	p.fixed("vllm:engine_sleep_state"+p.labels("sleep_state", "weights_offloaded"), "0.0")
	p.fixed("vllm:engine_sleep_state"+p.labels("sleep_state", "discard_all"), "0.0")
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "", series{value: &m.stats.KVUsage})
}

func (p *page) counters(m *metrics) {
	s := &m.stats
	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", "", series{count: &s.PrefixQueries})
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", "", series{count: &s.PrefixHits})
	external := "from KV connector cross-instance cache sharing, in terms of number of"
	p.counter("vllm:external_prefix_cache_queries", "External prefix cache queries "+external+" queried tokens.", "", series{})
	p.counter("vllm:external_prefix_cache_hits", "External prefix cache hits "+external+" cached tokens.", "", series{})
	p.counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", "", series{})
	p.counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", "", series{})
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", "", series{count: &s.Preemptions})
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", "", series{count: &s.PromptTokens})
	p.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source",
		series{label: "local_compute", count: &m.localCompute}, series{label: "local_cache_hit", count: &s.CachedTokens}, series{label: "external_kv_transfer"})
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", "", series{count: &s.CachedTokens})
	p.counter("vllm:prompt_tokens_cached_by_source", "Prefix-cache hit tokens by the cache tier that supplied them: device (local "+
		"HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "+
		"admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.", "source",
		series{label: "device", count: &s.PrefixHits}, series{label: "host"}, series{label: "p2p"}, series{label: "disk"}, series{label: "external_unspecified"})
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.", "", series{count: &s.GenerationTokens})
	p.counter("vllm:request_success", "Count of successfully processed requests.", "finished_reason",
		series{label: "stop", count: &m.stop}, series{label: "length", count: &m.length}, series{label: "abort", count: &m.abort},
		series{label: "error"}, series{label: "repetition"})
	name, help := "vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason."
	limits := []string{"max_num_queued_reqs", "max_num_queued_tokens"}
	p.family(name+"_total", "counter", help)
	for _, l := range limits {
		p.fixed(name+"_total{"+p.model+`,reason="`+l+`"}`, "0.0")
	}
	p.family(name+"_created", "gauge", help)
	for _, l := range limits {
		p.fixed(name+"_created{"+p.model+`,reason="`+l+`"}`, p.at)
	}
}

func (p *page) histograms(m *metrics) {
	p.histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", m.promptLen)
	p.histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", m.outputLen)
	p.histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", m.iteration)
	p.histogram("vllm:request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", m.maxLen)
	p.histogram("vllm:request_params_n", "Histogram of the n request parameter.", m.choices)
	p.histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", m.maxTokens)
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", m.ttft)
	p.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", m.itl)
	p.histogram("vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", m.tpot)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", m.e2e)
	p.histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", m.queue)
	p.histogram("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", m.inference)
	p.histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", m.prefill)
	p.histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", m.decode)
	p.histogram("vllm:request_num_preemptions", "Histogram of the number of times a request was preempted.", m.preemptions)
	p.histogram("vllm:request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).", m.computed)
}

// cacheConfig is vLLM's description of its cache: labels on a gauge that is always 1.
func (p *page) cacheConfig(o *Options) {
	n, bs := o.Engine.NumBlocks, o.Engine.BlockSize
	caching := "True"
	if o.Engine.NoPrefixCaching {
		caching = "False"
	}
	all := []string{
		`_block_size_resolved="True"`, `cache_dtype="auto"`, `engine="0"`, `gpu_memory_utilization="0.92"`, `is_attention_free="False"`,
		`kv_cache_dtype_skip_layers="[]"`, `kv_cache_memory_bytes="None"`, `kv_offloading_backend="native"`, `kv_offloading_size="None"`,
		`kv_sharing_fast_prefill="False"`, `mamba_block_size="None"`, `mamba_cache_dtype="auto"`, `mamba_cache_mode="none"`,
		`mamba_page_size_padded="None"`, `mamba_ssm_cache_dtype="auto"`, `num_cpu_blocks="None"`, `prefix_caching_hash_algo="sha256"`,
		`sliding_window="None"`, `user_specified_block_size="True"`,
		`enable_prefix_caching="` + caching + `"`,
		fmt.Sprintf(`block_size="%d"`, bs), fmt.Sprintf(`num_gpu_blocks="%d"`, n), fmt.Sprintf(`num_gpu_blocks_override="%d"`, n),
		fmt.Sprintf(`kv_cache_size_tokens="%d"`, n*bs),
		fmt.Sprintf(`kv_cache_max_concurrency="%s"`, appendValue(nil, float64(n*bs)/float64(o.MaxModelLen))),
	}
	slices.Sort(all)
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.fixed("vllm:cache_config_info{"+strings.Join(all, ",")+"}", "1.0")
}

// counted are the paths that http_requests_total counts.
var counted = []httpCount{
	{method: "GET", path: "/v1/models"}, {method: "POST", path: "/v1/completions"}, {method: "POST", path: "/v1/chat/completions"},
	{method: "POST", path: "/v1/messages"}, {method: "POST", path: "/v1/responses"}, {method: "POST", path: "/v1/embeddings"},
	{method: "POST", path: "/tokenize"}, {method: "POST", path: "/detokenize"}, {method: "POST", path: "/inference/v1/generate"},
	{method: "POST", path: "/v1/completions/render"}, {method: "POST", path: "/v1/chat/completions/render"},
	{method: "POST", path: "/v1/messages/render"}, {method: "POST", path: "/v1/responses/render"},
}

// http is what vLLM's HTTP instrumentation says.
func (p *page) http(m *metrics) {
	m.http = slices.Clone(counted)
	p.family("http_requests_total", "counter", "Total number of requests by method, status and handler.")
	for i := range m.http {
		c := &m.http[i]
		for class, n := range []*uint64{&c.ok, &c.client, &c.server} {
			status := []string{"2xx", "4xx", "5xx"}[class]
			p.add(line{count: n}, fmt.Sprintf(`http_requests_total{handler="%s",method="%s",status="%s"}`, c.path, c.method, status))
		}
	}
	name := "http_request_duration_highr_seconds"
	p.family(name, "histogram", "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ")
	for i := range m.httpFine.counts {
		p.add(line{hist: m.httpFine, le: i}, name+`_bucket{le="`+le(m.httpFine, i)+`"}`)
	}
	p.add(line{count: &m.httpFine.total}, name+"_count")
	p.add(line{value: &m.httpFine.sum}, name+"_sum")
}

// served counts an HTTP answer.
func (m *metrics) served(method, path string, status int, took time.Duration) {
	i := slices.IndexFunc(m.http, func(c httpCount) bool { return c.path == path && c.method == method })
	if i < 0 {
		return
	}
	switch c := &m.http[i]; {
	case status >= http.StatusInternalServerError:
		c.server++
	case status >= http.StatusBadRequest:
		c.client++
	default:
		c.ok++
	}
	m.httpFine.seconds(took)
}

// pad fills the page up with the kind of series that makes real pages long: histograms by handler.
func (p *page) pad(least int) {
	size := len(p.text)
	for _, l := range p.lines {
		size += len(l.text) + 4
	}
	if size >= least {
		return
	}
	name := "http_request_duration_seconds"
	before := len(p.text)
	p.family(name, "histogram", "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ")
	for i := 0; size+len(p.text)-before < least; i++ {
		labels := `handler="/v1/filler/` + strconv.Itoa(i) + `"`
		for _, bound := range httpCoarseBounds {
			p.fixed(name+"_bucket{"+labels+`,le="`+string(appendValue(nil, bound))+`",method="GET"}`, "0.0")
		}
		p.fixed(name+"_bucket{"+labels+`,le="+Inf",method="GET"}`, "0.0")
		p.fixed(name+"_count{"+labels+`,method="GET"}`, "0.0")
		p.fixed(name+"_sum{"+labels+`,method="GET"}`, "0.0")
	}
}
