// SPDX-License-Identifier: Apache-2.0

package work

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// The scenarios of testdata. A directive "file NAME" writes its input to a file; "sum SPEC" says
// what a workload comes to, "calls SPEC" lists its first calls; "wrong" parses each line.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.HasPrefix(filepath.Base(filepath.Dir(path)), "fuzz") || strings.Contains(path, "/fuzz/") {
			t.Skip()
		}
		dir := t.TempDir()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			seed, rate, take := uint64(1), 0.0, 12
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "seed":
					d.ScanArgs(t, "seed", &seed)
				case "rate":
					if _, err := fmt.Sscan(a.Vals[0], &rate); err != nil {
						d.Fatalf(t, "rate: %v", err)
					}
				case "take":
					d.ScanArgs(t, "take", &take)
				}
			}
			var out strings.Builder
			each := func(do func(spec string)) string {
				for spec := range strings.Lines(d.Input) {
					do(strings.ReplaceAll(strings.TrimSpace(spec), "DIR", dir))
				}
				return strings.ReplaceAll(out.String(), dir, "DIR")
			}
			switch d.Cmd {
			case "file":
				text := d.Input + "\n"
				if err := os.WriteFile(filepath.Join(dir, d.CmdArgs[0].Key), []byte(text), 0o600); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return ""
			case "sum":
				return each(func(spec string) {
					fmt.Fprintf(&out, "%s\n", sum(play(t, start(t, spec, seed, rate), usual, nil)))
				})
			case "calls":
				return each(func(spec string) {
					calls := play(t, start(t, spec, seed, rate), usual, nil)
					name := names{}
					for _, c := range calls[:min(take, len(calls))] {
						fmt.Fprintln(&out, c.line(name))
					}
				})
			case "wrong":
				return each(func(spec string) {
					open, err := Parse(spec)
					if err == nil {
						_, err = open(1, rate)
					}
					if err == nil {
						d.Fatalf(t, "%s: nothing is wrong with it", spec)
					}
					fmt.Fprintln(&out, err)
				})
			}
			d.Fatalf(t, "no %s", d.Cmd)
			return ""
		})
	})
}

// names gives content short names, in order of appearance.
type names map[uint64]string

func (n names) of(id uint64) string {
	if n[id] == "" {
		i := len(n)
		n[id] = ""
		for n[id] = string(rune('a' + i%26)); i >= 26; i /= 26 {
			n[id] += string(rune('a' + i/26 - 1))
		}
	}
	return n[id]
}

// line is a call on one line: when, who, the prompt's segments as content:tokens, and the answer.
func (c *call) line(n names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.3fs", c.At.Seconds())
	if c.Session >= 0 {
		fmt.Fprintf(&b, " session=%d turn=%d", c.Session, c.Turn)
	}
	for _, l := range []struct{ key, v string }{{"tenant", c.Tenant}, {"objective", c.Objective}, {"model", c.Model}, {"class", c.Class}} {
		if l.v != "" {
			fmt.Fprintf(&b, " %s=%s", l.key, l.v)
		}
	}
	if c.Priority != 0 {
		fmt.Fprintf(&b, " priority=%d", c.Priority)
	}
	for _, s := range c.prompt {
		fmt.Fprintf(&b, " %s:%d", n.of(s.ID), s.Tokens)
	}
	fmt.Fprintf(&b, " -> %s:%d", n.of(c.Answer), c.Output)
	return b.String()
}

func everySpec() []string {
	var specs []string
	for _, k := range Kinds() {
		specs = append(specs, k.Name)
	}
	for _, n := range Catalogue() {
		specs = append(specs, n.Name)
	}
	for _, file := range []string{"agents_miniswe.jsonl", "azure_2023_code.csv"} {
		specs = append(specs, "trace:../../testdata/traces/"+file+".gz")
	}
	return append(specs, "chat?users=20&for=2m", "agents?users=8&for=2m", "batch?users=8&for=2m", "tenants?of=agents&users=16&for=2m", "groups?prompts=4&zipf=1&for=1m", "documents?order=random&documents=5&each=5&for=1m")
}

// What every workload owes, whatever it is.
func TestLaws(t *testing.T) {
	for _, spec := range everySpec() {
		t.Run(spec, func(t *testing.T) {
			first := play(t, start(t, spec, 1, 0), usual, nil)
			if len(first) == 0 {
				t.Fatal("no calls")
			}
			// Play itself checks order, followers, bounds and that no answer comes twice.
			if again := play(t, start(t, spec, 1, 0), usual, nil); !slices.EqualFunc(first, again, same) {
				t.Error("the same seed gave something else")
			}
			other, _ := start(t, spec, 2, 0).Next()
			if other.Answer == first[0].Answer || other.Prompt[len(other.Prompt)-1] == first[0].prompt[len(first[0].prompt)-1] {
				t.Error("another seed gave the same content")
			}
			checkTurns(t, first)
			// One that fails changes what is said and not what is asked.
			failed := play(t, start(t, spec, 1, 0), usual, func(r *Request) bool { return r.Turn%3 != 1 })
			if len(failed) != len(first) {
				t.Errorf("%d calls, and with failures %d", len(first), len(failed))
			}
			if total := start(t, spec, 1, 0).Total(); total > 0 && !strings.Contains(spec, "users") && (float64(len(first)) < 0.75*float64(total) || float64(len(first)) > 1.3*float64(total)) {
				t.Errorf("said about %d calls, made %d", total, len(first))
			}
		})
	}
}

// same tells whether two calls are, but for what they hang on.
func same(a, b call) bool {
	return a.At == b.At && a.Index == b.Index && a.Session == b.Session && a.Turn == b.Turn && a.Answer == b.Answer && a.Output == b.Output &&
		a.Tenant == b.Tenant && a.Objective == b.Objective && a.Priority == b.Priority && a.Model == b.Model && a.Class == b.Class && slices.Equal(a.prompt, b.prompt)
}

// checkTurns checks that each turn begins with the last one and its answer, unless what was said
// grew too long, and that turns are in order.
func checkTurns(t *testing.T, calls []call) {
	t.Helper()
	last := map[int]*call{}
	cut := 0
	for i := range calls {
		c := &calls[i]
		if c.Session < 0 || c.row != nil {
			continue
		}
		if p := last[c.Session]; p != nil {
			if c.Turn != p.Turn+1 || c.At < p.At {
				t.Fatalf("session %d: turn %d at %v after turn %d at %v", c.Session, c.Turn, c.At, p.Turn, p.At)
			}
			want := append(slices.Clone(p.prompt), Segment{p.Answer, int32(p.Output)})
			if len(c.prompt) <= len(want) || !slices.Equal(c.prompt[:len(want)], want) {
				cut++
				if c.prompt[0] != p.prompt[0] {
					t.Fatalf("session %d: turn %d lost what it began with", c.Session, c.Turn)
				}
			}
		}
		last[c.Session] = c
	}
	if cut > len(calls)/20 {
		t.Errorf("%d of %d turns do not go on from the last one", cut, len(calls))
	}
}

func TestSuites(t *testing.T) {
	if len(Suites["routing"].Workloads) < 7 || len(Suites["qos"].Workloads) < 7 {
		t.Errorf("%d for routing, %d for qos", len(Suites["routing"].Workloads), len(Suites["qos"].Workloads))
	}
	used := map[string]bool{}
	for suite, s := range Suites {
		for _, spec := range s.Workloads {
			used[spec] = true
			if find(spec) == nil || !Multiplied(spec) {
				t.Errorf("%s: %s is not a named workload", suite, spec)
			}
			if n := len(play(t, start(t, spec, 3, 0), usual, nil)); suite == "qos" && n >= 3000 {
				t.Errorf("%s: %d calls", spec, n)
			}
		}
	}
	for _, n := range named {
		if !used[n.Name] || n.Doc == "" || slices.Contains(kindNames(Kinds()), n.Name) {
			t.Errorf("%s is in no suite, has no doc, or is a kind's name, too", n.Name)
		}
	}
}

// Everything that a description says can be given, and is within its bounds.
func TestDescriptions(t *testing.T) {
	for _, k := range append(Kinds(), TraceKind()) {
		if k.Doc == "" {
			t.Errorf("%s: no doc", k.Name)
		}
		seen := map[string]bool{}
		for _, p := range k.Params {
			if p.Doc == "" || p.Unit == "" || seen[p.Name] || p.Min > p.Max || p.Unit != Word && p.Unit != Shares && (p.Max == 0 || p.Default == "") {
				t.Errorf("%s: %+v", k.Name, p)
			}
			seen[p.Name] = true
			if k.Name == "trace" || p.Default == "" {
				continue
			}
			spec := k.Name + "?" + p.Name + "=" + p.Default
			switch p.Name {
			case "factor", "at", "hold", "period":
				spec += "&shape=step"
			}
			if _, err := Parse(spec); err != nil {
				t.Errorf("%s: %v", spec, err)
			}
		}
	}
}

func TestMultiplied(t *testing.T) {
	for spec, want := range map[string]bool{
		"chat": false, "chat?rate=2": false, "shared-prefix": true, "mooncake:x": true, "trace:a + log:b": true, "trace:a + chat": false, "chat + chat": false,
	} {
		if got := Multiplied(spec); got != want {
			t.Errorf("%s: got %v", spec, got)
		}
	}
	count := func(spec string, rate float64) int { return len(play(t, start(t, spec, 1, rate), usual, nil)) }
	for _, c := range []struct {
		spec string
		rate float64
		want float64
	}{
		{"plain", 20, 20 * 300},
		{"plain?rate=7", 20, 20 * 300},
		{"plain?rate=1&for=2m + plain?rate=3&for=2m", 8, 8 * 120},
		{"adapters", 0.5, 50 * 100},
		{"tenants?of=plain&for=1m", 30, 30 * 60},
	} {
		if got := float64(count(c.spec, c.rate)); math.Abs(got-c.want) > 4*math.Sqrt(c.want) {
			t.Errorf("%s at %v: %v calls, want about %v", c.spec, c.rate, got, c.want)
		}
	}
}

// A closed loop has never more open than it has users, and nobody waits with nothing to do.
func TestClosedLoop(t *testing.T) {
	w := start(t, "plain?users=5&join=0&requests=50", 1, 0)
	var open []*Request
	for r, ok := w.Next(); ok; r, ok = w.Next() {
		open = append(open, r)
	}
	if len(open) != 5 {
		t.Fatalf("%d begin by themselves, want 5", len(open))
	}
	made := 5
	for at := time.Second; len(open) > 0; at += time.Second {
		r := open[0]
		after := w.Ended(r, at, at%(2*time.Second) == 0)
		open = append(open[1:], after...)
		made += len(after)
		if len(after) > 1 || len(after) == 1 && after[0].At != at || made < 50 && len(open) != 5 {
			t.Fatalf("at %v: %d follow, %d are open", at, len(after), len(open))
		}
	}
	if made != 50 {
		t.Errorf("%d calls, want 50", made)
	}
}

func TestEndedTwice(t *testing.T) {
	for _, spec := range []string{"plain?users=2", "chat", "trace:../../testdata/traces/agents_miniswe.jsonl.gz"} {
		w := start(t, spec, 1, 0)
		r, _ := w.Next()
		w.Ended(r, r.At, true)
		if after := w.Ended(r, r.At, true); len(after) > 0 {
			t.Errorf("%s: %d follow the second end", spec, len(after))
		}
		if after := w.Ended(&Request{}, 0, true); len(after) > 0 {
			t.Errorf("%s: %d follow what was never asked", spec, len(after))
		}
	}
}

// The arrivals of each half minute, against the integral of the rate: within four sigmas of Poisson.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		shape string
		want  []float64
	}{
		{"shape=flat", []float64{3000, 3000, 3000, 3000}},
		{"shape=step&factor=3&at=30s&hold=45s", []float64{3000, 9000, 6000, 3000}},
		{"shape=idle&factor=2&at=45s&hold=15s", []float64{0, 3000, 3000, 3000}},
		{"shape=burst&factor=5&hold=6s&period=60s", []float64{5400, 3000, 5400, 3000}},
		{"shape=ramp&factor=3&period=2m", []float64{3750, 5250, 6750, 8250}},
		// 1 - cos/2 over the quarters of a period.
		{"shape=diurnal&factor=3&period=2m", []float64{2045.07, 3954.93, 3954.93, 2045.07}},
	} {
		got := make([]float64, 4)
		w := start(t, "plain?rate=100&for=2m&"+c.shape, 1, 0)
		for r, ok := w.Next(); ok; r, ok = w.Next() {
			got[int(r.At/(30*time.Second))]++
			w.Ended(r, r.At, true)
		}
		for i, want := range c.want {
			if math.Abs(got[i]-want) > 4*math.Sqrt(want)+1 {
				t.Errorf("%s: %v, want %v", c.shape, got, c.want)
				break
			}
		}
	}
}

func TestGaps(t *testing.T) {
	for _, cv := range []float64{0, 0.5, 1, 2, 5} {
		rng := rand.New(rand.NewPCG(1, 1))
		n, sum, squares := 200_000, 0.0, 0.0
		for range n {
			x := gamma(rng, cv)
			sum += x
			squares += x * x
		}
		m := sum / float64(n)
		got := math.Sqrt(max(0, squares/float64(n)-m*m)) / m
		if math.Abs(m-1) > 0.01*(1+4*cv) || math.Abs(got-cv) > 0.02*(1+cv) {
			t.Errorf("cv %v: mean %.3f, cv %.3f", cv, m, got)
		}
	}
}

func TestPopularity(t *testing.T) {
	p := newPopularity(4, 1) // 12, 6, 4 and 3 of 25
	rng := rand.New(rand.NewPCG(1, 1))
	got := make([]int, 4)
	for range 25_000 {
		got[p.pick(rng)]++
	}
	for i, want := range []float64{12000, 6000, 4000, 3000} {
		if math.Abs(float64(got[i])-want) > 4*math.Sqrt(want) || math.Abs(p.share(i)-want/25000) > 1e-12 {
			t.Errorf("%d: %d times, share %v; want %v", i, got[i], p.share(i), want)
		}
	}
}

// Once as many sessions have been there as ever are at a time, requests allocate nothing.
func TestAllocations(t *testing.T) {
	for _, spec := range []string{"groups?for=100h&rate=100", "chat?for=100h&rate=100&turns=5", "agents?for=100h&rate=100&turns=10&subturns=4", "documents?for=100h", "batch?for=100h", "lora?for=100h", "tenants?for=100h&turns=4", "plain?users=50&for=100h"} {
		w := start(t, spec, 1, 0)
		var open [64]*Request
		n, closed := 0, []*Request{}
		step := func() {
			i := n % len(open)
			n++
			if r := open[i]; r != nil {
				closed = append(closed, w.Ended(r, r.At+time.Second, true)...)
			}
			if len(closed) > 0 {
				open[i] = closed[len(closed)-1]
				closed = closed[:len(closed)-1]
				return
			}
			open[i], _ = w.Next()
		}
		for range 60_000 {
			step()
		}
		if got := testing.AllocsPerRun(5000, step); got > 0.01 {
			t.Errorf("%s: %v allocations a request", spec, got)
		}
	}
}

func TestToken(t *testing.T) {
	if Token(1, 0) == Token(1, 1) || Token(1, 0) == Token(2, 0) || Token(7, 3) != 0x58cc72b2b37d2969 {
		t.Error("content of segments is not told apart")
	}
	seen := map[uint64]bool{}
	for id := range uint64(300) {
		for i := range int32(300) {
			seen[Token(id, i)] = true
		}
	}
	if len(seen) != 90_000 {
		t.Errorf("%d of 90000 tokens are different", len(seen))
	}
}
