// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// stand is a plugin of every kind, made of functions.
type stand struct {
	keep     func(*sched.Cycle, []bool)
	produce  func(*sched.Cycle)
	why      string // not to admit, or that there is no profile
	placed   func(*sched.Cycle, *fleet.Endpoint)
	answered map[string]string
}

func (s *stand) Filter(c *sched.Cycle, keep []bool) {
	if s.keep != nil {
		s.keep(c, keep)
	}
}
func (s *stand) Produce(c *sched.Cycle) {
	if s.produce != nil {
		s.produce(c)
	}
}
func (s *stand) Admit(*sched.Cycle) string { return s.why }
func (s *stand) Reason() string            { return "for a test" }
func (s *stand) Placed(c *sched.Cycle, e *fleet.Endpoint) {
	if s.placed != nil {
		s.placed(c, e)
	}
}
func (s *stand) Answered(_ *sched.Cycle, served *fleet.Endpoint, set func(name, value string)) {
	for name, value := range s.answered {
		set(name, value+served.Name)
	}
}

// odd is a handler that finds no profile, or sends to another port.
type odd struct{ why, port string }

func (o odd) Choose(_ *sched.Cycle, p []*sched.Profile) (*sched.Profile, string) {
	if o.why != "" {
		return nil, o.why
	}
	return p[0], ""
}
func (o odd) Address(e *fleet.Endpoint) string {
	host, port, _ := net.SplitHostPort(e.Address)
	if o.port != "" {
		port = o.port
	}
	return net.JoinHostPort(host, port)
}

// with replaces the lane by a default one that was changed.
func (r *rig) with(change func(*sched.Plan)) {
	l := defaultLane()
	change(l.Plan)
	l.Plan.Ready()
	r.SetLanes(Lanes{{Namespace: "default", Name: "p"}: l})
}

// fates tells for each endpoint what became of it.
func fates(x *Exchange) string {
	d := x.out.Decision
	var out []string
	for i, e := range d.Endpoints {
		drop := d.Drops[d.Fates[i]]
		out = append(out, strings.TrimSpace(e.Name+" "+drop.Name+" "+drop.Why))
	}
	return strings.Join(out, ", ")
}

// A plugin that panics fails its own request, and not those that come after it.
func TestAPanicDoesNotLockThePool(t *testing.T) {
	r := newRig(t, 2, slog.LevelInfo)
	bad := true
	r.with(func(p *sched.Plan) {
		p.Profiles[0].Filters = []sched.Named[sched.Filter]{{Name: "f", Plugin: &stand{keep: func(*sched.Cycle, []bool) {
			if bad {
				panic("for a test")
			}
		}}}}
	})
	place := func() (p *Placement) {
		x := r.Begin(&r.door, Head{Method: "POST", Path: "/v1/chat/completions", Headers: headers{}})
		defer x.End(observe.Complete)
		defer func() { _ = recover() }() // as net/http does
		x.Write([]byte(chat("x")))
		p, _ = x.Place(t.Context())
		return p
	}
	if place() != nil {
		t.Fatal("want a panic")
	}
	if bad = false; place() == nil {
		t.Error("want a placement")
	}
}

func dropping(names ...string) func(c *sched.Cycle, keep []bool) {
	return func(c *sched.Cycle, keep []bool) {
		for i, e := range c.Candidates {
			keep[i] = keep[i] && !slices.Contains(names, e.Name)
		}
	}
}

// Who is left out, and by which stage: the model, the data plane, failures, screeners that all see the same
// candidates, filters one after the other.
func TestFatesTellWhoWasLeftOutAndWhy(t *testing.T) {
	r := newRig(t, 7, slog.LevelInfo)
	seen := map[string]int{}
	screen := func(name string, drop ...string) sched.Named[sched.Filter] {
		return sched.Named[sched.Filter]{Name: name, Plugin: &stand{keep: func(c *sched.Cycle, keep []bool) {
			seen[name] = len(c.Candidates)
			dropping(drop...)(c, keep)
		}}}
	}
	r.with(func(p *sched.Plan) {
		p.Screeners = []sched.Named[sched.Filter]{screen("s1", "e3"), screen("s2", "e3", "e4")}
		p.Profiles[0].Filters = []sched.Named[sched.Filter]{screen("f1", "e5"), screen("f2")}
	})
	e := r.endpoints()
	r.Store.TellModels(e[0].ID, e[0].Load, []string{"other"}, nil)
	e[2].Load.Fail(time.Now(), r.Health(), true, "refused")
	x := r.Begin(&r.door, Head{Method: "POST", Path: "/v1/chat/completions", Headers: headers{}, HasSubset: true,
		Subset: []string{"10.0.0.1,10.0.0.3,10.0.0.4,10.0.0.5,10.0.0.6,10.0.0.7"}})
	x.Write([]byte(chat("x")))
	p, ref := x.Place(context.Background())
	if ref != nil || p.Endpoint.Name != "e6" {
		t.Fatalf("got %+v, %v", p, ref)
	}
	const want = "e0 model it does not serve the model, and others do, e1 subset the data plane's subset leaves it out, " +
		"e2 health requests to it failed, e3 s1 for a test, e4 s2 for a test, e5 f1 for a test, e6"
	if got := fates(x); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if seen["s1"] != 4 || seen["s2"] != 4 || seen["f1"] != 2 || seen["f2"] != 1 {
		t.Errorf("candidates seen: %v", seen)
	}
	x.End(observe.Complete)

	r.with(func(p *sched.Plan) {
		p.Screeners = []sched.Named[sched.Filter]{screen("none", "e0", "e1", "e2", "e3", "e4", "e5", "e6")}
	})
	x, _, ref = r.place(t, nil, chat("x"))
	if ref == nil || ref.Status != http.StatusServiceUnavailable || ref.Reason != string(flow.NoEndpoints) {
		t.Errorf("all screened: got %v", ref)
	}
	x.End(observe.Refused)
	r.with(func(p *sched.Plan) {
		p.Profiles[0].Filters = []sched.Named[sched.Filter]{screen("none", "e0", "e1", "e2", "e3", "e4", "e5", "e6")}
	})
	x, _, ref = r.place(t, nil, chat("x"))
	if ref == nil || ref.Status != http.StatusTooManyRequests || ref.Reason != string(flow.Saturated) {
		t.Errorf("all filtered: got %v", ref)
	}
	x.End(observe.Refused)
}

func TestAdmitterAndHandlerRefuse(t *testing.T) {
	r := newRig(t, 2, slog.LevelInfo)
	r.with(func(p *sched.Plan) {
		p.Admitters = []sched.Named[sched.Admitter]{{Name: "yes", Plugin: &stand{}}, {Name: "no", Plugin: &stand{why: "the pool is full"}}}
	})
	x, _, ref := r.place(t, nil, chat("x"))
	if ref == nil || ref.Status != 429 || ref.Reason != string(flow.Saturated) || !strings.Contains(ref.Message, "the pool is full") || x.out.Decision.Refused != "no" {
		t.Errorf("got %v", ref)
	}
	x.End(observe.Refused)
	r.with(func(p *sched.Plan) { p.Handler = odd{why: "there is no such profile"} })
	x, _, ref = r.place(t, nil, chat("x"))
	if ref == nil || ref.Status != 400 || ref.Message != "there is no such profile" {
		t.Errorf("got %v", ref)
	}
	x.End(observe.Refused)
}

// Prefer: if-available is served only where some of the prompt is cached, and a miss leaves no trace.
func TestConditional(t *testing.T) {
	r := newRig(t, 3, slog.LevelInfo)
	text := strings.Repeat("word ", 500)
	for _, prefer := range []string{"if-available", "wait=5, If-Available; x=1"} {
		for range 2 {
			x, _, ref := r.place(t, headers{"prefer": prefer}, chat(text))
			if ref == nil || ref.Status != http.StatusPreconditionFailed || ref.Reason != "" {
				t.Fatalf("%s: got %v, want 412", prefer, ref)
			}
			x.End(observe.Refused)
		}
	}
	x, first, _ := r.place(t, headers{"prefer": "respond-async"}, chat(text))
	x.End(observe.Complete)
	x, p, ref := r.place(t, headers{"prefer": "if-available"}, chat(text+"!"))
	if ref != nil || p.Destination != first.Destination {
		t.Errorf("got %v, %v, want %s", p, ref, first.Destination)
	}
	x.End(observe.Complete)
}

// Plugins add headers to the request and to the answer, and see no control headers of callers that are not trusted.
func TestHeadersOfPlugins(t *testing.T) {
	r := newRig(t, 2, slog.LevelInfo)
	var saw []string
	s := &stand{answered: map[string]string{"x-session-token": "at "}}
	s.produce = func(c *sched.Cycle) { saw = append(saw, c.Header("x-mine")+c.Header("epp-profile")) }
	s.placed = func(c *sched.Cycle, e *fleet.Endpoint) {
		c.Set = append(c.Set, sched.Header{Name: "x-placed", Value: e.Name})
	}
	r.with(func(p *sched.Plan) {
		p.Producers = append(p.Producers, sched.Named[sched.Producer]{Name: "s", Plugin: s})
		p.Profiles[0].Filters = []sched.Named[sched.Filter]{{Name: "s", Plugin: s}} // the same plugin in two roles is told once
	})
	for _, trusted := range []bool{false, true} {
		r.door.SetTrust(Trust{All: trusted})
		x, p, _ := r.place(t, headers{"x-mine": "1", "epp-profile": "2", "x-penstock-decision": "1"}, chat("x"))
		if want := (Header{Name: "x-placed", Value: p.Endpoint.Name}); !slices.Contains(p.Set, want) || len(p.Set) != 2 {
			t.Errorf("got %v, want one %v beside the id", p.Set, want)
		}
		added := x.Answer(200, headers{})
		if added[0] != (Header{Name: "x-session-token", Value: "at " + p.Endpoint.Name}) {
			t.Errorf("got %v", added)
		}
		if told := len(added) == 2 && added[1].Name == "x-penstock-decision" && strings.Contains(added[1].Value, "endpoint="+p.Endpoint.ID.String()); told != trusted {
			t.Errorf("trusted %v, and the decision is told: %v", trusted, added)
		}
		x.End(observe.Complete)
	}
	if !slices.Equal(saw, []string{"1", "12"}) {
		t.Errorf("plugins saw %q", saw)
	}
}

// A handler that redirects is heeded in what is dialled, in fallbacks and in totals.
func TestRedirect(t *testing.T) {
	r := newRig(t, 3, slog.LevelInfo)
	r.Scores = true
	r.with(func(p *sched.Plan) { p.Handler, p.Profiles[0].Endpoints = odd{port: "9"}, 2 })
	x, p, _ := r.place(t, nil, chat("x"))
	if !strings.HasSuffix(p.Endpoint.Address, ":9") || strings.Count(p.Destination, ":9") != 2 || strings.Count(p.Destination, ",") != 1 {
		t.Errorf("got %s, dialled %s", p.Destination, p.Endpoint.Address)
	}
	if len(p.Scores) != 3 || !strings.HasSuffix(p.Scores[0].Address, ":9") || p.Scores[0].Total != p.Scores[1].Total {
		t.Errorf("got %v", p.Scores)
	}
	if next := x.Next(); next == nil || !strings.HasSuffix(next.Address, ":9") {
		t.Errorf("the fallback is %v", next)
	}
	x.End(observe.Complete)
}

// Answers that say the server is broken eject an endpoint after some in a row, and so do answers that break off.
func TestAnswersEject(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(x *Exchange)
		want fleet.HealthState
	}{
		{"503", func(x *Exchange) { x.Answer(503, headers{}); x.End(observe.Complete) }, fleet.Ejected},
		{"broken off", func(x *Exchange) { x.Answer(200, headers{}); x.End(observe.Broken) }, fleet.Ejected},
		{"400", func(x *Exchange) { x.Answer(400, headers{}); x.End(observe.Complete) }, fleet.Healthy},
		{"429", func(x *Exchange) { x.Answer(429, headers{}); x.End(observe.Complete) }, fleet.Healthy},
		{"client left", func(x *Exchange) { x.Answer(200, headers{}); x.End(observe.ClientLeft) }, fleet.Healthy},
	} {
		r := newRig(t, 1, slog.LevelInfo)
		for range 5 {
			x, _, ref := r.place(t, nil, chat("x"))
			if ref != nil {
				t.Fatal(ref) // the only one there is stays in use
			}
			c.end(x)
		}
		if got := r.endpoints()[0].Health(time.Now(), r.Health(), time.Second).State; got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// One connection that the proxy could not make does so at once.
func TestUnreachedEjects(t *testing.T) {
	r := newRig(t, 2, slog.LevelInfo)
	x, p, _ := r.place(t, nil, chat("x"))
	x.Unreached("connection_timeout")
	x.Answer(503, headers{})
	x.End(observe.Complete)
	for _, e := range r.endpoints() {
		v := e.Health(time.Now(), r.Health(), time.Second)
		if want := e.Address == p.Endpoint.Address; (v.State == fleet.Ejected) != want || want && v.Cause != "the proxy could not reach it: connection_timeout" {
			t.Errorf("%s: got %+v", e.Address, v)
		}
	}
}

// The prompt counts as work until its first output where that is streamed, and to the end where it is not.
func TestWorkInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		text := strings.Repeat("word ", 512) // 2,560 bytes: 640 tokens, and a few of the form around it
		l := r.endpoints()[0].Load
		x, _, _ := r.place(t, nil, chat(text))
		if n := l.Tokens(); n < 640 || n > 660 {
			t.Errorf("%d tokens of work, want the prompt's", n)
		}
		y, _, _ := r.place(t, nil, chat(text)) // its prefix is there already, or soon
		if n := y.out.EstimatedTokens - y.out.PredictedCached; n > 64 || l.Tokens() > 660+64 {
			t.Errorf("%d tokens uncached and %d in flight, want a block at most", n, l.Tokens())
		}
		x.Answer(200, headers{"content-type": "text/event-stream"})
		x.Pass([]byte("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"))
		if l.Tokens() < 640 {
			t.Error("a role is no output")
		}
		x.Pass([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"))
		if l.Tokens() > 64 || l.Requests() != 2 {
			t.Errorf("%d tokens and %d requests in flight after the first output", l.Tokens(), l.Requests())
		}
		y.Answer(200, headers{"content-type": "application/json"})
		y.Pass([]byte("{"))
		x.End(observe.Complete)
		y.End(observe.Complete)
		if l.Tokens() != 0 {
			t.Errorf("%d tokens left", l.Tokens())
		}
	})
}
