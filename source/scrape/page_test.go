// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// vllmPage makes a page as a busy vLLM serves it, of at least size bytes: all its histograms for as many
// engines as it takes, some 49 KB each, with the few families that matter among them.
func vllmPage(size int) []byte {
	var b bytes.Buffer
	histograms := []string{"time_to_first_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds",
		"e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
		"request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
		"request_params_n", "request_params_max_tokens", "iteration_tokens_total", "kv_block_lifetime_seconds", "num_tokens_per_step"}
	b.WriteString("# HELP python_gc_objects_collected_total Objects collected during gc\n# TYPE python_gc_objects_collected_total counter\n")
	for g := range 3 {
		fmt.Fprintf(&b, "python_gc_objects_collected_total{generation=\"%d\"} %d.0\n", g, 1000*g)
	}
	for engine := 0; b.Len() < size; engine++ {
		l := fmt.Sprintf(`engine="%d",model_name="meta-llama/Llama-3.3-70B-Instruct"`, engine)
		for i, h := range histograms {
			if i == 5 {
				fmt.Fprintf(&b, "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.\n# TYPE vllm:num_requests_waiting gauge\n"+
					"vllm:num_requests_waiting{%[1]s} 3.0\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{%[1]s} 17.0\n"+
					"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{%[1]s} 0.4375\n"+
					"vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",gpu_memory_utilization=\"0.9\",num_gpu_blocks=\"8192\"} 1.0\n"+
					"vllm:generation_tokens_total{%[1]s} 123456.0\nvllm:num_preemptions_total{%[1]s} 0.0\n", l)
			}
			fmt.Fprintf(&b, "# HELP vllm:%[1]s Histogram of %[1]s.\n# TYPE vllm:%[1]s histogram\n", h)
			for k := range 22 {
				fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"%g\"} %d.0\n", h, l, math.Ldexp(0.001, k), 100*k)
			}
			fmt.Fprintf(&b, "vllm:%[1]s_bucket{%[2]s,le=\"+Inf\"} 2200.0\nvllm:%[1]s_count{%[2]s} 2200.0\nvllm:%[1]s_sum{%[2]s} 12345.678\n", h, l)
		}
	}
	return b.Bytes()
}

// show writes a page's values as a reader would: unknown is "-", what cannot be is "!".
func show(p *Page) string {
	var b strings.Builder
	for i, v := range []Value{p.Waiting, p.Running, p.KVUsage, p.BlockSize, p.NumBlocks} {
		if i > 0 {
			b.WriteByte(' ')
		}
		switch v.State {
		case Absent:
			b.WriteByte('-')
		case Bad:
			b.WriteByte('!')
		default:
			fmt.Fprintf(&b, "%g", v.Value)
		}
	}
	if p.MaxAdapters != 0 || len(p.Adapters)+len(p.Queued) > 0 {
		fmt.Fprintf(&b, " lora=%v/%v/%d", Split(p.Adapters), Split(p.Queued), p.MaxAdapters)
	}
	if p.Started.State != Absent {
		fmt.Fprintf(&b, " started=%.2f", p.Started.Value)
	}
	return b.String()
}

func TestScan(t *testing.T) {
	for _, c := range []struct{ name, page, want, engine string }{
		// The fixtures F2 of BL-09.
		{"F2 old name", "vllm:gpu_cache_usage_perc 0.95\n", "- - 0.95 - -", "vllm"},
		{"F2 new name", "vllm:kv_cache_usage_perc 0.95\n", "- - 0.95 - -", "vllm"},
		{"F2 both, new wins", "vllm:gpu_cache_usage_perc 0.10\nvllm:kv_cache_usage_perc 0.95\n", "- - 0.95 - -", "vllm"},
		{"F2 both, other order", "vllm:kv_cache_usage_perc 0.95\nvllm:gpu_cache_usage_perc 0.10\n", "- - 0.95 - -", "vllm"},
		{"F2 two engines", "vllm:num_requests_waiting{engine=\"0\"} 40\nvllm:num_requests_waiting{engine=\"1\"} 0\n", "40 - - - -", "vllm"},
		{"F2 sglang", "sglang:num_queue_reqs 12\nsglang:token_usage 0.9\n", "12 - 0.9 - -", "sglang"},
		{"F2 a ratio of 87", "vllm:kv_cache_usage_perc 87\n", "- - ! - -", "vllm"},
		{"began", "process_start_time_seconds 1.79e+09\nvllm:num_requests_waiting 4\n", "4 - - - - started=1790000000.00", "vllm"},
		{"F2 nothing", "", "- - - - -", ""},
		{"F2 a login page", "<html><body><form>login vllm:num_requests_waiting 0</form></body></html>\n", "- - - - -", ""},

		{"usage is the largest", "vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.7\nvllm:kv_cache_usage_perc{engine=\"2\"} 0.1\n", "- - 0.7 - -", "vllm"},
		{"a bad series spoils the sum", "vllm:num_requests_waiting{engine=\"0\"} 40\nvllm:num_requests_waiting{engine=\"1\"} NaN\n", "! - - - -", "vllm"},
		{"negative", "vllm:num_requests_running -1\n", "- ! - - -", "vllm"},
		{"infinite", "vllm:num_requests_running +Inf\n", "- ! - - -", "vllm"},
		{"a bad new name does not fall back", "vllm:gpu_cache_usage_perc 0.10\nvllm:kv_cache_usage_perc 87\n", "- - ! - -", "vllm"},
		{"exponent", "vllm:num_requests_waiting 1e+00\nvllm:kv_cache_usage_perc 5.0e-1\n", "1 - 0.5 - -", "vllm"},
		{"CRLF", "vllm:num_requests_waiting 4\r\nvllm:num_requests_running{a=\"b\"} 5\r\n", "4 5 - - -", "vllm"},
		{"no line break at the end", "vllm:num_requests_waiting 4", "4 - - - -", "vllm"},
		{"time stamps", "vllm:num_requests_waiting 4 1700000000000\nvllm:num_requests_running{a=\"b\"} 5 -17\n", "4 5 - - -", "vllm"},
		{"exemplar after a timestamp", "vllm:num_requests_waiting 4 1700000000.123 # {trace=\"1\"} 1 1700000000\n", "4 - - - -", "vllm"},
		{"OpenMetrics", "vllm:num_requests_waiting 4 1700000000.123\nvllm:num_requests_running 2 # {trace=\"1\"} 3\n# EOF\n", "4 2 - - -", "vllm"},
		{"blanks", "  vllm:num_requests_waiting\t{ engine = \"0\" , a=\"b\", }  4\n", "4 - - - -", "vllm"},
		{"braces and commas in values", "vllm:num_requests_waiting{a=\"},\\\"{\",b=\"\\\\\"} 4\n", "4 - - - -", "vllm"},
		{"longer names", "vllm:num_requests_waiting_total 4\nvllm:kv_cache_usage_perc_x{} 1\n", "- - - - -", ""},
		{"no value", "vllm:num_requests_waiting\nvllm:num_requests_running \nvllm:kv_cache_usage_perc{\n", "- - - - -", ""},
		{"words for values", "vllm:num_requests_waiting none\nvllm:num_requests_running 0x10\nvllm:kv_cache_usage_perc 1 of 2\n", "- - - - -", ""},
		{"comments", "# vllm:num_requests_waiting 4\n#vllm:num_requests_running 4\n", "- - - - -", ""},
		{"cache info", "vllm:cache_config_info{num_gpu_blocks=\"8192\",x=\"y\",block_size=\"16\"} 1.0\n", "- - - 16 8192", ""},
		{"cache info of two engines", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"50\"} 1\n", "- - - 16 150", ""},
		{"cache info unset", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n", "- - - 16 -", ""},
		{"newest adapters", "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",waiting_lora_adapters=\"\"} 1.7e+09\n" +
			"vllm:lora_requests_info{waiting_lora_adapters=\"w\",max_lora=\"4\",running_lora_adapters=\"a, b,,\"} 1.700000001e+09\n", "- - - - - lora=[a b]/[w]/4", ""},
		{"no adapters", "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.7e+09\n", "- - - - - lora=[]/[]/2", ""},
		{"trtllm", "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 99\n", "1 2 0.5 32 99", "trtllm-serve"},
		{"triton", "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 7\nnv_trt_llm_request_metrics{request_type=\"scheduled\"} 8\n" +
			"nv_trt_llm_request_metrics{request_type=\"max\"} 512\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.25\n" +
			"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 1000\n", "7 8 0.25 64 1000", "triton-tensorrt-llm"},
		{"a whole page", string(vllmPage(30 << 10)), "3 17 0.4375 16 8192", "vllm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Page
			Scan([]byte(c.page), Default, "", &p)
			if got := show(&p); got != c.want || p.Engine() != c.engine {
				t.Errorf("got %s of %q, want %s of %q", got, p.Engine(), c.want, c.engine)
			}
		})
	}
}

func TestScanSaysWhichNameItRead(t *testing.T) {
	var p Page
	Scan([]byte("vllm:gpu_cache_usage_perc 0.95\n"), Default, "", &p)
	if p.KVUsage.Row.Family != "vllm:gpu_cache_usage_perc" {
		t.Errorf("got %q", p.KVUsage.Row.Family)
	}
}

func TestParseAgreesWithStrconv(t *testing.T) {
	for _, s := range []string{"0", "1", "0.0", "1.", ".5", "0.4375", "0.1", "123456789012345", "1234567890123456", "0.123456789012345", "99999999.9999999", "1e5", "1E-5", "-3", "+3", "Inf", "NaN"} {
		fast, ok1 := parse([]byte(s))
		slow, ok2 := parseSlow([]byte(s))
		if ok1 != ok2 || math.Float64bits(fast) != math.Float64bits(slow) {
			t.Errorf("%s: got %v %v, want %v %v", s, fast, ok1, slow, ok2)
		}
	}
	for _, s := range []string{"", ".", "-", "1..2", "0x1p3", "1_000", "1e", "a"} {
		if v, ok := parse([]byte(s)); ok {
			t.Errorf("%q: got %v", s, v)
		}
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	page := vllmPage(100 << 10)
	page = append(page, "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 1.7e+09\n"...)
	var p Page
	x := Row{Family: "vllm:num_requests_waiting", Field: Extra, Where: []Where{{Label: "engine", Value: "0"}}, Extra: &ExtraRow{Name: "x", Max: 100, Scale: 1}}
	custom, err := NewMapping(append(slices.Clone(Engines), x)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Mapping{Default, custom} {
		Scan(page, m, "e", &p)
		if n := testing.AllocsPerRun(100, func() { Scan(page, m, "e", &p) }); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
	}
}

// expected reads what we need with Prometheus' own parser; nil when it refuses the page.
func expected(page []byte, mapping *Mapping, self string) *Page {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil
	}
	p := &Page{Extra: make([]Value, len(mapping.extras))}
	for i := range mapping.blocks[0].rows {
		r := &mapping.blocks[0].rows[i]
		f := families[r.Family]
		if f == nil {
			continue
		}
		for _, m := range f.Metric {
			var v float64
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				v = m.GetGauge().GetValue()
			case dto.MetricType_COUNTER:
				v = m.GetCounter().GetValue()
			case dto.MetricType_UNTYPED:
				v = m.GetUntyped().GetValue()
			default:
				return nil // a family that cannot be ours
			}
			labels := series{}
			for _, l := range m.Label {
				labels.keep([]byte(l.GetName()), []byte(l.GetValue()), r, self)
			}
			if labels.chosen(r) {
				p.take(v, r, i, &labels)
			}
		}
	}
	for i := range p.Extra {
		p.Extra[i].finish()
	}
	return p
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",x=\"a\\\"}b\"} 4.5e+1 123\n"))
	f.Add([]byte("vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc{} 0.1\nsglang:num_queue_reqs{a=\"b\",} 3\n"))
	f.Add([]byte("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\"} 1\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"\"} 1.7e+09\n"))
	f.Add([]byte("nv_trt_llm_request_metrics{request_type=\"waiting\"} 7\n<html>\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		var got Page
		Scan(page, Default, "", &got)
		want := expected(page, Default, "")
		if want == nil || bytes.ContainsAny(page, "\\\r") || strange.Match(page) {
			return // we are more lenient, or keep escapes as they stand
		}
		if g, w := show(&got), show(want); g != w {
			t.Errorf("got %s, want %s", g, w)
		}
	})
}

// FuzzScanCustom holds our reading of attributes against that of Prometheus' own parser.
func FuzzScanCustom(f *testing.F) {
	rows := []Row{}
	for i, by := range []Combine{Largest, Smallest, Sum, Mean} {
		rows = append(rows, Row{Family: "d", Field: Extra, Where: []Where{{Label: "a", Value: "b"}}[:i%2], Extra: &ExtraRow{Name: string(by), Combine: by, Min: -math.MaxFloat64, Max: math.MaxFloat64, Scale: 1}})
	}
	rows = append(rows, Row{Family: "DCGM_FI_DEV_GPU_UTIL", Field: Extra, Where: []Where{{Label: "pod", Self: true}}, Extra: &ExtraRow{Name: "gpu", Combine: Largest, Max: 100, Scale: 0.01}})
	m, err := NewMapping(rows...)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("# TYPE d gauge\nd 4\nd{a=\"b\"} -5e3\nd{a=\"c\",x=\"\"} +Inf\n"))
	f.Add([]byte("# TYPE d histogram\nd_bucket{le=\"1\"} 4\nd_sum 3\nd_count 4\n"))
	f.Add([]byte("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"self\"} 40\nDCGM_FI_DEV_GPU_UTIL{pod=\"self-rank-1\"} 50\nDCGM_FI_DEV_GPU_UTIL{pod=\"\"} 101\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		var got Page
		Scan(page, m, "self", &got)
		for i, v := range got.Extra { // whatever the page
			if v.State == Known && (math.IsNaN(v.Value) || math.IsInf(v.Value, 0)) {
				t.Fatalf("%s is %v", m.extras[i].Name, v.Value)
			}
		}
		want := expected(page, m, "self")
		if want == nil || bytes.ContainsAny(page, "\\\r") || strangeCustom.Match(page) {
			return
		}
		if g, w := extras(m, &got), extras(m, want); g != w {
			t.Errorf("got %s, want %s", g, w)
		}
	})
}

var strangeCustom = regexp.MustCompile(`[{,][ \t]*"|(\bd|DCGM_FI_DEV_GPU_UTIL)[^a-zA-Z0-9_:{ \t\n]`)

// strange finds what Prometheus' parser accepts, but no engine writes, and we do not read: names in
// quotes, {"like this"}, and names with a value right behind them.
var strange = regexp.MustCompile(`[{,][ \t]*"|(vllm|sglang|trtllm|nv)[a-zA-Z0-9_:]*[^a-zA-Z0-9_:{ \t\n]`)

func BenchmarkScanPage(b *testing.B) {
	page := vllmPage(70 << 10) // 97 KB
	scan := func(m *Mapping) func(*testing.B) {
		return func(b *testing.B) {
			var p Page
			b.SetBytes(int64(len(page)))
			b.ReportAllocs()
			for b.Loop() {
				Scan(page, m, "", &p)
			}
		}
	}
	b.Run("default", scan(Default))
	rows := slices.Clone(Engines)
	for i := range 8 {
		rows = append(rows, Row{Family: "vllm:custom_" + strconv.Itoa(i), Field: Extra, Extra: &ExtraRow{Name: strconv.Itoa(i), Max: 1, Scale: 1}})
	}
	custom, err := NewMapping(rows...)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("custom", scan(custom))
}
