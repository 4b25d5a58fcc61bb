// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"net/http"
	"strconv"
)

// generated is a complete answer in tokens.
type generated struct {
	RequestID       string            `json:"request_id"`
	Model           string            `json:"model"`
	Created         int64             `json:"created"`
	Usage           usage             `json:"usage"`
	PromptLogprobs  any               `json:"prompt_logprobs"`
	PromptIDs       []uint32          `json:"prompt_token_ids"`
	Placeholders    any               `json:"mm_placeholders"`
	Transfer        any               `json:"kv_transfer_params"`
	EncoderTransfer any               `json:"ec_transfer_params"`
	OutputMode      string            `json:"output_mode"`
	Choices         []generatedChoice `json:"choices"`
}

type generatedChoice struct {
	Index    int      `json:"index"`
	Reason   string   `json:"finish_reason"`
	Stop     any      `json:"stop_reason"`
	TokenIDs []uint32 `json:"token_ids"`
	Logprobs any      `json:"logprobs"`
}

// tokenHead appends the beginning of an event in tokens, up to its choices.
func (j *job) tokenHead(b []byte) []byte {
	b = quote(append(b, `data: {"request_id":`...), j.id)
	return append(b, `,"prompt_token_ids":null,"mm_placeholders":null,"output_mode":"tokens","choices":[`...)
}

var generateFace = face{
	fail: fail,
	parse: func(s *Server, w http.ResponseWriter, r *http.Request) (*job, error) {
		var body generateBody
		if err := read(w, r, &body); err != nil {
			return nil, err
		}
		if body.OutputMode != "" && body.OutputMode != "tokens" {
			return nil, badRequest("output_mode", "output_mode: a simulated engine answers in tokens only, got %q", body.OutputMode)
		}
		p := &body.Params
		p.Model, p.Stream, p.StreamOptions, p.CacheSalt = body.Model, body.Stream, body.StreamOptions, body.CacheSalt
		j, err := s.job(p, p.MaxTokens, usualChat, body.prompts()...)
		if err == nil {
			j.id = s.id("generate-tokens-", r)
			if body.RequestID != "" && r.Header.Get("X-Request-Id") == "" {
				j.id = "generate-tokens-" + body.RequestID
			}
		}
		return j, err
	},
	whole: func(j *job, c *call) any {
		v := generated{RequestID: j.id, Model: j.model, Created: j.created, Usage: c.usage(), OutputMode: "tokens"}
		for i, a := range c.answers {
			v.Choices = append(v.Choices, generatedChoice{Index: i, Reason: a.out.reason, Stop: a.out.stopReason(), TokenIDs: a.out.tokens})
		}
		return v
	},
	open: func(b []byte, _ *job, _ *call) []byte { return b },
	delta: func(b []byte, j *job, c *call, choice, i int) []byte {
		a := c.answers[choice]
		b = append(j.tokenHead(b), `{"index":`...)
		b = strconv.AppendInt(b, int64(choice), 10)
		b = append(b, `,"token_ids":[`...)
		b = strconv.AppendUint(b, uint64(a.out.tokens[i]), 10)
		b = append(ending(append(b, ']'), a, i), '}')
		return j.end(b, c, false)
	},
	shut: func(b []byte, j *job, c *call) []byte {
		if j.usage {
			b = j.end(j.tokenHead(b), c, true)
		}
		return append(b, "data: [DONE]\n\n"...)
	},
}
