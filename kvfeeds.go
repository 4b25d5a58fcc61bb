// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/source/kvevents"
)

// feed brings what the engines of a pool publish to one index.
type feed struct {
	pool     fleet.ID
	producer *policy.PrecisePrefixCacheProducer
	store    *fleet.Store
	log      *slog.Logger
	stop     context.CancelFunc // nil before it dials

	mu        sync.Mutex
	sources   map[*kvevents.Source]*heard
	dropped   map[kvevents.Reason]uint64
	strangers map[string]*stranger
	own       map[*fleet.Load]bool // have spoken from their own address
	block     int                  // of the index, as it was last
	err       string               // why nothing can come
}

// heard is a publisher and whose endpoint it is.
type heard struct {
	load     *fleet.Load
	follower *kvcache.Follower // nil before it said something
	missed   uint64            // messages that came before anybody knew whose they are
	foreign  bool              // it speaks for an endpoint and must not
	stored   kvcache.Stored
	extras   [][]string
}

// stranger is a publisher that is no endpoint of ours.
type stranger struct {
	from     netip.Addr // of the last message
	messages uint64
	last     time.Time
}

// unknownPublisher counts messages of publishers that are no endpoint of the pool, foreignPublisher those of such as speak for an endpoint
// that speaks for itself, or from another's address.
const (
	unknownPublisher kvevents.Reason = "unknown-publisher"
	foreignPublisher kvevents.Reason = "foreign-publisher"
)

const (
	mostStrangers = 64               // that are remembered
	strangersFor  = 10 * time.Minute // and shown after their last message
)

// feeds runs what the lanes in force want to hear.
type feeds struct {
	mu   sync.Mutex
	ctx  context.Context // nil before the process runs
	all  map[*kvcache.Mirror]*feed
	ears map[dialled]*ear
	wg   sync.WaitGroup
}

// set makes the feeds those of the lanes, and starts and ends what has changed. What goes to the same index goes on.
func (f *feeds) set(s *site, lanes map[fleet.ID]lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, ears := map[*kvcache.Mirror]*feed{}, map[dialled]*ear{}
	wanted := map[dialled][]*feed{}
	for id, l := range lanes {
		for precise := range l.precise() {
			m := precise.Mirror()
			if next[m] != nil {
				continue
			}
			one := f.all[m]
			if one == nil {
				one = &feed{pool: id, producer: precise, store: s.store, log: s.log, sources: map[*kvevents.Source]*heard{},
					dropped: map[kvevents.Reason]uint64{}, strangers: map[string]*stranger{}, own: map[*fleet.Load]bool{}}
			}
			next[m] = one
			if k := &precise.KVEventsConfig; k.ZMQEndpoint != "" {
				at := dialled{k.ZMQEndpoint, k.TopicFilter}
				wanted[at] = append(wanted[at], one)
			}
		}
	}
	for m, old := range f.all {
		if next[m] == nil && old.stop != nil {
			old.stop()
		}
	}
	for at, list := range wanted {
		if ears[at] = f.ears[at]; ears[at] == nil {
			ears[at] = &ear{dialled: at, log: s.log, ended: make(chan struct{})}
		}
		ears[at].feeds.Store(&list)
		ears[at].tell()
	}
	var ending []*ear
	for at, old := range f.ears {
		if ears[at] == nil && old.stop != nil {
			old.stop()
			ending = append(ending, old)
		}
	}
	for _, e := range ears {
		if e.stop == nil {
			e.after = ending
		}
	}
	f.all, f.ears = next, ears
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
	begin := func(stop *context.CancelFunc, run func(context.Context)) {
		if *stop == nil {
			ctx, cancel := context.WithCancel(f.ctx)
			*stop = cancel
			f.wg.Go(func() { run(ctx) })
		}
	}
	for _, one := range f.all {
		if one.producer.KVEventsConfig.Dials() {
			begin(&one.stop, one.dial)
		}
	}
	for _, e := range f.ears {
		begin(&e.stop, e.run)
	}
}

// precise are the producers that want to hear engines.
func (l lane) precise() iter.Seq[*policy.PrecisePrefixCacheProducer] {
	return func(yield func(*policy.PrecisePrefixCacheProducer) bool) {
		for _, p := range l.Plan.Producers {
			if precise, ok := p.Plugin.(*policy.PrecisePrefixCacheProducer); ok && !yield(precise) {
				return
			}
		}
	}
}

// inherit has the producers of a lane know what those of the one before it do, where they would count alike.
func (l lane) inherit(old lane) {
	for p := range l.precise() {
		for before := range old.precise() {
			if p.Inherit(before) {
				break
			}
		}
	}
}

// dial follows the engines of the pool.
func (f *feed) dial(ctx context.Context) {
	opt := kvevents.Options{Topic: f.producer.KVEventsConfig.TopicFilter, Pool: f.pool, Begun: f.begun}
	if d := f.producer.KVEventsConfig.PodDiscoveryConfig; d != nil {
		opt.Port, opt.ReplayPort, opt.PortLabel, opt.ReplayPortLabel = d.SocketPort, d.ReplaySocketPort, d.PortLabel, d.ReplayPortLabel
	}
	_ = kvevents.Follow(ctx, f.store, opt, f) // which ends with ctx alone
}

// replays reports whether what was missed can be asked for.
func (f *feed) replays() bool {
	k := &f.producer.KVEventsConfig
	d := k.PodDiscoveryConfig
	return k.Dials() && d != nil && (d.ReplaySocketPort != 0 || d.ReplayPortLabel != "")
}

// begun notes a publisher that is dialled.
func (f *feed) begun(s *kvevents.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(s)
}

// note remembers a publisher, and forgets those whose endpoints are gone, that it stands in for, and that left without being known.
func (f *feed) note(s *kvevents.Source) *heard {
	maps.DeleteFunc(f.sources, func(o *kvevents.Source, h *heard) bool {
		if o.Load != nil {
			return o.Load.Ended() || o.Load == s.Load
		}
		return o.Name == s.Name && o.Rank == s.Rank && o.From == s.From || !o.Connected() && (h.load == nil || h.load.Ended())
	})
	maps.DeleteFunc(f.own, func(l *fleet.Load, _ bool) bool { return l.Ended() })
	h := &heard{load: s.Load}
	f.sources[s] = h
	return h
}

// of finds whose publisher it is, and whether it is an endpoint's; nil also for one that has just left, or that nothing can be
// understood of yet. seq is the number of what it says, 0 for its first message.
func (f *feed) of(s *kvevents.Source, blockTokens int, seq uint64) (h *heard, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.Load != nil && s.Load.Ended() {
		delete(f.sources, s)
		return nil, true
	}
	if h = f.sources[s]; h == nil {
		h = f.note(s)
	}
	if h.load != nil && h.load.Ended() {
		h.load, h.follower = nil, nil
	}
	if h.follower != nil && f.producer.Mirror().Of(h.follower.Slot()) == h.follower {
		return h, true
	}
	load := s.Load
	if load == nil {
		load = f.find(s)
		if h.foreign = load != nil && !f.may(s, load); h.foreign {
			load = nil
		}
	}
	if load == nil || load.Ended() {
		h.missed++
		return nil, false
	}
	m := f.producer.Mirror()
	if h.follower = m.Follow(load.Slot, blockTokens); h.follower == nil {
		return nil, true // it said nothing yet that could be understood, and so nothing that could be lost
	}
	h.load = load
	h.follower.Connected(s.Connected)
	if h.follower.Told(s.Rank) && (seq == 0 || s.Load != nil && f.replays()) {
		h.follower.Restarted(s.Rank, time.Now()) // all that it holds is told from the start
	}
	if load.Ended() { // it left meanwhile, and its slot may have been cleared before
		m.Gone(load.Slot)
		h.load, h.follower = nil, nil
		return nil, true
	}
	delete(f.strangers, s.Name)
	return h, true
}

// may reports whether a publisher that dialled us may speak for an endpoint: from the endpoint's address, after which nobody else may; and
// until then from any but another endpoint's, for there may be a translation of addresses between.
func (f *feed) may(s *kvevents.Source, load *fleet.Load) bool {
	var addr netip.Addr
	others := false
	for _, p := range f.store.Load().Pools {
		for _, e := range p.Endpoints {
			at := e.AddrPort.Addr().Unmap().WithZone("")
			others = others || at == s.From
			if e.Load == load {
				addr = at
			}
		}
	}
	if !s.From.IsValid() || s.From != addr {
		return !s.From.IsValid() || !others && !f.own[load]
	}
	if !f.own[load] {
		f.own[load] = true
		for o, h := range f.sources {
			if h.load == load && o.From != addr { // all that it said is void
				h.load, h.follower = nil, nil
				f.producer.Mirror().Gone(load.Slot)
			}
		}
	}
	return true
}

// find is the endpoint that a publisher names which dialled us: by its ip:port, or by its address or name and, where these are of a pod
// with several endpoints, its rank.
func (f *feed) find(s *kvevents.Source) *fleet.Load {
	pool := f.store.Load().Pool(f.pool)
	if pool == nil {
		return nil
	}
	at, _ := netip.ParseAddrPort(s.Name)
	ip, _ := netip.ParseAddr(strings.Trim(s.Name, "[]"))
	at, ip = netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), ip.Unmap()
	var named *fleet.Endpoint
	var same []*fleet.Endpoint
	for _, e := range pool.Endpoints {
		addr := e.AddrPort.Addr().Unmap()
		switch {
		case at.IsValid() && at == netip.AddrPortFrom(addr, e.AddrPort.Port()), e.Name == s.Name && e.Pod == "":
			named = e
		case e.Pod != "" && e.Pod == s.Name, ip.IsValid() && addr == ip:
			same = append(same, e)
		}
	}
	switch {
	case named != nil:
		same = ranksOf(pool, named)
		if same[0] != named {
			return named.Load
		}
	case len(same) == 0:
		return nil
	default:
		ranks := ranksOf(pool, same[0])
		if len(ranks) != len(same) {
			return nil // engines that share an address
		}
		same = ranks
	}
	return same[max(s.Rank, 0)%len(same)].Load // ranks are counted over all pods of an engine
}

// ranksOf are the endpoints of an endpoint's pod, by port.
func ranksOf(pool *fleet.Pool, of *fleet.Endpoint) []*fleet.Endpoint {
	if of.Pod == "" {
		return []*fleet.Endpoint{of}
	}
	var list []*fleet.Endpoint
	for _, e := range pool.Endpoints {
		if e.Pod == of.Pod && e.Namespace == of.Namespace && e.AddrPort.Addr() == of.AddrPort.Addr() {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *fleet.Endpoint) int { return int(a.AddrPort.Port()) - int(b.AddrPort.Port()) })
	return list
}

// Batch implements [kvevents.Sink].
func (f *feed) Batch(s *kvevents.Source, seq uint64, b *kvevents.Batch) {
	if !f.batch(s, seq, b) {
		f.unknown(s)
	}
}

// batch reports whether the publisher is an endpoint of the pool.
func (f *feed) batch(s *kvevents.Source, seq uint64, b *kvevents.Batch) bool {
	told := 0
	for i := range b.Events {
		if e := &b.Events[i]; kvcache.Follows(e.SpecKind) && e.BlockSize > 0 {
			told = e.BlockSize
			break
		}
	}
	h, known := f.of(s, told, seq)
	if h == nil {
		return known
	}
	now := time.Now()
	if h.missed > 0 {
		h.follower.Gap(h.missed, now)
		h.missed = 0
	}
	ok, again := h.follower.Believe(now)
	if again && s.Load != nil && f.replays() {
		s.Again() // this message, too: told twice, its blocks would be held twice
		return true
	}
	if !ok {
		return true
	}
	for i := range b.Events {
		h.apply(&b.Events[i], s.Rank)
	}
	f.sized(f.producer.Mirror().Block())
	return true
}

// sized says when most engines overruled the first to tell how large blocks are.
func (f *feed) sized(block int) {
	f.mu.Lock()
	old := f.block
	f.block = block
	f.mu.Unlock()
	if old != 0 && old != block {
		f.log.Warn("most engines have blocks of another size than was told first: the index begins anew", slog.String("pool", f.pool.String()),
			slog.Int("tokens", block), slog.Int("before", old))
	}
}

// unknown counts a message of nobody's.
func (f *feed) unknown(s *kvevents.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reason := unknownPublisher
	if h := f.sources[s]; h != nil && h.foreign {
		reason = foreignPublisher
	}
	f.dropped[reason]++
	who := f.strangers[s.Name]
	if who == nil {
		if len(f.strangers) >= mostStrangers {
			oldest := ""
			for name, o := range f.strangers {
				if oldest == "" || o.last.Before(f.strangers[oldest].last) {
					oldest = name
				}
			}
			delete(f.strangers, oldest)
		}
		who = &stranger{}
		f.strangers[s.Name] = who
	}
	who.from = s.From
	who.messages++
	who.last = time.Now()
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
			Adapter: e.LoraName, Tier: tier, Group: group, Kind: e.SpecKind, Rank: rank, Reused: e.Reused}
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
	if h, _ := f.of(s, 0, from+1); h != nil {
		h.follower.Gap(to-from+1, time.Now())
	}
}

// Restarted implements [kvevents.Sink].
func (f *feed) Restarted(s *kvevents.Source) {
	if h, _ := f.of(s, 0, 1); h != nil {
		h.follower.Restarted(s.Rank, time.Now())
	}
}

// Dropped implements [kvevents.Sink].
func (f *feed) Dropped(_ *kvevents.Source, reason kvevents.Reason) { f.drop(reason) }

func (f *feed) drop(reason kvevents.Reason) {
	f.mu.Lock()
	f.dropped[reason]++
	f.mu.Unlock()
}

// dialled is an address that engines dial, and how the topics begin that count there.
type dialled struct{ endpoint, topic string }

// ear hears what engines say that dial us, for all feeds that want to know.
type ear struct {
	dialled
	log   *slog.Logger
	feeds atomic.Pointer[[]*feed]
	stop  context.CancelFunc // nil before it runs
	after []*ear             // may have its address, and end
	ended chan struct{}

	mu  sync.Mutex
	err string // why it cannot hear
}

// listenAgain is how long to wait before an address that could not be had is tried again.
const listenAgain = 5 * time.Second

func (e *ear) run(ctx context.Context) {
	defer close(e.ended)
	for _, old := range e.after {
		<-old.ended
	}
	e.after = nil
	for ctx.Err() == nil {
		l, err := kvevents.Listen(ctx, e.endpoint)
		if err == nil {
			e.set("")
			err = kvevents.Serve(ctx, l, kvevents.Options{Topic: e.topic}, e)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if e.set(err.Error()) {
			e.log.Error("KV events cannot be heard: prefixes are remembered by what was sent where; tried again every 5 s", slog.String("address", e.endpoint), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// set notes why nothing can be heard, and reports whether that is new.
func (e *ear) set(err string) bool {
	e.mu.Lock()
	isNew := e.err != err
	e.err = err
	e.mu.Unlock()
	e.tell()
	return isNew
}

// tell has the feeds know why nothing comes.
func (e *ear) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range *e.feeds.Load() {
		f.mu.Lock()
		f.err = e.err
		f.mu.Unlock()
	}
}

// Batch implements [kvevents.Sink].
func (e *ear) Batch(s *kvevents.Source, seq uint64, b *kvevents.Batch) {
	known := false
	for _, f := range *e.feeds.Load() {
		known = f.batch(s, seq, b) || known
	}
	for _, f := range *e.feeds.Load() {
		if !known {
			f.unknown(s)
		}
	}
}

// Gap implements [kvevents.Sink].
func (e *ear) Gap(s *kvevents.Source, from, to uint64) {
	for _, f := range *e.feeds.Load() {
		f.Gap(s, from, to)
	}
}

// Restarted implements [kvevents.Sink].
func (e *ear) Restarted(s *kvevents.Source) {
	for _, f := range *e.feeds.Load() {
		f.Restarted(s)
	}
}

// Dropped implements [kvevents.Sink].
func (e *ear) Dropped(s *kvevents.Source, reason kvevents.Reason) {
	for _, f := range *e.feeds.Load() {
		f.Dropped(s, reason)
	}
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
	for name, who := range f.strangers {
		if now.Sub(who.last) < strangersFor {
			from := ""
			if who.from.IsValid() {
				from = who.from.String()
			}
			v.Strangers = append(v.Strangers, observe.CacheStranger{Name: name, From: from, Messages: who.messages, HeardMS: max(1, now.Sub(who.last).Milliseconds())})
		}
	}
	slices.SortFunc(v.Strangers, func(a, b observe.CacheStranger) int { return strings.Compare(a.Name, b.Name) })
	for s, h := range f.sources {
		if h.load != nil {
			p := observe.CachePublisher{Rank: s.Rank, Connected: s.Connected()}
			if at := s.Heard(); !at.IsZero() {
				p.HeardMS = max(1, now.Sub(at).Milliseconds())
			}
			if err := s.Failed(); err != nil {
				p.Error = err.Error()
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
			maps.DeleteFunc(c.Counts, func(_ string, n uint64) bool { return n == 0 })
			switch {
			case k.Muted(now):
				c.Evidence = "distrusted"
			case k.Live(now):
				c.Evidence = "events"
			case !k.Up():
				c.Evidence = "disconnected"
			case k.Events() > 0:
				c.Evidence = "silent"
			case n.Misfit > 0:
				c.Evidence = "misfit"
			case n.Skipped > 0:
				c.Evidence = "skipped"
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
