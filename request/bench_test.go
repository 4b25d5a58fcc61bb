// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

const prose = "The penstock is the gate and the pipe that feed a turbine.\nIt never starves it, and it never floods it; what is left runs down the \"old\" spillway.\n\n"

// benchBody is a chat of about size bytes: a system prompt and turns of 2 KiB.
func benchBody(text string, size int) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	turn := max(min(size, 800<<10)/8, 256)
	var messages []message
	for n := 0; n < size-200; n += turn { // of equal length, so that code is cut anywhere
		messages = append(messages, message{[]string{"user", "assistant"}[len(messages)&1], strings.Repeat(text, turn/len(text)+1)[:turn]})
	}
	doc, err := json.Marshal(map[string]any{"model": "meta-llama/Llama-3.1-8B-Instruct", "messages": messages, "stream": true, "max_tokens": 256})
	if err != nil {
		panic(err)
	}
	return doc
}

var sizes = []struct {
	name  string
	bytes int
}{{"1KiB", 1 << 10}, {"64KiB", 64 << 10}, {"800KiB", 800 << 10}}

func BenchmarkScan(b *testing.B) {
	source, err := os.ReadFile("scan.go") // code as it is: a quote every thirty bytes or so
	if err != nil {
		b.Fatal(err)
	}
	code := string(source)
	ids := []byte(strings.ReplaceAll(fmt.Sprintf(`{"model":"m","prompt":%v}`, make([]int, 100_000)), "0 ", "12345, "))
	run := func(name string, api API, doc []byte) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			var s Scanner
			for b.Loop() {
				s.Reset(api)
				for p := doc; len(p) > 0; p = p[min(len(p), large):] {
					s.Feed(p[:min(len(p), large)])
				}
				if !s.Finish().Typed {
					b.Fatal("not understood")
				}
			}
		})
	}
	for _, size := range sizes {
		run(size.name+"/prose", Chat, benchBody(prose, size.bytes))
		run(size.name+"/code", Chat, benchBody(code, size.bytes))
	}
	run("ids", Completions, ids)
}

func BenchmarkFeedPrompt(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			doc := benchBody(prose, size.bytes)
			body := NewBody(NewMemory(0), 0)
			_, _ = body.Write(doc)
			var s Scanner
			s.Reset(Chat)
			s.Feed(doc)
			f := s.Finish()
			sink := new(counter)
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				f.FeedPrompt(body, sink)
			}
		})
	}
}

func BenchmarkBody(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			m := NewMemory(0)
			doc := benchBody(prose, size.bytes)
			src := bytes.NewReader(nil)
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				body := NewBody(m, 0)
				body.Expect(int64(len(doc)))
				src.Reset(doc)
				if _, err := body.ReadFrom(src); err != nil {
					b.Fatal(err)
				}
				body.Release()
			}
		})
	}
}

func BenchmarkAnswer(b *testing.B) {
	stream := []byte(chatRole + strings.Repeat(strings.ReplaceAll(chatText(" word"), `"id":"c"`, `"id":"chatcmpl-7c9b4d1e2f","object":"chat.completion.chunk","created":1764000000,"model":"meta-llama/Llama-3.1-8B-Instruct"`), 250) + chatStop + chatUsage + chatDone)
	for _, piece := range []int{240, 4096, len(stream)} {
		b.Run(fmt.Sprint("pieces-of-", piece), func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			var a Answer
			for b.Loop() {
				a.Reset(Chat, true)
				for p := stream; len(p) > 0; p = p[min(len(p), piece):] {
					a.Feed(p[:min(len(p), piece)])
				}
				if a.Finish(); a.Events != 250 || !a.Done {
					b.Fatal(outcome(&a))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/250, "ns/event")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	doc := benchBody(prose, 64<<10)
	for _, coding := range []string{"gzip", "br", "zstd"} {
		b.Run(coding, func(b *testing.B) {
			m := NewMemory(0)
			sent := encode(b, coding, doc)
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decode(m, coding, sent, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
