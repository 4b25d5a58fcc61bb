// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"sync"
	"time"

	"github.com/penstock-project/penstock/gateway/wire"
)

// waiting is the context of a request that may wait for its turn. It ends when the proxy leaves,
// be it by a reset or by closing its side. Somebody else must read the connection to notice
// either, and does as soon as Done is asked for, which a request that need not wait never does. It
// outlives its session, since other contexts may be made of it.
type waiting struct {
	stream *wire.Stream

	mu   sync.Mutex
	over bool            // the wait is over: nobody may detach any more
	left <-chan struct{} // nil as long as nobody asked
}

// Deadline implements context.Context.
func (w *waiting) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (w *waiting) Value(any) any { return nil }

// Done implements context.Context. It is first called by the goroutine that waits.
func (w *waiting) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		if !w.over {
			w.stream.Detach()
		}
		w.left = w.stream.Left()
	}
	return w.left
}

// stop says that the wait is over.
func (w *waiting) stop() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
}

// Err implements context.Context.
func (w *waiting) Err() error {
	if w.gone() {
		return context.Canceled
	}
	return nil
}

// gone tells whether the proxy was seen to leave while the request waited.
func (w *waiting) gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.left: // blocks when nil
		return true
	default:
		return w.stream.Err() != nil
	}
}
