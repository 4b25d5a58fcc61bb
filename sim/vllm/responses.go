// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
)

// item is the one message of a response.
func (j *job) item(c *call, status, text string) map[string]any {
	parts := []any{}
	if status == "completed" {
		parts = append(parts, outputText(text))
	}
	return map[string]any{"id": "msg_" + j.id, "type": "message", "role": "assistant", "status": status, "content": parts}
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}}
}

// response is the response object in one of its states.
func (j *job) response(c *call, status string) map[string]any {
	v := map[string]any{
		"id": j.id, "object": "response", "created_at": j.created, "status": status, "model": j.model, "output": []any{},
		"error": nil, "incomplete_details": nil, "instructions": nil, "metadata": nil, "parallel_tool_calls": true,
		"temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": []any{}, "usage": nil,
	}
	if status == "in_progress" {
		return v
	}
	o := &c.answers[0].out
	u := c.usage()
	v["output"] = []any{j.item(c, "completed", o.shown())}
	v["usage"] = map[string]any{
		"input_tokens": u.Prompt, "input_tokens_details": u.Details, "output_tokens": u.Completion,
		"output_tokens_details": map[string]int{"reasoning_tokens": 0}, "total_tokens": u.Total,
	}
	if o.reason == "length" {
		v["status"] = "incomplete"
		v["incomplete_details"] = map[string]string{"reason": "max_output_tokens"}
	}
	return v
}

// step appends an event of a response's stream, numbered.
func (j *job) step(b []byte, number int, name string, fields map[string]any) []byte {
	fields["type"], fields["sequence_number"] = name, number
	return event(b, name, fields)
}

// openEvents is the number of events before the first token.
const openEvents = 4

var responsesFace = face{
	fail: fail,
	parse: func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error) {
		var body responsesBody
		if err := read(w, r, &body); err != nil {
			return nil, err
		}
		body.N, body.StreamOptions = nil, nil
		j, err := s.job(&body.sampling, body.MaxOutputTokens, usualChat, body.prompts()...)
		if err == nil {
			j.id = s.id("resp_", r)
		}
		return j, err
	},
	whole: func(j *job, c *call) any { return j.response(c, "completed") },
	open: func(b []byte, j *job, c *call) []byte {
		b = j.step(b, 0, "response.created", map[string]any{"response": j.response(c, "in_progress")})
		b = j.step(b, 1, "response.in_progress", map[string]any{"response": j.response(c, "in_progress")})
		b = j.step(b, 2, "response.output_item.added", map[string]any{"output_index": 0, "item": j.item(c, "in_progress", "")})
		return j.step(b, 3, "response.content_part.added", map[string]any{
			"output_index": 0, "content_index": 0, "item_id": "msg_" + j.id, "part": outputText(""),
		})
	},
	delta: func(b []byte, j *job, c *call, choice, i int) []byte {
		return j.step(b, openEvents+i, "response.output_text.delta", map[string]any{
			"output_index": 0, "content_index": 0, "item_id": "msg_" + j.id, "delta": c.answers[choice].out.piece(i), "logprobs": []any{},
		})
	},
	shut: func(b []byte, j *job, c *call) []byte {
		o := &c.answers[0].out
		n := openEvents + len(o.tokens)
		at := func() map[string]any {
			return map[string]any{"output_index": 0, "content_index": 0, "item_id": "msg_" + j.id}
		}
		text := at()
		text["text"], text["logprobs"] = o.shown(), []any{}
		b = j.step(b, n, "response.output_text.done", text)
		part := at()
		part["part"] = outputText(o.shown())
		b = j.step(b, n+1, "response.content_part.done", part)
		b = j.step(b, n+2, "response.output_item.done", map[string]any{"output_index": 0, "item": j.item(c, "completed", o.shown())})
		done := j.response(c, "completed")
		return j.step(b, n+3, "response."+done["status"].(string), map[string]any{"response": done})
	},
}

// embeddingSize is the length of an embedding that nobody chose.
const embeddingSize = 64

// embeddings computes the prompts like any other and answers with unit vectors that depend on them.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) int {
	var body embeddingBody
	if err := read(w, r, &body); err != nil {
		return fail(w, err)
	}
	size := body.Dimensions
	if size == 0 {
		size = embeddingSize
	}
	if size < 0 || size > 1<<16 {
		return fail(w, badRequest("dimensions", "dimensions must be 1 to 65536, got %d.", size))
	}
	body.N, body.Stop, body.Stream, body.StreamOptions = nil, nil, false, nil
	one := 1
	j, err := s.job(&body.sampling, &one, 1, body.prompts()...)
	if err != nil {
		return fail(w, err)
	}
	c, err := s.submit(j)
	if err != nil {
		return fail(w, err)
	}
	defer s.leave(c)
	for !c.done() {
		if err := s.wait(r.Context(), c); err != nil {
			return fail(w, err)
		}
	}
	var data []any
	for i, p := range body.Input {
		data = append(data, map[string]any{"index": i, "object": "embedding", "embedding": embed(fingerprint(p), size, body.Format)})
	}
	return reply(w, http.StatusOK, map[string]any{
		"id": s.id("embd-", r), "object": "list", "created": j.created, "model": j.model, "data": data,
		"usage": usage{Prompt: c.prompt, Total: c.prompt, Details: promptDetails{c.cached.Load()}},
	})
}

// embed makes a unit vector from a seed, as numbers or as base64 of little-endian float32.
func embed(seed uint64, size int, format string) any {
	v := make([]float32, size)
	norm := 0.0
	for i := range v {
		x := float64(mix(seed+uint64(i)*0x9e3779b97f4a7c15)>>11)/(1<<52) - 1
		v[i] = float32(x)
		norm += x * x
	}
	var b []byte
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(norm))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v[i]))
	}
	if format == "base64" {
		return base64.StdEncoding.EncodeToString(b)
	}
	return v
}
