// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// Streams as engines write them. \n stands for the line end.
const (
	chatRole    = "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
	chatUsage   = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"total_tokens\":263,\"completion_tokens\":252,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	chatPreview = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":4}}\n\n"
	chatStop    = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
	chatDone    = "data: [DONE]\n\n"
)

func chatText(s string) string {
	return "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + s + "\"},\"finish_reason\":null}]}\n\n"
}

var chatStream = chatRole + chatText("é") + chatText("€") + chatText("😀") + chatText(`\"usage\": [DONE]`) + chatStop

const anthropic = `event: message_start
data: {"type":"message_start","message":{"id":"x","usage":{"input_tokens":25,"cache_read_input_tokens":9,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}

event: content_block_delta
data: {"index":0,"delta":{"type":"text_delta","text":"lo"},"type":"content_block_delta"}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

`

var answers = []struct {
	name   string
	api    API
	sse    bool
	stream string
	want   string // events, done, usage
}{
	{"chat", Chat, true, chatStream + chatUsage + chatDone, "4 done {11 252 8}"},
	{"usage right before the end", Chat, true, chatStream + chatUsage, "4 cut {11 252 8}"},
	{"preview first, last usage wins", Chat, true, chatPreview + chatStream + chatUsage + chatDone, "4 done {11 252 8}"},
	{"no usage", Chat, true, chatStream + chatDone, "4 done {-1 -1 -1}"},
	{"no end marker", Chat, true, chatStream, "4 cut {-1 -1 -1}"},
	{"end marker without its blank line", Chat, true, chatStream + "data: [DONE]", "4 done {-1 -1 -1}"},
	{"cut in a number", Chat, true, chatText("a") + `data: {"choices":[],"usage":{"prompt_tokens":1`, "1 cut {-1 -1 -1}"},
	{"no space, comments, mark, other fields", Chat, true, "\xef\xbb\xbf: hello\n\ndata:{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\nid: 1\nretry: 5\n\n: ping\n\n" + chatDone, "1 done {-1 -1 -1}"},
	{"white space and key order", Chat, true, "data: { \"choices\" : [ { \"delta\" : { \"role\" : \"assistant\" , \"content\" : null , \"tool_calls\" : [ { } ] } } ] , \"usage\" : { \"prompt_tokens\" : 3 } }\n\n", "1 cut {3 -1 -1}"},
	{"several lines of data", Chat, true, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\ndata: \"usage\":{\"prompt_tokens\":1,\ndata:\"completion_tokens\":2}}\n\n", "1 cut {1 2 -1}"},
	{"two choices", Chat, true, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"}},{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n", "1 cut {-1 -1 -1}"},
	{"reasoning", Chat, true, "data: {\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"hm\"}}]}\n\n", "1 cut {-1 -1 -1}"},
	{"error in a stream", Chat, true, "data: {\"error\":{\"message\":\"no\"}}\n\n", "0 cut {-1 -1 -1}"},
	{"completions", Completions, true, "data: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n" + chatDone, "1 done {5 1 -1}"},
	{"generate", Generate, true, "data: {\"choices\":[{\"token_ids\":[]}]}\n\ndata: {\"choices\":[{\"token_ids\":[7]}]}\n\n" + chatDone, "1 done {-1 -1 -1}"},
	{"unknown", Unknown, true, "data: {\"token\":1}\n\ndata: {\"error\":{}}\n\n" + chatDone, "1 done {-1 -1 -1}"},
	{"anthropic", Messages, true, anthropic, "2 done {25 15 9}"},
	{"responses", Responses, true, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":4,\"input_tokens_details\":{\"cached_tokens\":2},\"output_tokens\":6}}}\n\n", "1 done {4 6 2}"},
	{"responses by event name", Responses, true, "event: response.output_text.delta\ndata: {\"delta\":\"x\"}\n\nevent: response.failed\ndata: {\"response\":{}}\n\n", "1 done {-1 -1 -1}"},
	{"long event", Chat, true, chatText("a") + chatText(strings.Repeat("long ", 20_000)) + chatUsage + chatDone, "2 done {11 252 8}"},
	{"long event with usage", Responses, true, "data: {\"type\":\"response.completed\",\"response\":{\"output\":\"" + strings.Repeat(`\" `, 30_000) + "\",\"usage\":{\"input_tokens\":4,\"output_tokens\":6}}}\n\n", "0 done {4 6 -1}"},
	{"long comment", Chat, true, ":" + strings.Repeat("x", 2*carryLimit) + "\n" + chatText("a") + chatDone, "1 done {-1 -1 -1}"},
	{"long by many lines", Chat, true, "data: {\"choices\":[{\"delta\":{}}],\n" + strings.Repeat("data:\n", 2*carryLimit) + "data: \"usage\":{\"prompt_tokens\":1}}\n\n" + chatDone, "1 done {1 -1 -1}"},
	{"json", Chat, false, `{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`, "0 done {5 7 -1}"},
	{"json cut off", Chat, false, `{"id":"x","usage":{"prompt_tokens":5,"completion_tokens":7`, "0 cut {-1 -1 -1}"},
	{"anthropic json", Messages, false, `{"type":"message","usage":{"input_tokens":5,"output_tokens":7,"cache_read_input_tokens":0}}`, "0 done {5 7 0}"},
	{"error json", Chat, false, `{"error":{"message":"usage"}}`, "0 done {-1 -1 -1}"},
	{"html", Chat, false, `<html>`, "0 cut {-1 -1 -1}"},
}

func outcome(a *Answer) string {
	done := "cut"
	if a.Done {
		done = "done"
	}
	return fmt.Sprint(a.Events, " ", done, " ", a.Usage)
}

// answer feeds an answer in pieces that end at the given places; the pieces are overwritten
// afterwards, and firsts counts those with the first output.
func answer(a *Answer, api API, sse bool, stream string, ends ...int) (firsts int) {
	a.Reset(api, sse)
	from := 0
	for _, end := range append(ends, len(stream)) {
		p := []byte(stream[from:end])
		a.Feed(p)
		if string(p) != stream[from:end] {
			panic("a piece was changed")
		}
		for i := range p {
			p[i] = '"'
		}
		if a.First {
			firsts++
		}
		from = end
	}
	a.Finish()
	return firsts
}

func TestAnswer(t *testing.T) {
	var a Answer
	for _, test := range answers {
		for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
			if lineEnd != "\n" && !test.sse {
				continue
			}
			stream := strings.ReplaceAll(test.stream, "\n", lineEnd)
			check := func(ends ...int) {
				t.Helper()
				firsts := answer(&a, test.api, test.sse, stream, ends...)
				if got := outcome(&a); got != test.want || firsts > 1 {
					t.Fatalf("%s with %q split at %v: got %s and %d firsts, want %s", test.name, lineEnd, ends[:min(len(ends), 3)], got, firsts, test.want)
				}
			}
			check()
			check(every(1, len(stream))...)
			check(every(1000, len(stream))...)
			check(every(carryLimit-1, len(stream))...)
			splits := len(stream) // BL-05: every byte, also within a number or a character
			if splits > 4000 {
				splits = 5
			}
			for i := range splits {
				check(i)
				check(len(stream) - i)
			}
		}
	}
}

// BL-05, fixture F1: what is no number of tokens is unknown, and nothing breaks.
func TestAnswerUsageOfWrongType(t *testing.T) {
	for usage, want := range map[string]Usage{
		`"n/a"`:                  {-1, -1, -1},
		`[]`:                     {-1, -1, -1},
		`{"prompt_tokens":"77"}`: {77, -1, -1},
		`{"prompt_tokens":-5}`:   {-1, -1, -1},
		`{"prompt_tokens":1e3,"completion_tokens":2.5}`:   {1000, -1, -1},
		`{"prompt_tokens_details":0}`:                     {-1, -1, -1},
		`{"prompt_tokens":"-5","completion_tokens":"1 "}`: {-1, -1, -1},
		`{"prompt_tokens":true,"completion_tokens":null}`: {-1, -1, -1},
		`{"prompt_tokens":{"a":1},"completion_tokens":3}`: {-1, 3, -1},
		`{"prompt_tokens":99999999999999999999999}`:       {-1, -1, -1},
		`{"prompt_tokens":5,"prompt_tokens":"x"}`:         {-1, -1, -1},
	} {
		for _, sse := range []bool{false, true} {
			doc := `{"choices":[],"usage":` + usage + `}`
			if sse {
				doc = "data: " + doc + "\n\n"
			}
			var a Answer
			answer(&a, Chat, sse, doc)
			if a.Usage != want {
				t.Errorf("%s: got %v, want %v", doc, a.Usage, want)
			}
		}
	}
}

// The gateway stamps the time of the first token and of the last by these.
func TestAnswerFirstAndOutput(t *testing.T) {
	var a Answer
	a.Reset(Chat, true)
	for i, step := range []struct {
		piece         string
		first, output bool
	}{
		{chatPreview, false, false},
		{chatRole, false, false},
		{chatText("a")[:20], false, false},
		{chatText("a")[20:] + chatText("b"), true, true},
		{": comment\n\n", false, false},
		{chatText("c"), false, true},
		{chatStop + chatUsage, false, false},
		{chatDone, false, false},
	} {
		a.Feed([]byte(step.piece))
		if a.First != step.first || a.Output != step.output {
			t.Errorf("step %d: got first %v, output %v", i, a.First, a.Output)
		}
	}
}

func TestAnswerAllocations(t *testing.T) {
	var a Answer
	for _, test := range answers {
		if strings.HasPrefix(test.name, "long") {
			continue // gives back what it kept
		}
		stream := []byte(test.stream)
		for _, n := range []int{7, 4096} {
			got := testing.AllocsPerRun(10, func() {
				a.Reset(test.api, test.sse)
				for p := stream; len(p) > 0; p = p[min(len(p), n):] {
					a.Feed(p[:min(len(p), n)])
				}
				a.Finish()
			})
			if got > 0 {
				t.Errorf("%s by %d: %v allocations", test.name, n, got)
			}
		}
	}
}

func TestAnswerKeepsLittle(t *testing.T) {
	var a Answer
	a.Reset(Chat, true)
	piece := bytes.Repeat([]byte("x"), 10_000)
	a.Feed([]byte("data: "))
	for range 1000 {
		a.Feed(piece)
	}
	if got := cap(a.part) + cap(a.held); got > 3*carryLimit {
		t.Errorf("keeps %d bytes of an event without end", got)
	}
	a.Reset(Chat, true)
	if got := cap(a.part) + cap(a.held); got > carryLimit {
		t.Errorf("keeps %d bytes afterwards", got)
	}
}
