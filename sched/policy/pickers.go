// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"

	"github.com/penstock-project/penstock/sched"
)

// Count is the parameter that all pickers share.
type Count struct {
	// MaxNumOfEndpoints is how many endpoints the data plane is told: the pick and its fallbacks.
	// 0 or less means 1.
	MaxNumOfEndpoints int `json:"maxNumOfEndpoints"`
}

// Endpoints is MaxNumOfEndpoints with its default.
func (n Count) Endpoints() int { return max(1, n.MaxNumOfEndpoints) }

// MaxScorePicker takes the candidate with the highest total; equals are decided at random.
type MaxScorePicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*MaxScorePicker) Pick(c *sched.Cycle) { c.Top(c.Total) }

// RandomPicker takes any candidate, whatever its total.
type RandomPicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*RandomPicker) Pick(c *sched.Cycle) {
	key := c.Keys()
	clear(key)
	c.Top(key)
}

// WeightedRandomPicker draws candidates with odds by their totals, without replacement
// (A-Res, Efraimidis and Spirakis 2006). A total of 0 or less comes last; when all are, the
// draw is even.
type WeightedRandomPicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*WeightedRandomPicker) Pick(c *sched.Cycle) {
	key := c.Keys()
	for i, t := range c.Total {
		key[i] = math.Inf(-1)
		if t > 0 {
			key[i] = math.Log(c.Rand.Float64()) / t // the logarithm of U^(1/t), which small totals would make 0
		}
	}
	c.Top(key)
}
