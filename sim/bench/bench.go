// SPDX-License-Identifier: Apache-2.0

// Package bench answers: how fast is this server, seen from outside and in real time? It sends a workload to
// an OpenAI-compatible URL, or in turns to two of them, and fills a report with what came of it.
//
// In an open loop nothing waits for answers: each request has its time, from which its latency counts,
// whether or not it could be sent then. What the client itself costs is measured along with it.
package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// Target is a server, and how its row is called.
type Target struct {
	Name   string
	Client load.Client
}

// Options say what is sent where, for how long.
type Options struct {
	// Targets are one, or two that are compared: blocks of time go to them in turns.
	Targets []Target
	// Open begins the workload, Workload is its name, and Total what is known of its length.
	Open     work.Open
	Workload string
	// Model is asked for where the workload names none.
	Model string
	Seed  uint64
	// Rate is what Open gets.
	Rate float64
	// Every, if not 0, is the time between two requests, in place of the workload's own arrivals.
	Every time.Duration
	// Concurrency, if not 0, closes the loop: so many requests are open at any time, whatever the
	// workload's own arrivals are.
	Concurrency int
	// Warmup comes before what is measured, which ends after Duration or Requests, whichever is first;
	// 0 is no bound.
	Warmup, Duration time.Duration
	Requests         int
	// MaxOpen bounds the requests that are open at once, 4096 if 0. In an open loop those beyond fail
	// as "not sent".
	MaxOpen int
	// Block is how long a target has its turn when there are two, 2 s if 0.
	Block time.Duration
	// MaxTokens cuts what the workload asks for; 0 is as it says.
	MaxTokens int
	// PerWord is how many tokens a word of the prompts is worth, 1 if 0.
	PerWord float64
	// Whole asks for answers in one piece instead of streams.
	Whole bool
	// Extra are more members of the request bodies, as JSON: {"ignore_eos":true}.
	Extra string
	// Salt changes the text of all prompts and nothing else, so that a server's cache does not know
	// them from an earlier run.
	Salt uint64
	SLO  report.SLO
	// Watch, if not nil, runs beside it all and shows how far it is, until its context ends.
	Watch func(context.Context, *Progress)

	// Nap waits for less than a few milliseconds, and not much longer; nil for the kernel's own, which a false clock does not know.
	Nap func(time.Duration)
}

// NotSent is the error of a request that was due while too many were open.
const NotSent = "not sent: too many open"

func (o *Options) defaults() error {
	if o.MaxOpen == 0 {
		o.MaxOpen = 4096
	}
	if o.Block == 0 {
		o.Block = 2 * time.Second
	}
	if o.PerWord == 0 {
		o.PerWord = 1
	}
	if o.Nap == nil {
		o.Nap = nap
	}
	o.Extra = strings.TrimSpace(o.Extra)
	if o.Extra != "" {
		if len(o.Extra) < 2 || o.Extra[0] != '{' || o.Extra[len(o.Extra)-1] != '}' {
			return errors.New("extra: want a JSON object")
		}
		if o.Extra = strings.TrimSpace(o.Extra[1 : len(o.Extra)-1]); o.Extra != "" {
			o.Extra = "," + o.Extra
		}
	}
	if n := len(o.Targets); n != 1 && n != 2 {
		return fmt.Errorf("%d targets: want one or two", n)
	}
	return nil
}

// Run sends the workload and reports what was measured: one run for each target, whose policy is its name.
// When the context ends, the report is of what was done until then. An error comes without a report when
// the options make no sense, and beside one when the workload broke off or nothing at all was answered.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	meter := load.NewMeter(time.Now())
	lanes := make([]*lane, len(o.Targets))
	for i := range lanes {
		var err error
		if lanes[i], err = newLane(&o, i, meter); err != nil {
			return nil, err
		}
	}
	client := watchClient()
	var show sync.WaitGroup
	showing, hide := context.WithCancel(context.Background())
	defer hide()
	if o.Watch != nil {
		show.Go(func() { o.Watch(showing, &Progress{meter, &o, lanes}) })
	}
	takeTurns(ctx, &o, lanes)
	for _, l := range lanes {
		l.drain()
	}
	hide()
	show.Wait()
	return conclude(ctx, &o, lanes, client.stop())
}

// takeTurns drives each lane to its end. Two have blocks in the order A B B A, so that what changes
// steadily in the meantime is the same for both.
func takeTurns(ctx context.Context, o *Options, lanes []*lane) {
	if len(lanes) == 1 {
		lanes[0].drive(ctx, time.Time{})
		return
	}
	ended := make([]bool, len(lanes))
	for i := 0; !(ended[0] && ended[1]) && ctx.Err() == nil; i++ {
		turn := (i + 1) / 2 % 2
		if ended[turn] {
			continue
		}
		l := lanes[turn]
		ended[turn] = l.drive(ctx, time.Now().Add(o.Block))
		if o.Concurrency > 0 {
			l.drain() // so that there are never more open than were asked for
		}
	}
}

// tenantHeaders are what a gateway is told of who asks, in the field's canonical names.
func tenantHeaders(r *work.Request) http.Header {
	if r.Tenant == "" && r.Objective == "" {
		return nil
	}
	h := http.Header{}
	if r.Tenant != "" {
		h.Set("x-llm-d-inference-fairness-id", r.Tenant)
	}
	if r.Objective != "" {
		h.Set("x-llm-d-inference-objective", r.Objective)
	}
	return h
}
