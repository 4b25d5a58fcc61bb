// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// What follows are the constants of learning. They are bounds and time scales, not tuning.
const (
	paceHalfLife    = 20 * time.Second // after which a sample of the speed counts half
	latencyHalfLife = 10 * time.Second // and one of the latency
	latencyKept     = time.Minute      // after which a latency without samples says nothing any more
	outputHalfLife  = 5 * time.Second  // and one of the time between tokens of output
	outputKept      = 5 * time.Second  // after which that says nothing any more
	outputPrior     = 0.01             // the weight of the prompts' speed among samples of the time between tokens
	outputLeast     = 0.01             // what such a sample weighs when prompts took all of it,
	outputKnown     = 0.1              // and in the mean, by time, where something is known
	rateKept        = 20 * time.Second // and a rate: an endpoint that was slow once is tried again
	paceFloor       = 4                // samples' worth that a pause leaves, so that one odd answer does not decide alone
	paceKnown       = 3                // samples of at least paceWork tokens that make a rate
	paceWork        = 64
	pacePrior       = 0.01 // seconds to a first output without work, as far as samples do not tell
	pacePriorWeight = 0.05 // of all samples' weight
	paceOutlier     = 3    // a sample counts as at most so many times longer or shorter than expected
	paceSoft        = 512  // tokens; from there on a sample's error grows with its work
	paceTogether    = 2 * time.Millisecond
	paceFastest     = 1e-7 // seconds for a token: ten million tokens a second,
	paceSlowest     = 1.0  // and one
)

// pace is what we learn of an incarnation's speed from the first output of streamed answers.
//
// An engine works its prompts off one after another, so that a request is in service from when it was sent, or
// from the first output before its own when others were ahead of it. That time y is taken as b·x + s·w, w being its
// own tokens of work, x 1 unless it queued, b the latency without work and s the seconds for a token. A weighted
// regression with memory of [paceHalfLife] finds b and s; a weak prior for b makes them definite even when all
// prompts are of one length. Each sample weighs 1/(w+[paceSoft]), as errors grow with the work.
//
// Readers see atomics; learning, once a request, takes a lock and allocates nothing.
type pace struct {
	rate    atomic.Uint64 // float64 bits of tokens a second; 0 while unknown
	latency atomic.Int64  // nanoseconds; 0 while unknown
	at      atomic.Int64  // of the last sample, Unix nanoseconds
	samples atomic.Int64
	output  atomic.Int64 // nanoseconds for a token of output; 0 while unknown
	wrote   atomic.Int64 // when that was last learned, Unix nanoseconds

	mu                      sync.Mutex
	begun                   time.Time // the last first output
	n, heavy                float64   // samples' worth of what is remembered; those of paceWork tokens or more
	weight                  float64
	sxx, sxw, sww, sxy, swy float64
	last                    sample
	latencySum, latencyN    float64
	done                    float64 // tokens of prompts that were worked off
	out                     outputs
}

// outputs are the sums of a regression for the time between tokens of output: n tokens, between which the engine worked off
// w tokens of prompts, took t = d·n + s·w. A sample weighs 1/n, and less the more of it prompts took: where they took most,
// the rest is an error of their time. all is the sum of t without that.
type outputs struct{ n, w, ww, t, wt, all float64 }

// sample is one service time y, in seconds, also as bounded against outliers.
type sample struct{ x, w, y, bounded float64 }

// learn is told that a request whose prompt brought own tokens of work, behind ahead tokens of others, had
// its first output at now, after that long.
func (p *pace) learn(now time.Time, after time.Duration, ahead, own int64) {
	if after <= 0 || own < 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := time.Duration(0)
	if !p.begun.IsZero() {
		gone = max(0, now.Sub(p.begun))
	}
	p.noteLatency(gone, after)
	p.done += float64(own)
	s := sample{x: 1, w: float64(own), y: after.Seconds()}
	if queued := ahead > 0 && gone < after && !p.begun.IsZero(); queued {
		if gone < paceTogether { // worked off in one batch
			p.together(own)
			p.settle(now)
			return
		}
		s.x, s.y = 0, gone.Seconds()
	}
	if gone > rateKept {
		p.n, p.heavy, p.weight, p.sxx, p.sxw, p.sww, p.sxy, p.swy = 0, 0, 0, 0, 0, 0, 0, 0
		p.rate.Store(0)
	}
	p.forget(gone)
	p.n++
	if s.w >= paceWork {
		p.heavy++
	}
	p.add(s)
	p.settle(now)
}

// noteLatency folds a time to first output into the average.
func (p *pace) noteLatency(gone, after time.Duration) {
	d := math.Exp2(-float64(gone) / float64(latencyHalfLife))
	p.latencySum, p.latencyN = p.latencySum*d+float64(after), p.latencyN*d+1
	p.latency.Store(int64(max(1, p.latencySum/p.latencyN)))
}

// noteOutput is told that n tokens of output of one request took so long, until now. It takes what worked told at their
// beginning, and returns what it tells now.
func (p *pace) noteOutput(now time.Time, took time.Duration, n int64, before float64, l *Load) (worked float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.prompts.Load() > 0 && now.UnixNano()-max(l.begun.Load(), p.at.Load()) > int64(took)/4 {
		return p.done // it is at a long prompt, and nobody knows how far
	}
	gone := max(0, now.UnixNano()-p.wrote.Load())
	d := math.Exp2(-float64(gone) / float64(outputHalfLife))
	o := &p.out
	for _, v := range [...]*float64{&o.n, &o.w, &o.ww, &o.t, &o.wt, &o.all} {
		*v *= d
	}
	k, w, t := float64(n), p.done-before, took.Seconds()
	v := outputLeast
	if _, token, _ := p.fit(); w*token < t {
		v += (1 - w*token/t) * (1 - w*token/t)
	}
	o.n, o.w, o.ww, o.t, o.wt, o.all = o.n+v*k, o.w+v*w, o.ww+v*w*w/k, o.t+v*t, o.wt+v*w*t/k, o.all+t
	if o.t > outputKnown*o.all {
		p.output.Store(int64(max(1, p.each()*1e9)))
		p.wrote.Store(now.UnixNano())
	}
	return p.done
}

// each is the time of a token of output without prompts, in seconds. Where as many tokens of prompts are worked off all the
// time the two can't be told apart, and what is known of the prompts' speed decides.
func (p *pace) each() float64 {
	o := p.out
	_, token, known := p.fit()
	if !known || o.ww == 0 {
		return o.t / o.n
	}
	prior := outputPrior * o.ww
	d := (o.t*(o.ww+prior) - o.w*(o.wt+prior*token)) / (o.n*(o.ww+prior) - o.w*o.w) // above 0 by Cauchy and Schwarz
	return min(max(d, 0), o.t/o.n)
}

// worked is how many tokens of prompts were worked off.
func (p *pace) worked() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// together adds work to the last sample, whose service brought it, too.
func (p *pace) together(own int64) {
	s := p.last
	p.sum(s, -1)
	if s.w < paceWork && s.w+float64(own) >= paceWork {
		p.heavy++
	}
	s.w += float64(own)
	p.add(s)
}

// add puts a sample into the sums, bounded by what was to be expected.
func (p *pace) add(s sample) {
	s.bounded = s.y
	if base, token, ok := p.fit(); ok {
		expected := max(base*s.x+token*s.w, 0.001)
		s.bounded = min(max(s.y, expected/paceOutlier), expected*paceOutlier)
	}
	p.sum(s, 1)
	p.last = s
}

// sum adds a sample to the sums, or takes the last one out again.
func (p *pace) sum(s sample, sign float64) {
	v := sign / (s.w + paceSoft)
	p.weight += v
	p.sxx += v * s.x * s.x
	p.sxw += v * s.x * s.w
	p.sww += v * s.w * s.w
	p.sxy += v * s.x * s.bounded
	p.swy += v * s.w * s.bounded
}

// forget makes what was learned count less.
func (p *pace) forget(gone time.Duration) {
	d := math.Exp2(-float64(gone) / float64(paceHalfLife))
	if p.n > 0 {
		d = max(d, min(1, paceFloor/p.n))
	}
	for _, v := range [...]*float64{&p.n, &p.heavy, &p.weight, &p.sxx, &p.sxw, &p.sww, &p.sxy, &p.swy} {
		*v *= d
	}
}

// fit solves for the latency without work and the seconds for a token.
func (p *pace) fit() (base, token float64, ok bool) {
	if p.heavy < paceKnown-0.5 || p.sww <= 0 {
		return 0, 0, false
	}
	prior := pacePriorWeight * p.weight
	det := (p.sxx+prior)*p.sww - p.sxw*p.sxw // above 0 by Cauchy and Schwarz, as prior and sww are
	if det > 0 {
		base = max(0, ((p.sxy+prior*pacePrior)*p.sww-p.sxw*p.swy)/det)
	}
	token = (p.swy - base*p.sxw) / p.sww
	if token <= 0 {
		base, token = 0, p.swy/p.sww
	}
	return base, min(max(token, paceFastest), paceSlowest), true
}

// settle publishes what is known at now.
func (p *pace) settle(now time.Time) {
	if now.After(p.begun) {
		p.begun = now
	}
	p.at.Store(p.begun.UnixNano())
	p.samples.Add(1)
	if _, token, ok := p.fit(); ok {
		p.rate.Store(math.Float64bits(1 / token))
	}
}

// Latency is the recent time to first output of this incarnation's streamed answers, and whether there were any
// within the last minute. It costs two atomic loads.
func (l *Load) Latency(now time.Time) (time.Duration, bool) {
	d := time.Duration(l.pace.latency.Load())
	return d, d > 0 && now.UnixNano()-l.pace.at.Load() <= int64(latencyKept)
}

// Rate is the speed at which this incarnation works prompts off, in tokens a second, and whether it is known: it
// was learned, and not long ago. It costs two atomic loads.
func (l *Load) Rate(now time.Time) (tokensPerSecond float64, known bool) {
	r := math.Float64frombits(l.pace.rate.Load())
	return r, r > 0 && now.UnixNano()-l.pace.at.Load() <= int64(rateKept)
}

// Samples counts the first outputs that [Load.Rate] and [Load.Latency] are learned from.
func (l *Load) Samples() int64 { return l.pace.samples.Load() }

// OutputTime is the recent time between two tokens of output in a streamed answer of this incarnation, less that in which
// it worked off prompts, and whether it is known: of late there were answers, and not prompts alone; see [Hold.Wrote]. It costs two atomic loads.
func (l *Load) OutputTime(now time.Time) (time.Duration, bool) {
	d := time.Duration(l.pace.output.Load())
	return d, d > 0 && now.UnixNano()-l.pace.wrote.Load() <= int64(outputKept)
}
