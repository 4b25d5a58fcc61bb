// SPDX-License-Identifier: Apache-2.0

package tokens_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-project/penstock/tokens"
)

// toy is a byte-level tokenizer that one can follow by hand: bytes are their own ids, and four merges.
const toy = `{"added_tokens":[{"id":260,"content":"<|im_start|>","normalized":false,"special":true},
	{"id":261,"content":"<|im_end|>","normalized":false,"special":true}],
	"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
	"model":{"type":"BPE","vocab":{%VOCAB%,"he":256,"ll":257,"hell":258,"hello":259},
	"merges":["h e","l l","he ll","hell o"]}}`

const toyConfig = `{"eos_token":"<|im_end|>","chat_template":"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>a{% endif %}"}`

func openToy(t *testing.T) *tokens.Model {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"tokenizer.json": toyJSON(), "tokenizer_config.json": toyConfig} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := tokens.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ids(text string) (out []uint32) {
	for i := range len(text) {
		out = append(out, uint32(text[i]))
	}
	return out
}

func TestRead(t *testing.T) {
	m := openToy(t)
	turn := func(parts ...[]uint32) []uint32 { return slices.Concat(parts...) }
	start, end, hello := []uint32{260}, []uint32{261}, []uint32{259}
	for _, tt := range []struct {
		name, api, body string
		want            [][]uint32
		err             error
	}{
		{"text", "completions", `{"prompt":"hello all"}`, [][]uint32{turn(hello, ids(" a"), []uint32{257})}, nil},
		{"texts", "completions", `{"prompt":["hello","x"]}`, [][]uint32{hello, ids("x")}, nil},
		{"ids", "completions", `{"prompt":[1,2,3],"truncate_prompt_tokens":2}`, [][]uint32{{2, 3}}, nil},
		{"lists of ids", "completions", `{"prompt":[[1],[2,3]]}`, [][]uint32{{1}, {2, 3}}, nil},
		{"special in text", "completions", `{"prompt":"a<|im_end|>"}`, [][]uint32{turn(ids("a"), end)}, nil},
		{"chat", "chat", `{"messages":[{"role":"user","content":"hello"}]}`,
			[][]uint32{turn(start, ids("user\n"), hello, end, ids("\n"), start, ids("a"))}, nil},
		{"parts", "chat", `{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}],"add_generation_prompt":false}`,
			[][]uint32{turn(start, ids("user\nx\ny"), end, ids("\n"))}, nil},
		{"continued", "chat", `{"messages":[{"role":"q","content":"y"}],"add_generation_prompt":false,"continue_final_message":true}`,
			[][]uint32{turn(start, ids("q\ny"))}, nil},
		{"messages", "messages", `{"system":"s","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`,
			[][]uint32{turn(start, ids("system\ns"), end, ids("\n"), start, ids("user\n"), hello, end, ids("\n"), start, ids("a"))}, nil},
		{"responses", "responses", `{"input":"x"}`, [][]uint32{turn(start, ids("user\nx"), end, ids("\n"), start, ids("a"))}, nil},
		{"generate", "generate", `{"token_ids":[5,6]}`, [][]uint32{{5, 6}}, nil},
		{"embeddings", "embeddings", `{"input":["x"]}`, [][]uint32{ids("x")}, nil},
		{"image", "chat", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`, nil, tokens.ErrMedia},
		{"embeds", "completions", `{"prompt_embeds":"x"}`, nil, tokens.ErrUnsupported},
		{"mixed", "completions", `{"prompt":["x",[1]]}`, nil, tokens.ErrUnsupported},
		{"own template", "chat", `{"chat_template":"x","messages":[]}`, nil, tokens.ErrUnsupported},
		{"earlier response", "responses", `{"input":"x","previous_response_id":"r"}`, nil, tokens.ErrUnsupported},
		{"no JSON", "chat", `{"messages":`, nil, tokens.ErrBody},
		{"half a character", "completions", `{"prompt":"\ud800"}`, nil, tokens.ErrBody},
		{"negative id", "completions", `{"prompt":[-1]}`, nil, tokens.ErrBody},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p tokens.Prompts
			err := m.Read(tt.api, []byte(tt.body), &p)
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
			if len(p.Starts) != len(tt.want) {
				t.Fatalf("got %d prompts, want %d", len(p.Starts), len(tt.want))
			}
			for i, want := range tt.want {
				if got := p.Prompt(i); !slices.Equal(got, want) {
					t.Errorf("prompt %d: got %v, want %v", i, got, want)
				}
			}
		})
	}
}
