// SPDX-License-Identifier: Apache-2.0

package vllm

import "net/http"

// failAnthropic writes an error in Anthropic's form.
func failAnthropic(w http.ResponseWriter, err error) int {
	e := classify(err)
	if e.status == statusClientLeft {
		return e.status
	}
	return reply(w, e.status, map[string]any{"type": "error", "error": map[string]string{"type": e.kind, "message": e.message}})
}

// event appends an event with its name.
func event(b []byte, name string, v any) []byte {
	b = append(append(append(b, "event: "...), name...), "\ndata: "...)
	return append(appendJSON(b, v), "\n\n"...)
}

type anthropicUsage struct {
	Input  int   `json:"input_tokens"`
	Output int   `json:"output_tokens"`
	Cached int64 `json:"cache_read_input_tokens"`
}

// anthropicUsage counts cached input apart from the rest, as Anthropic does.
func (c *call) anthropicUsage() anthropicUsage {
	cached := c.cached.Load()
	return anthropicUsage{c.prompt - int(cached), c.completion(), cached}
}

// anthropicStop is why an answer ended, in Anthropic's words.
func (o *output) anthropicStop() string {
	switch {
	case o.stop != "":
		return "stop_sequence"
	case o.reason == "length":
		return "max_tokens"
	}
	return "end_turn"
}

var messagesFace = face{
	fail: failAnthropic,
	parse: func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error) {
		var body messagesBody
		if err := read(w, r, &body); err != nil {
			return nil, err
		}
		if body.MaxTokens == nil {
			return nil, badRequest("max_tokens", "max_tokens: Field required")
		}
		body.N, body.StreamOptions, body.Stop = nil, nil, body.Stops
		j, err := s.job(&body.sampling, body.MaxTokens, usualChat, body.prompts()...)
		if err == nil {
			j.id = s.id("msg_", r)
		}
		return j, err
	},
	whole: func(j *job, c *call) any {
		o := &c.answers[0].out
		return map[string]any{
			"id": j.id, "type": "message", "role": "assistant", "model": j.model,
			"content":     []any{map[string]string{"type": "text", "text": o.shown()}},
			"stop_reason": o.anthropicStop(), "stop_sequence": o.stopReason(), "usage": c.anthropicUsage(),
		}
	},
	open: func(b []byte, j *job, c *call) []byte {
		u := c.anthropicUsage()
		u.Output = 0
		b = event(b, "message_start", map[string]any{"type": "message_start", "message": map[string]any{
			"id": j.id, "type": "message", "role": "assistant", "content": []any{}, "model": j.model, "stop_reason": nil, "stop_sequence": nil, "usage": u,
		}})
		return event(b, "content_block_start", map[string]any{
			"type": "content_block_start", "index": 0, "content_block": map[string]string{"type": "text", "text": ""},
		})
	},
	delta: func(b []byte, _ *job, c *call, choice, i int) []byte {
		return event(b, "content_block_delta", map[string]any{
			"type": "content_block_delta", "index": 0, "delta": map[string]string{"type": "text_delta", "text": c.answers[choice].out.piece(i)},
		})
	},
	shut: func(b []byte, _ *job, c *call) []byte {
		o := &c.answers[0].out
		b = event(b, "content_block_stop", map[string]any{"type": "content_block_stop", "index": 0})
		b = event(b, "message_delta", map[string]any{
			"type": "message_delta", "delta": map[string]any{"stop_reason": o.anthropicStop(), "stop_sequence": o.stopReason()}, "usage": c.anthropicUsage(),
		})
		return event(b, "message_stop", map[string]string{"type": "message_stop"})
	},
}

// countTokens is Anthropic's way to ask for the length of a prompt.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) int {
	var body messagesBody
	if err := read(w, r, &body); err != nil {
		return failAnthropic(w, err)
	}
	if _, _, err := s.model(body.Model); err != nil {
		return failAnthropic(w, err)
	}
	return reply(w, http.StatusOK, map[string]int{"input_tokens": len(body.prompts()[0])})
}
