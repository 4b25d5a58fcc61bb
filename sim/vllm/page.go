// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// page is the metrics page in a form that is quick to write: everything that does not change is text
// made once, and a scrape appends that text and the numbers between. A fleet of simulated engines is
// scraped thousands of times a second on one machine.
type page struct {
	lines []line
	tail  []byte // after the last number
	text  []byte // while building: what comes before the next number
	model string // the labels engine and model_name, apart for what sorts between
	at    string // creation time, as a sample
	max   string // the value of the label max_lora
}

// line is constant text and the number after it.
type line struct {
	text  []byte
	count *uint64  // a counter
	value *float64 // a gauge or a sum
	hist  *hist    // bucket number of a histogram, cumulative
	le    int
	lora  bool // the series of lora_requests_info, which vary
}

var pages = sync.Pool{New: func() any { return new([]byte) }}

func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request) int {
	buf := pages.Get().(*[]byte)
	defer pages.Put(buf)
	*buf = s.appendPage((*buf)[:0])
	h := w.Header()
	h.Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(*buf)))
	_, _ = w.Write(*buf)
	return http.StatusOK
}

// appendPage appends the metrics page as it is now.
func (s *Server) appendPage(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.gauges(s.engine.Stats())
	return s.page.append(b, s.metrics)
}

func (p *page) append(b []byte, m *metrics) []byte {
	b = slices.Grow(b, len(p.lines)*100+len(p.tail))
	cumulative := uint64(0)
	for i := range p.lines {
		l := &p.lines[i]
		b = append(b, l.text...)
		switch {
		case l.hist != nil:
			if l.le == 0 {
				cumulative = 0
			}
			cumulative += l.hist.counts[l.le]
			b = appendCount(b, cumulative)
		case l.count != nil:
			b = appendCount(b, *l.count)
		case l.value != nil:
			b = appendValue(b, *l.value)
		case l.lora:
			b = p.appendLora(b, m)
			continue
		}
		b = append(b, '\n')
	}
	return append(b, p.tail...)
}

func (p *page) appendLora(b []byte, m *metrics) []byte {
	for _, l := range m.lora {
		b = append(b, `vllm:lora_requests_info{max_lora="`...)
		b = append(b, p.max...)
		b = append(b, `",running_lora_adapters=`...)
		b = strconv.AppendQuote(b, l.running)
		b = append(b, `,waiting_lora_adapters=`...)
		b = strconv.AppendQuote(b, l.waiting)
		b = append(b, '}', ' ')
		b = appendValue(b, float64(l.at.UnixMicro())/1e6)
		b = append(b, '\n')
	}
	return b
}

// appendCount writes a count as Prometheus' Python client does: a float with one decimal.
func appendCount(b []byte, n uint64) []byte {
	if n >= 1e6 {
		return appendValue(b, float64(n))
	}
	return append(strconv.AppendUint(b, n, 10), '.', '0')
}

// appendValue writes a number as Prometheus' Python client does.
func appendValue(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.Abs(v) >= 1e6:
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	case v == math.Trunc(v):
		return append(strconv.AppendInt(b, int64(v), 10), '.', '0')
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// family begins a metric.
func (p *page) family(name, kind, help string) {
	p.text = fmt.Appendf(p.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (p *page) add(l line, series string) {
	l.text = slices.Clip(append(append(p.text, series...), ' '))
	p.text = nil
	p.lines = append(p.lines, l)
}

// fixed writes a series that never changes.
func (p *page) fixed(series, value string) {
	p.text = append(append(append(append(p.text, series...), ' '), value...), '\n')
}

// labels are the model's labels with one more, in the alphabetical order of the Python client.
func (p *page) labels(name, value string) string {
	all := []string{`engine="0"`, p.model}
	if name != "" {
		all = append(all, name+"="+strconv.Quote(value))
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ",") + "}"
}

// series of a counter or gauge: a value of its label, and where its number is; nil is always 0.
type series struct {
	label string
	count *uint64
	value *float64
}

func (p *page) number(name string, s series, label string) {
	at := name + p.labels(label, s.label)
	if s.count == nil && s.value == nil {
		p.fixed(at, "0.0")
		return
	}
	p.add(line{count: s.count, value: s.value}, at)
}

func (p *page) gauge(name, help, label string, all ...series) {
	p.family(name, "gauge", help)
	for _, s := range all {
		p.number(name, s, label)
	}
}

func (p *page) counter(name, help, label string, all ...series) {
	p.family(name+"_total", "counter", help)
	for _, s := range all {
		p.number(name+"_total", s, label)
	}
	p.family(name+"_created", "gauge", help)
	for _, s := range all {
		p.fixed(name+"_created"+p.labels(label, s.label), p.at)
	}
}

func (p *page) histogram(name, help string, h *hist) {
	p.family(name, "histogram", help)
	for i := range h.counts {
		p.add(line{hist: h, le: i}, name+"_bucket"+p.labels("le", le(h, i)))
	}
	p.add(line{count: &h.total}, name+"_count"+p.labels("", ""))
	p.add(line{value: &h.sum}, name+"_sum"+p.labels("", ""))
	p.family(name+"_created", "gauge", help)
	p.fixed(name+"_created"+p.labels("", ""), p.at)
}

func le(h *hist, i int) string {
	if i == len(h.bounds) {
		return "+Inf"
	}
	return string(appendValue(nil, h.bounds[i]))
}

// newPage lays the page out, in vLLM's order.
func newPage(o *Options, m *metrics, began time.Time) *page {
	p := &page{
		model: "model_name=" + strconv.Quote(o.Models[0]),
		at:    string(appendValue(nil, float64(began.UnixMicro())/1e6)),
		max:   strconv.Itoa(o.MaxLoRAs),
	}
	p.process()
	p.state(m)
	p.counters(m)
	p.histograms(m)
	if o.EnableLoRA {
		p.family("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
		p.add(line{lora: true}, "")
		last := &p.lines[len(p.lines)-1]
		last.text = last.text[:len(last.text)-1] // no blank: whole lines follow
	}
	p.cacheConfig(o)
	p.http(m)
	p.pad(o.PageBytes)
	p.tail = slices.Clip(p.text)
	p.text = nil
	return p
}
