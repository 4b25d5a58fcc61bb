// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sim/vllm"
)

// dials has an engine publish to a subscriber in the middle.
func dials(address string) func(*vllm.Options, string) {
	return func(o *vllm.Options, _ string) { o.Events.Endpoint, o.Events.ReplayEndpoint = "tcp://"+address, "" }
}

// An engine that begins anew has an empty cache, and nobody thinks otherwise.
func TestEngineRestarts(t *testing.T) {
	t.Parallel()
	central := freeAddress(t)
	for _, c := range []struct {
		name, events string
		set          func(*vllm.Options, string)
	}{{"dialled, with replays", dialling, nil}, {"dialled", blind, nil}, {"dialling", listening(central), dials(central)}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			born := time.Now()
			a, b := startEngine(t, "a", c.set), startEngine(t, "b", c.set)
			r := rehearse(t, preciseConfig(c.events, ""), a, b)
			r.settle(a, b)
			var prompts []string
			for range 6 {
				prompts = append(prompts, r.text(100))
				r.complete(prompts[len(prompts)-1])
			}
			r.settle(a, b)
			for _, p := range prompts {
				if got := r.exact("before", r.complete(p)); got.predicted != 96 {
					t.Errorf("%d tokens cached, want 96", got.predicted)
				}
			}
			held := r.known(a).Blocks
			a.trouble(t, `{"dead":true}`)
			until(t, "a to be disconnected", func() bool {
				p := r.known(a).Publisher
				return len(p) == 1 && !p[0].Connected
			})
			until(t, "another second, for its clock may be unsteady", func() bool { return time.Since(born) > 2*time.Second })
			a.trouble(t, `{}`)
			until(t, "the scrape to say so, before a says anything", func() bool { return r.known(a).Blocks == 0 })
			r.settle(a)
			if v := r.known(a); v.Blocks >= held || v.Counts["restarts"] != 1 || v.Evidence != "events" {
				t.Errorf("after its restart a has %d blocks of %d: %+v", v.Blocks, held, v)
			}
			for _, p := range prompts {
				r.exact("after", r.complete(p))
				r.settle(a, b)
			}
		})
	}
}

// A gateway that begins anew learns from a replay what engines hold; without replays it begins with what engines report.
func TestGatewayRestarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, events string }{{"with replays", dialling}, {"without", blind}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := startEngine(t, "a", nil), startEngine(t, "b", nil)
			r := rehearse(t, preciseConfig(c.events, ""), a, b)
			r.settle(a, b)
			homes := map[string]string{}
			for range 6 {
				p := r.text(100)
				homes[p] = r.complete(p).endpoint
			}
			r.settle(a, b)
			r.stop()
			r = rehearse(t, preciseConfig(c.events, ""), a, b)
			r.requests, r.barriers = 100, 100
			r.settle(a, b)
			if c.events == dialling {
				for p, home := range homes {
					if got := r.exact("after", r.complete(p)); got.predicted != 96 || got.endpoint != home {
						t.Errorf("%d tokens at %s, want 96 at %s", got.predicted, got.endpoint, home)
					}
				}
				return
			}
			for p := range homes {
				first := r.complete(p)
				if first.predicted != 0 {
					t.Errorf("%d tokens predicted of what nobody told", first.predicted)
				}
				if second := r.exact("the second time", r.complete(p)); second.endpoint != first.endpoint {
					t.Errorf("went to %s, then to %s", first.endpoint, second.endpoint)
				}
			}
			p := r.text(100)
			r.complete(p)
			r.settle(a, b)
			r.exact("what is new", r.complete(p))
			r.evidence(a, "events")
			r.evidence(b, "events")
		})
	}
}

// Events that come late matter little, since promises stand until they come.
func TestLateEvents(t *testing.T) {
	t.Parallel()
	a, b := startEngine(t, "a", nil), startEngine(t, "b", nil)
	r := rehearse(t, preciseConfig(dialling, ""), a, b)
	r.settle(a, b)
	a.trouble(t, `{"events":{"delay_ms":500}}`)
	b.trouble(t, `{"events":{"delay_ms":500}}`)
	for range 3 {
		p := r.text(100)
		first := r.complete(p)
		for range 3 {
			if a := r.exact("at once", r.complete(p)); a.endpoint != first.endpoint {
				t.Errorf("went to %s after %s", a.endpoint, first.endpoint)
			}
		}
	}
	r.settle(a, b)
	for _, e := range []*simEngine{a, b} {
		if v := r.known(e); v.Evidence != "events" {
			t.Errorf("%s is known by %s", v.Endpoint, v.Evidence)
		}
	}
}

// Lost messages are had again by replay; without replays some of what engines hold is not known, and never the reverse for long.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, events string }{{"with replays", dialling}, {"without", blind}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := startEngine(t, "a", nil), startEngine(t, "b", nil)
			r := rehearse(t, preciseConfig(c.events, ""), a, b)
			r.settle(a, b)
			for _, e := range r.engines {
				e.trouble(t, `{"events":{"drop":0.2}}`)
			}
			var prompts []string
			for range 30 {
				prompts = append(prompts, r.text(100))
				r.complete(prompts[len(prompts)-1])
			}
			for _, e := range r.engines {
				e.trouble(t, `{}`)
			}
			ended := time.Now()
			r.settle(a, b)
			until(t, "promises that nobody confirmed to be over", func() bool { return time.Since(ended) > 2100*time.Millisecond })
			r.complete(r.text(20)) // which takes them back
			off := 0
			for _, p := range prompts {
				if got := r.complete(p); got.predicted != got.reported {
					off++
				}
			}
			var gaps, missed uint64
			for _, e := range r.page().Endpoints {
				gaps, missed = gaps+e.Counts["gaps"], missed+e.Counts["missed"]
			}
			if c.events == dialling && (off > 0 || gaps > 0) {
				t.Errorf("%d predictions are wrong after replays, %d gaps", off, gaps)
			}
			if c.events == blind && (gaps == 0 || off > 20) {
				t.Errorf("%d predictions of %d are wrong, %d gaps of %d messages", off, len(prompts), gaps, missed)
			}
			t.Logf("%d of %d wrong; %d gaps of %d messages", off, len(prompts), gaps, missed)
			for _, p := range prompts {
				r.exact("what engines reported is known", r.complete(p))
			}
			p := r.text(100)
			r.complete(p)
			r.settle(a, b)
			r.exact("what is new", r.complete(p))
		})
	}
}

// Where an engine falls silent, what it was sent is remembered, until it speaks again.
func TestSilentEngine(t *testing.T) {
	t.Parallel()
	a := startEngine(t, "a", nil)
	r := rehearse(t, preciseConfig(dialling, ""), a)
	r.settle(a)
	r.evidence(a, "events")
	a.trouble(t, `{"events":{"silent":true}}`)
	var last string
	until(t, "a to be taken for silent", func() bool {
		last = r.text(60)
		r.complete(last)
		return r.known(a).Evidence == "silent"
	})
	last = r.text(60)
	r.complete(last)
	if got := r.exact("remembered", r.complete(last)); got.predicted == 0 {
		t.Error("nothing is remembered of a silent engine")
	}
	a.trouble(t, `{}`)
	r.settle(a)
	r.evidence(a, "events")
	p := r.text(60)
	r.complete(p)
	r.settle(a)
	r.exact("it speaks again", r.complete(p))
}

// An engine that publishes nothing at all is remembered by what it was sent.
func TestEngineWithoutEvents(t *testing.T) {
	t.Parallel()
	a := startEngine(t, "a", func(o *vllm.Options, _ string) { o.Events.Enabled = false })
	r := rehearse(t, preciseConfig(dialling, ""), a)
	p := r.text(100)
	r.complete(p)
	r.exact("again", r.complete(p))
	r.evidence(a, "approximate")
}

// An engine whose reports contradict its events is not believed, and requests are served.
func TestLyingEngine(t *testing.T) {
	t.Parallel()
	a, b := startEngine(t, "a", nil), startEngine(t, "b", nil)
	front := lieFor(t, a)
	r := rehearse(t, preciseConfig(dialling, ""), front, b)
	r.settle(front, b)
	var homes []string
	for range 60 {
		p := r.text(100)
		homes = append(homes, r.complete(p).endpoint)
		r.settle(front, b)
		r.complete(p)
		if r.known(front).Evidence == "distrusted" {
			break
		}
	}
	r.evidence(front, "distrusted")
	r.evidence(b, "events")
	for range 8 {
		p := r.text(100)
		first := r.complete(p)
		if again := r.complete(p); again.endpoint != first.endpoint {
			t.Errorf("went to %s, then to %s", first.endpoint, again.endpoint)
		}
	}
	if n := strings.Count(strings.Join(homes, ""), "a"); n == 0 {
		t.Error("a got nothing: the test is none")
	}
}

// lieFor puts a face before an engine which reports that nothing was cached.
func lieFor(t *testing.T, e *simEngine) *simEngine {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := http.NewRequestWithContext(r.Context(), r.Method, "http://"+e.address+r.URL.Path, r.Body)
		req.Header = r.Header.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		w.Header().Set("content-type", resp.Header.Get("content-type"))
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(cachedN.ReplaceAll(body, []byte(`"cached_tokens":0`)))
	})}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(func() { _ = srv.Close() })
	face := *e
	face.address = lis.Addr().String()
	return &face
}

// A cache that is cleared is empty: all its blocks go with one event.
func TestCacheIsCleared(t *testing.T) {
	t.Parallel()
	a := startEngine(t, "a", nil)
	r := rehearse(t, preciseConfig(dialling, ""), a)
	r.settle(a)
	var prompts []string
	for range 5 {
		prompts = append(prompts, r.text(100))
		r.complete(prompts[len(prompts)-1])
	}
	r.settle(a)
	resp, err := http.Post("http://"+a.address+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	before := r.barriers
	r.settle(a)
	if v := r.known(a); v.Counts["clears"] != 1 || v.Blocks != r.barriers-before {
		t.Errorf("%d blocks after it was cleared, want that of what came after: %v", v.Blocks, v.Counts)
	}
	for _, p := range prompts {
		if got := r.exact("after", r.complete(p)); got.predicted != 0 {
			t.Errorf("%d tokens predicted of an empty cache", got.predicted)
		}
	}
}

// A burst of requests with one beginning follows its first, before any event can come; one that is not served takes back what
// was expected of it.
func TestBurst(t *testing.T) {
	t.Parallel()
	var engines []*simEngine
	for i := range 4 {
		engines = append(engines, startEngine(t, fmt.Sprint("e", i), func(o *vllm.Options, _ string) { o.Speed = 2 }))
	}
	r := rehearse(t, preciseConfig(dialling, ""), engines...)
	r.settle(engines...)
	blocks := func() (n int) {
		for _, e := range engines {
			n += r.known(e).Blocks
		}
		return n
	}
	already := blocks()
	for _, e := range engines {
		e.trouble(t, `{"slow":300}`)
	}
	prompt := r.text(500)
	var wg sync.WaitGroup
	var mu sync.Mutex
	homes, done := map[string]int{}, 0
	ask := func(i int) {
		wg.Go(func() {
			a, err := r.try("/v1/completions", completion(prompt+fmt.Sprint(i), ""))
			mu.Lock()
			defer mu.Unlock()
			if err != nil || a.status != http.StatusOK {
				t.Errorf("%d %v %s", a.status, err, a.body)
			}
			homes[a.endpoint]++
			done++
		})
	}
	ask(0)
	until(t, "something to be expected of the first", func() bool { return blocks() > already })
	for i := range 49 {
		ask(1 + i)
	}
	until(t, "all to be placed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := int64(done)
		for _, e := range r.p.store.Load().Pools[0].Endpoints {
			n += e.Load.Requests()
		}
		return n >= 50
	})
	for _, e := range engines {
		e.trouble(t, `{}`)
	}
	wg.Wait()
	if len(homes) != 1 {
		t.Errorf("one beginning went to %v", homes)
	}
	r.settle(engines...)
	for _, e := range engines {
		e.trouble(t, `{"status":503}`)
	}
	before := map[string]int{}
	for _, e := range engines {
		before[e.name] = r.known(e).Blocks
	}
	if a, err := r.try("/v1/completions", completion(r.text(300), "")); err != nil || a.status != http.StatusServiceUnavailable {
		t.Errorf("%d %v", a.status, err)
	}
	until(t, "nothing to be expected of a request that failed", func() bool {
		for _, e := range engines {
			if r.known(e).Blocks != before[e.name] {
				return false
			}
		}
		return true
	})
}

// What is another endpoint at an old address does not inherit; what was only away for a moment is what it was.
func TestEndpointComesBack(t *testing.T) {
	t.Parallel()
	a, b := startEngine(t, "a", nil), startEngine(t, "b", nil)
	r := rehearse(t, preciseConfig(dialling, ""), a, b)
	r.settle(a, b)
	p := r.text(100)
	for {
		if r.complete(p).endpoint == "a" {
			break
		}
		p = r.text(100)
	}
	r.settle(a)
	had := r.known(a)
	load := func() *fleet.Load { return r.p.store.Load().Pools[0].Endpoints[0].Load }
	first := load()
	r.set(b)
	until(t, "the connection to be closed", func() bool { return r.connected() == 1 })
	r.set(a, b)
	if load() != first {
		t.Fatal("a is another incarnation after a moment")
	}
	before := r.barriers
	r.settle(a)
	if v := r.known(a); v.Following != had.Following+r.barriers-before || v.Counts["gaps"] != 0 {
		t.Errorf("%d blocks are followed, were %d: %v", v.Following, had.Following, v.Counts)
	}
	resp, err := http.Post("http://"+a.address+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	before = r.barriers
	r.settle(a)
	if v, holds := r.known(a), r.barriers-before; v.Following != holds || v.Blocks != holds {
		t.Errorf("%d blocks are followed, %d in the index, of an engine that holds %d", v.Following, v.Blocks, holds)
	}

	r.complete(p)
	r.settle(a, b)
	other := *a
	other.name = "other"
	r.set(&other, b)
	r.fresh()
	r.settle(&other, b)
	if v := r.known(&other); v.Endpoint != "default/other" || v.Evidence != "events" {
		t.Errorf("%+v", v)
	}
	r.exact("by its own replay", r.complete(p))
}

// An endpoint that was away for a moment is told from the start again; its blocks count once, and leave when its engine lets go.
func TestEndpointFlaps(t *testing.T) {
	t.Parallel()
	a := startEngine(t, "a", func(o *vllm.Options, _ string) { o.MaxModelLen, o.Engine.NumBlocks = 2048, 160 })
	r := rehearse(t, preciseConfig(dialling, ""), a)
	var prompts []string
	for range 8 {
		prompts = append(prompts, r.text(100))
		r.complete(prompts[len(prompts)-1])
	}
	r.settle(a)
	for range 2 {
		r.set()
		until(t, "the connection to be closed", func() bool { return r.connected() == 0 })
		r.set(a)
		r.settle(a)
	}
	for range 40 { // which push out all that was there
		r.complete(r.text(100))
	}
	r.settle(a)
	if v := r.known(a); v.Following > 160 || v.Blocks > 160 {
		t.Errorf("%d blocks are followed, %d in the index, of an engine that has room for 160", v.Following, v.Blocks)
	}
	for _, p := range prompts {
		if got := r.exact("pushed out", r.complete(p)); got.predicted != 0 {
			t.Errorf("%d tokens are thought to be there", got.predicted)
		}
	}
}
