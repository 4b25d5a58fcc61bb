// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

func newBurst(t *testing.T, parameters string) *BurstPrefixCacheProducer {
	t.Helper()
	p, err := Producers.New("burst-prefix-cache-producer", func(v any) error { return json.Unmarshal([]byte(parameters), v) })
	if err != nil {
		t.Fatal(err)
	}
	b := p.(*BurstPrefixCacheProducer)
	b.SetName("burst")
	return b
}

func someEndpoints(n int) []*fleet.Endpoint {
	var out []*fleet.Endpoint
	for i := range n {
		out = append(out, &fleet.Endpoint{ID: fleet.ID{Name: fmt.Sprint("e", i)}, Load: &fleet.Load{Slot: uint32(i)}})
	}
	return out
}

// burst sends prompts at once and tells the endpoint that each was dealt to; "-" is nobody.
func burst(ctx context.Context, p *BurstPrefixCacheProducer, endpoints []*fleet.Endpoint, prompts ...string) []string {
	got := make([]string, len(prompts))
	var wg sync.WaitGroup
	for i, text := range prompts {
		wg.Go(func() {
			c := &sched.Cycle{Context: ctx, Prompt: prompt(text)}
			c.Begin(endpoints)
			p.Produce(c)
			got[i] = "-"
			found := c.Prefix("burst")
			for k, m := range found.Match {
				if int(m) == found.Blocks && m > 0 {
					got[i] = c.Candidates[k].Name
				}
			}
		})
		synctest.Wait() // one after the other, so that their order is known
	}
	wg.Wait()
	return got
}

// In blocks of 64 tokens word*64 is one block. What is dealt follows from the rules by hand.
func TestBurst(t *testing.T) {
	const a, b, c, d = "aaaa*128", "bbbb*128", "cccc*128", "dddd*64"
	for _, tt := range []struct {
		name, parameters string
		endpoints        int
		prompts          []string
		want             string
	}{
		{"equal prompts go together up to a fair share of 2", `{}`, 2, []string{a, b, a, b}, "e0 e1 e0 e1"},
		{"what is above the share goes to who has least", `{}`, 2, []string{a, a, a, a}, "e0 e0 e1 e1"},
		{"singles are spread", `{}`, 3, []string{a, b, c}, "e0 e1 e2"},
		{"longer before shorter", `{}`, 2, []string{d, a}, "e1 e0"},
		{"a common start counts", `{}`, 2, []string{"aaaa*192", b, "aaaa*128", "bbbb*64"}, "e0 e1 e0 e1"},
		{"unless it is too short", `{"minColocateBlocks": 3}`, 2, []string{"aaaa*192", "aaaa*191", b}, "e0 e1 e0"},
		{"two of them", `{"minColocateBlocks": 2}`, 2, []string{"aaaa*192", "aaaa*191", b}, "e0 e0 e1"},
		{"equal ones stay together, however short", `{"minColocateBlocks": 9}`, 2, []string{d, d, a, a}, "e1 e1 e0 e0"},
		{"above the bound nobody is dealt", `{"maxPerReplica": 1}`, 2, []string{a, a, a}, "e0 e1 -"},
		// 3 + 2 + 2 distinct blocks are a share of 4: the long prompt fills e0 with 3, its equal adds nothing.
		{"tokens charge a common start once", `{"balanceBy": "tokens"}`, 2, []string{"aaaa*192", "aaaa*192", b, c}, "e0 e0 e1 e1"},
		{"a full window closes", `{"maxBatchSize": 2, "windowDurationMs": 10000}`, 2, []string{a, a, b, b}, "e0 e1 e0 e1"},
		{"only so much is compared", `{"maxPrefixTokensToMatch": 64}`, 2, []string{a, "aaaa*64+", b, "bbbb*100"}, "e0 e0 e1 e1"},
		{"larger blocks", `{"blockSizeTokens": 256}`, 2, []string{a, b}, "e0 e1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := strings.Join(burst(t.Context(), newBurst(t, tt.parameters), someEndpoints(tt.endpoints), tt.prompts...), " ")
				if got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}

func TestBurstWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, endpoints := newBurst(t, `{"windowDurationMs": 250}`), someEndpoints(4)
		at := time.Now()
		c := &sched.Cycle{Context: t.Context(), Now: at, Prompt: prompt("word*100")}
		c.Begin(endpoints)
		p.Produce(c)
		if took := time.Since(at); took != 250*time.Millisecond || !c.Now.Equal(time.Now()) {
			t.Errorf("waited %v, the decision's time is %v late, want 250ms and 0", took, time.Since(c.Now))
		}
		if c.Prefix("burst").Blocks != 2 || c.Prefix("").Blocks != 0 {
			t.Error("what the window dealt must be read by its name alone")
		}
		// Nothing to compare, nothing to wait for.
		at = time.Now()
		c = &sched.Cycle{Context: t.Context()}
		c.Begin(endpoints)
		p.Produce(c)
		c.Prompt = prompt("word*100")
		c.Begin(nil)
		p.Produce(c)
		if time.Since(at) != 0 {
			t.Errorf("waited %v without a prompt, and without candidates", time.Since(at))
		}
		// Who leaves goes at once and takes no share.
		gone, leave := context.WithCancel(t.Context())
		c = &sched.Cycle{Context: gone, Prompt: prompt("word*100")}
		c.Begin(endpoints[:1])
		var wg sync.WaitGroup
		wg.Go(func() { p.Produce(c) })
		synctest.Wait()
		leave()
		wg.Wait()
		if c.Prefix("burst").Match[0] != 0 || time.Since(at) != 0 {
			t.Errorf("got %v after %v", c.Prefix("burst").Match, time.Since(at))
		}
		if got := burst(t.Context(), p, endpoints[:2], "word*100", "text*100"); got[0] != "e0" || got[1] != "e1" {
			t.Errorf("got %v, want e0 e1", got)
		}
	})
}

// Many come and go at once while windows open and close.
func TestBurstTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, endpoints := newBurst(t, `{"windowDurationMs": 1, "maxBatchSize": 7}`), someEndpoints(3)
		var wg sync.WaitGroup
		for i := range 200 {
			ctx, leave := context.WithTimeout(t.Context(), time.Duration(i%3)*time.Millisecond/2)
			wg.Go(func() {
				defer leave()
				c := &sched.Cycle{Context: ctx}
				for k := range 5 {
					c.Prompt = prompt(fmt.Sprint("p", (i+k)%5, "*200"))
					c.Begin(endpoints)
					p.Produce(c)
				}
			})
		}
		wg.Wait()
		<-time.After(time.Second)
		p.mu.Lock() // a timer's goroutine closed the last window
		defer p.mu.Unlock()
		if p.open != nil {
			t.Error("a window is still open")
		}
	})
}

func TestBurstParameters(t *testing.T) {
	for parameters, want := range map[string]string{
		`{"windowDurationMs": 0}`:        "windowDurationMs: must be from 1 to 10000",
		`{"windowDurationMs": 10001}`:    "windowDurationMs: must be from 1 to 10000",
		`{"maxPerReplica": 0}`:           "maxPerReplica: must be above 0, or -1 for no bound",
		`{"blockSizeTokens": 0}`:         "blockSizeTokens: must be above 0",
		`{"blockSizeTokens": 20000}`:     "blockSizeTokens: must not be above 16384",
		`{"maxPrefixTokensToMatch": -1}`: "maxPrefixTokensToMatch: must not be below 0",
		`{"minColocateBlocks": -1}`:      "minColocateBlocks: must not be below 0",
		`{"maxBatchSize": 0}`:            "maxBatchSize: must be above 0, or -1 for no bound",
		`{"balanceBy": "bytes"}`:         `balanceBy: want requests or tokens, got "bytes"`,
	} {
		_, err := Producers.New("burst-prefix-cache-producer", func(v any) error { return json.Unmarshal([]byte(parameters), v) })
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", parameters, err, want)
		}
	}
}
