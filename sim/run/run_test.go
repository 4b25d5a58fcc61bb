// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/flow"
	flowpolicy "github.com/penstock-project/penstock/flow/policy"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/kind"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// TestScenarios plays the scenarios in testdata, whose times are worked out by hand. A step takes 10 ms and 1 ms for each
// prompt token. Commands:
//
//	fleet n=2 [block=16] [blocks=100] [seqs=8] [budget=1000]
//	policy NAME [precise] [gate=2]     gate: a queue, with so many requests at an endpoint
//	work                               lines: at=0s prompt=a:20,b:10 out=3 [after=1] [tenant=t] [priority=n]
//	faults SPEC
//	run [gateways=1]                   when each request ended, and where how many did
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scene{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
	})
}

type scene struct {
	fleet  []kind.Endpoint
	lane   func(flow.Options) (*Lane, error)
	list   []work.Request
	after  map[int]int // who follows whom
	faults []work.Fault
}

func (s *scene) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "fleet":
		n, c := 1, engine.Config{BlockSize: 16, NumBlocks: 100, MaxNumSeqs: 8, MaxNumBatchedTokens: 1000,
			Timing: engine.Timing{Base: 10 * time.Millisecond, PerPrefillToken: time.Millisecond}}
		d.MaybeScanArgs(t, "n", &n)
		d.MaybeScanArgs(t, "block", &c.BlockSize)
		d.MaybeScanArgs(t, "blocks", &c.NumBlocks)
		d.MaybeScanArgs(t, "seqs", &c.MaxNumSeqs)
		d.MaybeScanArgs(t, "budget", &c.MaxNumBatchedTokens)
		s.fleet = nil
		for range n {
			s.fleet = append(s.fleet, kind.Endpoint{Kind: "test", Config: c})
		}
		return ""
	case "policy":
		gate := 0
		d.MaybeScanArgs(t, "gate", &gate)
		s.lane = laneOf(t, d.CmdArgs[0].Key, d.HasArg("precise"), gate)
		return ""
	case "work":
		s.read(t, d)
		return ""
	case "faults":
		var err error
		if s.faults, err = work.ParseFaults(d.Input); err != nil {
			d.Fatalf(t, "%v", err)
		}
		return ""
	case "run":
		gateways := 1
		d.MaybeScanArgs(t, "gateways", &gateways)
		return s.run(t, gateways)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (s *scene) read(t *testing.T, d *datadriven.TestData) {
	s.list, s.after = nil, map[int]int{}
	for i, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		q := work.Request{Index: i, Session: -1, Answer: 1000 + uint64(i), Output: 1}
		for _, f := range strings.Fields(line) {
			key, v, _ := strings.Cut(f, "=")
			switch key {
			case "at":
				q.At, _ = time.ParseDuration(v)
			case "out":
				fmt.Sscan(v, &q.Output)
			case "tenant":
				q.Tenant = v
			case "priority":
				fmt.Sscan(v, &q.Priority)
			case "after":
				n := 0
				fmt.Sscan(v, &n)
				s.after[n] = i
			case "prompt":
				for _, part := range strings.Split(v, ",") {
					seg := work.Segment{}
					name, n, _ := strings.Cut(part, ":")
					fmt.Sscan(n, &seg.Tokens)
					seg.ID = uint64(name[0])
					if name[0] == 'r' && len(name) > 1 { // r0: the answer of request 0
						fmt.Sscan(name[1:], &seg.ID)
						seg.ID += 1000
					}
					q.Prompt = append(q.Prompt, seg)
				}
			default:
				d.Fatalf(t, "unknown field %s", f)
			}
		}
		s.list = append(s.list, q)
	}
}

func (s *scene) run(t *testing.T, gateways int) string {
	w := &script{scene: s, done: map[int]bool{}}
	for _, i := range s.after {
		w.done[i] = true
	}
	r, err := begin(context.Background(), Setup{Lane: s.lane, Fleet: s.fleet, Work: w, Faults: s.faults, Seed: 1, Replicas: gateways})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	drift(t, r)
	slices.Sort(w.told)
	out := r.rec.Run()
	fmt.Fprintf(&w.b, "%s\n", strings.Join(w.told, "\n"))
	for _, e := range out.Endpoints {
		fmt.Fprintf(&w.b, "%s: %d\n", e.Name, e.Requests)
	}
	fmt.Fprintf(&w.b, "first token after %g ms in the mean, %d of %d tokens cached\n", out.TTFT.Mean, out.CachedTokens, out.PromptTokens)
	for _, kind := range slices.Sorted(mapKeys(out.Errors)) {
		fmt.Fprintf(&w.b, "%s: %d\n", kind, out.Errors[kind])
	}
	return w.b.String()
}

func mapKeys(m map[string]int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// script is a workload that is written out.
type script struct {
	*scene
	next int
	done map[int]bool // handed out, or to follow another
	told []string
	b    strings.Builder
}

func (w *script) Name() string { return "script" }
func (w *script) Total() int   { return len(w.list) }
func (w *script) Err() error   { return nil }

func (w *script) Next() (*work.Request, bool) {
	for ; w.next < len(w.list); w.next++ {
		if !w.done[w.next] {
			w.next++
			return &w.list[w.next-1], true
		}
	}
	return nil, false
}

func (w *script) Ended(q *work.Request, at time.Duration, ok bool) []*work.Request {
	how := "done"
	if !ok {
		how = "failed"
	}
	w.told = append(w.told, fmt.Sprintf("%d %s at %v", q.Index, how, at))
	if i, ok := w.after[q.Index]; ok {
		f := &w.list[i]
		f.At += at
		return []*work.Request{f}
	}
	return nil
}

// drift wants nothing to be left in flight.
func drift(t *testing.T, r *run) {
	t.Helper()
	for _, d := range r.doors {
		if d.down {
			continue
		}
		if n := d.lane.Gate.Waiting(); n != 0 {
			t.Errorf("%d still wait", n)
		}
		for _, e := range d.pool().Endpoints {
			requests, tokens := e.Load.Reserved()
			if e.Load.Requests() != 0 || e.Load.Tokens() != 0 || requests != 0 || tokens != 0 {
				t.Errorf("%s is left with %d requests of %d tokens, and %d of %d reserved", e.Name, e.Load.Requests(), e.Load.Tokens(), requests, tokens)
			}
		}
	}
	for _, n := range r.engines {
		if !n.down && n.engine.Busy() {
			t.Errorf("%s is still busy", n.id.Name)
		}
	}
	if len(r.under) != 0 || r.followers != 0 {
		t.Errorf("%d are under way, %d are to follow", len(r.under), r.followers)
	}
}

// laneOf is a named policy with the approximate producer, or the precise one.
func laneOf(t testing.TB, name string, precise bool, gate int) func(flow.Options) (*Lane, error) {
	return func(at flow.Options) (*Lane, error) {
		p, err := policy.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		profile, err := p.Profile()
		if err != nil {
			t.Fatal(err)
		}
		l := &Lane{Gate: flow.NewLegacy(), Tokens: precise}
		typ := "approx-prefix-cache-producer"
		if precise {
			typ = "precise-prefix-cache-producer"
		}
		producer, err := policy.Producers.New(typ, func(any) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := producer.(interface{ Mirror() *kvcache.Mirror }); ok {
			l.Mirrors = []*kvcache.Mirror{m.Mirror()}
		}
		l.Plan = &sched.Plan{Producers: []sched.Named[sched.Producer]{{Name: typ, Plugin: producer}}, Profiles: []*sched.Profile{profile},
			Handler: policy.Handlers["single-profile-handler"]()}
		l.Plan.Ready()
		if gate > 0 {
			l.Queues = true
			at.Detector = &slots{int64(gate)}
			at.TTL = time.Minute
			at.Default = flow.BandSpec{MaxRequests: 1000, MaxBytes: 1 << 30, Ordering: &flowpolicy.FCFSOrderingPolicy{}, Fairness: flowpolicy.Fairness["global-strict-fairness-policy"]().New}
			at.Negative = at.Default
			at.Evict = true
			l.Gate = flow.New(at)
		}
		return l, nil
	}
}

// slots is a detector by requests in flight.
type slots struct{ n int64 }

func (s *slots) Room(v flow.View, _ int64) bool { return v.Requests < s.n }
func (s *slots) Fill(v flow.View) (fill, weight float64) {
	return float64(v.Requests) / float64(s.n), 1
}

// suite is a workload with a bit of everything, of a quarter of a minute.
const suite = "chat?rate=3&for=15s + agents?rate=2&for=15s + groups?groups=8&prefix=1500&own=400&output=80&rate=4&for=15s&tenant=batch&priority=-1"

// do plays the suite.
func do(t testing.TB, seed uint64, change func(*Setup)) (*run, report.Run) {
	t.Helper()
	open, err := work.Parse(suite)
	if err != nil {
		t.Fatal(err)
	}
	w, err := open(seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := kind.Fleet("3xH100-32B-TP2,1xA100-32B-TP2")
	if err != nil {
		t.Fatal(err)
	}
	s := Setup{Policy: "test", Lane: laneOf(t, "priced-miss", false, 0), Fleet: endpoints, Work: w, Seed: seed}
	change(&s)
	r, err := begin(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	return r, r.rec.Run()
}

// TestSameBytes wants the same report of the same seed, and another of another, whatever is in the way.
func TestSameBytes(t *testing.T) {
	faults, err := work.ParseFaults("loss?endpoint=1&at=3s&for=4s, slow?endpoint=0&at=5s&for=3s&factor=3, scrape-stall?at=2s&for=4s, event-loss?at=4s&for=3s&factor=0.5, event-delay?at=8s&for=2s&factor=1, gateway-loss?endpoint=0&at=10s&for=2s")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name   string
		change func(*Setup)
	}{
		{"approximate", func(*Setup) {}},
		{"precise", func(s *Setup) { s.Lane = laneOf(t, "llm-d-default", true, 0) }},
		{"queued", func(s *Setup) { s.Lane = laneOf(t, "llm-d-default", false, 4) }},
		{"everything goes wrong", func(s *Setup) {
			s.Lane, s.Replicas, s.Faults = laneOf(t, "llm-d-default", true, 16), 2, faults
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var runs [][]byte
			for _, seed := range []uint64{7, 7, 8} {
				r, out := do(t, seed, x.change)
				drift(t, r)
				failed := 0
				for _, n := range out.Errors {
					failed += n
				}
				if out.Requests == 0 || out.Requests != out.Completed+failed {
					t.Errorf("%d requests, %d completed, %d failed: %v", out.Requests, out.Completed, failed, out.Errors)
				}
				text, err := json.Marshal(out)
				if err != nil {
					t.Fatal(err)
				}
				runs = append(runs, text)
			}
			if !bytes.Equal(runs[0], runs[1]) {
				t.Error("the same seed gave another report")
			}
			if bytes.Equal(runs[0], runs[2]) {
				t.Error("another seed gave the same report")
			}
		})
	}
}

// TestPreciseKnows wants the precise index to agree with the engines at the end, block by block.
func TestPreciseKnows(t *testing.T) {
	var lane *Lane
	r, out := do(t, 3, func(s *Setup) {
		build := laneOf(t, "llm-d-default", true, 0)
		s.Lane = func(o flow.Options) (*Lane, error) {
			l, err := build(o)
			lane = l
			return l, err
		}
	})
	if out.HitRate == 0 {
		t.Error("nothing was cached")
	}
	for len(r.heap) > 0 && r.now < 5*time.Minute { // until the last events arrived, and no promise is left
		r.step()
	}
	now := r.Now()
	for _, n := range r.engines {
		f := lane.Mirrors[0].Of(n.loads[0].Slot)
		if !f.Live(now) {
			t.Errorf("%s is not believed", n.id.Name)
		}
		if got, want := f.Counts().Blocks, n.engine.Findable(); got != want {
			t.Errorf("%s: %d blocks are followed, the engine can find %d", n.id.Name, got, want)
		}
	}
	for _, e := range r.doors[0].pool().Endpoints {
		if g := e.Load.Grade(); g.Agreement < 0.95 {
			t.Errorf("%s: predictions agree with what engines report by %.2f", e.Name, g.Agreement)
		}
	}
}

func TestContent(t *testing.T) {
	prompt := []work.Segment{{ID: 1, Tokens: 40}, {ID: 2, Tokens: 100}, {ID: 3, Tokens: 7}}
	q := &work.Request{Prompt: prompt, Answer: 9, Output: 20}
	all := tokens(nil, q, 0, 167)
	for from := range 160 {
		if got := tokens(nil, q, from, 7); !slices.Equal(got, all[from:from+7]) {
			t.Fatalf("tokens from %d differ", from)
		}
	}
	// The text that the gateway hashes and the blocks that engines have agree on what is equal.
	var w writer
	keys := func(p []work.Segment) []uint64 {
		var h kvcache.Hasher
		h.Reset("m", "", 16, 0)
		w.feed(p, &h)
		h.Finish()
		return slices.Clone(h.Keys)
	}
	other := []work.Segment{{ID: 1, Tokens: 40}, {ID: 2, Tokens: 60}, {ID: 4, Tokens: 80}}
	a, b := keys(prompt), keys(other)
	x, y := blocks(nil, prompt, work.Segment{ID: 9, Tokens: 20}, 16), blocks(nil, other, work.Segment{ID: 9, Tokens: 20}, 16)
	if len(x) != 167/16 || len(y) != 200/16 {
		t.Fatalf("%d and %d blocks", len(x), len(y))
	}
	const common = 100 / 16
	for i := range min(len(a), len(b), len(x), len(y)) {
		if (a[i] == b[i]) != (i < common) || i < common && x[i] != y[i] || i == common && x[i] == y[i] {
			t.Errorf("block %d: the gateway says %t, the engine %t", i, a[i] == b[i], x[i] == y[i])
		}
	}
	// An answer is cached where it is the next turn's prompt.
	next := append(slices.Clone(prompt), work.Segment{ID: 9, Tokens: 20}, work.Segment{ID: 5, Tokens: 50})
	if z := blocks(nil, next, work.Segment{}, 16); !slices.Equal(z[:len(x)], x) {
		t.Error("the next turn has other blocks than the prompt and its answer")
	}
}

// TestTimers holds the clock's timers against what time's do.
func TestTimers(t *testing.T) {
	var l loop
	var told []string
	note := func(s string) func() { return func() { told = append(told, fmt.Sprint(s, l.now)) } }
	a := l.AfterFunc(time.Second, note("a"))
	b := l.AfterFunc(time.Second, note("b"))
	c := l.AfterFunc(500*time.Millisecond, note("c"))
	if !c.Stop() || c.Stop() || !a.Reset(2*time.Second) {
		t.Error("want a timer to say whether it was set")
	}
	for len(l.heap) > 0 {
		l.step()
	}
	if b.Reset(-time.Second) || len(l.heap) != 1 {
		t.Error("want a timer that was over to be set again")
	}
	l.step()
	if got := strings.Join(told, " "); got != "b1s a2s b2s" {
		t.Error(got)
	}
	if got := l.Now().Sub(start); got != 2*time.Second {
		t.Error(got)
	}
}
