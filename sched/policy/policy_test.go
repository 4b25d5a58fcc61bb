// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// TestScenarios runs the files of testdata. A fleet is a line per endpoint: its name, then waiting=, kv=, unseen=
// (requests sent that no signal shows yet), age= (of its signals, in seconds), label=key:value. What is not given is
// unknown. `match` gives each endpoint's cached blocks of a prompt of total= blocks.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{now: time.Unix(1000, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "fleet":
				s.fleet(t, d.Input)
				return ""
			case "match":
				d.ScanArgs(t, "total", &s.blocks)
				s.match = s.numbers(t, d.Input)
				return ""
			case "score":
				return s.score(t, d)
			case "filter":
				return s.filter(t, d)
			case "decide":
				return s.decide(t, d)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

type scenario struct {
	now       time.Time
	endpoints []*fleet.Endpoint
	match     map[string]float64
	blocks    int
}

func (s *scenario) fleet(t *testing.T, input string) {
	s.endpoints, s.match, s.blocks = nil, nil, 0
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		e := &fleet.Endpoint{ID: fleet.ID{Name: f[0]}, Labels: map[string]string{}, Load: &fleet.Load{Slot: uint32(len(s.endpoints))}}
		at := s.now
		var waiting, kv string
		for _, kvp := range f[1:] {
			k, v, _ := strings.Cut(kvp, "=")
			switch k {
			case "waiting":
				waiting = v
			case "kv":
				kv = v
			case "age":
				at = s.now.Add(-time.Duration(number(t, v) * float64(time.Second)))
			case "unseen":
				for range int(number(t, v)) {
					e.Load.Take(1)
				}
			case "label":
				name, value, _ := strings.Cut(v, ":")
				e.Labels[name] = value
			default:
				t.Fatalf("unknown field %q", k)
			}
		}
		if waiting != "" {
			e.Waiting = fleet.Signal{Value: number(t, waiting), At: at}
		}
		if kv != "" {
			e.KVUsage = fleet.Signal{Value: number(t, kv), At: at}
		}
		s.endpoints = append(s.endpoints, e)
	}
}

func (s *scenario) numbers(t *testing.T, input string) map[string]float64 {
	m := map[string]float64{}
	for _, f := range strings.Fields(input) {
		k, v, _ := strings.Cut(f, "=")
		m[k] = number(t, v)
	}
	return m
}

func number(t *testing.T, s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *scenario) cycle() *sched.Cycle {
	c := &sched.Cycle{Now: s.now, Stale: 2 * time.Second, Rand: rand.New(rand.NewPCG(1, 1)), Candidates: append([]*fleet.Endpoint(nil), s.endpoints...)}
	(&sched.Profile{}).Produce(c)
	for i, e := range c.Candidates {
		c.Match[i] = int32(s.match[e.Name])
	}
	c.Blocks, c.BlockTokens = s.blocks, 64
	return c
}

// options decodes key=value arguments other than by into the plugin's fields, by their JSON names.
func build[T any](t *testing.T, set map[string]func() T, d *datadriven.TestData) T {
	var by string
	d.ScanArgs(t, "by", &by)
	f, ok := set[by]
	if !ok {
		t.Fatalf("no plugin %q", by)
	}
	return f()
}

func (s *scenario) score(t *testing.T, d *datadriven.TestData) string {
	scorer := build(t, Scorers, d)
	if p, ok := scorer.(*PrefixCacheScorer); ok && d.HasArg("weight") {
		var w string
		d.ScanArgs(t, "weight", &w)
		p.MatchLengthWeight = number(t, w)
	}
	c := s.cycle()
	score := make([]float64, len(c.Candidates))
	scorer.Score(c, score)
	var b strings.Builder
	for i, e := range c.Candidates {
		fmt.Fprintf(&b, "%s %.2f\n", e.Name, score[i])
	}
	return b.String()
}

func (s *scenario) filter(t *testing.T, d *datadriven.TestData) string {
	var key, op string
	d.ScanArgs(t, "key", &key)
	d.ScanArgs(t, "op", &op)
	f := &LabelSelectorFilter{MatchExpressions: []Requirement{{Key: key, Operator: op, Values: strings.Fields(d.Input)}}}
	if err := f.Validate(); err != nil {
		return err.Error() + "\n"
	}
	c := s.cycle()
	keep := make([]bool, len(c.Candidates))
	f.Filter(c, keep)
	var names []string
	for i, e := range c.Candidates {
		if keep[i] {
			names = append(names, e.Name)
		}
	}
	return strings.Join(names, " ") + "\n"
}

// decide runs the default profile: queue 2, KV 2, prefix 3, highest score.
func (s *scenario) decide(t *testing.T, d *datadriven.TestData) string {
	p := &sched.Profile{
		Scorers: []sched.Weighted{
			{Name: "queue-scorer", Scorer: Scorers["queue-scorer"](), Weight: 2},
			{Name: "kv-cache-utilization-scorer", Scorer: Scorers["kv-cache-utilization-scorer"](), Weight: 2},
			{Name: "prefix-cache-scorer", Scorer: Scorers["prefix-cache-scorer"](), Weight: 3},
		},
		Picker: sched.Named[sched.Picker]{Name: "max-score-picker", Plugin: Pickers["max-score-picker"]()},
	}
	c := s.cycle()
	if !p.Decide(c) {
		return "none\n"
	}
	var b strings.Builder
	for i, e := range c.Candidates {
		fmt.Fprintf(&b, "%s %.4f\n", e.Name, c.Total[i])
	}
	fmt.Fprintf(&b, "pick %s\n", c.Candidates[c.Order[0]].Name)
	return b.String()
}
