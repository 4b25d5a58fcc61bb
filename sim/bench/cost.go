// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"runtime/metrics"
)

// clientWatch measures what it costs to be the client.
type clientWatch struct{ from []metrics.Sample }

// clientCost is what the Go runtime tells of a run.
type clientCost struct {
	collections uint64
	pause       float64 // the longest, seconds
	wait        float64 // that a goroutine was ready and had no core, 99th percentile, seconds
}

const (
	waits  = "/sched/latencies:seconds"
	pauses = "/sched/pauses/total/gc:seconds"
	cycles = "/gc/cycles/total:gc-cycles"
)

func watchClient() *clientWatch { return &clientWatch{sample()} }

func sample() []metrics.Sample {
	s := []metrics.Sample{{Name: waits}, {Name: pauses}, {Name: cycles}}
	metrics.Read(s)
	return s
}

func (w *clientWatch) stop() clientCost {
	to := sample()
	return clientCost{
		collections: to[2].Value.Uint64() - w.from[2].Value.Uint64(),
		pause:       above(w.from[1].Value.Float64Histogram(), to[1].Value.Float64Histogram(), 1),
		wait:        above(w.from[0].Value.Float64Histogram(), to[0].Value.Float64Histogram(), 0.99),
	}
}

// above is the bound that a share q of what was added between two states of a histogram does not exceed.
func above(from, to *metrics.Float64Histogram, q float64) float64 {
	var n uint64
	for i := range to.Counts {
		n += to.Counts[i] - from.Counts[i]
	}
	rank, seen := uint64(math.Ceil(q*float64(n))), uint64(0)
	for i := range to.Counts {
		seen += to.Counts[i] - from.Counts[i]
		if n > 0 && seen >= rank {
			if b := to.Buckets[i+1]; !math.IsInf(b, 1) {
				return b
			}
			return to.Buckets[i]
		}
	}
	return 0
}
