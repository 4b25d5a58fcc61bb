// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
)

// What is posted from anywhere comes in its turn: never beside another call, and not after the end.
func TestPost(t *testing.T) {
	var busy atomic.Int32
	var posted, messages atomic.Int64
	turn := func() {
		if busy.Add(1) != 1 {
			t.Error("two calls at once")
		}
		for range 100 {
			_ = busy.Load()
		}
		busy.Add(-1)
	}
	var wg sync.WaitGroup
	f := &funcs{}
	f.message = func(s *Stream, m *Message) {
		if messages.Add(1) == 1 {
			for range 4 {
				wg.Go(func() {
					for range 500 {
						s.Post(func() {
							turn()
							posted.Add(1)
						})
					}
				})
			}
		}
		s.Post(func() { posted.Add(1) }) // from within a call: after it
		n := posted.Load()
		turn()
		if posted.Load() != n {
			t.Error("a post came in the middle of a call")
		}
		if m.Len == 3 {
			wg.Wait()
			s.Finish(nil)
			s.Post(func() { t.Error("posted after the end") })
			return
		}
		if err := s.Send(Piece{P: []byte("x")}); err != nil {
			t.Error(err)
		}
	}
	_, addr, _ := start(t, Options{Handler: f})
	st := stream(t, t.Context(), dial(t, addr, nil))
	for range 300 {
		if err := send(st, []byte("xx")); err != nil {
			t.Fatal(err)
		}
		if _, err := recv(st); err != nil {
			t.Fatal(err)
		}
	}
	if err := send(st, []byte("end")); err != nil {
		t.Fatal(err)
	}
	if _, err := recv(st); err != io.EOF {
		t.Errorf("got %v, want the end", err)
	}
	if posted.Load() < 300 {
		t.Errorf("%d were posted", posted.Load())
	}
}
