// SPDX-License-Identifier: Apache-2.0

package request

// Usage is what an engine says it computed, in tokens; -1 where it does not say, or says
// something that is no number of tokens. Anthropic's input_tokens leaves out what came from the
// cache; it is passed on as told.
type Usage struct {
	Prompt int // prompt_tokens, input_tokens
	Output int // completion_tokens, output_tokens
	Cached int // of the prompt, found in the engine's cache
}

// usageScan finds the usage and the type of one JSON document of an answer.
type usageScan struct {
	walk  walker
	merge bool  // usages add to each other (Anthropic) instead of replacing
	usage Usage // the last one told by any document
	next  Usage // being read
	kind  event // by the document's type
}

// The roles of values in an answer.
const (
	answerNested  role = iota + 1 // response, or message: an object that may hold the usage
	answerUsage                   // the usage
	answerDetails                 // prompt_tokens_details
	answerPrompt
	answerOutput
	answerCached
	answerType
	answerRoot = plain
)

// start prepares for the next document.
func (u *usageScan) start() {
	u.walk.reset(u)
	u.kind = eventOther
}

// key implements visitor.
func (u *usageScan) key(in role, name []byte) role {
	switch in {
	case answerRoot, answerNested:
		switch string(name) {
		case "usage":
			return answerUsage
		case "response", "message":
			if in == answerRoot {
				return answerNested
			}
		case "type":
			if in == answerRoot {
				return answerType
			}
		}
	case answerUsage:
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			return answerPrompt
		case "completion_tokens", "output_tokens":
			return answerOutput
		case "cache_read_input_tokens":
			return answerCached
		case "prompt_tokens_details", "input_tokens_details":
			return answerDetails
		}
	case answerDetails:
		if string(name) == "cached_tokens" {
			return answerCached
		}
	}
	return skip
}

// open implements visitor.
func (u *usageScan) open(r role, isObject bool, _ int64) role {
	switch {
	case !isObject:
		return skip
	case r == answerUsage:
		u.next = Usage{-1, -1, -1}
		return r
	case r == answerRoot, r == answerNested, r == answerDetails:
		return r
	}
	return skip
}

// shut implements visitor. A usage counts when it is whole: one that was cut off in the middle
// of a number would be wrong.
func (u *usageScan) shut(in role, _ int64) {
	if in != answerUsage {
		return
	}
	if !u.merge {
		u.usage = u.next
		return
	}
	for _, f := range [...]struct {
		to   *int
		from int
	}{{&u.usage.Prompt, u.next.Prompt}, {&u.usage.Output, u.next.Output}, {&u.usage.Cached, u.next.Cached}} {
		if f.from >= 0 {
			*f.to = f.from
		}
	}
}

// keep implements visitor.
func (u *usageScan) keep(role) int { return keepValue }

// text implements visitor. Some engines write numbers in quotes.
func (u *usageScan) text(r role, t token) {
	switch {
	case r == answerType:
		u.kind = eventOf(t.raw)
	case len(t.raw) > 0 && len(t.raw) == digits(t.raw):
		u.number(r, t)
	default:
		u.set(r, -1)
	}
}

// scalar implements visitor.
func (u *usageScan) scalar(r role, t token) { u.number(r, t) }

func (u *usageScan) number(r role, t token) { u.set(r, int(whole(t))) }

func (u *usageScan) set(r role, n int) {
	switch r {
	case answerPrompt:
		u.next.Prompt = n
	case answerOutput:
		u.next.Output = n
	case answerCached:
		u.next.Cached = n
	}
}

// digits counts the digits at the start of p.
func digits(p []byte) int {
	for i, c := range p {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(p)
}

// event is what an event of a stream means.
type event uint8

const (
	eventOther event = iota // to be told by its content
	eventQuiet              // no output
	eventDelta              // output, unless its delta is empty
	eventDone               // the end
)

// eventOf tells what a typed event of the Messages or Responses API means.
func eventOf(name []byte) event {
	switch string(name) {
	case "message_stop", "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		return eventDone
	case "content_block_delta":
		return eventDelta
	}
	if n := len(name) - len(".delta"); n > 0 && string(name[n:]) == ".delta" {
		return eventDelta
	}
	return eventQuiet
}
