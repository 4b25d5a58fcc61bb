// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"syscall"
	"time"
)

// nap sleeps for less than a few milliseconds, and not much longer.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // an interruption is as good as the end: the caller looks at the clock
}
