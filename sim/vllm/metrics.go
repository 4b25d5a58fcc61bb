// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/sim/engine"
)

// hist is a Prometheus histogram. Its last count is that of +Inf.
type hist struct {
	bounds []float64
	counts []uint64 // not cumulative
	sum    float64
	total  uint64
}

func newHist(bounds []float64) *hist {
	return &hist{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *hist) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
	h.total++
}

// seconds observes a duration; clocks that were read in different places may be a step apart, so
// that one below 0 is none.
func (h *hist) seconds(d time.Duration) { h.observe(max(0, d.Seconds())) }

// vLLM's bucket bounds.
var (
	latencyBounds    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	firstTokenBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenBounds      = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	iterationBounds  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	choicesBounds    = []float64{1, 2, 5, 10, 20}
	preemptionBounds = []float64{1, 2, 3, 4, 5, 10, 20}
	httpFineBounds   = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60}
	httpCoarseBounds = []float64{0.1, 0.5, 1}
)

// lengthBounds are vLLM's bounds for lengths in tokens: 1, 2, 5, 10, … up to the context length.
func lengthBounds(most int) []float64 {
	var bounds []float64
	for scale := 1; ; scale *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*scale > most {
				return bounds
			}
			bounds = append(bounds, float64(m*scale))
		}
	}
}

// metrics are the numbers behind the page, apart from the engine's own. They are guarded by the
// server's mutex.
type metrics struct {
	promptLen, outputLen, maxLen, maxTokens, computed *hist // tokens per request
	iteration, choices, preemptions                   *hist
	ttft, itl, tpot                                   *hist // seconds
	e2e, queue, inference, prefill, decode            *hist // seconds
	httpFine                                          *hist // seconds

	stop, length, abort uint64 // requests by the reason of their end

	// As of the page being written:
	stats                                engine.Stats
	running, waiting, capacity, deferred float64
	localCompute                         uint64

	lora  []loraSeries
	http  []httpCount
	tmp   []string
	steps uint64 // ComputedTokens before the last step
}

func newMetrics(maxModelLen int) *metrics {
	lens := lengthBounds(maxModelLen)
	return &metrics{
		promptLen: newHist(lens), outputLen: newHist(lens), maxLen: newHist(lens), maxTokens: newHist(lens), computed: newHist(lens),
		iteration: newHist(iterationBounds), choices: newHist(choicesBounds), preemptions: newHist(preemptionBounds),
		ttft: newHist(firstTokenBounds), itl: newHist(tokenBounds), tpot: newHist(tokenBounds),
		e2e: newHist(latencyBounds), queue: newHist(latencyBounds), inference: newHist(latencyBounds),
		prefill: newHist(latencyBounds), decode: newHist(latencyBounds), httpFine: newHist(httpFineBounds),
	}
}

func (m *metrics) submitted(j *job) {
	m.choices.observe(float64(j.n))
	m.maxTokens.observe(float64(j.speech.max))
	m.maxLen.observe(float64(j.speech.max))
}

// step counts what a step computed.
func (m *metrics) step(e *engine.Engine, _ []engine.Token) {
	computed := e.Stats().ComputedTokens
	m.iteration.observe(float64(computed - m.steps))
	m.steps = computed
}

func (m *metrics) firstToken(s *engine.Seq) { m.ttft.seconds(s.FirstToken - s.Submitted) }

func (m *metrics) token(since time.Duration) { m.itl.seconds(since) }

func (m *metrics) aborted() { m.abort++ }

// finished counts a request that came to its end.
func (m *metrics) finished(s *engine.Seq, reason string) {
	if reason == "stop" {
		m.stop++
	} else {
		m.length++
	}
	m.e2e.seconds(s.Finished - s.Submitted)
	m.queue.seconds(s.Admitted - s.Submitted)
	m.inference.seconds(s.Finished - s.Admitted)
	m.prefill.seconds(s.FirstToken - s.Admitted)
	m.decode.seconds(s.Finished - s.FirstToken)
	m.preemptions.observe(float64(s.Preemptions))
	m.promptLen.observe(float64(s.PromptLen))
	m.computed.observe(float64(s.PromptLen - s.Cached))
	m.outputLen.observe(float64(s.Generated))
	if s.Generated > 1 {
		m.tpot.seconds((s.Finished - s.FirstToken) / time.Duration(s.Generated-1))
	} else {
		m.tpot.observe(0)
	}
}

// maxLoraSeries bounds the series that lora_requests_info leaves behind. vLLM keeps one for every
// combination of adapters there ever was; readers take the newest.
const maxLoraSeries = 32

// loraSeries is one combination of adapters, and when it was last seen.
type loraSeries struct {
	running, waiting string
	at               time.Time
}

// adapters notes which adapters run and wait.
func (m *metrics) adapters(e *engine.Engine) {
	if e.Config().MaxLoRAs == 0 {
		return
	}
	running, waiting := m.names(e, true), m.names(e, false)
	now := time.Now()
	i := slices.IndexFunc(m.lora, func(l loraSeries) bool { return l.running == running && l.waiting == waiting })
	if i >= 0 {
		m.lora[i].at = now
		return
	}
	if len(m.lora) == maxLoraSeries {
		m.lora = slices.Delete(m.lora, 0, 1)
	}
	m.lora = append(m.lora, loraSeries{running, waiting, now})
}

// names lists the adapters of the sequences that run, or wait, in order.
func (m *metrics) names(e *engine.Engine, running bool) string {
	m.tmp = m.tmp[:0]
	e.Each(func(s *engine.Seq, r bool) {
		if r == running && s.Adapter != "" && !slices.Contains(m.tmp, s.Adapter) {
			m.tmp = append(m.tmp, s.Adapter)
		}
	})
	return strings.Join(m.tmp, ",")
}

// httpCount counts the answers of one path by class.
type httpCount struct {
	method, path       string
	ok, client, server uint64
}
