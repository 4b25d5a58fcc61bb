// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// screen runs a screener once, or draws= times.
func (s *scenario) screen(t *testing.T, d *datadriven.TestData) string {
	f, err := made(t, s, Screeners, d)
	if err != nil {
		return err.Error() + "\n"
	}
	draws, rng := 1, rand.New(rand.NewPCG(1, 1))
	d.MaybeScanArgs(t, "draws", &draws)
	kept := map[string]int{}
	for range draws {
		c := s.cycle()
		c.Rand = rng
		plan := sched.Plan{Screeners: []sched.Named[sched.Filter]{{Plugin: f}}}
		plan.Screen(c)
		for _, e := range c.Candidates {
			kept[e.Name]++
		}
	}
	var b strings.Builder
	for _, e := range s.endpoints {
		switch n := kept[e.Name]; {
		case n == 0:
		case draws == 1:
			fmt.Fprintf(&b, "%s ", e.Name)
		default:
			fmt.Fprintf(&b, "%s %.2f\n", e.Name, float64(n)/float64(draws))
		}
	}
	return cmp.Or(strings.TrimSpace(b.String()), "none") + "\n"
}

func (s *scenario) choose(t *testing.T, d *datadriven.TestData) string {
	h, err := made(t, s, Handlers, d)
	if err != nil {
		return err.Error() + "\n"
	}
	var profiles []*sched.Profile
	for _, a := range d.CmdArgs {
		if a.Key == "profiles" {
			for _, name := range a.Vals {
				profiles = append(profiles, &sched.Profile{Name: name})
			}
		}
	}
	p, why := h.Choose(s.cycle(), profiles)
	if p == nil {
		return why + "\n"
	}
	return p.Name + "\n"
}

// identify lists what a producer finds out about the request.
func (s *scenario) identify(t *testing.T, d *datadriven.TestData) string {
	p, err := made(t, s, Producers, d)
	if err != nil {
		return err.Error() + "\n"
	}
	c := s.cycle()
	p.Produce(c)
	var b strings.Builder
	for _, a := range c.Attributes {
		fmt.Fprintf(&b, "%s by %s: %s\n", a.Name, a.Producer, a.Value)
	}
	return b.String()
}

// answer asks a plugin of any kind what it adds to an answer of served=.
func (s *scenario) answer(t *testing.T, d *datadriven.TestData) string {
	var by, served string
	d.ScanArgs(t, "by", &by)
	d.ScanArgs(t, "served", &served)
	var v any
	var err error
	switch {
	case Screeners[by] != nil:
		v, err = made(t, s, Screeners, d)
	case Filters[by] != nil:
		v, err = made(t, s, Filters, d)
	case Scorers[by] != nil:
		v, err = made(t, s, Scorers, d)
	default:
		v, err = made(t, s, Reporters, d)
	}
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	v.(sched.Answerer).Answered(s.cycle(), s.endpoint(t, served), func(name, value string) { fmt.Fprintf(&b, "%s: %s\n", name, value) })
	return b.String()
}

func TestReasons(t *testing.T) {
	limit := 5.0
	for want, r := range map[string]sched.Reasoner{
		"tier is not gold or free":                                                   &ByLabel{Label: "tier", ValidValues: []string{"gold", "free"}},
		"it has the label tier":                                                      &ByLabel{Label: "tier", AllowsNoLabel: true},
		"its labels are not a=b, k in (v, w), !x, y":                                 &LabelSelectorFilter{MatchLabels: map[string]string{"a": "b"}, MatchExpressions: []Requirement{{"k", "In", []string{"v", "w"}}, {"x", "DoesNotExist", nil}, {"y", "Exists", nil}}},
		"llm-d.ai/role is there and includes no decode":                              &DecodeFilter{},
		"waiting-queue is above 5, or running-requests is above 5":                   &UtilizationFilter{Conditions: []Limit{{"waiting-queue", &limit}, {"running-requests", &limit}}},
		"x is ≥ 5, or unknown":                                                       &EndpointAttributeFilter{Attribute: "x", OnMissing: fail, Algorithm: Comparison{Threshold: Threshold{"LessThan", &limit}}},
		"another endpoint served this session before":                                &SessionAffinityFilter{},
		"the prompt's length is not in r":                                            &ContextLengthAware{Label: "r"},
		"the header test-epp-endpoint-selection does not list it":                    &HeaderBasedTestingFilter{},
		"it is not in the zone of the endpoint that does another leg of the request": &TopologyAffinityFilter{MinAffinity: "zone"},
	} {
		if got := r.Reason(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"a": "1", "b": "2"}
	for text, want := range map[string]bool{
		"a": true, "a=1": true, "a == 1": true, "a!=1": false, "a!=2": true, "c!=2": true, "!c": true, "!a": false, "c": false,
		"a in (1, 3)": true, "a in (3)": false, "a notin (3,4)": true, "c notin (3)": true, "a=1,b=2": true, "a=1,b in (1,3)": false,
		"a in (1,2),b notin (1,3) , !c": true, "a in (3),b": false,
	} {
		s, err := parseSelector(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := s.matches(labels); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"":          `"": want key=value, key!=value, key in (value, …), key or !key`,
		"a=1,":      "ends with a comma",
		"a,,b":      `"": want key=value, key!=value, key in (value, …), key or !key`,
		"a in 1":    `"a in 1": want key=value, key!=value, key in (value, …), key or !key`,
		"a on (1)":  `"a on (1)": want key in (value, …) or key notin (value, …)`,
		"a in (1":   `"a in (1": want key in (value, …) or key notin (value, …)`,
		"a=1 2":     `"a=1 2": "1 2" is no label's value`,
		"in (1, 2)": `"in (1, 2)": want key in (value, …) or key notin (value, …)`,
	} {
		if _, err := parseSelector(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func FuzzSelector(f *testing.F) {
	f.Add("a=1,b in (1,3),!c")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseSelector(text); err == nil && len(s.MatchExpressions) == 0 {
			t.Errorf("%q selects nothing and is no error", text)
		}
	})
}

// Bindings are as many as there may be, the oldest go first, and those that nobody used go without being asked for.
func TestBindingsAreBounded(t *testing.T) {
	var b bindings
	start, ttl := time.Unix(1000, 0), time.Hour
	for i := range maxBindings + 10 {
		b.bind(fmt.Sprint(i), fleet.ID{Name: "e"}, start.Add(time.Duration(i)*time.Millisecond), ttl)
	}
	last := start.Add((maxBindings + 9) * time.Millisecond)
	_, oldest := b.find("9", last, ttl)
	_, next := b.find("10", last, ttl)
	if len(b.by) != maxBindings || b.recent.Len() != maxBindings || oldest || !next {
		t.Errorf("%d bindings, the 10th %t, the 11th %t; want %d, false, true", len(b.by), oldest, next, maxBindings)
	}
	b.bind("late", fleet.ID{Name: "e"}, last.Add(ttl), ttl)
	if len(b.by) != 1 || b.recent.Len() != 1 {
		t.Errorf("%d bindings are left that nobody used for as long as they last", len(b.by)-1)
	}
}

// What screens, is asked for a session or writes a header for each request allocates nothing.
func TestChoosingDoesNotAllocate(t *testing.T) {
	rng, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1e6, 0)
	endpoints := randomFleet(rng, now, 100)
	for i, e := range endpoints {
		e.Labels = map[string]string{"set": "x", revisionLabel: fmt.Sprint(i % 2), roleOfSetLabel: []string{"prefill", "decode"}[i/2%2],
			"llm-d.ai/context-length-range": "0-8192", roleLabel: "both"}
	}
	screener := Screeners["disaggregatedset-rollout-screener"]().(*DisaggregatedSetRolloutScreener)
	screener.Scope.LabelSelector = "set=x"
	screener.RevisionGating.Mode, screener.RevisionGating.RequireRoles.Values = "max-role", []string{"prefill", "decode"}
	token, id := &SessionAffinityFilter{newSessionAffinity()}, &SessionAffinityFilter{newSessionAffinity()}
	id.Strategy = bySessionID
	length, topology := newContextLengthAware(), &TopologyAffinityFilter{MinAffinity: "zone"}
	length.EnableFiltering = true
	value := 0.5
	limit := &UtilizationFilter{Conditions: []Limit{{"kv-cache-utilization", &value}, {"active-requests", &value}}}
	for name, f := range map[string]sched.Filter{"screener": screener, "token": token, "session id": id, "length": length, "topology": topology, "limit": limit} {
		if v, ok := f.(interface{ Validate() error }); ok && v.Validate() != nil {
			t.Fatal(v.Validate())
		}
		c := lawCycle(rng, now, endpoints, nil)
		c.Headers, c.Peer = headers{"x-session-token": "L2U5OQ==", "x-session-id": "s"}, endpoints[0]
		id.Placed(c, endpoints[7])
		keep := make([]bool, len(endpoints))
		if a := testing.AllocsPerRun(20, func() { keepAll(keep); f.Filter(c, keep) }); a != 0 {
			t.Errorf("%s: %v allocations, want 0", name, a)
		}
		if !slices.Contains(keep, true) {
			t.Errorf("%s kept nothing", name)
		}
	}
}

// The list's order is the pick's, and of one address one endpoint is kept.
func TestTestingFilterFollowsItsList(t *testing.T) {
	now := time.Unix(1e6, 0)
	for list, want := range map[string]string{
		"10.0.0.2, 10.0.0.1:8000":              "b a",
		"10.0.0.1:8001,10.0.0.2,10.0.0.1:8000": "a1 b",
		"[fd00::1]:80":                         "six",
		"fd00::1 , nowhere,,10.0.0.2":          "six b",
		"10.0.0.1:9":                           "",
	} {
		var fleets []*fleet.Endpoint
		for name, address := range map[string]string{"a": "10.0.0.1:8000", "a1": "10.0.0.1:8001", "b": "10.0.0.2:8000", "six": "[fd00::1]:80"} {
			fleets = append(fleets, &fleet.Endpoint{ID: fleet.ID{Name: name}, Address: address, Load: &fleet.Load{}})
		}
		slices.SortFunc(fleets, func(a, b *fleet.Endpoint) int { return a.ID.Compare(b.ID) })
		c := lawCycle(rand.New(rand.NewPCG(1, 1)), now, fleets, nil)
		c.Headers = headers{testSelection: list}
		f := &HeaderBasedTestingFilter{}
		p := &sched.Profile{Filters: []sched.Named[sched.Filter]{{Plugin: f}}, Scorers: []sched.Weighted{weighted("", f, 1)},
			Picker: sched.Named[sched.Picker]{Plugin: &MaxScorePicker{}}}
		p.Decide(c)
		var got []string
		for _, i := range c.Order {
			got = append(got, c.Candidates[i].Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", list, got, want)
		}
	}
}
