// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// rig is a gateway over a fleet of n endpoints of pool "p" that serve model m.
type rig struct {
	*Gateway
	access, log bytes.Buffer
	door        Door
}

func newRig(t testing.TB, n int, level slog.Level) *rig {
	t.Helper()
	r := &rig{}
	r.door.Name = "proxy"
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}, Objectives: map[string]int{"batch": -1, "gold": 10}}})
	var specs []fleet.EndpointSpec
	for i := range n {
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
	}
	store.SetEndpoints("test", specs)
	log := slog.New(slog.NewJSONHandler(&r.log, &slog.HandlerOptions{Level: level}))
	r.Gateway = New(Options{
		Store: store, Log: log, Observer: observe.New(observe.Options{Store: store, Log: log, Access: &r.access}),
		Memory: request.NewMemory(1 << 20), MaxBody: 1 << 19, Stale: 2 * time.Second, Seed: 1,
	})
	r.SetLanes(Lanes{{Namespace: "default", Name: "p"}: defaultLane()})
	for _, e := range r.endpoints() {
		store.TellModels(e.ID, e.Load, []string{"m"}, nil)
	}
	t.Cleanup(func() {
		if r.Open() != 0 {
			t.Errorf("%d exchanges were not ended", r.Open())
		}
		for _, e := range r.endpoints() {
			if e.Load.Requests() != 0 || e.Load.Tokens() != 0 {
				t.Errorf("%s: %d requests and %d tokens still in flight", e.ID, e.Load.Requests(), e.Load.Tokens())
			}
		}
		if r.Memory.Held() != 0 {
			t.Errorf("%d bytes of bodies still held", r.Memory.Held())
		}
	})
	return r
}

func defaultLane() *Lane {
	const producer = "approx-prefix-cache-producer"
	scorer := func(name string, weight float64) sched.Weighted {
		return sched.Weighted{Named: sched.Named[sched.Scorer]{Name: name, Plugin: policy.Scorers[name]()}, Weight: weight}
	}
	plan := &sched.Plan{
		Producers: []sched.Named[sched.Producer]{{Name: producer, Plugin: policy.Producers[producer]()}},
		Handler:   policy.Handlers["single-profile-handler"](),
		Profiles: []*sched.Profile{{
			Name: "default", Endpoints: 1,
			Scorers: []sched.Weighted{scorer("queue-scorer", 2), scorer("kv-cache-utilization-scorer", 2), scorer("prefix-cache-scorer", 3)},
			Picker:  sched.Named[sched.Picker]{Name: "max-score-picker", Plugin: policy.Pickers["max-score-picker"]()},
		}},
	}
	return &Lane{Gate: flow.NewLegacy(), Plan: plan.Ready()}
}

func (r *rig) endpoints() []*fleet.Endpoint { return r.Store.Load().Pools[0].Endpoints }

func (r *rig) begin(h headers) *Exchange {
	if h == nil {
		h = headers{}
	}
	return r.Begin(&r.door, Head{Method: "POST", Path: "/v1/chat/completions", Headers: h, Peer: netip.MustParseAddr("192.0.2.1")})
}

// place sends a body through to its placement.
func (r *rig) place(t testing.TB, h headers, body string) (*Exchange, *Placement, *Refusal) {
	t.Helper()
	x := r.begin(h)
	if ref := x.Write([]byte(body)); ref != nil {
		return x, nil, ref
	}
	p, ref := x.Place(context.Background())
	if ref != nil {
		x.Refuse(ref)
	}
	return x, p, ref
}

func chat(text string) string {
	b, _ := json.Marshal(map[string]any{"model": "m", "messages": []map[string]string{{"role": "user", "content": text}}, "stream": true})
	return string(b)
}

func TestConversationSticksAndOthersSpread(t *testing.T) {
	r := newRig(t, 4, slog.LevelInfo)
	used := map[string]bool{}
	for conv := range 12 {
		text := fmt.Sprint(conv) + strings.Repeat(" word", 600)
		var home string
		for turn := range 3 {
			x, p, ref := r.place(t, nil, chat(text))
			if ref != nil {
				t.Fatal(ref)
			}
			x.End(observe.Complete)
			if turn == 0 {
				home = p.Destination
			}
			if p.Destination != home {
				t.Errorf("conversation %d moved from %s to %s", conv, home, p.Destination)
			}
			text += " and then"
		}
		used[home] = true
	}
	if len(used) < 3 {
		t.Errorf("12 conversations on %d of 4 endpoints", len(used))
	}
}

// tell publishes a queue length for each endpoint; it needs a synctest bubble.
func (r *rig) tell(waiting ...float64) {
	for i, e := range r.endpoints() {
		now := time.Now()
		r.Store.Tell(e.ID, e.Load, fleet.Reading{Waiting: fleet.Signal{Value: waiting[i], At: now}, KVUsage: fleet.Signal{At: now}, Seen: e.Load.Sent()})
	}
	time.Sleep(fleet.Coalesce)
	synctest.Wait()
}

// A burst whose signals never change fills equal endpoints evenly, and a loaded one clearly less.
func TestBurstSpreads(t *testing.T) {
	for _, c := range []struct {
		name      string
		waiting   []float64
		least     [2]int64 // bounds of the smallest share
		othersMin int64
	}{
		{"equal", []float64{0, 0, 0, 0}, [2]int64{64, 64}, 64},
		{"one has a queue", []float64{50, 0, 0, 0}, [2]int64{0, 32}, 74},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 4, slog.LevelInfo)
			lane := defaultLane()
			p := lane.Plan.Profiles[0]
			lane.Plan.Producers, p.Scorers = nil, p.Scorers[:2]
			r.SetLanes(Lanes{{Namespace: "default", Name: "p"}: lane})
			r.tell(c.waiting...)
			var wg sync.WaitGroup
			open := make([]*Exchange, 256)
			for g := range 8 {
				wg.Go(func() {
					for i := range 32 {
						x, _, ref := r.place(t, nil, chat("same text"))
						if ref != nil {
							t.Error(ref)
						}
						open[32*g+i] = x
					}
				})
			}
			wg.Wait()
			var got []int64
			for _, e := range r.endpoints() {
				got = append(got, e.Load.Requests())
			}
			slices.Sort(got)
			if got[0] < c.least[0] || got[0] > c.least[1] || got[1] < c.othersMin || got[3]-got[1] > 1 {
				t.Errorf("%s: got %v", c.name, got)
			}
			for _, x := range open {
				x.End(observe.ClientLeft)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(w, chat("zip"))
	_ = w.Close()
	for _, c := range []struct {
		name    string
		strict  bool
		empty   bool
		headers headers
		body    string
		status  int
		reason  string
		says    string
	}{
		{name: "unknown model", strict: true, body: `{"model":"x"}`, status: 404, says: "model_not_found"},
		{name: "unknown model, lenient", body: `{"model":"x"}`},
		{name: "no endpoints", empty: true, body: chat("x"), status: 503, reason: "rejected-no-endpoints", says: "overloaded_error"},
		{name: "too large", body: strings.Repeat(" ", 1<<19+1), status: 413, says: "524288"},
		{name: "not JSON", body: "not json"},
		{name: "empty", body: ""},
		{name: "wrong prompt", body: `{"model":"m","messages":{"a":1}}`},
		{name: "unknown encoding", headers: headers{"content-encoding": "x-unknown"}, body: chat("x"), status: 415, says: "x-unknown"},
		{name: "gzip", headers: headers{"content-encoding": "gzip"}, body: zipped.String()},
		{name: "truncated gzip", headers: headers{"content-encoding": "gzip"}, body: zipped.String()[:zipped.Len()-9], status: 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 2
			if c.empty {
				n = 0
			}
			r := newRig(t, n, slog.LevelInfo)
			r.door.Strict = c.strict
			x, p, ref := r.place(t, c.headers, c.body)
			defer x.End(observe.Refused)
			if c.status == 0 {
				if ref != nil {
					t.Fatalf("refused: %v", ref)
				}
				if c.headers != nil && (p.Body == nil || !slices.Contains(p.Remove, "content-encoding")) {
					t.Errorf("an encoded body travels on encoded: %+v", p)
				}
				return
			}
			if ref == nil {
				t.Fatalf("placed at %s, want status %d", p.Destination, c.status)
			}
			if ref.Status != c.status || ref.Reason != c.reason || !strings.Contains(string(ref.JSON(x.API())), c.says) {
				t.Errorf("got %d %q %s, want %d %q with %q", ref.Status, ref.Reason, ref.JSON(x.API()), c.status, c.reason, c.says)
			}
		})
	}
}

func TestSheddableIsRefusedWhileSaturated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, slog.LevelInfo)
		r.door.SetTrust(Trust{All: true})
		r.tell(9)
		for objective, status := range map[string]int{"batch": 429, "gold": 0, "": 0, "no-such": 0} {
			x, _, ref := r.place(t, headers{"x-gateway-inference-objective": objective}, chat("x"))
			got := 0
			if ref != nil {
				got = ref.Status
			}
			if got != status {
				t.Errorf("objective %q: got %d, want %d", objective, got, status)
			}
			x.End(observe.Complete)
		}
	})
}

func TestControlHeaders(t *testing.T) {
	h := headers{
		"x-gateway-destination-endpoint": "169.254.169.254:80", "x-prefiller-host-port": "10.0.0.9:9090",
		"x-llm-d-inference-fairness-id": "tenant-a", "x-slo-ttft-ms": "5", "content-type": "application/json", "x-proof": "s3cret",
	}
	for _, c := range []struct {
		name   string
		trust  Trust
		tenant string
		remove []string
	}{
		{"untrusted", Trust{}, "default-flow", []string{"x-gateway-destination-endpoint", "x-llm-d-inference-fairness-id", "x-prefiller-host-port", "x-slo-ttft-ms"}},
		{"trusted", Trust{All: true}, "tenant-a", []string{"x-gateway-destination-endpoint", "x-prefiller-host-port"}},
		{"by secret", Trust{Header: "x-proof", Secret: "s3cret"}, "tenant-a", []string{"x-gateway-destination-endpoint", "x-prefiller-host-port", "x-proof"}},
	} {
		r := newRig(t, 1, slog.LevelInfo)
		r.door.SetTrust(c.trust)
		for range 2 {
			x, p, ref := r.place(t, h, chat("x"))
			if ref != nil {
				t.Fatal(ref)
			}
			slices.Sort(p.Remove)
			if !slices.Equal(p.Remove, c.remove) || x.out.Tenant != c.tenant {
				t.Errorf("%s: removes %v for %q, want %v for %q", c.name, p.Remove, x.out.Tenant, c.remove, c.tenant)
			}
			if p.Destination != "10.0.0.1:8000" {
				t.Errorf("%s: destination %s", c.name, p.Destination)
			}
			x.End(observe.Complete)
		}
		said := strings.Count(r.log.String(), "spec.trust.cidrs")
		if want := map[string]int{"untrusted": 2}[c.name]; said != want {
			t.Errorf("%s: the log told %d times of ignored headers, want %d (once for each)", c.name, said, want)
		}
	}
}

func TestNextMovesTheReservation(t *testing.T) {
	r := newRig(t, 3, slog.LevelInfo)
	x, p, _ := r.place(t, nil, chat("x"))
	tried := []string{p.Destination}
	for e := x.Next(); e != nil; e = x.Next() {
		tried = append(tried, e.Address)
		if e.Load.Requests() != 1 {
			t.Errorf("%s holds %d requests, want 1", e.Address, e.Load.Requests())
		}
	}
	slices.Sort(tried)
	if want := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}; !slices.Equal(tried, want) {
		t.Errorf("tried %v, want each endpoint once", tried)
	}
	x.Refuse(x.Unavailable())
	x.End(observe.Refused)

	// All failed just now: they are used all the same. Then one heals and is the only choice.
	x, p, ref := r.place(t, nil, chat("y"))
	if ref != nil {
		t.Fatal("endpoints that failed are refused when no other is left")
	}
	x.Answer(200, headers{})
	x.End(observe.Complete)
	for range 8 {
		again, q, _ := r.place(t, nil, chat("z"))
		if q.Destination != p.Destination {
			t.Errorf("went to %s, which failed a moment ago, and not to %s", q.Destination, p.Destination)
		}
		again.End(observe.Complete)
	}
}

// Whoever serves in the end has the prompt: the next turn follows it there.
func TestAffinityFollowsAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, slog.LevelInfo)
		text := strings.Repeat("word ", 500)
		x, p, _ := r.place(t, nil, chat(text))
		first, second := p.Destination, x.Next().Address
		x.Answer(200, headers{})
		x.End(observe.Complete)
		time.Sleep(2 * time.Second) // the first is tried again
		served := map[string]bool{}
		for turn := range 6 {
			x, p, _ = r.place(t, nil, chat(text+strings.Repeat("!", turn)))
			served[p.Destination] = true
			x.End(observe.Complete)
		}
		if !served[second] && !served[first] {
			t.Errorf("went to %v, want those that were given the prompt: %s or %s", served, first, second)
		}
		if x.out.PredictedCached == 0 {
			t.Error("nobody is known to hold the prompt")
		}
	})
}

// An endpoint that left while a request was placed on it leaves nothing behind for the next in its slot.
func TestSlotOfOneThatLeftIsClean(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	text := strings.Repeat("word ", 500)
	x, p, _ := r.place(t, nil, chat(text))
	r.Store.SetEndpoints("test", nil)
	r.Lanes()[p.Pool].Plan.Placed(x.cycle, p.Endpoint) // as if it came after the departure
	x.End(observe.Broken)
	r.Store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "new"}, Address: "10.0.0.9:8000"}})
	x, _, _ = r.place(t, nil, chat(text))
	if x.out.PredictedCached != 0 {
		t.Errorf("a new endpoint is said to hold %d tokens", x.out.PredictedCached)
	}
	x.End(observe.Complete)
}

// What a caller may not say in a header it may not say in a trailer, and made-up names cost no memory.
func TestDroppedNames(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	r.door.SetTrust(Trust{Header: "x-proof", Secret: "s"})
	for i := range 1000 {
		x, p, _ := r.place(t, headers{fmt.Sprint("x-llm-d-", i): "1"}, chat("x"))
		if len(p.Remove) != 1 || !x.Drops("x-prefiller-host-port") || !x.Drops("x-proof") || !x.Drops("x-slo-ttft-ms") || x.Drops("x-checksum") {
			t.Fatalf("removes %v", p.Remove)
		}
		x.End(observe.Complete)
	}
	if n := strings.Count(r.log.String(), "untrusted caller"); n != 1 {
		t.Errorf("a thousand names of one kind made %d lines", n)
	}
}

// An answer that we cannot read is no broken one.
func TestEncodedAnswer(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	x, _, _ := r.place(t, nil, chat("x"))
	x.Answer(200, headers{"content-type": "text/event-stream", "content-encoding": "gzip"})
	x.Pass([]byte("\x1f\x8b"))
	x.End(observe.Complete)
	_ = r.Observer.Flush()
	if !strings.Contains(r.access.String(), `"end":"complete"`) {
		t.Error(r.access.String())
	}
}

// What is known to be too long is refused before a byte of it is read; an answer that began needs no body.
func TestBodyIsRefusedEarlyAndLetGoEarly(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	x := r.begin(nil)
	if ref := x.Expect(1<<19 + 1); ref == nil || ref.Status != 413 || !strings.Contains(ref.Message, "524288") {
		t.Errorf("got %v, want 413 that names the limit", ref)
	}
	if ref := x.Expect(1 << 19); ref != nil {
		t.Errorf("the limit itself is refused: %v", ref)
	}
	x.End(observe.Refused)
	x, _, _ = r.place(t, nil, chat(strings.Repeat("x", 100_000)))
	if r.Memory.Held() < 100_000 {
		t.Errorf("%d bytes held before the answer", r.Memory.Held())
	}
	x.Answer(200, headers{})
	if r.Memory.Held() != 0 {
		t.Errorf("%d bytes still held once the answer began", r.Memory.Held())
	}
	x.End(observe.Complete)
}

func TestSubsetHint(t *testing.T) {
	r := newRig(t, 3, slog.LevelInfo)
	for _, c := range []struct {
		subset []string
		want   string
	}{{[]string{"10.0.0.2"}, "10.0.0.2:8000"}, {[]string{"10.0.0.3:8000, 10.9.9.9:1"}, "10.0.0.3:8000"}, {nil, ""}, {[]string{"10.0.0.3:1"}, ""}} {
		x := r.Begin(&r.door, Head{Method: "GET", Path: "/x", Headers: headers{}, Subset: c.subset, HasSubset: true})
		p, ref := x.Place(t.Context())
		switch {
		case c.want == "" && (ref == nil || ref.Status != 503):
			t.Errorf("%v: got %v, want 503", c.subset, ref)
		case c.want != "" && (ref != nil || p.Destination != c.want):
			t.Errorf("%v: got %v %v, want %s", c.subset, p, ref, c.want)
		}
		x.End(observe.Complete)
	}
}

func TestOutcome(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	x, _, _ := r.place(t, headers{"x-request-id": "abc"}, chat("x"))
	x.Answer(200, headers{"content-type": "text/event-stream; charset=utf-8"})
	for _, s := range []string{
		"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\nda",
		"ta: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":7}}}\n\n", "data: [DONE]\n\n",
	} {
		x.Pass([]byte(s))
	}
	x.End(observe.Complete)
	x.End(observe.Broken) // does nothing
	if err := r.Observer.Flush(); err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(r.access.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, r.access.String())
	}
	for k, want := range map[string]any{
		"id": "abc", "end": "complete", "status": 200.0, "prompt_tokens": 11.0, "output_tokens": 2.0, "cached_tokens": 7.0,
		"pool": "default/p", "endpoint": "default/e0", "address": "10.0.0.1:8000", "model": "m", "tenant": "default-flow", "api": "chat",
	} {
		if line[k] != want {
			t.Errorf("%s: got %v, want %v", k, line[k], want)
		}
	}

	// A stream that ends without its marker did not end well, whatever the door saw.
	r.access.Reset()
	x, _, _ = r.place(t, nil, chat("x"))
	x.Answer(200, headers{"content-type": "text/event-stream"})
	x.Pass([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"))
	x.End(observe.Complete)
	_ = r.Observer.Flush()
	if !strings.Contains(r.access.String(), `"end":"error"`) {
		t.Errorf("got %s, want an abnormal end", r.access.String())
	}
}

func TestTraceTellsEachStep(t *testing.T) {
	r := newRig(t, 2, slog.LevelDebug)
	x, _, _ := r.place(t, nil, chat("a secret prompt"))
	x.End(observe.Complete)
	log := r.log.String()
	for _, step := range []string{"LLM request assembled", "Before running filter plugins", "Completed running filter plugins", "Calculated score", "Candidates for picking", "SELECTED"} {
		if !strings.Contains(log, step) {
			t.Errorf("the trace lacks %q", step)
		}
	}
	if strings.Contains(log+r.access.String(), "secret") {
		t.Error("the prompt is in the log")
	}
	if strings.Contains(log, `"inFlight":1`) {
		t.Error("the request counts itself as in flight")
	}
	r.log.Reset()
	e := r.endpoints()[1]
	r.Store.TellModels(e.ID, e.Load, []string{"other"}, nil)
	r.endpoints()[0].Load.Fail(time.Now(), r.Health(), true, "connection refused")
	x, _, _ = r.place(t, nil, chat("x"))
	x.End(observe.Complete)
	if !strings.Contains(r.log.String(), `"msg":"Dropped endpoints","id":"`+x.ID()+`","plugin":"model","why":"it does not serve the model, and others do","endpoints":["e1"]`) {
		t.Errorf("got %s", r.log.String())
	}
}

// TestDecisionIsRemembered wants what the decision saw, before it changed what it saw.
func TestDecisionIsRemembered(t *testing.T) {
	r := newRig(t, 3, slog.LevelInfo)
	first, _, _ := r.place(t, nil, chat("x"))
	defer first.End(observe.Complete)
	second, p, _ := r.place(t, headers{"x-request-id": "why"}, chat("x"))
	r.endpoints()[2].Load.Fail(time.Now(), r.Health(), true, "too late to matter")
	second.End(observe.Broken)
	w := httptest.NewRecorder()
	r.Observer.Mux(observe.MuxOptions{}).ServeHTTP(w, httptest.NewRequest("GET", "/debug/decisions/why", nil))
	var got observe.Record
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err, w.Body.String())
	}
	flying := 0
	for _, c := range got.Candidates {
		flying += c.InFlight
		if len(c.Scores) != 3 || c.Health != nil {
			t.Errorf("got %+v", c)
		}
	}
	if flying != 1 || got.Pick != p.Endpoint.ID.String() || got.Profile != "default" || len(got.Candidates) != 3 {
		t.Errorf("%d in flight, want the first one alone: %+v", flying, got)
	}
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	for id, kept := range map[string]bool{"abc-1": true, "": false, "has space": false, strings.Repeat("x", 129): false, "line\nbreak": false} {
		x, p, _ := r.place(t, headers{"x-request-id": id}, chat("x"))
		if (x.ID() == id) != kept || x.ID() == "" {
			t.Errorf("id %q became %q", id, x.ID())
		}
		if set := slices.Contains(p.Set, Header{"x-request-id", x.ID()}); set == kept {
			t.Errorf("id %q: sets the header: %v", id, set)
		}
		x.End(observe.Complete)
	}
}

func TestRefusalForms(t *testing.T) {
	r := UnknownModel(`a"b`)
	if got, want := string(r.JSON(request.Chat)), `{"error":{"message":"the model \"a\\\"b\" does not exist; GET /v1/models lists those that do","type":"invalid_request_error","param":"model","code":"model_not_found"}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(r.JSON(request.Messages)); !strings.HasPrefix(got, `{"error":{"message":`) || !strings.Contains(got, `"type":"not_found_error"`) || !strings.HasSuffix(got, `"type":"error"}`) {
		t.Errorf("got %s", got)
	}
	var err error = noEndpoints()
	var as *Refusal
	if !errors.As(err, &as) || !slices.Contains(as.Headers(), Header{"retry-after", "1"}) || !slices.Contains(as.Headers(), Header{DroppedReason, "rejected-no-endpoints"}) {
		t.Errorf("got headers %v", as.Headers())
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 400 << 10} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			r := newRig(b, 8, slog.LevelWarn)
			body := []byte(chat(strings.Repeat("lorem ipsum dolor sit amet, ", size/28)))
			h := headers{"content-type": "application/json", "x-request-id": "abc"}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				x := r.begin(h)
				for p := range slices.Chunk(body, 64<<10) {
					_ = x.Write(p)
				}
				if _, ref := x.Place(context.Background()); ref != nil {
					b.Fatal(ref)
				}
				x.Answer(200, headers{})
				x.End(observe.Complete)
			}
		})
	}
}

// But for what its decision saw, a long stream keeps the endpoint that serves it, and neither the pool nor the endpoints beside
// it as they were when it began.
func TestStreamKeepsItsEndpointAlone(t *testing.T) {
	r := newRig(t, 8, slog.LevelInfo)
	x, p, _ := r.place(t, nil, chat("hello"))
	x.Answer(200, headers{"content-type": "text/event-stream"})
	pool := weak.Make(r.Store.Load().Pools[0])
	var others []weak.Pointer[fleet.Endpoint]
	for _, e := range r.endpoints() {
		if e.Address != p.Destination {
			others = append(others, weak.Make(e))
		}
	}
	for range 2 { // what else remembers a snapshot, remembers the last
		for _, e := range r.endpoints() {
			r.Store.Tell(e.ID, e.Load, fleet.Reading{Waiting: fleet.Signal{At: time.Now()}})
		}
		r.Store.Flush()
		y, _, _ := r.place(t, nil, chat("another"))
		y.End(observe.Complete)
	}
	x.forget()
	runtime.GC()
	runtime.GC()
	kept := 0
	for _, e := range others {
		if e.Value() != nil {
			kept++
		}
	}
	if pool.Value() != nil || kept > 0 {
		t.Errorf("the pool is kept: %v, and %d other endpoints", pool.Value() != nil, kept)
	}
	x.End(observe.Complete)
	runtime.KeepAlive(p)
}
