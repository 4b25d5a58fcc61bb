// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import "time"

// nap sleeps.
func nap(d time.Duration) { time.Sleep(d) }
