// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-project/penstock/sim/report"
)

// conclude makes the report.
func conclude(ctx context.Context, o *Options, lanes []*lane, cost clientCost) (*report.Report, error) {
	r := &report.Report{Title: "Bench of " + o.Workload}
	var errs []error
	cores := runtime.GOMAXPROCS(0)
	answered, broken := 0, 0
	for _, l := range lanes {
		l.rec.Client(l.cpu, cores)
		run := l.rec.Run()
		r.Add(run)
		answered += l.tally.answered
		for _, n := range run.Errors {
			broken += n
		}
		r.Notes = append(r.Notes, l.notes(&run)...)
		if err := l.work.Err(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(lanes) == 2 {
		r.Baseline = o.Targets[1].Name
		r.Notes = append(r.Notes, difference(lanes[0], lanes[1])...)
	}
	r.Notes = append(r.Notes, cost.notes(r.Runs)...)
	if ctx.Err() != nil {
		r.Notes = append(r.Notes, "Broken off: this is what was measured until then.")
	}
	if answered == 0 && broken > 0 {
		errs = append(errs, fmt.Errorf("%w: %s", ErrSilent, lanes[0].client.URL))
	}
	return r, errors.Join(errs...)
}

// ErrSilent says that not one request got any answer, not even a refusal.
var ErrSilent = errors.New("nothing was answered at all")

// notes are what a reader of the row has to know.
func (l *lane) notes(run *report.Run) (list []string) {
	say := func(format string, a ...any) {
		list = append(list, run.Policy+": "+fmt.Sprintf(format, a...))
	}
	for _, kind := range slices.Sorted(maps.Keys(l.tally.asker)) {
		if text := l.tally.asker[kind]; text != "" && run.Errors[kind] > 0 {
			say("%s, %d times; it first said %q.", kind, run.Errors[kind], text)
		}
	}
	t := &l.tally
	if t.noUsage > 0 {
		say("%d of %d answers had no usage: their tokens are counted by chunks with output, their prompts are what the workload says, and what was cached is not known.", t.noUsage, t.ok)
	}
	if t.asked > 0 {
		if ratio := float64(t.counted) / float64(t.asked); ratio > 1.15 || ratio < 0.85 {
			say("the server counted %.2f prompt tokens for each that the workload has (%d and %d in all); what it puts around messages is part of that. --tokens-per-word %.2f makes prompts as long as they should be.",
				ratio, t.counted, t.asked, l.o.PerWord*ratio)
		}
	}
	if t.left > 0 {
		say("%d requests were open when the run was broken off, and are not counted: the figures are of those that were quicker.", t.left)
	}
	return list
}

// difference compares the blocks of two lanes in pairs, so that what changed over time falls out.
func difference(a, b *lane) (list []string) {
	for _, figure := range []struct {
		name string
		of   func(*block) *sum
	}{
		{"TTFT", func(b *block) *sum { return &b.ttft }},
		{"TPOT", func(b *block) *sum { return &b.tpot }},
	} {
		var diffs []float64
		mean := 0.0
		for i := range min(len(a.blocks), len(b.blocks)) {
			x, y := figure.of(&a.blocks[i]), figure.of(&b.blocks[i])
			if x.n == 0 || y.n == 0 {
				continue
			}
			d := x.total/float64(x.n) - y.total/float64(y.n)
			diffs = append(diffs, d)
			mean += d
		}
		n := float64(len(diffs))
		if n < 2 {
			continue
		}
		mean /= n
		sq := 0.0
		for _, d := range diffs {
			sq += (d - mean) * (d - mean)
		}
		list = append(list, fmt.Sprintf("%s − %s: mean %s %+.2f ms ± %.2f (95 %% confidence, from %d pairs of turns).",
			a.o.Targets[0].Name, a.o.Targets[1].Name, figure.name, mean, 1.96*math.Sqrt(sq/(n-1)/n), len(diffs)))
	}
	return list
}

// waitLimit is the wait for a core, at the 99th percentile, beyond which a client measures itself.
const waitLimit = 5 * time.Millisecond

// notes tell what the runtime saw. The report itself warns of a client that was busy or late; of what it cannot
// know this does.
func (c clientCost) notes(runs []report.Run) []string {
	wait := time.Duration(c.wait * 1e9)
	list := []string{fmt.Sprintf("In the client goroutines waited %.1f ms for a core (p99); %d garbage collections, the longest pause %.1f ms.", c.wait*1e3, c.collections, c.pause*1e3)}
	for i := range runs {
		x := &runs[i]
		if n := x.Errors[NotSent]; n > 0 {
			list = append(list, fmt.Sprintf("WARNING: %s: %d requests were due and not sent, because as many were open as may be (--max-open): the server does not keep up with this rate.", x.Policy, n))
		}
		if wait > waitLimit && x.Client != nil {
			x.Client.Saturated = true
		}
	}
	if wait > waitLimit {
		list = append(list, "WARNING: the client had to wait for a core, and part of these figures is its own. Lower the rate, or run it on cores that nothing else uses.")
	}
	return list
}
