// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

const tinyTokenizer = `{"added_tokens":[{"id":3,"content":"<s>","special":true,"lstrip":true,"rstrip":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "},{"type":"Strip"}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}|[^\\s\\p{L}]+"},"behavior":"Isolated","invert":false},
{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[3]}}},
"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"byte_fallback":true,"vocab":{"a":0,"b":1,"ab":2,"▁":4},"merges":[["a","b"]]}}`

// FuzzOpen holds that a tokenizer.json is refused or works, and never panics.
func FuzzOpen(f *testing.F) {
	f.Add(tinyTokenizer)
	f.Add(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1.5],["ab",-2]]},"normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"}}`)
	f.Add(`{"model":{"type":"WordPiece","unk_token":"u","vocab":{"u":0,"a":1,"##b":2}},"pre_tokenizer":{"type":"Punctuation","behavior":"MergedWithNext"}}`)
	f.Add(`{"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel"},"post_processor":{"type":"RobertaProcessing","cls":["a",0],"sep":["b",1]}}`)
	f.Add(`{"model":{"type":"WordLevel","vocab":{"a":0}},"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAA="}}`)
	f.Fuzz(func(t *testing.T, data string) {
		if len(data) > 1<<16 {
			return
		}
		tok, err := readTokenizer([]byte(data), bare())
		if err != nil {
			return
		}
		for _, text := range []string{"", "ab abc  <s> 1234 é日本\n", strings.Repeat("ab ", 50)} {
			if _, err := tok.encode(nil, text, true); err != nil && !errors.Is(err, errTooHard) {
				t.Fatal(err)
			}
		}
	})
}

// FuzzRead holds that a body is read or refused with one of the four reasons, and that what was there before stays.
func FuzzRead(f *testing.F) {
	m := benchModel(f)
	apis := []string{"chat", "completions", "embeddings", "responses", "messages", "generate"}
	for i, body := range []string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"f"}}],"chat_template_kwargs":{"enable_thinking":false}}`,
		`{"prompt":["a",[1]],"truncate_prompt_tokens":2,"truncation_side":"left"}`,
		`{"input":"x","add_special_tokens":false}`,
		`{"input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"c","name":"f","arguments":"1"},{"type":"function_call_output","call_id":"c","output":"r"}],"instructions":"i"}`,
		`{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}]}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1}},{"type":"thinking","thinking":"h"}]}],"tools":[{"name":"f","input_schema":{}}]}`,
		`{"token_ids":[1,2]}`,
	} {
		f.Add(byte(i), []byte(body))
	}
	f.Fuzz(func(t *testing.T, api byte, body []byte) {
		if len(body) > 1<<16 {
			return
		}
		p := Prompts{IDs: []uint32{42}, Starts: []int32{0}}
		err := m.Read(apis[int(api)%len(apis)], body, &p)
		if err != nil {
			if !errors.Is(err, ErrBody) && !errors.Is(err, ErrMedia) && !errors.Is(err, ErrTemplate) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("no reason: %v", err)
			}
			if len(p.IDs) != 1 || len(p.Starts) != 1 {
				t.Fatalf("an error left %v", p)
			}
		}
		if p.IDs[0] != 42 {
			t.Fatalf("what was there is gone: %v", p)
		}
		for i := range p.Starts {
			p.Prompt(i)
		}
	})
}

// FuzzTemplate holds that a template is refused, fails or renders, and never panics or hangs.
func FuzzTemplate(f *testing.F) {
	data, err := os.ReadFile("testdata/jinja.json")
	if err != nil {
		f.Fatal(err)
	}
	v, err := parseJSON(strings.TrimSpace(string(data)))
	if err != nil {
		f.Fatal(err)
	}
	context, _ := v.(*dict).get("context")
	for _, s := range listOf(v.(*dict), "snippets").items {
		f.Add(s.(*list).items[0].(string))
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := newTemplate(src)
		if err != nil {
			return
		}
		wantsParts(tmpl.body)
		tmpl.steps = 10000
		vars := &scope{}
		for i, k := range context.(*dict).keys {
			vars.set(k, context.(*dict).vals[i])
		}
		var out strings.Builder
		_ = tmpl.execute(&out, vars, time.Now)
	})
}
