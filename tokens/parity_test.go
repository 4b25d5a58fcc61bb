// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// The tests of parity run the real things, which `make e2e` installs: PENSTOCK_TOKENIZERS_PYTHON is a Python with the
// packages of scripts/install-tokenizers.sh, PENSTOCK_VLLM_PYTHON that of scripts/install-vllm.sh.

// python runs a script of e2e/tokens.
func python(t *testing.T, env, script string, args ...string) {
	t.Helper()
	program := os.Getenv(env)
	if program == "" {
		t.Skip(env + " is not set: make e2e sets it")
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{filepath.Join("..", "e2e", "tokens", script)}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out[max(0, len(out)-4000):])
	}
}

// parityTexts is on how many texts each tokenizer is compared.
const parityTexts = 10500

// TestParityFamilies encodes the same texts as the tokenizers package, with a tokenizer of each family and with vocabularies
// that packages carry.
func TestParityFamilies(t *testing.T) {
	dir := t.TempDir()
	python(t, "PENSTOCK_TOKENIZERS_PYTHON", "families.py", dir, strconv.Itoa(parityTexts))
	var texts []string
	readJSON(t, filepath.Join(dir, "texts.json"), &texts)
	if len(texts) < 10000 {
		t.Fatalf("%d texts are too few", len(texts))
	}
	names, err := filepath.Glob(filepath.Join(dir, "*", "ids.json"))
	if err != nil || len(names) < 30 {
		t.Fatalf("%d families, %v", len(names), err)
	}
	for _, file := range names {
		folder := filepath.Dir(file)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			var want [][2][]uint32
			readJSON(t, file, &want)
			m, err := Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			start, size, bad := time.Now(), 0, 0
			for i, text := range texts {
				for k, special := range []bool{false, true} {
					size += len(text)
					got, err := m.tok.encode(nil, text, special)
					if err == nil && slices.Equal(got, want[i][k]) {
						continue
					}
					if bad++; bad < 5 {
						t.Errorf("%q, special tokens %v: got %v, %v, want %v", text, special, got, err, want[i][k])
					}
				}
			}
			t.Logf("%d texts, %d differ, %.1f MB/s", len(texts), bad, float64(size)/1e6/time.Since(start).Seconds())
		})
	}
}

// TestParityUnicode asks the tokenizers package about every character, and normalizes each.
func TestParityUnicode(t *testing.T) {
	dir := t.TempDir()
	classes, normalized := filepath.Join(dir, "categories.bin"), filepath.Join(dir, "normalized.json")
	python(t, "PENSTOCK_TOKENIZERS_PYTHON", "unicode.py", classes, normalized)
	if got, err := os.ReadFile(classes); err != nil || !bytes.Equal(got, categoriesBin) {
		t.Errorf("tokens/categories.bin is not what e2e/tokens/unicode.py makes: %v", err)
	}
	var want map[string]map[string]string
	readJSON(t, normalized, &want)
	for name, changed := range want {
		n, err := readNormalizers(nil, []byte(`{"type":"`+name+`"}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		tail := "\u0323\u0301"
		if name == "Strip" || name == "StripAccents" || name == "BertNormalizer" {
			tail = "b"
		}
		bad := 0
		for r := rune(0); r < 0x110000; r++ {
			if r >= 0xd800 && r < 0xe000 {
				continue
			}
			text := string(r) + tail
			w, ok := changed[strconv.Itoa(int(r))]
			if !ok {
				w = text
			}
			if got, _, err := n[0](new(matcher), text); err != nil || got != w {
				if bad++; bad < 5 {
					t.Errorf("%s of %q: got %q, %v, want %q", name, text, got, err, w)
				}
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d characters differ", name, bad)
		}
	}
}

// TestParityJinja holds testdata/jinja.json to Jinja.
func TestParityJinja(t *testing.T) {
	again(t, "PENSTOCK_TOKENIZERS_PYTHON", "jinja.py", "jinja.json")
}

// TestParityChats holds testdata/chats.json to vLLM.
func TestParityChats(t *testing.T) {
	again(t, "PENSTOCK_VLLM_PYTHON", "chats.py", "chats.json")
}

// again makes a file of testdata anew.
func again(t *testing.T, env, script, name string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	python(t, env, script, path)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("tokens/testdata/%s is not what e2e/tokens/%s makes: run it with that path", name, script)
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
