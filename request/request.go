// SPDX-License-Identifier: Apache-2.0

// Package request answers: what was asked, and what was answered?
//
// A body is a chain of pooled chunks. It is scanned once while it arrives, without
// building a tree, and forwarded verbatim; an edit is a splice. An answer is read as
// it passes, with one bounded carry-over buffer.
package request

import "strings"

// API is the dialect that a path speaks.
type API uint8

// The APIs, named after their paths.
const (
	Unknown     API = iota // any other path: routed by load alone
	Chat                   // …/chat/completions
	Completions            // …/completions
	Embeddings             // …/embeddings
	Responses              // …/responses
	Messages               // …/messages (Anthropic)
	Generate               // …/inference/v1/generate (vLLM, tokens in)
)

// String names the API as metrics and logs do.
func (a API) String() string {
	return [...]string{"unknown", "chat", "completions", "embeddings", "responses", "messages", "generate"}[a]
}

// Anthropic reports whether errors and events take Anthropic's form.
func (a API) Anthropic() bool { return a == Messages }

// APIOf tells the API by the longest matching suffix of the path; a query is ignored.
func APIOf(path string) API {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimRight(path, "/")
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/inference/v1/generate"):
		return Generate
	case strings.HasSuffix(path, "/completions"):
		return Completions
	case strings.HasSuffix(path, "/embeddings"):
		return Embeddings
	case strings.HasSuffix(path, "/responses"):
		return Responses
	case strings.HasSuffix(path, "/messages"):
		return Messages
	}
	return Unknown
}

// Span is a piece of a body, in bytes from its start.
type Span struct {
	Off, Len int64
}

// Kind says how the bytes of a prompt span become pseudo tokens.
type Kind uint8

// The kinds of prompt spans.
const (
	Text   Kind = iota // JSON text, escapes as they stand: four bytes count as one token
	Tokens             // a JSON array of token ids: each id is one token
	Media              // an image, sound or video: a fixed number of tokens made of its hash
)

// PromptSpan is one span of a prompt in the order in which an engine would read it.
type PromptSpan struct {
	Span
	Kind Kind
	// First marks the start of a new prompt (a list of prompts has several).
	First bool
	// order is where an engine reads it: section, message, field.
	order uint64
}

// Facts are what a scan found in a request body.
type Facts struct {
	// Typed tells that the body is one JSON object; without it all else is zero.
	Typed bool
	Model string
	// ModelSpan is the model's JSON string with its quotes, for a splice; Len 0 when absent.
	ModelSpan    Span
	Stream       bool
	IncludeUsage bool // stream_options.include_usage
	// MaxTokens is the cap on output tokens, 0 when not given.
	MaxTokens int64
	N         int64 // choices asked for, 1 when not given
	Salt      string
	Tools     bool
	// Recomputes tells that vLLM computes the whole prompt, whatever its cache has: the prompt's own log probabilities are asked for.
	Recomputes bool
	// Prompt lists the spans that the engine's prefix cache sees.
	Prompt []PromptSpan

	models  []Span // every value of a top-level "model" that is a string or a literal
	named   int    // how often that key came
	begin   int64  // behind the object's brace
	nothing bool   // the object has no keys
}

// Single tells that the engine's usage speaks of one prompt, read once: of several, vLLM says what it found of the last, and of
// several choices each finds what the one before it computed.
func (f *Facts) Single() bool {
	for i := range f.Prompt {
		if i > 0 && f.Prompt[i].First {
			return false
		}
	}
	return f.N <= 1
}
