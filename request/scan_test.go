// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// scan feeds a document in pieces that end at the given places.
func scan(s *Scanner, api API, doc string, ends ...int) *Facts {
	s.Reset(api)
	from := 0
	for _, end := range append(ends, len(doc)) {
		s.Feed([]byte(doc[from:end])) // a copy: what it keeps of a piece must not matter
		from = end
	}
	return s.Finish()
}

// describe writes facts as a text.
func describe(doc string, f *Facts) string {
	if !f.Typed {
		if !reflect.DeepEqual(*f, Facts{Prompt: f.Prompt[:0], models: f.models[:0]}) {
			return fmt.Sprintf("untyped but not zero: %+v", f)
		}
		return "untyped"
	}
	var out []string
	add := func(set bool, format string, args ...any) {
		if set {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(f.Model != "", "model=%s", f.Model)
	if n := f.ModelSpan; n.Len > 0 {
		var spliced string
		if err := json.Unmarshal([]byte(doc[n.Off:n.Off+n.Len]), &spliced); err != nil || spliced != f.Model {
			add(true, "bad span %q", doc[n.Off:n.Off+n.Len])
		}
	}
	add(f.Stream, "stream")
	add(f.IncludeUsage, "usage")
	add(f.MaxTokens != 0, "max=%d", f.MaxTokens)
	add(f.N != 1, "n=%d", f.N)
	add(f.Salt != "", "salt=%s", f.Salt)
	add(f.Tools, "tools")
	add(f.Recomputes, "recomputes")
	for _, p := range f.Prompt {
		mark := [...]string{"", "#", "@"}[p.Kind]
		if p.First {
			mark += "^"
		}
		out = append(out, mark+doc[p.Off:p.Off+p.Len])
	}
	return strings.Join(out, " ")
}

var scans = []struct {
	name, doc string
	api       API
	want      string
}{
	{"chat", `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":7,"max_completion_tokens":5,"cache_salt":"s"}`, Chat, `model=m stream usage max=5 n=2 salt=s ^user hi`},
	{"order of keys does not matter", `{ "messages" : [ { "content" : "hi" , "role" : "user" } ] , "tools" : [ {"a":1} ] , "model" : "m" }`, Chat, `model=m tools ^[ {"a":1} ] user hi`},
	{"escapes", `{"m\u006fdel":"a\u00e9\ud83d\ude00\n\"\\/x","messages":[{"role":"us\"er","content":"a\\\\\"b\\"}]}`, Chat, "model=aé😀\n\"\\/x ^us\\\"er a\\\\\\\\\\\"b\\\\"},
	{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"http://x","detail":"low"}},{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}},{"type":"new","thing":[1]}]}]}`, Chat, `^user see @http://x @QUJD [1]`},
	{"tool calls and names", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}],"name":"n"},{"role":"tool","tool_call_id":"1","content":"42"}]}`, Chat, `^assistant n [{"id":"1"}] tool 1 42`},
	{"empty tools are none", `{"tools":[],"messages":[]}`, Chat, `^[]`},
	{"keys twice", `{"model":"a","model":"b","max_tokens":5,"max_tokens":"x","stream":true,"stream":1,"messages":[{"role":"x","content":"old"}],"messages":[{"role":"a","role":"b","content":"c","content":"d"}]}`, Chat, `model=b ^b d`},
	{"prompt string", `{"prompt":"one two","model":"m"}`, Completions, `model=m ^one two`},
	{"prompt strings", `{"prompt":["one","two"]}`, Completions, `^one ^two`},
	{"prompt ids", `{"prompt":[1, 22 ,333]}`, Completions, `#^[1, 22 ,333]`},
	{"prompt lists of ids", `{"prompt":[[1,2],[3]]}`, Completions, `#^[1,2] #^[3]`},
	{"prompt of a wrong type", `{"prompt":{"a":1},"model":"m"}`, Completions, `model=m`},
	{"prompt null", `{"prompt":null}`, Completions, ``},
	{"prompt empty", `{"prompt":[]}`, Completions, ``},
	{"embeddings", `{"input":["a","b"],"model":"m"}`, Embeddings, `model=m ^a ^b`},
	{"embeddings ids", `{"input":[[7],[8]]}`, Embeddings, `#^[7] #^[8]`},
	{"responses string", `{"input":"hi","instructions":"be","tools":[{}],"max_output_tokens":9,"max_tokens":1}`, Responses, `max=9 tools ^be [{}] hi`},
	{"responses items", `{"input":[{"role":"user","content":[{"type":"input_text","text":"t"},{"type":"input_image","image_url":"data:x"}]},{"type":"function_call","name":"f","arguments":"{}","call_id":"c"},{"type":"function_call_output","call_id":"c","output":"o"}]}`, Responses, `^user t @data:x f c {} c o`},
	{"anthropic", `{"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}},{"type":"tool_result","tool_use_id":"u","content":[{"type":"text","text":"r"}]}]}],"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"sys","cache_control":{"type":"ephemeral"}}],"max_tokens":5}`, Messages, `max=5 ^sys user q @aGk= u r`},
	{"anthropic system string", `{"system":"s","messages":[{"role":"user","content":"q"}]}`, Messages, `^s user q`},
	{"generate", `{"token_ids":[5,6],"sampling_params":{"max_tokens":3},"max_tokens":4,"model":"m"}`, Generate, `model=m max=3 #^[5,6]`},
	{"unknown path", `{"model":"m","stream":true,"prompt":"p"}`, Unknown, `model=m stream`},
	{"log probabilities of the prompt", `{"prompt_logprobs":0}`, Chat, `recomputes`},
	{"and none", `{"prompt_logprobs":1,"prompt_logprobs":null}`, Completions, ``},
	{"of no such API", `{"prompt_logprobs":0,"echo":true,"logprobs":1}`, Responses, ``},
	{"echoed", `{"echo":true,"logprobs":1}`, Completions, `recomputes`},
	{"echoed, but no log probabilities", `{"echo":true,"logprobs":null}`, Completions, ``},
	{"not echoed", `{"echo":false,"logprobs":1}`, Completions, ``},
	{"a chat, echoed: 0 is a number", `{"echo":true,"logprobs":false}`, Chat, `recomputes`},
	{"a chat, echoed, without", `{"echo":true,"top_logprobs":null}`, Chat, ``},
	{"a chat, not echoed", `{"logprobs":true,"top_logprobs":3}`, Chat, ``},
	{"ids, and log probabilities of the prompt", `{"token_ids":[1],"sampling_params":{"prompt_logprobs":3}}`, Generate, `recomputes #^[1]`},
	{"numbers", `{"max_tokens":1e3,"n":2.0}`, Chat, `max=1000 n=2`},
	{"bad numbers", `{"max_tokens":2.5,"n":-1,"max_completion_tokens":99999999999999999999}`, Chat, ``},
	{"wrong types", `{"model":7,"stream":"true","max_tokens":[5],"n":{},"stream_options":[],"cache_salt":null,"messages":"x","tools":"y"}`, Chat, `^x`},
	{"long model", `{"model":"` + strings.Repeat("m", keepName+1) + `"}`, Chat, ``},
	{"same names further down", `{"metadata":{"model":"x","stream":true,"messages":[{"role":"r"}]},"model":"m"}`, Chat, `model=m`},
	{"numbers precise", `{"seed":12345678901234567890,"temperature":1e-7,"model":"m"}`, Chat, `model=m`},
	{"empty object", ` {} `, Chat, ``},
	{"trailing space", `{"model":"m"}` + strings.Repeat(" \n", 50), Chat, `model=m`},
	{"truncated", `{"model": "m", "messages": [`, Chat, `untyped`},
	{"truncated string", `{"model": "m`, Chat, `untyped`},
	{"not json", `not json`, Chat, `untyped`},
	{"list", `[]`, Chat, `untyped`},
	{"string", `"x"`, Chat, `untyped`},
	{"null", `null`, Chat, `untyped`},
	{"bytes", "\xff\xfe\x00", Chat, `untyped`},
	{"nothing", ``, Chat, `untyped`},
	{"two documents", `{"model":"m"}{}`, Chat, `untyped`},
	{"trailing comma", `{"model":"m",}`, Chat, `untyped`},
	{"mismatched", `{"model":["m"}`, Chat, `untyped`},
	{"no colon", `{"model" "m"}`, Chat, `untyped`},
	{"too deep", strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1), Chat, `untyped`},
	{"deep", strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth), Chat, ``},
	{"keys twice without end", `{"messages":[{` + strings.Repeat(`"role":"r",`, maxAgain+2) + `"a":1}]}`, Chat, `untyped`},
}

func TestScan(t *testing.T) {
	var s Scanner
	for _, test := range scans {
		if got := describe(test.doc, scan(&s, test.api, test.doc)); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

// Where a body is cut into pieces makes no difference.
func TestScanSplits(t *testing.T) {
	var s Scanner
	for _, test := range scans {
		for i := range len(test.doc) + 1 {
			if got := describe(test.doc, scan(&s, test.api, test.doc, i)); got != test.want {
				t.Errorf("%s split at %d:\n got %s\nwant %s", test.name, i, got, test.want)
			}
		}
		if got := describe(test.doc, scan(&s, test.api, test.doc, every(1, len(test.doc))...)); got != test.want {
			t.Errorf("%s by bytes:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

// every lists the ends of pieces of n bytes.
func every(n, of int) (ends []int) {
	for i := n; i < of; i += n {
		ends = append(ends, i)
	}
	return ends
}

func TestScanBoundsWhatItRemembers(t *testing.T) {
	var s Scanner
	f := scan(&s, Completions, `{"prompt":[""`+strings.Repeat(`,""`, 3*maxSpans)+`],"model":"m"}`)
	if len(f.Prompt) != maxSpans || f.Model != "m" {
		t.Errorf("got %d spans and model %q, want %d and m", len(f.Prompt), f.Model, maxSpans)
	}
}

func TestScanAllocations(t *testing.T) {
	var s Scanner
	for _, test := range scans {
		doc := []byte(test.doc)
		one := func() {
			s.Reset(test.api)
			for p := doc; len(p) > 0; p = p[min(len(p), 100):] {
				s.Feed(p[:min(len(p), 100)])
			}
			s.Finish()
		}
		if got := testing.AllocsPerRun(10, one); got > 0 {
			t.Errorf("%s: %v allocations in steady state", test.name, got)
		}
	}
}

func TestSingle(t *testing.T) {
	for doc, want := range map[string]bool{
		`{}`: true, `{"prompt":"a"}`: true, `{"prompt":[1,2]}`: true, `{"prompt":["a"]}`: true, `{"prompt":["a","b"]}`: false,
		`{"prompt":[[1],[2]]}`: false, `{"prompt":"a","n":2}`: false,
	} {
		var s Scanner
		s.Reset(Completions)
		s.Feed([]byte(doc))
		if got := s.Finish().Single(); got != want {
			t.Errorf("%s: got %t, want %t", doc, got, want)
		}
	}
}
