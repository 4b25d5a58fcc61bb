// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/fleet"
)

// What is known of the engines' KV caches, as /debug/kvcache shows it: counts, never text.
type (
	// CacheView is one index of prefixes.
	CacheView struct {
		Pool     string `json:"pool"`
		Producer string `json:"producer"`
		// BlockTokens is the block of the index.
		BlockTokens int `json:"block_tokens"`
		// Blocks are distinct; Sets are shared sets of holders; Bytes are held, of at most Budget.
		Blocks int   `json:"blocks"`
		Sets   int   `json:"sets"`
		Bytes  int64 `json:"bytes"`
		Budget int64 `json:"budget_bytes"`
		// Evicted blocks made room, Refused holders found none.
		Evicted uint64 `json:"evicted_blocks"`
		Refused uint64 `json:"refused_holders"`
		// Events says where events come from: a port that is dialled, an address that engines dial, or nowhere; Error why that
		// does not work.
		Events string `json:"events"`
		Error  string `json:"error,omitempty"`
		// Dropped counts what was left out of what engines published, by reason.
		Dropped map[string]uint64 `json:"dropped,omitempty"`
		// Strangers published of late and are no endpoint of the pool, as far as their topics tell.
		Strangers []CacheStranger     `json:"unknown_publishers,omitempty"`
		Endpoints []CacheEndpointView `json:"endpoints"`
	}
	// CacheEndpointView is what one engine holds, as far as known.
	CacheEndpointView struct {
		Endpoint string `json:"endpoint"`
		Address  string `json:"address"`
		// Evidence is events while the engine's word counts, else why it does not: approximate where it never said anything,
		// disconnected, silent, distrusted, or misfit and skipped where nothing that it says can be followed.
		Evidence string `json:"evidence"`
		// Blocks of the index that it is known or expected to hold.
		Blocks    int               `json:"blocks"`
		Publisher []CachePublisher  `json:"publishers,omitempty"`
		Counts    map[string]uint64 `json:"counts,omitempty"` // of engine blocks, by what became of them
		Following int               `json:"engine_blocks"`
		Waiting   int               `json:"waiting_blocks,omitempty"` // for their parent
		Agreement *AgreementView    `json:"agreement,omitempty"`
	}
	// CachePublisher is a source of events.
	CachePublisher struct {
		Rank      int   `json:"rank"`
		Connected bool  `json:"connected"`
		HeardMS   int64 `json:"heard_ms_ago,omitempty"`
		// Error is why it could not be reached when that was tried last.
		Error string `json:"error,omitempty"`
	}
	// CacheStranger is a publisher that is no endpoint, or must not speak for the one that it names.
	CacheStranger struct {
		Name     string `json:"name"`           // which its topic has, or the topic as a whole
		From     string `json:"from,omitempty"` // its address
		Messages uint64 `json:"messages"`
		HeardMS  int64  `json:"heard_ms_ago"`
	}
	// AgreementView compares predicted with reported cached tokens.
	AgreementView struct {
		Requests  int64   `json:"requests"`
		Exact     int64   `json:"exact"`
		Predicted int64   `json:"predicted_tokens"`
		Reported  int64   `json:"reported_tokens"`
		Agreement float64 `json:"agreement"`
	}
)

func agreementOf(l *fleet.Load) *AgreementView {
	g := l.Grade()
	if g.Requests == 0 {
		return nil
	}
	return &AgreementView{g.Requests, g.Exact, g.Predicted, g.Reported, float64(int64(g.Agreement*1e4+0.5)) / 1e4}
}

// WatchCaches tells where to read what is known of the engines' caches.
func (o *Observer) WatchCaches(f func() []CacheView) { o.caches.ask.Store(&f) }

// Caches is what is known of the engines' caches now.
func (o *Observer) Caches() []CacheView {
	out := []CacheView{}
	if f := o.caches.ask.Load(); f != nil {
		out = append(out, (*f)()...)
	}
	loads := map[string]*fleet.Load{}
	for _, p := range o.store.Load().Pools {
		for _, e := range p.Endpoints {
			loads[e.ID.String()] = e.Load
		}
	}
	for i := range out {
		for k := range out[i].Endpoints {
			if e := &out[i].Endpoints[k]; loads[e.Endpoint] != nil {
				e.Agreement = agreementOf(loads[e.Endpoint])
			}
		}
	}
	return out
}

func (o *Observer) serveCaches(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("content-type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(struct {
		Time   time.Time   `json:"time"`
		Caches []CacheView `json:"caches"`
	}{time.Now(), o.Caches()}); err != nil {
		o.log.Debug("cache page", "error", err)
	}
}

// caches exports what is known of the engines' caches.
type caches struct {
	o   *Observer
	ask atomic.Pointer[func() []CacheView]
}

var (
	descIndexSize = poolDesc(prefix+"prefix_indexer_size", "Distinct blocks in an index of prefixes.", "pool", "plugin_name")
	descIndexByte = poolDesc("penstock_kvcache_bytes", "Memory of an index of prefixes.", "pool", "plugin_name")
	descBudget    = poolDesc("penstock_kvcache_budget_bytes", "The most memory that an index of prefixes may hold.", "pool", "plugin_name")
	descEvicted   = poolDesc("penstock_kvcache_evicted_blocks_total", "Blocks that were forgotten to make room in the budget.", "pool", "plugin_name")
	descDropped   = poolDesc("penstock_kvcache_events_dropped_total", "Messages and events of engines that were left out.", "pool", "plugin_name", "reason")
	descPublisher = poolDesc("penstock_kvcache_publisher_connected", "1 while the publisher of KV events is connected.", "pool", "endpoint", "rank")
	descTold      = poolDesc("penstock_kvcache_events_total", "Engine blocks by what became of the events that told of them.", "pool", "endpoint", "outcome")
	descHeld      = poolDesc("penstock_kvcache_endpoint_blocks", "Blocks of the index that an endpoint is known or expected to hold.", "pool", "endpoint", "evidence")
	descAgreement = poolDesc("penstock_prefix_agreement", "Recent mean of 1 - |predicted - reported cached tokens| / prompt tokens of an endpoint's requests; 1 when all agree.", "pool", "endpoint")
	descGraded    = poolDesc("penstock_prefix_graded_total", "Requests whose predicted cached tokens were compared with those reported; exact when they were equal.", "pool", "endpoint", "result")
)

// Describe implements [prometheus.Collector].
func (c *caches) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descIndexSize, descIndexByte, descBudget, descEvicted, descDropped, descPublisher, descTold, descHeld, descAgreement, descGraded} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *caches) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		for i, l := range labels {
			labels[i] = cleanName(l)
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	seen := map[string]bool{} // endpoints of two producers
	for _, v := range c.o.Caches() {
		emit(ch, descIndexSize, float64(v.Blocks), v.Pool, v.Producer)
		emit(ch, descIndexByte, float64(v.Bytes), v.Pool, v.Producer)
		emit(ch, descBudget, float64(v.Budget), v.Pool, v.Producer)
		count(descEvicted, v.Evicted, v.Pool, v.Producer)
		for _, reason := range slices.Sorted(maps.Keys(v.Dropped)) {
			count(descDropped, v.Dropped[reason], v.Pool, v.Producer, reason)
		}
		for _, e := range v.Endpoints {
			if key := v.Pool + "\x00" + e.Endpoint; seen[key] {
				continue
			} else {
				seen[key] = true
			}
			emit(ch, descHeld, float64(e.Blocks), v.Pool, e.Endpoint, e.Evidence)
			ranks := map[int]bool{}
			for _, p := range e.Publisher {
				if ranks[p.Rank] {
					continue
				}
				ranks[p.Rank] = true
				up := 0.0
				if p.Connected {
					up = 1
				}
				emit(ch, descPublisher, up, v.Pool, e.Endpoint, strconv.Itoa(p.Rank))
			}
			for _, outcome := range slices.Sorted(maps.Keys(e.Counts)) {
				if n := e.Counts[outcome]; n > 0 {
					count(descTold, n, v.Pool, e.Endpoint, outcome)
				}
			}
		}
	}
	for _, p := range c.o.store.Load().Pools {
		for _, e := range p.Endpoints {
			if g := e.Load.Grade(); g.Requests > 0 {
				pool, id := p.ID.String(), e.ID.String()
				emit(ch, descAgreement, g.Agreement, pool, id)
				count(descGraded, uint64(g.Exact), pool, id, "exact")
				count(descGraded, uint64(g.Requests-g.Exact), pool, id, "off")
			}
		}
	}
}
