// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

// Kube counts what happens between us and an API server.
type Kube struct {
	failed  *prometheus.CounterVec
	differs *prometheus.GaugeVec
	leads   *prometheus.GaugeVec
}

func newKube() Kube {
	return Kube{
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_kube_errors_total",
			Help: "Requests to the API server that failed, by what they asked for."}, []string{"resource", "verb", "reason"}),
		differs: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_kube_list_difference",
			Help: "Objects that only we or only the API server has, at the last comparison; must be 0."}, []string{"resource", "namespace"}),
		leads: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_kube_leads",
			Help: "1 while requests should come to this picker, 0 while another leads; only with leader election."}, []string{"lease"}),
	}
}

// Kube returns where a source tells what happens between us and an API server.
func (o *Observer) Kube() *Kube { return &o.kube }

// Failed counts a request that failed.
func (k *Kube) Failed(resource, verb, reason string) {
	k.failed.WithLabelValues(resource, verb, reason).Inc()
}

// Differs tells by how many objects our list differs from the API server's.
func (k *Kube) Differs(resource, namespace string, n int) {
	k.differs.WithLabelValues(resource, namespace).Set(float64(n))
}

// Leads tells whether we lead, by a lease.
func (k *Kube) Leads(lease string, leads bool) {
	v := 0.0
	if leads {
		v = 1
	}
	k.leads.WithLabelValues(lease).Set(v)
}
