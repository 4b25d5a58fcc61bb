// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/tokens"
)

// models are the tokenizers that configurations name, kept while their files are as they were: to read one takes a moment.
type models struct {
	mu   sync.Mutex
	open map[string]openModel
}

type openModel struct {
	*tokens.Model
	stamp string
}

// get opens a model's folder, unless it is open.
func (m *models) get(path string) (*tokens.Model, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stamp := stampOf(path)
	if o, ok := m.open[path]; ok && o.stamp == stamp {
		return o.Model, stamp, nil
	}
	model, err := tokens.Open(path)
	if err != nil {
		return nil, "", err
	}
	if m.open == nil {
		m.open = map[string]openModel{}
	}
	m.open[path] = openModel{model, stamp}
	return model, stamp, nil
}

// stampOf changes when a model's files do.
func stampOf(path string) string {
	stamp := ""
	add := func(name string, info os.FileInfo, err error) {
		if err == nil && !info.IsDir() {
			stamp += fmt.Sprintf("%s %d %s;", name, info.Size(), info.ModTime().Format(time.RFC3339Nano))
		}
	}
	info, err := os.Stat(path)
	add("", info, err)
	for _, dir := range []string{"", "additional_chat_templates"} {
		files, _ := os.ReadDir(filepath.Join(path, dir)) // in order; of all, for what makes a tokenizer is many files' business
		for _, file := range files {
			if ext := filepath.Ext(file.Name()); ext == ".json" || ext == ".jinja" || strings.HasPrefix(file.Name(), "tokenizer.model") {
				name := filepath.Join(dir, file.Name())
				info, err := os.Stat(filepath.Join(path, name)) // of what a link points to
				add(name, info, err)
			}
		}
	}
	return stamp
}

// tokenizer gives a token-producer what reads prompts for it.
func (b *planner) tokenizer(p *policy.TokenProducer) error {
	switch {
	case p.Simulated:
		p.Use("simulated", simulatedTokens{})
	case p.Local != nil:
		open := b.models
		if open == nil {
			open = &models{}
		}
		m, stamp, err := open.get(p.Local.Path)
		if err != nil {
			return fmt.Errorf("local.path: %w", err)
		}
		fmt.Fprintln(&b.from, stamp)
		p.Use("local", &localTokens{model: m})
	case p.VLLM != nil:
		url, timeout := p.VLLM.Options()
		p.Use("vllm", remoteTokens{tokens.NewRemote(url, tokens.RemoteOptions{Timeout: timeout[0], MediaTimeout: timeout[1], Model: p.ModelName})})
	}
	return nil
}

// simulatedTokens reads prompts as simulated engines do.
type simulatedTokens struct{}

// Tokenize implements [policy.Tokenizing].
func (simulatedTokens) Tokenize(c *sched.Cycle, body []byte) (err error) {
	if c.Prompts.IDs, c.Prompts.Starts, err = vllm.Tokenize(c.API, body, c.Prompts.IDs, c.Prompts.Starts); err != nil {
		return &policy.Untold{Why: "body", Err: err}
	}
	return nil
}

// localTokens reads prompts with the model's own tokenizer and chat template.
type localTokens struct {
	model *tokens.Model
}

// Tokenize implements [policy.Tokenizing].
func (t *localTokens) Tokenize(c *sched.Cycle, body []byte) error {
	p := tokens.Prompts{IDs: c.Prompts.IDs[:0], Starts: c.Prompts.Starts[:0]}
	err := t.model.Read(c.API, body, &p)
	c.Prompts.IDs, c.Prompts.Starts = p.IDs, p.Starts
	return untold(err)
}

// remoteTokens asks a vLLM server for them.
type remoteTokens struct{ *tokens.Remote }

// Tokenize implements [policy.Tokenizing].
func (t remoteTokens) Tokenize(c *sched.Cycle, body []byte) error {
	ctx := c.Context
	if ctx == nil {
		ctx = context.Background()
	}
	p := tokens.Prompts{IDs: c.Prompts.IDs[:0], Starts: c.Prompts.Starts[:0]}
	err := t.Read(ctx, c.API, body, &p)
	c.Prompts.IDs, c.Prompts.Starts = p.IDs, p.Starts
	if err != nil {
		return untold(err)
	}
	for _, m := range p.Media {
		c.Prompts.Media = append(c.Prompts.Media, sched.MediaTokens{At: int(p.Starts[m.Prompt] + m.At), Len: int(m.Len), Hash: m.Hash})
	}
	slices.SortFunc(c.Prompts.Media, func(a, b sched.MediaTokens) int { return a.At - b.At })
	return nil
}

// untold says in a word why a tokenizer did not tell.
func untold(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range []struct {
		is  error
		why string
	}{{tokens.ErrMedia, "media"}, {tokens.ErrUnsupported, "unsupported"}, {tokens.ErrTemplate, "template"}, {tokens.ErrBody, "body"}, {tokens.ErrService, "service"}} {
		if errors.Is(err, k.is) {
			return &policy.Untold{Why: k.why, Err: err}
		}
	}
	return &policy.Untold{Why: "error", Err: err}
}
