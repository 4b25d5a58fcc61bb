// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Stages name what a decision went through, in running order. It belongs to the configuration and is
// shared by all decisions made with it.
type Stages struct {
	Profile, Picker string
	// Drops name what a Fate means, by its number; the first means kept.
	Drops []Drop
	// Scorers are those of the profile.
	Scorers []WeightedName
}

// Drop is a stage that drops candidates, with the reason why, when it tells one.
type Drop struct{ Name, Why string }

// WeightedName is a scorer's name and weight.
type WeightedName struct {
	Name   string
	Weight float64
}

// Decision is what one decision saw, as it was made: flat, so that it costs little when nobody asks. It
// holds on to the snapshot of its endpoints until Forget.
type Decision struct {
	*Stages
	At    time.Time
	Stale time.Duration
	// Endpoints are the pool's; Fates say for each which of Drops took it, 0 for none.
	Endpoints []*fleet.Endpoint
	Fates     []uint8
	// Origin gives each candidate's place in Endpoints. What follows is in the order of candidates.
	Origin []int32
	// Scores are those of the first scorer for all candidates, then those of the second, and so on.
	Scores []float32
	Total  []float32
	Unseen []int32 // requests in flight that no signal showed yet
	Flying []int32 // requests in flight, without this one
	Work   []int64 // tokens of work in flight, without this one
	Match  []int32 // cached blocks, of Blocks, each of BlockTokens tokens
	Sure   []int32 // of these, those that the engine said it holds; empty where nobody listens to engines
	// Blocks is 0 when nobody looked for cached prefixes.
	Blocks, BlockTokens int
	// Order lists candidates, the pick first, then its fallbacks.
	Order []int32
	// Refused names the admitter that turned the request away.
	Refused string
	// Ill are the endpoints that were not quite healthy.
	Ill []Ill
}

// Ill is an endpoint to which requests failed lately.
type Ill struct {
	Endpoint int32 // its place among the decision's
	State    fleet.HealthState
	Failures int // in a row
	Cause    string
}

// Attempt is an endpoint that failed before it answered.
type Attempt struct {
	Endpoint, Address string
	Cause             string
}

// Forget lets everything go that the decision held on to, but for its memory.
func (d *Decision) Forget() {
	clear(d.Ill)
	*d = Decision{Fates: d.Fates[:0], Origin: d.Origin[:0], Scores: d.Scores[:0], Total: d.Total[:0], Unseen: d.Unseen[:0],
		Flying: d.Flying[:0], Work: d.Work[:0], Match: d.Match[:0], Sure: d.Sure[:0], Order: d.Order[:0], Ill: d.Ill[:0]}
}
