// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/source/kvevents"
)

// An engine that is believed again tells all anew: what made us ask for it counts once, and leaves when it leaves.
func TestBelievedAgain(t *testing.T) {
	f, p := feedOf(t, dialling, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"})
	e := p.store.Load().Pools[0].Endpoints[0]
	s := &kvevents.Source{Load: e.Load, Name: e.Address}
	f.Batch(s, 0, stored(1))
	m := f.producer.Mirror()
	m.Of(e.Load.Slot).Mute(time.Now().Add(-time.Hour))
	f.Batch(s, 1, stored(2))
	f.Batch(s, 0, stored(1)) // the replay
	f.Batch(s, 1, stored(2))
	if n := m.Index.Held(e.Load.Slot); n != 2 {
		t.Errorf("%d blocks are held, want 2", n)
	}
	f.Batch(s, 2, &kvevents.Batch{Events: []kvevents.Event{{Kind: kvevents.BlockRemoved, Hashes: []uint64{1, 2}}}})
	if n := m.Index.Held(e.Load.Slot); n != 0 {
		t.Errorf("%d blocks are held that left", n)
	}
}

// Whoever has a follower that was given up gets another.
func TestFollowerGivenUp(t *testing.T) {
	f, p := feedOf(t, dialling, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"})
	e := p.store.Load().Pools[0].Endpoints[0]
	s := &kvevents.Source{Load: e.Load, Name: e.Address}
	f.Batch(s, 0, stored(1))
	m := f.producer.Mirror()
	m.Gone(e.Load.Slot) // by a request that saw the end of who had the slot before
	f.Batch(s, 1, stored(2))
	if n := m.Index.Held(e.Load.Slot); n != 1 {
		t.Errorf("%d blocks are held, want 1", n)
	}
}
