// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
)

// Trouble is what can be wrong with an engine, to rehearse how its users take it. PUT /sim/trouble
// takes it as JSON, GET shows it; the zero value is a healthy engine.
type Trouble struct {
	// Slow makes each step take that many times as long; 0 and 1 change nothing.
	Slow float64 `json:"slow,omitempty"`
	// Dead resets all connections, those of open answers too, and every new one at its first request. What lives again is another
	// process: its cache is empty, its counters and the numbers of its events begin at 0.
	Dead bool `json:"dead,omitempty"`
	// Status answers every inference request with that status, such as 503.
	Status int `json:"status,omitempty"`
	// Metrics is what is wrong with the metrics page: frozen as it was at that moment, missing (it answers 500), or
	// hanging (no answer).
	Metrics string `json:"metrics,omitempty"`
	// Events is what is wrong with the events of its KV cache, if it publishes any.
	Events EventTrouble `json:"events,omitzero"`
}

// Validate reports what no engine can have.
func (t *Trouble) Validate() error {
	switch {
	case t.Slow < 0 || t.Slow > 1000:
		return fmt.Errorf("slow: want 0 to 1000 times, got %g", t.Slow)
	case t.Status != 0 && (t.Status < 400 || t.Status > 599):
		return fmt.Errorf("status: want 400 to 599, got %d", t.Status)
	case !slices.Contains([]string{"", "frozen", "missing", "hanging"}, t.Metrics):
		return fmt.Errorf("metrics: want frozen, missing or hanging, got %q", t.Metrics)
	}
	return t.Events.Validate()
}

// SetTrouble puts the engine into trouble, or with the zero value out of it.
func (s *Server) SetTrouble(t Trouble) {
	var page []byte
	if t.Metrics == "frozen" {
		page = s.appendPage(nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Dead && !s.trouble.Dead {
		close(s.broken)
		if s.events != nil {
			s.events.end()
		}
	} else if !t.Dead && s.trouble.Dead {
		s.broken = make(chan struct{})
		s.begin()
		if s.events != nil {
			s.events.begin()
		}
	}
	if s.events != nil {
		s.events.setTrouble(t.Events)
	}
	s.trouble, s.frozen = t, page
}

// Trouble is the engine's present trouble.
func (s *Server) Trouble() Trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// serve answers as the engine's trouble has it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	const path = "/sim/trouble"
	s.mu.Lock()
	t, frozen := s.trouble, s.frozen
	s.mu.Unlock()
	metrics := r.URL.Path == "/metrics"
	switch {
	case r.URL.Path == path:
		s.serveTrouble(w, r)
	case t.Dead:
		reset(w)
	case metrics && t.Metrics == "missing":
		http.Error(w, "no metrics", http.StatusInternalServerError)
	case metrics && t.Metrics == "hanging":
		<-r.Context().Done()
	case metrics && frozen != nil:
		w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
		_, _ = w.Write(frozen)
	case t.Status != 0 && r.Method == http.MethodPost:
		reply(w, t.Status, map[string]string{"detail": "rehearsed trouble"})
	default:
		s.mux.ServeHTTP(w, r)
	}
}

func (s *Server) serveTrouble(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		var t Trouble
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
		dec.DisallowUnknownFields()
		err := dec.Decode(&t)
		if err == nil {
			err = t.Validate()
		}
		if err != nil {
			reply(w, http.StatusBadRequest, map[string]string{"detail": err.Error()})
			return
		}
		s.SetTrouble(t)
	}
	reply(w, http.StatusOK, s.Trouble())
}

// reset ends the connection as a process does that is gone.
func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
