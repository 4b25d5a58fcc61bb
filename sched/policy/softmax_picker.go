// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// SoftmaxPicker draws candidates with odds exp(total/temperature), without replacement.
//
// It is how Dynamo's router chooses with its router temperature over costs between 0 and 1, as dynamo-scorer tells.
type SoftmaxPicker struct {
	Count
	// Temperature is how much chance there is: at 0 the highest total is taken, and as it grows all become alike.
	Temperature float64 `json:"temperature"`
}

// Validate reports a temperature that is none.
func (p *SoftmaxPicker) Validate() error {
	if !(p.Temperature >= 0 && p.Temperature <= 1e6) {
		return errors.New("temperature: must be between 0 and 1000000")
	}
	return nil
}

// Pick implements [sched.Picker]. The key total/temperature + G, with G of Gumbel's distribution, is highest with just
// these odds.
func (p *SoftmaxPicker) Pick(c *sched.Cycle) {
	if p.Temperature == 0 {
		c.Top(c.Total)
		return
	}
	key := c.Keys()
	for i, t := range c.Total {
		key[i] = t/p.Temperature - math.Log(c.Rand.ExpFloat64())
	}
	c.Top(key)
}
