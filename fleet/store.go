// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Coalesce is how long readings wait for company before a snapshot with them is published.
// Changes of membership never wait.
const Coalesce = 5 * time.Millisecond

// PoolSpec is a pool as its manifest describes it.
type PoolSpec struct {
	ID
	// Selector picks endpoints by their labels; empty picks all.
	Selector map[string]string
	H2C      bool
	// Picker is endpointPickerRef.name.
	Picker     string
	Objectives map[string]int
}

// EndpointSpec is an endpoint as a discovery source describes it.
type EndpointSpec struct {
	ID
	Address string // host:port, IPv6 in brackets
	Scrape  string // host:port of the metrics page; empty for Address
	// NodeAddress is the host of the machine it runs on, without a port; may be empty.
	NodeAddress string
	Labels      map[string]string
	// Anywhere lets pools of any namespace have it: its source named none.
	Anywhere bool
}

// Store holds what the sources told and publishes it as snapshots.
// All methods may be called at any time from any goroutine.
type Store struct {
	current atomic.Pointer[Snapshot]

	mu        sync.Mutex
	pools     []PoolSpec
	bySource  map[string][]EndpointSpec
	alive     map[ID]*told
	order     []*told // those alive, sorted by ID
	members   [][]int // for each pool, who of order is in it
	slots     []bool  // slots in use
	timer     *time.Timer
	pending   bool
	listeners []func(gone []*Load)
	changed   chan struct{} // closed and replaced when membership changes
}

// told is what we know of one incarnation beside its spec.
type told struct {
	spec    EndpointSpec
	models  []string
	reading Reading
	load    *Load
	// parts are the attributes by who told them; attributes is all of them.
	parts      map[string][]Attribute
	attributes []Attribute
}

// NewStore returns a store whose snapshot is empty.
func NewStore() *Store {
	s := &Store{
		bySource: map[string][]EndpointSpec{},
		alive:    map[ID]*told{},
		changed:  make(chan struct{}),
	}
	s.current.Store(&Snapshot{})
	return s
}

// Load returns the newest snapshot, never nil.
func (s *Store) Load() *Snapshot { return s.current.Load() }

// Changed returns a channel that is closed at the next change of membership.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// OnGone registers f, called with the loads of incarnations that ended, after the snapshot
// without them was published and before their slots are given to others.
func (s *Store) OnGone(f func(gone []*Load)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, f)
}

// SetPools replaces the pools.
func (s *Store) SetPools(pools []PoolSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools = slices.SortedFunc(slices.Values(pools), func(a, b PoolSpec) int { return a.ID.Compare(b.ID) })
	s.rebuild()
}

// SetEndpoints replaces what one source tells; nil withdraws the source. An endpoint whose
// address changes is a new incarnation. When two sources tell the same ID, the source
// whose name sorts last wins.
func (s *Store) SetEndpoints(source string, endpoints []EndpointSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if endpoints == nil {
		delete(s.bySource, source)
	} else {
		s.bySource[source] = slices.Clone(endpoints)
	}
	s.rebuild()
}

// Tell records a reading of the incarnation that has that load. A reading of one that
// is gone is dropped.
func (s *Store) Tell(id ID, load *Load, r Reading) {
	s.tell(id, load, func(t *told) { t.reading = r })
}

// TellModels records the model names that the incarnation serves.
func (s *Store) TellModels(id ID, load *Load, models []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.alive[id]; t != nil && t.load == load && !(t.models != nil && slices.Equal(t.models, models)) {
		t.models = slices.Clone(models)
		if t.models == nil {
			t.models = []string{}
		}
		s.publish()
	}
}

// TellAttributes records what one source found beside a reading; it replaces what that source said
// before of the incarnation, and nothing else. The list is not kept.
func (s *Store) TellAttributes(id ID, load *Load, source string, list []Attribute) {
	s.tell(id, load, func(t *told) {
		if t.parts == nil {
			t.parts = map[string][]Attribute{}
		}
		t.parts[source] = append(t.parts[source][:0], list...)
		all := make([]Attribute, 0, len(t.attributes)) // a snapshot may show the last one
		for _, part := range t.parts {
			all = append(all, part...)
		}
		slices.SortFunc(all, Attribute.compare)
		t.attributes = all
	})
}

func (s *Store) tell(id ID, load *Load, set func(*told)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.alive[id]
	if t == nil || t.load != load {
		return
	}
	set(t)
	if s.pending {
		return
	}
	s.pending = true
	if s.timer == nil {
		s.timer = time.AfterFunc(Coalesce, s.flush)
	} else {
		s.timer.Reset(Coalesce)
	}
}

func (s *Store) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending {
		s.publish()
	}
}

// rebuild follows a change of specs: it starts and ends incarnations, then publishes.
func (s *Store) rebuild() {
	want := map[ID]EndpointSpec{}
	for _, source := range slices.Sorted(maps.Keys(s.bySource)) {
		for _, e := range s.bySource[source] {
			if e.Scrape == "" {
				e.Scrape = e.Address
			}
			want[e.ID] = e
		}
	}
	var gone []*Load
	for id, t := range s.alive {
		if w, ok := want[id]; !ok || w.Address != t.spec.Address {
			t.load.ended.Store(true)
			gone = append(gone, t.load)
			delete(s.alive, id)
		}
	}
	slices.SortFunc(gone, func(a, b *Load) int { return cmp.Compare(a.Slot, b.Slot) })
	for _, id := range slices.SortedFunc(maps.Keys(want), ID.Compare) {
		if t := s.alive[id]; t != nil {
			t.spec = want[id]
		} else {
			s.alive[id] = &told{spec: want[id], load: &Load{Slot: s.takeSlot()}}
		}
	}
	s.arrange()
	s.publish()
	if len(gone) > 0 {
		for _, f := range s.listeners {
			f(gone)
		}
		for _, l := range gone {
			s.slots[l.Slot] = false
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Store) takeSlot() uint32 {
	i := slices.Index(s.slots, false)
	if i < 0 {
		i = len(s.slots)
		s.slots = append(s.slots, false)
	}
	s.slots[i] = true
	return uint32(i)
}

// arrange works out what stays the same until the membership changes.
func (s *Store) arrange() {
	s.order = slices.SortedFunc(maps.Values(s.alive), func(a, b *told) int { return a.spec.ID.Compare(b.spec.ID) })
	s.members = make([][]int, len(s.pools))
	for p, pool := range s.pools {
		for i, t := range s.order {
			if belongs(&pool, &t.spec, len(s.pools)) {
				s.members[p] = append(s.members[p], i)
			}
		}
	}
}

func (s *Store) publish() {
	s.pending = false
	snap := &Snapshot{Version: s.current.Load().Version + 1, Pools: make([]*Pool, len(s.pools))}
	endpoints := make([]Endpoint, len(s.order))
	for i, t := range s.order {
		endpoints[i] = Endpoint{
			ID: t.spec.ID, Address: t.spec.Address, Scrape: t.spec.Scrape, NodeAddress: t.spec.NodeAddress, Labels: t.spec.Labels,
			Models: t.models, Reading: t.reading, Attributes: t.attributes, Load: t.load,
		}
	}
	for i, spec := range s.pools {
		p := &Pool{ID: spec.ID, H2C: spec.H2C, Objectives: spec.Objectives, Picker: spec.Picker}
		if m := s.members[i]; len(m) > 0 {
			p.Endpoints = make([]*Endpoint, len(m))
			for k, e := range m {
				p.Endpoints[k] = &endpoints[e]
			}
		}
		snap.Pools[i] = p
	}
	s.current.Store(snap)
}

// belongs holds a pool's selector against an endpoint's labels, in the pool's own namespace. An
// endpoint without labels belongs to the only pool there is.
func belongs(p *PoolSpec, e *EndpointSpec, pools int) bool {
	if e.Namespace != p.Namespace && !e.Anywhere {
		return false
	}
	if len(e.Labels) == 0 && pools == 1 {
		return true
	}
	for k, v := range p.Selector {
		if have, ok := e.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// Models returns the union of what the pools' endpoints serve, sorted.
func (s *Snapshot) Models() []string {
	var all []string
	for _, p := range s.Pools {
		for _, e := range p.Endpoints {
			all = append(all, e.Models...)
		}
	}
	slices.SortFunc(all, strings.Compare)
	return slices.Compact(all)
}
