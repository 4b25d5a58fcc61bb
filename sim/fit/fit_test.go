// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/kind"
)

// measured are samples of a simulated engine, whose clock jumps, with a share of noise.
func measured(t *testing.T, c engine.Config, call time.Duration, noise float64) []Sample {
	t.Helper()
	chance := rand.New(rand.NewPCG(1, 1))
	shaken := func(d time.Duration) time.Duration {
		return time.Duration(float64(d) * (1 + noise*(2*chance.Float64()-1)))
	}
	fresh := func() *engine.Engine {
		e, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	submit := func(e *engine.Engine, tokens, answer int) {
		if _, err := e.Submit(0, engine.Request{Blocks: make([]uint64, tokens/c.BlockSize), PromptLen: tokens, MaxTokens: answer}); err != nil {
			t.Fatal(err)
		}
	}
	var out []Sample
	for _, tokens := range []int{64, 256, 1024, 4096, 8192, 20000} {
		e := fresh()
		submit(e, tokens, 1)
		now := time.Duration(0)
		for e.Busy() {
			took, _ := e.Step(now)
			now += took
		}
		out = append(out, First(tokens, c.MaxNumBatchedTokens, shaken(now+call)))
	}
	for _, seqs := range []int{1, 4, 16, 64} {
		for _, tokens := range []int{64, 4000} {
			if seqs*(tokens+400) > c.NumBlocks*c.BlockSize {
				continue
			}
			c := c
			c.NoPrefixCaching = true
			e, _ := engine.New(c)
			for range seqs {
				submit(e, tokens, 400)
			}
			now, took := time.Duration(0), time.Duration(0)
			for n := 0; n < seqs; {
				var some []engine.Token
				took, some = e.Step(now)
				now += took
				n = len(some)
			}
			took, _ = e.Step(now)
			context := 0.0
			e.Each(func(s *engine.Seq, _ bool) { context += float64(s.PromptLen+s.Generated-1) / float64(seqs) })
			out = append(out, Next(seqs, context, shaken(took)))
		}
	}
	return out
}

func near(got, want time.Duration, share float64) bool {
	return math.Abs(float64(got-want)) <= share*float64(want)+2
}

// TestSolve wants the constants back that the samples were made with.
func TestSolve(t *testing.T) {
	for _, name := range []string{"H100-70B-TP4", "A100-32B-TP2", "laptop"} {
		k, _ := kind.Find(name)
		r := Solve(measured(t, k.Config, 3*time.Millisecond, 0))
		w := k.Config.Timing
		if !near(r.Timing.Base, w.Base, 0.01) || !near(r.Timing.PerPrefillToken, w.PerPrefillToken, 0.01) || !near(r.Timing.PerSeq, w.PerSeq, 0.01) ||
			!near(r.Timing.PerKVToken, w.PerKVToken, 0.01) || !near(r.Timing.PerMPairs, w.PerMPairs, 0.01) || !near(r.Call, 3*time.Millisecond, 0.02) || r.Worst > 0.001 {
			t.Errorf("%s: got %+v, want %+v", name, r, w)
		}
		// With 2 % of noise what matters most is still right.
		r = Solve(measured(t, k.Config, 3*time.Millisecond, 0.02))
		if !near(r.Timing.Base, w.Base, 0.05) || !near(r.Timing.PerPrefillToken, w.PerPrefillToken, 0.05) || r.Off > 0.02 {
			t.Errorf("%s with noise: got %+v, want %+v", name, r, w)
		}
	}
	if r := Solve(nil); r.Timing != (engine.Timing{}) {
		t.Errorf("of nothing: %+v", r)
	}
}

// TestWrite wants a fleet's file that reads back.
func TestWrite(t *testing.T) {
	r := Result{Timing: engine.Timing{Base: 12 * time.Millisecond, PerPrefillToken: 40 * time.Microsecond, PerSeq: 300 * time.Nanosecond}, Call: 2 * time.Millisecond, Off: 0.012, Worst: 0.034}
	var b bytes.Buffer
	if err := Write(&b, r, 3, 16, 5000, 4096); err != nil {
		t.Fatal(err)
	}
	list, err := kind.File("fleet.yaml", b.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	want := r.Timing
	want.PerKVToken, want.PerMPairs = 1, 1
	if c := list[0].Config; len(list) != 3 || c.BlockSize != 16 || c.NumBlocks != 5000 || c.MaxNumBatchedTokens != 4096 || c.Timing != want {
		t.Errorf("got %+v", list[0])
	}
	if !strings.HasPrefix(b.String(), "# Fitted: measured times are 1.2 % off in the mean, 3.4 % at worst.") {
		t.Error(b.String())
	}
}
