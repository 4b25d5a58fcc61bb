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
// counts in all bands. A choice costs a look at each program that waits, some nanoseconds each.
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
	idle        idle[program] // those without requests
	halfLife    float64       // seconds
	keep, sweep time.Duration
	epoch       time.Time
	start       time.Time // of all; heads' times of entry are counted from it
	swept       time.Time
	told        time.Time     // when it was last told of
	teller      *programAware // and by which band's policy
}

// program is one fairness id.
type program struct {
	id       string
	idle     link[program]
	attained float64 // tokens by their weights, at the epoch
	waited   time.Duration
	went     int64
	last     time.Time // when it last had to do with us
	waits    []place   // where it has requests, in few bands at most
}

// place is where a program stands in a band's list.
type place struct {
	in *programAware
	at int
}

// in finds the program's place in a band's list.
func (p *program) in(a *programAware) *place {
	for i := range p.waits {
		if p.waits[i].in == a {
			return &p.waits[i]
		}
	}
	return nil
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
		w.in.list[w.at].attained = p.attained
	}
}

func (s *programs) program(id string, now time.Time) *program {
	p := s.by[id]
	if p == nil {
		if s.start.IsZero() {
			s.start = now
		}
		s.clean(now)
		p = &program{id: id}
		p.idle.of = p
		s.by[id] = p
	}
	p.last = now
	s.idle.remove(&p.idle)
	if len(p.waits) == 0 {
		s.idle.add(&p.idle)
	}
	return p
}

// clean forgets programs that are idle for long, and of very many those that are so longest.
func (s *programs) clean(now time.Time) {
	due := now.Sub(s.swept) >= s.sweep
	for p := s.idle.first(); p != nil && (due && now.Sub(p.last) >= s.keep || s.idle.n >= mostPrograms); p = s.idle.first() {
		s.idle.remove(&p.idle)
		delete(s.by, p.id)
	}
	if due {
		s.swept = now
	}
}

// programAware is the policy of one band. What a choice looks at stands close together.
type programAware struct {
	*programs
	list          []candidate
	service, wait float64
}

// candidate is a program that has requests waiting in the band.
type candidate struct {
	attained float64
	since    time.Duration // its head entered so long after the start
	f        *flow.Flow
	p        *program
}

func (a *programAware) Add(f *flow.Flow, now time.Time) {
	p := a.program(f.Tenant, now)
	a.idle.remove(&p.idle)
	p.waits = append(p.waits, place{a, len(a.list)})
	a.list = append(a.list, candidate{p.attained, f.Head.Entered.Sub(a.start), f, p})
}

func (a *programAware) Remove(f *flow.Flow, now time.Time) {
	p := a.program(f.Tenant, now)
	w, last := p.in(a), len(a.list)-1
	moved := a.list[last]
	a.list[w.at], a.list[last] = moved, candidate{}
	a.list = a.list[:last]
	if moved.p != p {
		moved.p.in(a).at = w.at
	}
	*w = p.waits[len(p.waits)-1]
	p.waits = p.waits[:len(p.waits)-1]
	if len(p.waits) == 0 {
		a.idle.add(&p.idle)
	}
}

func (a *programAware) Headed(f *flow.Flow, now time.Time) {
	a.list[a.program(f.Tenant, now).in(a).at].since = f.Head.Entered.Sub(a.start)
}

// Next implements [flow.Fairness]. A score without what all have in common is −service·s − wait·(the time of entry),
// so that neither now nor the fading matters.
func (a *programAware) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow {
	if len(a.list) == 0 {
		return nil
	}
	least, most := a.list[0].attained, a.list[0].attained
	first, last := a.list[0].since, a.list[0].since
	for i := range a.list {
		c := &a.list[i]
		least, most = min(least, c.attained), max(most, c.attained)
		first, last = min(first, c.since), max(last, c.since)
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
	for i := range a.list {
		c := &a.list[i]
		s := -perToken*(c.attained-least) - perWait*float64(c.since-first)
		if best != nil && (s < score || s == score && !earlier(c.f, best)) {
			continue
		}
		if ok(c.f) {
			best, score = c.f, s
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

// tells reports whether this band's policy is the one that tells of all programs at that moment: the first that is
// asked.
func (a *programAware) tells(now time.Time) bool {
	if !a.told.Equal(now) {
		a.told, a.teller = now, a
	}
	return a.teller == a
}

// Evenness implements [flow.Measured] with Jain's index of the programs' mean waits: 1 when they wait equally long,
// 1/n when one of n waits alone.
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

// Programs implements [flow.Measured]; what a program attained is told as far as it has not faded.
func (a *programAware) Programs(now time.Time, yield func(program string, wait time.Duration, attained float64)) {
	if !a.tells(now) {
		return
	}
	worth := a.worth(now)
	for id, p := range a.by {
		yield(id, p.waited/time.Duration(max(1, p.went)), p.attained/worth)
	}
}
