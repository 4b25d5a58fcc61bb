// SPDX-License-Identifier: Apache-2.0

package observe

import "sync"

// ring keeps the newest records, as many as fit into a number of bytes. What is in it never changes.
type ring struct {
	max int64 // bytes

	mu    sync.Mutex
	list  []*kept // circular
	head  int     // the oldest
	n     int
	bytes int64
	gone  uint64 // records that made room for others
}

// push adds a record, and lets the oldest go until all fit. The newest stays in any case.
func (r *ring) push(k *kept) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.n > 0 && r.bytes+k.bytes > r.max {
		oldest := r.list[r.head]
		r.list[r.head] = nil
		r.head = (r.head + 1) % len(r.list)
		r.n--
		r.bytes -= oldest.bytes
		r.gone++
	}
	if r.n == len(r.list) {
		list := make([]*kept, max(64, 2*r.n))
		copy(list[copy(list, r.list[r.head:]):], r.list[:r.head])
		r.list, r.head = list, 0
	}
	r.list[(r.head+r.n)%len(r.list)] = k
	r.n++
	r.bytes += k.bytes
}

// all returns the records, the oldest first, and how many made room for others.
func (r *ring) all(into []*kept) ([]*kept, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.n {
		into = append(into, r.list[(r.head+i)%len(r.list)])
	}
	return into, r.gone
}
