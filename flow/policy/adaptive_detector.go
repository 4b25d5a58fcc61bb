// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
)

// AdaptiveDetector learns how much each endpoint takes from how it answers, so that no bound has to be guessed.
//
// An endpoint has room for a request while the prompt tokens in flight that are not cached, its own included, take no
// longer than targetTTFT at the speed at which the endpoint was seen to work prompts off; there is always room for the
// first. A request of which at least three quarters are cached passes without that, and one that was let go may go where it
// is held so, full or not: elsewhere it would be work. The number of requests
// is bounded by the time for an output token, without that of prompts, which fewer requests would not make less: a bound
// that is reached grows while that time is below targetTPOT, by at most a quarter every five seconds, and falls with the
// ratio of the two when it is above. It does not grow while answers begin later than targetTTFT. Where nothing is known of an endpoint, because it
// is new or no answer is streamed, startTokens and startRequests hold.
type AdaptiveDetector struct {
	// TargetTTFT is the time to the first token that prompts in flight may add up to.
	TargetTTFT api.Duration `json:"targetTTFT"`
	// TargetTPOT is the time for each further token of output.
	TargetTPOT api.Duration `json:"targetTPOT"`
	// StartRequests is how many requests an endpoint takes before anything is learned.
	StartRequests int64 `json:"startRequests"`
	// StartTokens is how many uncached prompt tokens it takes before its speed is known.
	StartTokens int64 `json:"startTokens"`

	by map[*fleet.Load]*learned
}

// The bounds of learning.
const (
	leastRequests = 4
	leastTokens   = 8192 // what an engine takes in one step, so that it never idles for the gate
	growth        = 0.25
	step          = 5 * time.Second
)

// learned is what is known of one incarnation.
type learned struct {
	requests float64 // its bound
	most     int64   // requests in flight since the last step
	pressed  bool    // the bound was reached since then
	at       time.Time
}

// Validate reports targets that nothing can meet.
func (d *AdaptiveDetector) Validate() error {
	switch {
	case d.TargetTTFT <= 0:
		return errors.New("targetTTFT: must be above 0s")
	case d.TargetTPOT <= 0:
		return errors.New("targetTPOT: must be above 0s")
	case d.StartRequests < leastRequests:
		return errors.New("startRequests: must be 4 or more")
	case d.StartTokens < leastTokens:
		return errors.New("startTokens: must be 8192 or more")
	}
	return nil
}

// Room implements [flow.Detector].
func (d *AdaptiveDetector) Room(v flow.View, tokens int64) bool {
	l := d.learn(v)
	switch {
	case v.Requests == 0:
		return true
	case v.Requests >= int64(l.requests):
		l.pressed = true
		return false
	}
	return v.Tokens <= 0 || tokens <= 0 || v.Tokens+tokens <= d.tokens(v)
}

// Weight implements [flow.Weigher].
func (*AdaptiveDetector) Weight(uncached, prompt int64) int64 {
	if 4*uncached <= prompt {
		return 0
	}
	return uncached
}

// Fill implements [flow.Detector]. An endpoint weighs as much as it takes.
func (d *AdaptiveDetector) Fill(v flow.View) (fill, weight float64) {
	l := d.learn(v)
	return max(float64(v.Requests)/l.requests, float64(v.Tokens)/float64(d.tokens(v))), l.requests
}

// tokens is the bound for uncached tokens in flight.
func (d *AdaptiveDetector) tokens(v flow.View) int64 {
	rate, known := v.Load.Rate(v.Now)
	if !known {
		return d.StartTokens
	}
	return max(leastTokens, int64(rate*time.Duration(d.TargetTTFT).Seconds()))
}

// learn brings what is known of an endpoint up to date.
func (d *AdaptiveDetector) learn(v flow.View) *learned {
	l := d.by[v.Load]
	if l == nil {
		if d.by == nil {
			d.by = map[*fleet.Load]*learned{}
		}
		for o := range d.by {
			if o.Ended() {
				delete(d.by, o)
			}
		}
		l = &learned{requests: float64(d.StartRequests), at: v.Now}
		d.by[v.Load] = l
	}
	l.most = max(l.most, v.Requests)
	if v.Now.Sub(l.at) < step {
		return l
	}
	took, wrote := v.Load.OutputTime(v.Now)
	latency, begun := v.Load.Latency(v.Now)
	ratio := float64(took) / float64(d.TargetTPOT)
	switch {
	case wrote && ratio > 1:
		l.requests = max(leastRequests, min(l.requests, float64(l.most))*max(0.5, 1/ratio))
	case l.pressed && (wrote || begun) && !(begun && latency > time.Duration(d.TargetTTFT)):
		if !wrote {
			ratio = 0
		}
		l.requests += max(1, l.requests*min(growth, (1-ratio)/2))
	}
	l.most, l.pressed, l.at = v.Requests, false, v.Now
	return l
}
