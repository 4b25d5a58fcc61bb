// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// The engine is asked for the target; the client asked for the name.
const (
	target = `org/té"l`
	asked  = "ali\\as✓"
	tj     = `"org/té\"l"`            // target in JSON
	aj     = `"ali\\as✓"`             // asked in JSON
	tjEsc  = `"org\/t\u00e9\"\u006c"` // target in JSON, another way
)

var restores = []struct {
	name string
	api  API
	sse  bool
	in   string
	want string // "" for the same
}{
	{"chat", Chat, false, `{"id":"x","model":` + tj + `,"choices":[{"message":{"content":"hi"}}]}`, `{"id":"x","model":` + aj + `,"choices":[{"message":{"content":"hi"}}]}`},
	{"white space", Chat, false, "\r\n { \"model\" :\n " + tj + " } \n", "\r\n { \"model\" :\n " + aj + " } \n"},
	{"at the end", Embeddings, false, `{"data":[{"embedding":[1,2.5,-3e9]}],"model":` + tj + `}`, `{"data":[{"embedding":[1,2.5,-3e9]}],"model":` + aj + `}`},
	{"escapes", Chat, false, `{"mod\u0065l":` + tjEsc + `}`, `{"mod\u0065l":` + aj + `}`},
	{"another model", Chat, false, `{"model":"org/tel","x":` + tj + `}`, ""},
	{"a longer name", Chat, false, `{"model":"org/té\"l2"}`, ""},
	{"a shorter name", Chat, false, `{"model":"org/té"}`, ""},
	{"a name much longer", Chat, false, `{"model":"org/té` + strings.Repeat("x", 100) + `","x":1}`, ""},
	{"not a string", Chat, false, `{"model":null,"x":[` + tj + `]}`, ""},
	{"in content", Chat, false, `{"choices":[{"message":{"content":"\"model\":\"m\"","model":` + tj + `,"tool_calls":[{"function":{"arguments":"{\"model\": \"m\"}"}}]}}],"x":{"model":` + tj + `}}`, ""},
	{"cut off in the name", Chat, false, `{"model":"org/t`, ""},
	{"cut off in an escape", Chat, false, `{"model":"org\u00`, ""},
	{"not JSON", Chat, false, `<html>"model":` + tj + `</html>`, ""},
	{"two documents", Chat, false, `{"a":1}{"model":` + tj + `}`, ""},
	{"a string in place of the object", Messages, false, `{"message":` + tj + `,"model":` + tj + `}`, `{"message":` + tj + `,"model":` + aj + `}`},
	{"two names", Chat, false, `{"model":"a","model":` + tj + `}`, ""},
	{"another API's place", Chat, false, `{"response":{"model":` + tj + `},"message":{"model":` + tj + `}}`, ""},
	{"anthropic", Messages, false, `{"type":"message","role":"assistant","model":` + tj + `,"content":[{"text":"model"}]}`, `{"type":"message","role":"assistant","model":` + aj + `,"content":[{"text":"model"}]}`},
	{"chat events", Chat, true,
		"data: {\"id\":1,\"model\":" + tj + ",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":" + `\"org` + "\"}}]}\n\ndata: {\"model\":" + tj + "}\n\ndata: [DONE]\n\n",
		"data: {\"id\":1,\"model\":" + aj + ",\"choices\":[{\"delta\":{\"content\":\"\\\"model\\\":" + `\"org` + "\"}}]}\n\ndata: {\"model\":" + aj + "}\n\ndata: [DONE]\n\n"},
	{"line ends", Chat, true,
		"data:{\"model\":" + tj + "}\r\n\r\ndata: {\"model\":" + tj + "}\r\rdata: {\"model\":" + tj + "}\n\r\ndata: {\"model\":" + tj + "}",
		"data:{\"model\":" + aj + "}\r\n\r\ndata: {\"model\":" + aj + "}\r\rdata: {\"model\":" + aj + "}\n\r\ndata: {\"model\":" + aj + "}"},
	{"mark, comments and fields", Chat, true,
		"\xef\xbb\xbfdata: {\"model\":" + tj + "}\n\n: {\"model\":" + tj + "}\nid: {\"model\":" + tj + "}\nevent: x\ndata\ndatum: {\"model\":" + tj + "}\n\n",
		"\xef\xbb\xbfdata: {\"model\":" + aj + "}\n\n: {\"model\":" + tj + "}\nid: {\"model\":" + tj + "}\nevent: x\ndata\ndatum: {\"model\":" + tj + "}\n\n"},
	{"an event of several lines", Chat, true,
		"data: {\"choices\":[],\ndata: \"model\":\ndata: " + tj + "}\n\n",
		"data: {\"choices\":[],\ndata: \"model\":\ndata: " + aj + "}\n\n"},
	{"a name torn by a line", Chat, true, "data: {\"model\":\"org/\ndata: té\\\"l\"}\n\ndata: x\n\n", ""},
	{"what follows a broken event", Chat, true, "data: {\"model\":\"org\n\ndata: {\"model\":" + tj + "}\n\n", "data: {\"model\":\"org\n\ndata: {\"model\":" + aj + "}\n\n"},
	{"responses", Responses, true,
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":" + tj + ",\"output\":[{\"model\":" + tj + "}]}}\n\nevent: e\ndata: {\"item\":{\"model\":" + tj + "}}\n\n",
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":" + aj + ",\"output\":[{\"model\":" + tj + "}]}}\n\nevent: e\ndata: {\"item\":{\"model\":" + tj + "}}\n\n"},
	{"messages", Messages, true,
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"model\":" + tj + "}}\n\nevent: content_block_delta\ndata: {\"delta\":{\"text\":\"m\",\"model\":" + tj + "}}\n\n",
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"model\":" + aj + "}}\n\nevent: content_block_delta\ndata: {\"delta\":{\"text\":\"m\",\"model\":" + tj + "}}\n\n"},
}

// restored passes an answer through in pieces, and checks that little is kept back.
func restored(t *testing.T, r *Restorer, api API, sse bool, pieces ...string) string {
	t.Helper()
	r.Reset(api, sse, target, asked)
	var b strings.Builder
	for _, p := range pieces {
		piece := []byte(p)
		got := r.Feed(piece)
		if string(piece) != p {
			t.Fatalf("%q was changed to %q", p, piece)
		}
		if len(r.held) > 6*len(target)+len(p) {
			t.Errorf("%d bytes kept back", len(r.held))
		}
		b.Write(got)
	}
	b.Write(r.Finish())
	return b.String()
}

func TestRestore(t *testing.T) {
	var r Restorer
	for _, c := range restores {
		if c.want == "" {
			c.want = c.in
		}
		if got := restored(t, &r, c.api, c.sse, c.in); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
		if got := restored(t, &r, c.api, c.sse, strings.Split(c.in, "")...); got != c.want { // by character
			t.Errorf("%s, by character: got\n%s", c.name, got)
		}
		var bytewise []string
		for i := range len(c.in) {
			bytewise = append(bytewise, c.in[i:i+1])
			if got := restored(t, &r, c.api, c.sse, c.in[:i], c.in[i:]); got != c.want {
				t.Errorf("%s, cut at %d: got\n%s\nwant\n%s", c.name, i, got, c.want)
			}
		}
		if got := restored(t, &r, c.api, c.sse, bytewise...); got != c.want {
			t.Errorf("%s, by byte: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// What is not changed is not copied either, and nothing is allocated once buffers have grown.
func TestRestoreCost(t *testing.T) {
	var r Restorer
	r.Reset(Chat, false, "target", "name")
	same := []byte(`{"id":"x","choices":[`)
	if got := r.Feed(same); &got[0] != &same[0] || len(got) != len(same) {
		t.Errorf("got a copy %q", got)
	}
	r.Feed([]byte(`],"model":"target","usage":`))
	if got := r.Feed(same); &got[0] != &same[0] || len(got) != len(same) {
		t.Errorf("behind the name: got a copy %q", got)
	}
	event := []byte("data: {\"id\":\"x\",\"model\":\"target\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n")
	r.Reset(Chat, true, "target", "name")
	if n := testing.AllocsPerRun(100, func() {
		r.Feed(event[:30])
		r.Feed(event[30:])
	}); n > 0 && !raceEnabled {
		t.Errorf("%v allocations for an event", n)
	}
}

// FuzzRestore: an answer stays JSON and is equal but for its model, and where it is cut makes no difference.
func FuzzRestore(f *testing.F) {
	for _, c := range restores {
		f.Add(c.in, uint8(c.api), c.sse, uint16(7))
	}
	var r Restorer
	f.Fuzz(func(t *testing.T, in string, api uint8, sse bool, piece uint16) {
		a := API(api % uint8(Generate+1))
		whole := restored(t, &r, a, sse, in)
		var pieces []string
		n := int(piece) + 1
		for s := in; s != ""; {
			k := min(n, len(s))
			pieces, s = append(pieces, s[:k]), s[k:]
		}
		if got := restored(t, &r, a, sse, pieces...); got != whole {
			t.Fatalf("by %d bytes: %q, at once: %q", n, got, whole)
		}
		var was map[string]any
		if sse || !utf8.ValidString(in) || json.Unmarshal([]byte(in), &was) != nil || was == nil || models(in) > 1 {
			return
		}
		restoreIn(was)
		for _, nested := range []struct {
			api API
			key string
		}{{Responses, "response"}, {Messages, "message"}} {
			if m, ok := was[nested.key].(map[string]any); ok && a == nested.api {
				restoreIn(m)
			}
		}
		var is map[string]any
		if err := json.Unmarshal([]byte(whole), &is); err != nil || !reflect.DeepEqual(is, was) && strings.Count(in, "{") < maxDepth {
			t.Fatalf("%q became %q (%v)", in, whole, err)
		}
	})
}

func restoreIn(m map[string]any) {
	if m["model"] == target {
		m["model"] = asked
	}
}

// models counts the keys that may be the model's; of several only the first counts.
func models(in string) (n int) {
	d := json.NewDecoder(strings.NewReader(in))
	for {
		tok, err := d.Token()
		if err != nil {
			return n
		}
		switch tok {
		case "model", "message", "response":
			n++
		}
	}
}

func BenchmarkRestore(b *testing.B) {
	var r Restorer
	event := fmt.Appendf(nil, "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"org/target-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n")
	r.Reset(Chat, true, "org/target-model", "name")
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		r.Feed(event)
	}
}
