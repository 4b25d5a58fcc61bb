// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestAPI plays requests and answers in testdata/api. A command is `METHOD PATH` with the body as its
// input; `engine [lora]` starts afresh.
func TestAPI(t *testing.T) {
	datadriven.Walk(t, "testdata/api", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			var r *rig
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "engine" {
					o := small()
					o.EnableLoRA = d.HasArg("lora")
					r = start(t, o)
					return ""
				}
				status, body := r.ask(d.Cmd, d.CmdArgs[0].Key, d.Input)
				body = strings.ReplaceAll(body, "\n\n", "\n")
				return strconv.Itoa(status) + "\n" + strings.TrimRight(body, "\n") + "\n"
			})
		})
	})
}

// sixteen is a prompt of 16 tokens.
const sixteen = `{"prompt":"0123456789012345678901234567890123456789012345678901234567890123",`

func TestStreamKeepsTheModelsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		began := time.Now()
		resp, err := r.post(t.Context(), "/v1/completions", sixteen+`"max_tokens":3,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if got := time.Since(began); got != 0 {
			t.Errorf("headers after %v, want at once", got)
		}
		var at []time.Duration
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data: {") {
				at = append(at, time.Since(began))
			}
		}
		// 10 ms + 16 · 1 ms for the prompt, then 10 ms each.
		want := []time.Duration{26 * time.Millisecond, 36 * time.Millisecond, 46 * time.Millisecond}
		if len(at) != len(want) {
			t.Fatalf("events at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("event %d at %v, want %v", i, at[i], want[i])
			}
		}
	})
}

func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.Speed = 2
		r := start(t, o)
		began := time.Now()
		r.ask("POST", "/v1/completions", sixteen+`"max_tokens":3}`)
		if got, want := time.Since(began), 23*time.Millisecond; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
	})
}

// A client that leaves is out of the engine when the step in progress ends.
func TestClientLeaves(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		leaveAt    time.Duration
		before     [2]int // running, waiting when it leaves
		goneAt     time.Duration
	}{
		{"while streaming", `"max_tokens":100,"stream":true}`, 40 * time.Millisecond, [2]int{1, 0}, 46 * time.Millisecond},
		{"while waiting for a whole answer", `"max_tokens":100}`, 40 * time.Millisecond, [2]int{1, 0}, 46 * time.Millisecond},
		{"in the prefill", `"max_tokens":100,"stream":true}`, 5 * time.Millisecond, [2]int{1, 0}, 26 * time.Millisecond},
		{"with two choices", `"max_tokens":100,"n":2}`, 50 * time.Millisecond, [2]int{2, 0}, 52 * time.Millisecond},
		{"in the queue", `"max_tokens":100,"n":3}`, 51 * time.Millisecond, [2]int{2, 1}, 52 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, small())
				ctx, leave := context.WithTimeout(t.Context(), tt.leaveAt)
				defer leave()
				began := time.Now()
				go func() {
					time.Sleep(tt.leaveAt - 1)
					if s := r.stats(); [2]int{s.Running, s.Waiting} != tt.before {
						t.Errorf("before: %d running, %d waiting; want %v", s.Running, s.Waiting, tt.before)
					}
				}()
				if resp, err := r.post(ctx, "/v1/completions", sixteen+tt.body); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				for r.engineBusy() && time.Since(began) < time.Second {
					time.Sleep(time.Millisecond)
				}
				if got := time.Since(began); got > tt.goneAt+time.Millisecond {
					t.Errorf("gone after %v, want %v", got, tt.goneAt)
				}
				if s := r.stats(); s.KVUsage != 0 || s.Finished != 0 || s.Aborted == 0 {
					t.Errorf("left behind: %+v", s)
				}
			})
		})
	}
}

func (r *rig) engineBusy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Busy()
}

// When the engine stops, a stream must not look complete, and others are refused.
func TestEngineStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		resp, err := r.post(t.Context(), "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		time.Sleep(100 * time.Millisecond)
		r.halt()
		b, err := io.ReadAll(resp.Body)
		if err == nil || strings.Contains(string(b), "[DONE]") || !strings.Contains(string(b), "content") {
			t.Errorf("stream ended with %v after %q", err, b)
		}
		if status, body := r.ask("POST", "/v1/completions", `{"prompt":"x"}`); status != http.StatusServiceUnavailable {
			t.Errorf("a new request got %d %s, want 503", status, body)
		}
		if status, _ := r.ask("GET", "/health", ""); status != http.StatusServiceUnavailable {
			t.Errorf("health is %d, want 503", status)
		}
	})
}

type answer2 struct {
	Choices []struct {
		Message struct{ Content string }
	}
	Usage usage
}

// The second turn of a conversation finds the first, its answer included.
func TestSecondTurnIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		ask := func(messages string) (a answer2) {
			_, body := r.ask("POST", "/v1/chat/completions", `{"max_tokens":20,"messages":[`+messages+`]}`)
			if err := json.Unmarshal([]byte(body), &a); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			return a
		}
		first := `{"role":"user","content":"how does the water reach the turbine?"}`
		a := ask(first)
		// <|im_start|> user\n …10 tokens… <|im_end|> <|im_start|> assistant\n: 1 + 2 + 10 + 1 + 1 + 3.
		if a.Usage.Prompt != 18 || a.Usage.Details.Cached != 0 || a.Usage.Completion != 20 {
			t.Errorf("first turn: %+v", a.Usage)
		}
		said, _ := json.Marshal(a.Choices[0].Message.Content)
		b := ask(first + `,{"role":"assistant","content":` + string(said) + `},{"role":"user","content":"and then?"}`)
		// 18 + 20 tokens, the last of which was never computed: 9 blocks of 4.
		if b.Usage.Details.Cached != 36 {
			t.Errorf("second turn: %+v, want 36 cached", b.Usage)
		}
		if s := r.stats(); s.PrefixHits != 36 || s.CachedTokens != 36 {
			t.Errorf("engine: %+v", s)
		}
	})
}

func TestSaltsAndAdaptersAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.EnableLoRA, o.LoRAModules = true, []Adapter{{"tuned", "/adapters/tuned"}}
		r := start(t, o)
		for _, tt := range []struct {
			extra string
			want  int64
		}{
			{``, 0}, {``, 12},
			{`"cache_salt":"s",`, 0}, {`"cache_salt":"s",`, 12},
			{`"model":"tuned",`, 0}, {`"model":"tuned",`, 12},
		} {
			_, body := r.ask("POST", "/v1/completions", sixteen+tt.extra+`"max_tokens":1}`)
			var a answer2
			if err := json.Unmarshal([]byte(body), &a); err != nil {
				t.Fatal(err)
			}
			if a.Usage.Details.Cached != tt.want {
				t.Errorf("%s: cached %d, want %d", tt.extra, a.Usage.Details.Cached, tt.want)
			}
		}
	})
}

func TestPromptBeyondTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small()) // 256 tokens
		for _, tt := range []struct {
			tokens, max, status int
		}{{255, 1, 200}, {255, 2, 400}, {256, 1, 400}, {1000, 1, 400}} {
			body := `{"prompt":"` + strings.Repeat("pipe", tt.tokens) + `","max_tokens":` + strconv.Itoa(tt.max) + `}`
			status, got := r.ask("POST", "/v1/completions", body)
			if status != tt.status || (status == 400 && !strings.Contains(got, "maximum context length is 256 tokens")) {
				t.Errorf("%d + %d tokens: %d %s, want %d", tt.tokens, tt.max, status, got, tt.status)
			}
		}
	})
}

func TestBodiesAndMedia(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		resp, err := r.client.Post("http://sim/v1/completions", "text/plain", strings.NewReader(`{"prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("text/plain got %d, want 400", resp.StatusCode)
		}
		resp, err = r.client.Post("http://sim/v1/completions", "application/json; charset=utf-8", strings.NewReader(`{"prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("JSON with a charset got %d, want 200", resp.StatusCode)
		}
	})
}

func BenchmarkChatStream(b *testing.B) {
	o := DefaultOptions()
	o.Speed = 1e4
	s, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	ctx, halt := context.WithCancel(b.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = s.Run(ctx)
	}()
	l := newPipes()
	srv := &http.Server{Handler: s.Handler()}
	go func() { _ = srv.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
	body := `{"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("water ", 500) + `"}]}`
	b.ReportAllocs()
	for b.Loop() {
		resp, err := client.Post("http://sim/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	halt()
	<-ran
	client.CloseIdleConnections()
	_ = srv.Close()
}
