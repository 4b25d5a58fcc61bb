// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

func TestLegacy(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(waiting, kv float64, age time.Duration) *fleet.Endpoint {
		e := &fleet.Endpoint{Load: &fleet.Load{}}
		e.Waiting = fleet.Signal{Value: waiting, At: now.Add(-age)}
		e.KVUsage = fleet.Signal{Value: kv, At: now.Add(-age)}
		return e
	}
	unknown := &fleet.Endpoint{Load: &fleet.Load{}}
	for _, c := range []struct {
		name       string
		endpoints  []*fleet.Endpoint
		saturation float64
		shed       bool
	}{
		{"idle", []*fleet.Endpoint{at(0, 0, 0)}, 0, false},
		{"the fuller of queue and cache counts", []*fleet.Endpoint{at(1, 0.4, 0)}, 0.5, false},
		{"full by queue", []*fleet.Endpoint{at(5, 0, 0)}, 1, true},
		{"the mean", []*fleet.Endpoint{at(10, 0, 0), at(0, 0, 0)}, 1, true},
		{"stale is left out", []*fleet.Endpoint{at(10, 1, 3*time.Second), at(1, 0, 0)}, 0.2, false},
		{"missing data alone never stops a pool", []*fleet.Endpoint{unknown, unknown}, 0, false},
		{"none", []*fleet.Endpoint{unknown}, 0, false},
	} {
		g, ask := NewLegacy(), &Ask{Candidates: c.endpoints, Now: now, Stale: 2 * time.Second}
		if got := g.Saturation(ask); got != c.saturation {
			t.Errorf("%s: got saturation %v, want %v", c.name, got, c.saturation)
		}
		for _, priority := range []int{-1, 0, 5} {
			ask.Priority = priority
			want := Reason("")
			if c.shed && priority < 0 {
				want = Saturated
			}
			if _, got := g.Enter(t.Context(), ask); got != want {
				t.Errorf("%s, priority %d: got %q, want %q", c.name, priority, got, want)
			}
		}
	}
}
