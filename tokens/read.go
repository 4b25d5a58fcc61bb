// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// Read appends the prompts of a request body to into, as vLLM's server of version 0.32 makes them with its default flags.
// api is the body's dialect: "chat", "completions", "embeddings", "responses", "messages" or "generate". Its error wraps
// [ErrBody], [ErrMedia], [ErrUnsupported] or [ErrTemplate]; into is then as it was.
func (m *Model) Read(api string, body []byte, into *Prompts) error {
	ids, starts := len(into.IDs), len(into.Starts)
	err := m.read(api, body, into)
	if err != nil {
		into.IDs, into.Starts = into.IDs[:ids], into.Starts[:starts]
	}
	return err
}

func (m *Model) read(api string, body []byte, into *Prompts) error {
	if !utf8.Valid(body) {
		return fmt.Errorf("%w: it is not UTF-8", ErrBody)
	}
	v, err := parseJSON(string(body))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBody, err)
	}
	d, ok := v.(*dict)
	if !ok {
		return fmt.Errorf("%w: it is no object", ErrBody)
	}
	switch api {
	case "chat":
		if l := listOf(d, "messages"); l != nil && len(l.items) > 0 {
			if _, ok := l.items[0].(*list); ok {
				return fmt.Errorf("%w: several conversations", ErrUnsupported)
			}
		}
		c, err := m.chat.openAI(d, nil)
		if err != nil {
			return err
		}
		return m.conversation(c, d, false, into)
	case "completions":
		return m.completions(d, into)
	case "embeddings":
		return m.embeddings(d, into)
	case "generate":
		return m.generate(d, into)
	case "messages":
		c, err := m.chat.anthropic(d)
		if err != nil {
			return err
		}
		return m.conversation(c, &dict{}, false, into)
	case "responses":
		c, err := m.chat.responses(d)
		if err != nil {
			return err
		}
		return m.conversation(c, &dict{}, true, into)
	}
	return fmt.Errorf("%w: bodies of %q", ErrUnsupported, api)
}

// conversation appends a conversation's tokens; d has the fields that say how to.
func (m *Model) conversation(c *conversation, d *dict, special bool, into *Prompts) error {
	if ids, ok := reusedIDs(d, c.messages); ok {
		return m.prompt(ids, &dict{}, special, "left", into)
	}
	text, err := m.chat.render(c)
	if err != nil {
		return err
	}
	return m.prompt(text, d, special, "left", into)
}

// reusedIDs are the ids that a disaggregated decode is handed, which vLLM takes for the prompt's.
func reusedIDs(d *dict, messages []any) (any, bool) {
	kv, _ := d.get("kv_transfer_params")
	params, ok := kv.(*dict)
	if !ok {
		return nil, false
	}
	ids, _ := params.get("prompt_token_ids")
	if echo, _ := d.get("echo"); ids == nil || truthy(echo) {
		return nil, false
	}
	return ids, true
}

// completions reads a body of /v1/completions.
func (m *Model) completions(d *dict, into *Prompts) error {
	if v, _ := d.get("prompt_embeds"); v != nil {
		return fmt.Errorf("%w: prompt_embeds", ErrUnsupported)
	}
	if v, _ := d.get("suffix"); v != nil {
		return fmt.Errorf("%w: suffix", ErrUnsupported)
	}
	v, _ := d.get("prompt")
	return m.several("prompt", v, d, "left", into)
}

// embeddings reads a body of /v1/embeddings.
func (m *Model) embeddings(d *dict, into *Prompts) error {
	if v, ok := d.get("input"); ok && d.find("messages") < 0 {
		if l, ok := v.(*list); ok && len(l.items) > 0 {
			if _, ok := l.items[0].(*dict); ok {
				return fmt.Errorf("%w: input of messages", ErrUnsupported)
			}
		}
		return m.several("input", v, d, "right", into)
	}
	c, err := m.chat.openAI(d, &pooling)
	if err != nil {
		return err
	}
	text, err := m.chat.render(c)
	if err != nil {
		return err
	}
	return m.prompt(text, d, false, "right", into)
}

// several appends one prompt or more: a text, a list of texts, ids, or a list of lists of ids.
func (m *Model) several(field string, v any, d *dict, side string, into *Prompts) error {
	l, ok := v.(*list)
	if !ok {
		if _, ok := v.(string); !ok {
			return fmt.Errorf("%w: %s: a text or a list is wanted", ErrBody, field)
		}
		return m.prompt(v, d, true, side, into)
	}
	if len(l.items) == 0 {
		return fmt.Errorf("%w: %s: empty", ErrBody, field)
	}
	if _, ok := l.items[0].(int64); ok {
		return m.prompt(l, d, true, side, into)
	}
	for _, p := range l.items {
		_, isText := p.(string)
		_, isFirst := l.items[0].(string)
		if _, isList := p.(*list); !isText && !isList || isText != isFirst {
			return fmt.Errorf("%w: %s: texts and ids mixed", ErrUnsupported, field)
		}
		if err := m.prompt(p, d, true, side, into); err != nil {
			return err
		}
	}
	return nil
}

// prompt appends one prompt, a text or a list of ids, truncated as the body wants it.
func (m *Model) prompt(v any, d *dict, special bool, side string, into *Prompts) error {
	if s, ok := d.get("add_special_tokens"); ok && s != nil {
		if special, ok = s.(bool); !ok {
			return fmt.Errorf("%w: add_special_tokens: true or false is wanted", ErrBody)
		}
	}
	limit := -1 // vLLM's -1 is the context's length, which longer prompts are refused for otherwise
	if t, _ := d.get("truncate_prompt_tokens"); t != nil {
		n, ok := t.(int64)
		if !ok || n < -1 || n == 0 {
			return fmt.Errorf("%w: truncate_prompt_tokens %v", ErrBody, t)
		}
		limit = int(min(n, 1<<30))
	}
	asked := false
	if t, _ := d.get("truncation_side"); t != nil {
		if t != "left" && t != "right" {
			return fmt.Errorf("%w: truncation_side %v", ErrBody, t)
		}
		side, asked = t.(string), true
	}
	into.next()
	from := len(into.IDs)
	cut := func(from, to, limit int) {
		n := to - from
		if limit < 0 || n <= limit {
			return
		}
		if side == "left" {
			copy(into.IDs[from:], into.IDs[to-limit:to])
		}
		into.IDs = slices.Delete(into.IDs, from+limit, to)
	}
	switch v := v.(type) {
	case string:
		var err error
		if into.IDs, err = m.tok.encode(into.IDs, v, special); err != nil {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		if limit >= 0 && !asked && special && len(into.IDs)-from > limit {
			// The tokenizer truncates before it adds special tokens.
			a, b := len(m.tok.before), len(m.tok.after)
			if limit < a+b {
				return fmt.Errorf("%w: truncate_prompt_tokens is less than the special tokens", ErrBody)
			}
			if side == "left" {
				copy(into.IDs[from+a:], into.IDs[len(into.IDs)-b-(limit-a-b):len(into.IDs)-b])
			}
			into.IDs = slices.Delete(into.IDs, from+limit-b, len(into.IDs)-b)
		}
	case *list:
		for _, x := range v.items {
			id, ok := x.(int64)
			if !ok || id < 0 || id > 1<<32-1 {
				return fmt.Errorf("%w: %v is no token id", ErrBody, shown(x))
			}
			into.IDs = append(into.IDs, uint32(id))
		}
	default:
		return fmt.Errorf("%w: a prompt is a text or a list of ids", ErrBody)
	}
	cut(from, len(into.IDs), limit)
	return nil
}

// shown is a value for an error, its kind alone where it is long.
func shown(v any) any {
	switch v := v.(type) {
	case string, *list, *dict, *big.Int:
		return typeName(v)
	}
	return v
}

// generate reads a body with token ids: of vLLM's /inference/v1/generate, or SGLang's /generate.
func (m *Model) generate(d *dict, into *Prompts) error {
	if v, _ := d.get("features"); v != nil {
		return fmt.Errorf("%w: features", ErrMedia)
	}
	if v, _ := d.get("content_parts"); v != nil {
		return fmt.Errorf("%w: content_parts", ErrMedia)
	}
	for _, field := range []string{"token_ids", "input_ids"} {
		v, _ := d.get(field)
		l, ok := v.(*list)
		if !ok {
			continue
		}
		if len(l.items) == 0 {
			return fmt.Errorf("%w: %s: empty", ErrBody, field)
		}
		if _, many := l.items[0].(*list); !many {
			l = &list{items: []any{l}}
		}
		for _, p := range l.items {
			if err := m.prompt(p, &dict{}, false, "left", into); err != nil {
				return err
			}
		}
		return nil
	}
	if v, ok := d.get("text"); ok {
		return m.several("text", v, &dict{}, "left", into)
	}
	return fmt.Errorf("%w: token_ids: missing", ErrBody)
}

func listOf(d *dict, field string) *list {
	v, _ := d.get(field)
	l, _ := v.(*list)
	return l
}

// defaults are what chat bodies of an API are taken to say where they say nothing.
type defaults struct{ generate bool }

var pooling = defaults{generate: false}

// openAI reads a chat body.
func (h *chat) openAI(d *dict, def *defaults) (*conversation, error) {
	c := &conversation{generate: true}
	if def != nil {
		c.generate = def.generate
	}
	if v, _ := d.get("chat_template"); v != nil {
		return nil, fmt.Errorf("%w: chat_template in a request", ErrUnsupported)
	}
	kw, _ := d.get("chat_template_kwargs")
	if err := c.kwargs(kw); err != nil {
		return nil, err
	}
	effort, _ := d.get("reasoning_effort")
	c.effort(effort)
	for field, to := range map[string]*bool{"add_generation_prompt": &c.generate, "continue_final_message": &c.resume} {
		if v, ok := d.get(field); ok {
			b, ok := v.(bool)
			if !ok {
				return nil, fmt.Errorf("%w: %s: true or false is wanted", ErrBody, field)
			}
			*to = b
		}
	}
	if docs, _ := d.get("documents"); docs != nil {
		c.vars.set("documents", docs)
	}
	if err := c.setTools(d); err != nil {
		return nil, err
	}
	msgs := listOf(d, "messages")
	if msgs == nil {
		return nil, fmt.Errorf("%w: messages: a list is wanted", ErrBody)
	}
	return c, h.setMessages(c, msgs.items, true)
}

// setTools takes a body's tools in the form that vLLM gives templates.
func (c *conversation) setTools(d *dict) error {
	v, _ := d.get("tools")
	if v == nil {
		return nil
	}
	l, ok := v.(*list)
	if !ok || len(l.items) == 0 {
		return fmt.Errorf("%w: tools: a list of at least one is wanted", ErrBody)
	}
	out := &list{}
	for _, t := range l.items {
		tool, ok := t.(*dict)
		if !ok {
			return fmt.Errorf("%w: tools: an object is wanted", ErrBody)
		}
		fn, _ := tool.get("function")
		f, ok := fn.(*dict)
		if !ok {
			return fmt.Errorf("%w: tools: function: an object is wanted", ErrBody)
		}
		defer_, _ := tool.get("defer_loading")
		out.items = append(out.items, toolOf(f, defer_))
	}
	c.tools = out
	return nil
}

// toolOf is a tool as vLLM's model of it prints: all fields of its own, in its order, some only when set.
func toolOf(f *dict, deferred any) *dict {
	fn := &dict{}
	for _, k := range []string{"name", "description", "parameters", "strict", "defer_loading"} {
		v, _ := f.get(k)
		if k == "defer_loading" && v == nil {
			v = deferred
		}
		if v != nil || k == "description" || k == "parameters" {
			fn.set(k, v)
		}
	}
	t := makeDict("type", "function", "function", fn)
	if deferred != nil {
		t.set("defer_loading", deferred)
	}
	return t
}

// setMessages makes the conversation of messages; strict ones were checked by the API's model, which reorders fields.
func (h *chat) setMessages(c *conversation, msgs []any, strict bool) error {
	f, err := h.format(c)
	if err != nil {
		return err
	}
	c.messages = make([]any, 0, len(msgs))
	for _, v := range msgs {
		m, ok := v.(*dict)
		if !ok {
			return fmt.Errorf("%w: messages: an object is wanted", ErrBody)
		}
		out, err := message(m, f.parts, strict)
		if err != nil {
			return err
		}
		c.messages = append(c.messages, out)
	}
	return nil
}

const billing = "x-anthropic-billing-header"

// message is one message as a template is to see it.
func message(m *dict, parts, strict bool) (*dict, error) {
	roleV, _ := m.get("role")
	who, ok := roleV.(string)
	if !ok {
		return nil, fmt.Errorf("%w: messages: role: a text is wanted", ErrBody)
	}
	reasoning, _ := m.get("reasoning")
	if reasoning == nil {
		reasoning, _ = m.get("reasoning_content")
	}
	content, _ := m.get("content")
	var in []any
	switch content := content.(type) {
	case nil:
	case string:
		in = []any{content}
	case *list:
		in = content.items
	default:
		return nil, fmt.Errorf("%w: messages: content: a text or a list is wanted", ErrBody)
	}
	var texts []string
	list_ := &list{}
	for _, p := range in {
		part, err := contentPart(p)
		if err != nil {
			return nil, err
		}
		if part == nil {
			continue
		}
		if t, _ := part.get("type"); t == "tool_reference" {
			list_.items = append(list_.items, part)
			name, _ := part.get("name")
			s, _ := name.(string)
			texts = append(texts, s)
			continue
		}
		text, _ := part.vals[1].(string)
		if who == "system" && strings.HasPrefix(text, billing) {
			_, rest, _ := strings.Cut(text, "\n")
			if rest == "" {
				continue
			}
			text = rest
			part.vals[1] = rest
		}
		texts = append(texts, text)
		list_.items = append(list_.items, part)
	}
	out := makeDict("role", who)
	if parts && (who != "tool" || slices.ContainsFunc(list_.items, func(p any) bool { return p.(*dict).vals[0] != "text" })) {
		out.set("content", list_)
	} else {
		out.set("content", strings.Join(texts, "\n"))
	}
	switch who {
	case "assistant":
		if v, _ := m.get("tool_calls"); v != nil {
			calls, err := toolCalls(v, strict)
			if err != nil {
				return nil, err
			}
			if len(calls.items) > 0 {
				out.set("tool_calls", calls)
			}
		}
		if reasoning != nil {
			if _, ok := reasoning.(string); !ok {
				return nil, fmt.Errorf("%w: messages: reasoning: a text is wanted", ErrBody)
			}
			out.set("reasoning", reasoning)
			out.set("reasoning_content", reasoning)
		}
	case "tool":
		if id, ok := m.get("tool_call_id"); ok {
			out.set("tool_call_id", id)
		}
	}
	for _, field := range []string{"name", "task"} {
		if v, _ := m.get(field); v != nil {
			if s, ok := v.(string); ok {
				out.set(field, s)
			}
		}
	}
	if who == "developer" {
		tools, _ := m.get("tools")
		if l, ok := tools.(*list); ok {
			tools = reorderTools(l)
		}
		out.set("tools", tools)
	}
	return out, nil
}

// partFields are the fields of content parts that templates see only as far as their type wants them.
var partFields = map[string]bool{"audio_embeds": true, "audio_url": true, "closed": true, "data": true, "file": true, "image_embeds": true,
	"image_pil": true, "image_url": true, "input_audio": true, "name": true, "prompt_cache_breakpoint": true, "refusal": true,
	"text": true, "thinking": true, "type": true, "uuid": true, "video_embeds": true, "video_url": true}

// contentPart is a part of a message's content: type and text first, then what else templates see of it.
func contentPart(p any) (*dict, error) {
	if s, ok := p.(string); ok {
		return makeDict("type", "text", "text", s), nil
	}
	d, ok := p.(*dict)
	if !ok {
		return nil, fmt.Errorf("%w: messages: content: a part is a text or an object", ErrBody)
	}
	kind, _ := d.get("type")
	field := "text"
	switch kind {
	case "text", "input_text", "output_text":
	case "refusal", "thinking":
		field = kind.(string)
	case "tool_reference":
		name, _ := d.get("name")
		return makeDict("type", "tool_reference", "name", name), nil
	default:
		for _, k := range d.keys {
			if partFields[k] && k != "text" && k != "type" && k != "name" {
				return nil, fmt.Errorf("%w: a part of type %v", ErrMedia, shown(kind))
			}
		}
		if s, ok := kind.(string); ok && (strings.Contains(s, "image") || strings.Contains(s, "audio") || strings.Contains(s, "video") || s == "file") {
			return nil, fmt.Errorf("%w: a part of type %s", ErrMedia, s[:min(len(s), 40)])
		}
		return nil, fmt.Errorf("%w: messages: content: a part of unknown type", ErrBody)
	}
	if uuid, _ := d.get("uuid"); uuid != nil {
		return nil, fmt.Errorf("%w: a part with a uuid", ErrMedia)
	}
	v, _ := d.get(field)
	text, ok := v.(string)
	if !ok {
		if v == nil && (kind == "text" || kind == "refusal") {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: messages: content: %s: a text is wanted", ErrBody, field)
	}
	out := makeDict("type", "text", "text", text)
	for i, k := range d.keys {
		if !partFields[k] {
			out.set(k, d.vals[i])
		}
	}
	return out, nil
}

// ordered is d with the fields in this order first, as the API's model of it has them, and what else it has after.
func ordered(d *dict, fields ...string) *dict {
	out := &dict{}
	for _, f := range fields {
		if v, ok := d.get(f); ok {
			out.set(f, v)
		}
	}
	for i, k := range d.keys {
		if out.find(k) < 0 {
			out.set(k, d.vals[i])
		}
	}
	return out
}

func reorderTools(l *list) *list {
	out := &list{}
	for _, t := range l.items {
		tool, ok := t.(*dict)
		if !ok {
			out.items = append(out.items, t)
			continue
		}
		tool = ordered(tool, "function", "type")
		if f, ok := tool.vals[0].(*dict); ok && tool.keys[0] == "function" {
			tool.vals[0] = ordered(f, "name", "description", "parameters", "strict")
		}
		out.items = append(out.items, tool)
	}
	return out
}

// toolCalls are an assistant's calls with their arguments read: what is no JSON object becomes an empty one.
func toolCalls(v any, strict bool) (*list, error) {
	l, ok := v.(*list)
	if !ok {
		return nil, fmt.Errorf("%w: tool_calls: a list is wanted", ErrBody)
	}
	out := &list{}
	for _, x := range l.items {
		call, ok := x.(*dict)
		if !ok {
			return nil, fmt.Errorf("%w: tool_calls: an object is wanted", ErrBody)
		}
		kind, has := call.get("type")
		fv, _ := call.get("function")
		fn, ok := fv.(*dict)
		if !ok || has && kind != "function" {
			return nil, fmt.Errorf("%w: tool_calls: type function is wanted", ErrBody)
		}
		call = call.clone()
		fn = fn.clone()
		if strict {
			call = ordered(call, "id", "function", "type")
			fn = ordered(fn, "arguments", "name")
		}
		args, _ := fn.get("arguments")
		parsed := &dict{}
		switch a := args.(type) {
		case string:
			if p, err := parseJSON(a); err == nil {
				if d, ok := p.(*dict); ok {
					parsed = d
				}
			}
		case *dict:
			parsed = a
		}
		fn.set("arguments", parsed)
		call.set("function", fn)
		out.items = append(out.items, call)
	}
	return out, nil
}
