// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

var threeScorers = &Stages{
	Profile: "default", Picker: "max-score-picker",
	Drops:   []Drop{{}, {"model", "it does not serve the model, and others do"}, {"health", "requests to it failed"}, {"by-role", "llm-d.ai/role is not decode"}},
	Scorers: []WeightedName{{"queue-scorer", 2}, {"kv-cache-utilization-scorer", 2}, {"prefix-cache-scorer", 3}},
}

// decided is a request to pool p that had n candidates, the first of which won.
func decided(id string, n int, at time.Time) *Outcome {
	d := &Decision{Stages: threeScorers, At: at, Stale: 2 * time.Second, Blocks: 10, BlockTokens: 16}
	for i := range n {
		signal := func(v float64) fleet.Signal { return fleet.Signal{Value: v, At: at.Add(-50 * time.Millisecond)} }
		d.Endpoints = append(d.Endpoints, &fleet.Endpoint{
			ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Load: new(fleet.Load),
			Reading: fleet.Reading{Waiting: signal(float64(i)), Running: signal(3), KVUsage: signal(0.5)},
		})
		d.Fates, d.Origin = append(d.Fates, 0), append(d.Origin, int32(i))
		d.Total = append(d.Total, 7-float32(i)/float32(n))
		d.Unseen, d.Flying, d.Work, d.Match = append(d.Unseen, 0), append(d.Flying, 1), append(d.Work, 100), append(d.Match, 4)
	}
	for range 3 * n {
		d.Scores = append(d.Scores, 0.5)
	}
	for i := range min(n, 16) {
		d.Order = append(d.Order, int32(i))
	}
	return &Outcome{
		Labels: Labels{Model: "m", Target: "m", Tenant: "default-flow"}, ID: id, Door: "proxy", Pool: "default/p", Endpoint: "default/e0",
		Address: "10.0.0.0:8000", End: Complete, Status: 200, Start: at, TTFT: 50 * time.Millisecond, Duration: 100 * time.Millisecond,
		EstimatedTokens: 160, PredictedCached: 64, PromptTokens: 150, OutputTokens: 20, Cached: Unknown, Decision: d, Candidates: n,
	}
}

func bounded(max int64) *decisions {
	k := &decisions{}
	k.healthy.max, k.troubled.max = max, max
	return k
}

func TestEveryRequestAtHumanRatesIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, at := bounded(ringBytes), time.Now()
		for i := range 300 { // 20 a second
			k.keep(decided(fmt.Sprint(i), 2, at.Add(time.Duration(i)*50*time.Millisecond)))
		}
		if all, _ := k.records(); len(all) != 300 || all[0].out.ID != "299" {
			t.Errorf("got %d records, the newest %s, want all 300, the newest first", len(all), all[0].out.ID)
		}
	})
}

func TestAllowance(t *testing.T) {
	var a allowance
	at, n := time.Now(), 0
	for range 1000 {
		if a.take(at) {
			n++
		}
	}
	if n != keepBurst {
		t.Errorf("got %d at once, want %d", n, keepBurst)
	}
	for range 1000 {
		if a.take(at.Add(time.Second)) {
			n++
		}
	}
	if n != keepBurst+keepRate {
		t.Errorf("got %d after a second, want %d", n, keepBurst+keepRate)
	}
}

func TestGoodOnesDoNotPushOutTheBad(t *testing.T) {
	k, at := bounded(64<<10), time.Now()
	bad := decided("bad", 4, at)
	bad.End, bad.Status = Broken, 502
	k.keep(bad)
	for i := range 5000 {
		k.keep(decided(fmt.Sprint(i), 4, at.Add(time.Duration(i)*50*time.Millisecond)))
	}
	all, v := k.records()
	if all[len(all)-1].out.ID != "bad" {
		t.Error("the failed one is gone")
	}
	if v.Bytes > 2*64<<10 || v.Gone == 0 {
		t.Errorf("got %d bytes and %d gone, want at most %d bytes", v.Bytes, v.Gone, 2*64<<10)
	}
}

func TestTrouble(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Outcome
		want bool
	}{
		{"complete", Outcome{End: Complete, Status: 200}, false},
		{"client's mistake", Outcome{End: Refused, Status: 404}, false},
		{"engine's no", Outcome{End: Complete, Status: 422}, false},
		{"engine's fault", Outcome{End: Complete, Status: 500}, true},
		{"dropped", Outcome{End: Refused, Status: 429, Reason: "rejected-saturated"}, true},
		{"tried again", Outcome{End: Complete, Status: 200, Retries: 1}, true},
		{"broken", Outcome{End: Broken, Status: 200}, true},
		{"evicted", Outcome{End: Evicted, Status: 429}, true},
		{"left in vain", Outcome{End: ClientLeft}, true},
		{"left later", Outcome{End: ClientLeft, TTFT: 1}, false},
	} {
		if got := inTrouble(&tt.o); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestSlow(t *testing.T) {
	var tt tails
	at := time.Now()
	answer := func(after, ttft time.Duration) time.Duration {
		slow, _ := tt.judge(&Outcome{Pool: "p", Endpoint: "e", End: Complete, Status: 200, TTFT: ttft, Duration: ttft}, at.Add(after))
		return slow
	}
	if answer(0, 1900*time.Millisecond) != 0 || answer(0, 2100*time.Millisecond) != firstTTFT {
		t.Error("at first what takes more than 2 s is slow")
	}
	for i := range 998 { // 1000 in all; ten of them may be slow
		d := 300 * time.Millisecond
		if i < 8 {
			d = 900 * time.Millisecond
		}
		answer(time.Second, d)
	}
	// 300 ms is counted from 288 to 320.
	if got := answer(31*time.Second, 321*time.Millisecond); got != 320*time.Millisecond {
		t.Errorf("got a bound of %v, want 320ms", got)
	}
	if got := answer(32*time.Second, 320*time.Millisecond); got != 0 {
		t.Errorf("320ms is slow beyond %v", got)
	}
	answer(62*time.Second, 0)
	if got := answer(93*time.Second, 321*time.Millisecond); got != 0 {
		t.Errorf("got a bound of %v from two answers", got)
	}
	for d := time.Duration(0); d < 10*time.Minute; d = d*9/8 + time.Millisecond {
		if i := bucket(d); edge(i) <= d || i > 0 && edge(i-1) > d {
			t.Fatalf("%v is in bucket %d, from %v to %v", d, i, edge(i-1), edge(i))
		}
	}
}

// TestRecordsOfLargePools wants the best of many candidates, and counts of the rest.
func TestRecordsOfLargePools(t *testing.T) {
	k := bounded(ringBytes)
	o := decided("x", 500, time.Now())
	d := o.Decision
	d.Order = []int32{400, 0} // by chance
	for i := 490; i < 500; i++ {
		d.Fates[i] = 1
	}
	n := 490
	d.Origin, d.Total, d.Flying = d.Origin[:n], d.Total[:n], d.Flying[:n]
	d.Scores = d.Scores[:3*n]
	d.Total[300] = 9
	k.keep(o)
	all, _ := k.records()
	r := all[0].record()
	if len(r.Candidates) != maxSeats || r.Unlisted != 500-maxSeats || r.Scored != 490 {
		t.Fatalf("got %d candidates, %d unlisted, %d scored", len(r.Candidates), r.Unlisted, r.Scored)
	}
	var got []string
	for _, c := range r.Candidates[:5] {
		got = append(got, c.Endpoint)
	}
	if want := "[default/e400 default/e0 default/e300 default/e1 default/e2]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if last := r.Candidates[maxSeats-1].Endpoint; last != "default/e125" { // the pick, e300 and e0 to e125
		t.Errorf("the last is %s", last)
	}
	if len(r.Dropped) != 1 || r.Dropped[0].Count != 10 || r.Dropped[0].By != "model" {
		t.Errorf("got %+v dropped", r.Dropped)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	k := bounded(ringBytes)
	long := strings.Repeat("é", 10000)
	o := decided(long, 1, time.Now())
	o.Model, o.Target, o.Tenant, o.Message, o.Path = long, long, long, long, long
	for range 100 {
		o.Attempts = append(o.Attempts, Attempt{"default/e0", "10.0.0.0:8000", long})
	}
	k.keep(o)
	all, v := k.records()
	if b, _ := json.Marshal(all[0].record()); len(b) > 16<<10 {
		t.Errorf("got a record of %d bytes", len(b))
	}
	if v.Bytes > 16<<10 {
		t.Errorf("got %d bytes in memory", v.Bytes)
	}
}

// TestRecordsHoldNoSnapshot wants the endpoints of a decision to be collected while its record lives.
func TestRecordsHoldNoSnapshot(t *testing.T) {
	k := bounded(ringBytes)
	var gone sync.WaitGroup
	gone.Add(3)
	func() {
		o := decided("x", 3, time.Now())
		for _, e := range o.Decision.Endpoints {
			runtime.AddCleanup(e, func(int) { gone.Done() }, 0)
		}
		k.keep(o)
		o.Decision.Forget()
	}()
	done := make(chan struct{})
	go func() { gone.Wait(); close(done) }()
	for {
		runtime.GC()
		select {
		case <-done:
			if all, _ := k.records(); len(all) != 1 || all[0].record().Candidates[0].Endpoint != "default/e0" {
				t.Error("the record is not whole")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestRosterIsShared(t *testing.T) {
	k := bounded(ringBytes)
	o := decided("a", 5, time.Now())
	k.keep(o)
	next := *o.Decision.Endpoints[0] // a new snapshot of the same endpoint
	o.Decision.Endpoints[0] = &next
	k.keep(o)
	moved := next
	moved.Address = "10.9.9.9:8000"
	o.Decision.Endpoints[0] = &moved
	k.keep(o)
	all, _ := k.healthy.all(nil)
	if all[0].roster != all[1].roster || all[1].roster == all[2].roster {
		t.Error("want one roster for as long as the endpoints are the same")
	}
	if all[1].bytes >= all[0].bytes {
		t.Error("whoever brings a roster pays for it")
	}
}

func TestRingUnderFire(t *testing.T) {
	k := bounded(32 << 10)
	var g sync.WaitGroup
	for w := range 4 {
		g.Go(func() {
			for i := range 200 {
				o := decided(fmt.Sprint(w, "-", i), 3, time.Now())
				o.Retries = i % 2
				k.keep(o)
				if i%10 == 0 {
					all, _ := k.records()
					_ = all[0].record()
				}
			}
		})
	}
	g.Wait()
	if _, v := k.records(); v.Bytes > 64<<10 {
		t.Errorf("got %d bytes", v.Bytes)
	}
}

func TestDecisionsPage(t *testing.T) {
	o := New(Options{Store: fleet.NewStore()})
	at := time.Now().Add(-time.Minute)
	for i, change := range []func(*Outcome){
		func(o *Outcome) {},
		func(o *Outcome) { o.Tenant, o.Model = "acme", "alias" },
		func(o *Outcome) { o.End, o.Status, o.Endpoint, o.Reason = Refused, 503, "", "rejected-no-endpoints" },
		func(o *Outcome) { o.TTFT, o.Pool = 5*time.Second, "other/q" },
		func(o *Outcome) {
			o.Retries, o.Attempts = 1, []Attempt{{"default/e0", "10.0.0.0:8000", "connection refused"}}
			o.Endpoint, o.Address = "default/e1", "10.0.0.1:8000"
		},
		func(o *Outcome) { o.ID = "r0" }, // again
	} {
		out := decided(fmt.Sprint("r", i), 3, at.Add(time.Duration(i)*time.Second))
		change(out)
		o.Done(out)
	}
	mux := o.Mux(MuxOptions{})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	for query, want := range map[string]string{
		"":                                "r0 r4 r3 r2 r1 r0",
		"limit=2":                         "r0 r4",
		"id=r0":                           "r0 r0",
		"tenant=acme":                     "r1",
		"model=alias":                     "r1",
		"pool=q":                          "r3",
		"pool=other/q":                    "r3",
		"endpoint=e1":                     "r4",
		"endpoint=default/e0&failed=true": "r4",
		"endpoint=10.0.0.1:8000":          "r4",
		"outcome=refused,error":           "r2",
		"reason=rejected-no-endpoints":    "r2",
		"slow=true":                       "r3",
		"slow=false&limit=1":              "r0",
		"failed=true":                     "r4 r2",
		"min_ttft_ms=1000":                "r3",
		"since=5s":                        "",
		"since=1h&limit=1":                "r0",
		"since=" + url.QueryEscape(at.Add(4*time.Second).Format(time.RFC3339Nano)): "r0 r4",
	} {
		code, body := get("/debug/decisions?" + query)
		var v struct {
			Decisions []Record `json:"decisions"`
		}
		if err := json.Unmarshal([]byte(body), &v); code != 200 || err != nil {
			t.Fatalf("%s: got %d, %v: %s", query, code, err, body)
		}
		var ids []string
		for _, d := range v.Decisions {
			ids = append(ids, d.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	for query, want := range map[string]string{
		"colour=red":      `unknown parameter \"colour\": want endpoint, failed,`,
		"limit=1001":      `limit: want 1 to 1000`,
		"limit=1&limit=2": `limit: want it once`,
		"outcome=bad":     `outcome: want some of complete,`,
		"since=tomorrow":  `since: want how long ago, such as 5m`,
		"slow=maybe":      `slow: want true or false`,
		"min_ttft_ms=NaN": `min_ttft_ms: want milliseconds`,
	} {
		if code, body := get("/debug/decisions?" + query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: got %d, %s, want %s", query, code, body, want)
		}
	}
	code, body := get("/debug/decisions/r4")
	var r Record
	if err := json.Unmarshal([]byte(body), &r); code != 200 || err != nil {
		t.Fatalf("got %d, %v: %s", code, err, body)
	}
	if r.Pick != "default/e0" || r.Candidates[0].Verdict != Failed || r.Candidates[1].Verdict != Served || r.Candidates[2].Verdict != Fallback {
		t.Errorf("got %+v", r)
	}
	if code, body := get("/debug/decisions?id=r4&full=true"); code != 200 || !strings.Contains(body, `"queue-scorer"`) {
		t.Errorf("got %d, %s, want the whole record", code, body)
	}
	if code, body := get("/debug/decisions/nobody"); code != http.StatusNotFound || !strings.Contains(body, "records live until") {
		t.Errorf("got %d, %s", code, body)
	}
}

func FuzzAsk(f *testing.F) {
	for _, s := range []string{"", "id=x&limit=3", "since=5m&slow=1", "outcome=error,refused", "min_ttft_ms=1e300", "since=-1h", "%zz", "a;b"} {
		f.Add(s)
	}
	now := time.Now()
	r := bounded(ringBytes).copy(decided("x", 2, now))
	f.Fuzz(func(t *testing.T, query string) {
		q, err := ask(query, now)
		if err == nil && (q.limit < 1 || q.limit > mostLimit || q.minTTFT < 0 || q.since.After(now) && !strings.Contains(query, "since=")) {
			t.Errorf("got %+v", q)
		}
		if err != nil && len(err.Error()) > 1024+3*len(query) {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		q.wants(r)
	})
}

// TestNotKeptDoesNotAllocate holds the cost of a request that is not remembered.
func TestNotKeptDoesNotAllocate(t *testing.T) {
	var tt tails
	var a allowance
	o := decided("x", 100, time.Now())
	if n := testing.AllocsPerRun(100, func() {
		if ttft, end := tt.judge(o, o.Start); ttft+end != 0 || inTrouble(o) {
			t.Fatal("want a healthy one")
		}
		a.take(o.Start)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func BenchmarkKeep(b *testing.B) {
	o := decided("x", 100, time.Now())
	b.Run("kept", func(b *testing.B) {
		k := bounded(ringBytes)
		o := *o
		o.Retries = 1
		b.ReportAllocs()
		for b.Loop() {
			k.keep(&o)
		}
	})
	b.Run("passed", func(b *testing.B) {
		k := bounded(ringBytes)
		k.allowance = allowance{used: 1e9, at: o.Start.Add(time.Hour)}
		b.ReportAllocs()
		for b.Loop() {
			k.keep(o)
		}
	})
}
