// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// pace is what we learn of an incarnation's speed from the first output of requests.
type pace struct{}

// learn is told that a request whose prompt brought own tokens of work, behind ahead tokens of others, had
// its first output at now, after that long.
func (p *pace) learn(now time.Time, after time.Duration, ahead, own int64) {}
