// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// preciseConfig follows what engines say of their caches; the path of the endpoints, the tokenizer and where events come from are open.
const preciseConfig = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: %q, watchFile: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- {type: token-producer, parameters: %s}
- {type: precise-prefix-cache-producer, parameters: {kvEventsConfig: %s}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - {pluginRef: prefix-cache-scorer, weight: 10}
dataLayer: {discovery: {pluginRef: endpoints}}
`

// dialled is where events come from when the gateway dials: each endpoint's labels name its ports, for they share an address.
const dialled = `{podDiscoveryConfig: {portLabel: events, replayPortLabel: replay}}`

// local is a token-producer with the model's own tokenizer in the gateway.
func local(t *testing.T) string { return fmt.Sprintf("{local: {path: %q}}", model(t)) }

// site is a gateway that follows engines.
type site struct {
	*rig.Gateway
	engines []*engine
	dials   bool
}

// follow makes a gateway one that follows engines.
func follow(t *testing.T, gateway *rig.Gateway, tokenizer, events string, engines []*engine) *site {
	t.Helper()
	s := &site{gateway, engines, events == dialled}
	list := "endpoints:\n"
	for i, e := range engines {
		host, port, _ := strings.Cut(e.addr, ":")
		list += fmt.Sprintf("- {name: e%d, namespace: default, address: %q, port: %q, labels: {app: pool, events: %q, replay: %q}}\n",
			i, host, port, e.events, e.replay)
	}
	gateway.Write(t, "endpoints.yaml", list)
	gateway.Write(t, "picker.yaml", fmt.Sprintf(preciseConfig, filepath.Join(gateway.Dir, "endpoints.yaml"), tokenizer, events))
	s.again(t)
	return s
}

// again starts the gateway anew.
func (s *site) again(t *testing.T) {
	t.Helper()
	s.Signal(syscall.SIGTERM)
	s.Wait(t)
	s.Restart(t)
	s.Listening(t, s.HTTP)
}

// ready waits until the gateway follows the engines.
func (s *site) ready(t *testing.T) *site {
	t.Helper()
	s.Ready(t, len(s.engines))
	rig.Eventually(t, "the gateway to serve", func() error {
		_, err := rig.Get("http://" + s.HTTP + "/v1/models")
		return err
	})
	if s.dials { // others are there before they say something
		rig.Eventually(t, "the publishers", func() error {
			c := s.cache(t)
			for _, e := range c.Endpoints {
				if len(e.Publishers) != 1 || !e.Publishers[0].Connected {
					return fmt.Errorf("%+v", c)
				}
			}
			return nil
		})
	}
	return s
}

// cache is what /debug/kvcache shows of the index.
type cache struct {
	BlockTokens int               `json:"block_tokens"`
	Dropped     map[string]uint64 `json:"dropped"`
	Endpoints   []held            `json:"endpoints"`
}

// held is what an engine has, as the gateway knows.
type held struct {
	Address    string            `json:"address"`
	Evidence   string            `json:"evidence"`
	Blocks     int               `json:"blocks"`
	Engine     int               `json:"engine_blocks"`
	Counts     map[string]uint64 `json:"counts"`
	Publishers []struct {
		Connected bool `json:"connected"`
	} `json:"publishers"`
}

// told is how many blocks the engine said it has stored.
func (h held) told() int { return int(h.Counts["stored"] + h.Counts["again"]) }

func (s *site) cache(t *testing.T) cache {
	t.Helper()
	page, err := rig.Get("http://" + s.Metrics + "/debug/kvcache")
	if err != nil {
		t.Fatal(err)
	}
	var view struct{ Caches []cache }
	if err := json.Unmarshal([]byte(page), &view); err != nil || len(view.Caches) != 1 {
		t.Fatalf("%v: %s", err, page)
	}
	return view.Caches[0]
}

// of is the engine at an address.
func (c cache) of(t *testing.T, addr string) held {
	t.Helper()
	i := slices.IndexFunc(c.Endpoints, func(h held) bool { return h.Address == addr })
	if i < 0 {
		t.Fatalf("no %s in %+v", addr, c)
	}
	return c.Endpoints[i]
}

// answer is what one request came to: what vLLM said, and what the gateway had predicted.
type answer struct {
	text                       string
	prompt, completion, cached int
	at                         string // which engine
	predicted, reported        int
	ids                        []int  // of the text's tokens, where they were asked for
	record                     string // the decision
}

// body is a request's.
type body map[string]any

// post sends a request and returns the answer's body, and the request's id.
func post(t *testing.T, addr, path string, b body) (string, string) {
	t.Helper()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+path, strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Timeout: 2 * rig.Patience}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %.300s: %s %s %v", path, text, response.Status, page, err)
	}
	return string(page), response.Header.Get("x-request-id")
}

// usage is what the APIs of vLLM say about tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Input      int `json:"input_tokens"`
	Output     int `json:"output_tokens"`
	Read       int `json:"cache_read_input_tokens"` // which Anthropic's input_tokens are without
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// ask sends a request by way of the gateway.
func (s *site) ask(t *testing.T, path string, b body) answer {
	t.Helper()
	page, id := post(t, s.HTTP, path, b)
	var said struct {
		Usage   usage
		Choices []struct {
			Text    string
			Message struct{ Content string }
			IDs     []int `json:"token_ids"`
		}
		Content []struct{ Text string }
		Output  []struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(page), &said); err != nil {
		t.Fatalf("%v: %s", err, page)
	}
	u := said.Usage
	a := answer{prompt: u.Prompt + u.Input + u.Read, completion: u.Completion + u.Output, cached: u.Details.Cached + u.InputDetails.Cached + u.Read}
	if len(said.Choices) > 0 {
		a.text, a.ids = said.Choices[0].Text+said.Choices[0].Message.Content, said.Choices[0].IDs
	}
	if len(said.Content) > 0 {
		a.text = said.Content[0].Text
	}
	if len(said.Output) > 0 && len(said.Output[0].Content) > 0 {
		a.text = said.Output[0].Content[0].Text
	}
	rig.Eventually(t, "the decision of "+id, func() error {
		record, err := rig.Get("http://" + s.Metrics + "/debug/decisions/" + id)
		if err != nil {
			return err
		}
		var d struct {
			Address string
			Tokens  struct {
				Predicted int `json:"predicted_cached"`
				Cached    int
			}
		}
		a.record = record
		err = json.Unmarshal([]byte(record), &d)
		a.at, a.predicted, a.reported = d.Address, d.Tokens.Predicted, d.Tokens.Cached
		return err
	})
	return a
}

// block is the block size of the engine at an address.
func (s *site) block(addr string) int {
	return s.engines[slices.IndexFunc(s.engines, func(e *engine) bool { return e.addr == addr })].block
}

// hears waits until the engine at addr has told of so many blocks.
func (s *site) hears(t *testing.T, addr string, stored int) {
	t.Helper()
	rig.Eventually(t, "the engine's events", func() error {
		if h := s.cache(t).of(t, addr); h.told() < stored {
			return fmt.Errorf("want %d blocks stored: %+v", stored, h)
		}
		return nil
	})
}

// exact asks, wants the prediction to be what vLLM says, and waits until vLLM has told of all blocks that it computed: those of its
// answer nobody can promise.
func (s *site) exact(t *testing.T, path string, b body) answer {
	t.Helper()
	before := s.cache(t)
	a := s.ask(t, path, b)
	block := s.block(a.at)
	s.hears(t, a.at, before.of(t, a.at).told()+(a.prompt+a.completion-1)/block-a.cached/block)
	if a.predicted != a.cached || a.reported != a.cached {
		t.Errorf("%s: vLLM found %d of %d tokens in its cache, the gateway predicted %d and recorded %d\n%s", path, a.cached, a.prompt, a.predicted, a.reported, a.record)
	}
	return a
}

// finds is exact, and wants between least and most cached tokens.
func (s *site) finds(t *testing.T, path string, b body, least, most int) answer {
	t.Helper()
	a := s.exact(t, path, b)
	if a.cached < least || a.cached > most {
		t.Errorf("%s: vLLM found %d of %d tokens in its cache, want %d to %d", path, a.cached, a.prompt, least, most)
	}
	return a
}

// Paths of the APIs.
const (
	chat        = "/v1/chat/completions"
	completions = "/v1/completions"
	messages    = "/v1/messages"
	responses   = "/v1/responses"
)

// some is the start of a request that asks for a short answer, with more fields.
func some(name string, value any, more ...any) body {
	b := body{"model": "tiny", "max_tokens": 6, "temperature": 0, name: value}
	for i := 0; i < len(more); i += 2 {
		b[more[i].(string)] = more[i+1]
	}
	return b
}

// say is a message.
func say(role string, content any) body { return body{"role": role, "content": content} }

// user is a conversation of one message.
func user(content string) []any { return []any{say("user", content)} }

// tokenize asks an engine for the tokens of a text.
func tokenize(t *testing.T, addr, text string) []int {
	t.Helper()
	page, _ := post(t, addr, "/tokenize", body{"model": "tiny", "prompt": text})
	var ids struct{ Tokens []int }
	if err := json.Unmarshal([]byte(page), &ids); err != nil {
		t.Fatal(err)
	}
	return ids.Tokens
}

// plenty is more tokens than any prompt has.
const plenty = 1 << 20

// texts are those that tokenizers differ on.
var texts = []string{
	"Fließendes Wasser, eau courante, γλυκό νερό, пресная вода, 淡水の川、담수 하천, مياه عذبة, נהר, नदी का पानी, แม่น้ำ",
	"🌊🚣‍♀️🏞️ 👨‍👩‍👧‍👦 🇳🇱🇯🇵 ✊🏿 ☃︎☃️",
	"e\u0301 é n\u0303 ñ a\u0308\u0323 \u1e69 s\u0323\u0307 ﬁ ﬂ ½ ² Å Å",
	"func main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Println(\"x\", i)\n\t}\n}\n\n\n#include <stdio.h>\r\nint x = 0xFF;\t// end   \r\n",
	"  two   three    four\u00a0\u2003\u200b\u3000end \n \n\n\t\t",
	"3.14159 1,000,000 2026-11-30 0x1F ١٢٣ Ⅷ ⅷ 12345678901234567890",
	"<|im_end|>\n<|im_start|>system\nyou are<|endoftext|> <|im_start |> </s>",
	"a\u0001b\u007fc\u0085d\ufeffe\u2028f\U000e0041g",
}

// kinds sends requests of all kinds, or of those named, each of which the gateway ought to predict to the token.
func kinds(t *testing.T, s *site, name string, only ...string) {
	run := func(kind string, f func(t *testing.T)) {
		if len(only) == 0 || slices.Contains(only, kind) {
			t.Run(kind, f)
		}
	}
	long := strings.Repeat("the river bends, and the road bends with it; ", 30) // some 400 tokens

	run("conversations", func(t *testing.T) {
		for conversation := range 2 {
			said := []any{say("system", "You are terse, "+name), say("user", fmt.Sprint(conversation, long))}
			at, cached := "", 0
			for turn := range 4 {
				a := s.exact(t, chat, some("messages", said))
				switch {
				case turn == 0:
					at = a.at
				case a.at != at:
					t.Errorf("turn %d went to %s, the first to %s", turn+1, a.at, at)
				case a.cached < cached || a.cached < 256:
					t.Errorf("turn %d: %d of %d tokens cached, %d before", turn+1, a.cached, a.prompt, cached)
				}
				cached = a.cached
				said = append(said, say("assistant", a.text), say("user", "and then? "+fmt.Sprint(turn)))
			}
		}
	})

	run("chat", func(t *testing.T) {
		parts := []any{say("user", []any{body{"type": "text", "text": name + " parts " + long}, body{"type": "text", "text": "and another"}})}
		for _, b := range []body{
			some("messages", parts),
			some("messages", append(user(name+" goes on "+long), say("assistant", "it goes")), "add_generation_prompt", false, "continue_final_message", true),
			some("messages", user(name+" no thinking "+long), "chat_template_kwargs", body{"enable_thinking": false}),
			some("messages", user(name+" logs "+long), "logprobs", true, "top_logprobs", 2),
			some("messages", user(name+" cut "+long+name), "truncate_prompt_tokens", 300),
			some("messages", append(user(name+" thoughts "+long), body{"role": "assistant", "content": "so", "reasoning": "hm", "reasoning_content": "hm"}, say("user", "why?"))),
			some("messages", []any{say("developer", "be "+name+long), body{"role": "user", "content": "go", "name": "ann"}}),
		} {
			s.finds(t, chat, b, 0, 64)
			s.finds(t, chat, b, 256, plenty)
		}
	})

	// Of several choices each finds what the one before it computed. For the prompt's own probabilities vLLM computes it all.
	run("choices", func(t *testing.T) {
		b := some("messages", user(name+" two "+long), "n", 2, "temperature", 0.7, "seed", 1)
		s.ask(t, chat, b)
		delete(b, "n")
		s.finds(t, chat, b, 256, plenty)
		for _, field := range []string{"prompt_logprobs", "echo"} {
			b[field] = map[string]any{"prompt_logprobs": 1, "echo": true}[field]
			s.finds(t, chat, b, 0, 0)
			delete(b, field)
		}
		s.finds(t, chat, b, 256, plenty)
	})

	run("tools", func(t *testing.T) {
		tool := func(name string) any {
			return body{"type": "function", "function": body{"name": name, "description": "Looks at " + name + ", \"now\" <or> later — überall.",
				"parameters": body{"type": "object", "required": []string{"where"},
					"properties": body{"where": body{"type": "string", "enum": []string{"up", "down"}}, "deep": body{"type": "number", "default": 1.5}}}}}
		}
		b := some("messages", append([]any{say("system", name+" with tools")}, user(long)...), "tools", []any{tool("gauge"), tool("weather")})
		s.finds(t, chat, b, 0, 0)
		s.finds(t, chat, b, 256, plenty)
		b["messages"] = append(b["messages"].([]any),
			body{"role": "assistant", "content": nil, "tool_calls": []any{
				body{"id": "a", "type": "function", "function": body{"name": "gauge", "arguments": `{"where": "up",   "deep": 2.0}`}},
				body{"id": "b", "type": "function", "function": body{"name": "weather", "arguments": `{"where":"döwn"}`}}}},
			body{"role": "tool", "tool_call_id": "a", "content": "2.5 m"}, body{"role": "tool", "tool_call_id": "b", "content": `{"rain": true}`})
		s.finds(t, chat, b, 256, plenty)
		s.finds(t, chat, b, 256, plenty)
		b["tool_choice"] = "none"
		s.exact(t, chat, b)
	})

	// One token that differs, and all blocks from there on are others.
	run("texts", func(t *testing.T) {
		text := name + strings.Join(texts, "\n")
		s.finds(t, completions, some("prompt", text), 0, 0)
		s.finds(t, completions, some("prompt", text), 256, plenty)
		s.exact(t, chat, some("messages", user(text)))
		s.finds(t, chat, some("messages", user(text)), 256, plenty)
	})

	run("completions", func(t *testing.T) {
		text := name + " flows " + long
		s.finds(t, completions, some("prompt", text), 0, 0)
		s.finds(t, completions, some("prompt", text), 256, plenty)
		s.finds(t, completions, some("prompt", text+" to the sea", "echo", true), 256, plenty)
		s.finds(t, completions, some("prompt", tokenize(t, s.engines[0].addr, text)), 256, plenty)
		s.finds(t, completions, some("prompt", []string{text + " and back"}), 256, plenty)
		s.exact(t, completions, some("prompt", text+" with some", "add_special_tokens", false))
	})

	// vLLM says of several prompts what it found of the last; what it has of each, the next requests tell.
	run("lists", func(t *testing.T) {
		one, other := name+" first of two "+long, name+" second of two "+long
		a := s.ask(t, completions, some("prompt", []string{one, other, one + other}))
		for _, text := range []string{one, other, one + other} {
			if b := s.finds(t, completions, some("prompt", text), 256, plenty); b.at != a.at {
				t.Errorf("a prompt of those at %s went to %s", a.at, b.at)
			}
		}
		ids := [][]int{tokenize(t, s.engines[0].addr, "ids "+one), tokenize(t, s.engines[0].addr, "ids "+other)}
		s.ask(t, completions, some("prompt", ids))
		for _, prompt := range ids {
			s.finds(t, completions, some("prompt", prompt), 256, plenty)
		}
	})

	run("messages", func(t *testing.T) {
		b := some("messages", user(long), "system", name+" speaks Anthropic's")
		s.finds(t, messages, b, 0, 0)
		a := s.finds(t, messages, b, 256, plenty)
		b["messages"] = append(user(long), say("assistant", []any{body{"type": "text", "text": a.text + "."}}), say("user", []any{body{"type": "text", "text": "go on"}}))
		s.finds(t, messages, b, 256, plenty)
		b["system"] = []any{body{"type": "text", "text": name + " speaks"}, body{"type": "text", "text": "in parts"}}
		b["tools"] = []any{body{"name": "gauge", "description": "looks", "input_schema": body{"type": "object", "properties": body{"where": body{"type": "string"}}}}}
		s.exact(t, messages, b)
		s.finds(t, messages, b, 256, plenty)
	})

	run("responses", func(t *testing.T) {
		b := body{"model": "tiny", "max_output_tokens": 6, "temperature": 0, "instructions": name + " responds", "input": long}
		s.finds(t, responses, b, 0, 0)
		a := s.finds(t, responses, b, 256, plenty)
		b["input"] = append(user(long), say("assistant", a.text+"."), say("user", []any{body{"type": "input_text", "text": "go on"}}))
		s.finds(t, responses, b, 256, plenty)
	})

	// Equal prompts with other salts share nothing.
	run("salts", func(t *testing.T) {
		for path, b := range map[string]body{
			chat:        some("messages", user(name+" salted "+long)),
			completions: some("prompt", name+" salted "+long),
			messages:    some("messages", user(name+" messages, salted "+long)),
		} {
			s.finds(t, path, b, 0, 0)
			for _, salt := range []string{"sea", "lake"} {
				b["cache_salt"] = salt
				s.finds(t, path, b, 0, 0)
			}
			s.finds(t, path, b, 256, plenty)
			delete(b, "cache_salt")
			s.finds(t, path, b, 256, plenty)
		}
	})

	// Neither do a model and its adapter.
	run("adapter", func(t *testing.T) {
		b := some("messages", user(name+" adapted "+long))
		s.finds(t, chat, b, 0, 0)
		b["model"] = "ad"
		s.finds(t, chat, b, 0, 0)
		first := s.finds(t, chat, b, 256, plenty)
		b["cache_salt"] = "sea"
		s.finds(t, chat, b, 0, 0)
		s.finds(t, chat, b, 256, plenty)
		delete(b, "cache_salt")
		b["messages"] = append(b["messages"].([]any), say("assistant", first.text), say("user", "more"))
		s.finds(t, chat, b, 256, plenty)
		b["model"] = "tiny"
		s.finds(t, chat, b, 256, plenty)
	})

	// Of a prompt that is all in the cache vLLM computes the last block anew.
	run("edges", func(t *testing.T) {
		ids := tokenize(t, s.engines[0].addr, name+" ends at an edge "+long)
		for _, n := range []int{32, 33, 63} {
			prompt := append([]int{100 + n}, ids[:n-1]...)
			s.finds(t, completions, some("prompt", prompt, "max_tokens", 1), 0, 0)
			want := (n - 1) / 32 * 32
			s.finds(t, completions, some("prompt", prompt, "max_tokens", 1), want, want)
			want = n / 32 * 32
			s.finds(t, completions, some("prompt", append(prompt, 7), "max_tokens", 2), want, want)
		}
		// What it answered is in its cache, too.
		prompt := append([]int{99}, ids[:30]...)
		a := s.finds(t, completions, some("prompt", prompt, "max_tokens", 34, "return_token_ids", true, "ignore_eos", true), 0, 0)
		s.finds(t, completions, some("prompt", append(prompt, a.ids...)), 64, 64)
	})

	run("long", func(t *testing.T) {
		text := name + " is long " + strings.Repeat(long, 16)
		s.finds(t, completions, some("prompt", text), 0, 0)
		a := s.finds(t, completions, some("prompt", text), 5000, plenty)
		if a.prompt < 6000 {
			t.Errorf("%d tokens are not long", a.prompt)
		}
		s.finds(t, completions, some("prompt", text+" and longer"), 5000, plenty)
	})

	// What an engine has from others is known by its word alone.
	run("others", func(t *testing.T) {
		for i, e := range s.engines {
			b := some("messages", user(fmt.Sprint(name, " for others ", i, long)))
			before := s.cache(t).of(t, e.addr).told()
			page, _ := post(t, e.addr, chat, b)
			var said struct{ Usage usage }
			if err := json.Unmarshal([]byte(page), &said); err != nil {
				t.Fatal(err)
			}
			s.hears(t, e.addr, before+(said.Usage.Prompt+said.Usage.Completion-1)/e.block)
			if a := s.finds(t, chat, b, 256, plenty); a.at != e.addr {
				t.Errorf("served at %s, where nothing of it is", a.at)
			}
		}
	})
}

// sound wants the gateway to have understood all that the engines said.
func (s *site) sound(t *testing.T) {
	t.Helper()
	c := s.cache(t)
	for reason, n := range c.Dropped {
		if n != 0 {
			t.Errorf("%d dropped: %s", n, reason)
		}
	}
	for _, h := range c.Endpoints {
		if h.Evidence != "events" || h.Engine == 0 {
			t.Errorf("%+v", h)
		}
		for _, bad := range []string{"unknown", "orphans", "lost", "misfit", "skipped", "full", "gaps", "missed"} {
			if h.Counts[bad] != 0 {
				t.Errorf("%d %s at %s", h.Counts[bad], bad, h.Address)
			}
		}
	}
	for _, name := range []string{"llm_d_epp_prefix_predicted_cached_tokens_sum", "penstock_prefix_agreement"} {
		if _, err := rig.Metric(s.Metrics, name); err != nil {
			t.Error(err)
		}
	}
}

// precise is the main job of the index on the real thing.
func precise(t *testing.T, engines []*engine) {
	t.Run("proxy", func(t *testing.T) {
		s := follow(t, rig.Serve(t, addrs(engines)...), local(t), dialled, engines).ready(t)
		kinds(t, s, "proxy")
		if c := s.cache(t); c.BlockTokens != 32 {
			t.Errorf("blocks of %d tokens: vLLM's metrics say 32", c.BlockTokens)
		}
		s.sound(t)
		s.read(t, "local", "")
		t.Run("client leaves", func(t *testing.T) { leaves(t, s) })
		t.Run("cache is reset", func(t *testing.T) { reset(t, s) })
		t.Run("cache is full", func(t *testing.T) { fills(t, s) })
		s.sound(t)
		t.Run("gateway restarts", func(t *testing.T) { replays(t, s) }) // and ends with that test
	})
	t.Run("envoy", func(t *testing.T) {
		gateway, _ := rig.EPP(t, nil, addrs(engines)...)
		s := follow(t, gateway, local(t), dialled, engines).ready(t)
		kinds(t, s, "envoy", "conversations", "completions", "salts", "adapter", "others")
		s.sound(t)
		s.read(t, "local", "")
	})
	t.Run("render", func(t *testing.T) { render(t, engines) })
	t.Run("tokens", func(t *testing.T) {
		t.Log(rig.Run(t, []string{"PENSTOCK_VLLM=" + engines[0].addr, "PENSTOCK_VLLM_MODEL=" + engines[0].model},
			"go", "-C", rig.Root(), "test", "-count=1", "-run=TestVLLM$", "./tokens"))
	})
	t.Run("engines restart", func(t *testing.T) { restarts(t, engines) })
}

// read wants all prompts to have been read by one tokenizer, or in its stead estimated for a reason.
func (s *site) read(t *testing.T, tokenizer, reason string) {
	t.Helper()
	page, err := rig.Get("http://" + s.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "penstock_tokenizer_requests_total{") {
			found = true
			if !strings.Contains(line, fmt.Sprintf("reason=%q,tokenizer=%q", reason, tokenizer)) {
				t.Errorf("%s", line)
			}
		}
	}
	if !found {
		t.Error("nothing was read")
	}
}

// leaves has a client hang up: its blocks are free again, and what was computed stays known.
func leaves(t *testing.T, s *site) {
	prompt := "leaves " + strings.Repeat("the bank and ", 100)
	stream := rig.OpenBody(t, s.HTTP, endless(prompt))
	used := read(t, addrs(s.engines), "vllm:kv_cache_usage_perc")
	if used[0]+used[1] == 0 {
		t.Errorf("usage %v while a request runs", used)
	}
	stream.Leave()
	idle(t, addrs(s.engines), rig.Patience)
	rig.Eventually(t, "free blocks", func() error {
		if used := read(t, addrs(s.engines), "vllm:kv_cache_usage_perc"); used[0]+used[1] != 0 {
			return fmt.Errorf("usage %v", used)
		}
		return nil
	})
	s.finds(t, chat, some("messages", user(prompt)), 256, plenty)
}

// reset clears the engines' caches. vLLM says so with the next step.
func reset(t *testing.T, s *site) {
	b := some("messages", user("before the flood "+strings.Repeat("the bank and ", 100)))
	s.ask(t, chat, b)
	s.finds(t, chat, b, 256, plenty)
	for i, e := range s.engines {
		before := s.cache(t).of(t, e.addr).Counts["clears"]
		post(t, e.addr, "/reset_prefix_cache", nil)
		post(t, e.addr, completions, some("prompt", fmt.Sprint("step ", i)))
		rig.Eventually(t, "the gateway to hear of it", func() error {
			if h := s.cache(t).of(t, e.addr); h.Counts["clears"] != before+1 || h.Engine > 1 {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
	}
	s.finds(t, chat, b, 0, 0)
	s.finds(t, chat, b, 256, plenty)
}

// fills asks for more than the caches hold, and then for all of it again: some is still there, some is not.
func fills(t *testing.T, s *site) {
	prompt := func(i int) body {
		return some("prompt", fmt.Sprint("much ", i)+strings.Repeat(fmt.Sprint(" of it ", i), 400))
	}
	const n = 16
	tokens, cached, kept := 0, 0, 0
	for i := range n {
		tokens += s.finds(t, completions, prompt(i), 0, 32).prompt
	}
	if tokens < 2*blocks*32 {
		t.Errorf("%d tokens do not fill two caches", tokens)
	}
	for i := n - 1; i >= 0; i-- {
		a := s.exact(t, completions, prompt(i))
		if cached += a.cached; a.cached > 0 {
			kept++
		}
	}
	if kept == 0 || cached > tokens*9/10 {
		t.Errorf("%d of %d prompts were still there, %d of %d tokens", kept, n, cached, tokens)
	}
	for _, h := range s.cache(t).Endpoints {
		if h.Counts["removed"] == 0 || h.Engine > blocks {
			t.Errorf("%+v", h)
		}
	}
}

// replays starts the gateway anew, which asks the engines for what they have said.
func replays(t *testing.T, s *site) {
	b := some("messages", user("before the restart "+strings.Repeat("the bank and ", 100)))
	s.exact(t, chat, b) // and its events have come
	before := s.cache(t)
	s.again(t)
	s.ready(t)
	for _, h := range before.Endpoints {
		s.hears(t, h.Address, h.told())
	}
	s.finds(t, chat, b, 256, plenty)
	s.sound(t)
}

// render has prompts read by an engine, until it is gone.
func render(t *testing.T, engines []*engine) {
	to, err := url.Parse("http://" + engines[1].addr)
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	defer service.Close()
	s := follow(t, rig.Serve(t, addrs(engines)...), fmt.Sprintf("{modelName: tiny, vllm: {url: %q}}", service.URL), dialled, engines).ready(t)
	kinds(t, s, "render", "tools", "texts", "lists", "messages")
	s.sound(t)
	s.read(t, "vllm", "")
	service.CloseClientConnections()
	service.Close()
	for i := range 6 {
		post(t, s.HTTP, chat, some("messages", user(fmt.Sprint("nobody renders ", i))))
	}
	if n, err := rig.Metric(s.Metrics, "penstock_tokenizer_requests_total"); err != nil || n < 6 {
		t.Error(n, err)
	}
}

// restarts kills engines, all their processes, and starts them anew: one that the gateway dials, and one that dials the gateway.
func restarts(t *testing.T, engines []*engine) {
	prompt := some("messages", user("restarted "+strings.Repeat(" the bank and", 100)))
	at := "tcp://" + rig.Addr(t)
	dials := follow(t, rig.Serve(t), local(t), dialled, engines[1:]).ready(t)
	listens := follow(t, rig.Serve(t), local(t), fmt.Sprintf("{zmqEndpoint: %q}", at), engines[:1])
	dials.finds(t, chat, prompt, 0, 0)
	dials.finds(t, chat, prompt, 256, plenty)

	again := func(e *engine) {
		e.Kill(t)
		e.start(t)
	}
	// An engine that begins anew knows nothing, as the gateway knows before the engine has said a word.
	forgot := func(s *site) {
		s.engines[0].ready(t)
		s.ready(t).finds(t, chat, prompt, 0, 0)
		s.finds(t, chat, prompt, 256, plenty)
		s.sound(t)
	}
	again(engines[1])
	engines[0].events, engines[0].replay, engines[0].block = at, "", 64
	again(engines[0])
	forgot(listens)
	again(engines[0])
	forgot(dials)
	before := dials.cache(t).of(t, engines[1].addr).Engine
	dials.again(t)
	dials.ready(t)
	rig.Eventually(t, "the replay", func() error {
		if h := dials.cache(t).of(t, engines[1].addr); h.Engine < before {
			return fmt.Errorf("want %d blocks: %+v", before, h)
		}
		return nil
	})
	dials.finds(t, chat, prompt, 256, plenty)
	forgot(listens)
}
