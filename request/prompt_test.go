// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// prompts collects what FeedPrompt gives.
type prompts []string

func (p *prompts) Start()         { *p = append(*p, "") }
func (p *prompts) Write(b []byte) { (*p)[len(*p)-1] += string(b) }

// promptsOf scans a body in pieces of n bytes and gives its prompts.
func promptsOf(t *testing.T, api API, doc string, n int) prompts {
	t.Helper()
	b := NewBody(NewMemory(0), 0)
	defer b.Release()
	for p := []byte(doc); len(p) > 0; p = p[min(n, len(p)):] {
		if err := b.Attach(p[:min(n, len(p))], nil); err != nil {
			t.Fatal(err)
		}
	}
	var s Scanner
	s.Reset(api)
	for p := range b.Chunks {
		s.Feed(p)
	}
	var out prompts
	s.Finish().FeedPrompt(b, &out)
	return out
}

func TestFeedPrompt(t *testing.T) {
	for _, test := range []struct {
		name string
		api  API
		doc  string
		want []string
	}{
		{"string", Completions, `{"prompt":"one \n two"}`, []string{`one \n two`}},
		{"strings", Completions, `{"prompt":["one","","two"]}`, []string{"one", "", "two"}},
		{"ids", Completions, `{"prompt":[1, 256 ,4294967295]}`, []string{"\x01\x00\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff"}},
		{"lists of ids", Completions, `{"prompt":[[1],[2,3]]}`, []string{"\x01\x00\x00\x00", "\x02\x00\x00\x00\x03\x00\x00\x00"}},
		{"wrong type", Completions, `{"prompt":{"a":1}}`, nil},
		{"embeddings", Embeddings, `{"input":["a","b"]}`, []string{"a", "b"}},
		{"chat", Chat, `{"messages":[{"role":"user","content":"hi"}],"tools":[1]}`, []string{"\x1f\x02[1]\x1d\x1e\x01user\x1e\x06hi"}},
		{"generate", Generate, `{"token_ids":[7]}`, []string{"\x07\x00\x00\x00"}},
		{"untyped", Chat, `{"messages":[{"role":"user"`, nil},
	} {
		for _, n := range []int{1, 2, 7, 1 << 20} {
			if got := promptsOf(t, test.api, test.doc, n); fmt.Sprintf("%q", []string(got)) != fmt.Sprintf("%q", test.want) {
				t.Errorf("%s by %d:\n got %q\nwant %q", test.name, n, got, test.want)
			}
		}
	}
}

// BL-01 a to d: every prompt form has a size that is not zero, on the bytes that were sent.
func TestPromptForms(t *testing.T) {
	ids := func(from, to int) (out []int) {
		for i := from; i < to; i++ {
			out = append(out, i)
		}
		return out
	}
	for _, test := range []struct {
		api  API
		body map[string]any
		want []int // bytes of each prompt
	}{
		{Completions, map[string]any{"prompt": []string{strings.Repeat("one ", 1000), strings.Repeat("two ", 1000)}}, []int{4000, 4000}},
		{Completions, map[string]any{"prompt": ids(0, 512)}, []int{2048}},
		{Completions, map[string]any{"prompt": [][]int{ids(0, 600), ids(700, 1300)}}, []int{2400, 2400}},
		{Embeddings, map[string]any{"input": []string{"first", "second"}}, []int{5, 6}},
	} {
		doc, _ := json.Marshal(test.body)
		var sizes []int
		for _, p := range promptsOf(t, test.api, string(doc), 100) {
			sizes = append(sizes, len(p))
		}
		if fmt.Sprint(sizes) != fmt.Sprint(test.want) {
			t.Errorf("%.30s: got prompts of %v bytes, want %v", doc, sizes, test.want)
		}
	}
}

// BL-01 e: two chats with the same text and different images share the text before the image.
func TestImagesDiffer(t *testing.T) {
	chat := func(image string) string {
		doc := `{"messages":[{"role":"user","content":[{"type":"text","text":"what is this"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}},{"type":"text","text":"please"}]}]}`
		return promptsOf(t, Chat, doc, 50)[0]
	}
	a, b := chat(strings.Repeat("A", 4000)), chat(strings.Repeat("A", 3999)+"B")
	shared := 0
	for a[shared] == b[shared] {
		shared++
	}
	image := strings.Index(a, "this") + len("this\x1e\x06")
	image += -image & 3
	if shared < image || shared > image+3 { // a byte of two hashes may be equal by chance
		t.Errorf("share %d bytes, want those before the image, %d", shared, image)
	}
	if len(a) != image+4*mediaTokens+len("\x1e\x06please") || a != chat(strings.Repeat("A", 4000)) {
		t.Errorf("an image counts %d bytes, or not always the same", len(a)-image)
	}
}

// White space and the order of keys make no difference, and boundaries do.
func TestPromptsAreTheSameOrNot(t *testing.T) {
	chat := func(doc string) string { return promptsOf(t, Chat, doc, 1<<20)[0] }
	one := chat(`{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}],"model":"m"}`)
	for _, same := range []string{
		`{ "model" : "m", "messages" : [ { "content" : "ab" , "role":"user" } ,{"role":"assistant","content": "c" } ] }`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"ab"}]},{"role":"assistant","content":"c","refusal":null}]}`,
	} {
		if chat(same) != one {
			t.Errorf("%s: got %q, want %q", same, chat(same), one)
		}
	}
	for _, other := range []string{
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"bc"}]}`,
		`{"messages":[{"role":"user","content":"abassistantc"}]}`,
		`{"messages":[{"role":"user","content":"ab"},{"role":"user","content":"c"}]}`,
		`{"messages":[{"role":"user","content":["a","b"]},{"role":"assistant","content":"c"}]}`,
		`{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c","tool_calls":[{}]}]}`,
		`{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}],"tools":[{}]}`,
	} {
		if chat(other) == one {
			t.Errorf("%s: the same prompt as another chat", other)
		}
	}
	next := chat(`{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]}`)
	if !strings.HasPrefix(next, one) {
		t.Errorf("the next turn %q does not begin with the one before, %q", next, one)
	}
}

// counter is a sink that keeps nothing.
type counter struct{ prompts, bytes int }

func (c *counter) Start()         { c.prompts++ }
func (c *counter) Write(p []byte) { c.bytes += len(p) }

func TestFeedPromptAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops what is put into pools")
	}
	for _, test := range scans {
		b := NewBody(NewMemory(0), 0)
		_, _ = b.Write([]byte(test.doc))
		var s Scanner
		f := scan(&s, test.api, test.doc)
		sink := new(counter)
		if got := testing.AllocsPerRun(10, func() { f.FeedPrompt(b, sink) }); got > 0 {
			t.Errorf("%s: %v allocations", test.name, got)
		}
		b.Release()
	}
}

// An edit does not move what the scan found.
func TestFeedPromptAfterSplice(t *testing.T) {
	doc := `{"model":"m","prompt":"hello"}`
	b := NewBody(NewMemory(0), 0)
	defer b.Release()
	_, _ = b.Write([]byte(doc))
	var s Scanner
	f := scan(&s, Completions, doc)
	if err := b.Splice(f.ModelSpan, []byte(`"longer-name"`)); err != nil {
		t.Fatal(err)
	}
	var got prompts
	f.FeedPrompt(b, &got)
	if len(got) != 1 || got[0] != "hello" || content(b) != `{"model":"longer-name","prompt":"hello"}` {
		t.Errorf("got %q of %s", got, content(b))
	}
	if !bytes.Equal(b.Bytes(f.ModelSpan), []byte(`"m"`)) {
		t.Errorf("got %s", b.Bytes(f.ModelSpan))
	}
}
