// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/flow"
)

// ConcurrencyDetector counts what we have in flight at each endpoint, places kept for requests on their way
// included. An endpoint has room below its bound; the pool is full when all its endpoints are. It needs no
// signal, so that none can be stale.
type ConcurrencyDetector struct {
	// MaxConcurrency is how many requests an endpoint takes.
	MaxConcurrency int64 `json:"maxConcurrency"`
	// MaxTokenConcurrency is how many tokens of work an endpoint takes: prompt tokens that are not cached, until the
	// answer begins.
	MaxTokenConcurrency int64 `json:"maxTokenConcurrency"`
	// ConcurrencyMode says what counts: requests, tokens, or hybrid for both.
	ConcurrencyMode string `json:"concurrencyMode"`
	// Headroom widens the bounds where the detector is used as a filter, as a share of them.
	Headroom float64 `json:"headroom"`
	// InFlightLoadProducerName names the producer that counts; empty for the only one.
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
}

// Validate reports bounds that let nobody pass.
func (d *ConcurrencyDetector) Validate() error {
	switch {
	case d.MaxConcurrency <= 0:
		return errors.New("maxConcurrency: must be above 0")
	case d.MaxTokenConcurrency <= 0:
		return errors.New("maxTokenConcurrency: must be above 0")
	case d.Headroom < 0:
		return errors.New("headroom: must not be below 0")
	case d.ConcurrencyMode != "requests" && d.ConcurrencyMode != "tokens" && d.ConcurrencyMode != "hybrid":
		return fmt.Errorf("concurrencyMode: want requests, tokens or hybrid, got %q", d.ConcurrencyMode)
	}
	return nil
}

// Room implements [flow.Detector]. A request that is larger than the bound has room where nothing is in flight.
func (d *ConcurrencyDetector) Room(v flow.View, tokens int64) bool {
	if d.ConcurrencyMode != "tokens" && v.Requests >= d.MaxConcurrency {
		return false
	}
	return d.ConcurrencyMode == "requests" || v.Requests == 0 || v.Tokens+tokens <= d.MaxTokenConcurrency
}

// Fill implements [flow.Detector]. Endpoints have equal bounds, and so equal weights.
func (d *ConcurrencyDetector) Fill(v flow.View) (fill, weight float64) {
	requests, tokens := float64(v.Requests)/float64(d.MaxConcurrency), float64(v.Tokens)/float64(d.MaxTokenConcurrency)
	switch d.ConcurrencyMode {
	case "requests":
		return requests, 1
	case "tokens":
		return tokens, 1
	}
	return max(requests, tokens), 1
}

// UtilizationDetector reads the endpoints' own signals: an endpoint is full when its queue or its KV cache is.
//
// Between two looks at an endpoint the requests sent since count as waiting, as many as twice what runs there:
// the same room is not promised twice. An endpoint whose signals are unknown is judged by what we have in flight
// there against unknownConcurrency: it is neither full nor idle.
type UtilizationDetector struct {
	// QueueDepthThreshold is the number of waiting requests that makes an endpoint full.
	QueueDepthThreshold float64 `json:"queueDepthThreshold"`
	// KVCacheUtilThreshold is the used share of the KV cache that makes an endpoint full, above 0 and at most 1.
	KVCacheUtilThreshold float64 `json:"kvCacheUtilThreshold"`
	// MetricsStalenessThreshold is the age beyond which a signal is unknown; 0s for the gateway's own.
	MetricsStalenessThreshold api.Duration `json:"metricsStalenessThreshold"`
	// Headroom widens the bounds where the detector is used as a filter, as a share of them.
	Headroom float64 `json:"headroom"`
	// UnknownConcurrency is how many requests of ours an endpoint takes whose signals are unknown.
	UnknownConcurrency int64 `json:"unknownConcurrency"`
}

// Validate reports bounds that let nobody pass.
func (d *UtilizationDetector) Validate() error {
	if d.UnknownConcurrency == 0 {
		d.UnknownConcurrency = 100
	}
	switch {
	case d.QueueDepthThreshold <= 0:
		return errors.New("queueDepthThreshold: must be above 0")
	case d.KVCacheUtilThreshold <= 0 || d.KVCacheUtilThreshold > 1:
		return errors.New("kvCacheUtilThreshold: must be above 0 and at most 1")
	case d.Headroom < 0:
		return errors.New("headroom: must not be below 0")
	case d.UnknownConcurrency < 0:
		return errors.New("unknownConcurrency: must be above 0")
	}
	return nil
}

// Room implements [flow.Detector].
func (d *UtilizationDetector) Room(v flow.View, _ int64) bool {
	fill, _ := d.Fill(v)
	return fill < 1
}

// Fill implements [flow.Detector].
func (d *UtilizationDetector) Fill(v flow.View) (fill, weight float64) {
	stale := d.stale(v)
	queue, kv := v.Waiting.Fresh(v.Now, stale), v.KVUsage.Fresh(v.Now, stale)
	if !queue && !kv {
		return float64(v.Requests) / float64(d.UnknownConcurrency), 1
	}
	if queue {
		unseen := float64(v.Requests - v.Load.Requests() + v.Unseen(v.Now, stale))
		if v.Running.Fresh(v.Now, stale) {
			unseen = max(0, unseen-v.Running.Value)
		}
		fill = (v.Waiting.Value + unseen) / d.QueueDepthThreshold
	}
	if kv {
		fill = max(fill, v.KVUsage.Value/d.KVCacheUtilThreshold)
	}
	return fill, 1
}

// Unknown implements [flow.Blind].
func (d *UtilizationDetector) Unknown(v flow.View) bool {
	stale := d.stale(v)
	return !v.Waiting.Fresh(v.Now, stale) && !v.KVUsage.Fresh(v.Now, stale)
}

func (d *UtilizationDetector) stale(v flow.View) time.Duration {
	if d.MetricsStalenessThreshold > 0 {
		return time.Duration(d.MetricsStalenessThreshold)
	}
	return v.Stale
}

// Lag implements [flow.Lagging]: the next look at the endpoint, and the time an engine takes to let go.
func (d *UtilizationDetector) Lag() time.Duration { return 300 * time.Millisecond }
