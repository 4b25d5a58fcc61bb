// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
)

// A thousand wait while there is no endpoint. Four appear that take 250 each: all go in that moment.
func TestBacklogGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0, 250, nil)
		r.store.OnPublish(r.Kick)
		var visits []*visit
		for k := range 1000 {
			visits = append(visits, r.ask(fmt.Sprint("tenant ", k%10), 0, nil))
		}
		time.Sleep(10 * time.Second)
		r.endpoints(4)
		synctest.Wait()
		at := map[string]int{}
		for _, v := range visits {
			if v.String() != "goes" || v.took != 10*time.Second {
				t.Fatalf("%v after %v, want it to go after 10 s", v, v.took)
			}
			at[v.at.Name]++
		}
		if fmt.Sprint(at) != "map[e0:250 e1:250 e2:250 e3:250]" {
			t.Errorf("got %v", at)
		}
		for _, v := range visits {
			v.end()
		}
	})
}

// Where a place is kept may go away before the request gets there. Nothing stays behind, and the request goes elsewhere.
func TestKeptPlaceGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(t, 1, 1, 1, nil)
		old := l.store.Load().Pool(poolID).Endpoints[0].Load
		if requests, tokens := old.Reserved(); requests != 1 || tokens != 10 {
			t.Fatalf("%d requests and %d tokens kept, want 1 and 10", requests, tokens)
		}
		l.store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "other"}, Address: "10.0.0.9:80"}})
		e := l.store.Load().Pool(poolID).Endpoints[0]
		tk := l.running[0]
		if tk.Kept() != old {
			t.Error("the place was not kept where it was")
		}
		hold, ok := tk.Place(e, time.Now(), 10, 0)
		if !ok {
			t.Error("no room at the other endpoint")
		}
		if requests, tokens := old.Reserved(); requests != 0 || tokens != 0 || e.Load.Requests() != 1 {
			t.Errorf("%d requests and %d tokens kept, %d at the other; want 0, 0, 1", requests, tokens, e.Load.Requests())
		}
		hold.Release()
		tk.End(10, 0)
		tk.End(10, 0) // twice is once
		if err := l.Check(); err != nil {
			t.Error(err)
		}
	})
}

// One tenant sends 20 requests a second, at any moment. The pool takes 400 a second, 500 may wait, and others send more than
// that. Of those that flood it with one name, the newest give way: all of its requests go. Where each comes with
// a name of its own, it has one turn in each round of 500, as they have. Where they are no more than the pool takes, all
// of its requests go. Afterwards nothing is left.
func TestTenantKeepsItsShare(t *testing.T) {
	for _, c := range []struct {
		name  string
		flood func(k int) string
		often int // in so many of nine moments
		least func(served, sent int) int
	}{
		{"one name", func(int) string { return "flood" }, 9, func(_, sent int) int { return sent * 99 / 100 }},
		{"many names", func(k int) string { return fmt.Sprint("flood ", k) }, 9, func(served, _ int) int { return served / 500 * 3 / 4 }},
		{"many names in time", func(k int) string { return fmt.Sprint("flood ", k) }, 3, func(_, sent int) int { return sent }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoad(t, 4, 1, 1, func(o *flow.Options) { o.Default.MaxRequests = 500 })
				rng := rand.New(rand.NewPCG(1, 1))
				a := l.asks[0]
				before := heapInUse()
				sent, mine, all, n := 0, 0, 0, 100_000
				if racing {
					n = 10_000
				}
				end := func() {
					l.end()
					all++
					if last := &l.running[len(l.running)-1]; last.Tenant() == "legitimate" {
						mine++
					}
				}
				for k := range n { // each millisecond
					switch {
					case rng.IntN(50) == 0:
						a.Tenant = "legitimate"
						sent++
						l.send(&a)
					case k%9 < c.often:
						a.Tenant = c.flood(k)
						l.send(&a)
					}
					if k%5 < 2 && l.Waiting() > 0 { // 400 a second
						end()
					}
				}
				for l.Waiting() > 0 {
					end()
				}
				if want := c.least(all, sent); mine < want {
					t.Errorf("%d of %d went, and %d in all; want at least %d", mine, sent, all, want)
				}
				t.Logf("%d of %d went, and %d in all", mine, sent, all)
				if err := l.Check(); err != nil {
					t.Error(err)
				}
				if grew := heapInUse() - before; !racing && grew > 1<<20 {
					t.Errorf("%d bytes are left", grew)
				}
			})
		})
	}
}

// Many do everything at the same time. What comes out is nothing: no request that waits, no place that is kept.
func TestManyAtOnce(t *testing.T) {
	n, each := 32, 400
	if racing {
		each = 100
	}
	r := newRig(t, 3, 4, func(o *flow.Options) {
		o.TTL, o.NoEndpointTTL, o.MaxRequests, o.Listener = 20*time.Millisecond, 5*time.Millisecond, 20, &counts{}
	})
	r.store.OnPublish(r.Kick)
	outcomes := r.opt.Listener.(*counts)
	var over, went atomic.Int64
	watched := func(g *rand.Rand) {
		s := r.store.Load()
		now := time.Now()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		switch g.IntN(4) {
		case 0:
			timer := time.AfterFunc(time.Duration(g.IntN(3000))*time.Microsecond, cancel)
			defer timer.Stop()
		case 1:
			if g.IntN(8) == 0 {
				cancel()
			}
		}
		class := g.IntN(3)
		refresh := func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
			all := s.Pool(poolID).Endpoints
			return append(into, all[min(len(all), class):]...)
		}
		tk, reason := r.Enter(ctx, &flow.Ask{Key: flow.Key{Tenant: fmt.Sprint(g.IntN(5)), Priority: g.IntN(4) - 2}, Bytes: 100, Uncached: 10,
			Class: fmt.Sprint(class), Candidates: refresh(s, nil), Version: s.Version, Refresh: refresh, Received: now, Now: now, Stale: time.Second})
		if reason != "" {
			return
		}
		went.Add(1)
		if list := r.store.Load().Pool(poolID).Endpoints; len(list) > 0 && g.IntN(10) > 0 {
			e := list[g.IntN(len(list))]
			hold, ok := tk.Place(e, time.Now(), 10, 0)
			if ok && e.Load.Requests() > 4 {
				over.Add(1)
			}
			if !ok {
				hold = tk.Force(e, time.Now(), 10, 0)
				hold.Release()
			}
			if g.IntN(3) == 0 {
				time.Sleep(time.Duration(g.IntN(200)) * time.Microsecond)
			}
			tk.Eased()
			hold.Release()
		}
		tk.End(-1, -1)
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	var loads sync.Map
	all.Go(func() { // endpoints come and go
		for k := 0; ; k++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, e := range r.store.Load().Pool(poolID).Endpoints {
				loads.Store(e.Load, true)
			}
			r.endpoints([]int{3, 2, 3, 0, 3, 1}[k%6])
			time.Sleep(time.Millisecond)
		}
	})
	var work sync.WaitGroup
	for k := range n {
		work.Go(func() {
			g := rand.New(rand.NewPCG(uint64(k), 1))
			for range each {
				watched(g)
			}
		})
	}
	work.Wait()
	close(stop)
	all.Wait()
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if r.Waiting() != 0 {
		t.Errorf("%d wait", r.Waiting())
	}
	loads.Range(func(l, _ any) bool {
		load := l.(*fleet.Load)
		held, tokens := load.Reserved()
		if held != 0 || tokens != 0 || load.Requests() != 0 || load.Tokens() != 0 {
			t.Errorf("%d kept with %d tokens, %d requests with %d tokens are left", held, tokens, load.Requests(), load.Tokens())
		}
		return true
	})
	if total := outcomes.sum(); total != int64(n*each) {
		t.Errorf("%d outcomes of %d requests", total, n*each)
	}
	t.Logf("%v, %d placed beyond the bound", outcomes.by, over.Load())
}

// counts counts outcomes; the gate's lock guards it.
type counts struct{ by map[flow.Outcome]int64 }

func (c *counts) Entered(*flow.Ask, flow.Outcome, time.Duration) {}
func (c *counts) Looked(time.Duration)                           {}
func (c *counts) Revoked(int)                                    {}
func (c *counts) Reclaimed(bool, time.Duration)                  {}
func (c *counts) Left(_ *flow.Ask, o flow.Outcome, _ time.Duration) {
	if c.by == nil {
		c.by = map[flow.Outcome]int64{}
	}
	c.by[o]++
}

func (c *counts) sum() (n int64) {
	for _, v := range c.by {
		n += v
	}
	return n
}
