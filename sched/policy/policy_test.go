// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// TestScenarios runs the files of testdata. A `fleet` is a line per endpoint: its name, then
//
//	waiting= running= kv=       its signals; what is not given is unknown
//	age=                        of its signals, in seconds
//	unseen= tokens=             requests of ours in flight that no signal shows, of that many tokens each
//	adapters= queued= maxlora=  LoRA adapters, several with +
//	label=key:value             may be repeated
//	attr=name@producer:value    a scalar attribute
//	block= blocks=              its engine's KV blocks: tokens in each, how many
//	rate= ttft=                 what was learned of it: tokens a second, seconds to first output
//	node= pod=                  the address of its machine, the name of its pod
//
// A `request` sets what is asked: model= tokens= max= priority= id=, header=name:value, fact=name@producer:value,
// peer=endpoint, profile=, prompt=text*times, media=name+name. `match total=` gives each endpoint's cached blocks of a prompt of so many
// blocks (block=, by default of 64 tokens; producer=). The commands `score by=TYPE`, `filter by=TYPE`, `admit by=TYPE` take the
// plugin's parameters as JSON for input, and so do `screen` (draws= for the share of draws that keep each), `choose profiles=`,
// `identify` and `answer served=`; `produce by=TYPE` runs a producer, and again for each command that follows; `decide` runs the
// default profile; `sent to=` tells the plugin of the last command, and the producers, where the request went (pick= to another
// before it), and `gone` that an endpoint left.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{now: time.Unix(1000, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "fleet":
				s.fleet(t, d.Input)
			case "request":
				s.asked(t, d)
			case "match":
				s.matches(t, d)
			case "sent":
				var to string
				d.ScanArgs(t, "to", &to)
				pick := to
				d.MaybeScanArgs(t, "pick", &pick)
				return s.sent(s.endpoint(t, to), s.endpoint(t, pick))
			case "gone":
				var who string
				d.ScanArgs(t, "who", &who)
				s.gone(s.endpoint(t, who))
			case "wait":
				var seconds string
				d.ScanArgs(t, "seconds", &seconds)
				s.now = s.now.Add(time.Duration(number(t, seconds) * float64(time.Second)))
			case "produce":
				return s.produce(t, d)
			case "score":
				return s.score(t, d)
			case "filter":
				return s.filter(t, d)
			case "admit":
				return s.admit(t, d)
			case "screen":
				return s.screen(t, d)
			case "choose":
				return s.choose(t, d)
			case "identify":
				return s.identify(t, d)
			case "answer":
				return s.answer(t, d)
			case "decide":
				return s.decide()
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return ""
		})
	})
}

type scenario struct {
	now       time.Time
	endpoints []*fleet.Endpoint
	ask       sched.Cycle
	prefixes  []sched.Prefix // Match in the order of endpoints
	// plugins keep what they learned from command to command, by type and parameters.
	plugins map[string]any
	last    string
	// producers run in every cycle.
	producers []sched.Producer
}

func (s *scenario) endpoint(t *testing.T, name string) *fleet.Endpoint {
	for _, e := range s.endpoints {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("no endpoint %q", name)
	return nil
}

func (s *scenario) fleet(t *testing.T, input string) {
	s.endpoints, s.prefixes, s.ask, s.producers = nil, nil, sched.Cycle{}, nil
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		e := &fleet.Endpoint{ID: fleet.ID{Name: f[0]}, Address: fmt.Sprintf("10.0.0.%d:8000", len(s.endpoints)+1),
			Labels: map[string]string{}, Load: &fleet.Load{Slot: uint32(len(s.endpoints))}}
		at, unseen, tokens := s.now, 0, 1.0
		signals := map[string]*fleet.Signal{"waiting": &e.Waiting, "running": &e.Running, "kv": &e.KVUsage}
		for _, word := range f[1:] {
			k, v, _ := strings.Cut(word, "=")
			key, value, _ := strings.Cut(v, ":")
			name, producer, _ := strings.Cut(key, "@")
			switch k {
			case "waiting", "running", "kv":
				*signals[k] = fleet.Signal{Value: number(t, v), At: s.now}
			case "age":
				at = s.now.Add(-time.Duration(number(t, v) * float64(time.Second)))
			case "unseen":
				unseen = int(number(t, v))
			case "tokens":
				tokens, unseen = number(t, v), max(unseen, 1)
			case "label":
				e.Labels[key] = value
			case "adapters":
				e.Adapters = strings.Split(v, "+")
			case "queued":
				e.Queued = strings.Split(v, "+")
			case "maxlora":
				e.MaxAdapters = int(number(t, v))
			case "node":
				e.NodeAddress = v
			case "pod":
				e.Pod = v
			case "block":
				e.BlockSize = int(number(t, v))
			case "blocks":
				e.NumBlocks = int(number(t, v))
			case "attr":
				e.Attributes = append(e.Attributes, fleet.Attribute{Name: name, Producer: producer, Signal: fleet.Signal{Value: number(t, value), At: s.now}})
			case "rate":
				learnRate(e.Load, s.now, number(t, v))
			case "ttft":
				learnLatency(e.Load, s.now, number(t, v))
			default:
				t.Fatalf("unknown field %q", k)
			}
		}
		for i := range e.Attributes {
			e.Attributes[i].At = at
		}
		for _, sig := range signals {
			if !sig.At.IsZero() {
				sig.At = at
			}
		}
		for range unseen {
			e.Load.Take(s.now, int64(tokens), 0)
		}
		s.endpoints = append(s.endpoints, e)
	}
}

// asked sets the request.
func (s *scenario) asked(t *testing.T, d *datadriven.TestData) {
	s.ask = sched.Cycle{}
	h := headers{}
	s.ask.Headers = h
	for _, a := range d.CmdArgs {
		for _, v := range a.Vals {
			key, value, _ := strings.Cut(v, ":")
			name, producer, _ := strings.Cut(key, "@")
			switch a.Key {
			case "model":
				s.ask.Model = v
			case "id":
				s.ask.ID = v
			case "tokens":
				s.ask.Tokens = int64(number(t, v))
			case "max":
				s.ask.MaxTokens = int64(number(t, v))
			case "priority":
				s.ask.Priority = int(number(t, v))
			case "header":
				h[key] = value
			case "fact":
				s.ask.Attributes = append(s.ask.Attributes, sched.Attribute{Name: name, Producer: producer, Value: value})
			case "prompt":
				s.ask.Prompt = prompt(v)
			case "media":
				s.ask.Media = media(strings.Split(v, "+"))
			case "profile":
				s.ask.Profile = v
			case "peer":
				s.ask.Peer = s.endpoint(t, v)
			default:
				t.Fatalf("unknown argument %q", a.Key)
			}
		}
	}
}

type headers map[string]string

func (h headers) Get(name string) string { return h[name] }

func (s *scenario) matches(t *testing.T, d *datadriven.TestData) {
	p := sched.Prefix{Producer: "approx-prefix-cache-producer", BlockTokens: 64, Match: make([]int32, len(s.endpoints))}
	d.ScanArgs(t, "total", &p.Blocks)
	d.MaybeScanArgs(t, "block", &p.BlockTokens)
	d.MaybeScanArgs(t, "producer", &p.Producer)
	for _, f := range strings.Fields(d.Input) {
		k, v, _ := strings.Cut(f, "=")
		p.Match[slices.Index(s.endpoints, s.endpoint(t, k))] = int32(number(t, v))
	}
	s.prefixes = slices.DeleteFunc(s.prefixes, func(o sched.Prefix) bool { return o.Producer == p.Producer })
	s.prefixes = append(s.prefixes, p)
}

func number(t *testing.T, s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *scenario) cycle() *sched.Cycle {
	c := s.ask
	c.Context, c.Now, c.Stale, c.Rand = context.Background(), s.now, 2*time.Second, rand.New(rand.NewPCG(1, 1))
	facts, tokens, peer, profile := c.Attributes, c.Tokens, c.Peer, c.Profile
	c.Begin(s.endpoints)
	c.Attributes, c.Tokens, c.Peer, c.Profile = facts, tokens, peer, profile
	for _, p := range s.prefixes {
		found := c.AddPrefix(p.Producer)
		copy(found.Match, p.Match)
		found.Blocks, found.BlockTokens = p.Blocks, p.BlockTokens
		if c.Tokens == 0 {
			c.Tokens = int64(p.Blocks * p.BlockTokens)
		}
	}
	for _, p := range s.producers {
		p.Produce(&c)
	}
	return &c
}

// made is the plugin that a command names, with the parameters of its input; the same again for the same.
func made[T any](t *testing.T, s *scenario, set plugin.Set[T], d *datadriven.TestData) (v T, err error) {
	var by string
	d.ScanArgs(t, "by", &by)
	key := by + d.Input
	if v, ok := s.plugins[key]; ok {
		s.last = key
		return v.(T), nil
	}
	v, err = set.New(by, func(into any) error {
		if d.Input == "" {
			return nil
		}
		dec := json.NewDecoder(bytes.NewReader([]byte(d.Input)))
		dec.DisallowUnknownFields()
		return dec.Decode(into)
	})
	if err != nil {
		return v, err
	}
	if n, ok := any(v).(sched.Namer); ok {
		n.SetName(by)
	}
	if s.plugins == nil {
		s.plugins = map[string]any{}
	}
	s.plugins[key], s.last = v, key
	return v, nil
}

func (s *scenario) score(t *testing.T, d *datadriven.TestData) string {
	scorer, err := made(t, s, Scorers, d)
	if err != nil {
		return err.Error() + "\n"
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
	f, err := made(t, s, Filters, d)
	if err != nil {
		return err.Error() + "\n"
	}
	c := s.cycle()
	f.Filter(c, c.Mask())
	c.Drop(sched.FirstStage)
	var names []string
	for _, e := range c.Candidates {
		names = append(names, e.Name)
	}
	return strings.Join(names, " ") + "\n"
}

func (s *scenario) admit(t *testing.T, d *datadriven.TestData) string {
	a, err := made(t, s, Admitters, d)
	if err != nil {
		return err.Error() + "\n"
	}
	if why := a.Admit(s.cycle()); why != "" {
		return why + "\n"
	}
	return "admitted\n"
}

// weighted is a scorer as a profile has it.
func weighted(name string, s sched.Scorer, weight float64) sched.Weighted {
	return sched.Weighted{Named: sched.Named[sched.Scorer]{Name: name, Plugin: s}, Weight: weight}
}

// decide runs the default profile: queue 2, KV 2, prefix 3, highest score.
func (s *scenario) decide() string {
	p := &sched.Profile{
		Scorers: []sched.Weighted{
			weighted("queue-scorer", Scorers["queue-scorer"](), 2),
			weighted("kv-cache-utilization-scorer", Scorers["kv-cache-utilization-scorer"](), 2),
			weighted("prefix-cache-scorer", Scorers["prefix-cache-scorer"](), 3),
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
