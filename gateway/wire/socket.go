// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"sync"
	"syscall"
)

// socket writes without waiting where the system can. It sits below TLS too, whose records it
// keeps when they cannot be written at once: a TLS write must not be given up half-way.
//
// The goroutine that reads a connection also writes to it, and so must never wait for the peer
// to read: a peer that does the same would wait for us.
type socket struct {
	net.Conn
	raw syscall.RawConn // nil when there is no way but to wait

	mu      sync.Mutex
	waits   bool   // Write waits, as a writer goroutine wants it
	backlog []byte // what Write took without writing it

	// Arguments and results of a try, here so that none is allocated. Only one writes at a time.
	list  []Piece
	skip  int
	n     int
	err   error
	vec   vector
	tried func(fd uintptr) bool
}

func newSocket(nc net.Conn) *socket {
	s := &socket{Conn: nc, waits: true}
	if sc, ok := nc.(syscall.Conn); ok && canTry {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	s.tried = s.tryFD
	return s
}

// try writes what of list, less its first skip bytes, can be written now. Fewer bytes than
// that, without an error, mean that the rest must wait.
func (s *socket) try(list []Piece, skip int) (n int, err error) {
	if s.raw == nil {
		return 0, nil
	}
	s.list, s.skip, s.n, s.err = list, skip, 0, nil
	err = s.raw.Write(s.tried)
	s.list = nil
	if err == nil {
		err = s.err
	}
	return s.n, err
}

// Write implements net.Conn for TLS.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits {
		return s.Conn.Write(p)
	}
	n := 0
	if len(s.backlog) == 0 {
		one := [1]Piece{{P: p}}
		var err error
		if n, err = s.try(one[:], 0); err != nil {
			return n, err
		}
	}
	s.backlog = append(s.backlog, p[n:]...)
	return len(p), nil
}

// behind tells how much Write took without writing it.
func (s *socket) behind() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.backlog)
}

// setWaits says whether Write waits; what it has kept is written first.
func (s *socket) setWaits(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = on || s.raw == nil
	if !on || len(s.backlog) == 0 {
		return nil
	}
	_, err := s.Conn.Write(s.backlog)
	s.backlog = nil
	return err
}
