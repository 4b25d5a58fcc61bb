// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package wire

// canTry is false where we know no write that does not wait: a goroutine does them all.
const canTry = false

type vector struct{}

func (s *socket) tryFD(uintptr) bool { return true }
