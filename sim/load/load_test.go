// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/vllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway answers requests without a network.
type gateway func(*http.Request) (*http.Response, error)

func (g gateway) RoundTrip(r *http.Request) (*http.Response, error) { return g(r) }

// streamed is an answer that begins after ttft; 100 prompt tokens, some of them cached.
func streamed(r *http.Request, endpoint string, ttft time.Duration, cached int) (*http.Response, error) {
	out, in := io.Pipe()
	stop := context.AfterFunc(r.Context(), func() { _ = in.CloseWithError(r.Context().Err()) })
	go func() {
		defer stop()
		time.Sleep(ttft)
		_, _ = fmt.Fprintf(in, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
		_, _ = fmt.Fprintf(in, "data: {\"choices\":[{\"delta\":{\"content\":\"well \"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"yes\"}}]}\n\n")
		_, _ = fmt.Fprintf(in, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n", cached)
		_ = in.Close()
	}()
	return reply(http.StatusOK, endpoint, out), nil
}

func reply(status int, endpoint string, body io.ReadCloser) *http.Response {
	h := http.Header{}
	if endpoint != "" {
		h.Set("x-penstock-endpoint", endpoint)
	}
	h.Set("content-type", "text/event-stream")
	return &http.Response{StatusCode: status, Header: h, Body: body}
}

// run runs a load of 10/s for some seconds and returns what it wrote.
func run(t *testing.T, seconds int, o Options, g gateway) string {
	t.Helper()
	var out bytes.Buffer
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer stop()
	o.URL, o.Model, o.Out, o.Client = "http://gateway/", "m", &out, &http.Client{Transport: g}
	if o.Rate == 0 {
		o.Rate = 10
	}
	if err := Run(ctx, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		got := run(t, 11, Options{Seed: 3}, func(r *http.Request) (*http.Response, error) {
			if n.Add(1)%4 == 0 {
				return streamed(r, "127.0.0.1:9002", 400*time.Millisecond, 20)
			}
			return streamed(r, "127.0.0.1:9001", 100*time.Millisecond, 80)
		})
		lines := strings.Split(strings.TrimSpace(got), "\n")
		if len(lines) != 4 { // the legend, 5 s, 10 s, the end
			t.Fatalf("got %d lines:\n%s", len(lines), got)
		}
		for _, want := range []string{"ttft 98ms p99 405ms", "cached 65%", ":9001 76% (80%)", ":9002 24% (20%)"} {
			if !strings.Contains(lines[3], want) {
				t.Errorf("no %q in %q", want, lines[3])
			}
		}
		if !strings.Contains(lines[3], " answers in 11s: ") || strings.Contains(lines[3], "failed") {
			t.Errorf("got %q", lines[3])
		}
	})
}

func TestArrivals(t *testing.T) {
	arrivals := func(seed uint64) (at []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var mu sync.Mutex
			run(t, 100, Options{Seed: seed, Rate: 20}, func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(began))
				return reply(http.StatusServiceUnavailable, "", http.NoBody), nil
			})
		})
		return at
	}
	a, b, c := arrivals(1), arrivals(1), arrivals(2)
	if n := len(a); n < 1_840 || n > 2_160 { // 3.6 standard deviations of 45
		t.Errorf("%d arrivals in 100 s at 20/s", n)
	}
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("the same seed arrived at other times")
	}
	if fmt.Sprint(a) == fmt.Sprint(c) {
		t.Error("another seed arrived at the same times")
	}
	// Exponential gaps: e^-1 of them are longer than the mean.
	long := 0
	for i := 1; i < len(a); i++ {
		if a[i]-a[i-1] > 50*time.Millisecond {
			long++
		}
	}
	if share := float64(long) / float64(len(a)); share < 0.33 || share > 0.41 {
		t.Errorf("%.3f of the gaps are longer than the mean, want 0.368", share)
	}
}

func TestFaults(t *testing.T) {
	body := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	for _, tt := range []struct {
		name string
		g    gateway
		want string
	}{
		{"refused", func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}, "connect"},
		{"reset", func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, "reset"},
		{"odd", func(*http.Request) (*http.Response, error) { return nil, errors.New("odd") }, "no answer"},
		{"dropped", func(*http.Request) (*http.Response, error) {
			resp := reply(429, "", body("{}"))
			resp.Header.Set("x-llm-d-request-dropped-reason", "saturated")
			return resp, nil
		}, "429 saturated"},
		{"broken", func(*http.Request) (*http.Response, error) {
			return reply(200, "a", body("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")), nil
		}, "broken stream"},
		{"not JSON", func(*http.Request) (*http.Response, error) { return reply(200, "a", body("data: x\n\n")), nil }, "bad event"},
		{"error event", func(*http.Request) (*http.Response, error) {
			return reply(200, "a", body("data: {\"error\":{\"code\":500}}\n\n")), nil
		}, "error event"},
		{"an endless line", func(*http.Request) (*http.Response, error) {
			return reply(200, "a", body("data: "+strings.Repeat("x", maxEvent+1))), nil
		}, "bad event"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &runner{opts: Options{Model: "m"}}
			c := Client{URL: "http://g", API: request.Chat, HTTP: &http.Client{Transport: tt.g}}
			var got Answer
			if c.Send(t.Context(), r.ask(nil), &got); got.Fault != tt.want {
				t.Errorf("got %q (%s), want %q", got.Fault, got.Said, tt.want)
			}
		})
	}
}

func TestFaultsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		got := run(t, 10, Options{}, func(*http.Request) (*http.Response, error) {
			sent.Add(1)
			return reply(http.StatusServiceUnavailable, "", http.NoBody), nil
		})
		n := sent.Load()
		if want := fmt.Sprintf("%d failed", n); !strings.Contains(got, want) || !strings.Contains(got, fmt.Sprintf("\n%d × 503\n", n)) {
			t.Errorf("no %q in\n%s", want, got)
		}
	})
}

// When the run ends, what is open is broken off at once and is nobody's fault.
func TestEndIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := run(t, 5, Options{}, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		if strings.Contains(got, "failed") || !strings.Contains(got, "0 answers in 5s: 0.0/s  ttft - p99 -  0 open") {
			t.Errorf("got\n%s", got)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %v, want 5s", took)
		}
	})
}

func TestInFlightIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		got := run(t, 20, Options{MaxInFlight: 3}, func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			defer func() {
				mu.Lock()
				open--
				mu.Unlock()
			}()
			time.Sleep(time.Second)
			return reply(http.StatusServiceUnavailable, "", http.NoBody), nil
		})
		if most != 3 || !strings.Contains(got, "skipped") {
			t.Errorf("%d open at once, want 3; wrote\n%s", most, got)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {URL: "x", Model: "m"}, {URL: "x", Model: "m", Rate: -1}, {Model: "m", Rate: 1}} {
		if err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// The requests are what an OpenAI server expects, and conversations go on with the answers they got.
func TestConversationsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		longest, systems := 0, map[string]bool{}
		run(t, 60, Options{Rate: 4}, func(r *http.Request) (*http.Response, error) {
			var body struct {
				Model    string
				Stream   bool
				Messages []message
			}
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "m" || !body.Stream || r.URL.Path != "/v1/chat/completions" {
				t.Errorf("%s: %v %+v", r.URL, err, body)
			}
			mu.Lock()
			defer mu.Unlock()
			systems[body.Messages[0].Content] = true
			longest = max(longest, len(body.Messages))
			for i, m := range body.Messages[1:] {
				if want := []string{"user", "assistant"}[i%2]; m.Role != want || (want == "assistant" && m.Content != "well yes") {
					t.Errorf("message %d is %s %q", i+1, m.Role, m.Content)
				}
			}
			return streamed(r, "", 10*time.Millisecond, 0)
		})
		if len(systems) != apps || longest < 7 {
			t.Errorf("%d system prompts, %d messages at most", len(systems), longest)
		}
	})
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
		got := run(t, 60, Options{Rate: 5}, func(r *http.Request) (*http.Response, error) {
			out, in := io.Pipe()
			w := &pipeWriter{in: in, head: make(chan int, 1), h: http.Header{}}
			r.Body = io.NopCloser(r.Body)
			wg.Go(func() {
				s.Handler().ServeHTTP(w, r)
				_ = in.Close()
			})
			return reply(<-w.head, "engine:1", out), nil
		})
		halt()
		wg.Wait()
		_, last, _ := strings.Cut(got, " answers in 1m0s: ")
		_, rest, _ := strings.Cut(last, "cached ")
		var cached int
		if _, err := fmt.Sscanf(rest, "%d%%", &cached); err != nil || cached < 75 {
			t.Errorf("cached %d%%, want 75%% or more: %s", cached, got)
		}
		if strings.Contains(got, "failed") {
			t.Errorf("faults:\n%s", got)
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
