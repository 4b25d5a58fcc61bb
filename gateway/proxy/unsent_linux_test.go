// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"

	"golang.org/x/sys/unix"
)

// unsent is how many written bytes the other side's kernel has not acknowledged.
func unsent(c net.Conn) int {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
