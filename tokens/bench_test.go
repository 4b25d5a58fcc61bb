// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// benchModel is a model with a small vocabulary of Llama 3's kind and a template of Qwen 3's, the costliest there is; or
// the folder that PENSTOCK_BENCH_MODEL names.
func benchModel(tb testing.TB) *Model {
	if dir := os.Getenv("PENSTOCK_BENCH_MODEL"); dir != "" {
		m, err := Open(dir)
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}
	read := func(name string, into any) {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			tb.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			tb.Fatal(err)
		}
	}
	var families struct {
		Families []struct {
			Tokenizer json.RawMessage `json:"tokenizer"`
		} `json:"families"`
	}
	read("families.json", &families)
	var chats struct {
		Templates []struct{ Name, Template string } `json:"templates"`
	}
	read("chats.json", &chats)
	c := bare()
	c.special.set("im_end", "<|im_end|>")
	c.special.set("im_start", "<|im_start|>")
	tok, err := readTokenizer(families.Families[0].Tokenizer, c)
	if err != nil {
		tb.Fatal(err)
	}
	for _, t := range chats.Templates {
		if t.Name == "qwen" {
			f, err := newFormat(t.Template)
			if err != nil {
				tb.Fatal(err)
			}
			return &Model{tok: tok, chat: &chat{plain: f, tools: f, special: new(dict), now: time.Now}}
		}
	}
	tb.Fatal("no template")
	return nil
}

// prose is n different words or so, that differ with seed.
func prose(n, seed int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", [...]string{"the", "weather", "of", "Straße", "function", "tomorrow,", "日本", "isn't"}[(i*7+seed)%8], (i*31+seed)%97)
	}
	return b.String()
}

func chatBody(turns, words int) []byte {
	type msg struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var msgs []msg
	for i := range turns {
		msgs = append(msgs, msg{"user", prose(words, 2*i)}, msg{"assistant", prose(words, 2*i+1)})
	}
	body, _ := json.Marshal(map[string]any{"messages": append(msgs, msg{"user", "and then?"})})
	return body
}

func benchRead(b *testing.B, m *Model, api string, body func(i int) []byte) {
	var p Prompts
	bodies := make([][]byte, 64)
	for i := range bodies {
		bodies[i] = body(i)
	}
	tokens := 0
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		p.Reset()
		if err := m.Read(api, bodies[i%len(bodies)], &p); err != nil {
			b.Fatal(err)
		}
		tokens += len(p.IDs)
	}
	b.ReportMetric(float64(tokens)/float64(b.N), "tokens/op")
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}

func BenchmarkShortChat(b *testing.B) {
	benchRead(b, benchModel(b), "chat", func(i int) []byte {
		return []byte(fmt.Sprintf(`{"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is %d and why?"}]}`, i))
	})
}

// BenchmarkPrompt8k is a prompt of some 8,000 tokens that was never seen, but for its words.
func BenchmarkPrompt8k(b *testing.B) {
	m := benchModel(b)
	text := prose(2300, 3)
	b.Run("cold", func(b *testing.B) {
		m.tok.cache.init(0)
		benchRead(b, m, "completions", func(i int) []byte {
			body, _ := json.Marshal(map[string]any{"prompt": fmt.Sprint(i, text)})
			return body
		})
	})
	b.Run("warm", func(b *testing.B) {
		m.tok.cache.init(segmentBudget)
		benchRead(b, m, "completions", func(i int) []byte {
			body, _ := json.Marshal(map[string]any{"prompt": text})
			return body
		})
	})
}

// BenchmarkTurn100 is the new turn of a conversation of 100.
func BenchmarkTurn100(b *testing.B) {
	m := benchModel(b)
	body := chatBody(100, 40)
	benchRead(b, m, "chat", func(i int) []byte {
		return []byte(strings.Replace(string(body), "and then?", fmt.Sprint("and then ", i, "?"), 1))
	})
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		benchModel(b)
	}
}
