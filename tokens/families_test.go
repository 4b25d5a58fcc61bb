// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// TestFamilies encodes what e2e/tokens/families.py had the tokenizers package encode, for a few families.
func TestFamilies(t *testing.T) {
	data, err := os.ReadFile("testdata/families.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Texts    []string `json:"texts"`
		Families []struct {
			Name      string          `json:"name"`
			Tokenizer json.RawMessage `json:"tokenizer"`
			IDs       [][]uint32      `json:"ids"`
		} `json:"families"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for _, f := range golden.Families {
		t.Run(f.Name, func(t *testing.T) {
			tok, err := readTokenizer(f.Tokenizer, bare())
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range golden.Texts {
				for _, when := range []string{"cold", "warm"} {
					got, err := tok.encode(nil, text, true)
					if err != nil || !slices.Equal(got, f.IDs[i]) {
						t.Errorf("%s, %q: got %v, %v, want %v", when, text, got, err, f.IDs[i])
					}
				}
			}
		})
	}
}

// TestPattern holds patterns to what Oniguruma makes of them, beside the well-known ones that families use.
func TestPattern(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          []string // the matches
	}{
		{`a+?b`, "aaab ab", []string{"aaab", "ab"}},
		{`(?:ab|a)(?:bc)?`, "abc ab", []string{"ab", "ab"}},
		{`(?>a+)b|a`, "aab a", []string{"aab", "a"}},
		{`a++a|b`, "aaab", []string{"b"}},
		{`(?<=x)y|(?<!x)z`, "xy xz z", []string{"y", "z"}},
		{`\p{Lu}\p{^Lu}+`, "AbcDe", []string{"Abc", "De"}},
		{`[^\P{L}a-c]+`, "abcdef1", []string{"def"}},
		{`[\w&&[^\d_]]+`, "ab1_c", []string{"ab", "c"}},
		{`(?i:'s|k)`, "'S 'ſ K \u212a", []string{"'S", "'ſ", "K", "\u212a"}},
		{`\s+(?!\S)|\s+`, "a   b ", []string{"  ", " ", " "}},
		{`(?:a|b)*c`, "ababc", []string{"ababc"}},
		{`(?:a*)*b`, "aab", []string{"aab"}},
		{`\x41\u00e9\x{1F600}[\t-\r]`, "Aé😀\n", []string{"Aé😀\n"}},
		{`^b$|\Aa`, "a\nb\nc", []string{"a", "b"}},
	} {
		p, err := compile(tt.pattern)
		if err != nil {
			t.Errorf("%s: %v", tt.pattern, err)
			continue
		}
		var got []string
		m := new(matcher)
		for pos := 0; pos <= len(tt.text); {
			start, end := p.find(m, tt.text, pos)
			if start < 0 {
				break
			}
			got = append(got, tt.text[start:end])
			pos = max(end, start+1)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s in %q: got %q, want %q", tt.pattern, tt.text, got, tt.want)
		}
	}
	for _, bad := range []string{`(`, `[`, `a)`, `*`, `a{9999}`, `\q`, `(?P<x>a)`, `\1`, `[[:alpha:]]`, `\p{Klingon}`, `a{2,1}`, `[b-a]`, `\`, `(?<=ab)c`, `(?:(?:(?:ab){900}){900}){900}`} {
		if _, err := compile(bad); err == nil {
			t.Errorf("%s: it compiles", bad)
		}
	}
}

// TestPatternIsBounded: a pattern that tries all ways of a long text gives up.
func TestPatternIsBounded(t *testing.T) {
	p, err := compile(`(?:a|aa|aaa)*b`)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 200)
	for i := range text {
		text[i] = 'a'
	}
	m := new(matcher)
	if start, _ := p.find(m, string(text), 0); start >= 0 || !m.tooHard(string(text)) {
		t.Errorf("found at %d after %d steps", start, m.steps)
	}
}

// TestAddedTokens holds the ids of added tokens to the original's: it numbers them in the order of the file, whatever the file
// says.
func TestAddedTokens(t *testing.T) {
	for _, tt := range []struct {
		added string
		want  []uint32
	}{
		{`{"id":5,"content":"<x>"},{"id":9,"content":"<y>"}`, []uint32{2, 0, 3, 1}},
		{`{"id":9,"content":"<y>"},{"id":5,"content":"<x>"}`, []uint32{3, 0, 2, 1}},
		{`{"id":2,"content":"<x>"},{"id":7,"content":"<y>"},{"id":3,"content":"<z>"}`, []uint32{2, 0, 3, 1, 4}},
		{`{"id":1,"content":"<x>"}`, []uint32{2, 0, 1}},
		{`{"id":0,"content":"a"}`, []uint32{0, 1}},
	} {
		tok, err := readTokenizer([]byte(`{"added_tokens":[`+tt.added+`],"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}`), bare())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.encode(nil, "<x>a<y>b<z>", false); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, %v, want %v", tt.added, got, err, tt.want)
		}
	}
}
