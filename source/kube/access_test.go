// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// reviewer is an API server as far as reviews go, in memory: tokens are "token-of-" and a user, and users may what rules
// say.
type reviewer struct {
	mu            sync.Mutex
	rules         map[string]bool // "user verb path"
	forbidden     string          // a resource that we may not create
	revoked       map[string]bool // tokens that are nobody's any more
	away          bool            // nobody answers
	takes         time.Duration   // for an answer
	tokens        int             // reviews of tokens
	accesses      int             // reviews of access
	open, most    int             // at a time
	groups, extra []string        // that the last review of access told of
}

func (s *reviewer) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// RoundTrip implements [http.RoundTripper].
func (s *reviewer) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.most = max(s.most, s.open)
	defer func() { s.open-- }()
	if takes := s.takes; takes > 0 {
		s.mu.Unlock()
		select {
		case <-time.After(takes):
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
	}
	if s.away {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if s.forbidden == resource {
		refuse(w, 403, "Forbidden")
		return w.Result(), nil
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /apis/authentication.k8s.io/v1/tokenreviews":
		s.tokens++
		var v authn.TokenReview
		if err := json.Unmarshal(body, &v); err != nil || v.Kind != "TokenReview" {
			return nil, fmt.Errorf("%s: %w", body, err)
		}
		user, ok := strings.CutPrefix(v.Spec.Token, "token-of-")
		ok = ok && !s.revoked[v.Spec.Token]
		v.Status.Authenticated, v.Status.User = ok, authn.UserInfo{Username: user, Groups: []string{"g"}, Extra: map[string]authn.ExtraValue{"pod": {"p"}}}
		if !ok {
			v.Status = authn.TokenReviewStatus{Error: "invalid bearer token"}
		}
		v.Spec = authn.TokenReviewSpec{}
		_ = json.NewEncoder(w).Encode(v)
	case "POST /apis/authorization.k8s.io/v1/subjectaccessreviews":
		s.accesses++
		var v authz.SubjectAccessReview
		if err := json.Unmarshal(body, &v); err != nil || v.Kind != "SubjectAccessReview" {
			return nil, fmt.Errorf("%s: %w", body, err)
		}
		s.groups, s.extra = v.Spec.Groups, v.Spec.Extra["pod"]
		v.Status.Allowed = s.rules[v.Spec.User+" "+v.Spec.NonResourceAttributes.Verb+" "+v.Spec.NonResourceAttributes.Path]
		_ = json.NewEncoder(w).Encode(v)
	default:
		refuse(w, 404, "NotFound")
	}
	return w.Result(), nil
}

const scraper = "system:serviceaccount:monitoring:prometheus"

func newAccess(t *testing.T, s *reviewer, log io.Writer) *Access {
	t.Helper()
	a, err := NewAccess(&rest.Config{Host: "http://api", Transport: s}, Silent{}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// ask asks for a page.
func ask(t *testing.T, a *Access, method, path, authorization string) (int, string) {
	r := &http.Request{Method: method, URL: &url.URL{Path: path}, Header: http.Header{}}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return a.Allow(r.WithContext(t.Context()))
}

// A page is for whose token the API server knows and who may, and the others are told what is missing.
func TestAccess(t *testing.T) {
	s := &reviewer{rules: map[string]bool{scraper + " get /metrics": true, "admin post /debug/pprof/symbol": true}}
	a := newAccess(t, s, io.Discard)
	for _, x := range []struct {
		method, path, authorization string
		status                      int
		text                        []string
	}{
		{"GET", "/metrics", "Bearer token-of-" + scraper, 0, nil},
		{"GET", "/metrics", "bearer  token-of-" + scraper, 0, nil},
		{"POST", "/debug/pprof/symbol", "Bearer token-of-admin", 0, nil},
		{"GET", "/metrics", "", 401, []string{"no bearer token", "may get /metrics", "kubectl create token"}},
		{"GET", "/metrics", "Basic eDp5", 401, []string{"no bearer token"}},
		{"GET", "/metrics", "Bearer a b", 401, []string{"one line of ASCII"}},
		{"GET", "/metrics", "Bearer " + strings.Repeat("x", 17<<10), 401, []string{"16 KiB"}},
		{"GET", "/metrics", "Bearer wrong", 401, []string{"invalid bearer token", "kubectl create token"}},
		{"GET", "/debug/fleet", "Bearer token-of-" + scraper, 403, []string{`user "system:serviceaccount:monitoring:prometheus" may not get /debug/fleet`,
			"- nonResourceURLs: [\"/debug/fleet\"]\n  verbs: [\"get\"]", "--serviceaccount=monitoring:prometheus"}},
		{"HEAD", "/metrics", "Bearer token-of-jane", 403, []string{`user "jane" may not head /metrics`, `--user="jane"`}},
		{"GET", "/" + strings.Repeat("x", 5000), "Bearer token-of-jane", 414, nil},
	} {
		status, text := ask(t, a, x.method, x.path, x.authorization)
		if status != x.status {
			t.Errorf("%s %.40s by %.40s: got %d %s, want %d", x.method, x.path, x.authorization, status, text, x.status)
		}
		for _, want := range x.text {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s by %.40s: got %q, want %q in it", x.method, x.path, x.authorization, text, want)
			}
		}
	}
	if len(s.groups) != 1 || len(s.extra) != 1 {
		t.Errorf("the API server was told of groups %v and extra %v", s.groups, s.extra)
	}
	if kept := fmt.Sprintf("%+v", []any{a.users.new, a.bad.new, a.allowed.new, a.denied.new}); strings.Contains(kept, "token-of") {
		t.Errorf("a token is kept: %s", kept)
	}
}

// An answer counts for a minute. Where the API server is away it counts for ten, and nobody else gets in.
func TestAccessRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reviewer{rules: map[string]bool{scraper + " get /metrics": true}}
		var log bytes.Buffer
		a := newAccess(t, s, &log)
		want := func(after time.Duration, token string, status, tokens, accesses int) {
			t.Helper()
			time.Sleep(after)
			if got, text := ask(t, a, "GET", "/metrics", "Bearer "+token); got != status || s.tokens != tokens || s.accesses != accesses {
				t.Errorf("%s: got %d %q after %d and %d reviews, want %d after %d and %d", token, got, text, s.tokens, s.accesses, status, tokens, accesses)
			}
		}
		good := "token-of-" + scraper
		want(0, good, 0, 1, 1)
		want(59*time.Second, good, 0, 1, 1)
		want(time.Second, good, 0, 2, 2)

		want(0, "wrong", 401, 3, 2)
		want(9*time.Second, "wrong", 401, 3, 2)
		want(time.Second, "wrong", 401, 4, 2)
		want(0, "token-of-jane", 403, 5, 3)
		s.with(func() { s.rules["jane get /metrics"] = true })
		want(9*time.Second, "token-of-jane", 403, 5, 3)
		want(time.Second, "token-of-jane", 0, 5, 4)

		s.with(func() { delete(s.rules, scraper+" get /metrics") })
		want(time.Minute, good, 403, 6, 5)
		s.with(func() { s.rules[scraper+" get /metrics"] = true })
		want(10*time.Second, good, 0, 6, 6)

		s.with(func() { s.away = true })
		for range 49 {
			want(12*time.Second, good, 0, 6, 6)
		}
		want(0, "token-of-joe", 503, 6, 6)
		want(12*time.Second, good, 503, 6, 6) // ten minutes
		s.with(func() { s.away = false })
		want(0, good, 0, 7, 7)
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "connection refused") {
			t.Errorf("logged %d warnings: %s", n, &log)
		}
		if !strings.Contains(log.String(), "says again") {
			t.Errorf("nothing tells that it is over: %s", &log)
		}
	})
}

// A token that was found to be nobody's any more stays out where the API server is away, from all pages that it was let in
// to lately, until the API server says otherwise.
func TestAccessRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const token = "token-of-jane"
		s := &reviewer{rules: map[string]bool{"jane get /metrics": true, "jane get /debug/fleet": true}, revoked: map[string]bool{}}
		a := newAccess(t, s, io.Discard)
		want := func(what, path string, status int) {
			t.Helper()
			if got, text := ask(t, a, "GET", path, "Bearer "+token); got != status {
				t.Errorf("%s, %s: got %d %q, want %d", what, path, got, text, status)
			}
		}
		want("at first", "/metrics", 0)
		want("at first", "/debug/fleet", 0)
		time.Sleep(accessFresh)
		s.with(func() { s.revoked[token] = true })
		want("revoked", "/metrics", 401)
		time.Sleep(accessRefused)
		s.with(func() { s.away = true })
		want("revoked, and nobody to ask", "/metrics", 401)
		want("revoked, and nobody to ask", "/debug/fleet", 401)
		s.with(func() { s.away, s.revoked = false, nil })
		time.Sleep(accessRefused)
		want("good again", "/metrics", 0)
		time.Sleep(accessFresh)
		s.with(func() { s.away = true })
		want("good again, and nobody to ask", "/metrics", 0)
	})
}

// A flood of tokens costs the API server little, and neither it nor an API server that is silent keeps anybody waiting
// for long, or keeps out whoever was let in before.
func TestAccessFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reviewer{rules: map[string]bool{scraper + " get /metrics": true}}
		a := newAccess(t, s, io.Discard)
		good := "Bearer token-of-" + scraper
		ask(t, a, "GET", "/metrics", good)
		time.Sleep(accessFresh)
		s.with(func() { s.takes, s.tokens = time.Second, 0 })
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[int]int{}
		flood := func(n int, token string) {
			for i := range n {
				wg.Go(func() {
					authorization := "Bearer " + token
					if token == "" {
						authorization = fmt.Sprintf("Bearer %d", i)
					}
					status, _ := ask(t, a, "GET", "/metrics", authorization)
					mu.Lock()
					defer mu.Unlock()
					got[status]++
				})
			}
		}
		start := time.Now()
		flood(100, "same")
		wg.Wait()
		if s.tokens != 1 || got[401] != 100 {
			t.Errorf("one bad token a hundred times: %d reviews, answers %v", s.tokens, got)
		}
		clear(got)
		flood(1000, "")
		synctest.Wait()
		before := time.Now()
		if status, text := ask(t, a, "GET", "/metrics", good); status != 0 || time.Since(before) > 2*time.Second {
			t.Errorf("who was let in before gets %d %s after %v", status, text, time.Since(before))
		}
		wg.Wait()
		if took := time.Since(start); took != 6*time.Second { // one for the token of before, and then as long as we are patient
			t.Errorf("the flood took %v", took)
		}
		// 4 at a time for 5 seconds; the last ones' answers come as the patience ends.
		if s.most > 2*accessSlots || got[401] < 16 || got[401] > 20 || got[401]+got[503] != 1000 {
			t.Errorf("at most %d reviews at a time, answers %v", s.most, got)
		}

		s.with(func() { s.takes = time.Hour })
		before = time.Now()
		if status, text := ask(t, a, "GET", "/metrics", "Bearer token-of-jane"); status != 503 || time.Since(before) != accessPatient {
			t.Errorf("an API server that is silent: %d %s after %v", status, text, time.Since(before))
		}
		time.Sleep(accessFresh)
		before = time.Now()
		if status, text := ask(t, a, "GET", "/metrics", good); status != 0 || time.Since(before) != accessPatient {
			t.Errorf("who was let in before gets %d %s after %v", status, text, time.Since(before))
		}
		before = time.Now()
		if status, _ := ask(t, a, "GET", "/metrics", good); status != 0 || time.Since(before) != 0 {
			t.Errorf("the second time, %d after %v", status, time.Since(before))
		}
	})
}

// What we may not ask is named in the answer and, once, in the log.
func TestAccessNotAllowed(t *testing.T) {
	for _, resource := range []string{"tokenreviews", "subjectaccessreviews"} {
		s := &reviewer{forbidden: resource, rules: map[string]bool{scraper + " get /metrics": true}}
		var log bytes.Buffer
		a := newAccess(t, s, &log)
		for range 3 {
			status, text := ask(t, a, "GET", "/metrics", "Bearer token-of-"+scraper)
			if status != 500 || !strings.Contains(text, "may not create "+resource+".") || !strings.Contains(text, "verbs: [create]") || !strings.Contains(text, "said: Forbidden") {
				t.Errorf("got %d %s", status, text)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "verb=create resource="+resource) {
			t.Errorf("logged %d lines: %s", n, &log)
		}
		s.with(func() { s.forbidden = "" })
		if status, text := ask(t, a, "GET", "/metrics", "Bearer token-of-"+scraper); status != 0 {
			t.Errorf("with the permission: %d %s", status, text)
		}
	}
}

// Answers are bounded; the last ones stay.
func TestAccessBounded(t *testing.T) {
	var m memory[int]
	key := func(i int) (d digest) { d[0], d[1], d[2] = byte(i), byte(i>>8), byte(i>>16); return d }
	for i := range 100_000 {
		m.put(key(i), i, time.Hour, time.Hour)
	}
	if n := len(m.new) + len(m.old); n > 2*accessKept {
		t.Errorf("%d are held", n)
	}
	for i := 100_000 - accessKept; i < 100_000; i++ {
		if v, fresh, ok := m.get(key(i)); v != i || !fresh || !ok {
			t.Fatalf("answer %d is %d, %t", i, v, ok)
		}
	}
}
