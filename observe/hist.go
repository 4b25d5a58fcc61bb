// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// The buckets of the contract's histograms.
var (
	sizeBounds     = doubling(64, 25)                                                                         // 64 B to 1 GiB
	responseBounds = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536}  // 32778 as the field has it
	tokenBounds    = append(responseBounds[:len(responseBounds):len(responseBounds)], doubling(131072, 4)...) // to 1,048,576
	outputBounds   = responseBounds[:12]                                                                      // to 8192
	durationBounds = append(ttftBounds[:len(ttftBounds):len(ttftBounds)], 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
	ttftBounds     = []float64{.005, .025, .05, .1, .2, .4, .6, .8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120}
	ntpotBounds    = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}
	tpotBounds     = []float64{.0005, .00205, .005, .01, .02, .04, .06, .08, .1, .125, .15, .2, .3, .4, .5, .6, .8, 1, 2}
	itlBounds      = gapBounds[:]
	shortBounds    = []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1}
	streamBounds   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	requestBounds  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	answerBounds   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
)

var gapBounds = [...]float64{.001, .005, .01, .02, .04, .06, .08, .1, .15, .2, .3, .5, .75, 1, 2}

// Gaps counts the times between one piece of a streamed answer and the next.
// The zero Gaps has counted none.
type Gaps struct {
	counts [len(gapBounds) + 1]uint32
	sum    time.Duration
}

// Add counts one gap.
func (g *Gaps) Add(d time.Duration) { g.add(d, 1) }

func (g *Gaps) add(d time.Duration, n uint32) {
	i, s := 0, d.Seconds()
	for i < len(gapBounds) && s > gapBounds[i] {
		i++
	}
	g.counts[i] += n
	g.sum += d * time.Duration(n)
}

func doubling(from float64, n int) []float64 {
	b := make([]float64, n)
	for i := range b {
		b[i], from = from, from*2
	}
	return b
}

// hist is a histogram that costs one atomic addition and one exchange per observation.
type hist struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds
	sum    atomic.Uint64   // bits of a float64
}

func (h *hist) init(bounds []float64, slab []atomic.Uint64) []atomic.Uint64 {
	n := len(bounds) + 1
	h.bounds, h.counts = bounds, slab[:n:n]
	return slab[n:]
}

func (h *hist) observe(v float64) {
	i, j := 0, len(h.bounds)
	for i < j { // the first bound that is not below v
		if m := int(uint(i+j) >> 1); h.bounds[m] < v {
			i = m + 1
		} else {
			j = m
		}
	}
	h.counts[i].Add(1)
	h.add(v)
}

func (h *hist) add(v float64) {
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

func (h *hist) addGaps(g *Gaps) {
	for i, n := range g.counts {
		if n > 0 {
			h.counts[i].Add(uint64(n))
		}
	}
	h.add(g.sum.Seconds())
}

// write renders the histogram; it reports false when nothing was ever observed.
func (h *hist) write() (*dto.Histogram, bool) {
	var total uint64
	buckets := make([]dto.Bucket, len(h.bounds))
	list := make([]*dto.Bucket, len(h.bounds))
	cum := make([]uint64, len(h.bounds))
	for i := range h.bounds {
		total += h.counts[i].Load()
		cum[i] = total
		buckets[i].CumulativeCount, buckets[i].UpperBound = &cum[i], &h.bounds[i]
		list[i] = &buckets[i]
	}
	total += h.counts[len(h.bounds)].Load()
	sum := math.Float64frombits(h.sum.Load())
	return &dto.Histogram{SampleCount: &total, SampleSum: &sum, Bucket: list}, total > 0
}
