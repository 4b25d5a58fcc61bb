// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"net/http"
	"strconv"
)

// Lengths of answers that nobody limited, in tokens. vLLM's completions have 16 too; a real model
// ends a chat by itself, and ours always at the same length.
const (
	usualCompletion = 16
	usualChat       = 128
)

// usage is OpenAI's count of tokens, in vLLM's order.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Total      int           `json:"total_tokens"`
	Completion int           `json:"completion_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	Cached int64 `json:"cached_tokens"`
}

func (c *call) usage() usage {
	n := c.completion()
	return usage{c.prompt, c.prompt + n, n, promptDetails{c.cached.Load()}}
}

// stopReason is the stop string that ended an answer, or null.
func (o *output) stopReason() any {
	if o.stop == "" {
		return nil
	}
	return o.stop
}

// answered is a complete answer in OpenAI's form, as vLLM fills it.
type answered struct {
	ID          string   `json:"id"`
	Object      string   `json:"object"`
	Created     int64    `json:"created"`
	Model       string   `json:"model"`
	Choices     []choice `json:"choices"`
	Tier        *string  `json:"service_tier"`
	Fingerprint *string  `json:"system_fingerprint"`
	Usage       usage    `json:"usage"`
	Transfer    any      `json:"kv_transfer_params"`
}

// choice has a message in a chat and a text in a completion.
type choice struct {
	Index    int     `json:"index"`
	Message  *said   `json:"message,omitempty"`
	Text     *string `json:"text,omitempty"`
	Logprobs any     `json:"logprobs"`
	Reason   string  `json:"finish_reason"`
	Stop     any     `json:"stop_reason"`
	TokenIDs []int   `json:"token_ids"`
}

type said struct {
	Role        string  `json:"role"`
	Content     string  `json:"content"`
	Refusal     *string `json:"refusal"`
	Annotations any     `json:"annotations"`
	Audio       any     `json:"audio"`
	Function    any     `json:"function_call"`
	Reasoning   *string `json:"reasoning"`
}

func (j *job) answer(object string, c *call) answered {
	return answered{ID: j.id, Object: object, Created: j.created, Model: j.model, Usage: c.usage()}
}

// quote appends a JSON string.
func quote(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == '"' || s[i] == '\\' || s[i] >= 0x7f {
			return appendJSON(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// head appends the beginning of an event, up to its choices.
func (j *job) head(b []byte, object string) []byte {
	b = append(b, `data: {"id":`...)
	b = quote(b, j.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, j.created, 10)
	b = append(b, `,"model":`...)
	b = quote(b, j.model)
	return append(b, `,"choices":[`...)
}

// end appends the end of an event's choices and, where asked for, the usage so far.
func (j *job) end(b []byte, c *call, always bool) []byte {
	b = append(b, ']')
	if always || j.continuous {
		b = appendJSON(append(b, `,"usage":`...), c.usage())
	}
	return append(b, "}\n\n"...)
}

// ending appends the reasons of an answer's end, null before its last token.
func ending(b []byte, a *answer, i int) []byte {
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if i < len(a.out.tokens)-1 {
		return append(b, "null"...)
	}
	b = quote(b, a.out.reason)
	b = append(b, `,"stop_reason":`...)
	if a.out.stop == "" {
		return append(b, "null"...)
	}
	return quote(b, a.out.stop)
}

// shut appends the end of a stream in OpenAI's form.
func shut(object string) func(b []byte, j *job, c *call) []byte {
	return func(b []byte, j *job, c *call) []byte {
		if j.usage {
			b = j.end(j.head(b, object), c, true)
		}
		return append(b, "data: [DONE]\n\n"...)
	}
}

const chatChunk = "chat.completion.chunk"

var chatFace = face{
	fail: fail,
	parse: func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error) {
		var body chatBody
		if err := read(w, r, &body); err != nil {
			return nil, err
		}
		most := body.MaxCompletionTokens
		if most == nil {
			most = body.MaxTokens
		}
		j, err := s.job(&body.sampling, most, usualChat, body.prompts()...)
		if err == nil {
			j.id = s.id("chatcmpl-", r)
		}
		return j, err
	},
	whole: func(j *job, c *call) any {
		v := j.answer("chat.completion", c)
		for i, a := range c.answers {
			v.Choices = append(v.Choices, choice{Index: i, Message: &said{Role: "assistant", Content: a.out.shown()}, Reason: a.out.reason, Stop: a.out.stopReason()})
		}
		return v
	},
	open: func(b []byte, j *job, c *call) []byte {
		for i := range c.answers {
			b = j.head(b, chatChunk)
			b = append(b, `{"index":`...)
			b = strconv.AppendInt(b, int64(i), 10)
			b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
			b = j.end(b, c, false)
		}
		return b
	},
	delta: func(b []byte, j *job, c *call, choice, i int) []byte {
		a := c.answers[choice]
		b = j.head(b, chatChunk)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(choice), 10)
		b = append(b, `,"delta":{"content":`...)
		b = quote(b, a.out.piece(i))
		b = append(b, '}')
		b = append(ending(b, a, i), `,"token_ids":null}`...)
		return j.end(b, c, false)
	},
	shut: shut(chatChunk),
}

const textChunk = "text_completion"

var completionsFace = face{
	fail: fail,
	parse: func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error) {
		var body completionBody
		if err := read(w, r, &body); err != nil {
			return nil, err
		}
		j, err := s.job(&body.sampling, body.MaxTokens, usualCompletion, body.prompts()...)
		if err == nil {
			j.id = s.id("cmpl-", r)
			j.speech.natural = false // 16 tokens are a limit, not an end
		}
		return j, err
	},
	whole: func(j *job, c *call) any {
		v := j.answer(textChunk, c)
		for i, a := range c.answers {
			text := a.out.shown()
			v.Choices = append(v.Choices, choice{Index: i, Text: &text, Reason: a.out.reason, Stop: a.out.stopReason()})
		}
		return v
	},
	open: func(b []byte, _ *job, _ *call) []byte { return b },
	delta: func(b []byte, j *job, c *call, choice, i int) []byte {
		a := c.answers[choice]
		b = j.head(b, textChunk)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(choice), 10)
		b = append(b, `,"text":`...)
		b = quote(b, a.out.piece(i))
		b = append(ending(b, a, i), '}')
		return j.end(b, c, false)
	},
	shut: shut(textChunk),
}
