// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
)

// turns is a gate before one endpoint that takes one request, with the order in which they went. It needs a synctest bubble.
type turns struct {
	*flow.Controller
	endpoint *fleet.Endpoint
	order    []string
	ticket   flow.Ticket
	hold     fleet.Hold
}

func newTurns(fairness, ordering string) *turns {
	id := fleet.ID{Name: "p"}
	s := fleet.NewStore()
	s.SetPools([]fleet.PoolSpec{{ID: id}})
	s.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "e"}, Address: "10.0.0.1:80"}})
	band := flow.BandSpec{Ordering: Orderings[ordering](), Fairness: Fairness[fairness]().New}
	return &turns{endpoint: s.Load().Pools[0].Endpoints[0], Controller: flow.New(flow.Options{
		Default: band, Negative: band, Pool: id, Store: s, Stale: time.Second,
		Detector: &ConcurrencyDetector{MaxConcurrency: 1, MaxTokenConcurrency: 1, ConcurrencyMode: "requests"},
	})}
}

func (g *turns) enter(name, tenant string, tokens, uncached int64) {
	go func() {
		t, reason := g.Enter(context.Background(), &flow.Ask{Key: flow.Key{Tenant: tenant}, Tokens: tokens, Uncached: uncached, Output: 1,
			Candidates: []*fleet.Endpoint{g.endpoint}, Version: 1 << 40})
		g.order = append(g.order, cond(reason == "", name, string(reason)))
		g.ticket = t
		if reason == "" {
			g.hold, _ = g.ticket.Place(g.endpoint, time.Now(), uncached, 0)
		}
	}()
	synctest.Wait()
}

func (g *turns) end(prompt, uncached, output int64) {
	g.hold.Release()
	g.ticket.Prompt(prompt)
	t := g.ticket
	t.End(uncached, output)
	synctest.Wait()
}

// TestGate has policies work in a gate.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // one bubble, as gates share what waits
		oldestHasItsTurn(t)
		programsAttainWhatWasServed(t)
	})
}

// oldestHasItsTurn: of what waits the least goes first, and the oldest, which brings most, as the eighth.
func oldestHasItsTurn(t *testing.T) {
	g := newTurns("round-robin-fairness-policy", "least-uncached-first-ordering-policy")
	g.enter("first", "a", 10, 10)
	g.enter("cold", "a", 9000, 9000)
	g.enter("cool", "a", 9000, 8000)
	for i := range 16 {
		g.enter(fmt.Sprint(i), "a", 9000, int64(100-i))
	}
	for range 19 {
		g.end(-1, -1, -1)
	}
	// 15 to 9 are seven, 8 to 2 again.
	if got := strings.Join(g.order, " "); got != "first 15 14 13 12 11 10 9 cold 8 7 6 5 4 3 2 cool 1 0" {
		t.Errorf("got %s", got)
	}
}

// programsAttainWhatWasServed: what counts is what the engine told in the end.
func programsAttainWhatWasServed(t *testing.T) {
	g := newTurns("program-aware-fairness", "fcfs-ordering-policy")
	g.enter("1", "p", 100, 100)
	g.enter("2", "p", 100, 100)
	g.enter("3", "q", 100, 100)
	time.Sleep(time.Second)
	g.end(60, 10, 20) // p attained 60 + 2·20
	g.enter("4", "r", 100, 100)
	g.end(-1, -1, 5) // q attained 100 + 2·5
	g.end(0, 0, 0)   // r nothing
	if got := strings.Join(g.order, " "); got != "1 3 4 2" {
		t.Errorf("went %s, want 1 3 4 2", got)
	}
	m := g.State().Measured
	if len(m) != 1 {
		t.Fatalf("got %d measures, want 1", len(m))
	}
	got := map[string]string{}
	for _, p := range m[0].Programs {
		got[p.Program] = fmt.Sprintf("%.0f %v", p.Attained, p.Wait)
	}
	if want := "map[p:100 500ms q:110 1s r:0 0s]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	g.end(-1, -1, -1)
}

// TestAdaptivePlacesWhereItIsHeld: one that was let go because another endpoint has room may go to a full one that holds three
// quarters of it, and not to one where it would be work.
func TestAdaptivePlacesWhereItIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id, s := fleet.ID{Name: "p"}, fleet.NewStore()
		s.SetPools([]fleet.PoolSpec{{ID: id}})
		s.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "a"}, Address: "10.0.0.1:80"}, {ID: fleet.ID{Name: "b"}, Address: "10.0.0.2:80"}})
		list := s.Load().Pools[0].Endpoints
		band := flow.BandSpec{Ordering: Orderings["fcfs-ordering-policy"](), Fairness: Fairness["global-strict-fairness-policy"]().New}
		gate := flow.New(flow.Options{Default: band, Negative: band, Pool: id, Store: s, Stale: time.Second,
			Detector: detector(func(d *AdaptiveDetector) { d.StartRequests = 4 })})
		for range 4 {
			list[0].Load.Take(time.Now(), 10, 0)
		}
		for _, c := range []struct {
			prefill int64
			want    bool
		}{{251, false}, {250, true}} {
			ticket, reason := gate.Enter(t.Context(), &flow.Ask{Tokens: 1000, Uncached: 250, Output: 1, Candidates: list, Version: 1 << 40})
			if reason != "" || ticket.Kept() != list[1].Load {
				t.Fatalf("refused (%q), or kept at the full one", reason)
			}
			if _, ok := ticket.Place(list[0], time.Now(), c.prefill, 0); ok != c.want {
				t.Errorf("%d of 1000 tokens to work off: placed %t, want %t", c.prefill, ok, c.want)
			}
			ticket.End(0, 0)
		}
		gate.Close()
	})
}
