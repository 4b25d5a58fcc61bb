// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// spread counts durations in buckets that grow by 4 % each, from 10 µs to over 1,000 s: quantiles of
// any number of values in fixed memory, 2 % off at most.
type spread struct {
	counts [buckets]uint32
	n      uint64
}

const (
	buckets = 480
	growth  = 1.04
	least   = 10 * time.Microsecond
)

func (s *spread) add(d time.Duration) {
	i := 0
	if d > least {
		i = min(buckets-1, int(math.Log(float64(d)/float64(least))/math.Log(growth))+1)
	}
	s.counts[i]++
	s.n++
}

func (s *spread) merge(o *spread) {
	for i, c := range o.counts {
		s.counts[i] += c
	}
	s.n += o.n
}

// quantile is the duration below which the share q of all lies, 0 when there are none.
func (s *spread) quantile(q float64) time.Duration {
	rank := max(1, uint64(math.Ceil(q*float64(s.n))))
	seen := uint64(0)
	for i, c := range s.counts {
		seen += uint64(c)
		if seen >= rank {
			return time.Duration(float64(least) * math.Pow(growth, float64(i)-0.5)) // the middle of the bucket
		}
	}
	return 0
}

// share is what one endpoint did.
type share struct {
	endpoint       string
	answered       uint64
	prompt, cached uint64 // tokens
}

// Tally is what was measured over some time.
type Tally struct {
	lasted     time.Duration
	answered   uint64 // completely
	failed     uint64
	skipped    uint64
	completion uint64 // tokens
	inFlight   int
	ttft       spread
	shares     []share // by endpoint, in order of name
	faults     []fault
}

type fault struct {
	what string
	n    uint64
}

// Whoever is on the other side chooses endpoints' and faults' names; we keep no more than these.
const (
	maxShares = 512
	maxFaults = 64
	other     = "other"
)

func (t *Tally) share(endpoint string) *share {
	i, ok := slices.BinarySearchFunc(t.shares, endpoint, func(s share, e string) int { return cmp.Compare(s.endpoint, e) })
	if !ok && len(t.shares) >= maxShares && endpoint != other {
		return t.share(other)
	}
	if !ok {
		t.shares = slices.Insert(t.shares, i, share{endpoint: endpoint})
	}
	return &t.shares[i]
}

func (t *Tally) fault(what string) *fault {
	i, ok := slices.BinarySearchFunc(t.faults, what, func(f fault, w string) int { return cmp.Compare(f.what, w) })
	if !ok && len(t.faults) >= maxFaults && what != other {
		return t.fault(other)
	}
	if !ok {
		t.faults = slices.Insert(t.faults, i, fault{what: what})
	}
	return &t.faults[i]
}

func (t *Tally) add(a *Answer, due time.Time) {
	if a.Fault != "" {
		t.failed++
		t.fault(a.Fault).n++
		return
	}
	t.answered++
	t.completion += uint64(a.Tokens())
	if len(a.Arrivals) > 0 {
		t.ttft.add(a.First().Sub(due))
	}
	s := t.share(a.Endpoint)
	s.answered++
	s.prompt += uint64(max(0, a.Usage.Prompt))
	s.cached += uint64(max(0, a.Usage.Cached))
}

func (t *Tally) merge(o *Tally) {
	t.answered += o.answered
	t.failed += o.failed
	t.skipped += o.skipped
	t.completion += o.completion
	t.ttft.merge(&o.ttft)
	for _, s := range o.shares {
		mine := t.share(s.endpoint)
		mine.answered += s.answered
		mine.prompt += s.prompt
		mine.cached += s.cached
	}
	for _, f := range o.faults {
		t.fault(f.what).n += f.n
	}
}

// cached is the share of prompt tokens that came out of a cache.
func (t *Tally) cached() float64 {
	prompt, cached := uint64(0), uint64(0)
	for _, s := range t.shares {
		prompt += s.prompt
		cached += s.cached
	}
	return ratio(cached, prompt)
}

func ratio(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// slots is how many seconds the moving summary covers.
const slots = 10

// Meter collects results: all of them, and those of the last seconds.
type Meter struct {
	mu       sync.Mutex
	all      Tally
	inFlight int
	began    time.Time
	ring     [slots]Tally
	second   int64 // since began; ring[second%slots] is being filled
}

// NewMeter begins at a time.
func NewMeter(now time.Time) *Meter { return &Meter{began: now} }

// Begin is the sending of a request.
func (m *Meter) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight++
}

// Cancel is the end of a request that nobody waits for any more.
func (m *Meter) Cancel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
}

// End is the answer to a request that was due at a time.
func (m *Meter) End(a *Answer, due time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
	m.all.add(a, due)
	m.slot(a.End).add(a, due)
}

// Skip is a request that was not sent, because too many were open.
func (m *Meter) Skip(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.skipped++
	m.slot(now).skipped++
}

// slot is the tally of the second that now is in. Called with mu held.
func (m *Meter) slot(now time.Time) *Tally {
	second := int64(now.Sub(m.began) / time.Second)
	for i := max(m.second+1, second-slots+1); i <= second; i++ {
		m.ring[i%slots] = Tally{}
	}
	m.second = max(m.second, second)
	return &m.ring[m.second%slots]
}

// Recent sums up the last seconds.
func (m *Meter) Recent(now time.Time) Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slot(now) // forget what is too old
	sum := Tally{inFlight: m.inFlight}
	for i := range m.ring {
		sum.merge(&m.ring[i])
	}
	// The second that is being filled counts for as much of it as has passed.
	since := now.Sub(m.began)
	sum.lasted = min(since, (slots-1)*time.Second+since%time.Second)
	return sum
}

// total sums up everything.
func (m *Meter) total() Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := Tally{inFlight: m.inFlight, lasted: time.Since(m.began)}
	sum.merge(&m.all)
	return sum
}
