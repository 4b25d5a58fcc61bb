// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUp lets the kernel end a connection whose peer took nothing for d: one that vanished,
// or one that stopped reading. It costs nothing while all is well, unlike a deadline.
func giveUp(c net.Conn, d time.Duration) {
	sc, ok := c.(syscall.Conn)
	if !ok || d <= 0 {
		return
	}
	if raw, err := sc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}
