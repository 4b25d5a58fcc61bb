// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// candidate is an endpoint as a record shows it.
func candidate(name string, waiting float64, flying int, work int64, blocks int) observe.Candidate {
	age := int64(10)
	return observe.Candidate{
		Endpoint: "default/" + name, Address: "10.0.0.1:8000", Verdict: observe.Left, InFlight: flying, Work: work, CachedBlocks: blocks, CachedTokens: 64 * blocks,
		Signals: map[string]observe.SignalView{"waiting": {State: "fresh", Value: &waiting, AgeMS: &age}, "kv_usage": {State: "absent"}},
	}
}

func record(id, pick string, list ...observe.Candidate) observe.Record {
	r := observe.Record{Pick: "default/" + pick, Candidates: list, Endpoints: len(list), Blocks: 10, BlockSize: 64, Tokens: observe.TokenView{Estimated: 640}}
	r.ID, r.Time = id, time.Unix(1000, 0)
	return r
}

func decider(t *testing.T, name string) Decider {
	t.Helper()
	p, err := policy.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := p.Profile()
	if err != nil {
		t.Fatal(err)
	}
	plan := &sched.Plan{Profiles: []*sched.Profile{profile}, Handler: policy.Handlers["single-profile-handler"]()}
	return Decider{Name: name, Plan: plan.Ready()}
}

func TestPlay(t *testing.T) {
	dropped := candidate("c", 0, 0, 0, 0)
	dropped.Verdict, dropped.By = observe.Dropped, "health"
	list := []observe.Record{
		// a holds all of the prompt, b nothing and is idle: the cache decides for the default, the load for least-request.
		record("1", "a", candidate("a", 3, 5, 900, 10), candidate("b", 0, 1, 100, 0), dropped),
		// Nothing is cached: the queue decides, 2 in flight against 1.
		record("2", "a", candidate("a", 0, 2, 10, 0), candidate("b", 9, 1, 5, 0), dropped),
		// Alike in everything.
		record("3", "a", candidate("a", 0, 1, 10, 0), candidate("b", 0, 1, 10, 0)),
	}
	same := Play(list, decider(t, "llm-d-default"), 1, 3)
	if same.Decisions != 3 || same.Moved != 0 || same.Same+same.Tied != 3 {
		t.Errorf("default: %+v", same)
	}
	r := Play(list, decider(t, "least-request"), 1, 1)
	// 1 and 2 would have gone to b: 0 tokens cached there and 640 here, (100+5)/2 in flight there and (900+10)/2 here.
	if r.Moved != 2 || r.CachedThere != 0 || r.CachedHere != 320 || r.WorkThere != 52.5 || r.WorkHere != 455 || r.WaitingThere != 4.5 || r.WaitingHere != 1.5 {
		t.Errorf("least-request: %+v", r)
	}
	if len(r.Examples) != 1 || r.Examples[0].ID != "1" || r.Examples[0].To.Endpoint != "default/b" {
		t.Errorf("examples: %+v", r.Examples)
	}
	had, would := 0, 0
	for _, s := range r.Shares {
		if s.Endpoint == "default/c" {
			t.Error("one that was ejected would have got requests")
		}
		had, would = had+s.Had, would+s.Would
	}
	if had != 3 || would != 3 {
		t.Errorf("%d had, %d would", had, would)
	}
	var b bytes.Buffer
	if err := Table(&b, list, 2, []Result{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 decisions, and 2 records without one", "least-request: 2 (66.7 %) would have gone elsewhere", "e.g. 1: from default/a (640 cached, 5 in flight)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

func TestRead(t *testing.T) {
	const one = `{"id": "a", "time": "2026-01-01T00:00:02Z", "pick": "x/y", "candidates": [{"endpoint": "x/y"}]}`
	const other = `{"id": "b", "time": "2026-01-01T00:00:01Z", "pick": "x/y", "candidates": [{"endpoint": "x/y"}]}`
	const none = `{"id": "c", "candidates": []}`
	for _, text := range []string{
		one + "\n" + none + "\n" + other + "\n",
		"[" + one + ",\n" + none + "," + other + "]",
		`{"kept": {"records": 3}, "matched": 3, "decisions": [` + one + "," + none + "," + other + "]}",
		strings.ReplaceAll(one, ",", ",\n") + none + other,
	} {
		list, without, err := Read("f", strings.NewReader(text))
		if err != nil || len(list) != 2 || without != 1 || list[0].ID != "b" {
			t.Errorf("%s: got %d, %d, %v", text, len(list), without, err)
		}
	}
	for _, x := range []struct{ text, want string }{
		{"", "f: is empty"},
		{one + "\n" + `{"id": `, "f:2: unexpected EOF"},
		{one + "\n\n{nonsense}", "f:3: invalid character"},
		{"\n3\n", "f:2: json: cannot unmarshal number"},
		{one + "\n" + `{"id": 5}`, "f:2: json: cannot unmarshal number"},
	} {
		if _, _, err := Read("f", strings.NewReader(x.text)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: got %v, want %s", x.text, err, x.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"decisions": [{"id": "a", "pick": "x/y", "candidates": [{"endpoint": "x/y", "in_flight": 3, "unseen": 9, "signals": {"waiting": {"state": "fresh", "value": 1}}}]}]}`))
	f.Add([]byte(`[{"id": "a"}]`))
	p, _ := policy.ByName("llm-d-default")
	profile, _ := p.Profile()
	d := Decider{Name: "llm-d-default", Plan: (&sched.Plan{Profiles: []*sched.Profile{profile}, Handler: policy.Handlers["single-profile-handler"]()}).Ready()}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, _, err := Read("f", bytes.NewReader(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%v: want the file's name", err)
			}
			return
		}
		for i := range list {
			for k := range list[i].Candidates {
				list[i].Candidates[k].InFlight = min(list[i].Candidates[k].InFlight, 1000) // not the point here
			}
		}
		if r := Play(list, d, 1, 1); r.Same+r.Tied+r.Moved+r.Nowhere != r.Decisions {
			t.Errorf("%s", fmt.Sprintf("%+v", r))
		}
	})
}
