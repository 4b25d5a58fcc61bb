// SPDX-License-Identifier: Apache-2.0

package tokens_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/tokens"
)

// service answers questions without a connection.
type service func(path string, body map[string]any) (status int, answer string)

func (s service) RoundTrip(r *http.Request) (*http.Response, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, err
	}
	status, answer := s(r.URL.Path, body)
	switch status {
	case 0:
		return nil, errors.New("connection refused")
	case -1:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(answer)), Header: http.Header{}}, nil
}

func TestRemote(t *testing.T) {
	render := func(path string, body map[string]any) (int, string) {
		if body["mm_payload"] != "none" || body["model"] != "base" {
			t.Errorf("got the body %v", body)
		}
		switch path {
		case "/v1/chat/completions/render":
			return 200, `{"request_id":"x","token_ids":[1,2,3],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]},"kwargs_data":null}}`
		case "/v1/completions/render":
			return 200, `[{"token_ids":[7]},{"token_ids":[8,9]}]`
		}
		return 400, `{"error":{"message":"no"}}`
	}
	r := tokens.NewRemote("http://render/", tokens.RemoteOptions{Transport: service(render), Model: "base"})
	var p tokens.Prompts
	if err := r.Read(t.Context(), "chat", []byte(` {"model":"a","messages":[]} `), &p); err != nil {
		t.Fatal(err)
	}
	if err := r.Read(t.Context(), "completions", []byte(`{}`), &p); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.IDs, []uint32{1, 2, 3, 7, 8, 9}) || !slices.Equal(p.Starts, []int32{0, 3, 4}) ||
		!slices.Equal(p.Media, []tokens.Item{{Prompt: 0, At: 1, Len: 2, Hash: "h"}}) {
		t.Errorf("got %+v", p)
	}
	for api, want := range map[string]error{"messages": tokens.ErrBody, "embeddings": tokens.ErrUnsupported} {
		if err := r.Read(t.Context(), api, []byte(`{}`), &p); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", api, err, want)
		}
	}
	if len(p.IDs) != 6 || len(p.Starts) != 3 {
		t.Errorf("an error left %+v", p)
	}
}

// TestRemoteTokenize has a service that does not render: it is asked once, and /tokenize from then on.
func TestRemoteTokenize(t *testing.T) {
	var asked []string
	r := tokens.NewRemote("http://old", tokens.RemoteOptions{Transport: service(func(path string, _ map[string]any) (int, string) {
		asked = append(asked, path)
		if path == "/tokenize" {
			return 200, `{"count":2,"max_model_len":10,"tokens":[4,5]}`
		}
		return 404, `{"detail":"Not Found"}`
	})})
	var p tokens.Prompts
	for range 2 {
		if err := r.Read(t.Context(), "chat", []byte(`{"messages":[]}`), &p); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"/v1/chat/completions/render", "/tokenize", "/tokenize"}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	if err := r.Read(t.Context(), "messages", []byte(`{}`), &p); !errors.Is(err, tokens.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(p.IDs, []uint32{4, 5, 4, 5}) {
		t.Errorf("got %v", p.IDs)
	}
}

// TestRemoteForbidden has a vLLM that was not told to render: it is asked again after a minute, and /tokenize till then, for what that
// can read.
func TestRemoteForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{Transport: service(func(path string, _ map[string]any) (int, string) {
			asked = append(asked, path)
			if path == "/tokenize" {
				return 200, `{"tokens":[4,5]}`
			}
			return 403, `{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","code":403}}`
		})})
		var p tokens.Prompts
		for _, q := range []struct {
			body string
			want error
		}{{`{"prompt":"a"}`, nil}, {`{"prompt":"b"}`, nil}, {`{"prompt":["a","b"]}`, tokens.ErrUnsupported}, {`{"prompt":[1]}`, tokens.ErrUnsupported},
			{`{"prompt":"a","truncate_prompt_tokens":1}`, tokens.ErrUnsupported}} {
			if err := r.Read(t.Context(), "completions", []byte(q.body), &p); !errors.Is(err, q.want) || (err == nil) != (q.want == nil) {
				t.Errorf("%s: got %v, want %v", q.body, err, q.want)
			}
		}
		time.Sleep(time.Minute)
		if err := r.Read(t.Context(), "completions", []byte(`{"prompt":"c"}`), &p); err != nil {
			t.Error(err)
		}
		if want := []string{"/v1/completions/render", "/tokenize", "/tokenize", "/v1/completions/render", "/tokenize"}; !slices.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
	})
}

func TestRemoteNonsense(t *testing.T) {
	for _, answer := range []string{``, `[]`, `{}`, `{"token_ids":[-1]}`, `{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]}}}`,
		`{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}`, strings.Repeat(" ", 2000)} {
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{MaxAnswer: 1000, Transport: service(func(string, map[string]any) (int, string) { return 200, answer })})
		var p tokens.Prompts
		if err := r.Read(t.Context(), "chat", []byte(`{}`), &p); !errors.Is(err, tokens.ErrService) || len(p.IDs)+len(p.Starts)+len(p.Media) > 0 {
			t.Errorf("%.60q: got %v and %v", answer, err, p)
		}
	}
}

// TestRemoteDown: three questions wait their 5 s each, those after are refused at once; after 1 s one is let through, after
// its failure 2 s, and with an answer all is well.
func TestRemoteDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, asked := true, 0
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{Transport: service(func(string, map[string]any) (int, string) {
			asked++
			if down {
				return -1, ""
			}
			return 200, `{"token_ids":[1]}`
		})})
		start := time.Now()
		var p tokens.Prompts
		try := func(wantAsked int, wantAt time.Duration, want error) {
			t.Helper()
			err := r.Read(t.Context(), "chat", []byte(`{}`), &p)
			if at := time.Since(start); asked != wantAsked || at != wantAt || !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("asked %d at %v: %v; want %d at %v: %v", asked, at, err, wantAsked, wantAt, want)
			}
		}
		try(1, 5*time.Second, tokens.ErrService)
		try(2, 10*time.Second, tokens.ErrService)
		try(3, 15*time.Second, tokens.ErrService)
		try(3, 15*time.Second, tokens.ErrService)
		time.Sleep(time.Second)
		try(4, 21*time.Second, tokens.ErrService)
		try(4, 21*time.Second, tokens.ErrService)
		time.Sleep(2 * time.Second)
		down = false
		try(5, 23*time.Second, nil)
		try(6, 23*time.Second, nil)
	})
}

// TestRemoteGivenUp: a question that its asker gives up says nothing about the service.
func TestRemoteGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{Transport: service(func(string, map[string]any) (int, string) {
			asked++
			return -1, ""
		})})
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			var p tokens.Prompts
			if err := r.Read(ctx, "chat", []byte(`{}`), &p); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if asked != 10 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestRemoteFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{MaxInFlight: 1, Transport: service(func(string, map[string]any) (int, string) { return -1, "" })})
		go func() { _ = r.Read(t.Context(), "chat", []byte(`{}`), new(tokens.Prompts)) }()
		synctest.Wait()
		start := time.Now()
		if err := r.Read(t.Context(), "chat", []byte(`{}`), new(tokens.Prompts)); !errors.Is(err, tokens.ErrService) || time.Since(start) != 0 {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// TestRemoteOneProbe has a question of before the pause end while another finds out: no third one is asked then.
func TestRemoteOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := map[string]chan struct{}{"early": make(chan struct{}), "probe": make(chan struct{})}
		asked := make(chan string, 10)
		r := tokens.NewRemote("http://x", tokens.RemoteOptions{Timeout: time.Hour, Transport: service(func(_ string, body map[string]any) (int, string) {
			name := body["prompt"].(string)
			asked <- name
			if c := end[name]; c != nil {
				<-c
			}
			return 503, ""
		})})
		read := func(name string) {
			r.Read(t.Context(), "completions", []byte(`{"prompt":"`+name+`"}`), &tokens.Prompts{})
		}
		go read("early")
		synctest.Wait()
		for range 3 {
			read("wrong")
		}
		time.Sleep(2 * time.Second)
		go read("probe")
		synctest.Wait()
		close(end["early"])
		synctest.Wait()
		time.Sleep(time.Minute)
		read("third")
		close(end["probe"])
		synctest.Wait()
		close(asked)
		var got []string
		for name := range asked {
			got = append(got, name)
		}
		if want := []string{"early", "wrong", "wrong", "wrong", "probe"}; !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	})
}
