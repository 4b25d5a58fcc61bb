// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"fmt"
	"net/http"
)

// generateRequest is a prompt that is ready for /inference/v1/generate, in vLLM's order.
type generateRequest struct {
	RequestID       string         `json:"request_id"`
	TokenIDs        []uint32       `json:"token_ids"`
	Offsets         any            `json:"token_offsets"`
	Features        any            `json:"features"`
	Parts           any            `json:"content_parts"`
	Params          samplingParams `json:"sampling_params"`
	Model           *string        `json:"model"`
	ReasoningEnded  any            `json:"reasoning_ended"`
	Reasoning       any            `json:"reasoning_parser_kwargs"`
	ReturnTokenIDs  any            `json:"return_token_ids"`
	OutputMode      string         `json:"output_mode"`
	Stream          bool           `json:"stream"`
	StreamOptions   *streamOptions `json:"stream_options"`
	CacheSalt       *string        `json:"cache_salt"`
	Priority        int            `json:"priority"`
	Transfer        any            `json:"kv_transfer_params"`
	EncoderTransfer any            `json:"ec_transfer_params"`
}

type samplingParams struct {
	N             *int     `json:"n,omitempty"`
	Seed          *int64   `json:"seed,omitempty"`
	Stop          []string `json:"stop"`
	StopIDs       []int    `json:"stop_token_ids"`
	IncludeStop   bool     `json:"include_stop_str_in_output,omitempty"`
	MaxTokens     int      `json:"max_tokens"`
	BadWords      []string `json:"bad_words"`
	SkipReadCache bool     `json:"skip_reading_prefix_cache"`
}

// rendered is the handler that answers with the prompt instead of computing it. Several are one with a list.
func (s *Server) rendered(f face, list bool) func(http.ResponseWriter, *http.Request) int {
	return func(w http.ResponseWriter, r *http.Request) int {
		j, err := f.parse(s, w, r)
		if err != nil {
			return f.fail(w, err)
		}
		all := make([]generateRequest, 0, len(j.prompts))
		for i, p := range j.prompts {
			v := generateRequest{RequestID: j.id, TokenIDs: p, OutputMode: "tokens", Stream: j.stream, Params: samplingParams{
				N: j.asked.N, Seed: j.asked.Seed, Stop: append([]string{}, j.asked.Stop...), StopIDs: []int{}, IncludeStop: j.asked.IncludeStop,
				MaxTokens: j.speech.max, BadWords: []string{},
			}}
			if j.speech.natural { // nobody limited it
				v.Params.MaxTokens = s.opts.MaxModelLen - len(p)
			}
			if len(j.prompts) > 1 {
				v.RequestID = fmt.Sprintf("%s-%d", j.id, i)
			}
			if j.asked.Model != "" {
				v.Model = &j.asked.Model
			}
			if j.stream {
				v.StreamOptions = j.asked.StreamOptions
			}
			if j.salt != "" {
				v.CacheSalt = &j.salt
			}
			all = append(all, v)
		}
		if list {
			return reply(w, http.StatusOK, all)
		}
		return reply(w, http.StatusOK, all[0])
	}
}

// tokenizeBody is the body of /tokenize: a prompt, or messages.
type tokenizeBody struct {
	chatBody
	Prompt  *string `json:"prompt"`
	Strings bool    `json:"return_token_strs"`
}

func (b *tokenizeBody) check() error {
	switch {
	case b.Prompt != nil:
		return nil
	case len(b.Messages) == 0:
		return badRequest("prompt", "prompt: Field required")
	}
	return b.chatBody.check()
}

func (b *tokenizeBody) prompts() [][]uint32 {
	if b.Prompt != nil {
		return [][]uint32{tokenize([]uint32{}, *b.Prompt)}
	}
	return b.chatBody.prompts()
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) int {
	var body tokenizeBody
	if err := read(w, r, &body); err != nil {
		return fail(w, err)
	}
	if _, _, err := s.model(body.Model); err != nil {
		return fail(w, err)
	}
	tokens := body.prompts()[0]
	var strs []string
	if body.Strings {
		strs = make([]string, 0, len(tokens))
		for _, t := range tokens {
			strs = append(strs, string(detokenize(nil, t)))
		}
	}
	return reply(w, http.StatusOK, map[string]any{
		"count": len(tokens), "max_model_len": s.opts.MaxModelLen, "tokens": tokens, "token_strs": strs,
	})
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := decode(w, r, &body); err != nil {
		return fail(w, err)
	}
	if _, _, err := s.model(body.Model); err != nil {
		return fail(w, err)
	}
	return reply(w, http.StatusOK, map[string]string{"prompt": string(detokenize(nil, body.Tokens...))})
}
