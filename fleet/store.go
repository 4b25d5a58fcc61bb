// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/clock"
)

// Coalesce is how long readings wait for company before a snapshot with them is published.
// Changes of membership never wait.
const Coalesce = 5 * time.Millisecond

// Grace is how long an endpoint may be away and come back, at the same address, as the incarnation
// that it was: one whose readiness flaps drops no stream and loses no cache, so what was counted
// for it still holds. It is shorter than any engine's restart. One that is away is in no snapshot.
const Grace = time.Second

// PoolSpec is a pool as its manifest describes it.
type PoolSpec struct {
	ID
	// Selector picks endpoints by their labels; empty picks all.
	Selector map[string]string
	H2C      bool
	// Picker is endpointPickerRef.name.
	Picker     string
	Objectives map[string]int
	Rewrites   Rewrites
}

// EndpointSpec is an endpoint as a discovery source describes it.
type EndpointSpec struct {
	ID
	Address string // ip:port, IPv6 in brackets
	Scrape  string // host:port of the metrics page; empty for Address
	// Host is the host name that was resolved to Address; empty for an address that was written.
	Host string
	// Pod is the name of the pod that it is a rank of; empty for what is no pod.
	Pod string
	// NodeAddress is the host of the machine it runs on, without a port; may be empty.
	NodeAddress string
	Labels      map[string]string
	// Anywhere lets pools of any namespace have it: its source named none.
	Anywhere bool
	// In names the pools of its namespace that have it, whatever their selectors say; nil for those that select it.
	In []string
	// Life tells lives apart that have the same name and address, such as a pod's UID; may be empty.
	Life string
}

// Change is what changes at once. Sources are named; what a Change does not name stays.
type Change struct {
	// Pools replace all pools, unless nil.
	Pools []PoolSpec
	// Endpoints replace what each source told; a nil list withdraws the source.
	Endpoints map[string][]EndpointSpec
}

// Store holds what the sources told and publishes it as snapshots.
// All methods may be called at any time from any goroutine.
type Store struct {
	current atomic.Pointer[Snapshot]
	clock   clock.Clock

	mu        sync.Mutex
	pools     []PoolSpec
	bySource  map[string][]EndpointSpec
	alive     map[ID]*told
	away      map[ID]*told // gone for less than Grace
	sweeper   clock.Timer
	order     []*told // those alive, sorted by ID
	members   [][]int // for each pool, who of order is in it
	slots     []bool  // slots in use
	timer     clock.Timer
	pending   bool
	listeners []func(gone []*Load)
	renewed   []func(l *Load, seen time.Time)
	news      []func()
	changed   chan struct{} // closed and replaced when membership changes
}

// told is what we know of one incarnation beside its spec.
type told struct {
	spec    EndpointSpec
	address netip.AddrPort // spec.Address, zero when it is none
	left    time.Time      // when it went away
	models  []string
	tuned   []string
	reading Reading
	load    *Load
	// parts are the attributes by who told them; attributes is all of them.
	parts      map[string][]Attribute
	attributes []Attribute
	shown      *Endpoint // as the last snapshot has it; nil once there is news
}

// endpoint is t for a snapshot. One without news is that of the snapshot before: whoever holds on to an endpoint, such as a long
// stream, keeps little else of its snapshot.
func (t *told) endpoint() *Endpoint {
	if t.shown == nil {
		t.shown = &Endpoint{
			ID: t.spec.ID, Address: t.spec.Address, AddrPort: t.address, Scrape: t.spec.Scrape,
			Host: t.spec.Host, Pod: t.spec.Pod, NodeAddress: t.spec.NodeAddress, Labels: t.spec.Labels,
			Models: t.models, Tuned: t.tuned, Reading: t.reading, Attributes: t.attributes, Load: t.load,
		}
	}
	return t.shown
}

// describe notes how its source describes it now.
func (t *told) describe(w EndpointSpec) {
	if o := t.shown; o != nil && (o.Scrape != w.Scrape || o.Host != w.Host || o.Pod != w.Pod || o.NodeAddress != w.NodeAddress || !maps.Equal(o.Labels, w.Labels)) {
		t.shown = nil
	}
	t.spec = w
}

// NewStore returns a store whose snapshot is empty.
func NewStore() *Store { return NewStoreBy(nil) }

// NewStoreBy is [NewStore] with another clock than the wall's.
func NewStoreBy(c clock.Clock) *Store {
	s := &Store{
		clock:    clock.Or(c),
		bySource: map[string][]EndpointSpec{},
		alive:    map[ID]*told{},
		away:     map[ID]*told{},
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

// OnRenewed registers f, called by [Store.Renew] under the store's lock: it must be quick.
func (s *Store) OnRenewed(f func(l *Load, seen time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = append(s.renewed, f)
}

// Apply makes one publication of all that changes. An endpoint whose address or life changes is a new
// incarnation. When two sources tell the same ID, the source whose name sorts last wins; when two
// endpoints of a pool have the same address, the first by ID serves.
func (s *Store) Apply(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Pools != nil {
		s.pools = slices.SortedFunc(slices.Values(c.Pools), func(a, b PoolSpec) int { return a.ID.Compare(b.ID) })
	}
	for source, endpoints := range c.Endpoints {
		if endpoints == nil {
			delete(s.bySource, source)
		} else {
			s.bySource[source] = slices.Clone(endpoints)
		}
	}
	s.rebuild()
}

// OnPublish registers f, called after each publication, under the store's lock: it must be quick and call
// nothing of the store but Load.
func (s *Store) OnPublish(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = append(s.news, f)
}

// SetPools replaces the pools; see [Store.Apply].
func (s *Store) SetPools(pools []PoolSpec) {
	if pools == nil {
		pools = []PoolSpec{}
	}
	s.Apply(Change{Pools: pools})
}

// SetEndpoints replaces what one source tells; nil withdraws the source. See [Store.Apply].
func (s *Store) SetEndpoints(source string, endpoints []EndpointSpec) {
	s.Apply(Change{Endpoints: map[string][]EndpointSpec{source: endpoints}})
}

// Tell records a reading of the incarnation that has that load. A reading of one that
// is gone is dropped.
func (s *Store) Tell(id ID, load *Load, r Reading) {
	s.tell(id, load, func(t *told) { t.reading = r })
}

// Renew tells that the engine of the incarnation that has that load began anew: what it held is gone. The process before was last seen
// at the time given.
func (s *Store) Renew(id ID, load *Load, seen time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.alive[id]; t != nil && t.load == load {
		for _, f := range s.renewed {
			f(load, seen)
		}
	}
}

// TellModels records the model names that the incarnation serves, and which of them are adapters of another.
func (s *Store) TellModels(id ID, load *Load, models, tuned []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.alive[id]; t != nil && t.load == load && !(t.models != nil && slices.Equal(t.models, models) && slices.Equal(t.tuned, tuned)) {
		t.models, t.tuned = slices.Clone(models), slices.Clone(tuned)
		if t.models == nil {
			t.models = []string{}
		}
		t.shown = nil
		s.publish()
	}
}

// TellAttributes records what one source found beside a reading; it replaces what that source said
// before of the incarnation, and nothing else. Where two sources tell the same attribute, that of the source whose
// name sorts first counts. The list is not kept.
func (s *Store) TellAttributes(id ID, load *Load, source string, list []Attribute) {
	s.tell(id, load, func(t *told) {
		if t.parts == nil {
			t.parts = map[string][]Attribute{}
		}
		t.parts[source] = append(t.parts[source][:0], list...)
		all := make([]Attribute, 0, len(t.attributes)) // a snapshot may show the last one
		if len(t.parts) == 1 {
			all = append(all, list...)
		} else {
			for _, part := range slices.Sorted(maps.Keys(t.parts)) { // of two that say the same the first by name counts
				all = append(all, t.parts[part]...)
			}
		}
		slices.SortStableFunc(all, Attribute.compare)
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
	t.shown = nil
	if s.pending {
		return
	}
	s.pending = true
	if s.timer == nil {
		s.timer = s.clock.AfterFunc(Coalesce, s.flush)
	} else {
		s.timer.Reset(Coalesce)
	}
}

// Flush publishes what was told, without waiting for company.
func (s *Store) Flush() { s.flush() }

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
	now := s.clock.Now()
	var gone []*Load
	for id, t := range s.alive {
		w, ok := want[id]
		switch {
		case !ok:
			t.left = now
			s.away[id] = t
			delete(s.alive, id)
		case !w.continues(t.spec):
			gone = append(gone, t.load)
			delete(s.alive, id)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(want), ID.Compare) {
		w, t := want[id], s.alive[id]
		if t == nil {
			if t = s.away[id]; t != nil {
				delete(s.away, id)
				if !w.continues(t.spec) {
					gone = append(gone, t.load)
					t = nil
				}
			}
		}
		if t == nil {
			t = &told{load: &Load{Slot: s.takeSlot()}}
			t.address, _ = netip.ParseAddrPort(w.Address)
		}
		t.describe(w)
		s.alive[id] = t
	}
	for _, l := range gone {
		l.ended.Store(true)
	}
	s.arrange()
	s.publish()
	s.end(gone)
	s.sweepLater(now)
	close(s.changed)
	s.changed = make(chan struct{})
}

// end tells the listeners of incarnations that are over, then gives up their slots.
func (s *Store) end(gone []*Load) {
	if len(gone) == 0 {
		return
	}
	slices.SortFunc(gone, func(a, b *Load) int { return cmp.Compare(a.Slot, b.Slot) })
	for _, f := range s.listeners {
		f(gone)
	}
	for _, l := range gone {
		s.slots[l.Slot] = false
	}
}

// sweepLater sets the timer for the first of those away whose grace ends.
func (s *Store) sweepLater(now time.Time) {
	if len(s.away) == 0 {
		return
	}
	wait := Grace
	for _, t := range s.away {
		wait = min(wait, t.left.Add(Grace).Sub(now))
	}
	if s.sweeper == nil {
		s.sweeper = s.clock.AfterFunc(wait, s.sweep)
	} else {
		s.sweeper.Reset(wait)
	}
}

// sweep ends those that have been away for too long.
func (s *Store) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	var gone []*Load
	for id, t := range s.away {
		if now.Sub(t.left) >= Grace {
			t.load.ended.Store(true)
			gone = append(gone, t.load)
			delete(s.away, id)
		}
	}
	s.end(gone)
	s.sweepLater(now)
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
		known := map[string]bool{}
		for i, t := range s.order {
			if !known[t.spec.Address] && belongs(&pool, &t.spec, len(s.pools)) {
				known[t.spec.Address] = true
				s.members[p] = append(s.members[p], i)
			}
		}
	}
}

func (s *Store) publish() {
	s.pending = false
	snap := &Snapshot{Version: s.current.Load().Version + 1, Pools: make([]*Pool, len(s.pools))}
	for i, spec := range s.pools {
		p := &Pool{ID: spec.ID, H2C: spec.H2C, Objectives: spec.Objectives, Rewrites: spec.Rewrites, Picker: spec.Picker}
		if m := s.members[i]; len(m) > 0 {
			p.Endpoints = make([]*Endpoint, len(m))
			for k, e := range m {
				p.Endpoints[k] = s.order[e].endpoint()
			}
		}
		snap.Pools[i] = p
	}
	s.current.Store(snap)
	for _, f := range s.news {
		f()
	}
}

// continues reports whether e is the incarnation that was described as o before.
func (e *EndpointSpec) continues(o EndpointSpec) bool {
	return e.Address == o.Address && e.Life == o.Life
}

// belongs holds a pool's selector against an endpoint's labels, in the pool's own namespace. An
// endpoint without labels belongs to the only pool there is.
func belongs(p *PoolSpec, e *EndpointSpec, pools int) bool {
	if e.Namespace != p.Namespace && !e.Anywhere {
		return false
	}
	if e.In != nil {
		return slices.Contains(e.In, p.Name)
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
