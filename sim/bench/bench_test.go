// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/sim/work"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers requests without a network.
type server func(*http.Request) (*http.Response, error)

// RoundTrip reads the body as a connection would.
func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil || int64(len(body)) != r.ContentLength {
		return nil, fmt.Errorf("%d bytes of a body of %d: %v", len(body), r.ContentLength, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return s(r)
}

// pace is how an answer comes.
type pace struct {
	first, each time.Duration
	chunks      int
	usage       string
	done        func()
}

func (p pace) serve(r *http.Request) (*http.Response, error) {
	out, in := io.Pipe()
	stop := context.AfterFunc(r.Context(), func() { _ = in.CloseWithError(r.Context().Err()) })
	go func() {
		defer stop()
		_, _ = io.WriteString(in, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
		wait := p.first
		for i := range p.chunks {
			select {
			case <-time.After(wait):
			case <-r.Context().Done():
				_ = in.CloseWithError(r.Context().Err())
				return
			}
			wait = p.each
			_, _ = fmt.Fprintf(in, "data: {\"choices\":[{\"delta\":{\"content\":\"t%d \"}}]}\n\n", i)
		}
		if p.usage != "" {
			_, _ = io.WriteString(in, "data: {\"choices\":[],\"usage\":"+p.usage+"}\n\n")
		}
		if p.done != nil {
			p.done()
		}
		_, _ = io.WriteString(in, "data: [DONE]\n\n")
		_ = in.Close()
	}()
	return answer(200, out), nil
}

func answer(status int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}
}

func refuse(status int, reason string) (*http.Response, error) {
	resp := answer(status, io.NopCloser(strings.NewReader(`{"error":"no"}`)))
	if reason != "" {
		resp.Header.Set("x-llm-d-request-dropped-reason", reason)
	}
	return resp, nil
}

// calls is a workload: single calls at random times, or sessions of some turns.
type calls struct {
	rng    *rand.Rand
	gap    float64
	at     time.Duration
	n, end int
	turns  int
	tenant string
	broken error
}

func opens(c calls) work.Open {
	return func(seed uint64, rate float64) (work.Workload, error) {
		w := c
		w.rng = rand.New(rand.NewPCG(seed, 0))
		if rate > 0 {
			w.gap = 1 / rate
		}
		return &w, nil
	}
}

func (c *calls) Name() string { return "calls" }
func (c *calls) Total() int   { return c.end }
func (c *calls) Err() error   { return c.broken }

func (c *calls) Next() (*work.Request, bool) {
	if c.end > 0 && c.n >= c.end {
		return nil, false
	}
	c.at += time.Duration(c.rng.ExpFloat64() * c.gap * float64(time.Second))
	c.n++
	r := &work.Request{At: c.at, Index: c.n - 1, Session: -1, Tenant: c.tenant, Output: 16, Class: "call",
		Prompt: []work.Segment{{ID: 7, Tokens: 20}, {ID: uint64(c.n) << 20, Tokens: 12}}, Answer: uint64(c.n)<<20 + 1}
	if c.turns > 0 {
		r.Session = c.n
	}
	return r, true
}

func (c *calls) Ended(r *work.Request, at time.Duration, ok bool) []*work.Request {
	if r.Turn+1 >= c.turns {
		return nil
	}
	next := *r
	next.At, next.Index, next.Turn = at+time.Second, r.Index+(r.Turn+1)<<30, r.Turn+1
	if ok {
		next.Prompt = append(next.Prompt[:len(next.Prompt):len(next.Prompt)], work.Segment{ID: r.Answer, Tokens: int32(r.Output)})
	}
	next.Prompt = append(next.Prompt[:len(next.Prompt):len(next.Prompt)], work.Segment{ID: r.Answer + 100, Tokens: 5})
	next.Answer = r.Answer + 10
	return []*work.Request{&next}
}

func target(name string, s server) Target {
	return Target{Name: name, Client: load.Client{URL: "http://" + name, API: request.Chat, HTTP: &http.Client{Transport: s}}}
}

// measure runs a bench in virtual time.
func measure(t *testing.T, o Options, servers ...server) *report.Report {
	t.Helper()
	for i, s := range servers {
		o.Targets = append(o.Targets, target([]string{"gateway", "direct"}[i], s))
	}
	if o.Open == nil {
		o.Open = opens(calls{gap: 1.0 / 15})
	}
	if o.Model == "" {
		o.Model = "m"
	}
	o.Nap = time.Sleep
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func near(t *testing.T, what string, got, want, off float64) {
	t.Helper()
	if got < want-off || got > want+off {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// A server whose times are known: 200 ms to the first token, 20 ms for each of ten more.
func TestTimes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		p         pace
		tpot, itl float64
		tokens    int64
		note      string
	}{
		{"a token in a chunk", pace{usage: `{"prompt_tokens":40,"completion_tokens":11,"prompt_tokens_details":{"cached_tokens":32}}`}, 20, 20, 11, ""},
		{"no usage", pace{}, 20, 20, 11, "had no usage"},
		// 31 tokens in 200 ms after the first.
		{"three tokens in a chunk", pace{usage: `{"prompt_tokens":40,"completion_tokens":31}`}, 200.0 / 30, 20.0 / 3, 31, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.p.first, tt.p.each, tt.p.chunks = 200*time.Millisecond, 20*time.Millisecond, 11
				r := measure(t, Options{Duration: 20 * time.Second, Warmup: 2 * time.Second, Seed: 1}, tt.p.serve)
				x := r.Runs[0]
				if x.Policy != "gateway" || x.Completed != x.Requests || len(x.Errors) != 0 {
					t.Errorf("%s: %d of %d, %v", x.Policy, x.Completed, x.Requests, x.Errors)
				}
				near(t, "requests", float64(x.Requests), 300, 60)
				near(t, "ttft", x.TTFT.P50, 200, 1e-6)
				near(t, "ttft", x.TTFT.Max, 200, 1e-6)
				near(t, "tpot", x.TPOT.P50, tt.tpot, 1e-3)
				near(t, "itl", x.ITL.P50, tt.itl, 0.01)
				near(t, "e2e", x.E2E.P99, 400, 1e-6)
				if x.OutputTokens != tt.tokens*int64(x.Completed) {
					t.Errorf("%d tokens of %d answers", x.OutputTokens, x.Completed)
				}
				if tt.p.usage != "" && strings.Contains(tt.p.usage, "cached") {
					near(t, "hit rate", x.HitRate, 0.8, 1e-6)
				}
				if all := strings.Join(r.Notes, "\n"); (tt.note == "") == strings.Contains(all, "had no usage") || strings.Contains(all, "WARNING") {
					t.Errorf("notes:\n%s", all)
				}
			})
		})
	}
}

func TestErrorsAreCountedByKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		r := measure(t, Options{Requests: 30}, func(*http.Request) (*http.Response, error) {
			switch n.Add(1) % 3 {
			case 0:
				return refuse(429, "rejected-saturated")
			case 1:
				return refuse(500, "")
			}
			return nil, io.ErrUnexpectedEOF
		})
		x := r.Runs[0]
		if x.Completed != 0 || x.Requests != 30 || fmt.Sprint(x.Errors) != "map[429 rejected-saturated:10 500:10 reset:10]" {
			t.Errorf("%d of %d, %v", x.Completed, x.Requests, x.Errors)
		}
		if all := strings.Join(r.Notes, "\n"); !strings.Contains(all, `500, 10 times; it first said "{\"error\":\"no\"}"`) {
			t.Errorf("notes:\n%s", all)
		}
	})
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{Requests: 5, Open: opens(calls{gap: 1}), Model: "m", Nap: time.Sleep, Targets: []Target{target("gateway", func(*http.Request) (*http.Response, error) { return nil, io.EOF })}}
		r, err := Run(t.Context(), o)
		if !errors.Is(err, ErrSilent) || r == nil || r.Runs[0].Errors["reset"] != 5 {
			t.Errorf("got %v, %v", r, err)
		}
	})
}

// A server that stands still for 10 s: an open loop goes on sending, and what was due in the meantime waited.
func TestNobodyWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		sent := 0
		r := measure(t, Options{Duration: 30 * time.Second, Every: 100 * time.Millisecond}, func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			sent++
			mu.Unlock()
			p := pace{chunks: 2}
			if at := time.Since(began); at > 10*time.Second && at < 20*time.Second {
				p.first = 20*time.Second - at
			}
			return p.serve(r)
		})
		x := r.Runs[0]
		if x.Requests != 300 || sent != 300 {
			t.Errorf("%d requests, %d sent", x.Requests, sent)
		}
		// A third of them waited 5 s on average.
		near(t, "mean", x.TTFT.Mean, 5000.0/3, 20)
		near(t, "p99", x.TTFT.P99, 9700, 150)
		if x.Client.Late.Max != 0 {
			t.Errorf("late by %v", x.Client.Late.Max)
		}
	})
}

func TestMostOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := measure(t, Options{Duration: 10 * time.Second, Every: 100 * time.Millisecond, MaxOpen: 5}, pace{first: 2 * time.Second, chunks: 1}.serve)
		x := r.Runs[0]
		// Every 2 s five are sent and fifteen are not.
		if x.Requests != 100 || x.Completed != 25 || x.Errors[NotSent] != 75 {
			t.Errorf("%d of %d, %v", x.Completed, x.Requests, x.Errors)
		}
		if all := strings.Join(r.Notes, "\n"); !strings.Contains(all, "WARNING") || !strings.Contains(all, "--max-open") {
			t.Errorf("notes:\n%s", all)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, most atomic.Int64
		r := measure(t, Options{Duration: 10 * time.Second, Warmup: time.Second, Concurrency: 3}, func(r *http.Request) (*http.Response, error) {
			if n := open.Add(1); n > most.Load() {
				most.Store(n)
			}
			return pace{first: 400 * time.Millisecond, each: 20 * time.Millisecond, chunks: 6, done: func() { open.Add(-1) }}.serve(r)
		})
		x := r.Runs[0]
		// Half a second each: two a second for each of three, of which those that began in 1 s to 11 s count.
		if x.Requests != 60 || x.Completed != 60 || most.Load() != 3 {
			t.Errorf("%d of %d, %d open", x.Completed, x.Requests, most.Load())
		}
		near(t, "ttft", x.TTFT.Mean, 400, 1e-6)
		near(t, "rate", x.ThroughputRPS, 6, 0.3)
	})
}

// Two rows in one session: a server that gets slower all the time is slower for both by as much.
func TestDirect(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
	}{
		{"open", Options{Every: 100 * time.Millisecond}},
		{"closed", Options{Concurrency: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				texts := [2]map[string]bool{{}, {}}
				at := func(row int, more time.Duration) server {
					return func(r *http.Request) (*http.Response, error) {
						body, _ := io.ReadAll(r.Body)
						mu.Lock()
						texts[row][string(body)] = true
						mu.Unlock()
						return pace{first: 100*time.Millisecond + time.Since(began)/1000 + more, each: 10 * time.Millisecond, chunks: 5}.serve(r)
					}
				}
				tt.o.Duration, tt.o.Warmup = 60*time.Second, 2*time.Second
				r := measure(t, tt.o, at(0, 3*time.Millisecond), at(1, 0))
				if len(r.Runs) != 2 || r.Runs[0].Policy != "gateway" || r.Runs[1].Policy != "direct" || r.Baseline != "direct" {
					t.Fatalf("%+v", r.Runs)
				}
				if a, b := r.Runs[0], r.Runs[1]; a.Completed != a.Requests || b.Completed != b.Requests {
					t.Errorf("%d of %d, %d of %d", a.Completed, a.Requests, b.Completed, b.Requests)
				} else {
					near(t, "difference", a.TTFT.Mean-b.TTFT.Mean, 3, 1.2)
					near(t, "requests", float64(a.Requests), float64(b.Requests), 0.02*float64(b.Requests))
				}
				for text := range texts[0] {
					if texts[1][text] {
						t.Fatalf("both got %s", text)
					}
				}
				if all := strings.Join(r.Notes, "\n"); !strings.Contains(all, "gateway − direct: mean TTFT +") || !strings.Contains(all, "gateway − direct: mean TPOT +0.00 ms") {
					t.Errorf("notes:\n%s", all)
				}
			})
		})
	}
}

func TestBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		measure(t, Options{Every: 100 * time.Millisecond, Warmup: time.Second, Duration: 4 * time.Second, Watch: Bar(&out)}, pace{first: 900 * time.Millisecond, chunks: 1}.serve)
		lines := strings.Split(out.String(), "\r")
		if got := lines[len(lines)-1]; got != "\x1b[K" {
			t.Errorf("left %q behind", got)
		}
		for _, want := range []string{
			"[                        ]   0%  warm-up  ",
			"[============            ]  50%  ", "/s  ttft 887ms p99 887ms  9 open  cached 0%", // 900 ms: of a bucket, up to 2 % off
			"[========================] 100%  waiting for answers  ",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in %q", want, lines)
			}
		}
	})
}

// When the run is broken off, what is open is nobody's fault, and the report is of what was done.
func TestBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10050*time.Millisecond)
		defer stop()
		began := time.Now()
		r, err := Run(ctx, Options{
			Targets: []Target{target("gateway", pace{first: time.Second, chunks: 1}.serve)},
			Open:    opens(calls{}), Model: "m", Rate: 1, Every: 100 * time.Millisecond, Duration: time.Hour, Nap: time.Sleep,
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 10050*time.Millisecond {
			t.Errorf("took %v", took)
		}
		x := r.Runs[0]
		if x.Requests != 91 || x.Completed != 91 || len(x.Errors) != 0 { // those sent at 0 s to 9 s
			t.Errorf("%d of %d, %v", x.Completed, x.Requests, x.Errors)
		}
		if all := strings.Join(r.Notes, "\n"); !strings.Contains(all, "10 requests were open") || !strings.Contains(all, "Broken off") {
			t.Errorf("notes:\n%s", all)
		}
	})
}

// asked is what a server sees.
type asked struct {
	Model    string
	Max      int             `json:"max_tokens"`
	Stream   bool            `json:"stream"`
	Options  map[string]bool `json:"stream_options"`
	Ignore   bool            `json:"ignore_eos"`
	Prompt   string
	Messages []struct{ Role, Content string }
}

func TestConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []asked
		measure(t, Options{Open: opens(calls{gap: 1, end: 1, turns: 3, tenant: "blue"}), Extra: `{"ignore_eos": true}`, MaxTokens: 9}, func(r *http.Request) (*http.Response, error) {
			var a asked
			if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
				t.Error(err)
			}
			mu.Lock()
			seen = append(seen, a)
			mu.Unlock()
			if got := r.Header.Get("x-llm-d-inference-fairness-id"); got != "blue" {
				t.Errorf("tenant %q", got)
			}
			return pace{chunks: 2}.serve(r)
		})
		if len(seen) != 3 {
			t.Fatalf("%d turns", len(seen))
		}
		var roles []string
		for _, m := range seen[2].Messages {
			roles = append(roles, m.Role)
		}
		if fmt.Sprint(roles) != "[user assistant user assistant user]" || seen[2].Messages[1].Content != "t0 t1 " {
			t.Errorf("got %+v", seen[2].Messages)
		}
		for i, a := range seen {
			if a.Model != "m" || a.Max != 9 || !a.Stream || !a.Options["include_usage"] || !a.Ignore {
				t.Errorf("turn %d: %+v", i, a)
			}
			for k, m := range a.Messages[:len(a.Messages)-1] { // each turn goes on where the last one was
				if i > 0 && k < len(seen[i-1].Messages) && m != seen[i-1].Messages[k] {
					t.Errorf("turn %d has other words before: %+v", i, m)
				}
			}
		}
		if n := len(strings.Fields(seen[0].Messages[0].Content)); n != 32 {
			t.Errorf("%d words of 32 tokens", n)
		}
	})
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, o := range []Options{
		{},
		{Targets: make([]Target, 3)},
		{Targets: make([]Target, 1), Extra: "ignore_eos"},
		{Targets: make([]Target, 1), Open: func(uint64, float64) (work.Workload, error) { return nil, errors.New("no") }},
		{Targets: make([]Target, 1), Open: opens(calls{broken: errors.New("f:1: no")})},
	} {
		if r, err := Run(t.Context(), o); err == nil || r != nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// The whole loop against a simulated engine: prompts grow, and the engine's cache knows them.
func TestAgainstAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := vllm.DefaultOptions()
		o.Models = []string{"m"}
		s, err := vllm.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, halt := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx) })
		open, err := work.Parse("chat?apps=4&zipf=0&system=750&turns=2-8&first=30-180&question=30-180&output=48&think=8s&for=168h")
		if err != nil {
			t.Fatal(err)
		}
		got := measure(t, Options{Open: open, Rate: 5, Duration: time.Minute}, func(r *http.Request) (*http.Response, error) {
			out, in := io.Pipe()
			w := &pipeWriter{in: in, head: make(chan int, 1), h: http.Header{}}
			wg.Go(func() {
				s.Handler().ServeHTTP(w, r)
				_ = in.Close()
			})
			return answer(<-w.head, out), nil
		})
		halt()
		wg.Wait()
		x := got.Runs[0]
		if x.Completed != x.Requests || x.Requests < 200 {
			t.Errorf("%d of %d, %v", x.Completed, x.Requests, x.Errors)
		}
		if x.HitRate < 0.75 {
			t.Errorf("hit rate %v, want 0.75 or more", x.HitRate)
		}
		if all := strings.Join(got.Notes, "\n"); strings.Contains(all, "tokens-per-word") {
			t.Errorf("prompts are of another length than they should be:\n%s", all)
		}
	})
}

// pipeWriter is a response writer into a pipe.
type pipeWriter struct {
	in   *io.PipeWriter
	head chan int
	h    http.Header
}

func (w *pipeWriter) Header() http.Header         { return w.h }
func (w *pipeWriter) WriteHeader(status int)      { w.head <- status }
func (w *pipeWriter) Write(b []byte) (int, error) { return w.in.Write(b) }
func (w *pipeWriter) Flush()                      {}
