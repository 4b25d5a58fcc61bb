// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// Saturation is the mean, over the endpoints whose queue or KV cache use is known, of max(waiting/queue,
// used/kv): at 1 they are full on average. It tells how many are known; of none the mean is 0. An unknown signal is
// left out: missing data alone never makes a pool full.
func Saturation(endpoints []*Endpoint, now time.Time, stale time.Duration, queue, kv float64) (mean float64, known int) {
	var sum float64
	for _, e := range endpoints {
		hasQueue, hasKV := e.Waiting.Fresh(now, stale), e.KVUsage.Fresh(now, stale)
		if !hasQueue && !hasKV {
			continue
		}
		var full float64
		if hasQueue {
			full = e.Waiting.Value / queue
		}
		if hasKV {
			full = max(full, e.KVUsage.Value/kv)
		}
		sum += full
		known++
	}
	if known == 0 {
		return 0, 0
	}
	return sum / float64(known), known
}
