// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTokenize(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		tokens     int
	}{
		{"nothing", "", 0},
		{"four bytes", "pipe", 1},
		{"five bytes", "pipes", 2},
		{"Chinese, a token each", "水闸门", 3},
		{"a rune is not split", "ab水", 2},
		{"zero bytes", "\x00\x00a\x00b", 3},
		{"not UTF-8", "\x80\x81\x82\x83\x84\x85", 2},
	} {
		tokens := tokenize(nil, tt.text)
		if len(tokens) != tt.tokens {
			t.Errorf("%s: %d tokens %x, want %d", tt.name, len(tokens), tokens, tt.tokens)
		}
		if got := string(detokenize(nil, tokens...)); got != tt.text {
			t.Errorf("%s: came back as %q", tt.name, got)
		}
	}
}

func FuzzTokenize(f *testing.F) {
	f.Add("water", " runs")
	f.Add("水\x00", "\xff\xfe")
	f.Fuzz(func(t *testing.T, a, b string) {
		tokens := tokenize(nil, a+b)
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			return // JSON never brings these; enough that nothing panics
		}
		if got := string(detokenize(nil, tokens...)); got != a+b {
			t.Errorf("%q came back as %q", a+b, got)
		}
		if len(a)%tokenBytes == 0 && isASCII(a) && !slices.Equal(tokenize(nil, a), tokens[:len(a)/tokenBytes]) {
			t.Errorf("%q is not a beginning of %q in tokens", a, a+b)
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r == 0 || r > 0x7e }) < 0
}

func TestWordsAreTokens(t *testing.T) {
	for _, w := range words {
		if len(w) != tokenBytes-1 {
			t.Errorf("%q with its space is not one token", w)
		}
	}
}

func TestSpeak(t *testing.T) {
	prompt := tokenize(nil, "what is a penstock?")
	a := speak(prompt, speech{max: 40})
	if len(a.tokens) != 40 || a.reason != "length" || a.shown() != a.text {
		t.Errorf("got %d tokens, %s", len(a.tokens), a.reason)
	}
	if b := speak(prompt, speech{max: 40}); b.text != a.text {
		t.Error("the same prompt got another answer")
	}
	if b := speak(prompt, speech{max: 40, seed: 1}); b.text == a.text {
		t.Error("another seed got the same answer")
	}
	if got := tokenize(nil, a.text); !slices.Equal(got, a.tokens) {
		t.Error("the answer as text has other tokens")
	}
	// Stop in the middle of the tokens 4 and 5: "abcd|efgh" with "dief" as stop, so to speak.
	stop := a.text[4*4+2 : 5*4+2]
	first := strings.Index(a.text, stop)
	b := speak(prompt, speech{max: 40, stops: []string{"not there", stop}})
	if b.reason != "stop" || b.stop != stop || b.shown() != a.text[:first] || len(b.tokens) != (first+len(stop)+3)/4 {
		t.Errorf("stop %q: %s, %d tokens, %q of %q", stop, b.reason, len(b.tokens), b.shown(), a.text)
	}
	c := speak(prompt, speech{max: 40, stops: []string{stop}, includeStop: true})
	if c.shown() != a.text[:first+len(stop)] {
		t.Errorf("with the stop string: %q", c.shown())
	}
	var pieces strings.Builder
	for i := range b.tokens {
		pieces.WriteString(b.piece(i))
	}
	if pieces.String() != b.shown() {
		t.Errorf("pieces make %q, want %q", pieces.String(), b.shown())
	}
}
