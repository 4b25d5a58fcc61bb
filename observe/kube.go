// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Kube tells what happens between us and an API server.
type Kube struct {
	failed  *prometheus.CounterVec
	differs *prometheus.GaugeVec
	leads   *prometheus.GaugeVec
	view    atomic.Pointer[func() KubeView]
}

// The form of kube in /debug/fleet.
type (
	// KubeView is what we know of an API server.
	KubeView struct {
		Feeds      []FeedView      `json:"feeds"`
		ConfigMaps []ConfigMapView `json:"config_maps,omitempty"`
	}
	// FeedView is how one resource is followed in one namespace.
	FeedView struct {
		Resource  string    `json:"resource"`
		Namespace string    `json:"namespace,omitempty"` // empty for all
		Name      string    `json:"name,omitempty"`      // of the only object that is followed
		Version   string    `json:"version,omitempty"`   // in use, with the group
		State     string    `json:"state"`               // synced, listing, refused, absent (no such resource), away (the API server)
		Verb      string    `json:"verb,omitempty"`      // that is refused, or fails
		Since     time.Time `json:"since,omitzero"`
		Objects   int       `json:"objects"`
		Error     string    `json:"last_error,omitempty"` // over or not
	}
	// ConfigMapView is a ConfigMap with a configuration.
	ConfigMapView struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Key       string `json:"key,omitempty"`
		// State is in-force, older-in-force (its text is wrong, or it is gone: what it said before counts) or not-used.
		State  string   `json:"state"`
		Errors []string `json:"errors,omitempty"` // why its newest text is not in force
	}
)

func (k *Kube) init() {
	k.failed = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_kube_errors_total",
		Help: "Requests to the API server that failed, by what they asked for."}, []string{"resource", "verb", "reason"})
	k.differs = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_kube_list_difference",
		Help: "Objects that only we or only the API server has, at the last comparison; must be 0."}, []string{"resource", "namespace"})
	k.leads = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "penstock_kube_leads",
		Help: "1 while requests should come to this picker, 0 while another leads; only with leader election."}, []string{"lease"})
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

// Forget drops what was told of a namespace that is not followed any more.
func (k *Kube) Forget(namespace string) {
	k.differs.DeletePartialMatch(prometheus.Labels{"namespace": namespace})
}

// Leads tells whether we lead, by a lease.
func (k *Kube) Leads(lease string, leads bool) {
	v := 0.0
	if leads {
		v = 1
	}
	k.leads.WithLabelValues(lease).Set(v)
}

// Watch has the page and the metrics show what view says.
func (k *Kube) Watch(view func() KubeView) { k.view.Store(&view) }

// viewed is what is known of an API server; nil when none is followed.
func (k *Kube) viewed() *KubeView {
	f := k.view.Load()
	if f == nil {
		return nil
	}
	v := (*f)()
	return &v
}

var (
	descFeed = prometheus.NewDesc("penstock_kube_feed_state", "1 for the state in which we follow a resource: synced, listing, refused, absent (it is not installed) or away (the API server).",
		[]string{"resource", "namespace", "name", "version", "state"}, nil)
	descObjects = prometheus.NewDesc("penstock_kube_objects", "Objects that we know of a resource.", []string{"resource", "namespace", "name"}, nil)
)

// Describe implements [prometheus.Collector].
func (k *Kube) Describe(ch chan<- *prometheus.Desc) {
	k.failed.Describe(ch)
	k.differs.Describe(ch)
	k.leads.Describe(ch)
	ch <- descFeed
	ch <- descObjects
}

// Collect implements [prometheus.Collector].
func (k *Kube) Collect(ch chan<- prometheus.Metric) {
	k.failed.Collect(ch)
	k.differs.Collect(ch)
	k.leads.Collect(ch)
	v := k.viewed()
	if v == nil {
		return
	}
	for _, f := range v.Feeds {
		emit(ch, descFeed, 1, f.Resource, f.Namespace, f.Name, f.Version, f.State)
		emit(ch, descObjects, float64(f.Objects), f.Resource, f.Namespace, f.Name)
	}
}
