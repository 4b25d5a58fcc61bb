// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/fleet"
)

// maxAttempts bounds the series of scheduler_attempts_total. When it is reached those of
// endpoints that are gone are given up; when that does not help, the endpoint is Other.
const maxAttempts = 4096

var descAttempts = prometheus.NewDesc(prefix+"scheduler_attempts_total", "Decisions, by the endpoint that was chosen.",
	[]string{"status", "target_model_name", "endpoint_name", "namespace", "port"}, nil)

// attempts counts decisions by the endpoint that was chosen.
type attempts struct {
	store *fleet.Store

	mu     sync.RWMutex
	counts map[attempt]*atomic.Uint64
}

// attempt is a series. Without an endpoint the attempt failed. An endpoint whose pod is made again has another address
// and the same series.
type attempt struct{ target, endpoint, port string }

func (a *attempts) init(store *fleet.Store) {
	a.store, a.counts = store, map[attempt]*atomic.Uint64{}
}

func (a *attempts) count(target string, o *Outcome) {
	k := attempt{target: target, endpoint: o.Endpoint}
	if i := strings.LastIndexByte(o.Address, ':'); i >= 0 && o.Endpoint != "" {
		k.port = o.Address[i+1:]
	}
	a.mu.RLock()
	n := a.counts[k]
	a.mu.RUnlock()
	if n == nil {
		n = a.admit(k)
	}
	n.Add(1)
}

func (a *attempts) admit(k attempt) *atomic.Uint64 {
	k.endpoint, k.port = cleanName(k.endpoint), cleanName(k.port)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.counts) >= maxAttempts && a.counts[k] == nil {
		a.sweep()
		if len(a.counts) >= maxAttempts && k.endpoint != "" {
			k.endpoint, k.port = Other, ""
		}
	}
	n := a.counts[k]
	if n == nil {
		n = new(atomic.Uint64)
		a.counts[k] = n
	}
	return n
}

func (a *attempts) sweep() {
	alive := map[string]bool{"": true, Other: true}
	for _, p := range a.store.Load().Pools {
		for _, e := range p.Endpoints {
			alive[cleanName(e.ID.String())] = true
		}
	}
	for k := range a.counts {
		if !alive[k.endpoint] {
			delete(a.counts, k)
		}
	}
}

// Describe implements [prometheus.Collector].
func (a *attempts) Describe(ch chan<- *prometheus.Desc) { ch <- descAttempts }

// Collect implements [prometheus.Collector].
func (a *attempts) Collect(ch chan<- prometheus.Metric) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for k, n := range a.counts {
		status := "success"
		if k.endpoint == "" {
			status = "failure"
		}
		namespace, name, ok := strings.Cut(k.endpoint, "/")
		if !ok {
			namespace, name = "", k.endpoint
		}
		ch <- prometheus.MustNewConstMetric(descAttempts, prometheus.CounterValue, float64(n.Load()), status, k.target, name, namespace, k.port)
	}
}
