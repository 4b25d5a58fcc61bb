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
func (*MaxScorePicker) Pick(c *sched.Cycle) {
	shuffle(c)
	byKey(c.Order, c.Total)
}

// RandomPicker takes any candidate, whatever its total.
type RandomPicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*RandomPicker) Pick(c *sched.Cycle) { shuffle(c) }

// WeightedRandomPicker draws candidates with odds by their totals, without replacement
// (A-Res, Efraimidis and Spirakis 2006). A total of 0 or less comes last; when all are, the
// draw is even.
type WeightedRandomPicker struct {
	Count
}

// Pick implements [sched.Picker].
func (*WeightedRandomPicker) Pick(c *sched.Cycle) {
	shuffle(c)
	key := c.Keys()
	for i, t := range c.Total {
		key[i] = math.Inf(-1)
		if t > 0 {
			key[i] = math.Log(c.Rand.Float64()) / t // the logarithm of U^(1/t), which small totals would make 0
		}
	}
	byKey(c.Order, key)
}

func shuffle(c *sched.Cycle) {
	for i := range c.Order {
		j := c.Rand.IntN(i + 1)
		c.Order[i] = c.Order[j]
		c.Order[j] = i
	}
}

// byKey brings the positions with the highest keys to the front, in falling order; equals keep theirs.
// The rest follows in any order: nobody is sent further than [sched.Ranked] endpoints.
func byKey(order []int, key []float64) {
	for k := range min(sched.Ranked, len(order)) {
		best := k
		for i := k + 1; i < len(order); i++ {
			if key[order[i]] > key[order[best]] {
				best = i
			}
		}
		// A rotation, not a swap, so that equals keep their order.
		top := order[best]
		copy(order[k+1:best+1], order[k:best])
		order[k] = top
	}
}
