// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/sched"
)

// PowerOfTwoPicker draws two candidates by chance and takes the better total.
//
// Where the totals are older than the time between requests, as behind several replicas or slow scrapes, the best
// total draws all to one endpoint until the next reading. Two choices by chance do not, and are nearly as good
// (Mitzenmacher 2001). The fallbacks are the rest by their totals.
type PowerOfTwoPicker struct {
	Count
	// Choices is how many candidates are drawn, 1 to 16.
	Choices int `json:"choices"`
	// OnlyWhenStale draws only while the queue signal of more than half of the candidates is stale or absent, and
	// takes the highest total otherwise.
	OnlyWhenStale bool `json:"onlyWhenStale"`
}

// Validate reports a number of choices that cannot be drawn.
func (p *PowerOfTwoPicker) Validate() error {
	if p.Choices < 1 || p.Choices > sched.Ranked {
		return fmt.Errorf("choices: must be between 1 and %d", sched.Ranked)
	}
	return nil
}

// Pick implements [sched.Picker].
func (p *PowerOfTwoPicker) Pick(c *sched.Cycle) {
	c.Top(c.Total)
	n := len(c.Candidates)
	if n <= p.Choices || p.OnlyWhenStale && !mostlyStale(c) {
		return
	}
	best := better(c, n, p.Choices)
	for k, i := range c.Order {
		if i == best {
			copy(c.Order[1:], c.Order[:k])
			c.Order[0] = best
			return
		}
	}
	copy(c.Order[1:], c.Order)
	c.Order[0] = best
}

// better takes k of n candidates by chance without replacement (Floyd's algorithm) and returns the one with the
// highest total. Of equals it is the first drawn, which is by chance, too.
func better(c *sched.Cycle, n, k int) int {
	var drawn [sched.Ranked]int
	best := -1
	for m := range k {
		j := n - k + m
		i := c.Rand.IntN(j + 1)
		for _, d := range drawn[:m] {
			if d == i {
				i = j
				break
			}
		}
		drawn[m] = i
		if best < 0 || c.Total[i] > c.Total[best] || math.IsNaN(c.Total[best]) {
			best = i
		}
	}
	return best
}

func mostlyStale(c *sched.Cycle) bool {
	stale := 0
	for _, e := range c.Candidates {
		if !e.Waiting.Fresh(c.Now, c.Stale) {
			stale++
		}
	}
	return 2*stale > len(c.Candidates)
}
