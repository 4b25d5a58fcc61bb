// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/fleet"
)

func poolDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descMean = [3]*prometheus.Desc{
		poolDesc(prefix+"average_kv_cache_utilization", "Mean use of the KV cache over endpoints with a fresh signal; absent when there is none.", "name"),
		poolDesc(prefix+"average_queue_size", "Mean engine queue over endpoints with a fresh signal; absent when there is none.", "name"),
		poolDesc(prefix+"average_running_requests", "Mean running requests over endpoints with a fresh signal; absent when there is none.", "name"),
	}
	descDev = [3]*prometheus.Desc{
		poolDesc(prefix+"std_dev_kv_cache_utilization", "Standard deviation of the use of the KV cache.", "name"),
		poolDesc(prefix+"std_dev_queue_size", "Standard deviation of the engine queues.", "name"),
		poolDesc(prefix+"std_dev_running_requests", "Standard deviation of the running requests.", "name"),
	}
	descReady     = poolDesc(prefix+"ready_endpoints", "Endpoints with at least one fresh signal.", "name")
	descQueue     = poolDesc(prefix+"per_endpoint_queue_size", "Engine queue; absent when unknown.", "name", "model_server_endpoint")
	descEndpoints = poolDesc("penstock_endpoints", "Endpoints, ready or not.", "pool")
	descStale     = poolDesc("penstock_endpoint_stale", "1 for an endpoint without any fresh signal, with the cause.", "pool", "endpoint", "cause")
	descInFlight  = poolDesc("penstock_endpoint_inflight_requests", "Requests in flight, as we count them.", "pool", "endpoint")
	descTokens    = poolDesc("penstock_endpoint_inflight_tokens", "Estimated prompt tokens in flight, as we count them.", "pool", "endpoint")
	descRequests  = poolDesc(prefix+"inflight_requests", inFlightHelp("Requests"), "endpoint_name", "namespace", "producer_name")
	descWork      = poolDesc(prefix+"inflight_tokens", inFlightHelp("Tokens of work"), "endpoint_name", "namespace", "producer_name")
	descDrift     = poolDesc("penstock_inflight_drift", "Requests in flight on endpoints that no open exchange accounts for; must be 0.")
	descBuffered  = poolDesc("penstock_buffered_bytes", "Memory that request bodies hold.")
)

// whoCounts is who counts what is in flight, in the contract's labels.
const whoCounts = "inflight-load-producer"

func inFlightHelp(what string) string {
	return what + " in flight on an endpoint, as we count them. The field's labels fairness_id and priority are left out: callers make up tenants, and each would be a series of every endpoint."
}

// pools exports what the fleet's snapshot says at the time it is asked. What is unknown is
// left out, since no number says "unknown".
type pools struct{ o *Observer }

// Describe implements [prometheus.Collector].
func (c *pools) Describe(ch chan<- *prometheus.Desc) {
	for i := range descMean {
		ch <- descMean[i]
		ch <- descDev[i]
	}
	for _, d := range []*prometheus.Desc{descReady, descQueue, descEndpoints, descStale, descInFlight, descTokens, descRequests, descWork, descDrift, descBuffered} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *pools) Collect(ch chan<- prometheus.Metric) {
	snap, now := c.o.store.Load(), time.Now()
	causes := c.o.causesOf(snap)
	names := poolNames(snap)
	for _, p := range snap.Pools {
		c.pool(ch, p, names[p.ID], now, causes)
	}
	inFlight(ch, snap)
	if f := c.o.open.Load(); f != nil {
		emit(ch, descDrift, float64(c.o.drift(*f)))
	}
	if f := c.o.buffered.Load(); f != nil {
		emit(ch, descBuffered, float64((*f)()))
	}
}

// inFlight tells what is in flight on each endpoint, once, in however many pools it is.
func inFlight(ch chan<- prometheus.Metric, snap *fleet.Snapshot) {
	seen := map[fleet.ID]bool{}
	for _, p := range snap.Pools {
		for _, e := range p.Endpoints {
			if seen[e.ID] {
				continue
			}
			seen[e.ID] = true
			emit(ch, descRequests, float64(e.Load.Requests()), e.Name, e.Namespace, whoCounts)
			emit(ch, descWork, float64(e.Load.Tokens()), e.Name, e.Namespace, whoCounts)
		}
	}
}

func emit(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	for i, l := range labels {
		labels[i] = cleanName(l)
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (c *pools) pool(ch chan<- prometheus.Metric, p *fleet.Pool, name string, now time.Time, causes map[*fleet.Load]string) {
	pool, ready := p.ID.String(), 0
	names := map[string]int{}
	for _, e := range p.Endpoints {
		names[e.Name]++
	}
	var stats [3]stat
	for _, e := range p.Endpoints {
		id := e.ID.String()
		emit(ch, descInFlight, float64(e.Load.Requests()), pool, id)
		emit(ch, descTokens, float64(e.Load.Tokens()), pool, id)
		if !heard(e, now, c.o.stale) {
			emit(ch, descStale, 1, pool, id, causeOf(e, causes))
			continue
		}
		ready++
		for i, s := range [3]fleet.Signal{e.KVUsage, e.Waiting, e.Running} {
			if s.Fresh(now, c.o.stale) {
				stats[i].add(s.Value)
			}
		}
		if e.Waiting.Fresh(now, c.o.stale) {
			short := e.Name
			if names[short] > 1 {
				short = id
			}
			emit(ch, descQueue, e.Waiting.Value, name, short)
		}
	}
	for i, s := range stats {
		if s.n > 0 {
			emit(ch, descMean[i], s.mean, name)
			emit(ch, descDev[i], math.Sqrt(s.m2/s.n), name)
		}
	}
	emit(ch, descReady, float64(ready), name)
	emit(ch, descEndpoints, float64(len(p.Endpoints)), pool)
}

// stat is a running mean and variance (Welford).
type stat struct{ n, mean, m2 float64 }

func (s *stat) add(v float64) {
	s.n++
	d := v - s.mean
	s.mean += d / s.n
	s.m2 += d * (v - s.mean)
}

// heard reports whether any signal of the endpoint is fresh. Of a whole cluster those are attributes,
// which have no producer; what others find beside the signals does not stand for them.
func heard(e *fleet.Endpoint, now time.Time, stale time.Duration) bool {
	if e.Waiting.Fresh(now, stale) || e.Running.Fresh(now, stale) || e.KVUsage.Fresh(now, stale) {
		return true
	}
	for _, a := range e.Attributes {
		if a.Producer == "" && a.Fresh(now, stale) {
			return true
		}
	}
	return false
}

// causeOf says why a stale endpoint is stale.
func causeOf(e *fleet.Endpoint, causes map[*fleet.Load]string) string {
	switch {
	case causes[e.Load] != "":
		return causes[e.Load]
	case e.Waiting.At.IsZero() && e.Running.At.IsZero() && e.KVUsage.At.IsZero():
		return "never-read"
	}
	return "late"
}

// causesOf copies the causes of the incarnations that the snapshot shows, and forgets the others.
func (o *Observer) causesOf(snap *fleet.Snapshot) map[*fleet.Load]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	alive := make(map[*fleet.Load]string, len(o.causes))
	for _, p := range snap.Pools {
		for _, e := range p.Endpoints {
			if c, ok := o.causes[e.Load]; ok {
				alive[e.Load] = c
			}
		}
	}
	clear(o.causes)
	for l, c := range alive {
		o.causes[l] = c
	}
	return alive
}

// drift is the number of requests that endpoints count and no open exchange accounts for.
// The two are not read at the same moment, so the least of a few looks counts.
func (o *Observer) drift(open func() int64) int64 {
	least := int64(math.MaxInt64)
	for range 4 {
		before := open()
		var held, below int64
		seen := map[*fleet.Load]bool{}
		for _, p := range o.store.Load().Pools {
			for _, e := range p.Endpoints {
				if seen[e.Load] {
					continue
				}
				seen[e.Load] = true
				n := e.Load.Requests()
				held += max(n, 0)
				below += max(-n, 0) // released more often than taken
			}
		}
		least = min(least, below+max(0, held-max(before, open())))
		if least == 0 {
			break
		}
	}
	return least
}
