// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"container/list"
	"hash/maphash"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// maxBindings is how many sessions are remembered.
const maxBindings = 100_000

// bindings remember where sessions were served. A session is kept by a hash of its id: a binding is only a
// preference, so that two sessions that share one, of which clients cannot make any, do no harm; and what an entry costs
// does not depend on what clients send.
type bindings struct {
	mu     sync.Mutex
	by     map[uint64]*list.Element // of *binding
	recent list.List                // the latest first
}

type binding struct {
	key  uint64
	to   fleet.ID
	seen time.Time
}

var sessionSeed = maphash.MakeSeed()

// find is where the session was served, less than ttl ago.
func (b *bindings) find(id string, now time.Time, ttl time.Duration) (to fleet.ID, ok bool) {
	key := maphash.String(sessionSeed, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.by[key]; e != nil {
		if v := e.Value.(*binding); now.Sub(v.seen) < ttl {
			return v.to, true
		}
	}
	return fleet.ID{}, false
}

// bind remembers where the session is served, and forgets those that are older than ttl, or too many.
func (b *bindings) bind(id string, to fleet.ID, now time.Time, ttl time.Duration) {
	key := maphash.String(sessionSeed, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.by[key]; e != nil {
		v := e.Value.(*binding)
		v.to, v.seen = to, now
		b.recent.MoveToFront(e)
	} else {
		if b.by == nil {
			b.by = map[uint64]*list.Element{}
		}
		b.by[key] = b.recent.PushFront(&binding{key, to, now})
	}
	for e := b.recent.Back(); e != nil; e = b.recent.Back() {
		v := e.Value.(*binding)
		if len(b.by) <= maxBindings && now.Sub(v.seen) < ttl {
			return
		}
		delete(b.by, v.key)
		b.recent.Remove(e)
	}
}
