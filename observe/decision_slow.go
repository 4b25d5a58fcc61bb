// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math/bits"
	"sync"
	"time"
)

// A request is slow when its first token or its end came later than for 99 of 100 answers of its pool in the
// last minute, or the half of it that is over. These bounds are never below the least ones; they are the first
// ones until a pool gave enough answers to compare with.
const (
	leastTTFT, leastDuration = 200 * time.Millisecond, 2 * time.Second
	firstTTFT, firstDuration = 2 * time.Second, 30 * time.Second
	enoughAnswers            = 100
	slowWindow               = 30 * time.Second
	maxTails                 = 1024 // pools; those beyond are judged together
)

// tails are the slow ends of the pools' times.
type tails struct {
	mu     sync.RWMutex
	byPool map[string]*tail
	others tail
}

// tail judges the times of one pool.
type tail struct {
	mu             sync.Mutex
	since          time.Time
	ttft, duration spread
}

// judge says which of the request's times are beyond their bounds, and those bounds; 0 for within. The times of
// complete answers are what later ones are compared with.
func (t *tails) judge(o *Outcome, now time.Time) (ttft, duration time.Duration) {
	if o.Endpoint == "" || o.End == Refused {
		return 0, 0
	}
	return t.of(o.Pool).judge(o, now)
}

func (t *tails) of(pool string) *tail {
	t.mu.RLock()
	one := t.byPool[pool]
	t.mu.RUnlock()
	if one != nil {
		return one
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if one = t.byPool[pool]; one != nil {
		return one
	}
	if len(t.byPool) >= maxTails {
		return &t.others
	}
	if t.byPool == nil {
		t.byPool = map[string]*tail{}
	}
	one = &tail{}
	t.byPool[pool] = one
	return one
}

func (t *tail) judge(o *Outcome, now time.Time) (ttft, duration time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		t.since = now
		t.ttft.bound, t.duration.bound = firstTTFT, firstDuration
	}
	if past := now.Sub(t.since); past >= slowWindow {
		t.since = now
		idle := past >= 2*slowWindow
		t.ttft.turn(leastTTFT, firstTTFT, idle)
		t.duration.turn(leastDuration, firstDuration, idle)
	}
	if o.TTFT > t.ttft.bound {
		ttft = t.ttft.bound
	}
	if o.Duration > t.duration.bound {
		duration = t.duration.bound
	}
	if o.End == Complete && o.Status < 400 {
		t.ttft.now[bucket(o.TTFT)]++
		t.duration.now[bucket(o.Duration)]++
	}
	return ttft, duration
}

// spread counts times in buckets that are an eighth of their value wide, in two windows.
type spread struct {
	bound        time.Duration
	now, earlier [184]uint32
}

// turn begins the next window, and sets the bound by the two before it.
func (s *spread) turn(least, first time.Duration, idle bool) {
	if idle {
		s.earlier = [len(s.now)]uint32{} // older than a minute
	}
	var n uint64
	for i := range s.now {
		n += uint64(s.now[i]) + uint64(s.earlier[i])
	}
	s.bound = first
	if n >= enoughAnswers {
		over := n / 100 // as many are above
		i := len(s.now) - 1
		for ; i > 0; i-- {
			if c := uint64(s.now[i]) + uint64(s.earlier[i]); c <= over {
				over -= c
				continue
			}
			break
		}
		s.bound = max(least, edge(i))
	}
	s.earlier, s.now = s.now, [len(s.now)]uint32{}
}

// bucket is where a time is counted: milliseconds below 8, then eight buckets for each doubling.
func bucket(d time.Duration) int {
	v := uint64(max(0, d.Milliseconds()))
	if v < 8 {
		return int(v)
	}
	l := bits.Len64(v) - 1
	return min((l-2)*8+int(v>>(l-3)&7), 183)
}

// edge is the time just above all that are counted in a bucket.
func edge(i int) time.Duration {
	i++
	if i <= 8 {
		return time.Duration(i) * time.Millisecond
	}
	l := i/8 + 2
	return time.Duration(uint64(8+i%8)<<(l-3)) * time.Millisecond
}
