// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock-project/penstock/fleet"
)

func flowDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+"flow_control_"+name, help, labels, nil)
}

const pooled = "inference_pool"

var (
	descWaited = flowDesc("request_queue_duration_seconds", "From entering flow control to the end of the wait, for all who entered.",
		"fairness_id", pooled, "model_name", "outcome", "priority", "target_model_name")
	descEntered     = flowDesc("request_enqueue_duration_seconds", "Our own work on a request that enters, with its outcome there and then: NotYetFinalized when it waits.", "fairness_id", "outcome", "priority")
	descLooked      = flowDesc("dispatch_cycle_duration_seconds", "One look for room, in which those go that have it.")
	descQueueSize   = flowDesc("queue_size", "Requests that wait. A series without a tenant is always there, and 0, for each band.", "fairness_id", pooled, "model_name", "priority", "target_model_name")
	descQueueBytes  = flowDesc("queue_bytes", "Memory of the requests that wait.", "fairness_id", pooled, "model_name", "priority", "target_model_name")
	descSaturation  = flowDesc("pool_saturation", "Mean of how full endpoints are, 1 is full: effective of all, which is what ceilings are compared with; decode and prefill of those that serve the stage, where there are any.", pooled, "stage")
	descUnknown     = flowDesc("stale_endpoints", "Endpoints whose signals the detector takes for unknown.", "detector")
	descBandRoom    = flowDesc("capacity_utilization_requests", "Used share of a band's bound on requests.", pooled, "priority")
	descBandBytes   = flowDesc("capacity_utilization_bytes", "Used share of a band's bound on bytes.", pooled, "priority")
	descAllRoom     = flowDesc("global_capacity_utilization_requests", "Used share of a pool's bound on requests; absent without a bound.", pooled)
	descAllBytes    = flowDesc("global_capacity_utilization_bytes", "Used share of a pool's bound on bytes; absent without a bound.", pooled)
	descEnds        = flowDesc("requests_total", "Requests by how their wait ended, of whatever length.", pooled, "outcome", "priority")
	descIssued      = flowDesc("revocations_issued_total", "Requests asked back after dispatch, by the priority that they were to make room for.", pooled, "priority")
	descRevocations = flowDesc("revocations_total", "Requests asked back after dispatch: confirmed when they ended, timed_out when they were given up on.", pooled, "outcome")
	descTarget      = flowDesc("reclaim_target", "Of the requests that may be taken back, what those who wait with a higher priority could use.", pooled)
	descPending     = flowDesc("pending_reclaim", "Requests asked back that have not ended.", pooled)
	descConfirmed   = flowDesc("revocation_confirmation_seconds", "From asking a request back to its end.", pooled)

	descJain     = poolDesc(prefix+"program_aware_jains_fairness_index", "Jain's index of the service that programs attained, 1 when it is equal; of several pools the lowest.")
	descProgram  = poolDesc(prefix+"program_aware_avg_wait_time_milliseconds", "Mean wait of a program's requests; of several pools the longest.", "program_id")
	descAttained = poolDesc(prefix+"program_aware_attained_service_tokens", "Service that a program attained of late, in weighted tokens.", "program_id")
)

// Describe implements [prometheus.Collector].
func (c *queues) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descWaited, descEntered, descLooked, descQueueSize, descQueueBytes, descSaturation, descUnknown,
		descBandRoom, descBandBytes, descAllRoom, descAllBytes, descEnds, descIssued, descRevocations, descTarget, descPending, descConfirmed,
		descJain, descProgram, descAttained} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. Without a queue there is nothing.
func (c *queues) Collect(ch chan<- prometheus.Metric) {
	views := c.o.looks()
	if len(views) == 0 {
		return
	}
	names := poolNames(c.o.store.Load())
	unknown := map[string]int{}
	var measured []MeasureView
	for i := range views {
		v := &views[i]
		name, ok := names[v.Pool]
		if !ok {
			name = v.Pool.Name
		}
		c.gauges(ch, v, name)
		c.o.Queue(v.Pool).collect(ch, v, name)
		unknown[v.Detector] += v.Unknown
		measured = append(measured, v.Measured...)
	}
	for detector, n := range unknown {
		emit(ch, descUnknown, float64(n), detector)
	}
	c.programs(ch, measured)
	c.entered(ch)
	m, _ := c.looked.write()
	ch <- sample{descLooked, &dto.Metric{Histogram: m}}
}

// poolNames are the pools as the contract's labels name them: with their namespace only where it is needed.
func poolNames(snap *fleet.Snapshot) map[fleet.ID]string {
	names, out := map[string]int{}, map[fleet.ID]string{}
	for _, p := range snap.Pools {
		names[p.Name]++
	}
	for _, p := range snap.Pools {
		out[p.ID] = p.Name
		if names[p.Name] > 1 {
			out[p.ID] = p.ID.String()
		}
	}
	return out
}

// gauges tells how one queue is.
func (c *queues) gauges(ch chan<- prometheus.Metric, v *QueueView, name string) {
	type amount struct{ requests, bytes int64 }
	waits := map[Labels]amount{}
	for _, b := range v.Bands {
		priority := strconv.Itoa(b.Priority)
		waits[Labels{Priority: b.Priority}] = amount{}
		emit(ch, descBandRoom, share(b.Waiting, b.MaxRequests), name, priority)
		emit(ch, descBandBytes, share(b.Bytes, b.MaxBytes), name, priority)
	}
	for _, w := range v.Waits {
		l := c.o.table.of(w.Labels).labels
		a := waits[l]
		waits[l] = amount{a.requests + w.Requests, a.bytes + w.Bytes}
	}
	for l, a := range waits {
		priority := strconv.Itoa(l.Priority)
		emit(ch, descQueueSize, float64(a.requests), l.Tenant, name, l.Model, priority, l.Target)
		emit(ch, descQueueBytes, float64(a.bytes), l.Tenant, name, l.Model, priority, l.Target)
	}
	if v.MaxRequests > 0 {
		emit(ch, descAllRoom, share(v.Waiting, v.MaxRequests), name)
	}
	if v.MaxBytes > 0 {
		emit(ch, descAllBytes, share(v.Bytes, v.MaxBytes), name)
	}
	emit(ch, descSaturation, v.Saturation, name, "effective")
	for stage, s := range v.Stages {
		emit(ch, descSaturation, s, name, stage)
	}
	if l := v.Leases; l != nil {
		emit(ch, descTarget, float64(l.Target), name)
		emit(ch, descPending, float64(l.Pending), name)
	}
}

func share(of, bound int64) float64 {
	if bound <= 0 {
		return 0
	}
	return float64(of) / float64(bound)
}

// programs tells what fairness policies measured.
func (c *queues) programs(ch chan<- prometheus.Metric, measured []MeasureView) {
	index, known := 1.0, false
	type service struct{ wait, attained float64 }
	all := map[string]service{}
	for _, m := range measured {
		if m.Known {
			index, known = min(index, m.Evenness), true
		}
		for _, p := range m.Programs {
			name := c.o.table.tenant(p.Program)
			s := all[name]
			all[name] = service{max(s.wait, p.WaitMS), s.attained + p.Attained}
		}
	}
	if known {
		emit(ch, descJain, index)
	}
	for name, s := range all {
		emit(ch, descProgram, s.wait, name)
		emit(ch, descAttained, s.attained, name)
	}
}

// tenant is a tenant as exported.
func (t *table) tenant(v string) string {
	v = clean(v)
	t.mu.Lock()
	defer t.mu.Unlock()
	return take(t.tenants, v)
}

// entered tells how long entering took, by tenant and priority: what differs in the models is one.
func (c *queues) entered(ch chan<- prometheus.Metric) {
	type key struct {
		tenant            string
		priority, outcome int
	}
	all := map[key]*hist{}
	for _, s := range c.o.table.all() {
		for outcome := range s.entered {
			if h := s.entered[outcome].Load(); h != nil {
				k := key{s.labels.Tenant, s.labels.Priority, outcome}
				if all[k] == nil {
					all[k] = newHist(shortBounds)
				}
				all[k].join(h)
			}
		}
	}
	for k, h := range all {
		if m, any := h.write(); any {
			ch <- sample{descEntered, &dto.Metric{Histogram: m, Label: []*dto.LabelPair{
				pair("fairness_id", k.tenant), pair("outcome", outcomes[k.outcome]), pair("priority", strconv.Itoa(k.priority)),
			}}}
		}
	}
}

// join adds what another histogram of the same bounds counted.
func (h *hist) join(o *hist) {
	for i := range o.counts {
		h.counts[i].Add(o.counts[i].Load())
	}
	h.add(math.Float64frombits(o.sum.Load()))
}

// collect tells what was counted. Counters of bands that there are begin at 0, so that the first step counts.
func (q *Queue) collect(ch chan<- prometheus.Metric, v *QueueView, name string) {
	type end struct{ priority, outcome int }
	ends := map[end]uint64{}
	for _, b := range v.Bands {
		for outcome := range stillWaits {
			ends[end{b.Priority, outcome}] = 0
		}
	}
	for _, s := range q.o.table.all() {
		here := s.found(q)
		if here == nil {
			continue
		}
		for outcome := range here.waits {
			h := here.waits[outcome].Load()
			if h == nil {
				continue
			}
			m, any := h.write()
			if !any {
				continue
			}
			l := s.labels
			ends[end{l.Priority, outcome}] += m.GetSampleCount()
			ch <- sample{descWaited, &dto.Metric{Histogram: m, Label: []*dto.LabelPair{
				pair("fairness_id", l.Tenant), pair(pooled, cleanName(name)), pair("model_name", l.Model), pair("outcome", outcomes[outcome]),
				pair("priority", strconv.Itoa(l.Priority)), pair("target_model_name", l.Target),
			}}}
		}
	}
	for k, n := range ends {
		count(ch, descEnds, n, name, outcomes[k.outcome], strconv.Itoa(k.priority))
	}
	q.revocations(ch, v, name)
}

func (q *Queue) revocations(ch chan<- prometheus.Metric, v *QueueView, name string) {
	q.mu.RLock()
	for priority, n := range q.issued {
		count(ch, descIssued, n.Load(), name, strconv.Itoa(priority))
	}
	q.mu.RUnlock()
	confirmed, timedOut := q.confirmed.Load(), q.timedOut.Load()
	if v.Leases == nil && confirmed+timedOut == 0 {
		return
	}
	count(ch, descRevocations, confirmed, name, "confirmed")
	count(ch, descRevocations, timedOut, name, "timed_out")
	m, _ := q.confirmation.write()
	ch <- sample{descConfirmed, &dto.Metric{Histogram: m, Label: []*dto.LabelPair{pair(pooled, cleanName(name))}}}
}

func count(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	for i, l := range labels {
		labels[i] = cleanName(l)
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}
