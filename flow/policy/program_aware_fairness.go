// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock-project/penstock/flow"
)

// ProgramAwareFairness serves the program, that is the fairness id, that attained least service of late, weighed
// with how long the first of its requests waits.
//
// A request adds its prompt tokens and twice its output tokens to its program's service when it ends, and service
// fades with a half-life. Of all that have requests waiting in the band the one with the highest score goes:
// lasWeightService·(1 − s) + lasWeightHeadWait·w, where s is its service and w its wait, both between 0 for the least
// and 1 for the most among them, and 0.5 where all are alike. Equals go in the order of the band. What a program attained
// counts in all bands. A choice costs a look at each program that waits.
type ProgramAwareFairness struct {
	// Strategy is las, for least attained service.
	Strategy string `json:"strategy"`
	// LASWeightService is the weight of attained service.
	LASWeightService float64 `json:"lasWeightService"`
	// LASWeightHeadWait is the weight of the wait.
	LASWeightHeadWait float64 `json:"lasWeightHeadWait"`
	// LASHalfLifeSeconds is the time in which service that was attained fades to half.
	LASHalfLifeSeconds float64 `json:"lasHalfLifeSeconds"`
	// EvictionTTLSeconds is how long a program without requests is remembered; less when there are very many.
	EvictionTTLSeconds float64 `json:"evictionTtlSeconds"`
	// EvictionSweepSeconds is how often those are looked for that are to be forgotten.
	EvictionSweepSeconds float64 `json:"evictionSweepSeconds"`

	programs *programs
}

// Validate reports weights and times that cannot be.
func (p *ProgramAwareFairness) Validate() error {
	switch {
	case p.Strategy != "las":
		return fmt.Errorf("strategy: want las, got %q", p.Strategy)
	case !(p.LASWeightService >= 0):
		return errors.New("lasWeightService: must not be below 0")
	case !(p.LASWeightHeadWait >= 0):
		return errors.New("lasWeightHeadWait: must not be below 0")
	case p.LASWeightService+p.LASWeightHeadWait == 0:
		return errors.New("lasWeightService: one of it and lasWeightHeadWait must be above 0")
	case !(p.LASHalfLifeSeconds > 0):
		return errors.New("lasHalfLifeSeconds: must be above 0")
	case !(p.EvictionTTLSeconds > 0):
		return errors.New("evictionTtlSeconds: must be above 0")
	case !(p.EvictionSweepSeconds > 0):
		return errors.New("evictionSweepSeconds: must be above 0")
	}
	return nil
}

// New implements [FairnessMaker]. The policies that it makes share what programs attained.
func (p *ProgramAwareFairness) New() flow.Fairness {
	if p.programs == nil {
		p.programs = &programs{by: map[string]*program{}, halfLife: p.LASHalfLifeSeconds,
			keep: seconds(p.EvictionTTLSeconds), sweep: seconds(p.EvictionSweepSeconds)}
	}
	return &programAware{programs: p.programs, service: p.LASWeightService, wait: p.LASWeightHeadWait}
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 1e9) * float64(time.Second))
}

// mostPrograms bounds the programs that are remembered without requests.
const mostPrograms = 1 << 16

// programs is what all bands know of programs. Since all service fades alike, it is kept as it would be worth at
// one moment, the epoch: nothing has to be brought up to date to compare it.
type programs struct {
	by          map[string]*program
	waiting     int     // those of them that have requests
	halfLife    float64 // seconds
	keep, sweep time.Duration
	epoch       time.Time
	swept       time.Time
	told        time.Time     // when it was last told of
	teller      *programAware // and by which band's policy
}

// program is one fairness id.
type program struct {
	attained float64 // tokens by their weights, at the epoch
	waited   time.Duration
	went     int64
	last     time.Time // when it last had to do with us
	waits    []waits   // where it has requests, a few at most
}

type waits struct {
	in *programAware
	f  *flow.Flow
}

// worth is what a token of now is worth at the epoch.
func (s *programs) worth(now time.Time) float64 {
	if s.epoch.IsZero() {
		s.epoch = now
	}
	lives := now.Sub(s.epoch).Seconds() / s.halfLife
	if lives < 256 {
		return math.Exp2(lives)
	}
	fade := math.Exp2(-lives)
	for _, p := range s.by {
		p.attained *= fade
		p.fix()
	}
	s.epoch = now
	return 1
}

// fix tells the bands what the program attained.
func (p *program) fix() {
	for _, w := range p.waits {
		w.f.Score = p.attained
		w.in.heap.Fix(w.f)
	}
}

func (s *programs) program(id string, now time.Time) *program {
	p := s.by[id]
	if p == nil {
		s.clean(now)
		p = &program{}
		s.by[id] = p
	}
	p.last = now
	return p
}

// clean forgets programs that are idle for long; for less long as there are more of them.
func (s *programs) clean(now time.Time) {
	full := len(s.by)-s.waiting >= mostPrograms
	if !full && now.Sub(s.swept) < s.sweep {
		return
	}
	for keep := s.keep; ; keep /= 2 {
		for id, p := range s.by {
			if len(p.waits) == 0 && now.Sub(p.last) >= keep {
				delete(s.by, id)
			}
		}
		if !full || len(s.by)-s.waiting < mostPrograms/2 || keep == 0 {
			break
		}
	}
	s.swept = now
}

// programAware is the policy of one band. Its heap is by attained service.
type programAware struct {
	*programs
	heap          flow.Heap
	service, wait float64
}

func (a *programAware) Add(f *flow.Flow, now time.Time) {
	p := a.program(f.Tenant, now)
	if len(p.waits) == 0 {
		a.waiting++
	}
	p.waits = append(p.waits, waits{a, f})
	f.Score = p.attained
	a.heap.Push(f)
}

func (a *programAware) Remove(f *flow.Flow, now time.Time) {
	a.heap.Remove(f)
	p := a.program(f.Tenant, now)
	for i, w := range p.waits {
		if w.f == f {
			last := len(p.waits) - 1
			p.waits[i] = p.waits[last]
			p.waits[last] = waits{}
			p.waits = p.waits[:last]
			break
		}
	}
	if len(p.waits) == 0 {
		a.waiting--
	}
}

func (a *programAware) Headed(f *flow.Flow, _ time.Time) { a.heap.Fix(f) }

// Next implements [flow.Fairness]. A score without what all have in common is −service·s − wait·(the time of entry),
// so that neither now nor the fading matters.
func (a *programAware) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow {
	all := a.heap.All()
	if len(all) == 0 {
		return nil
	}
	least, most := all[0].Score, all[0].Score
	since := all[0].Head.Entered
	var first, last time.Duration // after since
	for _, f := range all[1:] {
		most = max(most, f.Score)
		d := f.Head.Entered.Sub(since)
		first, last = min(first, d), max(last, d)
	}
	var perToken, perWait float64
	if most > least {
		perToken = a.service / (most - least)
	}
	if last > first {
		perWait = a.wait / float64(last-first)
	}
	var best *flow.Flow
	var score float64
	for _, f := range all {
		s := -perToken*(f.Score-least) - perWait*float64(f.Head.Entered.Sub(since)-first)
		if best != nil && (s < score || s == score && !earlier(f, best)) {
			continue
		}
		if ok(f) {
			best, score = f, s
		}
	}
	return best
}

// earlier tells whether f's head comes before o's in the order of the band.
func earlier(f, o *flow.Flow) bool {
	if c := f.Rank.Compare(o.Rank); c != 0 {
		return c < 0
	}
	return f.Tenant < o.Tenant
}

func (a *programAware) Went(f *flow.Flow, now time.Time) {
	p := a.program(f.Tenant, now)
	p.went++
	p.waited += now.Sub(f.Head.Entered)
}

// Charge implements [flow.Fairness]: service counts once it was attained.
func (a *programAware) Charge(string, time.Time, int64, int64) {}

// The weights of tokens, as the field has them.
const (
	promptWeight = 1
	outputWeight = 2
)

// Finished implements [flow.Finisher].
func (a *programAware) Finished(tenant string, now time.Time, prompt, output int64) {
	worth := a.worth(now)
	p := a.program(tenant, now)
	p.attained += worth * float64(promptWeight*max(0, prompt)+outputWeight*max(0, output))
	p.fix()
}

// tells reports whether this band's policy is the one that tells of all programs at that moment.
func (a *programAware) tells(now time.Time) bool {
	if !a.told.Equal(now) {
		a.told, a.teller = now, a
	}
	return a.teller == a
}

// Evenness is Jain's index of the programs' mean waits: 1 when they wait equally long, 1/n when one of n waits
// alone. Where several bands have the policy only the one that is asked first at a moment tells, for all.
func (a *programAware) Evenness(now time.Time) (float64, bool) {
	if !a.tells(now) {
		return 0, false
	}
	var n, sum, squares float64
	for _, p := range a.by {
		if p.went > 0 {
			w := (p.waited / time.Duration(p.went)).Seconds()
			n, sum, squares = n+1, sum+w, squares+w*w
		}
	}
	if n == 0 {
		return 0, false
	}
	if squares == 0 {
		return 1, true
	}
	return sum * sum / (n * squares), true
}

// Programs yields each program with its mean wait and its attained service in weighted tokens, as far as it has not faded.
// The policy that tells is that of [programAware.Evenness].
func (a *programAware) Programs(now time.Time, yield func(program string, wait time.Duration, attained float64)) {
	if !a.tells(now) {
		return
	}
	worth := a.worth(now)
	for id, p := range a.by {
		yield(id, p.waited/time.Duration(max(1, p.went)), p.attained/worth)
	}
}
