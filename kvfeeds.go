// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/source/kvevents"
)

// feed brings what the engines of a pool publish to the index of one producer.
type feed struct {
	pool     fleet.ID
	producer *policy.PrecisePrefixCacheProducer
	store    *fleet.Store
	log      *slog.Logger
	stop     context.CancelFunc // nil before it runs

	mu      sync.Mutex
	sources map[*kvevents.Source]*heard
	dropped map[kvevents.Reason]uint64
	err     string // why nothing can come
}

// heard is a publisher and whose endpoint it is.
type heard struct {
	load     *fleet.Load
	follower *kvcache.Follower
	missed   uint64 // messages that came before anybody knew whose they are
	stored   kvcache.Stored
	extras   [][]string
}

// unknownPublisher counts messages of publishers that are no endpoint of the pool.
const unknownPublisher kvevents.Reason = "unknown-publisher"

// feeds runs what the lanes in force want to hear.
type feeds struct {
	mu  sync.Mutex
	ctx context.Context // nil before the process runs
	all map[*policy.PrecisePrefixCacheProducer]*feed
	wg  sync.WaitGroup
}

// set makes the feeds those of the lanes, and starts and ends what has changed.
func (f *feeds) set(s *site, lanes map[fleet.ID]lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := map[*policy.PrecisePrefixCacheProducer]*feed{}
	for id, l := range lanes {
		for _, p := range l.Plan.Producers {
			precise, ok := p.Plugin.(*policy.PrecisePrefixCacheProducer)
			if !ok {
				continue
			}
			if next[precise] = f.all[precise]; next[precise] == nil {
				next[precise] = &feed{pool: id, producer: precise, store: s.store, log: s.log, sources: map[*kvevents.Source]*heard{}, dropped: map[kvevents.Reason]uint64{}}
			}
		}
	}
	for p, old := range f.all {
		if next[p] == nil && old.stop != nil {
			old.stop()
		}
	}
	f.all = next
	f.start()
}

// run lets feeds begin, until ctx ends.
func (f *feeds) run(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	f.start()
	f.mu.Unlock()
	<-ctx.Done()
	f.wg.Wait()
	return nil
}

func (f *feeds) start() {
	if f.ctx == nil || f.ctx.Err() != nil {
		return
	}
	for _, one := range f.all {
		if one.stop == nil {
			ctx, cancel := context.WithCancel(f.ctx)
			one.stop = cancel
			f.wg.Go(func() { one.run(ctx) })
		}
	}
}

// listenAgain is how long to wait before an address that could not be had is tried again.
const listenAgain = 5 * time.Second

func (f *feed) run(ctx context.Context) {
	k := &f.producer.KVEventsConfig
	opt := kvevents.Options{Topic: k.TopicFilter, Pool: f.pool}
	if k.ZMQEndpoint == "" {
		if k.Dials() {
			if d := k.PodDiscoveryConfig; d != nil {
				opt.Port, opt.ReplayPort, opt.PortLabel, opt.ReplayPortLabel = d.SocketPort, d.ReplaySocketPort, d.PortLabel, d.ReplayPortLabel
			}
			_ = kvevents.Follow(ctx, f.store, opt, f) // which ends with ctx alone
		}
		return
	}
	for ctx.Err() == nil {
		err := kvevents.Listen(ctx, k.ZMQEndpoint, opt, f)
		if err == nil {
			return
		}
		f.mu.Lock()
		first := f.err == ""
		f.err = err.Error()
		f.mu.Unlock()
		if first {
			f.log.Error("KV events cannot be heard: prefixes are remembered by what was sent where", slog.String("pool", f.pool.String()),
				slog.String("producer", f.producer.Name()), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// of finds whose publisher it is; nil for nobody's.
func (f *feed) of(s *kvevents.Source, blockTokens int) *heard {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.sources[s]
	if h == nil {
		h = &heard{}
		f.sources[s] = h
		f.tidy()
	}
	if h.load != nil && h.load.Ended() {
		h.load, h.follower = nil, nil
	}
	if h.load == nil {
		if h.load = s.Load; h.load == nil {
			h.load = f.find(s)
		}
		if h.load == nil || h.load.Ended() {
			h.load = nil
			return nil
		}
		if h.follower = f.producer.Mirror().Follow(h.load.Slot, blockTokens); h.follower == nil {
			h.load = nil // it said nothing yet that could be understood, and so nothing that could be lost
			return nil
		}
		h.follower.Connected(s.Connected)
		if h.load.Ended() { // it left meanwhile, and its slot may have been cleared before
			f.producer.Mirror().Gone(h.load.Slot)
			h.load, h.follower = nil, nil
			return nil
		}
	}
	return h
}

// tidy forgets publishers whose endpoints are gone.
func (f *feed) tidy() {
	maps.DeleteFunc(f.sources, func(s *kvevents.Source, _ *heard) bool { return s.Load != nil && s.Load.Ended() })
}

// find is the endpoint that a publisher names which dialled us: by its ip:port, or by its address or name and its rank.
func (f *feed) find(s *kvevents.Source) *fleet.Load {
	pool := f.store.Load().Pool(f.pool)
	if pool == nil {
		return nil
	}
	var same []*fleet.Endpoint
	ip, _ := netip.ParseAddr(strings.Trim(s.Name, "[]"))
	for _, e := range pool.Endpoints {
		switch {
		case e.Address == s.Name, e.Name == s.Name && e.Pod == "":
			return e.Load
		case e.Pod != "" && e.Pod == s.Name, ip.IsValid() && e.AddrPort.Addr() == ip.Unmap():
			same = append(same, e)
		}
	}
	if len(same) == 1 {
		return same[0].Load
	}
	slices.SortFunc(same, func(a, b *fleet.Endpoint) int { return int(a.AddrPort.Port()) - int(b.AddrPort.Port()) })
	if s.Rank < len(same) {
		return same[s.Rank].Load
	}
	return nil
}

// Batch implements [kvevents.Sink].
func (f *feed) Batch(s *kvevents.Source, _ uint64, b *kvevents.Batch) {
	told := 0
	for i := range b.Events {
		if told = b.Events[i].BlockSize; told > 0 {
			break
		}
	}
	h := f.of(s, told)
	if h == nil {
		if s.Load == nil && f.find(s) == nil {
			f.drop(unknownPublisher)
		}
		f.mu.Lock()
		f.sources[s].missed++
		f.mu.Unlock()
		return
	}
	now := time.Now()
	if h.missed > 0 {
		h.follower.Gap(h.missed, now)
		h.missed = 0
	}
	ok, again := h.follower.Believe(now)
	if again {
		s.Again()
	}
	if !ok {
		return
	}
	for i := range b.Events {
		h.apply(&b.Events[i], s.Rank)
	}
}

// apply tells the follower one event.
func (h *heard) apply(e *kvevents.Event, rank int) {
	tier, ok := tierOf(e.Medium)
	group := max(e.Group, 0)
	switch e.Kind {
	case kvevents.AllBlocksCleared:
		h.follower.Cleared(rank)
	case kvevents.BlockRemoved:
		if ok {
			h.follower.Removed(e.Hashes, tier, group, rank)
		}
	case kvevents.BlockStored:
		if !ok {
			return
		}
		st := &h.stored
		*st = kvcache.Stored{Hashes: e.Hashes, Parent: e.Parent, HasParent: e.HasParent, Tokens: e.Tokens, BlockTokens: e.BlockSize,
			Adapter: e.LoraName, Tier: tier, Group: group, Kind: e.SpecKind, Rank: rank}
		if len(e.Extras) > 0 {
			for len(h.extras) < len(e.Hashes) {
				h.extras = append(h.extras, nil)
			}
			for i := range h.extras {
				h.extras[i] = h.extras[i][:0]
			}
			for i := range e.Extras {
				x := &e.Extras[i]
				h.extras[x.Block] = append(h.extras[x.Block], string(x.Text))
			}
			st.Extras = h.extras[:len(e.Hashes)]
		}
		h.follower.Stored(st)
	}
}

// tierOf is the tier that a medium stands for.
func tierOf(medium string) (kvcache.Tier, bool) {
	switch medium {
	case "", "gpu", "hbm", "device":
		return kvcache.GPU, true
	case "cpu", "host", "dram":
		return kvcache.CPU, true
	case "disk", "storage", "nvme", "fs", "remote":
		return kvcache.Disk, true
	}
	return 0, false
}

// Gap implements [kvevents.Sink].
func (f *feed) Gap(s *kvevents.Source, from, to uint64) {
	if h := f.of(s, 0); h != nil {
		h.follower.Gap(to-from+1, time.Now())
	}
}

// Restarted implements [kvevents.Sink].
func (f *feed) Restarted(s *kvevents.Source) {
	if h := f.of(s, 0); h != nil {
		h.follower.Restarted(s.Rank)
	}
}

// Dropped implements [kvevents.Sink].
func (f *feed) Dropped(_ *kvevents.Source, reason kvevents.Reason) { f.drop(reason) }

func (f *feed) drop(reason kvevents.Reason) {
	f.mu.Lock()
	f.dropped[reason]++
	f.mu.Unlock()
}

// caches shows what is known of engines' caches.
func (s *site) caches() []observe.CacheView {
	s.feeds.mu.Lock()
	all := slices.Collect(maps.Values(s.feeds.all))
	s.feeds.mu.Unlock()
	slices.SortFunc(all, func(a, b *feed) int {
		if c := a.pool.Compare(b.pool); c != 0 {
			return c
		}
		return strings.Compare(a.producer.Name(), b.producer.Name())
	})
	var out []observe.CacheView
	for _, f := range all {
		out = append(out, f.view())
	}
	return out
}

func (f *feed) view() observe.CacheView {
	m, now := f.producer.Mirror(), time.Now()
	st := m.Index.Stats()
	v := observe.CacheView{
		Pool: f.pool.String(), Producer: f.producer.Name(), BlockTokens: m.Block(), Blocks: st.Blocks, Sets: st.Sets, Bytes: st.Bytes, Budget: st.Budget,
		Evicted: st.Evicted, Refused: st.Refused, Events: f.from(), Dropped: map[string]uint64{}, Endpoints: []observe.CacheEndpointView{},
	}
	publishers := map[*fleet.Load][]observe.CachePublisher{}
	f.mu.Lock()
	v.Error = f.err
	for reason, n := range f.dropped {
		v.Dropped[string(reason)] = n
	}
	for s, h := range f.sources {
		if h.load != nil {
			p := observe.CachePublisher{Rank: s.Rank, Connected: s.Connected()}
			if at := s.Heard(); !at.IsZero() {
				p.HeardMS = max(1, now.Sub(at).Milliseconds())
			}
			publishers[h.load] = append(publishers[h.load], p)
		}
	}
	f.mu.Unlock()
	pool := f.store.Load().Pool(f.pool)
	if pool == nil {
		return v
	}
	for _, e := range pool.Endpoints {
		c := observe.CacheEndpointView{Endpoint: e.ID.String(), Address: e.Address, Evidence: "approximate", Blocks: m.Index.Held(e.Load.Slot), Publisher: publishers[e.Load]}
		slices.SortFunc(c.Publisher, func(a, b observe.CachePublisher) int { return a.Rank - b.Rank })
		if k := m.Of(e.Load.Slot); k != nil {
			n := k.Counts()
			c.Following, c.Waiting = n.Blocks, n.Waiting
			c.Counts = map[string]uint64{"stored": n.Stored, "again": n.Again, "removed": n.Removed, "unknown": n.Unknown, "orphans": n.Orphans, "adopted": n.Adopted,
				"lost": n.Lost, "misfit": n.Misfit, "skipped": n.Skipped, "full": n.Full, "clears": n.Clears, "restarts": n.Restarts, "gaps": n.Gaps, "missed": n.Missed}
			switch {
			case k.Muted(now):
				c.Evidence = "distrusted"
			case k.Live(now):
				c.Evidence = "events"
			case !k.Up():
				c.Evidence = "disconnected"
			case k.Events() > 0:
				c.Evidence = "silent"
			}
		}
		v.Endpoints = append(v.Endpoints, c)
	}
	return v
}

// from says where events come from.
func (f *feed) from() string {
	k := &f.producer.KVEventsConfig
	switch {
	case k.ZMQEndpoint != "":
		return "engines dial " + k.ZMQEndpoint
	case k.Dials():
		return "engines are dialled"
	}
	return "nowhere"
}
