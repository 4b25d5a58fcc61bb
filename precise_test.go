// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sim/vllm"
)

// Here a whole gateway runs in front of simulated engines which publish their KV events over real sockets.

// simEngine is a simulated engine, and where it is.
type simEngine struct {
	*vllm.Server
	name, address   string
	events, replays string // ports
	lis             net.Listener
}

// simOptions are the options of the engines of tests: quick ones.
func simOptions() vllm.Options {
	o := vllm.DefaultOptions()
	o.Models, o.Speed = []string{"m"}, 50
	o.Engine.NumBlocks = 4096
	o.EnableLoRA, o.MaxLoRAs, o.LoRAModules = true, 4, []vllm.Adapter{{Name: "tuned", Path: "x"}}
	o.Events.Enabled, o.Events.Endpoint, o.Events.ReplayEndpoint = true, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	return o
}

// startEngine runs an engine until the test ends.
func startEngine(t *testing.T, name string, set func(o *vllm.Options, address string)) *simEngine {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := simOptions()
	o.Events.Topic = "kv@" + lis.Addr().String() + "@m"
	if set != nil {
		set(&o, lis.Addr().String())
	}
	s, err := vllm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	e := &simEngine{Server: s, name: name, address: lis.Addr().String(), lis: lis}
	events, replays := s.EventAddrs()
	if events != nil {
		e.events = portOf(events)
	}
	if replays != nil {
		e.replays = portOf(replays)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { _ = serveHTTP(ctx, lis, s.Handler()) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return e
}

// spec is the engine as a source would tell of it.
func (e *simEngine) spec() fleet.EndpointSpec {
	return fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: e.name}, Address: e.address,
		Labels: map[string]string{eventsLabel: e.events, replaysLabel: e.replays}}
}

func (e *simEngine) trouble(t *testing.T, what string) {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPut, "http://"+e.address+"/sim/trouble", strings.NewReader(what))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s for %s: %s", what, e.name, b)
	}
}

// Where events come from, as kvEventsConfig says it.
const (
	dialling = `{podDiscoveryConfig: {portLabel: ` + eventsLabel + `, replayPortLabel: ` + replaysLabel + `}}`
	blind    = `{podDiscoveryConfig: {portLabel: ` + eventsLabel + `}}` // no replays
)

// listening has engines dial us.
func listening(address string) string { return `{zmqEndpoint: "tcp://` + address + `"}` }

// preciseConfig is a picker that goes by prefixes alone.
func preciseConfig(events, more string) string {
	return `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: token-producer, parameters: {simulated: true}}
- type: precise-prefix-cache-producer
  parameters: {kvEventsConfig: ` + events + more + `}
- {type: prefix-cache-scorer}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 1}]}
`
}

// preciseSite is a gateway and the engines behind it.
type preciseSite struct {
	t            *testing.T
	p            *process
	url, metrics string
	log          *lockedBuffer
	engines      []*simEngine
	requests     int
	barriers     int
	stop         func() // ends the gateway, once
}

// rehearse runs a gateway before engines until the test ends.
func rehearse(t *testing.T, text string, engines ...*simEngine) *preciseSite {
	t.Helper()
	cfg := preciseOf(t, text)
	s := defaults()
	s.http, s.metrics, s.verbosity, s.quiet, s.trustLoopback, s.drain = "127.0.0.1:0", "127.0.0.1:0", 1, true, true, 0
	r := &preciseSite{t: t, log: &lockedBuffer{}, engines: engines}
	var err error
	if r.p, err = newProcess(cfg, s, r.log); err != nil {
		t.Fatal(err)
	}
	r.set(engines...)
	opened, ended := make(chan *listeners, 1), make(chan error, 1)
	r.p.started = func(l *listeners) { opened <- l }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- r.p.run(ctx, cfg) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	t.Cleanup(r.stop)
	select {
	case l := <-opened:
		r.url, r.metrics = "http://"+l.http.Addr().String(), "http://"+l.metrics.Addr().String()
	case err := <-ended:
		ended <- err
		t.Fatal(err, r.log.String())
	}
	r.fresh()
	return r
}

func preciseOf(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := eppConfig("", text, &config.Pool{Namespace: "default", Name: "p", PickerRef: "p"}, true)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// set makes these the endpoints.
func (r *preciseSite) set(engines ...*simEngine) {
	specs := []fleet.EndpointSpec{}
	for _, e := range engines {
		specs = append(specs, e.spec())
	}
	r.p.store.SetEndpoints("test", specs)
}

// fresh waits until all endpoints' signals and models are known.
func (r *preciseSite) fresh() {
	r.t.Helper()
	until(r.t, "fresh signals", func() bool {
		for _, e := range r.p.store.Load().Pools[0].Endpoints {
			if e.Waiting.At.IsZero() || len(e.Models) == 0 {
				return false
			}
		}
		return true
	})
}

// answer is what became of a request.
type answer struct {
	status            int
	body              string
	endpoint          string // that was picked
	predicted         int
	reported, prompts int // cached and prompt tokens, -1 where the engine did not tell
}

var (
	decided = regexp.MustCompile(`endpoint=default/([^;]*);.* cached=(\d+);`)
	cachedN = regexp.MustCompile(`"(?:cached_tokens|cache_read_input_tokens)":(\d+)`)
	promptN = regexp.MustCompile(`"(?:prompt_tokens|input_tokens)":(\d+)`)
)

// ask sends a request through the gateway.
func (r *preciseSite) ask(path, body string) answer {
	r.t.Helper()
	a, err := r.try(path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	if a.status != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", path, body, a.status, a.body)
	}
	return a
}

func (r *preciseSite) try(path, body string) (answer, error) {
	req, err := http.NewRequest(http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("content-type", "application/json")
	req.Header.Set("x-penstock-decision", "true")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, body: string(b), reported: -1, prompts: -1, predicted: -1}
	if m := decided.FindStringSubmatch(resp.Header.Get("x-penstock-decision")); m != nil {
		a.endpoint = m[1]
		a.predicted, _ = strconv.Atoi(m[2])
	}
	if m := cachedN.FindStringSubmatch(a.body); m != nil {
		a.reported, _ = strconv.Atoi(m[1])
	}
	if m := promptN.FindStringSubmatch(a.body); m != nil {
		a.prompts, _ = strconv.Atoi(m[1])
	}
	return a, err
}

// exact wants what was predicted to be what the engine reports.
func (r *preciseSite) exact(what string, a answer) answer {
	r.t.Helper()
	if a.predicted != a.reported || a.reported < 0 {
		r.t.Errorf("%s: %d cached tokens predicted at %s, %d reported of %d: %.300s", what, a.predicted, a.endpoint, a.reported, a.prompts, a.body)
	}
	return a
}

// mirror is what the gateway knows of engines.
func (r *preciseSite) mirror() *kvcache.Mirror {
	r.p.feeds.mu.Lock()
	defer r.p.feeds.mu.Unlock()
	for _, f := range r.p.feeds.all {
		return f.producer.Mirror()
	}
	r.t.Fatal("no feed")
	return nil
}

// connected is how many publishers are.
func (r *preciseSite) connected() (n int) {
	r.p.feeds.mu.Lock()
	defer r.p.feeds.mu.Unlock()
	for _, f := range r.p.feeds.all {
		f.mu.Lock()
		for s := range f.sources {
			if s.Connected() {
				n++
			}
		}
		f.mu.Unlock()
	}
	return n
}

// settle waits until all that engines published is heard: each computes prompts more, until the event of one, which is the last,
// is known. The first may be published before anybody listens. An engine that is not believed has nothing to wait for.
func (r *preciseSite) settle(engines ...*simEngine) {
	r.t.Helper()
	for _, e := range engines {
		ids, again := r.barrier(e), time.Now().Add(time.Second)
		until(r.t, "the events of "+e.name, func() bool {
			if time.Now().After(again) {
				ids, again = r.barrier(e), time.Now().Add(time.Second)
			}
			return r.holds(e, ids) || r.known(e).Evidence == "distrusted"
		})
	}
}

// named is the engine of that name.
func (r *preciseSite) named(name string) *simEngine {
	return r.engines[slices.IndexFunc(r.engines, func(e *simEngine) bool { return e.name == name })]
}

// barrier has an engine compute a prompt of its own, of one block and a token.
func (r *preciseSite) barrier(e *simEngine) []uint32 {
	r.t.Helper()
	r.barriers++
	ids := make([]uint32, 17)
	for i := range ids {
		ids[i] = uint32(1_000_000*r.barriers + i)
	}
	text, _ := json.Marshal(ids)
	resp, err := http.Post("http://"+e.address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","max_tokens":1,"prompt":`+string(text)+`}`))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%d %s", resp.StatusCode, b)
	}
	return ids
}

// holds reports whether an engine said that it holds all whole blocks of these tokens.
func (r *preciseSite) holds(e *simEngine, ids []uint32) bool {
	m := r.mirror()
	block, cell := m.Sizes(0)
	if block == 0 {
		return false
	}
	var h kvcache.Hasher
	h.ResetTokens("", "", block, cell, 1<<20)
	h.Start()
	h.WriteTokens(ids[:len(ids)/block*block])
	h.Finish()
	for _, ep := range r.p.store.Load().Pools[0].Endpoints {
		if ep.Name == e.name {
			found := make([]kvcache.Evidence, 1)
			m.Index.Look(h.Keys, h.Starts, []uint32{ep.Load.Slot}, found, new(kvcache.Scratch))
			return int(found[0].Confirmed()) == len(ids)/block
		}
	}
	return false
}

// page is /debug/kvcache.
func (r *preciseSite) page() observe.CacheView {
	r.t.Helper()
	var v struct{ Caches []observe.CacheView }
	getJSON(r.t, r.metrics+"/debug/kvcache", &v)
	if len(v.Caches) != 1 {
		r.t.Fatalf("%d caches", len(v.Caches))
	}
	return v.Caches[0]
}

// known is what the page says of an engine.
func (r *preciseSite) known(e *simEngine) observe.CacheEndpointView {
	r.t.Helper()
	for _, v := range r.page().Endpoints {
		if v.Address == e.address {
			return v
		}
	}
	return observe.CacheEndpointView{}
}

// evidence waits until the page says that of an engine.
func (r *preciseSite) evidence(e *simEngine, want string) {
	r.t.Helper()
	var got observe.CacheEndpointView
	until(r.t, e.name+" to be known by "+want, func() bool {
		got = r.known(e)
		return got.Evidence == want
	})
}

// text is a prompt of about that many tokens, which no other has a beginning of.
func (r *preciseSite) text(tokens int) string {
	r.requests++
	return fmt.Sprintf("%04d", r.requests) + strings.Repeat("word", tokens)
}

func completion(prompt string, more string) string {
	b, _ := json.Marshal(prompt)
	return `{"model":"m","max_tokens":4,"prompt":` + string(b) + more + `}`
}

// complete asks for a prompt's completion.
func (r *preciseSite) complete(prompt string) answer {
	r.t.Helper()
	return r.ask("/v1/completions", completion(prompt, ""))
}

// TestPredictedIsReported asks in each dialect, and compares request by request.
func TestPredictedIsReported(t *testing.T) {
	t.Parallel()
	for name, rig := range map[string]func(t *testing.T) *preciseSite{
		"dialled": func(t *testing.T) *preciseSite {
			return rehearse(t, preciseConfig(dialling, ""), startEngine(t, "a", nil), startEngine(t, "b", nil), startEngine(t, "c", nil))
		},
		"dialling": func(t *testing.T) *preciseSite {
			central := freeAddress(t)
			dial := func(o *vllm.Options, _ string) { o.Events.Endpoint, o.Events.ReplayEndpoint = "tcp://"+central, "" }
			return rehearse(t, preciseConfig(listening(central), ""), startEngine(t, "a", dial), startEngine(t, "b", dial), startEngine(t, "c", dial))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			r.settle(r.engines...)
			total := 0
			ask := func(what, path, body string) answer {
				t.Helper()
				a := r.exact(what, r.ask(path, body))
				total += a.reported
				r.settle(r.named(a.endpoint))
				return a
			}
			quoted := func(s string) string { b, _ := json.Marshal(s); return string(b) }

			turns := `{"role":"system","content":` + quoted(r.text(100)) + `}`
			var home string
			for i := range 4 {
				turns += `,{"role":"user","content":` + quoted(r.text(30)) + `}`
				a := ask(fmt.Sprint("chat, turn ", i), "/v1/chat/completions", `{"model":"m","max_tokens":20,"messages":[`+turns+`]}`)
				var said struct {
					Choices []struct{ Message struct{ Content string } }
				}
				if err := json.Unmarshal([]byte(a.body), &said); err != nil {
					t.Fatal(err)
				}
				turns += `,{"role":"assistant","content":` + quoted(said.Choices[0].Message.Content) + `}`
				if home = cmp.Or(home, a.endpoint); a.endpoint != home {
					t.Errorf("turn %d went to %s, its prefix is at %s", i, a.endpoint, home)
				}
			}
			long := r.text(200)
			for _, c := range []struct{ what, path, body string }{
				{"a completion", "/v1/completions", completion(long, "")},
				{"the same again", "/v1/completions", completion(long, "")},
				{"its beginning", "/v1/completions", completion(long[:400], "")},
				{"its beginning, to the end of a block", "/v1/completions", completion(long[:256], "")},
				{"a whole block is recomputed", "/v1/completions", completion(long[:256], "")},
				{"shorter than a block", "/v1/completions", completion(long[:40], "")},
				{"salted", "/v1/completions", completion(long, `,"cache_salt":"s"`)},
				{"salted alike", "/v1/completions", completion(long, `,"cache_salt":"s"`)},
				{"salted otherwise", "/v1/completions", completion(long, `,"cache_salt":"z"`)},
				{"by an adapter", "/v1/completions", strings.Replace(completion(long, ""), `"m"`, `"tuned"`, 1)},
				{"by the adapter again", "/v1/completions", strings.Replace(completion(long, ""), `"m"`, `"tuned"`, 1)},
				{"by the adapter, salted", "/v1/completions", strings.Replace(completion(long, `,"cache_salt":"s"`), `"m"`, `"tuned"`, 1)},
				{"and again", "/v1/completions", strings.Replace(completion(long, `,"cache_salt":"s"`), `"m"`, `"tuned"`, 1)},
				{"several prompts", "/v1/completions", `{"model":"m","max_tokens":2,"prompt":[` + quoted(long) + `,` + quoted(long[:300]) + `,` + quoted("xx"+long) + `]}`},
				{"several prompts again", "/v1/completions", `{"model":"m","max_tokens":2,"prompt":[` + quoted(long) + `,` + quoted(long[:300]) + `,` + quoted("xx"+long) + `]}`},
				{"several choices", "/v1/completions", completion(long+"and on", `,"n":3`)},
				{"token ids", "/v1/completions", `{"model":"m","max_tokens":2,"prompt":[` + strings.TrimSuffix(strings.Repeat("77,", 100), ",") + `]}`},
				{"token ids again", "/v1/completions", `{"model":"m","max_tokens":2,"prompt":[` + strings.TrimSuffix(strings.Repeat("77,", 100), ",") + `]}`},
				{"a response", "/v1/responses", `{"model":"m","max_output_tokens":4,"input":` + quoted(long) + `}`},
				{"a response again", "/v1/responses", `{"model":"m","max_output_tokens":4,"input":` + quoted(long) + `}`},
				{"a response with instructions", "/v1/responses", `{"model":"m","max_output_tokens":4,"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":` + quoted(long) + `}]}]}`},
				{"and again, with more", "/v1/responses", `{"model":"m","max_output_tokens":4,"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":` + quoted(long) + `}]},{"role":"assistant","content":"yes"},{"role":"user","content":"more"}]}`},
				{"a message", "/v1/messages", `{"model":"m","max_tokens":4,"system":"be brief","messages":[{"role":"user","content":` + quoted(long) + `}]}`},
				{"a message again", "/v1/messages", `{"model":"m","max_tokens":4,"system":"be brief","messages":[{"role":"user","content":` + quoted(long) + `},{"role":"assistant","content":"yes"},{"role":"user","content":"more"}]}`},
				{"a stream", "/v1/chat/completions", `{"model":"m","max_tokens":4,"stream":true,"stream_options":{"include_usage":true},"messages":[` + turns + `]}`},
			} {
				ask(c.what, c.path, c.body)
			}
			if total < 2000 {
				t.Errorf("only %d tokens were read from caches", total)
			}
			for _, e := range r.page().Endpoints {
				if e.Evidence != "events" || e.Counts["misfit"]+e.Counts["orphans"]+e.Counts["gaps"]+e.Counts["lost"] != 0 {
					t.Errorf("%s is known by %s: %v", e.Endpoint, e.Evidence, e.Counts)
				}
				if e.Agreement != nil && e.Agreement.Exact != e.Agreement.Requests {
					t.Errorf("%s: %+v", e.Endpoint, e.Agreement)
				}
			}
		})
	}
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
