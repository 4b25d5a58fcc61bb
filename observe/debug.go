// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// MuxOptions say what the metrics address serves beside /metrics, /debug/fleet, /debug/kvcache, /debug/decisions and /healthz.
type MuxOptions struct {
	// Config is the configuration in force, for /debug/fleet, in a form that JSON can say; no secrets. Nil for none.
	Config func() any
	// Ready says why we are not ready, nil when we are; /readyz asks it. Nil for always ready.
	Ready func() error
	// Pprof adds /debug/pprof.
	Pprof bool
	// Allow says whether a request may have its page: 0 if so, else the status and the text of the answer. /healthz and
	// /readyz are for everybody, and so is the rest where it is nil.
	Allow func(*http.Request) (status int, text string)
}

// Mux serves the metrics address.
func (o *Observer) Mux(opt MuxOptions) http.Handler {
	m, open := http.NewServeMux(), http.NewServeMux()
	m.Handle("GET /metrics", o.Handler())
	m.HandleFunc("GET /debug/fleet", func(w http.ResponseWriter, _ *http.Request) { o.serveFleet(w, opt.Config) })
	m.HandleFunc("GET /debug/kvcache", o.serveCaches)
	m.HandleFunc("GET /debug/decisions", o.serveDecisions)
	m.HandleFunc("GET /debug/decisions/{id...}", o.serveDecision)
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	open.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if opt.Ready != nil {
			if err := opt.Ready(); err != nil {
				say(w, http.StatusServiceUnavailable, err.Error())
				return
			}
		}
		say(w, http.StatusOK, "ok")
	})
	if opt.Pprof {
		m.HandleFunc("/debug/pprof/", pprof.Index)
		m.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		m.HandleFunc("/debug/pprof/profile", pprof.Profile)
		m.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		m.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if opt.Allow != nil {
			if status, text := opt.Allow(r); status != 0 {
				if status == http.StatusUnauthorized {
					w.Header().Set("www-authenticate", "Bearer")
				}
				say(w, status, text)
				return
			}
		}
		m.ServeHTTP(w, r)
	})
	return open
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("content-type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// The form of /debug/fleet.
type (
	// FleetView is the fleet at one moment.
	FleetView struct {
		Time    time.Time  `json:"time"`
		Version uint64     `json:"version"`
		Pools   []PoolView `json:"pools"`
		Kube    *KubeView  `json:"kube,omitempty"`   // what an API server tells
		Config  any        `json:"config,omitempty"` // in force, with defaults filled in
	}
	// PoolView is one pool.
	PoolView struct {
		Namespace  string         `json:"namespace"`
		Name       string         `json:"name"`
		Picker     string         `json:"picker,omitempty"`
		H2C        bool           `json:"h2c,omitempty"`
		Objectives map[string]int `json:"objectives,omitempty"`
		Ready      int            `json:"ready"`
		Endpoints  []EndpointView `json:"endpoints"`
		Queue      *QueueView     `json:"queue,omitempty"` // of flow control, where it is on
	}
	// EndpointView is one endpoint: what it told, and what we count.
	EndpointView struct {
		Namespace string                `json:"namespace"`
		Name      string                `json:"name"`
		Address   string                `json:"address"`
		Scrape    string                `json:"scrape,omitempty"`
		Labels    map[string]string     `json:"labels,omitempty"`
		Models    []string              `json:"models"`
		Engine    string                `json:"engine,omitempty"`
		WaitName  string                `json:"waiting_name,omitempty"` // the metrics that signals were read from
		RunName   string                `json:"running_name,omitempty"`
		KVName    string                `json:"kv_usage_name,omitempty"`
		Refused   []RefusedView         `json:"refused,omitempty"`
		Signals   map[string]SignalView `json:"signals"`
		Attrs     []AttributeView       `json:"attributes,omitempty"`
		Cause     string                `json:"cause,omitempty"` // of the last failed poll, while stale
		BlockSize int                   `json:"block_size,omitempty"`
		NumBlocks int                   `json:"num_blocks,omitempty"`
		Adapters  []string              `json:"adapters,omitempty"`
		Queued    []string              `json:"queued_adapters,omitempty"`
		MaxLoRA   int                   `json:"max_adapters,omitempty"`
		Requests  int64                 `json:"inflight_requests"`
		Tokens    int64                 `json:"inflight_tokens"`
		Sent      int64                 `json:"sent"`
		Unseen    int64                 `json:"unseen"`
		TTFT      *float64              `json:"ttft_ms,omitempty"`              // recent, of our streamed answers
		Rate      *float64              `json:"prefill_tokens_per_s,omitempty"` // learned from them
		Samples   int64                 `json:"samples,omitempty"`
		Prefixes  *AgreementView        `json:"prefix_agreement,omitempty"` // of predicted with reported cached tokens
		Health    HealthView            `json:"health"`
		Slot      uint32                `json:"slot"`
	}
	// HealthView is what became of our requests there: healthy, ejected, probed (one request finds out), slow start.
	HealthView struct {
		State    fleet.HealthState `json:"state"`
		Failures int               `json:"failures_in_a_row,omitempty"`
		ForMS    int64             `json:"for_ms,omitempty"` // until an ejection ends
		Cause    string            `json:"cause,omitempty"`
		Share    *float64          `json:"share,omitempty"` // of its requests, in a slow start
	}
	// RefusedView is a value that cannot be, as it stood on the page; its signal is absent.
	RefusedView struct {
		Metric string `json:"metric"`
		Value  string `json:"value"`
	}
	// AttributeView is a value that a configuration asks for.
	AttributeView struct {
		Name     string `json:"name"`
		Producer string `json:"producer,omitempty"`
		SignalView
	}
	// SignalView is one signal: its state is fresh, stale or absent.
	SignalView struct {
		State string   `json:"state"`
		Value *float64 `json:"value,omitempty"`
		AgeMS *int64   `json:"age_ms,omitempty"`
	}
)

// Fleet renders the fleet as the store shows it now.
func (o *Observer) Fleet() FleetView {
	snap, now := o.store.Load(), time.Now()
	causes := o.causesOf(snap)
	queues := o.queueViews()
	v := FleetView{Time: now, Version: snap.Version, Pools: []PoolView{}, Kube: o.kube.viewed()}
	for _, p := range snap.Pools {
		pv := PoolView{Namespace: p.Namespace, Name: p.Name, Picker: p.Picker, H2C: p.H2C, Objectives: p.Objectives, Endpoints: []EndpointView{}, Queue: queues[p.ID]}
		for _, e := range p.Endpoints {
			ev := o.endpoint(e, now)
			if heard(e, now, o.stale) {
				pv.Ready++
			} else {
				ev.Cause = causeOf(e, causes)
			}
			pv.Endpoints = append(pv.Endpoints, ev)
		}
		v.Pools = append(v.Pools, pv)
	}
	return v
}

func (o *Observer) endpoint(e *fleet.Endpoint, now time.Time) EndpointView {
	v := EndpointView{
		Namespace: e.Namespace, Name: e.Name, Address: e.Address, Labels: e.Labels, Models: e.Models,
		Signals: map[string]SignalView{
			"waiting": o.signal(e.Waiting, now), "running": o.signal(e.Running, now), "kv_usage": o.signal(e.KVUsage, now),
		},
		Engine: e.Engine, WaitName: e.WaitingName, RunName: e.RunningName, KVName: e.KVName,
		BlockSize: e.BlockSize, NumBlocks: e.NumBlocks, Adapters: e.Adapters, Queued: e.Queued, MaxLoRA: e.MaxAdapters,
		Requests: e.Load.Requests(), Tokens: e.Load.Tokens(), Sent: e.Load.Sent(), Unseen: e.Unseen(now, o.stale),
		Samples: e.Load.Samples(), Health: o.healthOf(e, now), Slot: e.Load.Slot,
		Prefixes: agreementOf(e.Load),
	}
	if d, ok := e.Load.Latency(now); ok {
		ms := float64(d.Microseconds()) / 1e3
		v.TTFT = &ms
	}
	if r, ok := e.Load.Rate(now); ok {
		r = math.Round(r)
		v.Rate = &r
	}
	for _, r := range e.Refused {
		v.Refused = append(v.Refused, RefusedView{r.Metric, strconv.FormatFloat(r.Value, 'g', -1, 64)})
	}
	for _, a := range e.Attributes {
		v.Attrs = append(v.Attrs, AttributeView{a.Name, a.Producer, o.signal(a.Signal, now)})
	}
	if e.Scrape != e.Address {
		v.Scrape = e.Scrape
	}
	return v
}

func (o *Observer) healthOf(e *fleet.Endpoint, now time.Time) HealthView {
	h := e.Health(now, o.health.Load(), o.stale)
	v := HealthView{State: h.State, Failures: h.Fails, Cause: h.Cause}
	switch h.State {
	case fleet.Ejected:
		v.ForMS = h.Until.Sub(now).Milliseconds()
	case fleet.Slowed:
		v.Share = &h.Share
	}
	return v
}

func (o *Observer) signal(s fleet.Signal, now time.Time) SignalView {
	if s.At.IsZero() {
		return SignalView{State: "absent"}
	}
	age := now.Sub(s.At).Milliseconds()
	v := SignalView{State: "stale", Value: &s.Value, AgeMS: &age}
	if s.Fresh(now, o.stale) {
		v.State = "fresh"
	}
	return v
}

func (o *Observer) serveFleet(w http.ResponseWriter, config func() any) {
	v := o.Fleet()
	if config != nil {
		v.Config = config()
	}
	w.Header().Set("content-type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		o.log.Debug("fleet page", "error", err)
	}
}
