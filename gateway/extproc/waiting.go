// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// waiting is the context of a request that may wait for its turn. It ends when the proxy
// leaves: gRPC tells of a reset by the stream's context, but that the proxy merely closed its
// side can only be received. So the next message is received as soon as somebody asks for Done,
// which a request that need not wait never does.
type waiting struct {
	stream grpc.ServerStream
	msg    *message

	mu    sync.Mutex
	over  bool          // the wait is over: nobody else may receive
	done  chan struct{} // nil as long as nobody asked
	early chan error    // what came of the receive; nil when there is none or it was taken
}

// Deadline implements context.Context.
func (w *waiting) Deadline() (time.Time, bool) { return w.stream.Context().Deadline() }

// Value implements context.Context.
func (w *waiting) Value(key any) any { return w.stream.Context().Value(key) }

// Done implements context.Context.
func (w *waiting) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.done != nil:
	case w.over:
		return w.stream.Context().Done()
	default:
		w.done, w.early = make(chan struct{}), make(chan error, 1)
		go w.watch(w.done, w.early)
	}
	return w.done
}

func (w *waiting) watch(done chan<- struct{}, early chan<- error) {
	defer close(done)
	err := w.stream.RecvMsg(w.msg)
	early <- err
	if err == nil {
		<-w.stream.Context().Done()
	}
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
	return w.stream.Context().Err()
}

// gone tells whether the proxy was seen to leave while the request waited.
func (w *waiting) gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done: // blocks when nil
		return true
	default:
		return false
	}
}
