// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// The header of an answer, sent with the next request, leads back to who served, also where that was not the
// pick; and the same header of two plugins is there once.
func TestSessionTokenLeadsBack(t *testing.T) {
	r := newRig(t, 4, slog.LevelInfo)
	r.with(func(p *sched.Plan) {
		d := p.Profiles[0]
		p.Producers = nil
		d.Filters = []sched.Named[sched.Filter]{{Name: "session", Plugin: policy.Filters["session-affinity-filter"]()}}
		d.Scorers = []sched.Weighted{{Named: sched.Named[sched.Scorer]{Name: "prefers", Plugin: policy.Scorers["session-affinity-scorer"]()}, Weight: 1}}
	})
	x, _, _ := r.place(t, nil, chat("x"))
	home := x.Next().Address
	added := x.Answer(200, headers{})
	x.End(observe.Complete)
	if len(added) != 1 || added[0].Name != "x-session-token" {
		t.Fatalf("the answer got %v, want one x-session-token", added)
	}
	for range 8 {
		x, p, _ := r.place(t, headers{"x-session-token": added[0].Value}, chat("x"))
		if p.Destination != home {
			t.Errorf("went to %s, %s served before", p.Destination, home)
		}
		if again := x.Answer(200, headers{}); !slices.Equal(again, added) {
			t.Errorf("the answer got %v, want %v", again, added)
		}
		x.End(observe.Complete)
	}
	if got := fatesOf(r, t, headers{"x-session-token": added[0].Value}); strings.Count(got, "session another endpoint served this session before") != 2 { // and one is ejected
		t.Errorf("the decision says %s", got)
	}
}

func fatesOf(r *rig, t *testing.T, h headers) string {
	x, _, _ := r.place(t, h, chat("x"))
	defer x.End(observe.Complete)
	return fates(x)
}

// The rank's header follows the request to another endpoint, and what is dialled is the primary port.
func TestRankHeaderFollowsAFallback(t *testing.T) {
	r := newRig(t, 2, slog.LevelInfo)
	h := policy.Handlers["data-parallel-profile-handler"]().(*policy.DataParallelProfileHandler)
	h.PrimaryPort = 9000
	r.with(func(p *sched.Plan) { p.Handler = h })
	x, p, _ := r.place(t, nil, chat("x"))
	rank := func() (value string) {
		for _, f := range p.Set {
			if f.Name == "x-data-parallel-host-port" {
				value += f.Value
			}
		}
		return value
	}
	host := strings.TrimSuffix(p.Endpoint.Address, ":9000")
	if got := rank(); got != host+":8000" || p.Destination != host+":9000" {
		t.Errorf("the first goes to %s for rank %s", p.Destination, got)
	}
	next := x.Next()
	other := strings.TrimSuffix(next.Address, ":9000")
	if got := rank(); other == host || got != other+":8000" || len(p.Set) != 2 {
		t.Errorf("the second, %s, gets %v", next.Address, p.Set)
	}
	x.End(observe.Complete)
}

// An agent's identity is the fairness id of who may name one and does not.
func TestAgentIdentityIsTheTenant(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	r.with(func(p *sched.Plan) {
		p.Producers = append(p.Producers, sched.Named[sched.Producer]{Name: "who", Plugin: policy.Producers["agent-identity"]()})
	})
	for _, c := range []struct {
		trusted bool
		headers headers
		want    string
	}{
		{true, headers{"session-id": "a"}, "a"},
		{true, headers{"session-id": "a", "x-claude-code-session-id": "b"}, "b"},
		{true, headers{"session-id": "a", "x-llm-d-inference-fairness-id": "f"}, "f"},
		{true, headers{}, "default-flow"},
		{true, headers{"session-id": strings.Repeat("a", 257)}, "default-flow"},
		{false, headers{"session-id": "a"}, "default-flow"},
	} {
		r.door.SetTrust(Trust{All: c.trusted})
		x, _, _ := r.place(t, c.headers, chat("x"))
		if x.out.Tenant != c.want {
			t.Errorf("%v, trusted %t: got %q, want %q", c.headers, c.trusted, x.out.Tenant, c.want)
		}
		x.End(observe.Complete)
	}
}
