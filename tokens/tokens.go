// SPDX-License-Identifier: Apache-2.0

// Package tokens answers what the engine will read: the token ids of a request's prompts, made in this process as vLLM
// makes them, from the model's own tokenizer.json and chat template.
//
// [Model.Read] is all that a request needs. Its answers are exact or they are errors: where vLLM would do what is not
// done here, for media or for features whose prompts only the engine can make, one of the four errors below says so, and the
// caller falls back to an estimate. docs/design/0008-tokens.md has the choices.
package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"
)

// The reasons for which a request's tokens are not told. Errors of [Model.Read] and [Remote.Read] wrap one of them, or
// [ErrService].
var (
	// ErrMedia says that the request has images, audio or video: what stands for them only the engine's processor knows.
	ErrMedia = errors.New("tokens: media")
	// ErrUnsupported says that the prompt depends on what is not in the request or not known here, such as prompt_embeds or
	// an earlier response.
	ErrUnsupported = errors.New("tokens: not supported")
	// ErrTemplate says that there is no chat template, or that it refused the request or failed.
	ErrTemplate = errors.New("tokens: chat template")
	// ErrBody says that the engine will refuse the body.
	ErrBody = errors.New("tokens: body")
)

// Prompts are the prompts of one request, one after another. Its memory is reused by [Prompts.Reset].
type Prompts struct {
	// IDs are the token ids of all prompts.
	IDs []uint32
	// Starts are the indexes in IDs at which the prompts begin.
	Starts []int32
	// Media are the items that stand for media, in no order, if the reader was told of any.
	Media []Item
}

// Item is a stretch of a prompt that stands for an image, a video or audio.
type Item struct {
	// Prompt is the index of the prompt in Starts.
	Prompt int
	// At and Len are the stretch, in tokens from the prompt's start.
	At, Len int32
	// Hash is the engine's name for the content.
	Hash string
}

// Reset empties p and keeps its memory.
func (p *Prompts) Reset() { p.IDs, p.Starts, p.Media = p.IDs[:0], p.Starts[:0], p.Media[:0] }

// Prompt returns the ids of the i-th prompt.
func (p *Prompts) Prompt(i int) []uint32 {
	end := len(p.IDs)
	if i+1 < len(p.Starts) {
		end = int(p.Starts[i+1])
	}
	return p.IDs[p.Starts[i]:end]
}

func (p *Prompts) next() { p.Starts = append(p.Starts, int32(len(p.IDs))) }

// Model is the tokenizer and the chat template of one model, as engines use them. It is safe for concurrent use.
type Model struct {
	tok  *tokenizer
	chat *chat
}

const (
	maxFile     = 256 << 20
	maxTemplate = 4 << 20
)

// Open reads a model's folder, laid out as on the hub: tokenizer.json, and if they are there tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja (or .json, or the folder additional_chat_templates) and config.json. The
// path may also be that of a tokenizer.json, then without a chat template. An error names the file and what is wrong with
// it; one that uses what is not known here is an error, too, for tokens that are nearly right are wrong.
func Open(folder string) (*Model, error) {
	file := folder
	info, err := os.Stat(folder)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		file = filepath.Join(folder, "tokenizer.json")
	} else {
		folder = ""
	}
	data, err := readFile(file, maxFile)
	if err != nil {
		return nil, err
	}
	m := new(Model)
	config, err := readConfig(folder)
	if err != nil {
		return nil, err
	}
	if m.tok, err = readTokenizer(data, config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if m.chat, err = readChat(folder, config); err != nil {
		return nil, err
	}
	return m, nil
}

func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes are more than %d", path, info.Size(), limit)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s: is not UTF-8", path)
	}
	return data, nil
}

// config is what tokenizer_config.json and special_tokens_map.json say.
type config struct {
	Class          string                `json:"tokenizer_class"`
	Legacy         bool                  `json:"legacy"`
	AddPrefixSpace *bool                 `json:"add_prefix_space"`
	Added          map[string]addedToken `json:"added_tokens_decoder"`
	Template       json.RawMessage       `json:"chat_template"`
	SplitSpecial   bool                  `json:"split_special_tokens"`
	TruncationSide string                `json:"truncation_side"`
	special        *dict                 // bos_token and so on, as templates see them
	modelType      string
	folder         string
}

// specialNames are the named special tokens, in the order in which transformers adds them.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// bare is the config of a folder without any.
func bare() *config { return &config{special: new(dict)} }

// readConfig reads a folder's files about its tokenizer; any may be missing.
func readConfig(folder string) (*config, error) {
	c := bare()
	c.folder = folder
	if folder == "" {
		return c, nil
	}
	named := new(dict)
	for _, name := range []string{"special_tokens_map.json", "tokenizer_config.json"} {
		path := filepath.Join(folder, name)
		data, err := readFile(path, maxFile)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if name == "tokenizer_config.json" {
			if err := json.Unmarshal(data, c); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		v, err := parseJSON(string(data))
		d, ok := v.(*dict)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: no JSON object: %v", path, err)
		}
		for _, key := range specialNames {
			switch v, _ := d.get(key); v := v.(type) {
			case string:
				named.set(key, v)
			case *dict:
				if content, ok := v.get("content"); ok {
					named.set(key, content)
				}
			}
		}
	}
	for _, key := range specialNames {
		if v, ok := named.get(key); ok {
			c.special.set(key, v)
		}
	}
	if data, err := readFile(filepath.Join(folder, "config.json"), maxFile); err == nil {
		var j struct {
			Type string `json:"model_type"`
		}
		if err := json.Unmarshal(data, &j); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(folder, "config.json"), err)
		}
		c.modelType = j.Type
	}
	return c, nil
}

func (c *config) scheme() string {
	switch {
	case !truth(c.AddPrefixSpace, true):
		return "never"
	case c.Legacy:
		return "always"
	}
	return "first"
}

// more adds to a file's added tokens those that the folder's other files name. A class that makes the tokenizer anew knows
// only the latter, if there are any.
func (c *config) more(list []addedToken) []addedToken {
	if len(c.Added) > 0 && remade[c.class()] {
		list = nil
	}
	known := map[string]bool{}
	for _, a := range list {
		known[a.Content] = true
	}
	ids := make([]int, 0, len(c.Added))
	for id := range c.Added {
		n, err := strconv.Atoi(id)
		if err == nil {
			ids = append(ids, n)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		a := c.Added[strconv.Itoa(id)]
		if !known[a.Content] {
			known[a.Content] = true
			list = append(list, a)
		}
	}
	no := false
	for _, v := range c.special.vals {
		if s, ok := v.(string); ok && !known[s] {
			known[s] = true
			list = append(list, addedToken{Content: s, Special: true, Normalized: &no})
		}
	}
	return list
}
