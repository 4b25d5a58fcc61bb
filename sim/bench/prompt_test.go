// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/work"
)

func TestVocabulary(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range strings.Fields(vocabulary) {
		seen[w] = true
		if len(w) != wordBytes-1 {
			t.Errorf("%q is no word of three letters", w)
		}
	}
	if len(seen) != 256 || wordCount != 256 {
		t.Errorf("%d words, %d of them different; want 256", wordCount, len(seen))
	}
}

func text(t *testing.T, s *style, r *work.Request, said map[uint64]string) string {
	t.Helper()
	a := s.ask(r, said)
	b, err := io.ReadAll(a.Body())
	if err != nil || int64(len(b)) != a.Length || !json.Valid(b) {
		t.Fatalf("%d bytes of %d, %v: %s", len(b), a.Length, err, b)
	}
	return string(b)
}

// Equal segments are equal text, a shorter one is the beginning of a longer one, and another salt is another text.
func TestEqualSegmentsAreEqualText(t *testing.T) {
	s := &style{api: request.Completions, model: "m", perWord: 1, salt: 9}
	prompt := func(s *style, segments ...work.Segment) string {
		var body struct{ Prompt string }
		if err := json.Unmarshal([]byte(text(t, s, &work.Request{Prompt: segments, Output: 1}, nil)), &body); err != nil {
			t.Fatal(err)
		}
		return body.Prompt
	}
	a, b := prompt(s, work.Segment{ID: 1, Tokens: 100}), prompt(s, work.Segment{ID: 1, Tokens: 40}, work.Segment{ID: 2, Tokens: 60})
	if len(strings.Fields(a)) != 100 || len(strings.Fields(b)) != 100 {
		t.Errorf("%d and %d words, want 100", len(strings.Fields(a)), len(strings.Fields(b)))
	}
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	if words := same / wordBytes; words < 40 || words > 42 { // the next may be equal by chance
		t.Errorf("%d words are the same, want 40", words)
	}
	other := *s
	other.salt++
	if prompt(&other, work.Segment{ID: 1, Tokens: 100}) == a {
		t.Error("another salt gave the same text")
	}
	half := *s
	half.perWord = 2
	if got := len(strings.Fields(prompt(&half, work.Segment{ID: 1, Tokens: 100}, work.Segment{ID: 3, Tokens: 1}))); got != 51 {
		t.Errorf("%d words of two tokens each for 100 and 1, want 51", got)
	}
}

func TestBodies(t *testing.T) {
	r := &work.Request{Model: "ad\"apter", Output: 40, Session: 3, Prompt: []work.Segment{{ID: 1, Tokens: 2}, {ID: 2, Tokens: 1}, {ID: 50, Tokens: 4}, {ID: 3, Tokens: 1}}}
	said := map[uint64]string{50: `he \"said\"`}
	s := &style{api: request.Chat, model: "m", perWord: 1, most: 30, stream: true, extra: `,"seed":1`}
	got := text(t, s, r, said)
	for _, w := range strings.Fields(vocabulary) {
		got = strings.ReplaceAll(got, w+" ", "…")
	}
	want := `{"model":"ad\"apter","messages":[{"role":"user","content":"………"},{"role":"assistant","content":"he \"said\""},{"role":"user","content":"…"}],"max_tokens":30,"stream":true,"stream_options":{"include_usage":true},"seed":1}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s = &style{api: request.Completions, model: "m", perWord: 1}
	r.Model, r.Output = "", 7
	got = text(t, s, r, said)
	for _, w := range strings.Fields(vocabulary) {
		got = strings.ReplaceAll(got, w+" ", "…")
	}
	if want := `{"model":"m","prompt":"………he \"said\"…","max_tokens":7}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A body is the same however it is read.
func TestReader(t *testing.T) {
	r := &work.Request{Output: 1}
	for i := range 20 {
		r.Prompt = append(r.Prompt, work.Segment{ID: uint64(i), Tokens: int32(1 + i*i%37)})
	}
	s := &style{api: request.Chat, model: "m", perWord: 1}
	want := text(t, s, r, nil)
	if err := iotest.TestReader(s.ask(r, nil).Body(), []byte(want)); err != nil {
		t.Error(err)
	}
	rng, a, got := rand.New(rand.NewPCG(1, 1)), s.ask(r, nil).Body(), ""
	for {
		p := make([]byte, 1+rng.IntN(19))
		n, err := a.Read(p)
		got += string(p[:n])
		if err == io.EOF {
			break
		}
	}
	if got != want {
		t.Error("in pieces it is another text")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	a := answers{text: map[uint64]string{}}
	big := strings.Repeat("x", 1<<20)
	for i := range uint64(200) {
		a.keep(i, big)
	}
	if len(a.text) > 64 || a.bytes > maxSaid || len(a.order) != len(a.text) || a.text[199] == "" {
		t.Errorf("%d answers, %d bytes", len(a.text), a.bytes)
	}
	a.keep(500, "say \"yes\"\n")
	if got := fmt.Sprint(a.text[500]); got != `say \"yes\"\n` {
		t.Errorf("got %s", got)
	}
}

func BenchmarkBody(b *testing.B) {
	r := &work.Request{Output: 1, Prompt: []work.Segment{{ID: 1, Tokens: 8000}}}
	s := &style{api: request.Chat, model: "m", perWord: 1, stream: true}
	b.SetBytes(s.ask(r, nil).Length)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = io.Copy(io.Discard, s.ask(r, nil).Body())
	}
}
