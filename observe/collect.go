// SPDX-License-Identifier: Apache-2.0

package observe

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"
)

// prefix begins the names of the contract's metrics.
const prefix = "llm_d_epp_"

var perRequest = []string{"fairness_id", "model_name", "priority", "target_model_name"}

func requestDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, append(perRequest[:4:4], more...), nil)
}

// The metrics that have the label set M.
var (
	descTotal        = requestDesc("request_total", "Requests that ended.")
	descErrors       = requestDesc("request_error_total", "Requests that ended with an error.", "error_code")
	descRunning      = requestDesc("request_running", "Requests that run now.")
	descDuration     = requestDesc("request_duration_seconds", "From the request's start to its end, for those that were dispatched.")
	descRequestSize  = requestDesc("request_size_bytes", "Size of the request body.")
	descResponseSize = requestDesc("response_size_bytes", "Size of the answer's body.")
	descInput        = requestDesc("request_input_tokens", "Prompt tokens, as the engine reported.")
	descOutput       = requestDesc("request_output_tokens", "Output tokens, as the engine reported; events with output of streams for which it did not.")
	descCached       = requestDesc("request_cached_tokens", "Prompt tokens read from cache, as the engine reported.")
	descNTPOT        = requestDesc("request_ntpot_seconds", "Duration divided by the output tokens, for complete answers.")
	descTTFT         = requestDesc("request_ttft_seconds", "From the request's start to the first token.", "streaming")
	descTPOT         = requestDesc("request_streaming_tpot_seconds", "Time per output token after the first, of streamed answers.")
	descITL          = requestDesc("request_streaming_itl_seconds", "Time between one piece of a streamed answer and the next.")
)

// Describe implements [prometheus.Collector].
func (t *table) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descTotal, descErrors, descRunning, descDuration, descRequestSize, descResponseSize, descInput,
		descOutput, descCached, descNTPOT, descTTFT, descTPOT, descITL,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. A histogram that nothing was observed in is left out.
func (t *table) Collect(ch chan<- prometheus.Metric) {
	for _, s := range t.all() {
		ch <- sample{descRunning, gauge(float64(s.running.Load()), s.pairs)}
		if n := s.total.Load(); n > 0 {
			ch <- sample{descTotal, counter(n, s.pairs)}
		}
		for i := range s.errors {
			if n := s.errors[i].Load(); n > 0 {
				ch <- sample{descErrors, counter(n, insert(s.pairs, 0, "error_code", errorCodes[i]))}
			}
		}
		for _, x := range []struct {
			desc *prometheus.Desc
			h    *hist
		}{
			{descDuration, &s.duration}, {descRequestSize, &s.requestSize}, {descResponseSize, &s.responseSize},
			{descInput, &s.input}, {descOutput, &s.output}, {descCached, &s.cached},
			{descNTPOT, &s.ntpot}, {descTPOT, &s.tpot}, {descITL, &s.itl},
		} {
			if h, any := x.h.write(); any {
				ch <- sample{x.desc, &dto.Metric{Label: s.pairs, Histogram: h}}
			}
		}
		for i, streaming := range []string{"false", "true"} {
			if h, any := s.ttft[i].write(); any {
				ch <- sample{descTTFT, &dto.Metric{Label: insert(s.pairs, 3, "streaming", streaming), Histogram: h}}
			}
		}
	}
}

// sample is one rendered metric.
type sample struct {
	desc *prometheus.Desc
	m    *dto.Metric
}

// Desc implements [prometheus.Metric].
func (s sample) Desc() *prometheus.Desc { return s.desc }

// Write implements [prometheus.Metric].
func (s sample) Write(m *dto.Metric) error {
	m.Label, m.Gauge, m.Counter, m.Histogram = s.m.Label, s.m.Gauge, s.m.Counter, s.m.Histogram
	return nil
}

func gauge(v float64, l []*dto.LabelPair) *dto.Metric {
	return &dto.Metric{Label: l, Gauge: &dto.Gauge{Value: &v}}
}

func counter(n uint64, l []*dto.LabelPair) *dto.Metric {
	v := float64(n)
	return &dto.Metric{Label: l, Counter: &dto.Counter{Value: &v}}
}

// insert adds a label at its place in the order of names, which is what the registry wants.
func insert(l []*dto.LabelPair, at int, name, value string) []*dto.LabelPair {
	more := make([]*dto.LabelPair, 0, len(l)+1)
	more = append(more, l[:at]...)
	return append(append(more, pair(name, value)), l[at:]...)
}
