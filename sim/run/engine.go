// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/kind"
	"github.com/penstock-project/penstock/sim/work"
)

// instance is an engine of the fleet, and the process that it is.
type instance struct {
	r       *run
	i       int
	spec    kind.Endpoint
	id      fleet.ID
	address string
	labels  map[string]string

	engine  *engine.Engine
	started uint64 // how often it began anew
	running bool   // a step is open
	ended   time.Duration
	slow    float64 // factor of a step's time
	down    bool
	mute    bool // its metrics stand still
	hidden  bool // nobody tells the gateways of it

	loads []*fleet.Load // it as each gateway knows it; nil where it does not
	pages []page        // and what each read of it
	hearing
}

// begin starts the engine with an empty cache.
func (n *instance) begin() (err error) {
	n.started++
	n.running, n.ended = false, -1
	n.batch = nil
	c := n.spec.Config
	if n.r.heard() {
		c.Events = n
	}
	n.engine, err = engine.New(c)
	return err
}

// submit gives it a request. It reports false for one that the engine would never hold.
func (n *instance) submit(x *exchange) bool {
	q := x.req
	x.blocks = blocks(x.blocks[:0], q.Prompt, work.Segment{ID: q.Answer, Tokens: int32(q.Output)}, n.spec.Config.BlockSize)
	seq, err := n.engine.Submit(n.r.now, engine.Request{
		Blocks: x.blocks, Whole: true, PromptLen: x.promptLen, MaxTokens: q.Output, Adapter: q.Model, Tag: x,
	})
	if err != nil {
		if !errors.Is(err, engine.ErrTooLong) && n.r.err == nil {
			n.r.err = err
		}
		return false
	}
	x.seq = seq
	n.kick()
	return true
}

// abort ends a request early. A step that is open still stores its blocks, when the request may be another's.
func (n *instance) abort(x *exchange) {
	q := *x.req
	q.Prompt = slices.Clone(q.Prompt)
	x.seq.Tag = &q
	n.engine.Abort(n.r.now, x.seq)
	n.publish()
}

// kick begins the next step when none is open and there is something to do.
func (n *instance) kick() {
	if n.running {
		return
	}
	took, busy := n.engine.Begin(n.r.now)
	n.publish()
	if !busy {
		return
	}
	if n.slow != 1 {
		took = time.Duration(float64(took) * n.slow)
	}
	n.running = true
	n.r.plan(n.r.now+took, n, uint32(n.started))
}

// happen is the end of a step. The next begins at once, before anybody reads what this one said.
func (n *instance) happen(turn uint32) {
	if n.down || turn != uint32(n.started) {
		return
	}
	n.running = false
	now, before := n.r.now, n.ended
	out := n.engine.End(now)
	n.ended = now
	n.kick()
	together := 0
	for _, t := range out {
		x := t.Seq.Tag.(*exchange)
		if x.said == before && x.began { // as most
			together++
		} else if x.began {
			n.r.gap(x, now-x.said, 1)
		}
		x.said = now
	}
	n.r.gap(nil, now-before, together)
	for _, t := range out {
		x := t.Seq.Tag.(*exchange)
		x.token(t)
	}
}

// read is what its metrics page says now; false when nobody answers.
func (n *instance) read() (reading fleet.Reading, ok bool) {
	if n.down || n.mute || n.hidden {
		return reading, false
	}
	s, c, now := n.engine.Stats(), &n.spec.Config, n.r.Now()
	at := func(v float64) fleet.Signal { return fleet.Signal{Value: v, At: now} }
	reading = fleet.Reading{
		Waiting: at(float64(s.Waiting)), Running: at(float64(s.Running)), KVUsage: at(s.KVUsage), Engine: "vllm",
		BlockSize: c.BlockSize, NumBlocks: c.NumBlocks, MaxAdapters: c.MaxLoRAs,
	}
	if c.MaxLoRAs > 0 {
		reading.Adapters, reading.Queued = n.adapters()
	}
	return reading, true
}

// adapters lists those that run and those that wait.
func (n *instance) adapters() (running, queued []string) {
	seen := map[string]bool{}
	n.engine.Each(func(s *engine.Seq, runs bool) {
		switch {
		case s.Adapter == "" || seen[s.Adapter]:
		case runs:
			running = append(running, s.Adapter)
			seen[s.Adapter] = true
		default:
			queued = append(queued, s.Adapter)
			seen[s.Adapter] = true
		}
	})
	return running, queued
}
