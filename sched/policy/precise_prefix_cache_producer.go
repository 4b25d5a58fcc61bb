// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// PrecisePrefixCacheProducer knows how much of a prompt each endpoint holds from the engines' own KV events, and in between from the
// decisions made.
//
// A decision writes a promise for the blocks that the endpoint is about to compute, so that requests that come at once follow each
// other; the engine's event confirms it, the end of the request without one, or speculativeTTL, takes it
// back. Where events do not come (the engine publishes none, is not connected, or what it said proved wrong by the cached
// tokens that it reports), an endpoint is remembered as by approx-prefix-cache-producer. Blocks can be confirmed only
// where prompts are known as tokens: see token-producer. All is in one index of bounded size.
type PrecisePrefixCacheProducer struct {
	KVIndexing

	name    string
	unshown *unshown
	mirror  *kvcache.Mirror
	bytes   int64 // of the mirror, and its block as it was configured
	block   int

	mu     sync.Mutex
	ending []*promise // of requests that ended and whose blocks may still be confirmed, by time
	free   sync.Pool
}

// KVIndexing says how an index follows engines.
type KVIndexing struct {
	// TokenProcessorConfig says how prompts are cut into blocks.
	TokenProcessorConfig TokenProcessor `json:"tokenProcessorConfig"`
	// IndexerConfig bounds the index and weighs tiers.
	IndexerConfig KVIndexer `json:"indexerConfig"`
	// KVEventsConfig says where events come from.
	KVEventsConfig KVEvents `json:"kvEventsConfig"`
	// SpeculativeIndexing writes promises, unless it is false.
	SpeculativeIndexing *bool `json:"speculativeIndexing"`
	// SpeculativeTTL is how long a promise holds while the request is in flight and nothing confirms it: 60s when left out.
	SpeculativeTTL string `json:"speculativeTTL"`

	bytes int64
	ttl   time.Duration
	tiers [3]float64 // what a block in each is worth
}

// TokenProcessor says how prompts are cut into blocks.
type TokenProcessor struct {
	// BlockSizeTokens is the block; 0 takes the engines'.
	BlockSizeTokens int `json:"blockSizeTokens"`
	// BlockSize is the deprecated name of BlockSizeTokens.
	BlockSize int `json:"blockSize"`
	// HashSeed has no effect: the index has keys of its own, whatever engines call their blocks.
	HashSeed string `json:"hashSeed"`
	// HashAlgorithm, cbor-fnv or xxh64, has no effect either.
	HashAlgorithm string `json:"hashAlgorithm"`
}

// KVIndexer bounds the index and weighs tiers.
type KVIndexer struct {
	// KVBlockIndexConfig bounds its memory; 2GiB where it says nothing.
	KVBlockIndexConfig KVBlockIndex `json:"kvBlockIndexConfig"`
	// KVCacheBackendConfigs weigh tiers: a block there is worth weight of one that is to be had at once.
	KVCacheBackendConfigs []KVTier `json:"kvCacheBackendConfigs"`
	// TokenizersPoolConfig belongs to token-producer and is refused.
	TokenizersPoolConfig any `json:"tokenizersPoolConfig"`
}

// KVBlockIndex bounds the memory of the index.
type KVBlockIndex struct {
	// InMemoryConfig bounds it by a number of blocks.
	InMemoryConfig *KVBlockCount `json:"inMemoryConfig"`
	// CostAwareMemoryConfig bounds it by bytes.
	CostAwareMemoryConfig *KVBlockBytes `json:"costAwareMemoryConfig"`
	// RedisConfig is refused: the index is in memory.
	RedisConfig *KVRedis `json:"redisConfig"`
	// EnableMetrics has no effect: there are always metrics.
	EnableMetrics bool `json:"enableMetrics"`
	// MetricsLoggingInterval has no effect: /debug/kvcache tells at any time.
	MetricsLoggingInterval string `json:"metricsLoggingInterval"`
}

// KVBlockCount bounds an index by blocks.
type KVBlockCount struct {
	// Size is how many blocks, of 48 bytes each.
	Size int64 `json:"size"`
	// PodCacheSize has no effect: any number of endpoints may hold a block.
	PodCacheSize int `json:"podCacheSize"`
}

// KVBlockBytes bounds an index by bytes.
type KVBlockBytes struct {
	// Size is a number of bytes, such as 2GiB.
	Size string `json:"size"`
}

// KVRedis is where another project keeps its index.
type KVRedis struct {
	// Address is of the server.
	Address string `json:"address"`
}

// KVTier weighs a tier.
type KVTier struct {
	// Name is gpu, cpu or disk; blocks of any other tier are not followed.
	Name string `json:"name"`
	// Weight is from 0 to 1: 1 for gpu and 0.8 for the others where nobody says.
	Weight float64 `json:"weight"`
}

// KVEvents says where events come from.
type KVEvents struct {
	// ZMQEndpoint is where engines dial us, such as tcp://*:5557; empty for nowhere.
	ZMQEndpoint string `json:"zmqEndpoint"`
	// TopicFilter is how the topics begin that count.
	TopicFilter string `json:"topicFilter"`
	// Concurrency has no effect: each engine's events are applied as they come.
	Concurrency int `json:"concurrency"`
	// EngineType is vllm or sglang; both forms are read whatever it says.
	EngineType string `json:"engineType"`
	// DiscoverPods dials the engines, unless it is false or zmqEndpoint is given.
	DiscoverPods *bool `json:"discoverPods"`
	// PodDiscoveryConfig says where engines publish.
	PodDiscoveryConfig *PodDiscovery `json:"podDiscoveryConfig"`
}

// PodDiscovery says where engines publish.
type PodDiscovery struct {
	// PodLabelSelector has no effect: every endpoint of the pool is dialled.
	PodLabelSelector string `json:"podLabelSelector"`
	// PodNamespace has no effect either.
	PodNamespace string `json:"podNamespace"`
	// SocketPort is what rank 0 publishes on, those above on the ports behind it; 5557 when left out.
	SocketPort int `json:"socketPort"`
	// ReplaySocketPort is, in the same way, where missed events can be asked for; 0 for nowhere.
	ReplaySocketPort int `json:"replaySocketPort"`
	// PortLabel names a label of endpoints that holds their own socketPort, for engines that share a host.
	PortLabel string `json:"portLabel"`
	// ReplayPortLabel names one for replaySocketPort.
	ReplayPortLabel string `json:"replayPortLabel"`
}

// Bounds and usual values.
const (
	usualIndexBytes = 2 << 30
	leastIndexBytes = 1 << 20
	indexBlockBytes = 48
	usualPromise    = time.Minute
	mostPromise     = time.Hour
	// What is not confirmed so long after the end of its request is not cached.
	lateEvents = 2 * time.Second
	// mostPromised bounds the blocks that are noted of one request, mostEnding the requests that wait for late events.
	mostPromised = 2048
	mostEnding   = 1024
	// mostDenied bounds the blocks of a request that are noted to be told apart from what the engine then had to compute.
	mostDenied = 1024
)

// usualTiers is what a block is worth in each tier, where nobody says; the field's figures, and the processor's for the disk.
var usualTiers = [3]float64{1, 0.8, 0.8}

var tiersByName = map[string]kvcache.Tier{"gpu": kvcache.GPU, "cpu": kvcache.CPU, "disk": kvcache.Disk, "storage": kvcache.Disk}

func newPrecisePrefixCacheProducer() *PrecisePrefixCacheProducer {
	return &PrecisePrefixCacheProducer{KVIndexing: usualKVIndexing(), unshown: new(unshown), mirror: kvcache.NewMirror(usualIndexBytes, 0), bytes: usualIndexBytes}
}

func usualKVIndexing() KVIndexing {
	return KVIndexing{KVEventsConfig: KVEvents{TopicFilter: "kv@"}, ttl: usualPromise, tiers: usualTiers}
}

// SetName implements [sched.Namer].
func (p *PrecisePrefixCacheProducer) SetName(name string) { p.name = name }

// Mirror is what engines said they hold.
func (p *PrecisePrefixCacheProducer) Mirror() *kvcache.Mirror { return p.mirror }

// Inherit takes over what another producer knows, if it has the same name and parameters. It reports whether it did. It is called
// before the first request.
func (p *PrecisePrefixCacheProducer) Inherit(old *PrecisePrefixCacheProducer) bool {
	if p.name != old.name || !reflect.DeepEqual(p.KVIndexing, old.KVIndexing) {
		return false
	}
	p.mirror = old.mirror
	return true
}

// Name is the configured one.
func (p *PrecisePrefixCacheProducer) Name() string { return p.name }

// Validate reports parameters that cannot be, and makes another index where they want one.
func (p *PrecisePrefixCacheProducer) Validate() error {
	if err := p.KVIndexing.Validate(); err != nil {
		return err
	}
	if bytes, block := p.KVIndexing.bytes, p.TokenProcessorConfig.BlockSizeTokens; bytes != p.bytes || block != p.block {
		p.mirror, p.bytes, p.block = kvcache.NewMirror(bytes, block), bytes, block
	}
	return nil
}

// Validate reports parameters that cannot be.
func (p *KVIndexing) Validate() error {
	t := &p.TokenProcessorConfig
	if t.BlockSizeTokens == 0 {
		t.BlockSizeTokens = t.BlockSize
	}
	switch {
	case t.BlockSizeTokens < 0:
		return errors.New("tokenProcessorConfig.blockSizeTokens: must be above 0, or 0 for the engines' own")
	case t.BlockSizeTokens > mostBlockTokens:
		return fmt.Errorf("tokenProcessorConfig.%w", errTooLarge)
	case t.HashAlgorithm != "" && t.HashAlgorithm != "cbor-fnv" && t.HashAlgorithm != "xxh64":
		return fmt.Errorf("tokenProcessorConfig.hashAlgorithm: want cbor-fnv or xxh64, got %.100q", t.HashAlgorithm)
	}
	if err := p.IndexerConfig.validate(p); err != nil {
		return fmt.Errorf("indexerConfig.%w", err)
	}
	if err := p.KVEventsConfig.validate(); err != nil {
		return fmt.Errorf("kvEventsConfig.%w", err)
	}
	p.ttl = usualPromise
	if p.SpeculativeTTL != "" {
		d, err := time.ParseDuration(p.SpeculativeTTL)
		if err != nil || d <= 0 || d > mostPromise {
			return fmt.Errorf("speculativeTTL: want a duration up to 1h, such as 2s, got %.100q", p.SpeculativeTTL)
		}
		p.ttl = d
	}
	return nil
}

func (x *KVIndexer) validate(p *KVIndexing) error {
	p.bytes = usualIndexBytes
	k := &x.KVBlockIndexConfig
	if m := k.InMemoryConfig; m != nil && m.Size != 0 {
		if m.Size < 0 || m.Size > 1<<40 {
			return errors.New("kvBlockIndexConfig.inMemoryConfig.size: must be above 0")
		}
		p.bytes = m.Size * indexBlockBytes
	}
	if m := k.CostAwareMemoryConfig; m != nil && m.Size != "" {
		n, err := bytesOf(m.Size)
		if err != nil {
			return fmt.Errorf("kvBlockIndexConfig.costAwareMemoryConfig.size: %w", err)
		}
		p.bytes = n
	}
	p.bytes = max(p.bytes, leastIndexBytes)
	p.tiers = usualTiers
	for i, b := range x.KVCacheBackendConfigs {
		if !(b.Weight >= 0 && b.Weight <= 1) {
			return fmt.Errorf("kvCacheBackendConfigs[%d].weight: must be between 0 and 1", i)
		}
		if tier, ok := tiersByName[strings.ToLower(b.Name)]; ok { // of any other, engines' blocks are not followed
			p.tiers[tier] = b.Weight
		}
	}
	switch {
	case k.RedisConfig != nil:
		return errors.New("kvBlockIndexConfig.redisConfig: an index in Redis is not supported: the index is in memory")
	case x.TokenizersPoolConfig != nil:
		return errors.New("tokenizersPoolConfig: belongs to token-producer: want its parameter local or vllm")
	}
	return nil
}

// bytesOf reads a number of bytes with its unit.
func bytesOf(s string) (int64, error) {
	at := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if at < 0 {
		at = len(s)
	}
	units := map[string]float64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
		"KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
	n, err := strconv.ParseFloat(s[:at], 64)
	unit, ok := units[strings.ToUpper(strings.TrimSpace(s[at:]))]
	if err != nil || !ok || !(n*unit >= 1 && n*unit <= 1<<50) {
		return 0, fmt.Errorf("want a number of bytes such as 2GiB, got %.100q", s)
	}
	return int64(n * unit), nil
}

func (k *KVEvents) validate() error {
	if k.EngineType != "" && k.EngineType != "vllm" && k.EngineType != "sglang" {
		return fmt.Errorf("engineType: want vllm or sglang, got %.100q", k.EngineType)
	}
	if k.ZMQEndpoint != "" && !strings.HasPrefix(k.ZMQEndpoint, "tcp://") {
		return fmt.Errorf("zmqEndpoint: want tcp://HOST:PORT, with * for all addresses of this machine, got %.100q", k.ZMQEndpoint)
	}
	if d := k.PodDiscoveryConfig; d != nil {
		for _, port := range [...]struct {
			name string
			n    int
		}{{"socketPort", d.SocketPort}, {"replaySocketPort", d.ReplaySocketPort}} {
			if port.n < 0 || port.n > 65535 {
				return fmt.Errorf("podDiscoveryConfig.%s: want a port, 1 to 65535, got %d", port.name, port.n)
			}
		}
	}
	return nil
}

// Dials reports whether engines are dialled for their events.
func (k *KVEvents) Dials() bool {
	return k.ZMQEndpoint == "" && (k.DiscoverPods == nil || *k.DiscoverPods)
}

// Produce implements [sched.Producer].
func (p *PrecisePrefixCacheProducer) Produce(c *sched.Cycle) {
	block, cell := p.mirror.Sizes(0)
	if block == 0 {
		block, cell = p.mirror.Sizes(usualBlock(c.Candidates))
	}
	found := c.AddPrefix(p.name)
	found.Precise, found.Index = true, p.mirror.Index
	var h *kvcache.Hasher
	if c.Tokenized() && block > 0 {
		h = c.HashTokens(block, cell, max(1, mostPrefixTokens/block), p.adapter(c))
	} else {
		block = max(block, kvcache.MinBlockTokens)
		h = c.Hash(block, max(1, mostPrefixTokens/block))
	}
	if c.Tokens == 0 {
		c.Tokens = h.Tokens()
	}
	p.mirror.Tick(c.Now)
	found.BlockTokens, found.Asked, found.Tiers = block, p.unshown.now(), &p.tiers
	c.LookUpEvidence(p.mirror.Index, h, found)
}

// usualBlock is the block that most endpoints have, of those that say; 0 when none does.
func usualBlock(list []*fleet.Endpoint) int {
	count := map[int]int{}
	best := 0
	for _, e := range list {
		if e.BlockSize > 0 && e.BlockSize <= mostBlockTokens {
			if count[e.BlockSize]++; count[e.BlockSize] > count[best] {
				best = e.BlockSize
			}
		}
	}
	return best
}

// mostPrefixTokens bounds how much of a prompt is looked at.
const mostPrefixTokens = 1 << 20

// adapter is the request's model where that is an adapter of another, else empty.
func (p *PrecisePrefixCacheProducer) adapter(c *sched.Cycle) string {
	if p.mirror.Adapter(c.Model) {
		return c.Model
	}
	for _, e := range c.Candidates {
		if slices.Contains(e.Tuned, c.Model) || slices.Contains(e.Adapters, c.Model) || slices.Contains(e.Queued, c.Model) {
			return c.Model
		}
	}
	return ""
}

// Refresh implements [sched.Reserver].
func (p *PrecisePrefixCacheProducer) Refresh(c *sched.Cycle) {
	found := c.Prefix(p.name)
	p.unshown.refresh(c, found)
	for i := range found.Evidence {
		e := &found.Evidence[i]
		e.Provisional += found.Match[i] - e.Blocks()
	}
}

// Reserve implements [sched.Reserver].
func (p *PrecisePrefixCacheProducer) Reserve(c *sched.Cycle, chosen *fleet.Endpoint) {
	if p.promises() {
		p.unshown.reserve(c.Prefix(p.name), chosen.Load)
	}
}

func (p *PrecisePrefixCacheProducer) promises() bool {
	return p.SpeculativeIndexing == nil || *p.SpeculativeIndexing
}

// promise is what is noted of a request until its end.
type promise struct {
	of    *PrecisePrefixCacheProducer
	load  *fleet.Load
	at    int // of the prompt's blocks, the first of keys
	keys  []uint64
	known []uint64 // the last of those before, which the engine said it holds
	block int
	// capacity is how many blocks the endpoint has. until is the promise's deadline, Forever where no event
	// will confirm it.
	capacity int
	until    int64
	ended    time.Time
	// one tells that there is one prompt, of which alone engines say what they had cached. sure tells that all that was predicted of it,
	// of so many tokens, was the engine's word; heard is how many events had come.
	one    bool
	sure   bool
	tokens int64
	// recomputes tells that the engine reads nothing from its cache.
	recomputes bool
	heard      uint64
}

// Placed implements [sched.Placer].
func (p *PrecisePrefixCacheProducer) Placed(c *sched.Cycle, chosen *fleet.Endpoint) {
	found := c.Prefix(p.name)
	if found.Hash == nil {
		return
	}
	var r *promise
	for _, have := range c.Receipts {
		if mine, ok := have.(*promise); ok && mine.of == p {
			mine.withdraw()
			r = mine
		}
	}
	if r == nil {
		if r, _ = p.free.Get().(*promise); r == nil {
			r = &promise{of: p}
		}
		c.Receipts = append(c.Receipts, r)
	}
	e := kvcache.Evidence{}
	if i := slices.IndexFunc(c.Candidates, func(o *fleet.Endpoint) bool { return o.Load == chosen.Load }); i >= 0 && found.Evidence != nil {
		e = found.Evidence[i]
	}
	f := p.mirror.Of(chosen.Load.Slot)
	live := f.Live(c.Now) && c.Tokenized() && found.BlockTokens == p.mirror.Block()
	r.load, r.block, r.capacity, r.until = chosen.Load, found.BlockTokens, capacityOf(chosen, found.BlockTokens, usualCapacity), kvcache.Forever
	keys := found.Hash.Keys
	r.one = len(found.Hash.Starts) == 1
	r.sure, r.at, r.tokens, r.heard = live && r.one && e.Provisional == 0 && !c.Recomputes, 0, c.Tokens, f.Events()
	r.recomputes = c.Recomputes
	if r.one && live { // what is confirmed needs no promise
		r.at = min(int(e.Confirmed()), len(keys))
	}
	r.known = append(r.known[:0], keys[max(0, r.at-mostDenied):r.at]...)
	keys = keys[r.at:]
	if live {
		r.until = p.mirror.Tick(c.Now) + max(1, int64(p.ttl/time.Second))
	}
	r.keys = r.keys[:0]
	if live { // else there is nothing to take back
		r.keys = append(r.keys, keys[:min(len(keys), mostPromised)]...)
	}
	if p.promises() || !live {
		p.mirror.Index.Expect(keys, chosen.Load.Slot, r.capacity, r.until)
	}
	p.left(chosen.Load)
	p.unshown.added(found, chosen.Load)
	p.late(c.Now)
}

// left forgets an endpoint of which something was written while it left: Gone may have come first, and the slot must be clean for
// another.
func (p *PrecisePrefixCacheProducer) left(l *fleet.Load) {
	if l.Ended() {
		p.mirror.Gone(l.Slot)
	}
}

// withdraw takes back what nobody confirmed.
func (r *promise) withdraw() {
	if r.until != kvcache.Forever && !r.load.Ended() {
		r.of.mirror.Index.Unexpect(r.keys, r.load.Slot, r.until)
	}
}

// Settle implements [sched.Receipt]. The engine may be a moment behind with its events; then they confirm the promise after all.
func (r *promise) Settle(e sched.Ending) {
	p := r.of
	if !e.Served {
		r.withdraw()
		p.free.Put(r)
		return
	}
	p.judge(r, e)
	p.deny(r, e)
	if n := min(int(e.Cached)/r.block-r.at, len(r.keys)); n > 0 && r.one && !r.load.Ended() {
		// The engine has read these from its cache: it holds them, though it did not say so while we listened.
		p.mirror.Index.Add(r.keys[:n], r.load.Slot, r.capacity)
		p.left(r.load)
		r.keys = r.keys[:copy(r.keys, r.keys[n:])]
	}
	if r.until == kvcache.Forever || len(r.keys) == 0 {
		p.free.Put(r)
		return
	}
	r.ended = e.Now
	p.mu.Lock()
	if len(p.ending) < mostEnding {
		p.ending = append(p.ending, r)
		r = nil
	}
	p.mu.Unlock()
	if r != nil {
		r.expire()
	}
	p.late(e.Now)
}

// expire ends a promise that had its time. An engine that computed blocks and said nothing at all may not say what it holds; if that
// happens again and again, what it was sent is all that is known of it.
func (r *promise) expire() {
	p := r.of
	switch f := p.mirror.Of(r.load.Slot); {
	case r.load.Ended():
	case f != nil && f.Silent(r.heard):
		p.mirror.Index.Add(r.keys, r.load.Slot, r.capacity)
		p.left(r.load)
	default:
		r.withdraw()
	}
	p.free.Put(r)
}

// late withdraws promises whose requests ended a while ago.
func (p *PrecisePrefixCacheProducer) late(now time.Time) {
	for {
		p.mu.Lock()
		if len(p.ending) == 0 || now.Sub(p.ending[0].ended) < lateEvents {
			p.mu.Unlock()
			return
		}
		r := p.ending[0]
		p.ending = slices.Delete(p.ending, 0, 1)
		p.mu.Unlock()
		r.expire()
	}
}

// judge mutes an engine whose word proved wrong.
func (p *PrecisePrefixCacheProducer) judge(r *promise, e sched.Ending) {
	if !r.sure || e.Cached < 0 || r.load.Ended() {
		return
	}
	if f := p.mirror.Of(r.load.Slot); f != nil {
		f.Judge(e.Now, min(int64(r.at*r.block), r.tokens), e.Cached, max(e.Prompt, r.tokens))
	}
}

// deny tells of blocks that the engine had said it holds and yet computed: it cannot have them more than once. Engines announce
// blocks again that they only read when a request's vllm_xargs.kv_cache_report_mode says so, which nothing tells apart from a second
// copy.
func (p *PrecisePrefixCacheProducer) deny(r *promise, e sched.Ending) {
	if !r.one || r.recomputes || e.Cached < 0 || r.load.Ended() {
		return
	}
	had := max(0, int(e.Cached)/r.block-(r.at-len(r.known)))
	if had >= len(r.known) {
		return
	}
	if f := p.mirror.Of(r.load.Slot); f != nil {
		f.Once(r.known[had:])
	}
}

// Gone implements [sched.Leaver].
func (p *PrecisePrefixCacheProducer) Gone(loads []*fleet.Load) {
	for _, l := range loads {
		p.mirror.Gone(l.Slot)
	}
}

// Renewed implements [sched.Renewer].
func (p *PrecisePrefixCacheProducer) Renewed(l *fleet.Load, seen time.Time) {
	p.mirror.Renewed(l.Slot, seen)
}
