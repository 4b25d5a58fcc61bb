// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
)

// load is a gate with requests that come and go by direct calls, without goroutines.
type load struct {
	*flow.Controller
	store    *fleet.Store
	asks     []flow.Ask // one of each flow, sent again and again
	visitors []flow.Visitor
	free     []int64 // places among the visitors
	left     []int64 // who left the gate since the last look
	running  []flow.Ticket
	n        int
}

func (l *load) Entered(*flow.Ask, flow.Outcome, time.Duration)    {}
func (l *load) Looked(time.Duration)                              {}
func (l *load) Left(a *flow.Ask, _ flow.Outcome, _ time.Duration) { l.left = append(l.left, a.Tokens) }
func (l *load) Revoked(int)                                       {}
func (l *load) Reclaimed(bool, time.Duration)                     {}

// newLoad has endpoints of one place each, all taken, and requests of so many flows.
func newLoad(t testing.TB, endpoints, bands, flows int, change func(*flow.Options)) *load {
	l := &load{}
	r := newRig(t, endpoints, 1, func(o *flow.Options) {
		o.TTL, o.NoEndpointTTL, o.Listener = time.Hour, time.Hour, l
		o.Limit = &policy.StaticUsageLimitPolicy{Threshold: 1}
		o.Default.MaxRequests, o.Default.MaxBytes = 1<<40, 1<<40
		if change != nil {
			change(o)
		}
	})
	l.Controller, l.store = r.Controller, r.store
	s, now := r.store.Load(), time.Now()
	for k := range max(flows, bands) {
		l.asks = append(l.asks, flow.Ask{Key: flow.Key{Tenant: fmt.Sprint("tenant ", k/bands), Priority: k % bands}, Bytes: 100, Uncached: 10, Output: 5,
			Received: now, Now: now, Candidates: s.Pool(poolID).Endpoints, Version: s.Version, Refresh: candidates, Class: "m", Stale: 2 * time.Second})
	}
	for range endpoints {
		l.come()
	}
	if len(l.running) != endpoints {
		t.Fatalf("%d went, want %d", len(l.running), endpoints)
	}
	return l
}

// come sends the next request.
func (l *load) come() {
	l.send(&l.asks[l.n%len(l.asks)])
	l.n++
}

func (l *load) send(a *flow.Ask) {
	if len(l.free) == 0 {
		l.free = append(l.free, int64(len(l.visitors)))
		l.visitors = append(l.visitors, flow.Visitor{})
	}
	n := len(l.free) - 1
	a.Tokens = l.free[n]
	l.free = l.free[:n]
	l.visitors[a.Tokens] = l.Arrive(a)
	l.settle()
}

// settle takes note of who left.
func (l *load) settle() {
	for _, i := range l.left {
		if t, reason := l.visitors[i].Take(); reason == "" {
			l.running = append(l.running, t)
		}
		l.visitors[i] = flow.Visitor{}
		l.free = append(l.free, i)
	}
	l.left = l.left[:0]
}

// end ends the request that runs longest.
func (l *load) end() {
	t := l.running[0]
	copy(l.running, l.running[1:])
	l.running = l.running[:len(l.running)-1]
	t.End(10, 5)
	l.settle()
}

// turn is one request that comes, and one that ends, whose place goes to the next: an enter and a dispatch.
func (l *load) turn() {
	l.come()
	l.end()
}

func bench(b *testing.B, do func()) {
	for range 100 {
		do()
	}
	b.ReportAllocs()
	for b.Loop() {
		do()
	}
}

// BenchmarkQueue is an enter and a dispatch while so many wait, without the goroutine that waits.
func BenchmarkQueue(b *testing.B) {
	for _, bands := range []int{1, 4, 16} {
		for _, flows := range []int{1, 100, 5000} {
			for _, waiting := range []int{0, 100, 5000} {
				b.Run(fmt.Sprintf("bands=%d/flows=%d/waiting=%d", bands, flows, waiting), func(b *testing.B) {
					l := newLoad(b, 4, bands, flows, nil)
					for range waiting {
						l.come()
					}
					bench(b, l.turn)
				})
			}
		}
	}
}

// BenchmarkEndpoints is the same with more endpoints, all of them full.
func BenchmarkEndpoints(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newLoad(b, n, 1, 10, nil)
			for range 100 {
				l.come()
			}
			bench(b, l.turn)
		})
	}
}

// BenchmarkClasses is the same for one class that has room, while 5,000 flows of another wait that has none.
func BenchmarkClasses(b *testing.B) {
	for _, fairness := range []string{"round-robin-fairness-policy", "global-strict-fairness-policy"} {
		b.Run(fairness, func(b *testing.B) {
			l := newLoad(b, 4, 1, 5000, func(o *flow.Options) { o.Default = spec(fairness, "fcfs-ordering-policy") })
			all := l.store.Load().Pool(poolID).Endpoints
			for i := range l.asks {
				l.asks[i].Class, l.asks[i].Candidates = "first", all[:1]
			}
			for range len(l.asks) - 1 {
				l.come()
			}
			l.asks = l.asks[:1]
			l.asks[0].Class, l.asks[0].Candidates, l.asks[0].Key = "last", all[3:], flow.Key{Tenant: "other"}
			for i, t := range l.running { // the fourth alone takes turns
				if i < 3 {
					defer t.End(0, 0)
				}
			}
			l.running = l.running[3:]
			bench(b, l.turn)
		})
	}
}

// BenchmarkFull is a request that comes where no more may wait.
func BenchmarkFull(b *testing.B) {
	l := newLoad(b, 4, 1, 10, func(o *flow.Options) { o.Default.MaxRequests = 5000 })
	for range 5000 {
		l.come()
	}
	bench(b, l.come)
}

// BenchmarkDisplace is a request for which one of lower priority gives way, and one of that priority that comes again when
// one went.
func BenchmarkDisplace(b *testing.B) {
	l := newLoad(b, 1, 2, 10_000, func(o *flow.Options) { o.MaxRequests = 5000 })
	low, high := l.asks[0], l.asks[1]
	for i := range 5000 {
		l.send(&l.asks[2*i])
	}
	bench(b, func() {
		l.send(&high) // one of 5,000 gives way
		l.end()       // it goes
		l.send(&low)
	})
}

// BenchmarkCancel is a request that comes while 5,000 wait, and leaves.
func BenchmarkCancel(b *testing.B) {
	l := newLoad(b, 4, 1, 100, nil)
	for range 5000 {
		l.come()
	}
	bench(b, func() {
		l.come()
		l.visitors[len(l.visitors)-1].Cancel()
		l.settle()
	})
}

// BenchmarkExpire is 5,000 requests that come, and have waited enough at once; per request.
func BenchmarkExpire(b *testing.B) {
	l := newLoad(b, 4, 1, 100, nil)
	b.ReportAllocs()
	for b.Loop() {
		for range 5000 {
			l.come()
		}
		l.Expire(time.Now().Add(2 * time.Hour))
		l.settle()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/5000, "ns/request")
}

// BenchmarkNews is what news of an endpoint cost while 5,000 requests wait and all is full.
func BenchmarkNews(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n, "_endpoints"), func(b *testing.B) {
			l := newLoad(b, n, 1, 100, nil)
			for range 5000 {
				l.come()
			}
			bench(b, l.Kick)
		})
	}
}

// BenchmarkChurn is a tenant that sends one request and is not seen again.
func BenchmarkChurn(b *testing.B) {
	l := newLoad(b, 4, 1, 1, nil)
	a := l.asks[0]
	before := heapInUse()
	n := 0
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		n++
		a.Tenant = fmt.Sprint(n)
		l.send(&a)
		l.end()
	}
	b.StopTimer()
	b.ReportMetric(float64(heapInUse()-before), "B/left")
}

// In the steady state a request that waits and goes costs no memory that is not used again.
func TestQueueAllocates(t *testing.T) {
	if racing {
		t.Skip("the race detector allocates")
	}
	for _, waiting := range []int{0, 100, 2000} {
		synctest.Test(t, func(t *testing.T) {
			l := newLoad(t, 4, 3, 50, nil)
			for range waiting {
				l.come()
			}
			for range 200 {
				l.turn()
			}
			if n := testing.AllocsPerRun(1000, l.turn); n != 0 {
				t.Errorf("%d waiting: %v allocations, want 0", waiting, n)
			}
		})
	}
}

func heapInUse() int64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A request that waits costs the gate 1.5 KiB at most, each of a tenant of its own.
func TestBytesOfAWaitingRequest(t *testing.T) {
	if racing {
		t.Skip("the race detector has memory of its own")
	}
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		l := newLoad(t, 4, 1, n, nil)
		l.visitors, l.free = make([]flow.Visitor, 0, n+10), make([]int64, 0, n+10)
		before := heapInUse()
		for range n {
			l.come()
		}
		each := (heapInUse() - before) / n
		t.Logf("%d bytes", each)
		if each > 1536 {
			t.Errorf("%d bytes for each request that waits, want 1536 at most", each)
		}
		runtime.KeepAlive(l)
	})
}

// Tenants that send one request each leave nothing behind, whether their requests go, wait together, or are cancelled.
func TestTenantsLeaveNothing(t *testing.T) {
	n := 250_000
	if racing {
		n = 20_000
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(t, 4, 1, 1, nil)
		a := l.asks[0]
		send := func(k int) {
			a.Tenant = fmt.Sprint("tenant ", k)
			l.send(&a)
		}
		most := n / 50
		for range most {
			l.come()
		}
		for range most {
			l.end()
		}
		before := heapInUse()
		for k := range n {
			send(k)
			switch {
			case l.Waiting() >= most: // all of those go
				for l.Waiting() > 0 {
					l.end()
				}
			case k%3 == 0 && l.Waiting() > 0:
				l.end()
			case k%7 == 0:
				for i := range l.visitors {
					if l.visitors[i] != (flow.Visitor{}) && l.visitors[i].Waits() {
						l.visitors[i].Cancel()
						break
					}
					if i > 10 {
						break
					}
				}
				l.settle()
			}
		}
		for l.Waiting() > 0 {
			l.end()
		}
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		if grew := heapInUse() - before; grew > 1<<20 {
			t.Errorf("%d tenants left %d bytes", n, grew)
		}
		runtime.KeepAlive(l)
	})
}
