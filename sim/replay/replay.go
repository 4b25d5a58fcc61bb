// SPDX-License-Identifier: Apache-2.0

// Package replay answers: where would these requests have gone under another policy? It takes the records of decisions
// that a gateway kept, sets the stage of each anew (what every endpoint told, what was in flight to it, what it held of
// the prompt), and has another plan decide.
//
// It is what would have been decided then, not what would have come of it: a policy that had decided all along would have found
// other queues and other caches. That is for sim/run to say.
package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// Bounds on what is read.
const (
	mostBytes   = 512 << 20
	mostRecords = 1 << 20
	mostFlying  = 1 << 14
)

// Read reads records: what /debug/decisions?full=true answers, lists of records, or records one after another. They come
// in the order in which they were made. Records without candidates, of requests that no decision was made for, are left
// out, and counted.
func Read(name string, in io.Reader) (list []observe.Record, without int, err error) {
	text, err := io.ReadAll(io.LimitReader(in, mostBytes+1))
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	case len(text) > mostBytes:
		return nil, 0, fmt.Errorf("%s: want at most %d bytes", name, mostBytes)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, 0, fmt.Errorf("%s: is empty: want what /debug/decisions?full=true answers, or records", name)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var one json.RawMessage
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			at := d.InputOffset()
			var syntax *json.SyntaxError
			switch {
			case errors.As(err, &syntax):
				at = syntax.Offset - 1
			case errors.Is(err, io.ErrUnexpectedEOF):
				at = int64(len(text))
			}
			return nil, 0, fmt.Errorf("%s:%d: %w", name, lineOf(text, at), err)
		}
		end := d.InputOffset()
		some, err := recordsOf(one)
		if err != nil {
			return nil, 0, fmt.Errorf("%s:%d: %w: want records of /debug/decisions?full=true", name, lineOf(text, end-int64(len(one))), err)
		}
		for _, r := range some {
			switch {
			case len(r.Candidates) == 0 || r.Pick == "":
				without++
			case len(list) == mostRecords:
				return nil, 0, fmt.Errorf("%s:%d: more than %d records", name, lineOf(text, end), mostRecords)
			default:
				list = append(list, r)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b observe.Record) int { return a.Time.Compare(b.Time) })
	return list, without, nil
}

// lineOf is the line in which a place of a text stands.
func lineOf(text []byte, at int64) int {
	return 1 + bytes.Count(text[:min(max(int(at), 0), len(text))], []byte("\n"))
}

// recordsOf reads a list of records, an object with one, or a record.
func recordsOf(text json.RawMessage) (list []observe.Record, err error) {
	if text[0] == '[' {
		return list, json.Unmarshal(text, &list)
	}
	var v struct {
		Decisions []observe.Record
		observe.Record
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	if v.Decisions != nil {
		return v.Decisions, nil
	}
	return []observe.Record{v.Record}, nil
}

// Decider is a policy that decides anew.
type Decider struct {
	Name string
	Plan *sched.Plan
	// Producers are the names under which the plan's plugins may look for prefixes.
	Producers []string
}

// Moved is a request that would have gone elsewhere.
type Moved struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	From Place     `json:"from"`
	To   Place     `json:"to"`
}

// Place is an endpoint as a decision saw it.
type Place struct {
	Endpoint string  `json:"endpoint"`
	Cached   int     `json:"cached_tokens"`
	InFlight int     `json:"in_flight"`
	Work     int64   `json:"inflight_tokens"`
	Waiting  float64 `json:"waiting"` // -1 for unknown
	KV       float64 `json:"kv_usage"`
}

// Result is what a policy would have done.
type Result struct {
	Policy    string `json:"policy"`
	Decisions int    `json:"decisions"`
	Same      int    `json:"same"`
	// Tied would have gone elsewhere, by chance: the policy thinks as much of the endpoint that they went to.
	Tied int `json:"tied"`
	// Nowhere are those for which the policy finds no endpoint.
	Nowhere int `json:"nowhere"`
	Moved   int `json:"moved"`
	// What they would have found there, and found where they went, in the mean of those that would have moved.
	CachedThere  float64 `json:"cached_tokens_there"`
	CachedHere   float64 `json:"cached_tokens_here"`
	WorkThere    float64 `json:"inflight_tokens_there"`
	WorkHere     float64 `json:"inflight_tokens_here"`
	WaitingThere float64 `json:"waiting_there"`
	WaitingHere  float64 `json:"waiting_here"`
	// Shares are how many requests each endpoint had, and would have had.
	Shares []Share `json:"shares"`
	// Examples are the first that would have moved.
	Examples []Moved `json:"examples,omitempty"`
}

// Share is what an endpoint had and would have had.
type Share struct {
	Endpoint string `json:"endpoint"`
	Had      int    `json:"had"`
	Would    int    `json:"would"`
}

// stage is a pool that is set anew for each record. An endpoint keeps its place, and its slot, through all.
type stage struct {
	slots map[string]uint32
	cycle sched.Cycle
}

// Play has a policy decide each record anew. Chance is seeded.
func Play(list []observe.Record, d Decider, seed uint64, examples int) Result {
	s := &stage{slots: map[string]uint32{}}
	s.cycle.Rand = rand.New(rand.NewPCG(seed, 0))
	r := Result{Policy: d.Name}
	shares := map[string]*Share{}
	share := func(name string) *Share {
		if shares[name] == nil {
			shares[name] = &Share{Endpoint: name}
		}
		return shares[name]
	}
	for i := range list {
		rec := &list[i]
		r.Decisions++
		share(rec.Pick).Had++
		chosen, tied := s.decide(rec, d)
		if chosen == "" {
			r.Nowhere++
			continue
		}
		share(chosen).Would++
		switch {
		case chosen == rec.Pick:
			r.Same++
			continue
		case tied:
			r.Tied++
			continue
		}
		from, to := placeOf(rec, rec.Pick), placeOf(rec, chosen)
		r.Moved++
		r.CachedThere += float64(to.Cached)
		r.CachedHere += float64(from.Cached)
		r.WorkThere += float64(to.Work)
		r.WorkHere += float64(from.Work)
		r.WaitingThere += max(0, to.Waiting)
		r.WaitingHere += max(0, from.Waiting)
		if len(r.Examples) < examples {
			r.Examples = append(r.Examples, Moved{rec.ID, rec.Time, from, to})
		}
	}
	if n := float64(r.Moved); n > 0 {
		for _, v := range []*float64{&r.CachedThere, &r.CachedHere, &r.WorkThere, &r.WorkHere, &r.WaitingThere, &r.WaitingHere} {
			*v /= n
		}
	}
	for _, x := range shares {
		r.Shares = append(r.Shares, *x)
	}
	slices.SortFunc(r.Shares, func(a, b Share) int { return cmp.Or(b.Had-a.Had, cmp.Compare(a.Endpoint, b.Endpoint)) })
	return r
}

// before are the names of what drops endpoints before a plan does; see gateway. These stay dropped.
var before = []string{"model", "subset", "health"}

// decide sets the stage of a record and has the plan decide. tied tells that it thinks as much of where the request went.
func (s *stage) decide(rec *observe.Record, d Decider) (chosen string, tied bool) {
	c := &s.cycle
	c.Now, c.Stale = rec.Time, time.Hour
	c.ID, c.Model, c.Tenant, c.Priority = rec.ID, cmp.Or(rec.Target, rec.Model), rec.Tenant, rec.Priority
	endpoints, cached := make([]*fleet.Endpoint, 0, len(rec.Candidates)), map[*fleet.Endpoint]int32{}
	for i := range rec.Candidates {
		k := &rec.Candidates[i]
		if k.Verdict == observe.Dropped && slices.Contains(before, k.By) {
			continue
		}
		e := s.endpoint(k, rec.Time)
		endpoints = append(endpoints, e)
		cached[e] = int32(k.CachedBlocks)
	}
	slices.SortFunc(endpoints, func(a, b *fleet.Endpoint) int { return a.ID.Compare(b.ID) })
	c.Begin(endpoints)
	d.Plan.Screen(c)
	if len(c.Candidates) == 0 {
		return "", false
	}
	c.Tokens = int64(rec.Tokens.Estimated)
	for _, name := range append([]string{"recorded"}, d.Producers...) {
		p := c.AddPrefix(name)
		p.Blocks, p.BlockTokens = rec.Blocks, rec.BlockSize
		for i, e := range c.Candidates {
			p.Match[i] = cached[e]
		}
	}
	profile, _ := d.Plan.Choose(c)
	if profile == nil || !profile.Decide(c) {
		return "", false
	}
	i := c.Order[0]
	for k, e := range c.Candidates {
		if e.String() == rec.Pick && c.Total[k] >= c.Total[i]-1e-9 && len(profile.Scorers) > 0 {
			tied = true
		}
	}
	d.Plan.Placed(c, c.Candidates[i])
	return c.Candidates[i].String(), tied
}

// endpoint is a candidate as the decision saw it.
func (s *stage) endpoint(k *observe.Candidate, at time.Time) *fleet.Endpoint {
	slot, ok := s.slots[k.Endpoint]
	if !ok {
		slot = uint32(len(s.slots))
		s.slots[k.Endpoint] = slot
	}
	e := &fleet.Endpoint{Address: k.Address, Load: &fleet.Load{Slot: slot}}
	e.Namespace, e.Name, ok = strings.Cut(k.Endpoint, "/")
	if !ok {
		e.Namespace, e.Name = "", k.Endpoint
	}
	for name, to := range map[string]*fleet.Signal{"waiting": &e.Waiting, "running": &e.Running, "kv_usage": &e.KVUsage} {
		if v, ok := k.Signals[name]; ok && v.Value != nil && v.State == "fresh" {
			*to = fleet.Signal{Value: *v.Value, At: at}
		}
	}
	for _, a := range k.Attrs {
		if a.Value != nil {
			e.Attributes = append(e.Attributes, fleet.Attribute{Name: a.Name, Producer: a.Producer, Signal: fleet.Signal{Value: *a.Value, At: at}})
		}
	}
	flying := min(max(k.InFlight, 0), mostFlying)
	for i := range flying {
		work := int64(0)
		if i == 0 {
			work = max(0, k.Work)
		}
		_ = e.Load.Take(at, work, 0)
	}
	e.Seen = e.Load.Sent() - int64(min(max(k.Unseen, 0), flying))
	return e
}

func placeOf(rec *observe.Record, name string) Place {
	for i := range rec.Candidates {
		k := &rec.Candidates[i]
		if k.Endpoint != name {
			continue
		}
		p := Place{Endpoint: name, Cached: k.CachedTokens, InFlight: k.InFlight, Work: k.Work, Waiting: -1, KV: -1}
		if v := k.Signals["waiting"].Value; v != nil {
			p.Waiting = *v
		}
		if v := k.Signals["kv_usage"].Value; v != nil {
			p.KV = *v
		}
		return p
	}
	return Place{Endpoint: name, Waiting: -1, KV: -1}
}

// Table writes the results for people.
func Table(w io.Writer, list []observe.Record, without int, results []Result) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%d decisions", len(list))
	if without > 0 {
		fmt.Fprintf(b, ", and %d records without one", without)
	}
	if n := len(list); n > 0 {
		fmt.Fprintf(b, ", %s to %s", list[0].Time.UTC().Format(time.DateTime), list[n-1].Time.UTC().Format(time.DateTime))
	}
	fmt.Fprintln(b)
	for i := range results {
		r := &results[i]
		share := func(n int) string {
			if r.Decisions == 0 {
				return "0"
			}
			return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(r.Decisions))
		}
		fmt.Fprintf(b, "\n%s: %s would have gone elsewhere, %s to the same endpoint", r.Policy, share(r.Moved), share(r.Same))
		if r.Tied > 0 {
			fmt.Fprintf(b, ", %s to one it thinks as much of", share(r.Tied))
		}
		if r.Nowhere > 0 {
			fmt.Fprintf(b, ", %s nowhere", share(r.Nowhere))
		}
		fmt.Fprintln(b)
		if r.Moved > 0 {
			fmt.Fprintf(b, "  of those elsewhere, in the mean:        there        here\n")
			fmt.Fprintf(b, "    tokens of the prompt cached     %11.0f %11.0f\n", r.CachedThere, r.CachedHere)
			fmt.Fprintf(b, "    tokens of others in flight      %11.0f %11.0f\n", r.WorkThere, r.WorkHere)
			fmt.Fprintf(b, "    requests that wait              %11.1f %11.1f\n", r.WaitingThere, r.WaitingHere)
		}
		fmt.Fprintf(b, "  %-40s %8s %8s\n", "endpoint", "had", "would")
		const most = 16
		for k, x := range r.Shares {
			if k == most {
				fmt.Fprintf(b, "  … and %d more\n", len(r.Shares)-most)
				break
			}
			fmt.Fprintf(b, "  %-40s %8d %8d\n", x.Endpoint, x.Had, x.Would)
		}
		for _, m := range r.Examples {
			fmt.Fprintf(b, "  e.g. %s: from %s (%d cached, %d in flight) to %s (%d cached, %d in flight)\n", m.ID, m.From.Endpoint, m.From.Cached, m.From.InFlight, m.To.Endpoint, m.To.Cached, m.To.InFlight)
		}
	}
	return b.Flush()
}
