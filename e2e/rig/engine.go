// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Events is how many content events a streamed answer of an [Engine] has.
const Events = 8

// Engine is a model server that does what a test says, and remembers what it was asked. Its
// answers carry x-engine with its address.
type Engine struct {
	Addr, Model string

	mu      sync.Mutex
	server  *http.Server
	seen    []*Seen
	scrapes int
	hold    chan struct{}
}

// Seen is one inference request as it arrived.
type Seen struct {
	Path, SHA256 string
	Size         int
	Header       http.Header

	mu         sync.Mutex
	left, done bool
}

// Left reports whether the caller went away before the answer's end.
func (s *Seen) Left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// NewEngine starts an engine that serves model until the test ends.
func NewEngine(t testing.TB, model string) *Engine {
	t.Helper()
	e := &Engine{Addr: Addr(t), Model: model}
	e.Start(t)
	t.Cleanup(e.Stop)
	return e
}

// Engines starts n engines that serve the model "m".
func Engines(t testing.TB, n int) []*Engine {
	t.Helper()
	var all []*Engine
	for range n {
		all = append(all, NewEngine(t, "m"))
	}
	return all
}

// Start listens, again when the engine was stopped.
func (e *Engine) Start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", e.Addr)
	if err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.server = &http.Server{Handler: e}
	server := e.server
	e.mu.Unlock()
	go server.Serve(l)
}

// Stop dies as a killed process does: nobody listens, open connections break.
func (e *Engine) Stop() {
	e.mu.Lock()
	server := e.server
	e.mu.Unlock()
	server.Close()
}

// Hold makes every streamed answer wait after its first event, until release is called.
func (e *Engine) Hold() (release func()) {
	hold := make(chan struct{})
	e.mu.Lock()
	e.hold = hold
	e.mu.Unlock()
	return sync.OnceFunc(func() {
		e.mu.Lock()
		e.hold = nil
		e.mu.Unlock()
		close(hold)
	})
}

// Seen returns the inference requests so far.
func (e *Engine) Seen() []*Seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Seen(nil), e.seen...)
}

// Forget empties what Seen returns.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = nil
}

// Scrapes returns how often /metrics was read.
func (e *Engine) Scrapes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.scrapes
}

// ServeHTTP answers like vLLM.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Engine", e.Addr)
	switch r.URL.Path {
	case "/health":
	case "/v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","created":1,"owned_by":"vllm"}]}`, e.Model)
	case "/metrics":
		e.mu.Lock()
		e.scrapes++
		e.mu.Unlock()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for _, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
			fmt.Fprintf(w, "# TYPE vllm:%[1]s gauge\nvllm:%[1]s{engine=\"0\",model_name=%[2]q} 0\n", name, e.Model)
		}
		fmt.Fprint(w, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"8192\"} 1\n")
	default:
		e.infer(w, r)
	}
}

func (e *Engine) infer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	sum := sha256.Sum256(body)
	s := &Seen{Path: r.URL.Path, Size: len(body), SHA256: hex.EncodeToString(sum[:]), Header: r.Header.Clone()}
	e.mu.Lock()
	e.seen = append(e.seen, s)
	hold := e.hold
	e.mu.Unlock()

	var ask struct {
		Stream        bool `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"the body is not JSON","type":"invalid_request_error","code":400}}`)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/v1/messages") {
		e.message(w, ask.Stream)
		return
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, len(body)/4+1, Events, len(body)/4+1+Events)
	if !ask.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`,
			e.Model, strings.Repeat("word ", Events), usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	event := func(data string) {
		fmt.Fprintf(w, "data: %s\n\n", data)
		w.(http.Flusher).Flush()
	}
	chunk := `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":%q,"choices":[%s]%s}`
	for i := range Events {
		if i == 1 && hold != nil {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		finish := "null"
		if i == Events-1 {
			finish = `"stop"`
		}
		event(fmt.Sprintf(chunk, e.Model, fmt.Sprintf(`{"index":0,"delta":{"content":"word%d "},"finish_reason":%s}`, i, finish), ""))
	}
	if ask.StreamOptions.IncludeUsage {
		event(fmt.Sprintf(chunk, e.Model, "", `,"usage":`+usage))
	}
	event("[DONE]")
	s.mu.Lock()
	s.left = r.Context().Err() != nil
	s.done = true
	s.mu.Unlock()
}

// message answers as Anthropic's Messages API.
func (e *Engine) message(w http.ResponseWriter, stream bool) {
	head := fmt.Sprintf(`"id":"msg_1","type":"message","role":"assistant","model":%q`, e.Model)
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{%s,"content":[{"type":"text","text":"word word"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":%d}}`, head, Events)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(kind, rest string) {
		fmt.Fprintf(w, "event: %[1]s\ndata: {\"type\":%[1]q%[2]s}\n\n", kind, rest)
		w.(http.Flusher).Flush()
	}
	event("message_start", fmt.Sprintf(`,"message":{%s,"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}`, head))
	event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`)
	for range Events {
		event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"word "}`)
	}
	event("content_block_stop", `,"index":0`)
	event("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}`, Events))
	event("message_stop", "")
}

// Trap listens at an address that nobody may dial, and fails the test at its end when somebody did.
func Trap(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dialled sync.WaitGroup
	hits := 0
	dialled.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			hits++
			c.Close()
		}
	})
	t.Cleanup(func() {
		// One connection of our own, so that all made before it have been accepted.
		if c, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); err == nil {
			io.Copy(io.Discard, c)
			c.Close()
		}
		l.Close()
		dialled.Wait()
		if hits != 1 {
			t.Errorf("%d connections to an address that the client named", hits-1)
		}
	})
	return l.Addr().String()
}
