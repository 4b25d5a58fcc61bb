// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proxy

import (
	"net"
	"syscall"
)

// liveness looks at an idle connection without waiting.
type liveness struct {
	raw   syscall.RawConn
	look  func(fd uintptr) bool
	found error
}

func livenessOf(c net.Conn) *liveness {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	l := &liveness{raw: raw}
	l.look = func(fd uintptr) bool {
		var b [1]byte
		_, _, l.found = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	}
	return l
}

// quiet reports whether the connection is open and nothing came in: whatever comes in on an
// idle connection, its end or bytes, makes it useless.
func (l *liveness) quiet() bool {
	if l == nil {
		return true
	}
	if err := l.raw.Read(l.look); err != nil {
		return false
	}
	return l.found == syscall.EAGAIN || l.found == syscall.EWOULDBLOCK
}
