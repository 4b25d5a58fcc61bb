// SPDX-License-Identifier: Apache-2.0

package kvcache

import (
	"sync"
	"sync/atomic"
)

// hope is what a request that was placed expects of an endpoint, or expects no longer.
type hope struct {
	slot     uint32
	capacity int
	until    int64
	ends     bool
	keys     int // how many
}

// hopes wait for whoever has the index's lock, so that who places a request never waits for an engine's events. They are written down in
// their order, before anything else that needs the lock.
type hopes struct {
	waiting atomic.Int32

	mu   sync.Mutex // for a moment
	list []hope
	keys []uint64

	// What was written down last, whose memory is used again. It belongs to who has the index's lock.
	oldList []hope
	oldKeys []uint64
}

// mostHoped is how many keys may wait, and mostHopes of how many requests. Who has more waits himself.
const (
	mostHoped = 1 << 16
	mostHopes = 1 << 10
)

// put reports whether there was room to leave it to others.
func (h *hopes) put(one hope, keys []uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.keys)+len(keys) > mostHoped || len(h.list) == mostHopes {
		return false
	}
	one.keys = len(keys)
	h.list, h.keys = append(h.list, one), append(h.keys, keys...)
	h.waiting.Store(int32(len(h.list)))
	return true
}

// hope writes down what is expected, or leaves it to others.
func (x *Index) hope(one hope, keys []uint64) {
	switch {
	case x.mu.TryLock():
		x.catchUp()
		x.expect(one, keys)
		x.unlock()
	case !x.hopes.put(one, keys):
		x.lock()
		x.expect(one, keys)
		x.unlock()
	case x.mu.TryLock(): // they left before they saw it
		x.unlock()
	}
}

// lock makes the caller the only one to write.
func (x *Index) lock() {
	x.mu.Lock()
	x.catchUp()
}

// unlock lets others write, after what they left.
func (x *Index) unlock() {
	x.catchUp()
	x.mu.Unlock()
	for x.hopes.waiting.Load() > 0 && x.mu.TryLock() {
		x.catchUp()
		x.mu.Unlock()
	}
}

// catchUp writes down what was left to who has the lock.
func (x *Index) catchUp() {
	h := &x.hopes
	if h.waiting.Load() == 0 {
		return
	}
	h.mu.Lock()
	list, keys := h.list, h.keys
	h.list, h.keys = h.oldList[:0], h.oldKeys[:0]
	h.waiting.Store(0)
	h.mu.Unlock()
	h.oldList, h.oldKeys = list, keys
	for _, one := range list {
		x.expect(one, keys[:one.keys])
		keys = keys[one.keys:]
	}
}
