// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		put := func(body string, want int) {
			t.Helper()
			if status, b := r.ask("PUT", "/sim/trouble", body); status != want {
				t.Fatalf("%s: got %d %s, want %d", body, status, b, want)
			}
		}
		took := func() time.Duration {
			began := time.Now()
			if status, b := r.ask("POST", "/v1/completions", sixteen+`"max_tokens":3}`); status != http.StatusOK {
				t.Errorf("%d %s", status, b)
			}
			return time.Since(began)
		}
		well := took()
		r.ask("POST", "/reset_prefix_cache", "")
		put(`{"slow":4}`, 200)
		if got := took(); got != 4*well {
			t.Errorf("took %v, want four times %v", got, well)
		}
		put(`{"metrics":"frozen"}`, 200)
		_, before := r.ask("GET", "/metrics", "")
		took()
		if _, after := r.ask("GET", "/metrics", ""); after != before || !strings.Contains(after, "vllm:num_requests_running") {
			t.Error("the page is not frozen")
		}
		put(`{"metrics":"missing","status":503}`, 200)
		if status, _ := r.ask("GET", "/metrics", ""); status != 500 {
			t.Errorf("metrics are %d", status)
		}
		if status, _ := r.ask("POST", "/v1/completions", `{"prompt":"x"}`); status != 503 {
			t.Errorf("a request got %d, want 503", status)
		}
		for _, bad := range []string{`{"slow":-1}`, `{"status":200}`, `{"metrics":"odd"}`, `{"sloww":1}`, `x`} {
			put(bad, 400)
		}
		if _, b := r.ask("GET", "/sim/trouble", ""); strings.TrimSpace(b) != `{"status":503,"metrics":"missing"}` {
			t.Errorf("got %s, want what was last put", b)
		}
		put(`{}`, 200)

		resp, err := r.post(t.Context(), "/v1/completions", `{"prompt":"x","max_tokens":200,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		time.Sleep(100 * time.Millisecond)
		put(`{"dead":true}`, 200)
		if b, err := io.ReadAll(resp.Body); err == nil || strings.Contains(string(b), "[DONE]") {
			t.Errorf("the open stream ended with %v after %q", err, b)
		}
		if again, err := r.post(t.Context(), "/v1/completions", `{"prompt":"x"}`); err == nil {
			_ = again.Body.Close()
			t.Errorf("a dead engine answered %d", again.StatusCode)
		}
		put(`{}`, 200)
		took()
	})
}
