// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
)

// rules gives the rig's pool rules, and a second endpoint model "n".
func (r *rig) rules(rules fleet.Rewrites) {
	r.Store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}, Rewrites: rules}})
	e := r.endpoints()[1]
	r.Store.TellModels(e.ID, e.Load, []string{"n", "lora"}, nil)
}

func to(models ...string) *fleet.Rewrite {
	w := &fleet.Rewrite{}
	for _, m := range models {
		w.Targets = append(w.Targets, fleet.Target{Model: m, Weight: 1})
	}
	return w
}

// sentBody is what an endpoint gets.
func sentBody(x *Exchange, p *Placement) string {
	b := p.Body
	if b == nil {
		b = x.Body()
	}
	return string(bytes.Join(slices.Collect(b.Chunks), nil))
}

func TestRewrite(t *testing.T) {
	const new, old = "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"
	exact := fleet.Rewrites{Exact: map[string]*fleet.Rewrite{"alias": to("n"), "lost": to("nowhere"), "m": to("m")}}
	all := fleet.Rewrites{Exact: exact.Exact, All: to("lora")}
	for _, c := range []struct {
		name    string
		rules   fleet.Rewrites
		headers headers
		distrust,
		strict bool
		path, body string
		want       string // what is sent, "" for the body
		model      string // that the engine is asked for
		refused    bool
	}{
		{name: "no rules", body: `{"model":"alias"}`, model: "alias"},
		{name: "a rule", rules: exact, body: `{"model":"alias","n":1}`, want: `{"model":"n","n":1}`, model: "n"},
		{name: "a rule without a change", rules: exact, body: `{"model":"m"}`, model: "m"},
		{name: "another model", rules: exact, body: `{"model":"n"}`, model: "n"},
		{name: "a rule for all", rules: all, body: `{"model":"z"}`, want: `{"model":"lora"}`, model: "lora"},
		{name: "exact before all", rules: all, body: `{"model":"alias"}`, want: `{"model":"n"}`, model: "n"},
		{name: "no model", rules: all, body: `{"n":1}`, want: `{"model":"lora","n":1}`, model: "lora"},
		{name: "no model and a path we do not know", rules: all, path: "/tokenize", body: `{"n":1}`},
		{name: "a path we do not know", rules: all, path: "/tokenize", body: `{"model":"alias"}`, want: `{"model":"n"}`, model: "n"},
		{name: "not a JSON object", rules: all, headers: headers{new: "n"}, body: `["alias"]`},
		{name: "a model that is no string", rules: all, headers: headers{new: "n"}, body: `{"model":["alias"]}`},
		{name: "header", headers: headers{new: "n"}, body: `{"model":"m"}`, want: `{"model":"n"}`, model: "n"},
		{name: "header by its old name", headers: headers{old: "n"}, body: `{"model":"m"}`, want: `{"model":"n"}`, model: "n"},
		{name: "the new name wins", headers: headers{new: "n", old: "m"}, body: `{"model":"a"}`, want: `{"model":"n"}`, model: "n"},
		{name: "header and no model", headers: headers{new: "n"}, body: `{}`, want: `{"model":"n"}`, model: "n"},
		{name: "header without a change", headers: headers{new: "m"}, body: `{"model":"m"}`, model: "m"},
		{name: "a rule overrides the header", rules: exact, headers: headers{new: "lora"}, body: `{"model":"alias"}`, want: `{"model":"n"}`, model: "n"},
		{name: "a rule for all overrides the header", rules: all, headers: headers{new: "n"}, body: `{"model":"z"}`, want: `{"model":"lora"}`, model: "lora"},
		{name: "rules do not apply to the header", rules: exact, headers: headers{new: "alias"}, body: `{"model":"z"}`, want: `{"model":"alias"}`, model: "alias"},
		{name: "header of somebody else", headers: headers{new: "n", old: "n"}, distrust: true, body: `{"model":"m"}`, model: "m"},
		{name: "header too long", headers: headers{new: strings.Repeat("n", 2<<10)}, body: `{"model":"m"}`, model: "m"},
		{name: "strict: the target counts", rules: exact, strict: true, body: `{"model":"alias"}`, want: `{"model":"n"}`, model: "n"},
		{name: "strict: a target that is not served", rules: exact, strict: true, body: `{"model":"lost"}`, model: "nowhere", refused: true},
		{name: "strict: the header counts", strict: true, headers: headers{new: "n"}, body: `{"model":"zzz"}`, want: `{"model":"n"}`, model: "n"},
		{name: "strict: a header that is not served", strict: true, headers: headers{new: "zzz"}, body: `{"model":"m"}`, model: "zzz", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 2, slog.LevelInfo)
			r.rules(c.rules)
			r.door.SetTrust(Trust{All: !c.distrust})
			r.door.Strict = c.strict
			if c.headers == nil {
				c.headers = headers{}
			}
			x := r.Begin(&r.door, Head{Method: "POST", Path: cmp.Or(c.path, "/v1/chat/completions"), Headers: c.headers})
			if ref := x.Write([]byte(c.body)); ref != nil {
				t.Fatal(ref)
			}
			p, ref := x.Place(t.Context())
			defer x.End(observe.Refused)
			if (ref != nil) != c.refused {
				t.Fatalf("refused %v", ref)
			}
			var in struct{ Model string }
			_ = json.Unmarshal([]byte(c.body), &in)
			if x.out.Model != in.Model || x.out.Target != c.model {
				t.Errorf("labels say %q and %q, want %q and %q", x.out.Model, x.out.Target, in.Model, c.model)
			}
			if ref != nil {
				return
			}
			if c.want == "" {
				if c.want = c.body; p.Body != nil {
					t.Error("the body was touched")
				}
			}
			if got := sentBody(x, p); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if x.cycle.Model != c.model {
				t.Errorf("scheduled for %q, want %q", x.cycle.Model, c.model)
			}
			if c.model == "n" && x.order[0].Name != "e1" || c.model == "m" && x.order[0].Name != "e0" {
				t.Errorf("%q went to %s", c.model, x.order[0].Name)
			}
		})
	}
}

// The shares are those of the weights, and the same seed gives the same choices.
func TestRewriteByChance(t *testing.T) {
	choices := func() (all []string) {
		r := newRig(t, 2, slog.LevelError)
		r.rules(fleet.Rewrites{All: &fleet.Rewrite{Targets: []fleet.Target{{Model: "m", Weight: 3}, {Model: "n", Weight: 1}}}})
		for range 400 {
			x, _, ref := r.place(t, nil, `{"model":"z"}`)
			if ref != nil {
				t.Fatal(ref)
			}
			all = append(all, x.out.Target)
			x.End(observe.Complete)
		}
		return all
	}
	first := choices()
	n := map[string]int{}
	for _, m := range first {
		n[m]++
	}
	// 400 times 3 of 4 is 300, with a deviation of 9: six of them are never left, and the seed is fixed.
	if n["m"] < 246 || n["m"] > 354 || n["m"]+n["n"] != 400 {
		t.Errorf("got %v of 400", n)
	}
	if !slices.Equal(first, choices()) {
		t.Error("the same seed chose differently")
	}
}

func TestRestoreOnlyWhatWasRenamed(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		answer     headers
		want       bool
	}{
		{"JSON", `{"model":"alias"}`, 200, headers{"content-type": "application/json; charset=utf-8"}, true},
		{"a stream", `{"model":"alias"}`, 200, headers{"content-type": "text/event-stream"}, true},
		{"an error", `{"model":"alias"}`, 422, headers{"content-type": "application/problem+json"}, true},
		{"encoded", `{"model":"alias"}`, 200, headers{"content-type": "application/json", "content-encoding": "gzip"}, false},
		{"a part", `{"model":"alias"}`, 206, headers{"content-type": "application/json"}, false},
		{"text", `{"model":"alias"}`, 200, headers{"content-type": "text/plain"}, false},
		{"of no type", `{"model":"alias"}`, 200, headers{}, false},
		{"not renamed", `{"model":"n"}`, 200, headers{"content-type": "application/json"}, false},
		{"nothing to give back", `{}`, 200, headers{"content-type": "application/json"}, false},
	} {
		r := newRig(t, 2, slog.LevelError)
		r.rules(fleet.Rewrites{Exact: map[string]*fleet.Rewrite{"alias": to("n"), "": to("n")}})
		x, _, ref := r.place(t, nil, c.body)
		if ref != nil {
			t.Fatal(ref)
		}
		if x.Restore() != nil {
			t.Errorf("%s: restores before there is an answer", c.name)
		}
		x.Answer(c.status, c.answer)
		got := x.Restore()
		if (got != nil) != c.want {
			t.Errorf("%s: restores %v", c.name, got != nil)
		}
		if got != nil && c.name == "JSON" {
			if out := string(got.Feed([]byte(`{"model":"n"}`))); out != `{"model":"alias"}` {
				t.Errorf("got %s", out)
			}
		}
		x.End(observe.Complete)
		if x.Restore() != nil {
			t.Errorf("%s: restores after the end", c.name)
		}
	}
}

// Rules that do not concern a request cost it nothing: neither an allocation, nor an edit.
func TestNoRewriteCostsNothing(t *testing.T) {
	r := newRig(t, 2, slog.LevelError)
	allocs := func(rules fleet.Rewrites) float64 {
		r.rules(rules)
		x := r.begin(nil)
		defer x.End(observe.Complete)
		if ref := x.Write([]byte(chat("x"))); ref != nil {
			t.Fatal(ref)
		}
		x.facts = x.scan.Finish()
		snap := r.Store.Load()
		return testing.AllocsPerRun(100, func() {
			if _, model, ref := x.aim(snap); model != "m" || ref != nil || x.rename.to != "" {
				t.Errorf("got %q, %v", model, ref)
			}
		})
	}
	for name, rules := range map[string]fleet.Rewrites{
		"none":   {},
		"others": {Exact: map[string]*fleet.Rewrite{"alias": to("n")}},
		"same":   {All: to("m")},
	} {
		if n := allocs(rules); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
