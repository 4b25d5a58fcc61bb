// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/observe"
)

// console is what a command prints, read while it runs.
type console struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

func getJSON(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%s: %v: %.300s", url, err, b)
	}
}

// TestTrouble is a rehearsal: under the load of `penstock dev` one engine is slow, one dies, one tells old
// metrics. Traffic moves away, the decision records say why, and when all are well again and the load is over
// nothing is left in flight.
func TestTrouble(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var out, errs console
	ran := make(chan error, 1)
	go func() {
		ran <- dev(ctx, []string{"--engines", "5", "--listen", "localhost:0", "--metrics", "localhost:0", "--load", "12", "--policy", "priced-miss"}, &out, &errs)
	}()
	var server, api, model string
	until(t, "the greeting", func() bool {
		m := regexp.MustCompile(`metrics +(http://\S+)/metrics`).FindStringSubmatch(out.String())
		if m == nil {
			return false
		}
		server = m[1]
		api = regexp.MustCompile(`gateway +(http://\S+/v1)`).FindStringSubmatch(out.String())[1]
		told := regexp.MustCompile(`model="([^"]+)"`).FindStringSubmatch(out.String())
		if told != nil {
			model = told[1]
		}
		return told != nil
	})
	fleet := func() []observe.EndpointView {
		var v observe.FleetView
		getJSON(t, server+"/debug/fleet", &v)
		return v.Pools[0].Endpoints
	}
	until(t, "five engines with fresh signals", func() bool {
		e := fleet()
		return len(e) == 5 && !slices.ContainsFunc(e, func(e observe.EndpointView) bool { return e.Signals["waiting"].State != "fresh" })
	})
	engines := fleet()
	trouble := func(i int, what string) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodPut, "http://"+engines[i].Address+"/sim/trouble", strings.NewReader(what))
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("trouble for %s: %v, %v", engines[i].Name, resp, err)
		}
		_ = resp.Body.Close()
	}
	sent := func() (n []int64) {
		for _, e := range fleet() {
			n = append(n, e.Sent)
		}
		return n
	}
	const slow, dead, old = 0, 1, 2
	trouble(slow, `{"slow":100}`)
	trouble(dead, `{"dead":true}`)
	trouble(old, `{"metrics":"missing"}`)

	until(t, "the signals of two are stale, and it is said why", func() bool {
		e := fleet()
		return e[dead].Signals["waiting"].State == "stale" && e[dead].Cause != "" && e[old].Signals["waiting"].State == "stale" && e[old].Cause != ""
	})
	before := sent()
	until(t, "120 more requests", func() bool { return slices.Max(sent())-slices.Max(before) > 0 && total(sent())-total(before) >= 120 })
	after := sent()
	share := func(i int) float64 { return float64(after[i]-before[i]) / float64(total(after)-total(before)) }
	if s := share(dead); s > 0.05 {
		t.Errorf("the dead engine got %.0f %% of the requests", 100*s)
	}
	if s := share(slow); s > 0.1 {
		t.Errorf("the slow engine got %.0f %% of the requests, its share would be 20", 100*s)
	}

	records := func(query string) []observe.Record {
		var page struct {
			Decisions []observe.Record `json:"decisions"`
		}
		getJSON(t, server+"/debug/decisions?full=true&"+query, &page)
		return page.Decisions
	}
	named := func(r observe.Record, i int) observe.Candidate {
		for _, c := range r.Candidates {
			if c.Endpoint == engines[i].Namespace+"/"+engines[i].Name {
				return c
			}
		}
		return observe.Candidate{}
	}
	until(t, "a record that says all three", func() bool {
		for _, r := range records("limit=200") {
			d, o, s := named(r, dead), named(r, old), named(r, slow)
			ill := d.By == "health" && d.Why != "" || d.Health != nil && d.Health.Cause != ""
			if (ill || d.Signals["waiting"].State == "stale" && d.Rank != 1) && o.Signals["waiting"].State == "stale" && s.Rank != 1 && s.Total != nil {
				return true
			}
		}
		return false
	})
	for _, r := range records("limit=1000") { // whoever was not served met endpoints that failed
		if r.Status != http.StatusOK && len(r.Attempts) == 0 {
			t.Errorf("%s ended with %d %s: %s; %d of %d could serve it; failed: %v", r.ID, r.Status, r.Reason, r.Message, r.Scored, r.Endpoints, r.Attempts)
		}
	}

	for i := range 3 {
		trouble(i, `{}`)
	}
	before = sent()
	asked := 0
	until(t, "all engines serve again", func() bool {
		// Who comes back holds nothing, so that what others hold stays with them; a prompt that nobody holds goes to who has least to do.
		asked++
		body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"%d, %s"}`, model, asked, strings.Repeat(fmt.Sprintf("word%d ", asked), 100))
		if resp, err := http.Post(api+"/completions", "application/json", strings.NewReader(body)); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		for i, n := range sent() {
			if n-before[i] < 3 {
				return false
			}
		}
		return true
	})
	stop()
	if err := <-ran; err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if text := out.String(); strings.Contains(text, "goroutine") {
		t.Error(text)
	}
}

func total(n []int64) (sum int64) {
	for _, v := range n {
		sum += v
	}
	return sum
}
