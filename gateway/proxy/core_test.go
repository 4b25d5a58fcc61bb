// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// realCore is a gateway with one pool, whose endpoints are chosen by chance.
func realCore(addresses ...string) *gateway.Gateway {
	id := fleet.ID{Namespace: "default", Name: "pool"}
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: id}})
	var endpoints []fleet.EndpointSpec
	for _, a := range addresses {
		endpoints = append(endpoints, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: a}, Address: a})
	}
	store.SetEndpoints("test", endpoints)
	log := slog.New(slog.DiscardHandler)
	g := gateway.New(gateway.Options{Store: store, Observer: observe.New(observe.Options{Store: store, Log: log}), Log: log,
		Memory: request.NewMemory(0), MaxBody: 1 << 20, Stale: 2 * time.Second, Seed: 1})
	g.SetLanes(gateway.Lanes{id: {Gate: flow.NewLegacy(), Plan: (&sched.Plan{
		Handler: policy.Handlers["single-profile-handler"](),
		Profiles: []*sched.Profile{{Name: "default", Endpoints: 1,
			Picker: sched.Named[sched.Picker]{Name: "random-picker", Plugin: policy.Pickers["random-picker"]()}}},
	}).Ready()}})
	return g
}

// TestHealedEndpointIsUsedAgain: while an endpoint refuses connections nobody sees it, and soon after it
// is back it is tried, and then gets its share again, by and by. The time is false, so that it is exact.
func TestHealedEndpointIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemnet()
		hits := map[string]int{}
		var wg syncGroup
		up := func(address string) *memListener {
			l := m.listen(address)
			wg.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					br := bufio.NewReader(c)
					if req, err := http.ReadRequest(br); err == nil {
						_, _ = io.ReadAll(req.Body)
						hits[address]++
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
					}
					c.Close()
				}
			})
			return l
		}
		g := realCore("a:1", "b:1")
		srv := New(g, Options{Dial: m.dial})
		lis := m.listen("door:1")
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- srv.Run(ctx, lis) }()
		conn, err := m.dial(ctx, "", "door:1")
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(conn)
		ask := func(n int, pause time.Duration, want int) {
			t.Helper()
			for range n {
				const body = `{"model":"m","messages":[]}`
				fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				if b, _ := io.ReadAll(res.Body); res.StatusCode != want {
					t.Errorf("%d %s", res.StatusCode, b)
				}
				<-time.After(pause)
			}
		}
		b := up("b:1")
		ask(40, 50*time.Millisecond, 200)
		if hits["a:1"] != 0 || hits["b:1"] != 40 {
			t.Errorf("while one is down: %v", hits)
		}
		a := up("a:1")
		<-time.After(2 * time.Second)
		clear(hits)
		ask(200, 10*time.Millisecond, 200) // one finds out that it is back; then it gets more and more
		if n := hits["a:1"]; n < 2 || n > 60 {
			t.Errorf("2 s after it came back: %v", hits)
		}
		<-time.After(fleet.DefaultHealth().SlowStart)
		clear(hits)
		ask(40, 0, 200)
		if hits["a:1"] < 10 || hits["b:1"] < 10 {
			t.Errorf("after the slow start: %v", hits)
		}
		a.Close()
		b.Close()
		ask(3, 0, 503)
		conn.Close()
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		wg.Wait()
		if g.Open() != 0 || g.Memory.Held() != 0 {
			t.Errorf("%d exchanges open, %d bytes held", g.Open(), g.Memory.Held())
		}
		for _, e := range g.Store.Load().Pools[0].Endpoints {
			if e.Load.Requests() != 0 || e.Load.Tokens() != 0 {
				t.Errorf("%s: load %d, %d", e.Address, e.Load.Requests(), e.Load.Tokens())
			}
		}
	})
}

// TestRefusalsOfTheRealCore: the client sees the core's refusals in its API's form.
func TestRefusalsOfTheRealCore(t *testing.T) {
	g := realCore(dead(t))
	rec := func(path, encoding, body string) (int, string) {
		req, _ := http.NewRequest("POST", path, strings.NewReader(body))
		req.RequestURI, req.RemoteAddr = path, "127.0.0.1:9"
		if encoding != "" {
			req.Header.Set("Content-Encoding", encoding)
		}
		w := &recorder{header: http.Header{}}
		New(g, Options{}).ServeHTTP(w, req)
		return w.status, w.body.String()
	}
	for _, c := range []struct {
		name, path, encoding, body string
		status                     int
		says                       string
	}{
		{"too large", chatPath, "", strings.Repeat("x", 1<<20+1), 413, "1048576"},
		{"unknown encoding", chatPath, "x-unknown", "{}", 415, `{"error":{`},
		{"truncated gzip", chatPath, "gzip", "\x1f\x8b\x08", 400, `{"error":{`},
		{"nobody there", "/v1/messages", "", "{}", 503, `"type":"error"`},
	} {
		if status, body := rec(c.path, c.encoding, c.body); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	if g.Open() != 0 || g.Memory.Held() != 0 {
		t.Errorf("%d exchanges open, %d bytes held", g.Open(), g.Memory.Held())
	}
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
