// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// errUseless is an answer that says nothing.
var errUseless = errors.New("useless")

// readPage tells the store what a page says. A page without any signal makes all of them unknown.
func (r *runner) readPage(w *worker, j job, body []byte, at time.Time, seen int64) error {
	pl, p := j.task.poll, &w.page
	m := pl.mapping(j.ep)
	Scan(body, m, cmp.Or(j.ep.Pod, j.ep.Name), p)
	if pl.core >= 0 {
		if last := j.task.process.follow(p, at); !last.IsZero() {
			r.store.Renew(j.ep.ID, j.load, last)
		}
		r.store.Tell(j.ep.ID, j.load, j.whole.add(pl, j.reading(p, at, seen)))
	}
	if len(m.extras) > 0 || j.told {
		w.attributes = w.attributes[:0]
		for i, v := range p.Extra {
			if v.State == Known {
				w.attributes = append(w.attributes, fleet.Attribute{Name: m.extras[i].Name, Producer: m.extras[i].Producer, Signal: signal(v, at)})
			}
		}
		r.store.TellAttributes(j.ep.ID, j.load, pl.name, w.attributes)
		j.told = true
	}
	return r.judge(pl, m, p, j.load)
}

// judge tells of each extractor that found nothing, or what cannot be. The error says that none found anything.
func (r *runner) judge(pl *poll, m *Mapping, p *Page, load *fleet.Load) error {
	err := errUseless
	for i, x := range pl.extractors {
		known, bad := false, false
		look := func(v *Value) {
			known = known || v.State == Known
			bad = bad || v.State == Bad
		}
		if i == pl.core {
			for _, v := range [...]*Value{&p.Waiting, &p.Running, &p.KVUsage} {
				look(v)
			}
		}
		for k := range p.Extra {
			if m.extras[k].owner == i {
				look(&p.Extra[k])
			}
		}
		switch {
		case bad:
			r.opt.Extracted(pl.typ, x.Type, load, string(BadValue))
		case !known:
			r.opt.Extracted(pl.typ, x.Type, load, string(NoSignals))
		}
		if known {
			err = nil
		}
	}
	return err
}

// process is whose page it was.
type process struct {
	began float64 // in seconds since 1970, by its machine's clock; the latest that was told
	seen  time.Time
}

// unsteady is by how many seconds the beginning of one process may differ from page to page: most clients add whole seconds of the
// kernel to it, which move with the clock.
const unsteady = 1.5

// follow takes a page, and returns when the process before was last seen if it is another's now. Where the pages of several take
// turns behind one address, only what is later than all of them is new.
func (o *process) follow(p *Page, at time.Time) (last time.Time) {
	if p.Started.State != Known || !p.Known() {
		return last
	}
	if o.began > 0 && p.Started.Value > o.began+unsteady {
		last = o.seen
	}
	o.began, o.seen = max(o.began, p.Started.Value), at
	return last
}

// reading is what a page says of an engine.
func (t *task) reading(p *Page, at time.Time, seen int64) fleet.Reading {
	read := fleet.Reading{
		Seen: seen, Engine: p.Engine(), MaxAdapters: p.MaxAdapters,
		Waiting: signal(p.Waiting, at), Running: signal(p.Running, at), KVUsage: signal(p.KVUsage, at),
		Adapters: t.adapters.set(p.Adapters), Queued: t.queued.set(p.Queued),
	}
	for _, v := range [...]struct {
		*Value
		name *string
	}{{&p.Waiting, &read.WaitingName}, {&p.Running, &read.RunningName}, {&p.KVUsage, &read.KVName}} {
		if v.Row != nil {
			*v.name = v.Row.Family
		}
		if v.State == Bad {
			read.Refused = append(read.Refused, fleet.Refused{Metric: v.Row.Family, Value: v.Value.Value})
		}
	}
	if p.BlockSize.State == Known {
		read.BlockSize = int(p.BlockSize.Value)
	}
	if p.NumBlocks.State == Known {
		read.NumBlocks = int(p.NumBlocks.Value)
	}
	return read
}

func signal(v Value, at time.Time) fleet.Signal {
	if v.State != Known {
		return fleet.Signal{}
	}
	return fleet.Signal{Value: v.Value, At: at}
}

// whole puts the readings of one incarnation together, where several pages make them.
type whole struct {
	mu    sync.Mutex
	parts []*fleet.Reading // by rank, nil before the first
}

// add takes a poll's reading and returns the whole: of each signal the first page's that has it.
func (w *whole) add(p *poll, r fleet.Reading) fleet.Reading {
	if p.alone {
		return r
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.parts) <= p.rank {
		w.parts = append(w.parts, nil)
	}
	w.parts[p.rank] = &r
	var out fleet.Reading
	for _, part := range w.parts {
		if part != nil {
			fill(&out, part)
		}
	}
	return out
}

// fill gives a reading what it lacks and another has.
func fill(out, part *fleet.Reading) {
	counted := !out.Waiting.At.IsZero() || !out.Running.At.IsZero()
	take := func(s *fleet.Signal, name *string, have fleet.Signal, its string) bool {
		if !s.At.IsZero() || have.At.IsZero() {
			return false
		}
		*s, *name = have, its
		return true
	}
	waiting := take(&out.Waiting, &out.WaitingName, part.Waiting, part.WaitingName)
	running := take(&out.Running, &out.RunningName, part.Running, part.RunningName)
	switch {
	case !waiting && !running:
	case counted: // what either page did not see is unseen
		out.Seen = min(out.Seen, part.Seen)
	default:
		out.Seen = part.Seen
	}
	take(&out.KVUsage, &out.KVName, part.KVUsage, part.KVName)
	out.Engine = cmp.Or(out.Engine, part.Engine)
	out.BlockSize = cmp.Or(out.BlockSize, part.BlockSize)
	out.NumBlocks = cmp.Or(out.NumBlocks, part.NumBlocks)
	if out.MaxAdapters == 0 && len(out.Adapters)+len(out.Queued) == 0 {
		out.Adapters, out.Queued, out.MaxAdapters = part.Adapters, part.Queued, part.MaxAdapters
	}
	out.Refused = append(out.Refused, part.Refused...)
}
