// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
)

// TestScenarios plays what the files in testdata tell; each line of an answer is what happened, in its order, and how long
// the request had waited. Commands:
//
//	gate per=1 ttl=60s …  the gate, with one priority band on each line; endpoints take per requests each
//	fleet e0 e1           these are the pool's endpoints
//	ask                   requests, one a line: name tenant=a priority=0 bytes=100 tokens=10 ttl=0s only=e0,e1 times=1
//	end NAMES             these requests end; a name with times above 1 is name.1, name.2 …, and name.* all of them
//	leave NAMES           their clients leave
//	begin NAMES           their answers begin
//	move NAME to=e1       it is sent again, elsewhere
//	told e0 waiting=3     what the endpoint's metrics page says from now on
//	wait 500ms            time passes
//	close                 the gateway is leaving
//	state                 what waits, and what is in flight
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &plot{t: t}
				datadriven.RunTest(t, file, p.run)
				p.finish()
			})
		})
	}
}

// plot is a gate with requests on their way, by name.
type plot struct {
	*flow.Controller
	t       *testing.T
	store   *fleet.Store
	visits  map[string]*guest
	names   []string
	out     strings.Builder
	mu      sync.Mutex
	leavers []string // who left the gate, in order
}

// guest is a request.
type guest struct {
	name   string
	came   time.Time
	tokens int64
	ticket flow.Ticket
	hold   fleet.Hold
	reason flow.Reason
	how    flow.Outcome
	at     string
	took   time.Duration
	waits  bool // it was said that it waits
	done   bool
	ended  bool
	leave  context.CancelFunc
}

func (p *plot) Entered(*flow.Ask, flow.Outcome, time.Duration) {}
func (p *plot) Looked(time.Duration)                           {}
func (p *plot) Revoked(int)                                    {}
func (p *plot) Reclaimed(bool, time.Duration)                  {}
func (p *plot) Left(a *flow.Ask, o flow.Outcome, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.visits[a.Model]
	g.how, g.took = o, took
	p.leavers = append(p.leavers, a.Model)
}

// fixed is a usage limit with a ceiling for each priority.
type fixed map[int]float64

func (f fixed) Ceilings(_ float64, priorities []int, into []float64) []float64 {
	into = into[:0]
	for _, p := range priorities {
		if c, ok := f[p]; ok {
			into = append(into, c)
		} else {
			into = append(into, 1)
		}
	}
	return into
}

// fields reads name=value words.
func fields(words []string) map[string]string {
	m := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		m[k] = v
	}
	return m
}

func (p *plot) number(text string, otherwise float64) float64 {
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *plot) length(text string, otherwise time.Duration) time.Duration {
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *plot) run(t *testing.T, d *datadriven.TestData) string {
	args := map[string]string{}
	var words []string
	for _, a := range d.CmdArgs {
		args[a.Key] = strings.Join(a.Vals, ",")
		words = append(words, a.Key)
	}
	p.out.Reset()
	switch d.Cmd {
	case "gate":
		p.finish()
		p.gate(args, d.Input)
	case "fleet":
		specs := []fleet.EndpointSpec{}
		for _, name := range words {
			specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: fmt.Sprintf("10.0.0.%d:80", 1+int(name[1]-'0'))})
		}
		p.store.SetEndpoints("test", specs)
	case "ask":
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			words := strings.Fields(line)
			args := fields(words[1:])
			n := int(p.number(args["times"], 0))
			if n == 0 {
				p.ask(words[0], args)
			}
			for k := range n {
				p.ask(fmt.Sprintf("%s.%d", words[0], k+1), args)
			}
		}
	case "end", "leave", "begin":
		for _, name := range p.match(words) {
			g := p.visits[name]
			if d.Cmd != "leave" && (g.hold == (fleet.Hold{}) || g.ended) {
				d.Fatalf(t, "%s is not in flight", name)
			}
			if d.Cmd == "leave" {
				g.leave()
			} else if d.Cmd == "begin" {
				g.hold.Begun(time.Now())
				g.ticket.Eased()
			} else {
				g.hold.Release()
				g.ticket.End(g.tokens, 0)
				g.ended = true
			}
			p.settle()
		}
	case "move":
		g := p.visits[words[0]]
		e := p.endpoint(args["to"])
		g.hold.Release()
		g.hold, g.at = g.ticket.Force(e, time.Now(), g.tokens, 0), e.Name
	case "told":
		e := p.endpoint(words[0])
		r := fleet.Reading{Seen: e.Load.Sent()}
		for name, to := range map[string]*fleet.Signal{"waiting": &r.Waiting, "running": &r.Running, "kv": &r.KVUsage} {
			if text, ok := args[name]; ok {
				*to = fleet.Signal{Value: p.number(text, 0), At: time.Now()}
			}
		}
		p.store.Tell(e.ID, e.Load, r)
		time.Sleep(fleet.Coalesce)
	case "wait":
		time.Sleep(p.length(words[0], 0))
	case "close":
		p.Close()
	case "state":
		p.state()
	default:
		d.Fatalf(t, "no such command")
	}
	p.settle()
	return p.out.String()
}

// match lists the names that words name.
func (p *plot) match(words []string) (list []string) {
	for _, word := range words {
		for _, name := range p.names {
			if all, ok := strings.CutSuffix(word, "*"); name == word || ok && strings.HasPrefix(name, all) && p.visits[name].hold != (fleet.Hold{}) && !p.visits[name].ended {
				list = append(list, name)
			}
		}
	}
	if len(list) == 0 {
		p.t.Fatalf("nobody is called %v", words)
	}
	return list
}

func (p *plot) endpoint(name string) *fleet.Endpoint {
	for _, e := range p.store.Load().Pool(poolID).Endpoints {
		if e.Name == name {
			return e
		}
	}
	p.t.Fatalf("no endpoint %q", name)
	return nil
}

func (p *plot) gate(args map[string]string, bands string) {
	p.store = fleet.NewStore()
	p.store.SetPools([]fleet.PoolSpec{{ID: poolID}})
	p.visits, p.names = map[string]*guest{}, nil
	fairness, ordering := "round-robin-fairness-policy", "fcfs-ordering-policy"
	if args["fairness"] != "" {
		fairness = args["fairness"] + "-fairness-policy"
	}
	if args["ordering"] != "" {
		ordering = args["ordering"] + "-ordering-policy"
	}
	band := func(args map[string]string) flow.BandSpec {
		s := spec(fairness, ordering)
		s.MaxRequests, s.MaxBytes = int64(p.number(args["max"], 0)), int64(p.number(args["bytes"], 0))
		s.TTL, s.Share = p.length(args["ttl"], 0), p.number(args["share"], 0)
		return s
	}
	ceilings := fixed{}
	o := flow.Options{
		MaxRequests: int64(p.number(args["max"], 0)), MaxBytes: int64(p.number(args["bytes"], 0)),
		TTL: p.length(args["ttl"], time.Minute), NoEndpointTTL: p.length(args["none"], time.Minute),
		Default: band(nil), Negative: band(nil), Bands: map[int]flow.BandSpec{}, Limit: ceilings, Listener: p,
		Pool: poolID, Store: p.store, Stale: 2 * time.Second,
	}
	mode := "requests"
	if args["tokens"] != "" {
		mode = "hybrid"
	}
	o.Detector = &policy.ConcurrencyDetector{MaxConcurrency: int64(p.number(args["per"], 1)), MaxTokenConcurrency: int64(p.number(args["tokens"], 1)), ConcurrencyMode: mode}
	if args["queue"] != "" {
		u := &policy.UtilizationDetector{QueueDepthThreshold: p.number(args["queue"], 0), KVCacheUtilThreshold: 0.8, UnknownConcurrency: int64(p.number(args["unknown"], 1))}
		o.Detector = u
	}
	for _, line := range strings.Split(bands, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		args := fields(words[1:])
		switch priority, err := strconv.Atoi(words[0]); {
		case words[0] == "others":
			o.Default = band(args)
		case words[0] == "negative":
			o.Negative = band(args)
		case err != nil:
			p.t.Fatal(err)
		default:
			o.Bands[priority] = band(args)
			if args["ceiling"] != "" {
				ceilings[priority] = p.number(args["ceiling"], 1)
			}
		}
	}
	p.Controller = flow.New(o)
	p.store.OnPublish(p.Kick)
}

func (p *plot) ask(name string, args map[string]string) {
	s := p.store.Load()
	only := args["only"]
	refresh := func(s *fleet.Snapshot, into []*fleet.Endpoint) []*fleet.Endpoint {
		for _, e := range s.Pool(poolID).Endpoints {
			if only == "" || slices.Contains(strings.Split(only, ","), e.Name) {
				into = append(into, e)
			}
		}
		return into
	}
	g := &guest{name: name, came: time.Now(), tokens: int64(p.number(args["tokens"], 10))}
	a := &flow.Ask{
		Key: flow.Key{Tenant: args["tenant"], Priority: int(p.number(args["priority"], 0))}, Model: name, Bytes: int64(p.number(args["bytes"], 100)),
		Uncached: g.tokens, Tokens: g.tokens, TTL: p.length(args["ttl"], 0), Received: g.came, Now: g.came,
		Class: only, Candidates: refresh(s, nil), Version: s.Version, Refresh: refresh, Stale: 2 * time.Second,
	}
	p.mu.Lock()
	p.visits[name] = g
	p.mu.Unlock()
	p.names = append(p.names, name)
	ctx, leave := context.WithCancel(p.t.Context())
	g.leave = leave
	go func() {
		g.ticket, g.reason = p.Enter(ctx, a)
		if g.reason == "" {
			// The place that was kept may be on an endpoint that is gone.
			at := p.store.Load().Pool(poolID).Endpoints[0]
			for _, e := range p.store.Load().Pool(poolID).Endpoints {
				if e.Load == g.ticket.Kept() {
					at = e
				}
			}
			g.at = at.Name
			g.hold = g.ticket.Force(at, time.Now(), g.tokens, 0)
		}
		g.done = true
	}()
	p.settle()
}

// settle waits until nothing happens any more, and writes down what did.
func (p *plot) settle() {
	synctest.Wait()
	if p.Controller != nil {
		if err := p.Check(); err != nil {
			p.t.Fatal(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.leavers {
		g := p.visits[name]
		if !g.done {
			p.t.Fatalf("%s left the gate as %s, and was not told", name, g.how)
		}
		fmt.Fprint(&p.out, name)
		if g.reason == "" {
			fmt.Fprintf(&p.out, " goes to %s", g.at)
		} else {
			fmt.Fprintf(&p.out, " %s (%s)", g.reason, g.how)
		}
		if g.waits {
			fmt.Fprintf(&p.out, " after %v", g.took)
		}
		fmt.Fprintln(&p.out)
	}
	p.leavers = p.leavers[:0]
	for _, name := range p.names {
		if g := p.visits[name]; !g.done && !g.waits {
			g.waits = true
			fmt.Fprintln(&p.out, name, "waits")
		}
	}
}

func (p *plot) state() {
	s := p.State()
	fmt.Fprintf(&p.out, "%d wait, %d bytes\n", s.Requests, s.Bytes)
	for _, b := range s.Bands {
		fmt.Fprintf(&p.out, "band %d: %d of %d, %d of %d bytes, %d flows\n", b.Priority, b.Requests, b.MaxRequests, b.Bytes, b.MaxBytes, b.Flows)
	}
	for _, e := range p.store.Load().Pool(poolID).Endpoints {
		kept, _ := e.Load.Reserved()
		fmt.Fprintf(&p.out, "%s: %d requests, %d tokens, %d kept\n", e.Name, e.Load.Requests(), e.Load.Tokens(), kept)
	}
}

// finish ends all, and looks at what is left.
func (p *plot) finish() {
	if p.Controller == nil {
		return
	}
	p.Close()
	synctest.Wait()
	for _, g := range p.visits {
		if g.done && g.reason == "" && !g.ended {
			g.hold.Release()
			g.ticket.End(0, 0)
		}
	}
	for _, e := range p.store.Load().Pool(poolID).Endpoints {
		kept, work := e.Load.Reserved()
		if e.Load.Requests() != 0 || e.Load.Tokens() != 0 || kept != 0 || work != 0 {
			p.t.Errorf("%s: %d requests, %d tokens, %d kept with %d tokens are left", e.Name, e.Load.Requests(), e.Load.Tokens(), kept, work)
		}
	}
	if err := p.Check(); err != nil {
		p.t.Error(err)
	}
	p.leavers = nil
}
