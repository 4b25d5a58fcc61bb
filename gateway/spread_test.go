// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// atOnce places equal requests that are all in flight together, and counts them by endpoint.
func (r *rig) atOnce(t *testing.T, n int) map[string]int {
	t.Helper()
	body := chat(strings.Repeat("the same for all ", 100))
	count, open := map[string]int{}, make([]*Exchange, n)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			x, p, ref := r.place(t, nil, body)
			if open[i] = x; ref != nil {
				t.Error(ref)
				return
			}
			x.Answer(200, headers{}) // its body is let go, it stays in flight
			mu.Lock()
			count[p.Destination]++
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, x := range open {
		x.End(observe.Complete)
	}
	return count
}

// Four idle endpoints whose pages never change: what was sent there meanwhile is all that tells them apart.
func TestEqualRequestsAtOnceAreSpreadEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, slog.LevelWarn)
		r.tell(0, 0, 0, 0)
		count := r.atOnce(t, 256)
		for _, e := range r.endpoints() {
			if n := count[e.Address]; n < 61 || n > 67 { // 64 and 5%, so that no two are more than 10% apart
				t.Errorf("%s got %d of 256, want 64: %v", e.Address, n, count)
			}
		}
	})
}

func TestLoadedEndpointGetsLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, slog.LevelWarn)
		r.tell(0, 0, 50, 0)
		count := r.atOnce(t, 256)
		var others []int
		for i, e := range r.endpoints() {
			if i != 2 {
				others = append(others, count[e.Address])
			}
		}
		loaded, least, most := count[r.endpoints()[2].Address], min(others[0], others[1], others[2]), max(others[0], others[1], others[2])
		if loaded*10 > least*8 || float64(most) > 1.1*float64(least) {
			t.Errorf("the loaded endpoint got %d, the others %v: want clearly less, and the rest even", loaded, others)
		}
	})
}

func TestDistinctPromptsUseEveryEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, slog.LevelWarn)
		r.tell(0, 0, 0, 0)
		count := map[string]int{}
		for i := range 40 {
			x, p, ref := r.place(t, nil, chat(fmt.Sprint(i, strings.Repeat(" a prompt of its own", 100))))
			if ref != nil {
				t.Fatal(ref)
			}
			x.Answer(200, headers{})
			x.End(observe.Complete)
			count[p.Destination]++
		}
		for _, e := range r.endpoints() {
			if n := count[e.Address]; n == 0 || n > 20 {
				t.Errorf("%s got %d of 40: want some, and no more than half: %v", e.Address, n, count)
			}
		}
	})
}

// A body of any form that has a prompt goes where it went before.
func TestPromptsOfEveryFormStick(t *testing.T) {
	list := func(from, n int) []int {
		ids := make([]int, n)
		for i := range ids {
			ids[i] = from + i
		}
		return ids
	}
	long := func(s string) string { return strings.Repeat(s, 4096/len(s)) }
	for _, c := range []struct {
		name, path string
		body       map[string]any
		tokens     int
	}{
		{"two prompts", "/v1/completions", map[string]any{"prompt": []string{long("one "), long("two!")}}, 2048},
		{"token ids", "/v1/completions", map[string]any{"prompt": list(1000, 512)}, 512},
		{"two lists of token ids", "/v1/completions", map[string]any{"prompt": [][]int{list(1000, 256), list(5000, 256)}}, 512},
		{"two inputs of embeddings", "/v1/embeddings", map[string]any{"input": []string{long("one "), long("two!")}}, 2048},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 2, slog.LevelWarn)
			c.body["model"] = "m"
			body, _ := json.Marshal(c.body)
			send := func() *Exchange {
				x := r.Begin(&r.door, Head{Method: "POST", Path: c.path, Headers: headers{}, Peer: netip.MustParseAddr("192.0.2.1")})
				_ = x.Write(body)
				p, ref := x.Place(context.Background())
				if ref != nil {
					t.Fatal(ref)
				}
				if p.Body != nil {
					t.Error("the body was changed")
				}
				x.End(observe.Complete)
				return x
			}
			first, again := send(), send()
			if first.out.Address != again.out.Address {
				t.Errorf("went to %s, then to %s", first.out.Address, again.out.Address)
			}
			if first.out.EstimatedTokens != c.tokens || first.out.PredictedCached != 0 || again.out.PredictedCached != c.tokens {
				t.Errorf("got %d tokens, %d cached, then %d; want %d, 0 and all", first.out.EstimatedTokens, first.out.PredictedCached, again.out.PredictedCached, c.tokens)
			}
		})
	}
}

// Two chats with the same text and other images share no more than what stands before the image.
func TestOtherImageSharesOnlyTheTextBefore(t *testing.T) {
	r := newRig(t, 2, slog.LevelWarn)
	body := func(image string) string {
		return `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("word", 100) +
			`"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}},{"type":"text","text":"` + strings.Repeat("more", 500) + `"}]}]}`
	}
	cached := func(image string) int {
		x, _, ref := r.place(t, nil, body(image))
		if ref != nil {
			t.Fatal(ref)
		}
		x.End(observe.Complete)
		return x.out.PredictedCached
	}
	cached("AAAA")
	if n := cached("BBBB"); n != 64 { // of 100 tokens of text before the image one block of 64 is whole
		t.Errorf("%d tokens count as cached, want 64", n)
	}
	if n := cached("AAAA"); n < 800 {
		t.Errorf("of the same image %d tokens count as cached, want all", n)
	}
	// What is no prompt is for the endpoint to judge.
	x, _, ref := r.place(t, nil, `{"model":"m","prompt":{"a":1}}`)
	if ref != nil {
		t.Errorf("got %v", ref)
	}
	x.End(observe.Complete)
}

// With an estimate of the output the tokens stay until the end, without it until the first output.
func TestEstimatedOutputInFlight(t *testing.T) {
	for _, c := range []struct {
		output       bool
		sent, begins int64
	}{{false, 100, 0}, {true, 130, 130}} {
		r := newRig(t, 1, slog.LevelWarn)
		lane := defaultLane()
		p := policy.Producers["inflight-load-producer"]().(*policy.InflightLoadProducer)
		p.AddEstimatedOutputTokens, p.OutputRatio = c.output, 0.3
		lane.Plan.Producers = append(lane.Plan.Producers, sched.Named[sched.Producer]{Name: "inflight-load-producer", Plugin: p})
		r.SetLanes(Lanes{{Namespace: "default", Name: "p"}: lane})
		load := r.endpoints()[0].Load
		x := r.Begin(&r.door, Head{Method: "POST", Path: "/v1/completions", Headers: headers{}, Peer: netip.MustParseAddr("192.0.2.1")})
		_ = x.Write([]byte(`{"model":"m","stream":true,"prompt":"` + strings.Repeat("word", 100) + `"}`))
		if _, ref := x.Place(context.Background()); ref != nil {
			t.Fatal(ref)
		}
		if n := load.Tokens(); n != c.sent {
			t.Errorf("output %t: %d tokens in flight, want %d", c.output, n, c.sent)
		}
		x.Answer(200, headers{"content-type": "text/event-stream"})
		x.Pass([]byte("data: {\"choices\":[{\"text\":\"Hi\"}]}\n\n"))
		if n := load.Tokens(); n != c.begins {
			t.Errorf("output %t: %d tokens in flight after the first output, want %d", c.output, n, c.begins)
		}
		x.End(observe.ClientLeft)
	}
}
