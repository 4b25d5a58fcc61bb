// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"fmt"
	"strings"
)

// anthropic reads a body of Anthropic's Messages API, made a chat as vLLM makes it.
func (h *chat) anthropic(d *dict) (*conversation, error) {
	c := &conversation{generate: true}
	kw, _ := d.get("chat_template_kwargs")
	if err := c.kwargs(kw); err != nil {
		return nil, err
	}
	if err := h.anthropicTools(c, d); err != nil {
		return nil, err
	}
	f, err := h.format(c)
	if err != nil {
		return nil, err
	}
	merge := f.systemFirst || h.plain != nil && h.plain.systemFirst
	var effort any
	if out, _ := d.get("output_config"); out != nil {
		if o, ok := out.(*dict); ok {
			effort, _ = o.get("effort")
		}
	}
	if t, _ := d.get("thinking"); t != nil {
		if o, ok := t.(*dict); ok {
			if kind, _ := o.get("type"); kind == "disabled" {
				if effort, err = h.noThinking(); err != nil {
					return nil, err
				}
			}
		}
	}
	c.effort(effort)
	in := listOf(d, "messages")
	if in == nil {
		return nil, fmt.Errorf("%w: messages: a list is wanted", ErrBody)
	}
	var msgs []any
	var system strings.Builder
	switch s, _ := d.get("system"); s := s.(type) {
	case string:
		system.WriteString(s)
	case *list:
		system.WriteString(systemText(s))
	}
	if merge {
		for _, m := range in.items {
			if m, ok := m.(*dict); ok && role(m) == "system" {
				v, _ := m.get("content")
				system.WriteString(systemText(v))
			}
		}
	}
	if system.Len() > 0 {
		msgs = append(msgs, makeDict("role", "system", "content", system.String()))
	}
	for _, v := range in.items {
		m, ok := v.(*dict)
		if !ok {
			return nil, fmt.Errorf("%w: messages: an object is wanted", ErrBody)
		}
		if msgs, err = anthropicMessage(msgs, m, merge); err != nil {
			return nil, err
		}
	}
	return c, h.setMessages(c, msgs, true)
}

// systemText is the text of a system prompt, without Claude Code's billing line.
func systemText(v any) string {
	switch v := v.(type) {
	case string:
		if strings.HasPrefix(v, billing) {
			return ""
		}
		return v
	case *list:
		var b strings.Builder
		for _, x := range v.items {
			block, ok := x.(*dict)
			if !ok {
				continue
			}
			kind, _ := block.get("type")
			text, _ := block.get("text")
			if s, ok := text.(string); ok && kind == "text" && !strings.HasPrefix(s, billing) {
				b.WriteString(s)
			}
		}
		return b.String()
	}
	return ""
}

// anthropicMessage appends the messages that one of Anthropic's becomes: results of tools come before what else it says.
func anthropicMessage(msgs []any, m *dict, merge bool) ([]any, error) {
	who := role(m)
	content, _ := m.get("content")
	if who == "system" {
		if text := systemText(content); !merge && text != "" {
			msgs = append(msgs, makeDict("role", "system", "content", text))
		}
		return msgs, nil
	}
	out := makeDict("role", who)
	if s, ok := content.(string); ok {
		out.set("content", s)
		return append(msgs, out), nil
	}
	blocks, ok := content.(*list)
	if !ok {
		return nil, fmt.Errorf("%w: messages: content: a text or a list is wanted", ErrBody)
	}
	var parts, calls []any
	var thoughts strings.Builder
	thought := false
	for _, x := range blocks.items {
		b, ok := x.(*dict)
		if !ok {
			return nil, fmt.Errorf("%w: messages: content: an object is wanted", ErrBody)
		}
		field := func(k string) any { v, _ := b.get(k); return v }
		str := func(k string) string { s, _ := field(k).(string); return s }
		switch field("type") {
		case "text":
			if s := str("text"); s != "" {
				parts = append(parts, makeDict("type", "text", "text", s))
			}
		case "image":
			return nil, fmt.Errorf("%w: an image", ErrMedia)
		case "thinking":
			if s, ok := field("thinking").(string); ok {
				thoughts.WriteString(s)
				thought = true
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			input := field("input")
			if !truthy(input) {
				input = &dict{}
			}
			id := field("id")
			if id == nil || id == "" {
				return nil, fmt.Errorf("%w: tool_use without an id", ErrUnsupported) // vLLM takes the time for one
			}
			calls = append(calls, makeDict("id", id, "type", "function", "function",
				makeDict("name", str("name"), "arguments", input)))
		case "tool_result":
			result := field("content")
			if who != "user" {
				text := ""
				if truthy(result) {
					s, ok := result.(string)
					if !ok {
						return nil, fmt.Errorf("%w: tool_result of an assistant", ErrUnsupported)
					}
					text = s
				}
				parts = append(parts, makeDict("type", "text", "text", "Tool result: "+text))
				continue
			}
			text, refs, err := toolResult(result)
			if err != nil {
				return nil, err
			}
			msgs = append(msgs, makeDict("role", "tool", "tool_call_id", str("tool_use_id"), "content", text))
			if len(refs) > 0 {
				msgs = append(msgs, makeDict("role", "tool", "tool_call_id", str("tool_use_id"), "content", &list{items: refs}))
			}
		default:
			return nil, fmt.Errorf("%w: messages: content: a block of unknown type", ErrBody)
		}
	}
	if thought && thoughts.Len() > 0 || thought {
		out.set("reasoning", thoughts.String())
	}
	if len(calls) > 0 {
		out.set("tool_calls", &list{items: calls})
	}
	if len(parts) == 1 {
		text, _ := parts[0].(*dict).get("text")
		out.set("content", text)
	} else if len(parts) > 1 {
		out.set("content", &list{items: parts})
	} else if who == "user" {
		return msgs, nil
	}
	return append(msgs, out), nil
}

func toolResult(v any) (text string, refs []any, err error) {
	switch v := v.(type) {
	case string:
		return v, nil, nil
	case *list:
		var texts []string
		for _, x := range v.items {
			item, ok := x.(*dict)
			if !ok {
				continue
			}
			switch kind, _ := item.get("type"); kind {
			case "text":
				s, _ := item.get("text")
				t, _ := s.(string)
				texts = append(texts, t)
			case "image":
				return "", nil, fmt.Errorf("%w: an image", ErrMedia)
			case "tool_reference":
				name, _ := item.get("tool_name")
				if !truthy(name) {
					name, _ = item.get("name")
				}
				if truthy(name) {
					refs = append(refs, makeDict("type", "tool_reference", "name", name))
				}
			}
		}
		return strings.Join(texts, "\n"), refs, nil
	}
	return "", nil, nil
}

func (h *chat) anthropicTools(c *conversation, d *dict) error {
	if msgs := listOf(d, "messages"); msgs != nil {
		for _, m := range msgs.items {
			if m, ok := m.(*dict); ok && role(m) == "system" {
				if blocks := listOf(m, "content"); blocks != nil {
					for _, b := range blocks.items {
						if b, ok := b.(*dict); ok {
							if kind, _ := b.get("type"); kind == "tool_addition" || kind == "tool_removal" {
								return fmt.Errorf("%w: %v", ErrUnsupported, kind)
							}
						}
					}
				}
			}
		}
	}
	v, _ := d.get("tools")
	if v == nil {
		return nil
	}
	l, ok := v.(*list)
	if !ok {
		return fmt.Errorf("%w: tools: a list is wanted", ErrBody)
	}
	out := &list{}
	for _, t := range l.items {
		tool, ok := t.(*dict)
		if !ok {
			return fmt.Errorf("%w: tools: an object is wanted", ErrBody)
		}
		f := &dict{}
		for _, k := range []string{"name", "description", "strict", "defer_loading"} {
			if v, _ := tool.get(k); v != nil {
				f.set(k, v)
			}
		}
		schema, _ := tool.get("input_schema")
		s, ok := schema.(*dict)
		if !ok {
			return fmt.Errorf("%w: tools: input_schema: an object is wanted", ErrBody)
		}
		if s.find("type") < 0 {
			s = s.clone()
			s.set("type", "object")
		}
		f.set("parameters", s)
		out.items = append(out.items, toolOf(f, nil))
	}
	c.tools = out
	return nil
}

// noThinking is the effort that turns thinking off: "low" where the template takes "none" for an effort like another.
func (h *chat) noThinking() (any, error) {
	probe := func(effort string) (string, error) {
		c := &conversation{generate: true, vars: &dict{}}
		c.effort(effort)
		if err := h.setMessages(c, []any{makeDict("role", "user", "content", "Hi")}, true); err != nil {
			return "", err
		}
		return h.render(c)
	}
	none, err := probe("none")
	if err != nil {
		return "low", nil
	}
	for _, effort := range []string{"low", "medium", "high", "xhigh", "max"} {
		if text, err := probe(effort); err == nil && text == none {
			return "low", nil
		}
	}
	return "none", nil
}

// responses reads a body of OpenAI's Responses API that holds all of its conversation.
func (h *chat) responses(d *dict) (*conversation, error) {
	for _, field := range []string{"previous_response_id", "conversation", "prompt", "previous_input_messages"} {
		if v, _ := d.get(field); v != nil {
			return nil, fmt.Errorf("%w: %s", ErrUnsupported, field)
		}
	}
	c := &conversation{generate: true}
	kw, _ := d.get("chat_template_kwargs")
	if err := c.kwargs(kw); err != nil {
		return nil, err
	}
	if r, _ := d.get("reasoning"); r != nil {
		if o, ok := r.(*dict); ok {
			effort, _ := o.get("effort")
			c.effort(effort)
		}
	}
	if tools := listOf(d, "tools"); tools != nil && len(tools.items) > 0 {
		out := &list{}
		for _, t := range tools.items {
			tool, ok := t.(*dict)
			if !ok {
				return nil, fmt.Errorf("%w: tools: an object is wanted", ErrBody)
			}
			if kind, _ := tool.get("type"); kind != "function" {
				return nil, fmt.Errorf("%w: a tool of type %v", ErrUnsupported, shown(kind))
			}
			out.items = append(out.items, toolOf(tool, nil))
		}
		c.tools = out
	}
	var msgs []any
	if s, _ := d.get("instructions"); truthy(s) {
		msgs = append(msgs, makeDict("role", "system", "content", s))
	}
	switch in, _ := d.get("input"); in := in.(type) {
	case string:
		msgs = append(msgs, makeDict("role", "user", "content", in))
	case *list:
		first := len(msgs)
		for _, v := range in.items {
			item, ok := v.(*dict)
			if !ok {
				return nil, fmt.Errorf("%w: input: an object is wanted", ErrBody)
			}
			var prev *dict
			if len(msgs) > first && role(msgs[len(msgs)-1]) == "assistant" {
				prev = msgs[len(msgs)-1].(*dict)
			}
			m, err := responseItem(item, prev)
			if err != nil {
				return nil, err
			}
			if m != nil {
				msgs = append(msgs, m)
			}
		}
		if len(in.items) > 0 {
			last := in.items[len(in.items)-1].(*dict)
			kind, has := last.get("type")
			status, _ := last.get("status")
			if (!has || kind == "message" || kind == "reasoning") && (status == "in_progress" || status == "incomplete") {
				c.resume, c.generate = true, false
			}
		}
	default:
		return nil, fmt.Errorf("%w: input: a text or a list is wanted", ErrBody)
	}
	return c, h.setMessages(c, msgs, false)
}

// responseItem is the message that an item becomes, or nil if it went into the assistant's message before it.
func responseItem(item, prev *dict) (*dict, error) {
	get := func(k string) any { v, _ := item.get(k); return v }
	into := func(field string, v any) *dict {
		if prev != nil {
			if old, _ := prev.get(field); old == nil {
				prev.set(field, v)
				return nil
			}
		}
		return makeDict("role", "assistant", field, v)
	}
	switch kind := get("type"); kind {
	case "function_call":
		if get("namespace") != nil {
			return nil, fmt.Errorf("%w: a call with a namespace", ErrUnsupported)
		}
		call := makeDict("id", get("call_id"), "function", makeDict("name", get("name"), "arguments", get("arguments")), "type", "function")
		if prev != nil {
			if calls := listOf(prev, "tool_calls"); calls != nil {
				calls.items = append(calls.items, call)
			} else {
				prev.set("tool_calls", &list{items: []any{call}})
			}
			return nil, nil
		}
		return makeDict("role", "assistant", "tool_calls", &list{items: []any{call}}), nil
	case "function_call_output":
		return makeDict("role", "tool", "content", get("output"), "tool_call_id", get("call_id")), nil
	case "reasoning":
		if truthy(get("encrypted_content")) {
			return nil, fmt.Errorf("%w: encrypted_content", ErrBody)
		}
		for _, field := range []string{"content", "summary"} {
			if l := listOf(item, field); l != nil && len(l.items) > 0 {
				if d, ok := l.items[0].(*dict); ok {
					text, _ := d.get("text")
					return into("reasoning", text), nil
				}
			}
		}
		return into("reasoning", ""), nil
	case nil, "message":
		who, ok := get("role").(string)
		if !ok {
			return nil, fmt.Errorf("%w: input: role: a text is wanted", ErrBody)
		}
		if who == "assistant" {
			switch content := get("content").(type) {
			case string:
				return into("content", content), nil
			case *list:
				if len(content.items) > 0 {
					if d, ok := content.items[0].(*dict); ok {
						text, _ := d.get("text")
						if text == nil {
							text, _ = d.get("refusal")
						}
						if s, ok := text.(string); ok {
							return into("content", s), nil
						}
					}
				}
			}
		}
		return item, nil
	default:
		return nil, fmt.Errorf("%w: an item of type %v", ErrUnsupported, shown(kind))
	}
}
