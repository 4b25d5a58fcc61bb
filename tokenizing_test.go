// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/vllm"
)

// produced runs a token-producer on a request.
func produced(t *testing.T, params, api, body string) *sched.Cycle {
	t.Helper()
	b := &planner{built: map[string]any{}}
	v, err := policy.Producers.New("token-producer", func(v any) error { return json.Unmarshal([]byte(params), v) })
	if err != nil {
		t.Fatal(err)
	}
	p := v.(*policy.TokenProducer)
	if err := b.tokenizer(p); err != nil {
		t.Fatal(err)
	}
	c := &sched.Cycle{Context: context.Background(), API: api, Model: "m"}
	c.Body = textBody(body)
	c.Prompt = func(h *kvcache.Hasher) {
		h.Start()
		h.Write([]byte(body))
	}
	c.Begin(nil)
	p.Produce(c)
	return c
}

const aChat = `{"model":"m","messages":[{"role":"user","content":"Which way does the water go?"}]}`

func TestTokenizers(t *testing.T) {
	t.Run("simulated", func(t *testing.T) {
		c := produced(t, `{"simulated": true}`, "chat", aChat)
		want, _, err := vllm.Tokenize("chat", []byte(aChat), nil, nil)
		if err != nil || !slices.Equal(c.Prompts.IDs, want) || c.Tokenizer != "simulated" || c.Tokens != int64(len(want)) {
			t.Errorf("%s: %d ids of %d, %v", c.Tokenizer, len(c.Prompts.IDs), len(want), err)
		}
	})
	t.Run("vllm", func(t *testing.T) {
		o := vllm.DefaultOptions()
		o.Models = []string{"m"}
		e, err := vllm.New(o)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(e.Handler())
		defer s.Close()
		c := produced(t, `{"vllm": {"url": "`+s.URL+`"}}`, "chat", aChat)
		want, _, _ := vllm.Tokenize("chat", []byte(aChat), nil, nil)
		if !slices.Equal(c.Prompts.IDs, want) || c.Tokenizer != "vllm" {
			t.Errorf("%s, for %s: %v, want %v", c.Tokenizer, c.Untold, c.Prompts.IDs, want)
		}
	})
	t.Run("vllm that is down", func(t *testing.T) {
		s := httptest.NewServer(http.NotFoundHandler())
		s.Close()
		c := produced(t, `{"vllm": {"url": "`+s.URL+`"}}`, "chat", aChat)
		if c.Tokenized() || c.Tokenizer != "estimate" || c.Untold != "service" || c.Tokens == 0 {
			t.Errorf("%q for %q, %d tokens: want an estimate for service", c.Tokenizer, c.Untold, c.Tokens)
		}
	})
	t.Run("a body that no engine takes", func(t *testing.T) {
		c := produced(t, `{"simulated": true}`, "chat", `{"messages": 7}`)
		if c.Tokenized() || c.Untold != "body" || c.Tokens == 0 {
			t.Errorf("%q for %q, %d tokens: want an estimate for body", c.Tokenizer, c.Untold, c.Tokens)
		}
	})
	t.Run("no folder", func(t *testing.T) {
		b := &planner{built: map[string]any{}}
		err := b.tokenizer(&policy.TokenProducer{Local: &policy.LocalTokenizer{Path: filepath.Join(t.TempDir(), "gone")}})
		if err == nil || !strings.Contains(err.Error(), "local.path: ") || !strings.Contains(err.Error(), "gone") {
			t.Errorf("got %v", err)
		}
	})
}

// A tokenizer is read once, and again when its file changes.
func TestTokenizerIsKept(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}`)
	var m models
	first, stamp, err := m.get(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := m.get(dir); err != nil || again != first {
		t.Errorf("read again without need: %v", err)
	}
	write(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}}`)
	if changed, other, err := m.get(dir); err != nil || changed == first || other == stamp {
		t.Errorf("not read when it changed: %v", err)
	}
}

type textBody string

// Append implements [sched.Body].
func (b textBody) Append(into []byte) []byte { return append(into, b...) }
