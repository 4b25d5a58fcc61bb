// SPDX-License-Identifier: Apache-2.0

package wire

import (
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
	c := dial(t, serve(t, f, Options{}))
	stream := c.stream(t)
	for range 300 {
		stream.send(t, []byte("xx"))
		stream.recv(t)
	}
	stream.send(t, []byte("end"))
	stream.end(t)
	if posted.Load() < 300 {
		t.Errorf("%d were posted", posted.Load())
	}
}
