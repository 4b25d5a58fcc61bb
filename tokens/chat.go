// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// chat is a model's chat templates and what they are given beside the messages.
type chat struct {
	plain, tools *format // for requests without tools and with; nil if there is none
	special      *dict
	refuse       string // why chats are not ours to render, if they are not
	now          func() time.Time
}

// format is a chat template and how it wants messages.
type format struct {
	*template
	parts     bool // content as a list of parts, not as one text
	developer bool // it knows the role "developer"
	// systemFirst: it refuses system messages that are not the first, so that those of Anthropic's API are put together.
	systemFirst bool
}

// ownRenderer are the models whose prompts vLLM makes in Python, not with a chat template.
var ownRenderer = map[string]bool{"gpt_oss": true, "deepseek_v32": true, "deepseek_v4": true, "deepseek_v41": true, "kimi_k3": true,
	"kimi_audio": true, "inkling": true}

func readChat(folder string, c *config) (*chat, error) {
	h := &chat{special: c.special, now: time.Now}
	if folder == "" {
		return h, nil
	}
	if ownRenderer[c.modelType] {
		h.refuse = "vLLM renders " + c.modelType + " without a chat template"
		return h, nil
	}
	for _, name := range []string{"tekken.json", "tokenizer.model.v*"} {
		if found, _ := filepath.Glob(filepath.Join(folder, name)); len(found) > 0 {
			h.refuse = filepath.Base(found[0]) + " makes vLLM use mistral-common"
			return h, nil
		}
	}
	texts, err := templateTexts(folder, c)
	if err != nil {
		return nil, err
	}
	plain := texts["default"]
	withTools := plain
	if t, ok := texts["tool_use"]; ok {
		withTools = t
	}
	// A processor's own template comes first, unless there are tools. transformers keeps it in the folder of the tokenizer's
	// own but for old folders.
	if own, err := processorTemplate(folder); err != nil {
		return nil, err
	} else if own != "" {
		plain = own
	}
	if h.plain, err = newFormat(plain); err == nil {
		h.tools = h.plain
		if withTools != plain {
			h.tools, err = newFormat(withTools)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: chat template: %w", folder, err)
	}
	return h, nil
}

// templateTexts are the tokenizer's chat templates by name: those in files of their own before the config's.
func templateTexts(folder string, c *config) (map[string]string, error) {
	texts := map[string]string{}
	files := map[string]string{"default": filepath.Join(folder, "chat_template.jinja")}
	more, _ := filepath.Glob(filepath.Join(folder, "additional_chat_templates", "*.jinja"))
	for _, f := range more {
		files[strings.TrimSuffix(filepath.Base(f), ".jinja")] = f
	}
	for name, path := range files {
		data, err := readFile(path, maxTemplate)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		texts[name] = string(data)
	}
	if len(texts) > 0 || none(c.Template) {
		return texts, nil
	}
	var one string
	if json.Unmarshal(c.Template, &one) == nil {
		texts["default"] = one
		return texts, nil
	}
	var many []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if json.Unmarshal(c.Template, &many) == nil {
		for _, t := range many {
			texts[t.Name] = t.Template
		}
		return texts, nil
	}
	if json.Unmarshal(c.Template, &texts) != nil {
		return nil, fmt.Errorf("%s: chat_template: a text, or a list of names and templates, is wanted", filepath.Join(folder, "tokenizer_config.json"))
	}
	return texts, nil
}

// processorTemplate is the template of an old multimodal folder: chat_template.json beside a processor's config.
func processorTemplate(folder string) (string, error) {
	path := filepath.Join(folder, "chat_template.json")
	data, err := readFile(path, maxTemplate)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	processor := false
	for _, name := range []string{"preprocessor_config.json", "processor_config.json"} {
		_, err := os.Stat(filepath.Join(folder, name))
		processor = processor || err == nil
	}
	var j struct {
		Template string `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &j); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if !processor {
		return "", nil
	}
	return j.Template, nil
}

func newFormat(src string) (*format, error) {
	if src == "" {
		return nil, nil
	}
	t, err := newTemplate(src)
	if err != nil {
		return nil, err
	}
	f := &format{template: t, parts: wantsParts(t.body)}
	f.developer = strings.Contains(src, `"developer"`) || strings.Contains(src, `'developer'`)
	probe := new(list)
	for _, role := range []string{"system", "user", "system", "user"} {
		probe.items = append(probe.items, makeDict("role", role, "content", "t"))
	}
	// vLLM finds out with a bare Jinja, so that a template which uses more than that has its system messages put together, too.
	walk(t.body, func(n any, _ bool) {
		_, tag := n.(*sScope)
		f.systemFirst = f.systemFirst || tag
	})
	var out strings.Builder
	vars := &scope{}
	vars.set("messages", probe)
	vars.set("add_generation_prompt", false)
	f.systemFirst = f.systemFirst || t.execute(&out, vars, nil) != nil
	return f, nil
}

func makeDict(pairs ...any) *dict {
	d := &dict{}
	for i := 0; i < len(pairs); i += 2 {
		d.set(pairs[i].(string), pairs[i+1])
	}
	return d
}

// conversation is a chat request, of whichever API, as templates are to see it.
type conversation struct {
	messages []any
	tools    any // *list, or nil
	vars     *dict
	generate bool
	resume   bool // continue_final_message
}

// reserved are the names of apply_chat_template's own arguments, which templates do not see.
var reserved = []string{"padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}

// kwargs sets variables from chat_template_kwargs.
func (c *conversation) kwargs(v any) error {
	c.vars = &dict{}
	if v == nil {
		return nil
	}
	d, ok := v.(*dict)
	if !ok {
		return fmt.Errorf("%w: chat_template_kwargs is no object", ErrBody)
	}
	for i, k := range d.keys {
		v := d.vals[i]
		if v == nil || v == "auto" {
			continue
		}
		switch k {
		case "chat_template", "tokenize", "messages", "conversation", "conversations", "return_assistant_tokens_mask":
			return fmt.Errorf("%w: chat_template_kwargs: %s", ErrBody, k)
		case "tools", "documents", "add_generation_prompt", "continue_final_message":
			if k == "tools" || k == "documents" {
				return fmt.Errorf("%w: chat_template_kwargs: %s", ErrUnsupported, k)
			}
			continue // the request's own field, or its default, overrides it
		}
		if !slices.Contains(reserved, k) {
			c.vars.set(k, v)
		}
	}
	return nil
}

// effort sets what a wish for reasoning sets.
func (c *conversation) effort(v any) {
	if v == nil {
		return
	}
	if c.vars.find("enable_thinking") < 0 {
		c.vars.set("enable_thinking", v != "none")
	}
	c.vars.set("reasoning_effort", v)
}

// resumeTag marks where the final message ends that is to be continued.
const resumeTag = "CONTINUE_FINAL_MESSAGE_TAG "

// render returns the text of a conversation.
func (h *chat) render(c *conversation) (string, error) {
	f, err := h.format(c)
	if err != nil {
		return "", err
	}
	if len(c.messages) == 0 {
		return "", fmt.Errorf("%w: messages: empty", ErrBody)
	}
	msgs := c.messages
	if !f.developer {
		msgs = withoutDeveloper(msgs)
	}
	var final string
	if c.resume {
		if c.generate {
			return "", fmt.Errorf("%w: continue_final_message and add_generation_prompt", ErrBody)
		}
		if msgs, final, err = tagFinal(f, msgs); err != nil {
			return "", err
		}
	}
	vars := &scope{}
	for i, k := range h.special.keys {
		vars.set(k, h.special.vals[i])
	}
	for i, k := range c.vars.keys {
		vars.set(k, c.vars.vals[i])
	}
	vars.set("messages", &list{items: msgs})
	vars.set("tools", c.tools)
	if c.vars.find("documents") < 0 {
		vars.set("documents", nil)
	}
	vars.set("add_generation_prompt", c.generate)
	var out strings.Builder
	if err := f.execute(&out, vars, h.now); err != nil {
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	text := out.String()
	if c.resume {
		tag := strings.TrimSpace(resumeTag)
		at := strings.LastIndex(text, tag)
		if at < 0 || !strings.Contains(text, strings.TrimFunc(final, pySpace)) {
			return "", fmt.Errorf("%w: the final message is not in the text", ErrTemplate)
		}
		whole := strings.HasPrefix(text[at:], resumeTag)
		if text = text[:at]; !whole {
			text = strings.TrimRightFunc(text, pySpace)
		}
	}
	return text, nil
}

func (h *chat) format(c *conversation) (*format, error) {
	if h.refuse != "" {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, h.refuse)
	}
	f := h.plain
	if c.tools != nil {
		f = h.tools
	}
	if f == nil {
		return nil, fmt.Errorf("%w: the model has none", ErrTemplate)
	}
	return f, nil
}

func tagFinal(f *format, msgs []any) ([]any, string, error) {
	if !strings.Contains(f.src, "content") {
		return nil, "", fmt.Errorf("%w: it has no content to continue", ErrTemplate)
	}
	last := msgs[len(msgs)-1].(*dict).clone()
	msgs = append(slices.Clone(msgs[:len(msgs)-1]), last)
	switch content, _ := last.get("content"); content := content.(type) {
	case string:
		last.set("content", content+resumeTag)
		return msgs, content, nil
	case *list:
		parts := &list{items: slices.Clone(content.items)}
		last.set("content", parts)
		for i := len(parts.items) - 1; i >= 0; i-- {
			part, ok := parts.items[i].(*dict)
			if !ok {
				continue
			}
			if s, ok := part.get("text"); ok {
				if s, ok := s.(string); ok {
					part = part.clone()
					part.set("text", s+resumeTag)
					parts.items[i] = part
					return msgs, s, nil
				}
			}
		}
	}
	return nil, "", fmt.Errorf("%w: the final message has no text to continue", ErrBody)
}

// withoutDeveloper makes developer messages system messages, and all of those one, the first, if a template does not know
// the role.
func withoutDeveloper(msgs []any) []any {
	if !slices.ContainsFunc(msgs, func(m any) bool { return role(m) == "developer" }) {
		return msgs
	}
	var texts []string
	var others []any
	moved := false
	seen := false
	converted := make([]any, 0, len(msgs))
	for i, m := range msgs {
		d := m.(*dict)
		if role(m) == "developer" {
			d = d.clone()
			d.set("role", "system")
			d.drop("tools")
		}
		converted = append(converted, d)
		if role(d) != "system" {
			others = append(others, d)
			continue
		}
		moved = moved || i > 0 || seen
		content, _ := d.get("content")
		if l, ok := content.(*list); ok {
			var parts []string
			for _, p := range l.items {
				switch p := p.(type) {
				case string:
					parts = append(parts, p)
				case *dict:
					if s, ok := p.get("text"); ok {
						if s, ok := s.(string); ok {
							parts = append(parts, s)
						}
					}
				}
			}
			content = strings.Join(parts, "\n")
		}
		if s, _ := content.(string); s != "" {
			texts = append(texts, s)
			seen = true
		}
	}
	if !moved {
		return converted
	}
	return append([]any{makeDict("role", "system", "content", strings.Join(texts, "\n\n"))}, others...)
}

func role(m any) string {
	d, ok := m.(*dict)
	if !ok {
		return ""
	}
	r, _ := d.get("role")
	s, _ := r.(string)
	return s
}

// Whether a template wants content as a list of parts is found as vLLM finds it, from how the template is written: it does
// if it loops over a message's content.

// wantsParts reports it.
func wantsParts(body []stmt) bool {
	msgNames := []string{"messages"}
	var sets []*sSet
	var fors []*sFor
	var macros []*macroDef
	var calls []*eCall
	inMacro := map[*sFor]*macroDef{}
	var in []*macroDef
	walk(body, func(n any, enter bool) {
		if m, ok := n.(*macroDef); ok {
			if enter {
				in = append(in, m)
				macros = append(macros, m)
			} else {
				in = in[:len(in)-1]
			}
			return
		}
		if !enter {
			return
		}
		switch n := n.(type) {
		case *sSet:
			sets = append(sets, n)
		case *sFor:
			fors = append(fors, n)
			if len(in) > 0 {
				inMacro[n] = in[len(in)-1]
			}
		case *eCall:
			calls = append(calls, n)
		}
	})
	for i := 0; i < len(msgNames) && i < 100; i++ {
		for _, s := range sets {
			if reaches(s.e, msgNames[i], "") && s.target.name != "" && s.target.name != msgNames[i] {
				if !slices.Contains(msgNames, s.target.name) {
					msgNames = append(msgNames, s.target.name)
				}
			}
		}
	}
	var items []string
	for _, f := range fors {
		for _, name := range msgNames {
			if reaches(f.iter, name, "") {
				items = append(items, f.target.name)
				break
			}
		}
	}
	holdsContent := func(e expr) bool {
		return slices.ContainsFunc(items, func(name string) bool { return reaches(e, name, "content") })
	}
	params := map[*macroDef][]string{} // parameters that a message's content is handed to
	for _, m := range macros {
		for _, c := range calls {
			if n, ok := c.fn.(*eName); !ok || n.name != m.name {
				continue
			}
			for i, a := range c.args.pos {
				if i < len(m.params) && holdsContent(a) {
					params[m] = append(params[m], m.params[i])
				}
			}
			for i, name := range c.args.names {
				if slices.Contains(m.params, name) && holdsContent(c.args.named[i]) {
					params[m] = append(params[m], name)
				}
			}
		}
	}
	for _, f := range fors {
		if holdsContent(f.iter) {
			return true
		}
		n, ok := f.iter.(*eName)
		if !ok {
			continue
		}
		if m := inMacro[f]; m != nil && slices.Contains(params[m], n.name) || m == nil && n.name == "content" {
			return true
		}
	}
	return false
}

// reaches reports whether e is the variable, or its field of that name, through filters, tests and slices.
func reaches(e expr, name, key string) bool {
	switch e := e.(type) {
	case *eFilter:
		return e.obj != nil && reaches(e.obj, name, key)
	case *eTest:
		return reaches(e.obj, name, key)
	case *eSlice:
		return reaches(e.obj, name, key)
	case *eName:
		return key == "" && e.name == name
	case *eAttr:
		n, ok := e.obj.(*eName)
		return key != "" && ok && n.name == name && e.name == key
	case *eItem:
		n, ok := e.obj.(*eName)
		c, isConst := e.key.(*eConst)
		return key != "" && ok && isConst && n.name == name && c.v == key
	}
	return false
}

// walk visits all of a tree, macros and what else has parts on the way in and out.
func walk(n any, f func(n any, enter bool)) {
	many := func(es []expr) {
		for _, e := range es {
			walk(e, f)
		}
	}
	args := func(a *callArgs) {
		many(a.pos)
		many(a.named)
		walk(a.star, f)
		walk(a.starstar, f)
	}
	if n == nil {
		return
	}
	if body, ok := n.([]stmt); ok {
		for _, s := range body {
			walk(s, f)
		}
		return
	}
	f(n, true)
	switch n := n.(type) {
	case *sOutput:
		walk(n.e, f)
	case *sIf:
		many(n.tests)
		for _, b := range n.thens {
			walk(b, f)
		}
		walk(n.els, f)
	case *sFor:
		walk(n.iter, f)
		walk(n.test, f)
		walk(n.body, f)
		walk(n.els, f)
	case *sSet:
		walk(n.e, f)
	case *sSetBlock:
		if n.filter != nil {
			walk(n.filter, f)
		}
		walk(n.body, f)
	case *sMacro:
		walk(n.m, f)
	case *macroDef:
		many(n.defaults)
		walk(n.body, f)
	case *sCall:
		walk(n.call, f)
		walk(n.m.body, f)
	case *sFilter:
		walk(n.filter, f)
		walk(n.body, f)
	case *sWith:
		many(n.vals)
		walk(n.body, f)
	case *sScope:
		walk(n.body, f)
	case *eList:
		many(n.items)
	case *eDict:
		many(n.keys)
		many(n.vals)
	case *eAttr:
		walk(n.obj, f)
	case *eItem:
		walk(n.obj, f)
		walk(n.key, f)
	case *eSlice:
		walk(n.obj, f)
		walk(n.from, f)
		walk(n.to, f)
		walk(n.step, f)
	case *eCall:
		walk(n.fn, f)
		args(&n.args)
	case *eFilter:
		walk(n.obj, f)
		args(&n.args)
	case *eTest:
		walk(n.obj, f)
		args(&n.args)
	case *eUnary:
		walk(n.x, f)
	case *eBinary:
		walk(n.l, f)
		walk(n.r, f)
	case *eConcat:
		many(n.parts)
	case *eCompare:
		walk(n.first, f)
		many(n.rest)
	case *eCond:
		walk(n.test, f)
		walk(n.yes, f)
		walk(n.no, f)
	}
	f(n, false)
}
