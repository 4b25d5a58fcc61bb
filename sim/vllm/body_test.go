// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

var apiPaths = map[string]string{
	"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings", "responses": "/v1/responses",
	"messages": "/v1/messages", "generate": "/inference/v1/generate",
}

var faces = map[string]face{
	"chat": chatFace, "completions": completionsFace, "responses": responsesFace, "messages": messagesFace, "generate": generateFace,
}

// bodies are requests of all kinds, with max_tokens 4 where the dialect has it.
var bodies = []struct{ api, body string }{
	{"completions", `{"prompt":"hello","max_tokens":4}`},
	{"completions", `{"prompt":["hello there","水は流れる","hello there"],"max_tokens":4}`},
	{"completions", `{"prompt":[1,2,3,4278190081],"max_tokens":4}`},
	{"completions", `{"prompt":[[1,2],[3],[1,2]],"max_tokens":4,"model":"sim"}`},
	{"completions", `{"prompt":"a\u0000b\ud83d\ude00 \\ud800 \ud800","max_tokens":4}`},
	{"chat", `{"messages":[{"role":"user","content":"hello"}],"max_tokens":4}`},
	{"chat", `{"messages":[{"role":"system","content":"short"},{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","content":"y"}],"max_completion_tokens":4}`},
	{"chat", `{"messages":[{"role":"user","content":[{"type":"text","text":"what is "},"this",{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}],"max_tokens":4}`},
	{"chat", `{"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"hello"}],"max_tokens":4,"cache_salt":"x"}`},
	{"chat", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The "}],"add_generation_prompt":false,"continue_final_message":true,"max_tokens":4}`},
	{"chat", `{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false,"max_tokens":4}`},
	{"embeddings", `{"input":"hello"}`},
	{"embeddings", `{"input":["hello","there",""," "]}`},
	{"embeddings", `{"input":[[7,8],[9]]}`},
	{"embeddings", `{"input":["hello","there"],"dimensions":8}`},
	{"responses", `{"input":"hello","instructions":"be brief","max_output_tokens":4}`},
	{"responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}],"tools":[{"type":"x"}],"max_output_tokens":4}`},
	{"messages", `{"messages":[{"role":"user","content":"hello"}],"system":"be brief","max_tokens":4}`},
	{"messages", `{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}],"system":[{"type":"text","text":"be brief"}],"max_tokens":4}`},
	{"generate", `{"token_ids":[5,6,7],"sampling_params":{"max_tokens":4}}`},
	{"completions", `{"prompt":"","max_tokens":4}`},
	{"completions", `{"prompt":{"x":1},"max_tokens":4}`},
	{"completions", `{"max_tokens":4}`},
	{"chat", `{"messages":[],"max_tokens":4}`},
	{"chat", `{"messages":[{"content":"x"}],"max_tokens":4}`},
	{"chat", `{"messages":[{"role":"user","content":"a"}],"continue_final_message":true}`},
	{"chat", `[]`},
	{"chat", `null`},
	{"chat", ``},
	{"chat", `{"messages":7}`},
	{"generate", `{"token_ids":[-1]}`},
	{"generate", `{"prompt":"x"}`},
	{"messages", `{"max_tokens":4}`},
	{"responses", `{"input":[]}`},
}

// What an engine answers depends on every token of its prompt, so that equal answers mean equal prompts.
func TestTokenizeAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.MaxModelLen = 4096
		o.Engine.NumBlocks = 2048
		r := start(t, o)
		for _, b := range bodies {
			ids, starts, err := Tokenize(b.api, []byte(b.body), []uint32{99}, []int32{0})
			status, answer := r.ask("POST", apiPaths[b.api], b.body)
			if err != nil {
				if status < 400 || !strings.Contains(answer, jsonText(err.Error())) {
					t.Errorf("%s %s: got %q, the engine says %d %s", b.api, b.body, err, status, answer)
				}
				if len(ids) != 1 || len(starts) != 1 {
					t.Errorf("%s %s: an error, and something appended", b.api, b.body)
				}
				continue
			}
			if status != 200 {
				t.Errorf("%s %s: the engine says %d %s", b.api, b.body, status, answer)
				continue
			}
			var want []string // pieces of the answer
			tokens := len(ids) - 1
			for i := range starts[1:] {
				end := len(ids)
				if i+2 < len(starts) {
					end = int(starts[i+2])
				}
				prompt := ids[starts[i+1]:end]
				switch b.api {
				case "embeddings":
					size := embeddingSize
					if strings.Contains(b.body, "dimensions") {
						size = 8
					}
					want = append(want, string(appendJSON(nil, embed(fingerprint(prompt), size, ""))))
				case "generate":
					want = append(want, string(appendJSON(nil, speak(prompt, speech{max: 4}).tokens)))
				default:
					said := speak(prompt, speech{max: 4})
					want = append(want, jsonText(said.shown()))
				}
			}
			key := `"prompt_tokens":%d,`
			if b.api == "responses" {
				key = `"input_tokens":%d,`
			}
			if b.api == "messages" { // which tells what was not cached
				tokens = 0
			}
			if tokens > 0 && !strings.Contains(answer, fmt.Sprintf(key, tokens)) {
				t.Errorf("%s %s: got %d tokens, the engine says %s", b.api, b.body, tokens, answer)
			}
			rest := answer
			for i, w := range want {
				_, after, ok := strings.Cut(rest, w)
				if !ok {
					t.Errorf("%s %s: prompt %d is another for the engine: %s, not %s", b.api, b.body, i, answer, w)
				}
				rest = after
			}
		}
	})
}

func jsonText(s string) string {
	b := appendJSON(nil, s)
	return string(b[1 : len(b)-1])
}

func TestTokenizeKnowsDialects(t *testing.T) {
	if _, _, err := Tokenize("smoke", nil, nil, nil); err == nil || err.Error() != `no prompts in "smoke"` {
		t.Errorf("got %v", err)
	}
}

func FuzzTokenizeAgrees(f *testing.F) {
	for _, b := range bodies {
		f.Add(b.api, []byte(b.body))
	}
	s, err := New(DefaultOptions())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, api string, body []byte) {
		ids, starts, err := Tokenize(api, body, nil, nil)
		p, known := faces[api]
		if !known {
			return
		}
		r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		j, serverErr := p.parse(s, httptest.NewRecorder(), r)
		switch {
		case serverErr != nil: // it may have more to say against a request than that it has no prompts
		case err != nil:
			t.Errorf("got %v, the engine takes it", err)
		case !slices.Equal(slices.Concat(j.prompts...), ids) || len(starts) != len(j.prompts):
			t.Errorf("got %d from %v, the engine %d", ids, starts, j.prompts)
		}
	})
}

// What a render endpoint answers is a body for tokens in, which is the same prompt again.
func TestRenderedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, small())
		body := `{"messages":[{"role":"user","content":"hello"}],"max_tokens":4,"seed":3,"stop":["zz"]}`
		rendered := r.must("/v1/chat/completions/render", body)
		ids, _, err := Tokenize("generate", []byte(rendered), nil, nil)
		want, _, _ := Tokenize("chat", []byte(body), nil, nil)
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("got %v %v, want %v", ids, err, want)
		}
		var answer struct {
			Choices []struct {
				TokenIDs []uint32 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(r.must("/inference/v1/generate", rendered)), &answer); err != nil {
			t.Fatal(err)
		}
		text := string(detokenize(nil, answer.Choices[0].TokenIDs...))
		if chat := r.must("/v1/chat/completions", body); !strings.Contains(chat, `"content":"`+text+`"`) {
			t.Errorf("tokens in got %q, chat %s", text, chat)
		}
	})
}

func BenchmarkTokenizeChat(b *testing.B) {
	var turns []string
	for i := range 40 {
		turns = append(turns, fmt.Sprintf(`{"role":"user","content":"%d %s"}`, i, strings.Repeat("water runs downhill ", 20)))
	}
	body := []byte(`{"messages":[` + strings.Join(turns, ",") + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var ids []uint32
	var starts []int32
	for b.Loop() {
		ids, starts, _ = Tokenize("chat", body, ids[:0], starts[:0])
	}
}
