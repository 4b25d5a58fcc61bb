// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestConstants works one kind out by hand: 70.6e9 parameters in BF16 on four H100.
func TestConstants(t *testing.T) {
	k, ok := Find("h100-70b-tp4")
	if !ok {
		t.Fatal("no such kind")
	}
	c := k.Config
	// 4 · (0.9 · 80 - 3) GB - 141.2 GB = 134.8 GB; a token has 2 · 80 · 8 · 128 · 2 bytes = 327,680; blocks of 64.
	if c.NumBlocks != 6427 {
		t.Errorf("%d blocks", c.NumBlocks)
	}
	// 141.2 GB / (4 · 3.35 TB/s · 0.8) = 13.17 ms, and 2.5 ms.
	if c.Timing.Base != 15670*time.Microsecond {
		t.Errorf("a step takes %v", c.Timing.Base)
	}
	// 2 · 70.6e9 / (4 · 989e12 · 0.6) = 59.49 µs.
	if got := c.Timing.PerPrefillToken.Round(10 * time.Nanosecond); got != 59490*time.Nanosecond {
		t.Errorf("a token takes %v", got)
	}
	// 327,680 / (4 · 3.35e12 · 0.8) = 30.6 ns.
	if c.Timing.PerKVToken != 30 {
		t.Errorf("a token of context takes %v", c.Timing.PerKVToken)
	}
	// 4 · 80 · 8192 · 1e6 / (4 · 989e12 · 0.6) = 1.104 ms.
	if got := c.Timing.PerMPairs.Round(time.Microsecond); got != 1104*time.Microsecond {
		t.Errorf("a million pairs take %v", got)
	}
}

func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds {
		if err := k.Config.Validate(); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if k.Doc == "" || len(k.Sources) == 0 || seen[k.Name] {
			t.Errorf("%s: want a name of its own, a sentence and sources", k.Name)
		}
		seen[k.Name] = true
	}
	k, ok := Find(Default)
	if !ok || k.Config.BlockSize*k.Config.NumBlocks < 200_000 {
		t.Error("want the default kind to hold the longest prompts of the published traces")
	}
}

func TestFleet(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "- {kind: L4-8B, count: 2, labels: {zone: a}, overrides: {num-blocks: 50, speed: 2}}\n- kind: H100-8B\n")
	for _, x := range []struct {
		spec string
		want int
	}{{"8", 8}, {"H100-8B", 1}, {"4xH100-70B-TP4,4xL4-8B", 8}, {"2xcpu-tiny, l4-8b", 3}, {good, 3}} {
		list, err := Fleet(x.spec)
		if err != nil || len(list) != x.want {
			t.Errorf("%s: got %d endpoints, %v, want %d", x.spec, len(list), err, x.want)
		}
	}
	list, err := Fleet(good)
	if err != nil {
		t.Fatal(err)
	}
	l4, _ := Find("L4-8B")
	if e := list[0]; e.Labels["zone"] != "a" || e.Config.NumBlocks != 50 || e.Config.Timing.Base != l4.Config.Timing.Base/2 || list[2].Kind != "H100-8B" {
		t.Errorf("got %+v", list)
	}
	for _, x := range []struct{ spec, want string }{
		{"0", "0: want 1 to 4096 endpoints"},
		{"-3", "-3: want 1 to 4096 endpoints"},
		{"99999", "99999: want 1 to 4096 endpoints"},
		{"2xH1000", `"2xH1000": no kind is named "H1000": want NUMBERxKIND with a kind of H100-70B-TP4,`},
		{"0xL4-8B", `"0xL4-8B": want 1 to 4096 endpoints`},
		{"4096xL4-8B,L4-8B", "4097 endpoints: want 1 to 4096"},
		{"nowhere.yaml", "open nowhere.yaml: no such file or directory"},
		{write("a.yaml", "kind: L4-8B\n"), "a.yaml: want a list of {kind, count, labels, overrides}"},
		{write("b.yaml", "- kind: L4-8B\n- kind: L5\n"), `b.yaml:2: no kind is named "L5"`},
		{write("c.yaml", "- kind: L4-8B\n  count: 0\n"), "c.yaml:1: count: 0: want 1 to 4096"},
		{write("d.yaml", "- kind: L4-8B\n\n- kind: L4-8B\n  colour: red\n"), "d.yaml:3: field colour is not known"},
		{write("e.yaml", "- kind: L4-8B\n  overrides: {num-blocks: -1}\n"), "e.yaml:1: overrides: number of blocks: must be above 0, is -1"},
		{write("f.yaml", "[]"), "f.yaml: 0 endpoints: want 1 to 4096"},
	} {
		if _, err := Fleet(x.spec); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got %v, want %s", x.spec, err, x.want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("- {kind: L4-8B, count: 2, labels: {zone: a}, overrides: {num-blocks: 50, speed: 2}}"))
	f.Add([]byte("- kind: L4-8B\n  colour: red\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := File("fleet.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fleet.yaml:") {
				t.Errorf("%v: want the file's name", err)
			}
			return
		}
		if len(list) < 1 || len(list) > Most {
			t.Errorf("%d endpoints", len(list))
		}
		for i := range list {
			if err := list[i].Config.Validate(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBatch wants the batches that vLLM 0.32 allows a server by default, by accelerator.
func TestBatch(t *testing.T) {
	for name, want := range map[string][2]int{"H100-70B-TP4": {1024, 8192}, "H200-70B-TP2": {1024, 8192}, "B200-70B-TP2": {1024, 16384}, "A100-8B": {256, 2048}, "L4-8B": {256, 2048}} {
		k, _ := Find(name)
		if got := [2]int{k.Config.MaxNumSeqs, k.Config.MaxNumBatchedTokens}; got != want {
			t.Errorf("%s: got %v sequences and tokens, want %v", name, got, want)
		}
	}
}
