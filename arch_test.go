// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock-project/penstock"

// rooms is the import table: which of our packages each room may import. What is not listed may not
// be imported. Change it here, with the reason.
var rooms = map[string][]string{
	"":                {"*"}, // the root wires everything
	"cmd/penstock":    {""},
	"bench/floor":     {},
	"api":             {},
	"api/v1":          {}, // what an API server holds; package api is what config reads
	"api/v1alpha2":    {"api/v1"},
	"plugin":          {},
	"config":          {"api", "plugin"},
	"clock":           {},
	"fleet":           {"clock"},
	"source/dns":      {"fleet"}, // stands before the store: names become addresses
	"source/file":     {"fleet"},
	"source/kube":     {"api/v1", "fleet"}, // objects go to the root as documents: it knows nothing of configurations
	"source/kvevents": {"fleet"},
	"source/scrape":   {"fleet", "plugin"}, // sources and extractors are plugins of a configuration
	"kvcache":         {},
	"request":         {},
	"tokens":          {}, // it is given bodies, not requests, so that simulations and tools may use it
	"route":           {"fleet"},
	"flow":            {"clock", "fleet"},
	"flow/policy":     {"api", "fleet", "flow", "plugin", "sched"}, // detectors are filters, too
	"sched":           {"clock", "fleet", "kvcache"},
	"sched/policy":    {"clock", "fleet", "kvcache", "plugin", "sched"},
	"observe":         {"fleet"},
	"gateway":         {"fleet", "flow", "observe", "request", "route", "sched", "kvcache"}, // only it knows the order of the stages
	"gateway/extproc": {"gateway", "gateway/wire", "observe", "request"},
	"gateway/proxy":   {"fleet", "gateway", "observe", "request"}, // it dials fleet's endpoints
	"gateway/wire":    {},                                         // a transport: it knows of streams and bytes, not of what they mean
	"sim/engine":      {},
	"sim/vllm":        {"sim/engine", "source/kvevents"}, // its engines publish in the very form that the source reads
	"sim/work":        {"plugin"},                        // names that were meant
	"sim/report":      {},                                // it is told everything: who measures imports it
	"sim/kind":        {"sim/engine"},
	"sim/run":         {"clock", "fleet", "flow", "kvcache", "route", "sched", "sim/engine", "sim/kind", "sim/report", "sim/work"}, // the gateway's order in virtual time
	"sim/replay":      {"fleet", "observe", "sched"},                                                                               // records are observe's
	"sim/fit":         {"sim/engine", "sim/load"},
	"sim/load":        {"request"}, // an answer is read by the gateway's own reader
	"sim/bench":       {"request", "sim/load", "sim/report", "sim/work"},
}

// owners are the rooms that alone may import a dependency, by its path's start; the longest counts.
var owners = map[string][]string{
	"k8s.io/":                       {"source/kube"},
	"k8s.io/apimachinery/":          {"api/v1", "api/v1alpha2", "source/kube"},
	"sigs.k8s.io/":                  {"source/kube"},
	"github.com/go-logr/":           {"source/kube"}, // what client-go logs by
	"github.com/envoyproxy/":        {"gateway/extproc"},
	"google.golang.org/grpc":        {"gateway/extproc"},
	"google.golang.org/protobuf":    {"gateway/extproc"},
	"github.com/prometheus/":        {"observe"},
	"go.opentelemetry.io/":          {"observe"},
	"go.yaml.in/yaml/":              {"api", "config", "sim/kind"},
	"github.com/klauspost/compress": {"request"},
	"github.com/andybalholm/brotli": {"request"},
	"github.com/fsnotify/fsnotify":  {"source/file"},
	"github.com/tinylib/msgp":       {"source/kvevents"},
	"golang.org/x/text":             {"tokens"},
	"github.com/cespare/xxhash":     {"kvcache", "request", "sim/engine", "sim/vllm"},
	"github.com/google/uuid":        {"gateway"},
	"github.com/spf13/pflag":        {"", "sim/vllm"},
	"golang.org/x/net/http2":        {"gateway/proxy", "gateway/wire"}, // wire: frame numbers and HPACK
}

// misnamed are packages whose name is not the end of their path, or a version that others have, too, or that of a standard
// package; only they may be given another.
var misnamed = map[string]bool{
	"go.opentelemetry.io/otel/sdk/trace":                 true,
	"github.com/prometheus/client_model/go":              true,
	"sigs.k8s.io/gateway-api-inference-extension/api/v1": true, "k8s.io/api/coordination/v1": true, "k8s.io/api/core/v1": true, "k8s.io/api/discovery/v1": true, "k8s.io/apimachinery/pkg/apis/meta/v1": true, "k8s.io/apimachinery/pkg/api/errors": true,
	"k8s.io/api/authentication/v1": true, "k8s.io/api/authorization/v1": true,
}

// goFiles yields the module's Go files, those of other modules and of testdata left out.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, modErr := os.Stat(filepath.Join(path, "go.mod"))
			if path != "." && (modErr == nil || d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range goFiles(t) {
		room := filepath.ToSlash(filepath.Dir(file))
		if room == "." {
			room = ""
		}
		seen[room] = true
		allowed, ok := rooms[room]
		if !ok {
			t.Errorf("%s: room %q is not in the import table of arch_test.go", file, room)
			continue
		}
		test := strings.HasSuffix(file, "_test.go")
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			if spec.Name != nil && spec.Name.Name != "_" && !test && !misnamed[path] {
				t.Errorf("%s: import of %s needs no other name", file, path)
			}
			if test {
				continue
			}
			if in, ours := strings.CutPrefix(path, module); ours {
				in = strings.TrimPrefix(in, "/")
				if !slices.Contains(allowed, "*") && !slices.Contains(allowed, in) {
					t.Errorf("%s: %q may not import %q", file, room, in)
				}
				continue
			}
			owner := ""
			for dep := range owners {
				if strings.HasPrefix(path, dep) && len(dep) > len(owner) {
					owner = dep
				}
			}
			if by := owners[owner]; owner != "" && !slices.Contains(by, room) {
				t.Errorf("%s: only %v may import %s", file, by, path)
			}
		}
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("room %q of the import table has no files", room)
		}
	}
}

func TestHouse(t *testing.T) {
	for _, file := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(file))
		if strings.Count(dir, "/") > 1 {
			t.Errorf("%s: nothing lies deeper than two folders", file)
		}
		for _, bad := range []string{"util", "utils", "common", "types", "manager", "helpers", "pkg", "internal"} {
			if slices.Contains(strings.Split(dir, "/"), bad) {
				t.Errorf("%s: no room is called %s", file, bad)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		generated := "//go:build !ignore_autogenerated\n\n" // controller-gen's first line
		if !strings.HasPrefix(strings.TrimPrefix(string(text), generated), "// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s: does not begin with its SPDX line", file)
		}
	}
}
