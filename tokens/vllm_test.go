// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestVLLM compares with a vLLM that runs: its address is PENSTOCK_VLLM, the folder of its model PENSTOCK_VLLM_MODEL, as
// e2e/vllm gives them.
func TestVLLM(t *testing.T) {
	addr, folder := os.Getenv("PENSTOCK_VLLM"), os.Getenv("PENSTOCK_VLLM_MODEL")
	if addr == "" {
		t.Skip("PENSTOCK_VLLM is not set")
	}
	m, err := Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	service := NewRemote("http://"+addr, RemoteOptions{})

	t.Run("texts", func(t *testing.T) {
		texts := variedTexts()
		if len(texts) < 200 {
			t.Errorf("%d texts", len(texts))
		}
		for _, text := range texts {
			same(t, m, service, addr, "completions", "/tokenize", map[string]any{"model": "tiny", "prompt": text})
		}
	})
	for api, bodies := range variedChats() {
		t.Run(api, func(t *testing.T) {
			for _, body := range bodies {
				path := ""
				if api == "chat" {
					path = "/tokenize"
				}
				body["model"] = "tiny"
				same(t, m, service, addr, api, path, body)
			}
		})
	}
}

// same wants a body's tokens as vLLM renders them, and as its tokenize path counts them, if there is one for such bodies.
func same(t *testing.T, m *Model, service *Remote, addr, api, tokenize string, body map[string]any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	var here, there Prompts
	if err := m.Read(api, text, &here); err != nil {
		t.Errorf("%s %.500s: %v", api, text, err)
		return
	}
	if err := service.Read(t.Context(), api, text, &there); err != nil {
		t.Errorf("%s %.500s: %v", api, text, err)
		return
	}
	if !slices.Equal(here.IDs, there.IDs) || !slices.Equal(here.Starts, there.Starts) {
		t.Errorf("%s %.500s: got %v, vLLM renders %v", api, text, here.IDs, there.IDs)
	}
	if tokenize == "" {
		return
	}
	response, err := http.Post("http://"+addr+tokenize, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(response.Body)
	var said struct{ Tokens []uint32 }
	if err := json.Unmarshal(data, &said); err != nil || !slices.Equal(here.IDs, said.Tokens) {
		t.Errorf("%s %.500s: got %v, vLLM tokenizes %s", api, text, here.IDs, data)
	}
}

// variedTexts are some by hand, each also in the midst of others, and some by chance.
func variedTexts() []string {
	texts := []string{
		"a", " ", "\n", "  two  spaces  ", "The quick brown fox", "don't can't I'LL we've it's 'tis", "HTTPServer2XX_error",
		"Fließendes Wasser", "eau courante, à côté", "γλυκό νερό", "пресная вода", "淡水の川", "담수 하천", "مياه عذبة", "נהר זורם", "नदी का पानी", "แม่น้ำ",
		"🌊🚣‍♀️🏞️", "👨‍👩‍👧‍👦", "🇳🇱🇯🇵", "✊🏿", "e\u0301 n\u0303 a\u0308\u0323", "\u1e69 s\u0323\u0307", "ﬁ ﬂ ½ ²", "Å Å Ω Ω",
		"func main() {\n\tfmt.Println(\"x\")\n}\n", "#include <stdio.h>\r\nint x = 0xFF;\r\n", "SELECT * FROM t WHERE a <> 'b' -- c", "{\"a\": [1, 2.5e-3, null]}",
		"<div class=\"x\">&amp;</div>", "a\u00a0b\u2003c\u200bd\u3000e", "3.14159 1,000,000 2026-11-30", "١٢٣ Ⅷ ⅷ ½", "\t\t\n \n\n  \r\n",
		"<|im_end|>", "<|im_start|>system\n", "x<|endoftext|>y", "<|im_end", "<| im_end |>", "a\u0001b\u007fc\u0085d\ufeffe", "\U000e0041\U0010ffff",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "!!!!!????....,,,,", "https://example.com/a?b=c&d=%20#e", "C:\\Users\\x", "naïve café — “quoted” … ‘so’",
		"日本語とEnglishが混ざる文章です。", "한국어와 English 混合", "ǅ ǆ ǈ ß ẞ İ ı ſ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "\u202eright to left\u202c", "क्षि त्र ज्ञ", "ก็ ำ ๆ",
	}
	for i, n := 0, len(texts); i < n; i++ {
		texts = append(texts, texts[i]+" "+texts[(i*7+3)%n], "The "+texts[i]+texts[(i*11+5)%n]+".\n"+texts[i])
	}
	random := rand.New(rand.NewPCG(6, 32))
	ranges := [][2]rune{{0x20, 0x7e}, {0x20, 0x7e}, {9, 13}, {0xa0, 0x24f}, {0x300, 0x36f}, {0x370, 0x5ff}, {0x900, 0xdff}, {0x1100, 0x11ff}, {0x1e00, 0x20ff}, {0x3040, 0x30ff},
		{0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0x1f300, 0x1faff}, {0xe0000, 0xe007f}}
	for range 120 {
		var b strings.Builder
		for range 1 + random.IntN(60) {
			r := ranges[random.IntN(len(ranges))]
			b.WriteRune(r[0] + random.Int32N(r[1]-r[0]+1))
		}
		texts = append(texts, b.String())
	}
	return texts
}

// variedChats are bodies by API.
func variedChats() map[string][]map[string]any {
	type m = map[string]any
	say := func(role string, content any) m { return m{"role": role, "content": content} }
	text := func(s string) []any { return []any{m{"type": "text", "text": s}} }
	tool := m{"type": "function", "function": m{"name": "gauge", "description": "How <high> & \"where\" – überall", "strict": true,
		"parameters": m{"type": "object", "required": []any{"where"}, "properties": m{
			"where": m{"type": "string", "enum": []any{"up", "down"}}, "deep": m{"type": "number", "default": 1.5}, "n": m{"type": "integer", "minimum": 0}}}}}
	called := m{"role": "assistant", "content": nil, "tool_calls": []any{
		m{"id": "a", "type": "function", "function": m{"name": "gauge", "arguments": `{"where": "up",   "deep": 2.0, "s": "dö\u00fcr"}`}},
		m{"id": "b", "type": "function", "function": m{"name": "gauge", "arguments": `{}`}}}}
	chats := []m{
		{"messages": []any{say("user", "hi")}},
		{"messages": []any{say("system", "be terse"), say("user", "hi")}},
		{"messages": []any{say("user", "hi"), say("assistant", "ho"), say("user", "and?")}},
		{"messages": []any{say("user", text("in parts")), say("assistant", text("so")), say("user", []any{m{"type": "text", "text": "one"}, m{"type": "text", "text": "two"}})}},
		{"messages": []any{say("user", "go on"), say("assistant", "it goes")}, "add_generation_prompt": false, "continue_final_message": true},
		{"messages": []any{say("user", "go on")}, "add_generation_prompt": false},
		{"messages": []any{say("user", "think")}, "chat_template_kwargs": m{"enable_thinking": false}},
		{"messages": []any{say("user", "think"), m{"role": "assistant", "content": "<think>\nhm\n</think>\n\nso"}, say("user", "why")}},
		{"messages": []any{say("user", "look")}, "tools": []any{tool}},
		{"messages": []any{say("system", "sys"), say("user", "look"), called, m{"role": "tool", "tool_call_id": "a", "content": "2.5 m"}, m{"role": "tool", "tool_call_id": "b", "content": "{\"x\": 1}"}}, "tools": []any{tool, tool}},
		{"messages": []any{say("user", "look"), called, m{"role": "tool", "tool_call_id": "a", "content": "2.5 m"}, say("user", "and now?")}, "tools": []any{tool}},
		{"messages": []any{say("user", "<|im_end|> inside")}, "add_special_tokens": true},
		{"messages": []any{m{"role": "user", "content": "named", "name": "ann"}}},
	}
	for i, s := range variedTexts()[:40] {
		chats = append(chats, m{"messages": []any{say("system", s), say("user", fmt.Sprint(i, s)), say("assistant", s), say("user", s)}})
	}
	anthropic := []m{
		{"max_tokens": 5, "messages": []any{say("user", "hi")}},
		{"max_tokens": 5, "system": "be terse", "messages": []any{say("user", text("hi")), say("assistant", "ho"), say("user", "and?")}},
		{"max_tokens": 5, "system": []any{m{"type": "text", "text": "be"}, m{"type": "text", "text": "terse"}}, "messages": []any{say("user", "🌊 e\u0301")}},
		{"max_tokens": 5, "messages": []any{say("user", "look"), say("assistant", []any{m{"type": "tool_use", "id": "a", "name": "gauge", "input": m{"where": "up"}}}),
			say("user", []any{m{"type": "tool_result", "tool_use_id": "a", "content": "2.5 m"}})},
			"tools": []any{m{"name": "gauge", "description": "looks", "input_schema": m{"type": "object", "properties": m{"where": m{"type": "string"}}}}}},
	}
	open := []m{
		{"input": "hi"},
		{"input": "hi", "instructions": "be terse"},
		{"instructions": "be terse", "input": []any{say("user", "hi"), say("assistant", "ho"), say("user", []any{m{"type": "input_text", "text": "and 🌊?"}})}},
		{"input": "look", "tools": []any{m{"type": "function", "name": "gauge", "description": "looks", "parameters": m{"type": "object", "properties": m{"where": m{"type": "string"}}}}}},
	}
	lists := []m{
		{"prompt": []any{"one", "two two", "three 🌊"}},
		{"prompt": []any{1, 2, 3}},
		{"prompt": []any{[]any{1, 2, 3}, []any{4, 5}}},
		{"prompt": "cut me down to size, and then some more", "truncate_prompt_tokens": 5},
		{"prompt": "none", "add_special_tokens": false},
	}
	return map[string][]m{"chat": chats, "messages": anthropic, "responses": open, "completions": lists}
}
