// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Both doors run the same code; here the same bodies go through both. The one behind ext_proc stands in for
// Envoy as far as the protocol is concerned; e2e has the real one.

// engine is a scripted model server that keeps what it was sent.
type engine struct {
	*httptest.Server
	mu   sync.Mutex
	seen []seen
}

type seen struct {
	method, path string
	header       http.Header
	sum          [32]byte
	body         []byte
}

func newEngine(t *testing.T, model string) *engine {
	e := &engine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprintf(w, "vllm:num_requests_running{model_name=%q} 0\nvllm:num_requests_waiting{model_name=%q} 0\nvllm:kv_cache_usage_perc{model_name=%q} 0\n", model, model, model)
			return
		case "/v1/models":
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
			return
		}
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.seen = append(e.seen, seen{r.Method, r.URL.Path, r.Header, sha256.Sum256(body), body})
		e.mu.Unlock()
		var ask struct {
			Model  json.RawMessage `json:"model"` // as it stands
			Stream bool            `json:"stream"`
			User   string          `json:"user"`
		}
		_ = json.Unmarshal(body, &ask) // what is not JSON gets a plain answer
		switch {
		case ask.User == "refuse":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"error":{"message":"engine says no"}}`)
		case ask.Stream:
			w.Header().Set("content-type", "text/event-stream")
			for i := range 5 {
				fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"t%d\"}}],\"model\":%s}\n\n", i, cmp.Or(string(ask.Model), "null"))
				w.(http.Flusher).Flush()
			}
			_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n")
		default:
			w.Header().Set("content-type", "application/json")
			fmt.Fprintf(w, `{"choices":[{"message":{"content":"\"model\":\"m\"","model":"m"}}],"model":%s,"usage":{"prompt_tokens":7,"completion_tokens":1}}`, cmp.Or(string(ask.Model), "null"))
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// take returns what was sent since the last call.
func (e *engine) take() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.seen
	e.seen = nil
	return s
}

// doors starts a gateway for the engines, from manifests in dir, and gives the URLs of both doors, by name.
func doors(t *testing.T, dir string, engines ...*engine) (urls map[string]string, metrics string, log *lockedBuffer) {
	t.Helper()
	list := "endpoints:\n"
	for i, e := range engines {
		host, port, _ := net.SplitHostPort(e.Listener.Addr().String())
		list += fmt.Sprintf("- {name: e%d, address: %s, port: %q, labels: {app: p}}\n", i, host, port)
	}
	if len(engines) == 0 {
		list = "endpoints: []\n"
	}
	pool := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\nspec:\n  selector: {matchLabels: {app: p}}\n  targetPorts: [{number: 8000}]\n  endpointPickerRef: {name: p-epp, port: {number: 9002}}\n"
	for name, text := range map[string]string{"endpoints.yaml": list, "pool.yaml": pool} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opened := make(chan *listeners, 1)
	s := defaults()
	s.http, s.extproc, s.metrics, s.verbosity = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", 1
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log = &lockedBuffer{}
	go func() {
		ended <- serveFrom(ctx, []string{dir}, s, log, func(l *listeners) { opened <- l })
	}()
	var l *listeners
	select {
	case l = <-opened:
	case err := <-ended:
		t.Fatal(err, log.String())
	}
	envoy := newEnvoy(t, l.extproc.Addr().String())
	t.Cleanup(func() {
		envoy.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v: %s", err, log.String())
		}
	})
	metrics = "http://" + l.metrics.Addr().String()
	want := fmt.Sprintf(`llm_d_epp_ready_endpoints{name="p"} %d`, len(engines))
	until(t, "engines to be scraped", func() bool {
		_, page := get(t, metrics+"/metrics")
		return len(engines) == 0 || strings.Contains(page, want)
	})
	return map[string]string{"proxy": "http://" + l.http.Addr().String(), "extproc": envoy.URL}, metrics, log
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// until waits for a condition of real processes.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// newEnvoy plays Envoy's ext_proc filter and its ORIGINAL_DST cluster, in FULL_DUPLEX_STREAMED mode.
func newEnvoy(t *testing.T, picker string) *httptest.Server {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+picker, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := extprocv3.NewExternalProcessorClient(conn)
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := filter(client, w, r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
}

func header(k, v string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: strings.ToLower(k), RawValue: []byte(v)}
}

// filter takes one request through the picker to its destination and back.
func filter(client extprocv3.ExternalProcessorClient, w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	head := []*corev3.HeaderValue{header(":method", r.Method), header(":path", r.URL.RequestURI())}
	for k, vs := range r.Header {
		for _, v := range vs {
			head = append(head, header(k, v))
		}
	}
	send := []*extprocv3.ProcessingRequest{{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: head}, EndOfStream: len(body) == 0}}}}
	for p := range slices.Chunk(body, 64<<10) {
		send = append(send, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: p}}})
	}
	if len(body) > 0 {
		send[len(send)-1].GetRequestBody().EndOfStream = true
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, m := range send {
			if stream.Send(m) != nil {
				return // Recv tells why
			}
		}
	}()
	defer func() { <-sent }()
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	if im := m.GetImmediateResponse(); im != nil {
		for _, h := range im.GetHeaders().GetSetHeaders() {
			w.Header().Set(h.Header.Key, string(h.Header.RawValue))
		}
		w.WriteHeader(int(im.GetStatus().GetCode()))
		_, err = w.Write(im.GetBody())
		return err
	}
	out := r.Clone(ctx)
	out.RequestURI, out.URL.Scheme = "", "http"
	change := m.GetRequestHeaders().GetResponse().GetHeaderMutation()
	for _, k := range change.GetRemoveHeaders() {
		out.Header.Del(k)
	}
	for _, h := range change.GetSetHeaders() {
		out.Header.Set(h.Header.Key, string(h.Header.RawValue))
	}
	var echoed []byte
	for end := len(body) == 0; !end; {
		if m, err = stream.Recv(); err != nil {
			return err
		}
		s := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(s.GetBody()) > 62000 {
			return fmt.Errorf("a piece of %d bytes", len(s.GetBody()))
		}
		echoed, end = append(echoed, s.GetBody()...), s.GetEndOfStream()
	}
	out.URL.Host = out.Header.Get("x-gateway-destination-endpoint")
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(echoed)), int64(len(echoed))
	answer, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return answerThrough(stream, w, answer)
}

// answerThrough shows the answer to the picker and passes on what it echoes.
func answerThrough(stream extprocv3.ExternalProcessor_ProcessClient, w http.ResponseWriter, answer *http.Response) error {
	head := []*corev3.HeaderValue{header(":status", fmt.Sprint(answer.StatusCode)), header("content-type", answer.Header.Get("content-type"))}
	if n := answer.Header.Get("content-length"); n != "" {
		head = append(head, header("content-length", n))
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: head}}}}); err != nil {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	for k, vs := range answer.Header {
		w.Header()[k] = vs
	}
	change := m.GetResponseHeaders().GetResponse().GetHeaderMutation()
	for _, k := range change.GetRemoveHeaders() {
		w.Header().Del(k)
	}
	for _, h := range change.GetSetHeaders() {
		w.Header().Set(h.Header.Key, string(h.Header.RawValue))
	}
	w.WriteHeader(answer.StatusCode)
	buf := make([]byte, 1000)
	for end := false; !end; {
		n, err := answer.Body.Read(buf)
		if err != nil && err != io.EOF {
			return err
		}
		end = err == io.EOF
		if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: buf[:n], EndOfStream: end}}}); err != nil {
			return err
		}
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if _, err := w.Write(m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()); err != nil {
			return err
		}
		w.(http.Flusher).Flush()
	}
	return nil
}

// post sends a body to a door.
func post(t *testing.T, url, path string, body []byte, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("content-type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func chatBody(text, more string) []byte {
	q, _ := json.Marshal(text)
	return fmt.Appendf(nil, `{"model" : "m","messages":[{"role":"user","content":%s}],"seed":12345678901234567890%s}`, q, more)
}

func TestBothDoors(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { // runs last
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t, before)
	})
	engines := []*engine{newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m")}
	urls, metrics, _ := doors(t, t.TempDir(), engines...)
	served := func() (at int, s seen) {
		t.Helper()
		at = -1
		for i, e := range engines {
			for _, v := range e.take() {
				if at >= 0 {
					t.Errorf("served twice: by %d and %d", at, i)
				}
				at, s = i, v
			}
		}
		return at, s
	}
	for door, url := range urls {
		t.Run(door+"/byte for byte", func(t *testing.T) {
			for _, size := range []int{1, 32768, 131073, 1 << 20, 8 << 20} {
				body := chatBody(strings.Repeat("héllo \n", size/8), "")
				if r, text := post(t, url, "/v1/chat/completions", body); r.StatusCode != 200 {
					t.Fatalf("%d bytes: %d %s", len(body), r.StatusCode, text)
				}
				if _, s := served(); s.sum != sha256.Sum256(body) {
					t.Errorf("%d bytes changed on the way", len(body))
				}
			}
		})
		t.Run(door+"/stream", func(t *testing.T) {
			r, text := post(t, url, "/v1/chat/completions", chatBody("x", `,"stream":true`))
			if strings.Count(text, "data: ") != 7 || !strings.HasSuffix(text, "data: [DONE]\n\n") || r.Header.Get("content-type") != "text/event-stream" {
				t.Errorf("got %q", text)
			}
			served()
		})
		t.Run(door+"/a conversation stays", func(t *testing.T) {
			text := door + strings.Repeat(" turn", 500)
			home := -1
			for turn := range 4 {
				post(t, url, "/v1/chat/completions", chatBody(text, ""))
				at, _ := served()
				if turn > 0 && at != home {
					t.Errorf("turn %d moved from %d to %d", turn, home, at)
				}
				home, text = at, text+" and more of it"
			}
		})
		t.Run(door+"/an engine's error passes", func(t *testing.T) {
			r, text := post(t, url, "/v1/chat/completions", chatBody("x", `,"user":"refuse"`))
			if r.StatusCode != 422 || !strings.Contains(text, "engine says no") {
				t.Errorf("got %d %s", r.StatusCode, text)
			}
			served()
		})
		t.Run(door+"/what has no type is routed", func(t *testing.T) {
			for _, body := range []string{"not json", "[]", "\xff\xfe", `{"model":"m","messages":{"a":1}}`} {
				if r, _ := post(t, url, "/some/path", []byte(body)); r.StatusCode != 200 {
					t.Errorf("%q: got %d", body, r.StatusCode)
				}
				if _, s := served(); string(s.body) != body {
					t.Errorf("%q arrived as %q", body, s.body)
				}
			}
			if status, _ := get(t, url+"/some/other"); status != 200 {
				t.Errorf("GET: got %d", status)
			}
			served()
		})
		t.Run(door+"/encodings", func(t *testing.T) {
			plain := chatBody("zip", "")
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(plain)
			_ = z.Close()
			for _, c := range []struct {
				encoding string
				body     []byte
				status   int
			}{{"gzip", b.Bytes(), 200}, {"gzip", b.Bytes()[:b.Len()-9], 400}, {"x-unknown", plain, 415}, {"gzip, gzip", b.Bytes(), 415}} {
				r, text := post(t, url, "/v1/chat/completions", c.body, "content-encoding", c.encoding)
				if r.StatusCode != c.status {
					t.Errorf("%s: got %d %s, want %d", c.encoding, r.StatusCode, text, c.status)
				}
				if _, s := served(); c.status == 200 && (s.sum != sha256.Sum256(plain) || s.header.Get("content-encoding") != "") {
					t.Errorf("the engine got %q %q", s.header.Get("content-encoding"), s.body)
				}
			}
		})
		t.Run(door+"/control headers", func(t *testing.T) {
			trap, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			dialled := make(chan struct{})
			go func() {
				defer close(dialled)
				if c, err := trap.Accept(); err == nil {
					c.Close()
					t.Error("an address that the caller named was dialled")
				}
			}()
			for _, h := range []string{"x-gateway-destination-endpoint", "x-prefiller-host-port"} {
				post(t, url, "/v1/chat/completions", chatBody("x", ""), h, trap.Addr().String())
				if _, s := served(); s.header.Get(h) == trap.Addr().String() {
					t.Errorf("%s reached the engine", h)
				}
			}
			trap.Close()
			<-dialled
		})
	}
	until(t, "counters to return to zero", func() bool {
		_, page := get(t, metrics+"/metrics")
		return !strings.Contains(page, "penstock_inflight_drift 1") && strings.Contains(page, "penstock_inflight_drift 0") && strings.Contains(page, "penstock_buffered_bytes 0")
	})
}

func TestBothDoorsWithoutEndpoints(t *testing.T) {
	urls, _, _ := doors(t, t.TempDir())
	for door, url := range urls {
		r, text := post(t, url, "/v1/chat/completions", chatBody("x", ""))
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
			t.Errorf("%s: got %q, want an error object", door, text)
		}
		if r.StatusCode != 503 || r.Header.Get("x-llm-d-request-dropped-reason") != "rejected-no-endpoints" || r.Header.Get("retry-after") == "" {
			t.Errorf("%s: got %d %v", door, r.StatusCode, r.Header)
		}
		if r, text = post(t, url, "/v1/messages", chatBody("x", "")); !strings.Contains(text, `"type":"error"`) || r.StatusCode != 503 {
			t.Errorf("%s: got %d %s, want Anthropic's form", door, r.StatusCode, text)
		}
	}
}

// A folder that describes no pool any more is a broken edit: what was good stays, and the next good edit is taken.
func TestReloadWithoutPoolsKeepsTheLastGood(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, "m")
	urls, metrics, log := doors(t, dir, e)
	pool := filepath.Join(dir, "pool.yaml")
	text, err := os.ReadFile(pool)
	if err != nil {
		t.Fatal(err)
	}
	fleetHas := func(what string) bool { _, page := get(t, metrics+"/debug/fleet"); return strings.Contains(page, what) }
	if err := os.Remove(pool); err != nil {
		t.Fatal(err)
	}
	until(t, "the edit to be refused", func() bool {
		return strings.Contains(log.String(), "nothing to serve") && strings.Contains(log.String(), "the last good one stays")
	})
	renamed := strings.Replace(string(text), "name: p}", "name: q}", 1)
	if r, _ := post(t, urls["proxy"], "/v1/chat/completions", chatBody("x", "")); r.StatusCode != 200 {
		t.Errorf("without the pool's manifest: got %d", r.StatusCode)
	}
	if err := os.WriteFile(pool, []byte(renamed), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the renamed pool", func() bool { return fleetHas(`"name": "q"`) })
	if r, _ := post(t, urls["proxy"], "/v1/chat/completions", chatBody("x", "")); r.StatusCode != 200 {
		t.Errorf("after the next good edit: got %d", r.StatusCode)
	}
}

// 500 clients that send half a body and stop disturb nobody, and leave nothing behind.
func TestHalfBodies(t *testing.T) {
	e := newEngine(t, "m")
	urls, metrics, _ := doors(t, t.TempDir(), e)
	half := "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n" +
		`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 20_000)
	var conns []net.Conn
	for range 500 {
		c, err := net.Dial("tcp", strings.TrimPrefix(urls["proxy"], "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, half); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for i := range 20 {
		if r, text := post(t, urls["proxy"], "/v1/chat/completions", chatBody(fmt.Sprint(i), "")); r.StatusCode != 200 {
			t.Errorf("got %d %s", r.StatusCode, text)
		}
	}
	if n := len(e.take()); n != 20 {
		t.Errorf("the engine got %d requests, want the 20 whole ones", n)
	}
	for _, c := range conns {
		c.Close()
	}
	until(t, "nothing to be held", func() bool {
		_, page := get(t, metrics+"/metrics")
		return strings.Contains(page, "penstock_buffered_bytes 0\n") && strings.Contains(page, "penstock_inflight_drift 0\n")
	})
}
