// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// series reads a page into values by series, and checks its form.
func readPage(t *testing.T, page string) map[string]float64 {
	t.Helper()
	sample := regexp.MustCompile(`^([a-z0-9_:]+(?:\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+\})?) (\S+)$`)
	values := map[string]float64{}
	family := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			family, _, _ = strings.Cut(name, " ")
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], family) {
			t.Fatalf("malformed line, or not of %s: %q", family, line)
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if _, twice := values[m[1]]; err != nil || twice {
			t.Fatalf("bad or repeated: %q", line)
		}
		values[m[1]] = v
	}
	return values
}

// testdata/series.txt holds the vllm: series, with their labels, that a real vLLM 0.32 serving "tiny"
// with a context of 8192 had on its page when it was idle.
func TestPageHasAllSeriesOfVLLM(t *testing.T) {
	want, err := os.ReadFile("testdata/series.txt")
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Models, o.MaxModelLen = []string{"tiny"}, 8192
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	page := string(s.appendPage(nil))
	got := readPage(t, page)
	known := map[string]bool{}
	for line := range strings.Lines(string(want)) {
		line = strings.TrimSpace(line)
		known[line] = true
		if _, ok := got[line]; !ok {
			t.Errorf("missing: %s", line)
		}
	}
	for series := range got {
		if strings.HasPrefix(series, "vllm:") && !known[series] && !strings.HasPrefix(series, "vllm:cache_config_info") {
			t.Errorf("vLLM does not have: %s", series)
		}
	}
	if n := len(page); n < 40_000 || n > 60_000 {
		t.Errorf("%d bytes, a real page has 49,000", n)
	}
}

func TestPageNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.EnableLoRA, o.LoRAModules = true, []Adapter{{"x", "/x"}, {"y", "/y"}}
		r := start(t, o)
		page := func() map[string]float64 {
			_, body := r.ask("GET", "/metrics", "")
			return readPage(t, body)
		}
		go r.ask("POST", "/v1/completions", sixteen+`"max_tokens":3,"model":"x"}`)
		time.Sleep(time.Millisecond)
		go r.ask("POST", "/v1/completions", `{"prompt":"ab","max_tokens":1,"model":"y"}`)
		time.Sleep(29 * time.Millisecond) // the second step runs: 10 ms, 1 token; y has to wait for x
		l := `{engine="0",model_name="sim"}`
		for series, want := range map[string]float64{
			"vllm:num_requests_running" + l: 1,
			"vllm:num_requests_waiting" + l: 1,
			`vllm:num_requests_waiting_by_reason{engine="0",model_name="sim",reason="deferred"}`: 1,
			"vllm:kv_cache_usage_perc" + l:                                                                         5.0 / 64,
			"vllm:generation_tokens_total" + l:                                                                     1,
			"vllm:time_to_first_token_seconds_sum" + l:                                                             0.026,
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="sim"}`:                       0,
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="sim"}`:                       1,
			`vllm:lora_requests_info{max_lora="1",running_lora_adapters="x",waiting_lora_adapters="y"}`:            float64(time.Now().Add(-4*time.Millisecond).UnixMicro()) / 1e6,
			`vllm:cache_config_info{` + regexp.MustCompile(`\{(.*)\} 1.0`).FindStringSubmatch(r.cache(t))[1] + "}": 1,
		} {
			if got, ok := page()[series]; !ok || got != want {
				t.Errorf("%s: got %v (%v), want %v", series, got, ok, want)
			}
		}
		time.Sleep(time.Second)
		for series, want := range map[string]float64{
			"vllm:num_requests_running" + l: 0,
			"vllm:kv_cache_usage_perc" + l:  0,
			"vllm:prompt_tokens_total" + l:  17,
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"}`: 2,
			"vllm:e2e_request_latency_seconds_count" + l:                                       2,
			"vllm:e2e_request_latency_seconds_sum" + l:                                         0.046 + 0.056, // y: 1 ms to 57 ms
			"vllm:inter_token_latency_seconds_sum" + l:                                         0.02,
			"vllm:request_prompt_tokens_sum" + l:                                               17,
			`http_requests_total{handler="/v1/completions",method="POST",status="2xx"}`:        2,
		} {
			if got, ok := page()[series]; !ok || got-want > 1e-9 || want-got > 1e-9 {
				t.Errorf("%s: got %v (%v), want %v", series, got, ok, want)
			}
		}
	})
}

// cache is the line of cache_config_info.
func (r *rig) cache(t *testing.T) string {
	t.Helper()
	_, body := r.ask("GET", "/metrics", "")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "vllm:cache_config_info{") {
			for _, want := range []string{`block_size="4"`, `num_gpu_blocks="64"`} {
				if !strings.Contains(line, want) {
					t.Errorf("no %s in %s", want, line)
				}
			}
			return line
		}
	}
	t.Fatal("no cache_config_info")
	return ""
}

func TestPageBytes(t *testing.T) {
	o := DefaultOptions()
	o.PageBytes = 150_000
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	page := s.appendPage(nil)
	readPage(t, string(page))
	if n := len(page); n < o.PageBytes || n > o.PageBytes+2000 {
		t.Errorf("%d bytes, want a little over %d", n, o.PageBytes)
	}
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{0, "0.0"}, {1, "1.0"}, {0.001, "0.001"}, {0.25, "0.25"}, {123456, "123456.0"}, {2560, "2560.0"},
		{1e6, "1e+06"}, {1234567, "1.234567e+06"}, {1795974143.4512, "1.7959741434512e+09"},
	} {
		if got := string(appendValue(nil, tt.v)); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.v, got, tt.want)
		}
	}
	if got := string(appendCount(nil, 1234567)); got != "1.234567e+06" {
		t.Errorf("count: got %s", got)
	}
}

func TestPageDoesNotAllocate(t *testing.T) {
	s, err := New(DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	buf := s.appendPage(nil)
	if n := testing.AllocsPerRun(100, func() { buf = s.appendPage(buf[:0]) }); n != 0 {
		t.Errorf("%v allocations per page, want 0", n)
	}
}

func BenchmarkPage(b *testing.B) {
	for name, size := range map[string]int{"50KB": 0, "150KB": 150_000} {
		b.Run(name, func(b *testing.B) {
			o := DefaultOptions()
			o.PageBytes = size
			s, err := New(o)
			if err != nil {
				b.Fatal(err)
			}
			buf := s.appendPage(nil)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				buf = s.appendPage(buf[:0])
			}
		})
	}
}
