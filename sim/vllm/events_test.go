// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/source/kvevents"
)

// listener is what a gateway hears of an engine: lines, and which blocks can be found.
type listener struct {
	mu     sync.Mutex
	lines  []string
	blocks map[uint64]string // their tokens as text, with those before
}

func (l *listener) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *listener) Batch(_ *kvevents.Source, seq uint64, b *kvevents.Batch) {
	for i := range b.Events {
		ev := &b.Events[i]
		line := fmt.Sprintf("%d %v", seq, ev.Kind)
		switch ev.Kind {
		case kvevents.BlockStored:
			at := ""
			if ev.HasParent {
				at = l.blocks[ev.Parent]
			}
			n := ev.BlockSize
			for j, h := range ev.Hashes {
				at += string(detokenize(nil, ev.Tokens[j*n:(j+1)*n]...))
				l.blocks[h] = at
			}
			line += fmt.Sprintf(" %d %q", len(ev.Hashes), at)
			if ev.LoraName != "" {
				line += fmt.Sprintf(" lora=%s/%d", ev.LoraName, ev.LoraID)
			}
			for _, x := range ev.Extras {
				line += fmt.Sprintf(" extra[%d]=%s", x.Block, x.Text)
			}
			if ev.Medium != "gpu" || ev.Group != 0 || ev.SpecKind != "full_attention" || b.Rank != 0 {
				line += fmt.Sprintf(" %+v rank %d", ev, b.Rank)
			}
		case kvevents.BlockRemoved:
			line += fmt.Sprintf(" %q", l.blocks[ev.Hashes[0]])
			delete(l.blocks, ev.Hashes[0])
		default:
			clear(l.blocks)
		}
		l.note("%s", line)
	}
}
func (l *listener) Gap(_ *kvevents.Source, from, to uint64) { l.note("gap %d-%d", from, to) }
func (l *listener) Restarted(*kvevents.Source)              { l.note("restarted"); clear(l.blocks) }
func (l *listener) Dropped(_ *kvevents.Source, r kvevents.Reason) {
	l.note("dropped %s", r)
}

func (l *listener) want(t *testing.T, lines ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got, want := strings.Join(l.lines, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("heard\n%s\nwant\n%s", got, want)
	}
	l.lines = nil
}

// listen starts an engine whose events are followed, over connections in memory.
func listen(t *testing.T, o Options) (*rig, *listener) {
	events, replays := newPipes(), newPipes()
	o.Events = Events{Enabled: true, Topic: "kv@a@sim", Listener: events, ReplayListener: replays}
	r := start(t, o)
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "pool"}}})
	store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "a"}, Address: "10.0.0.1:8000"}})
	l := &listener{blocks: map[uint64]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	opt := kvevents.Options{Topic: "kv@", Port: 5557, ReplayPort: 5558, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasSuffix(address, ":5558") {
			return replays.dial(ctx, network, address)
		}
		return events.dial(ctx, network, address)
	}}
	go func() { done <- kvevents.Follow(ctx, store, opt, l) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return r, l
}

func (r *rig) must(path, body string) string {
	r.t.Helper()
	status, b := r.ask("POST", path, body)
	if status != http.StatusOK {
		r.t.Errorf("%s %s: %d %s", path, body, status, b)
	}
	return b
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.EnableLoRA = true
		o.LoRAModules = []Adapter{{"poet", "/poet"}}
		r, l := listen(t, o)
		// 16 tokens are 4 blocks; the last token's block is reusable, too. An answer of 5 words fills a fifth with its first four, whose
		// last one is computed in the step of the fifth.
		answer := r.must("/v1/completions", sixteen+`"max_tokens":5,"seed":1}`)
		text := strings.Split(answer, `"text":"`)[1]
		text = text[:16] // four words of three letters and a blank
		prompt := "0123456789012345678901234567890123456789012345678901234567890123"
		l.want(t, fmt.Sprintf("0 BlockStored 4 %q", prompt), fmt.Sprintf("1 BlockStored 1 %q", prompt+text))
		if b := r.must("/v1/completions", sixteen+`"max_tokens":1}`); !strings.Contains(b, `"cached_tokens":12`) {
			t.Errorf("three of four known blocks were to be reused: %s", b)
		}
		l.want(t)
		// The adapter is a key of each block, the salt of the first.
		r.must("/v1/completions", `{"prompt":"aaaabbbbccccddddeeeeffffgggghhhh","max_tokens":1,"model":"poet","cache_salt":"pepper"}`)
		l.want(t, `2 BlockStored 2 "aaaabbbbccccddddeeeeffffgggghhhh" lora=poet/1 extra[0]=poet extra[0]=pepper extra[1]=poet`)
		// What is forgotten is told with the next step, as vLLM does.
		r.must("/reset_prefix_cache", "")
		l.want(t)
		r.must("/v1/completions", `{"prompt":"aaaabbbbccccdddd","max_tokens":1}`)
		l.want(t, "3 AllBlocksCleared", `3 BlockStored 1 "aaaabbbbccccdddd"`)
	})
}

// What a gateway believes is what the engine finds, whatever is evicted: as many tokens as it reports.
func TestEventsAreTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := listen(t, small())
		evicted := false
		for i := range 60 {
			prompt := strings.Repeat(string(rune('a'+i*7%13)), 40+i%5*16) + strings.Repeat("z", i%3*30)
			tokens := tokenize(nil, prompt)
			want := 0
			for n := 4; n < len(tokens); n += 4 { // the last token is computed in any case
				text := string(detokenize(nil, tokens[:n]...))
				for _, block := range l.blocks {
					if block == text {
						want = n
						break
					}
				}
				if want < n {
					break
				}
			}
			b := r.must("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":9}`, prompt))
			if !strings.Contains(b, fmt.Sprintf(`"cached_tokens":%d}`, want)) {
				t.Errorf("%d: %d tokens were expected in the cache: %s", i, want, b)
			}
			synctest.Wait()
			evicted = evicted || strings.Contains(strings.Join(l.lines, ""), "BlockRemoved")
			l.lines = nil
		}
		if !evicted {
			t.Error("nothing was ever evicted")
		}
	})
}

func TestEventTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := listen(t, small())
		n := 0
		block := func() string { // computes a new block
			n++
			text := strings.Repeat(string(rune('a'+n)), 16)
			r.must("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, text))
			return fmt.Sprintf("BlockStored 1 %q", text)
		}
		put := func(body string, want int) {
			t.Helper()
			if status, b := r.ask("PUT", "/sim/trouble", body); status != want {
				t.Fatalf("%s: got %d %s, want %d", body, status, b, want)
			}
		}
		first := block()
		l.want(t, "0 "+first)

		put(`{"events":{"delay_ms":1500}}`, 200)
		first = block()
		time.Sleep(time.Second)
		l.want(t)
		time.Sleep(500 * time.Millisecond)
		l.want(t, "1 "+first)

		put(`{"events":{"drop":1}}`, 200)
		first = block()
		second := block()
		l.want(t)
		put(`{}`, 200)
		third := block() // the gap is seen, and a replay has all of it
		l.want(t, "2 "+first, "3 "+second, "4 "+third)

		put(`{"events":{"silent":true}}`, 200)
		block()
		put(`{}`, 200)
		first = block()
		l.want(t, "5 "+first)

		put(`{"dead":true}`, 200)
		put(`{}`, 200)
		time.Sleep(10 * time.Second) // until it was dialled again
		l.want(t, "restarted")
		if b := r.must("/v1/completions", `{"prompt":"bbbbbbbbbbbbbbbbx","max_tokens":1}`); !strings.Contains(b, `"cached_tokens":0}`) {
			t.Errorf("another process has cached something: %s", b)
		}
		l.want(t, `0 BlockStored 1 "bbbbbbbbbbbbbbbb"`)
		if s := r.stats(); s.PromptTokens != 5 {
			t.Errorf("another process counts from 0: %+v", s)
		}
		for _, bad := range []string{`{"events":{"delay_ms":-1}}`, `{"events":{"drop":1.5}}`, `{"events":{"dropp":1}}`} {
			put(bad, 400)
		}
	})
}

// An engine that dials finds its subscriber in the middle, whichever is there first.
func TestEventsDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := &listener{blocks: map[uint64]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	o := DefaultOptions()
	o.Events.Enabled, o.Events.Endpoint, o.Events.Topic = true, "tcp://"+l.Addr().String(), "kv@a@sim"
	o.Events.ReplayEndpoint = "tcp://127.0.0.1:0"
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if events, replays := s.EventAddrs(); events != nil || replays == nil {
		t.Errorf("got addresses %v and %v, want only that of replays", events, replays)
	}
	go func() { done <- s.Run(ctx) }()
	go func() { done <- kvevents.Serve(ctx, l, kvevents.Options{Topic: "kv@"}, heard) }()
	deadline := time.Now().Add(20 * time.Second)
	for s.events.out.Subscribers() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	j, err := s.job(&sampling{}, nil, 1, tokenize(nil, strings.Repeat("abcd", 16)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.submit(j); err != nil {
		t.Fatal(err)
	}
	for time.Now().Before(deadline) {
		heard.mu.Lock()
		n := len(heard.lines)
		heard.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if want := fmt.Sprintf("0 BlockStored 1 %q", strings.Repeat("abcd", 16)); len(heard.lines) != 1 || heard.lines[0] != want {
		t.Errorf("heard %q, want %q", heard.lines, want)
	}
}

func TestEventsConfig(t *testing.T) {
	for _, tt := range []struct{ config, want string }{
		{`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0","replay_endpoint":"tcp://127.0.0.1:0","topic":"kv@a@b","hwm":7}`, ""},
		{`{"endpoint":"nowhere"}`, ""}, // not enabled
		{`{"enable_kv_cache_events":true,"publisher":"null","endpoint":"nowhere"}`, ""},
		{`{"enable_kv_cache_events":true,"endpoint":"ipc://x"}`, "endpoint: want tcp://HOST:PORT"},
		{`{"enable_kv_cache_events":true,"replay_endpoint":"tcp://x"}`, "replay_endpoint: want tcp://HOST:PORT"},
		{`{"enable_kv_cache_events":true,"publisher":"nats"}`, "publisher: want zmq or null"},
		{`{"enable_kv_cache_events":true,"hwm":-1}`, "must not be below 0"},
		{`{"enable":true}`, `unknown field "enable"`},
		{`x`, "want JSON"},
	} {
		o := DefaultOptions()
		err := (*eventsFlag)(&o.Events).Set(tt.config)
		if err == nil {
			err = o.Validate()
		}
		if tt.want == "" && err == nil {
			s, err := New(o)
			if err != nil {
				t.Errorf("%s: %v", tt.config, err)
			} else if s.events != nil {
				if events, replays := s.EventAddrs(); events == nil || replays == nil || s.events.out.Keep != 10_000 || s.events.out.Queue != 7 {
					t.Errorf("%s: %v %v %+v", tt.config, events, replays, &s.events.out)
				}
				s.events.shut()
			}
			continue
		}
		if err == nil || tt.want == "" || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.config, err, tt.want)
		}
	}
}
