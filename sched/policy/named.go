// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// Policy is a whole way to route under a short name, such as one of another project's router, so that they can be
// compared with the same engines and the same requests.
type Policy struct {
	Name string
	// Doc says in one sentence how it decides.
	Doc   string
	parts []part
	line  *line // nil for none
}

// line is a queue in front of the endpoints, for as long as it takes: who of those that wait is next.
type line struct {
	name, doc       string
	fairness, order part
}

// lines are what may stand behind the name of a policy for requests to wait here until an endpoint has room, as
// adaptive-detector sees it, instead of in the engine that was chosen at once.
var lines = []line{
	{"fcfs", "who came first", part{typ: "global-strict-fairness-policy"}, part{typ: "fcfs-ordering-policy"}},
	{"turns", "tenants in turn", part{typ: "round-robin-fairness-policy"}, part{typ: "fcfs-ordering-policy"}},
	{"vtc", "the tenant that got least tokens", part{typ: "vtc-fairness-policy"}, part{typ: "fcfs-ordering-policy"}},
	{"vtc-cached", "the same, and of its requests what is cached best", part{typ: "vtc-fairness-policy"}, part{typ: "least-uncached-first-ordering-policy"}},
	{"dlpm", "what is cached best, within a slack for tenants", part{typ: "dlpm-fairness-policy"}, part{typ: "least-uncached-first-ordering-policy"}},
}

// Lines lists what may stand behind a policy's name and a plus for requests to wait in the gateway, and who is next
// then.
func Lines() (list [][2]string) {
	for _, l := range lines {
		list = append(list, [2]string{l.name, l.doc})
	}
	return list
}

// part is a filter, a scorer or the picker of a policy; parameters are JSON, empty for the defaults.
type part struct {
	typ        string
	weight     float64
	parameters string
}

// hears are the producers that know what simulated engines hold.
var hears = []part{{"token-producer", 0, `{"simulated": true}`}, {"precise-prefix-cache-producer", 0, ""}}

// roomFor says in all lines whether an endpoint has room.
const roomFor = "adaptive-detector"

// precisely is what stands behind the name of a policy that is to know what simulated engines hold.
const precisely = "+precise"

// DefaultName is the name of what decides when nobody writes a configuration; see design note 9.
const DefaultName = "penstock-default"

// Default is the policy of that name.
func Default() Policy { return Named[0] }

// Named lists the policies. All need the matches of a prefix producer but those that Doc says so of.
var Named = named([]struct {
	name, doc string
	parts     []part
}{
	{DefaultName, "Is priced-miss with work multiplied by the batch size: what decides when nobody writes a configuration.", []part{{"priced-miss-scorer", 1, `{"batch": true}`}}},
	{"llm-d-default", "Is what llm-d weighed by default before it was sticky: queue 2, KV cache 2 and cached prefix 3.", []part{
		{"queue-scorer", 2, ""}, {"kv-cache-utilization-scorer", 2, ""}, {"prefix-cache-scorer", 3, ""}}},
	{"precise", "Is llm-d-default with the prefixes that engines say they hold, by their KV events.", append(hears[:2:2],
		part{"queue-scorer", 2, ""}, part{"kv-cache-utilization-scorer", 2, ""}, part{"prefix-cache-scorer", 3, ""})},
	{"sticky", "Takes holders of most of the prompt unless they would answer 18 s later than others, of these the one with fewest tokens in flight (llm-d's default since August 2026).", []part{
		{"prefix-cache-affinity-filter", 0, ""}, {"token-load-scorer", 1, ""}}},
	{"priced-miss", "Takes the least cost in seconds, with a price on cache misses.", []part{{"priced-miss-scorer", 1, ""}}},
	{"priced-miss-batch", "Is priced-miss with work multiplied by the batch size.", []part{{"priced-miss-scorer", 1, `{"batch": true}`}}},
	{"greedy", "Is priced-miss without a price: each request looks after itself alone.", []part{{"priced-miss-scorer", 1, `{"hitRate": 0}`}}},
	{"lmetric", "Takes the least product of uncached tokens and batch size (LMetric).", []part{{"lmetric-scorer", 1, ""}}},
	{"lmetric-queued", "Is lmetric with the tokens in flight added.", []part{{"lmetric-scorer", 1, `{"queued": true}`}}},
	{"dynamo", "Takes the least sum of prefill and decode blocks (NVIDIA Dynamo).", []part{{"dynamo-scorer", 1, ""}}},
	{"sglang", "Takes the longest match while loads are balanced (SGLang's cache_aware).", []part{{"sglang-cache-aware-scorer", 1, ""}}},
	{"aibrix", "Takes the longest match among endpoints within a standard deviation of the mean load (AIBrix' prefix-cache).", []part{{"aibrix-prefix-cache-scorer", 1, ""}}},
	{"preble", "Takes the least loaded holder of more than half of the prompt, else the least load and prefill (Preble's E2).", []part{{"preble-scorer", 1, ""}}},
	{"chwbl", "Hashes the first 256 tokens of the prompt to an endpoint, with bounded loads (KubeAI, SMG's prefix_hash).", []part{{"chwbl-scorer", 1, ""}}},
	{"power-of-two", "Takes the cheaper of two by chance (two choices over priced-miss).", []part{{"priced-miss-scorer", 1, ""}, {"power-of-two-picker", 0, ""}}},
	{"least-latency", "Takes the lowest recent time to first output; needs no prefixes.", []part{{"least-latency-scorer", 1, ""}}},
	{"least-request", "Takes the fewest requests in flight; needs no prefixes.", []part{{"active-request-scorer", 1, ""}}},
	{"round-robin", "Takes endpoints in turn; needs no prefixes.", []part{{"round-robin-picker", 0, ""}}},
	{"random", "Takes any endpoint; needs no prefixes.", []part{{"random-picker", 0, ""}}},
})

func named(list []struct {
	name, doc string
	parts     []part
}) (out []Policy) {
	for _, p := range list {
		out = append(out, Policy{Name: p.name, Doc: p.doc, parts: p.parts})
	}
	return out
}

// Names lists the names of the policies.
func Names() []string {
	names := make([]string, len(Named))
	for i, p := range Named {
		names[i] = p.Name
	}
	return names
}

// ByName finds a policy. With "+precise" behind its name it knows what simulated engines hold, by their KV events;
// with one of [Lines] requests wait before they are sent. The error suggests the nearest name.
func ByName(name string) (Policy, error) {
	for i := range lines {
		if plain, ok := strings.CutSuffix(name, "+"+lines[i].name); ok {
			p, err := ByName(plain)
			p.Name, p.line = name, &lines[i]
			return p, err
		}
	}
	if plain, ok := strings.CutSuffix(name, precisely); ok && plain != "precise" {
		p, err := ByName(plain)
		p.Name, p.parts = name, append(hears[:2:2], p.parts...)
		return p, err
	}
	for _, p := range Named {
		if p.Name == name {
			return p, nil
		}
	}
	names := Names()
	if near := plugin.Nearest(name, names); near != "" {
		return Policy{}, fmt.Errorf("no policy is named %q: did you mean %s?", name, near)
	}
	return Policy{}, fmt.Errorf("no policy is named %q: want %s", name, strings.Join(names, ", "))
}

// Profile builds the policy with plugins of its own.
func (p Policy) Profile() (*sched.Profile, error) {
	out := &sched.Profile{Name: p.Name, Endpoints: 1}
	out.Picker = sched.Named[sched.Picker]{Name: "max-score-picker", Plugin: &MaxScorePicker{}}
	for _, t := range p.parts {
		decode := func(v any) error {
			if t.parameters == "" {
				return nil
			}
			return json.Unmarshal([]byte(t.parameters), v)
		}
		var err error
		switch {
		case Producers[t.typ] != nil: // stands beside the profile
		case Filters[t.typ] != nil:
			f := sched.Named[sched.Filter]{Name: t.typ}
			f.Plugin, err = Filters.New(t.typ, decode)
			out.Filters = append(out.Filters, f)
		case Scorers[t.typ] != nil:
			s := sched.Weighted{Weight: t.weight}
			s.Name = t.typ
			s.Plugin, err = Scorers.New(t.typ, decode)
			out.Scorers = append(out.Scorers, s)
		default:
			out.Picker.Name = t.typ
			out.Picker.Plugin, err = Pickers.New(t.typ, decode)
		}
		if err != nil {
			return nil, fmt.Errorf("policy %s: %s: %w", p.Name, t.typ, err)
		}
	}
	return out, nil
}

// Config is the policy as an EndpointPickerConfig, in YAML.
func (p Policy) Config() string {
	var b strings.Builder
	b.WriteString("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n")
	all := p.parts
	if l := p.line; l != nil {
		b.WriteString("featureGates: [flowControl]\n")
		all = append(slices.Clone(all), l.fairness, l.order, part{typ: roomFor})
	}
	b.WriteString("plugins:\n")
	for _, t := range all {
		if t.parameters == "" {
			fmt.Fprintf(&b, "- {type: %s}\n", t.typ)
		} else {
			fmt.Fprintf(&b, "- {type: %s, parameters: %s}\n", t.typ, t.parameters)
		}
	}
	fmt.Fprintf(&b, "schedulingProfiles:\n- name: %s\n  plugins:\n", p.Name)
	for _, t := range p.parts {
		if Producers[t.typ] != nil {
			continue
		}
		if Scorers[t.typ] != nil && t.weight != 0 {
			fmt.Fprintf(&b, "  - {pluginRef: %s, weight: %v}\n", t.typ, t.weight)
		} else {
			fmt.Fprintf(&b, "  - {pluginRef: %s}\n", t.typ)
		}
	}
	if l := p.line; l != nil {
		fmt.Fprintf(&b, "flowControl:\n  defaultRequestTTL: 0s\n  saturationDetector: {pluginRef: %s}\n  defaultPriorityBand: {fairnessPolicyRef: %s, orderingPolicyRef: %s}\n",
			roomFor, l.fairness.typ, l.order.typ)
	}
	return b.String()
}
