// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// renamed gives doc with another model, or says that it stays as it is.
func renamed(t *testing.T, doc, model string) string {
	t.Helper()
	m := NewMemory(0)
	b := NewBody(m, 0)
	defer func() {
		b.Release()
		if m.Held() != 0 {
			t.Errorf("%d bytes held", m.Held())
		}
	}()
	if _, err := b.Write([]byte(doc)); err != nil {
		t.Fatal(err)
	}
	var s Scanner
	f := scan(&s, Chat, doc)
	if err := f.Rename(b, model); err != nil {
		t.Fatal(err)
	}
	if b.Edited() != f.Renames() {
		t.Errorf("%s: edited %v, renames %v", doc, b.Edited(), f.Renames())
	}
	var out bytes.Buffer
	for p := range b.Chunks {
		out.Write(p)
	}
	if int64(out.Len()) != b.Len() {
		t.Errorf("%s: length %d, but %d bytes", doc, b.Len(), out.Len())
	}
	return out.String()
}

var renames = []struct{ doc, want string }{
	{` {"model" : "a" ,"seed":12345678901234567890}` + "\n", ` {"model" : "t" ,"seed":12345678901234567890}` + "\n"},
	{`{"x":1.0,"mod\u0065l":"a\"b"}`, `{"x":1.0,"mod\u0065l":"t"}`},
	{`{"model":"a","n":1,"model":"b"}`, `{"model":"t","n":1,"model":"t"}`},
	{`{"model":null}`, `{"model":"t"}`},
	{`{"model":"a","model":null}`, `{"model":"t","model":"t"}`},
	{`{"model":"` + strings.Repeat("x", 2*keepName) + `"}`, `{"model":"t"}`},
	{`{"metadata":{"model":"a"},"messages":[{"model":"a"}]}`, `{"model":"t","metadata":{"model":"a"},"messages":[{"model":"a"}]}`},
	{"{ }", `{"model":"t" }`},
	{"{}", `{"model":"t"}`},
	{"{\n \"a\":1}", "{\"model\":\"t\",\n \"a\":1}"},
	// What engines refuse, or cannot be understood, stays as it is.
	{`{"model":{"a":1}}`, ""},
	{`{"model":"a","model":["b"]}`, ""},
	{`{"model":"a"`, ""},
	{`[{"model":"a"}]`, ""},
	{"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na\r\n--x--", ""},
	{"{" + strings.Repeat(`"model":"a",`, 200) + `"n":1}`, ""},
}

func TestRename(t *testing.T) {
	for _, c := range renames {
		if c.want == "" {
			c.want = c.doc
		}
		if got := renamed(t, c.doc, "t"); got != c.want {
			t.Errorf("%.80s: got %.80s, want %.80s", c.doc, got, c.want)
		}
	}
	const odd = "a\"b\\c\x01é\u2028\xff/<"
	var got struct{ Model string }
	if err := json.Unmarshal([]byte(renamed(t, `{"model":"m"}`, odd)), &got); err != nil || got.Model != string([]rune(odd)) {
		t.Errorf("got %q (%v), want %q", got.Model, err, odd)
	}
}

// FuzzRename: a renamed body stays JSON, and is equal but for its model.
func FuzzRename(f *testing.F) {
	for _, c := range renames {
		f.Add(c.doc, "t")
	}
	f.Fuzz(func(t *testing.T, doc, model string) {
		out := renamed(t, doc, model)
		var was, is map[string]any
		if !utf8.ValidString(doc) || json.Unmarshal([]byte(doc), &was) != nil || was == nil || out == doc {
			return
		}
		if err := json.Unmarshal([]byte(out), &is); err != nil {
			t.Fatalf("%q became %q: %v", doc, out, err)
		}
		was["model"] = string([]rune(model)) // with U+FFFD for each byte that is no UTF-8
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("%q became %q", doc, out)
		}
	})
}
