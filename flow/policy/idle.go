// SPDX-License-Identifier: Apache-2.0

package policy

// idle lists those that nobody needs now, the longest so first. The zero idle is empty.
type idle[T any] struct {
	ring link[T]
	n    int
}

// link is one's place in an idle list; linked to nothing when it is in none.
type link[T any] struct {
	of         *T
	prev, next *link[T]
}

// add puts what is in no list at the end.
func (l *idle[T]) add(x *link[T]) {
	if l.ring.next == nil {
		l.ring.next, l.ring.prev = &l.ring, &l.ring
	}
	x.prev, x.next = l.ring.prev, &l.ring
	x.prev.next, x.next.prev = x, x
	l.n++
}

// remove takes it out, if it is in.
func (l *idle[T]) remove(x *link[T]) {
	if x.next == nil {
		return
	}
	x.prev.next, x.next.prev = x.next, x.prev
	x.prev, x.next = nil, nil
	l.n--
}

// first is the one that is idle longest, nil for none.
func (l *idle[T]) first() *T {
	if l.n == 0 {
		return nil
	}
	return l.ring.next.of
}
