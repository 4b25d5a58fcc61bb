// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package proxy

import (
	"net"
	"time"
)

// giveUp needs Linux; elsewhere TCP's own limits hold.
func giveUp(net.Conn, time.Duration) {}
