// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/request"
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

func TestBase(t *testing.T) {
	for _, tt := range []struct{ said, want, wrong string }{
		{"http://h:1", "http://h:1", ""},
		{"h:1", "http://h:1", ""},
		{"https://h/", "https://h", ""},
		{"http://h/v1", "http://h", ""},
		{"http://h/v1/", "http://h", ""},
		{"http://h/v1/chat/completions", "http://h", ""},
		{"http://h/v1/completions", "http://h", ""},
		{"http://h/team/v1", "http://h/team", ""},
		{"ftp://h", "", "want an http or https URL"},
		{"http://", "", "has no host"},
		{"http://h?x=1", "", "want no user, query or fragment"},
		{"http://h:port", "", "invalid port"},
	} {
		got, err := Base(tt.said)
		if got != tt.want || (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%s: got %q, %v; want %q, %q", tt.said, got, err, tt.want, tt.wrong)
		}
	}
}

func ask(text string) Ask {
	return Ask{Body: func() io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }, Length: int64(len(text)), Text: true}
}

// Both APIs over a real connection, with headers, HTTP/2, and an answer in one piece.
func TestSend(t *testing.T) {
	var seen *http.Request
	var body []byte
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		body, _ = io.ReadAll(r.Body)
		if !strings.Contains(string(body), "stream") {
			w.Header().Set("content-type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
			return
		}
		w.Header().Set("content-type", "text/event-stream")
		w.Header().Set("x-penstock-endpoint", "e1")
		for range 3 {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n")
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	for _, h2 := range []bool{false, true} {
		transport := NewTransport(4, s.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), h2)
		defer transport.CloseIdleConnections()
		c := Client{URL: s.URL, API: request.Completions, HTTP: &http.Client{Transport: transport}, Header: http.Header{"Authorization": {"Bearer k"}}, Timeout: time.Minute}
		a := ask(`{"stream":true}`)
		a.Header = http.Header{"X-Tenant": {"blue"}}
		got := Borrow()
		c.Send(t.Context(), a, got)
		if got.Fault != "" || got.Status != 200 || got.Text != "aaa" || got.Events != 3 || got.Tokens() != 5 || got.Usage != (request.Usage{Prompt: 3, Output: 5, Cached: 2}) || got.Endpoint != "e1" {
			t.Errorf("h2 %v: %q %q %q, %d events, %v, by %q", h2, got.Fault, got.Said, got.Text, got.Events, got.Usage, got.Endpoint)
		}
		if got.First().IsZero() || got.First().Before(got.Sent) || got.Last.After(got.End) {
			t.Errorf("sent %v, first %v, last %v, end %v", got.Sent, got.First(), got.Last, got.End)
		}
		if seen.URL.Path != "/v1/completions" || seen.Header.Get("Authorization") != "Bearer k" || seen.Header.Get("X-Tenant") != "blue" || seen.ProtoMajor == 2 != h2 || string(body) != `{"stream":true}` {
			t.Errorf("h2 %v: %s %s %v %s", h2, seen.Proto, seen.URL, seen.Header, body)
		}
		c.Send(t.Context(), ask(`{}`), got)
		if got.Fault != "" || got.Tokens() != 2 || !got.First().IsZero() || got.Last.IsZero() {
			t.Errorf("in one piece: %q %q, %d tokens, first %v, last %v", got.Fault, got.Said, got.Tokens(), got.First(), got.Last)
		}
		got.Return()
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
			c := Client{URL: "http://g", API: request.Chat, HTTP: &http.Client{Transport: tt.g}}
			var got Answer
			if c.Send(t.Context(), ask("{}"), &got); got.Fault != tt.want {
				t.Errorf("got %q (%s), want %q", got.Fault, got.Said, tt.want)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Client{URL: "http://g", API: request.Chat, Timeout: 3 * time.Second, HTTP: &http.Client{Transport: gateway(func(r *http.Request) (*http.Response, error) {
			return streamed(r, "e", time.Hour, 0)
		})}}
		var got Answer
		if c.Send(t.Context(), ask("{}"), &got); got.Fault != "timeout" || got.End.Sub(got.Sent) != 3*time.Second {
			t.Errorf("%q after %v", got.Fault, got.End.Sub(got.Sent))
		}
		time.Sleep(2 * time.Hour) // the server writes to nobody
	})
}

func TestModels(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := Client{URL: "http://g", HTTP: &http.Client{Transport: gateway(func(*http.Request) (*http.Response, error) {
			if tries++; tries < 10 {
				return nil, refused
			}
			return reply(200, "", io.NopCloser(strings.NewReader(`{"data":[{"id":"a"},{"id":"b"}]}`))), nil
		})}}
		if _, err := c.Models(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "nothing answers at http://g: dial: connection refused") {
			t.Errorf("got %v", err)
		}
		if got, err := c.Models(t.Context(), time.Minute); err != nil || fmt.Sprint(got) != "[a b]" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	for name, g := range map[string]gateway{
		"not found": func(*http.Request) (*http.Response, error) { return reply(404, "", http.NoBody), nil },
		"no JSON":   func(*http.Request) (*http.Response, error) { return reply(200, "", http.NoBody), nil },
		"hung up":   func(*http.Request) (*http.Response, error) { return nil, io.EOF },
	} {
		c := Client{URL: "http://g", HTTP: &http.Client{Transport: g}}
		if got, err := c.Models(context.Background(), 0); got != nil || err != nil {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// What a server says must neither fill the memory nor end the program, however it is cut.
func FuzzRead(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n"), uint8(7))
	f.Add([]byte("data: {\"error\":{}}\r\n\r\n"), uint8(1))
	f.Add([]byte(": ping\n\ndata\n\ndata: [DONE]"), uint8(3))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		read := func(step int, keep bool) *Answer {
			var a Answer
			a.reset()
			a.read(&pieces{stream, step}, request.Chat, true, keep)
			return &a
		}
		a, b := read(len(stream)+1, true), read(int(step)+1, true)
		if a.Fault != b.Fault || a.Events != b.Events || a.Usage != b.Usage || a.Text != b.Text {
			t.Errorf("whole %q %d %v %q, in pieces %q %d %v %q", a.Fault, a.Events, a.Usage, a.Text, b.Fault, b.Events, b.Usage, b.Text)
		}
		if c := read(int(step)+1, false); c.Text != "" || c.Fault == "" && c.Events != a.Events && a.Fault == "" {
			t.Errorf("without its text: %q %d, with it %q %d", c.Fault, c.Events, a.Fault, a.Events)
		}
	})
}

// pieces is a body that comes a few bytes at a time.
type pieces struct {
	left []byte
	step int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(to[:min(len(to), p.step)], p.left)
	p.left = p.left[n:]
	return n, nil
}

// Reading costs nothing but what it is kept in.
func TestReadAllocatesNothing(t *testing.T) {
	body := bytes.Repeat([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n"), 50)
	body = append(body, "data: [DONE]\n\n"...)
	var a Answer
	in := bytes.NewReader(nil)
	a.reset()
	if n := testing.AllocsPerRun(100, func() {
		a.reset()
		in.Reset(body)
		a.read(in, request.Chat, true, false)
	}); n > 1 { // the reader of the rest of the connection
		t.Errorf("%v allocations", n)
	}
}
