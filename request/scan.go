// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
)

const (
	// keepName bounds model names and salts, as they stand in the body. A longer model is no
	// model that anybody serves; of a longer salt the beginning counts.
	keepName = 1 << 10
	// maxSpans bounds what is remembered of a prompt: some thousand messages. What follows
	// does not take part in prefix affinity.
	maxSpans = 1 << 14
	// maxAgain bounds how many keys may come twice: each makes the scan look back.
	maxAgain = 64
)

// Scanner finds [Facts] in a request body while it arrives, in pieces of any size. It builds no
// tree and keeps none of the bytes but the model's name and salt; in steady state it allocates
// nothing. Keys may come in any order, and of equal keys the last one counts.
//
// One Scanner serves many bodies, one after the other. It must not be copied.
type Scanner struct {
	api   API
	walk  walker
	facts Facts

	maxFirst, max int64 // max_completion_tokens, and every other cap on output tokens

	order   uint64 // of the spans being found
	message uint64
	fields  uint32 // fields seen in the message
	tops    uint32 // sections seen
	again   int    // keys that came twice
	prompt  int64  // where the list of prompts begins
	numeric bool   // that list holds numbers: it is one prompt
	raw     int64  // where a value that is taken as a whole begins
	spelled []byte // a name without its escapes

	echo, probs, logs given // what asks for log probabilities of the prompt

	model, salt string // of earlier bodies, most likely to come again
}

// The roles of values in a request.
const (
	roleModel role = iota + 1
	roleStream
	roleMaxFirst
	roleMax
	roleN
	roleSalt
	roleEcho
	roleProbs
	roleLogs
	roleStreamOptions
	roleIncludeUsage
	roleSampling
	roleTools // the list of tools
	roleTool
	roleRaw      // counts as it stands
	rolePrompt   // any of the four forms
	rolePrompts  // an element of a list of prompts
	roleIDs      // a list of token ids
	roleMessages // a string, or a list of messages
	roleMessage
	roleContent // a string, or a list of parts
	rolePart
	roleText
	roleMedia // a string, or an object that has it
	roleRoot  = plain
)

// The sections of a prompt, in the order in which an engine reads them.
const (
	sectionInstructions uint64 = iota + 1
	sectionTools
	sectionFunctions
	sectionSystem
	sectionMain
)

// An order sorts spans: section, message, field. Spans of equal order stay as they came.
const (
	orderSection = 56
	orderMessage = 8
)

// Reset prepares for a body of an API. It ends the life of the Facts given before.
func (s *Scanner) Reset(api API) {
	prompt := s.facts.Prompt[:0]
	if cap(prompt) > 1<<10 {
		prompt = nil // one huge conversation must not be paid for ever
	}
	s.api = api
	s.facts = Facts{Prompt: prompt, N: 1, models: s.facts.models[:0]}
	s.maxFirst, s.max, s.order, s.message, s.fields, s.tops, s.again = 0, 0, 0, 0, 0, 0, 0
	s.echo, s.probs, s.logs = absent, absent, absent
	s.walk.reset(s)
}

// Feed scans the next piece of the body. It does not keep p.
func (s *Scanner) Feed(p []byte) { s.walk.feed(p) }

// Finish tells what was found, once the body is whole. Whatever is not exactly one JSON object
// gives zero Facts: such a body is routed by load, and the engine says what it thinks of it.
// The result is valid until the next Reset.
func (s *Scanner) Finish() *Facts {
	f := &s.facts
	if !s.walk.complete() {
		*f = Facts{Prompt: f.Prompt[:0], models: f.models[:0]}
		return f
	}
	f.Typed = true
	f.MaxTokens = cmp.Or(s.maxFirst, s.max)
	if s.api == Chat && s.logs == absent {
		s.logs = set // top_logprobs is 0 where nobody says
	}
	f.Recomputes = s.probs == set || s.echo == set && s.logs == set
	byOrder := func(a, b PromptSpan) int { return cmp.Compare(a.order, b.order) }
	if !slices.IsSortedFunc(f.Prompt, byOrder) {
		slices.SortStableFunc(f.Prompt, byOrder)
	}
	if len(f.Prompt) > 0 {
		f.Prompt[0].First = true
	}
	return f
}

// key implements visitor.
func (s *Scanner) key(in role, name []byte) role {
	switch in {
	case roleRoot:
		if r := s.common(name); r != skip {
			return r
		}
		return s.section(name)
	case roleStreamOptions:
		if string(name) == "include_usage" {
			s.facts.IncludeUsage = false
			return roleIncludeUsage
		}
	case roleSampling:
		switch string(name) {
		case "max_tokens":
			s.max = 0
			return roleMax
		case "prompt_logprobs":
			s.probs = absent
			return roleProbs
		}
	case roleMessage:
		return s.field(name)
	case rolePart:
		return partRole(name)
	case roleMedia:
		switch string(name) {
		case "url", "data", "file_data", "file_url", "file_id":
			return roleMedia
		case "content":
			return roleContent
		}
	}
	return skip
}

// common knows the keys beside the prompt. It forgets what an equal key said before.
func (s *Scanner) common(name []byte) role {
	f := &s.facts
	switch string(name) {
	case "model":
		f.Model, f.ModelSpan = "", Span{}
		if f.named++; f.named > 1 {
			s.twice()
		}
		return roleModel
	case "stream":
		f.Stream = false
		return roleStream
	case "stream_options":
		f.IncludeUsage = false
		return roleStreamOptions
	case "n":
		f.N = 1
		return roleN
	case "cache_salt":
		f.Salt = ""
		return roleSalt
	case "echo":
		if s.api == Chat || s.api == Completions {
			s.echo = absent
			return roleEcho
		}
	case "prompt_logprobs":
		if s.api == Chat || s.api == Completions {
			s.probs = absent
			return roleProbs
		}
	case "logprobs", "top_logprobs":
		if s.api == Completions && name[0] == 'l' || s.api == Chat && name[0] == 't' {
			s.logs = absent
			return roleLogs
		}
	case "max_completion_tokens":
		if s.api == Chat {
			s.maxFirst = 0
			return roleMaxFirst
		}
	case "max_output_tokens":
		if s.api == Responses {
			s.max = 0
			return roleMax
		}
	case "max_tokens":
		if s.api != Responses && s.api != Generate {
			s.max = 0
			return roleMax
		}
	case "sampling_params":
		if s.api == Generate {
			s.max = 0
			return roleSampling
		}
	}
	return skip
}

// section knows the parts of the prompt at the top of the body.
func (s *Scanner) section(name []byte) role {
	section, r := sectionMain, skip
	switch string(name) {
	case "tools":
		section, r = sectionTools, roleTools
	case "functions":
		section, r = sectionFunctions, roleTools
	case "instructions":
		section, r = sectionInstructions, roleRaw
	case "system":
		section, r = sectionSystem, roleContent
	case "prompt":
		r = rolePrompt
	case "input":
		if r = rolePrompt; s.api == Responses {
			r = roleMessages
		}
	case "messages":
		r = roleMessages
	case "token_ids":
		r = roleIDs
	}
	if !s.reads(name) {
		return skip
	}
	if section == sectionTools {
		s.facts.Tools = false
	}
	if s.tops&(1<<section) != 0 {
		s.forget(section<<orderSection, 1<<orderSection)
	}
	s.tops |= 1 << section
	s.order, s.message = section<<orderSection, 0
	return r
}

// reads tells whether the API's prompt has this part.
func (s *Scanner) reads(name []byte) bool {
	switch string(name) {
	case "tools":
		return s.api == Chat || s.api == Responses || s.api == Messages || s.api == Embeddings
	case "functions":
		return s.api == Chat
	case "messages":
		return s.api == Chat || s.api == Messages || s.api == Embeddings
	case "instructions":
		return s.api == Responses
	case "system":
		return s.api == Messages
	case "prompt":
		return s.api == Completions
	case "input":
		return s.api == Embeddings || s.api == Responses
	case "token_ids":
		return s.api == Generate
	}
	return false
}

// field knows the keys of a message, or of an item of the Responses API, and their order.
func (s *Scanner) field(name []byte) role {
	r, rank := roleRaw, uint64(0)
	switch string(name) {
	case "role":
		rank = 1
	case "name":
		rank = 2
	case "tool_call_id", "call_id":
		rank = 3
	case "reasoning_content":
		rank = 4
	case "reasoning", "summary":
		rank = 5
	case "content":
		r, rank = roleContent, 6
	case "tool_calls":
		rank = 7
	case "function_call":
		rank = 8
	case "arguments":
		rank = 9
	case "output":
		r, rank = roleContent, 10
	default:
		return skip
	}
	s.order = s.order&^0xff | rank
	if s.fields&(1<<rank) != 0 {
		s.forget(s.order, 1)
	}
	s.fields |= 1 << rank
	return r
}

// partRole knows the keys of a content part. What is unknown counts as it stands, so that
// different conversations differ.
func partRole(name []byte) role {
	switch string(name) {
	case "text":
		return roleText
	case "content":
		return roleContent
	case "image_url", "video_url", "audio_url", "input_audio", "source", "file",
		"image", "video", "audio", "file_data", "file_url", "file_id", "data":
		return roleMedia
	case "type", "cache_control", "annotations", "logprobs", "citations", "detail", "signature":
		return skip
	}
	return roleRaw
}

// open implements visitor.
func (s *Scanner) open(r role, isObject bool, at int64) role {
	switch r {
	case roleRoot, roleStreamOptions, roleSampling, roleMedia, rolePart, roleMessage:
		if isObject {
			switch r {
			case roleRoot:
				s.facts.begin = at + 1
			case roleMessage:
				s.message++
				s.fields = 0
				s.order = s.order>>orderSection<<orderSection | s.message<<orderMessage
			}
			return r
		}
	case roleTools:
		if !isObject {
			s.raw = at
			return roleTool
		}
	case roleTool:
		s.facts.Tools = s.facts.Tools || s.order == sectionTools<<orderSection
	case roleRaw:
		s.raw = at
		return opaque | roleRaw
	case rolePrompt:
		if !isObject {
			s.prompt, s.numeric = at, false
			return rolePrompts
		}
	case rolePrompts, roleIDs:
		if !isObject {
			s.raw = at
			return opaque | roleIDs
		}
	case roleMessages:
		if !isObject {
			return roleMessage
		}
	case roleContent:
		return rolePart // of an object, its keys; of an array, its elements
	}
	return skip
}

// shut implements visitor.
func (s *Scanner) shut(in role, at int64) {
	switch in {
	case roleRoot:
		s.facts.nothing = s.walk.state == atFirstKey
	case roleTool, opaque | roleRaw:
		s.found(Span{s.raw, at - s.raw}, Text, false)
	case opaque | roleIDs:
		s.found(Span{s.raw, at - s.raw}, Tokens, true)
	case rolePrompts:
		if s.numeric {
			s.found(Span{s.prompt, at - s.prompt}, Tokens, true)
		}
	}
}

// keep implements visitor.
func (s *Scanner) keep(r role) int {
	switch r {
	case roleModel, roleSalt:
		return keepName
	case roleText:
		if s.order == sectionSystem<<orderSection {
			return len(billingHeader)
		}
	}
	return 0
}

// billingHeader begins a system block that Anthropic's clients change with every request. vLLM
// drops it from the prompt; so does the scan, or no two requests would share a prefix.
const billingHeader = "x-anthropic-billing-header"

// text implements visitor.
func (s *Scanner) text(r role, t token) {
	switch r {
	case roleModel:
		s.facts.models = append(s.facts.models, Span{t.Off - 1, t.Len + 2})
		if !t.long {
			s.facts.Model = s.remember(&s.model, t.raw)
			s.facts.ModelSpan = Span{t.Off - 1, t.Len + 2}
		}
	case roleSalt:
		s.facts.Salt = s.remember(&s.salt, t.raw)
	case rolePrompt, rolePrompts:
		s.found(t.Span, Text, true)
	case roleText:
		if string(t.raw) != billingHeader {
			s.found(t.Span, Text, false)
		}
	case roleRaw, roleContent, rolePart, roleMessage, roleMessages:
		s.found(t.Span, Text, false)
	case roleMedia:
		s.found(t.Span, Media, false)
	}
}

// remember makes a string of raw, the one of last time when it is equal.
func (s *Scanner) remember(last *string, raw []byte) string {
	if bytes.IndexByte(raw, '\\') >= 0 {
		s.spelled = unescape(s.spelled[:0], raw)
		raw = s.spelled
	}
	if *last != string(raw) {
		*last = string(raw)
	}
	return *last
}

// scalar implements visitor.
func (s *Scanner) scalar(r role, t token) {
	f := &s.facts
	switch r {
	case roleModel:
		f.models = append(f.models, t.Span)
	case roleStream:
		f.Stream = string(t.raw) == "true"
	case roleIncludeUsage:
		f.IncludeUsage = string(t.raw) == "true"
	case roleEcho:
		s.echo = nothing
		if string(t.raw) == "true" {
			s.echo = set
		}
	case roleProbs:
		s.probs = number(t)
	case roleLogs:
		s.logs = number(t)
	case roleMaxFirst:
		s.maxFirst = max(whole(t), 0)
	case roleMax:
		s.max = max(whole(t), 0)
	case roleN:
		f.N = max(whole(t), 1)
	case rolePrompts:
		s.numeric = s.numeric || isNumber(t.raw)
	case roleRaw:
		if isNumber(t.raw) {
			s.found(t.Span, Text, false)
		}
	}
}

// given is whether a field says something.
type given uint8

const (
	absent  given = iota
	nothing       // null, or false
	set
)

// number tells a number from null.
func number(t token) given {
	if isNumber(t.raw) {
		return set
	}
	return nothing
}

// found adds a span to the prompt.
func (s *Scanner) found(at Span, k Kind, first bool) {
	if len(s.facts.Prompt) < maxSpans {
		s.facts.Prompt = append(s.facts.Prompt, PromptSpan{Span: at, Kind: k, First: first, order: s.order})
	}
}

// twice counts a key that came again, and tells whether to go on.
func (s *Scanner) twice() bool {
	s.again++
	if s.again > maxAgain {
		s.walk.state = broken // nobody means this; do not spend time on it
	}
	return s.again <= maxAgain
}

// forget drops the spans of n orders from the given one on: an equal key comes again.
func (s *Scanner) forget(order, n uint64) {
	if !s.twice() {
		return
	}
	s.facts.Prompt = slices.DeleteFunc(s.facts.Prompt, func(p PromptSpan) bool { return p.order-order < n })
}

// whole reads a number that is not negative and has no fraction, however it is written; -1 for
// everything else.
func whole(t token) int64 {
	if t.long {
		return -1
	}
	var n int64
	for i, c := range t.raw {
		if c < '0' || c > '9' || i > 17 {
			return wholeFloat(t.raw)
		}
		n = n*10 + int64(c-'0')
	}
	if len(t.raw) == 0 {
		return -1
	}
	return n
}

// wholeFloat is the rare rest of whole: 1e3, 16.0, and numbers beyond eighteen digits.
func wholeFloat(raw []byte) int64 {
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || x < 0 || x > 1<<53 || x != math.Trunc(x) {
		return -1
	}
	return int64(x)
}
