// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/config"
)

var update = flag.Bool("update", false, "rewrite the files that tests compare with")

// markdown yields the project's own documents.
func markdown(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestReference holds docs/reference against the code that it is made from.
func TestReference(t *testing.T) {
	for name, render := range map[string]func() (string, error){
		"plugins.md": referencePlugins, "commands.md": referenceCommands, "penstock.md": referencePenstock, "metrics.md": referenceMetrics, "flow-control.md": referenceFlowControl,
		"workloads.md": referenceWorkloads,
	} {
		want, err := render()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("docs", "reference", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what the code says (%v); run make golden and read the diff", path, err)
		}
	}
}

// TestEveryActivePluginIsDocumented wants a comment at each plugin and each of its parameters.
func TestEveryActivePluginIsDocumented(t *testing.T) {
	text, err := referencePlugins()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "| `") && strings.HasSuffix(line, "|  |") {
			t.Errorf("a parameter has no comment: %s", line)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

// TestLinks follows each link to a file of ours.
func TestLinks(t *testing.T) {
	for _, path := range markdown(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: link to %s leads nowhere", path, m[1])
			}
		}
	}
}

var manifest = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestManifestsInDocs loads each YAML example, as an operator would.
func TestManifestsInDocs(t *testing.T) {
	for _, path := range markdown(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range manifest.FindAllSubmatch(text, -1) {
			if !bytes.Contains(m[1], []byte("kind:")) {
				continue
			}
			cfg, problems := config.Text(path, string(m[1]), options(""))
			if cfg == nil {
				t.Errorf("%s: an example does not load: %v", path, config.Problems(problems))
			}
		}
	}
}

// TestRoomsAreInTheReadme wants each room of the import table in the README's.
func TestRoomsAreInTheReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for room := range rooms {
		if room != "" && !strings.HasPrefix(room, "bench") && room != "cmd/penstock" && !bytes.Contains(text, []byte("`"+room+"`")) {
			t.Errorf("the table of rooms in README.md lacks %s", room)
		}
	}
}
