// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// asks is a request body of a dialect, as far as its prompts go.
type asks interface {
	// check reports a body that has no prompts, in words for the client.
	check() error
	// prompts are the tokens of each prompt.
	prompts() [][]uint32
}

// read reads a JSON body and checks it.
func read(w http.ResponseWriter, r *http.Request, body asks) error {
	if err := decode(w, r, body); err != nil {
		return err
	}
	return body.check()
}

// Tokenize appends to ids the prompts that a simulated engine computes for a request body, and to starts where in ids each begins; more
// than one are possible in completions and embeddings. api is chat, completions, embeddings, responses, messages or generate.
// An error is what the engine would tell the client, and then nothing was appended. It needs no engine and is safe for concurrent use.
func Tokenize(api string, body []byte, ids []uint32, starts []int32) ([]uint32, []int32, error) {
	var b asks
	switch api {
	case "chat":
		b = &chatBody{}
	case "completions":
		b = &completionBody{}
	case "embeddings":
		b = &embeddingBody{}
	case "responses":
		b = &responsesBody{}
	case "messages":
		b = &messagesBody{}
	case "generate":
		b = &generateBody{}
	default:
		return ids, starts, fmt.Errorf("no prompts in %q", api)
	}
	err := unmarshal(body, b)
	if err == nil {
		err = b.check()
	}
	if err != nil {
		return ids, starts, err
	}
	all := b.prompts()
	for _, p := range all {
		if len(p) == 0 {
			return ids, starts, errNoPrompt
		}
	}
	for _, p := range all {
		starts = append(starts, int32(len(ids)))
		ids = append(ids, p...)
	}
	return ids, starts, nil
}

var errNoPrompt = badRequest("prompt", "The decoder prompt cannot be empty")

// chatBody is the body of /v1/chat/completions.
type chatBody struct {
	sampling
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Messages            []message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	Generation          *bool           `json:"add_generation_prompt"`
	Continue            bool            `json:"continue_final_message"`
}

func (b *chatBody) check() error {
	if len(b.Messages) == 0 {
		return badRequest("messages", "messages: List should have at least 1 item")
	}
	for i, m := range b.Messages {
		if m.Role == "" {
			return badRequest("messages", "messages.%d.role: Field required", i)
		}
	}
	if b.Continue && (b.Generation == nil || *b.Generation) {
		return badRequest("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	return nil
}

func (b *chatBody) prompts() [][]uint32 {
	t := render(b.Messages, b.Tools)
	switch {
	case b.Continue:
		t = t[:len(t)-1]
	case b.Generation == nil || *b.Generation:
		t = answerNow(t)
	}
	return [][]uint32{t}
}

type message struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is a string or a list of parts.
type content struct {
	text  string
	parts []part
}

type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	raw  []byte
}

func (c *content) UnmarshalJSON(b []byte) error {
	if b[0] == '"' && bytes.IndexByte(b, '\\') < 0 && utf8.Valid(b) { // most texts, which need no second look
		c.text = string(b[1 : len(b)-1])
		return nil
	}
	if b[0] != '[' {
		return json.Unmarshal(b, &c.text)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	for _, r := range raw {
		p := part{raw: r}
		if len(r) > 0 && r[0] == '"' {
			_ = json.Unmarshal(r, &p.Text) // already checked
		} else if err := json.Unmarshal(r, &p); err != nil {
			return err
		}
		c.parts = append(c.parts, p)
	}
	return nil
}

// imageTokens stand for a part that is not text. Equal parts are equal tokens.
const imageTokens = 64

// tokens appends the content's tokens.
func (c *content) tokens(t []uint32) []uint32 {
	t = tokenize(t, c.text)
	for _, p := range c.parts {
		if p.Text != "" {
			t = tokenize(t, p.Text)
			continue
		}
		id := uint32(xxhash.Sum64(p.raw)) & 0x7fffffff
		t = append(t, imagePad)
		for i := range uint32(imageTokens - 1) {
			t = append(t, id+i)
		}
	}
	return t
}

// render is the chat template without the beginning of the answer: a turn begins and ends with a special token, so that more
// turns never change the tokens of those before.
func render(messages []message, tools json.RawMessage) []uint32 {
	var t []uint32
	if len(tools) > 2 {
		t = append(t, imStart)
		t = tokenize(t, "tools\n"+string(tools))
		t = append(t, imEnd)
	}
	for i := range messages {
		m := &messages[i]
		t = append(t, imStart)
		t = tokenize(t, m.Role+"\n")
		t = m.Content.tokens(t)
		if len(m.ToolCalls) > 2 {
			t = tokenize(t, string(m.ToolCalls))
		}
		t = append(t, imEnd)
	}
	return t
}

// answerNow begins the answer, the chat template's generation prompt.
func answerNow(t []uint32) []uint32 { return tokenize(append(t, imStart), "assistant\n") }

// completionBody is the body of /v1/completions.
type completionBody struct {
	sampling
	Prompt promptList `json:"prompt"`
}

func (b *completionBody) check() error {
	if len(b.Prompt) == 0 {
		return badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	return nil
}

func (b *completionBody) prompts() [][]uint32 { return b.Prompt }

// promptList is the four forms: a text, texts, tokens, and lists of tokens.
type promptList [][]uint32

func (p *promptList) UnmarshalJSON(b []byte) error {
	var texts stringList
	if json.Unmarshal(b, &texts) == nil {
		for _, t := range texts {
			*p = append(*p, tokenize(nil, t))
		}
		return nil
	}
	var tokens []uint32
	if json.Unmarshal(b, &tokens) == nil {
		*p = promptList{tokens}
		return nil
	}
	var lists [][]uint32
	if json.Unmarshal(b, &lists) == nil {
		*p = lists
		return nil
	}
	return badRequest("prompt", "prompt: Input should be a string, a list of strings, a list of token ids or a list of lists of token ids")
}

// embeddingBody is the body of /v1/embeddings.
type embeddingBody struct {
	sampling
	Input      promptList `json:"input"`
	Format     string     `json:"encoding_format"`
	Dimensions int        `json:"dimensions"`
}

func (b *embeddingBody) check() error {
	if len(b.Input) == 0 {
		return badRequest("input", "input: Field required")
	}
	return nil
}

func (b *embeddingBody) prompts() [][]uint32 { return b.Input }

// responsesBody is the body of /v1/responses, as far as we go: no stored conversations.
type responsesBody struct {
	sampling
	Instructions    string          `json:"instructions"`
	Input           turns           `json:"input"`
	Tools           json.RawMessage `json:"tools"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
}

// turns are a text or a list of messages.
type turns []message

func (t *turns) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*t = turns{{Role: "user", Content: content{text: text}}}
		return nil
	}
	return json.Unmarshal(b, (*[]message)(t))
}

func (b *responsesBody) check() error {
	if len(b.Input) == 0 {
		return badRequest("input", "input: Field required")
	}
	return nil
}

func (b *responsesBody) prompts() [][]uint32 {
	list := []message(b.Input)
	if b.Instructions != "" {
		list = append([]message{{Role: "system", Content: content{text: b.Instructions}}}, list...)
	}
	return [][]uint32{answerNow(render(list, b.Tools))}
}

// messagesBody is the body of Anthropic's /v1/messages.
type messagesBody struct {
	sampling
	System   content         `json:"system"`
	Messages []message       `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	Stops    []string        `json:"stop_sequences"`
}

func (b *messagesBody) check() error {
	if len(b.Messages) == 0 {
		return badRequest("messages", "messages: List should have at least 1 item")
	}
	return nil
}

// prompts are the chat template with the system text as the first turn.
func (b *messagesBody) prompts() [][]uint32 {
	list := b.Messages
	if b.System.text != "" || len(b.System.parts) > 0 {
		list = append([]message{{Role: "system", Content: b.System}}, list...)
	}
	return [][]uint32{answerNow(render(list, b.Tools))}
}

// generateBody is the body of vLLM's /inference/v1/generate, tokens in and tokens out.
type generateBody struct {
	RequestID     string         `json:"request_id"`
	TokenIDs      []uint32       `json:"token_ids"`
	Params        sampling       `json:"sampling_params"`
	Model         string         `json:"model"`
	OutputMode    string         `json:"output_mode"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	CacheSalt     string         `json:"cache_salt"`
}

func (b *generateBody) check() error {
	if len(b.TokenIDs) == 0 {
		return badRequest("token_ids", "token_ids: List should have at least 1 item")
	}
	return nil
}

func (b *generateBody) prompts() [][]uint32 { return [][]uint32{b.TokenIDs} }
