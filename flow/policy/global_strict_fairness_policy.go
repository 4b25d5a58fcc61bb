// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/penstock-project/penstock/flow"
)

// GlobalStrictFairnessPolicy ignores tenants: of all heads of the band the first by the band's order goes. With
// fcfs-ordering-policy the band is one queue. It takes no parameters.
type GlobalStrictFairnessPolicy struct{}

// New implements [FairnessMaker].
func (*GlobalStrictFairnessPolicy) New() flow.Fairness { return &globalStrict{} }

// globalStrict is a heap of flows by their heads.
type globalStrict struct{ heap flow.Heap }

// Indifferent implements [flow.Indifferent].
func (*globalStrict) Indifferent() {}

func (g *globalStrict) Add(f *flow.Flow, _ time.Time)    { g.heap.Push(f) }
func (g *globalStrict) Remove(f *flow.Flow, _ time.Time) { g.heap.Remove(f) }
func (g *globalStrict) Headed(f *flow.Flow, _ time.Time) { g.heap.Fix(f) }

func (g *globalStrict) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow {
	return g.heap.First(ok)
}

func (g *globalStrict) Went(*flow.Flow, time.Time) {}

func (g *globalStrict) Charge(string, time.Time, int64, int64) {}
