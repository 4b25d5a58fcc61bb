// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What each step of a diff keeps and changes adds up to both texts.
func TestDiff(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"a\n", "a\n", ""},
		{"", "a\n", "@@ -1,0 +1,1 @@\n+a\n"},
		{"a\nb\nc\n", "a\nc\n", "@@ -1,3 +1,2 @@\n a\n-b\n c\n"},
		{"a", "a\n", "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\nx\n3\n4\n5\n6\n7\n8\n9\ny\n", "@@ -1,5 +1,5 @@\n 1\n-2\n+x\n 3\n 4\n 5\n@@ -7,3 +7,4 @@\n 7\n 8\n 9\n+y\n"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n", "x\n2\n3\n4\n5\n6\n7\ny\n", "@@ -1,8 +1,8 @@\n-1\n+x\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n+y\n"},
	} {
		if got := strings.TrimPrefix(Diff("f", c.before, c.after), "--- f\n+++ f\n"); got != c.want {
			t.Errorf("%q to %q: got\n%swant\n%s", c.before, c.after, got, c.want)
		}
		addsUp(t, c.before, c.after)
	}
}

func addsUp(t *testing.T, before, after string) {
	t.Helper()
	var a, b strings.Builder
	for _, o := range compare(linesOf(before), linesOf(after)) {
		if o.sign != '+' {
			a.WriteString(o.line)
		}
		if o.sign != '-' {
			b.WriteString(o.line)
		}
	}
	if a.String() != before || b.String() != after {
		t.Fatalf("a diff from %q to %q is one from %q to %q", before, after, a.String(), b.String())
	}
}

// Ends of lines, a byte order mark and a last line without an end are kept.
func TestMigrateBytes(t *testing.T) {
	before := "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: openai-parser}]\nrequestHandler:\n  parsers: []\nparser: {pluginRef: openai-parser}"
	want := "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: openai-parser}]\nrequestHandler:\n  parsers: [{pluginRef: openai-parser}]"
	for name, of := range map[string]func(string) string{
		"as is": func(s string) string { return s },
		"crlf":  func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"bom":   func(s string) string { return "\ufeff" + s },
		"wide":  func(s string) string { return "# größer 世界\n" + s },
	} {
		if got, ps := Migrate("x.yaml", of(before)); got != of(want) || len(ps) > 0 {
			t.Errorf("%s: got %q %v, want %q", name, got, ps, of(want))
		}
	}
	for _, broken := range []string{"a: [", "a: &a\n  <<: *a\n", "a: 1\na: 2\n"} {
		if got, ps := Migrate("x.yaml", broken); got != broken || !Failed(ps) {
			t.Errorf("got %q, %v", got, ps)
		}
	}
}

func FuzzMigrate(f *testing.F) {
	files, _ := filepath.Glob("testdata/*/*.yaml")
	texts, _ := filepath.Glob("testdata/*.txt")
	for _, name := range append(files, texts...) {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(data), "\n----\n") {
			if _, doc, ok := strings.Cut(part, "\nmigrate\n"); ok {
				part = doc
			}
			f.Add(part)
		}
	}
	f.Fuzz(func(t *testing.T, before string) {
		after, ps := Migrate("x.yaml", before)
		if after == before {
			return
		}
		if Failed(ps) {
			t.Fatalf("changed, and %v", ps)
		}
		addsUp(t, before, after)
		parse([]byte(after), "x.yaml", func(p Problem) { t.Fatalf("%q became %q: %s", before, after, p) })
		if json.Valid([]byte(before)) != json.Valid([]byte(after)) {
			t.Fatalf("%q became %q", before, after)
		}
		if again, _ := Migrate("x.yaml", after); again != after {
			t.Fatalf("%q became %q and then %q", before, after, again)
		}
		was, _ := Text("x.yaml", before, testOptions())
		is, problems := Text("x.yaml", after, testOptions())
		if was == nil {
			return
		}
		if is == nil || meaning(was) != meaning(is) {
			t.Fatalf("%q became %q, which means something else: %v", before, after, Problems(problems))
		}
	})
}
