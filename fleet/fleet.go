// SPDX-License-Identifier: Apache-2.0

// Package fleet answers: what do we know of the pools and their endpoints?
//
// What sources tell is a [Snapshot]: built whole, published by one atomic store and
// never changed. What we count ourselves is a [Load], which belongs to one
// incarnation of an endpoint and is shared by all snapshots that name it.
package fleet

import (
	"cmp"
	"net/netip"
	"strings"
	"time"
)

// ID names an endpoint or a pool: its namespace and its name.
type ID struct {
	Namespace, Name string
}

// String renders the ID as namespace/name.
func (id ID) String() string { return id.Namespace + "/" + id.Name }

// Compare orders IDs by namespace, then name.
func (id ID) Compare(o ID) int {
	if id.Namespace != o.Namespace {
		if id.Namespace < o.Namespace {
			return -1
		}
		return 1
	}
	if id.Name < o.Name {
		return -1
	}
	if id.Name > o.Name {
		return 1
	}
	return 0
}

// Signal is a value somebody told us, with the time at which it was true.
// The zero Signal is absent: nobody ever told.
type Signal struct {
	Value float64
	At    time.Time
}

// Fresh reports whether the signal is present and not older than limit at now.
// What is not fresh is unknown, which is neither idle nor full.
func (s Signal) Fresh(now time.Time, limit time.Duration) bool {
	return !s.At.IsZero() && now.Sub(s.At) <= limit
}

// Reading is one look at an endpoint's metrics page.
type Reading struct {
	// Waiting and Running count requests in the engine.
	Waiting, Running Signal
	// KVUsage is the used share of the KV cache, 0 to 1.
	KVUsage Signal
	// Engine names the engine whose metric names the page had; empty when not known.
	Engine string
	// WaitingName, RunningName and KVName are the families that the signals were read from.
	WaitingName, RunningName, KVName string
	// Refused are values that cannot be, such as a share above 1: their signals are absent.
	Refused []Refused
	// BlockSize is the engine's KV block in tokens, NumBlocks how many it has; 0 when not told.
	BlockSize, NumBlocks int
	// Adapters lists LoRA adapters that run, Queued those that wait, MaxAdapters how many fit.
	Adapters, Queued []string
	MaxAdapters      int
	// Seen is [Load.Sent] as it stood when the page was asked for: what was
	// dispatched later cannot show in this reading.
	Seen int64
}

// Refused is a value on a page that cannot be.
type Refused struct {
	Metric string
	Value  float64 // as it stood there; may be no number
}

// Attribute is a value of an endpoint that has no field of its own in [Reading]: a metric that a
// configuration names, the load of a GPU, the averages of a cluster.
type Attribute struct {
	Name string
	// Producer is the plugin that found the value; empty for a name that needs none.
	Producer string
	Signal
}

func (a Attribute) compare(o Attribute) int {
	return cmp.Or(strings.Compare(a.Name, o.Name), strings.Compare(a.Producer, o.Producer))
}

// Endpoint is one ip:port that serves a model, as one snapshot shows it.
// It is never changed after it is published.
type Endpoint struct {
	ID
	// Address is ip:port, IPv6 in brackets; what is dialled and what Envoy is told.
	Address string
	// AddrPort is Address, read once; zero when Address is no ip:port.
	AddrPort netip.AddrPort
	// Scrape is the host:port of the metrics page; usually Address.
	Scrape string
	// Host is the host name that was resolved to Address, Pod the name of the pod that the endpoint is a
	// rank of; either is empty for what has none.
	Host, Pod string
	// NodeAddress is the host of the machine it runs on, without a port; empty when not told.
	NodeAddress string
	Labels      map[string]string
	// Models are the names this endpoint's /v1/models listed, adapters included;
	// nil until it was told.
	Models []string
	// Tuned are those of Models that are adapters of another.
	Tuned []string
	// Reading is what its metrics page last said.
	Reading
	// Attributes are sorted by name and producer; see [Endpoint.Attribute].
	Attributes []Attribute
	// Load is what we count for this incarnation.
	Load *Load
}

// Attribute returns the value of that name that the producer found, any producer's when producer
// is empty. It reports whether there is one; its age is for the caller to judge.
func (e *Endpoint) Attribute(name, producer string) (Signal, bool) {
	for i := range e.Attributes {
		if a := &e.Attributes[i]; a.Name == name && (producer == "" || a.Producer == producer) {
			return a.Signal, true
		}
	}
	return Signal{}, false
}

// Pool is a set of endpoints that serve alike: an InferencePool with what belongs to it.
type Pool struct {
	ID
	// Endpoints are sorted by ID.
	Endpoints []*Endpoint
	// H2C tells to speak HTTP/2 without TLS to the endpoints (appProtocol kubernetes.io/h2c).
	H2C bool
	// Objectives maps InferenceObjective names to priorities, higher first.
	Objectives map[string]int
	// Rewrites are the rules of InferenceModelRewrites.
	Rewrites Rewrites
	// Picker names the EndpointPickerConfig that decides for this pool.
	Picker string
}

// Rewrites are the rules by which requests to a pool ask for other models than their clients did.
// They are not changed once a store has them.
type Rewrites struct {
	// Exact are the rules by the model that a client asks for; All, if any, is for every other.
	Exact map[string]*Rewrite
	All   *Rewrite
}

// Rewrite is one rule.
type Rewrite struct {
	// Name is the name of the InferenceModelRewrite that it stands in.
	Name    string
	Targets []Target
}

// Target is a model and its share of a rule's requests.
type Target struct {
	Model  string
	Weight int // of the sum of weights; when that is 0 all targets have the same share
}

// Snapshot is all we were told, at one moment. Pools are sorted by ID.
type Snapshot struct {
	Pools []*Pool
	// Version grows by one with each publication.
	Version uint64
}

// Pool returns the pool of that ID, or nil.
func (s *Snapshot) Pool(id ID) *Pool {
	for _, p := range s.Pools {
		if p.ID == id {
			return p
		}
	}
	return nil
}
