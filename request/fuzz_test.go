// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzScan: of a valid document the scan finds what encoding/json finds, and where a body is
// cut into pieces makes no difference.
func FuzzScan(f *testing.F) {
	for _, test := range scans {
		f.Add(test.doc, uint8(test.api), uint16(7))
	}
	f.Fuzz(func(t *testing.T, doc string, api uint8, piece uint16) {
		a := API(api % uint8(Generate+1))
		var s, split Scanner
		facts := scan(&s, a, doc)
		whole := describe(doc, facts)
		if got := describe(doc, scan(&split, a, doc, every(int(piece)+1, len(doc))...)); got != whole {
			t.Fatalf("by %d bytes:\n%s\nat once:\n%s", piece+1, got, whole)
		}
		for _, p := range facts.Prompt {
			if p.Off < 0 || p.Len < 0 || p.end() > int64(len(doc)) {
				t.Fatalf("span %v lies outside of %d bytes", p, len(doc))
			}
		}
		promptsOf(t, a, doc, int(piece)+1)
		var want map[string]json.RawMessage
		if !utf8.ValidString(doc) || json.Unmarshal([]byte(doc), &want) != nil || want == nil || s.again > maxAgain {
			return
		}
		if strings.Count(doc, "{")+strings.Count(doc, "[") > maxDepth && !facts.Typed {
			return
		}
		var model string
		var stream bool
		if json.Unmarshal(want["model"], &model) != nil || len(want["model"]) > keepName {
			model = facts.Model
		}
		_ = json.Unmarshal(want["stream"], &stream)
		if !facts.Typed || facts.Model != model || facts.Stream != stream {
			t.Fatalf("got typed %v, model %q, stream %v, want %q, %v", facts.Typed, facts.Model, facts.Stream, model, stream)
		}
		key := "max_tokens"
		if a == Responses {
			key = "max_output_tokens"
		}
		var limit int64
		if want["max_completion_tokens"] == nil && a != Generate && json.Unmarshal(want[key], &limit) == nil && limit >= 0 && limit < 1e17 && facts.MaxTokens != limit {
			t.Fatalf("got max tokens %d, want %d", facts.MaxTokens, limit)
		}
	})
}

// FuzzAnswer: nothing breaks, and where an answer is cut makes no difference.
func FuzzAnswer(f *testing.F) {
	for _, test := range answers {
		if len(test.stream) < 10_000 {
			f.Add(test.stream, uint8(test.api), test.sse, uint16(5))
		}
	}
	f.Fuzz(func(t *testing.T, stream string, api uint8, sse bool, piece uint16) {
		var whole, split Answer
		answer(&whole, API(api%uint8(Generate+1)), sse, stream)
		answer(&split, API(api%uint8(Generate+1)), sse, stream, every(int(piece)+1, len(stream))...)
		if outcome(&whole) != outcome(&split) {
			t.Fatalf("by %d bytes: %s, at once: %s", piece+1, outcome(&split), outcome(&whole))
		}
		for _, n := range []int{whole.Usage.Prompt, whole.Usage.Output, whole.Usage.Cached} {
			if n < -1 {
				t.Fatalf("usage %v", whole.Usage)
			}
		}
	})
}

// FuzzDecode: whatever comes, it decodes or gives one of the errors with a status, within the
// limit, and holds nothing afterwards.
func FuzzDecode(f *testing.F) {
	for _, coding := range codings {
		f.Add(header(coding), encode(f, coding, []byte(strings.Repeat("hello ", 100))))
	}
	f.Add("gzip, gzip", []byte("x"))
	f.Fuzz(func(t *testing.T, header string, p []byte) {
		const limit = 1 << 16
		m := NewMemory(0)
		out, err := decode(m, header, p, limit)
		if len(out) > limit {
			t.Fatalf("%d bytes", len(out))
		}
		if err != nil && !errors.Is(err, ErrEncoding) && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTooLarge) {
			t.Fatalf("an error of no kind: %v", err)
		}
		if m.Held() != 0 {
			t.Fatalf("still holds %d", m.Held())
		}
	})
}
