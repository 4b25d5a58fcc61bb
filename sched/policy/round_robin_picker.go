// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// RoundRobinPicker takes the candidates in turn, whatever their totals. The turn is the number of requests sent to the
// pool's endpoints so far, so that nothing is kept. It is there to compare with.
type RoundRobinPicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*RoundRobinPicker) Pick(c *sched.Cycle) {
	turn := int64(0)
	for _, e := range c.All {
		turn += e.Load.Sent()
	}
	c.Order = c.Order[:0]
	for k := range min(len(c.Candidates), sched.Ranked) {
		c.Order = append(c.Order, int((turn+int64(k))%int64(len(c.Candidates))))
	}
}
