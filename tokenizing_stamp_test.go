// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"os"
	"path/filepath"
	"testing"
)

// A model is read again when any file changes that makes its tokens.
func TestStampOfModel(t *testing.T) {
	dir := t.TempDir()
	last := stampOf(dir)
	for _, name := range []string{"tokenizer.json", "config.json", "preprocessor_config.json", "tekken.json", "additional_chat_templates/tool_use.jinja"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		now := stampOf(dir)
		if now == last {
			t.Errorf("%s changes nothing", name)
		}
		last = now
	}
	if one := stampOf(filepath.Join(dir, "tokenizer.json")); one == "" {
		t.Error("a file alone has no stamp")
	}
}
