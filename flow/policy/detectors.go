// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
)

// ConcurrencyDetector counts what we have in flight at each endpoint, places kept for requests on their way
// included. An endpoint has room below its bound; the pool is full when all its endpoints are. It needs no
// signal, so that none can be stale. As a filter it keeps the endpoints below the bounds, widened by headroom, if
// any.
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
// The same room is not promised twice: what was sent since the last look at an endpoint counts as waiting. Of it as many
// as were seen to run there are taken to run, too, the fewer of them the longer its queue was: an engine with a queue has
// no free places, one without may have some. An endpoint whose signals are unknown, because they are missing or older than
// metricsStalenessThreshold, is neither full nor idle: it is judged by what we have in flight there against
// unknownConcurrency. The default threshold is the gateway's own, as a late look alone says nothing about load.
//
// As a filter it keeps the endpoints below the bounds, widened by headroom, and all of them where none is.
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
	switch {
	case d.QueueDepthThreshold <= 0:
		return errors.New("queueDepthThreshold: must be above 0")
	case d.KVCacheUtilThreshold <= 0 || d.KVCacheUtilThreshold > 1:
		return errors.New("kvCacheUtilThreshold: must be above 0 and at most 1")
	case d.Headroom < 0:
		return errors.New("headroom: must not be below 0")
	case d.UnknownConcurrency <= 0:
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
	return d.fill(v.Endpoint, v.Now, d.stale(v.Stale), v.Requests, v.Requests-v.Load.Requests()), 1
}

// stale is the age beyond which a signal is unknown, the gateway's own unless another was asked for.
func (d *UtilizationDetector) stale(gateways time.Duration) time.Duration {
	if d.MetricsStalenessThreshold > 0 {
		return time.Duration(d.MetricsStalenessThreshold)
	}
	return gateways
}

// fill tells how full an endpoint is that has requests of ours, of which kept are on their way.
func (d *UtilizationDetector) fill(e *fleet.Endpoint, now time.Time, stale time.Duration, requests, kept int64) (fill float64) {
	queue, kv := e.Waiting.Fresh(now, stale), e.KVUsage.Fresh(now, stale)
	if !queue && !kv {
		return float64(requests) / float64(d.UnknownConcurrency)
	}
	if queue {
		waiting, unseen := max(0, e.Waiting.Value), float64(kept+e.Unseen(now, stale))
		if e.Running.Fresh(now, stale) {
			unseen = max(0, unseen-e.Running.Value*max(0, 1-waiting/d.QueueDepthThreshold))
		}
		fill = (waiting + unseen) / d.QueueDepthThreshold
	}
	if kv {
		fill = max(fill, e.KVUsage.Value/d.KVCacheUtilThreshold)
	}
	return fill
}

// Unknown implements [flow.Blind].
func (d *UtilizationDetector) Unknown(v flow.View) bool {
	stale := d.stale(v.Stale)
	return !v.Waiting.Fresh(v.Now, stale) && !v.KVUsage.Fresh(v.Now, stale)
}

// Lag implements [flow.Lagging]: the next look at the endpoint, and the time an engine takes to let go.
func (d *UtilizationDetector) Lag() time.Duration { return 300 * time.Millisecond }
