// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"errors"
	"net/http"
)

// face is a dialect: how a request becomes a job and its tokens become bytes.
type face struct {
	// parse reads the body.
	parse func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error)
	// fail writes an error.
	fail func(w http.ResponseWriter, err error) int
	// whole is a complete answer.
	whole func(j *job, c *call) any
	// open, delta and shut append the events of a stream: before the first token, for the i-th token
	// of a choice, and after the last one.
	open  func(b []byte, j *job, c *call) []byte
	delta func(b []byte, j *job, c *call, choice, i int) []byte
	shut  func(b []byte, j *job, c *call) []byte
}

// face is the handler of a dialect.
func (s *Server) face(f face) func(http.ResponseWriter, *http.Request) int {
	return func(w http.ResponseWriter, r *http.Request) int {
		j, err := f.parse(s, w, r)
		if err != nil {
			return f.fail(w, err)
		}
		c, err := s.submit(j)
		if err != nil {
			return f.fail(w, err)
		}
		defer s.leave(c)
		if j.stream {
			return s.stream(w, r, f, j, c)
		}
		for !c.done() {
			if err := s.wait(r.Context(), c); err != nil {
				return f.fail(w, err) // nobody reads it when the client has left
			}
		}
		return reply(w, http.StatusOK, f.whole(j, c))
	}
}

// stream writes one event per token as they are made. A client that reads slowly gets several at
// once; nothing is kept for it but what it was going to be told anyway.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, f face, j *job, c *call) int {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	var b []byte
	opened := false
	for {
		if err := s.wait(r.Context(), c); err != nil {
			if errors.Is(err, errStopped) {
				panic(http.ErrAbortHandler) // a broken answer must not look complete
			}
			return http.StatusOK
		}
		last := c.done() // before looking, so that nothing after it is missed
		b = b[:0]
		for i, a := range c.answers {
			for made := int(a.made.Load()); a.sent < made; a.sent++ {
				if !opened {
					b, opened = f.open(b, j, c), true
				}
				b = f.delta(b, j, c, i, a.sent)
			}
		}
		if last {
			b = f.shut(b, j, c)
		}
		if len(b) == 0 {
			continue
		}
		if _, err := w.Write(b); err != nil {
			return http.StatusOK
		}
		if err := control.Flush(); err != nil || last {
			return http.StatusOK
		}
	}
}
