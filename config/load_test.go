// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const pool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: e, port: {number: 9002}}}
`

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	// A ConfigMap as Kubernetes mounts it: the names are links into ..data.
	write(t, dir+"/..2026/pool.yaml", pool)
	if err := os.Symlink("..2026", dir+"/..data"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/pool.yaml", dir+"/pool.yaml"); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/endpoints.json", `{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 1}]}`)
	write(t, dir+"/picker.yml", fieldsDefault)
	for _, ignored := range []string{".hidden.yaml", ".pool.yaml.swp", "#pool.yaml#", "pool.yaml~", "README.md", "4913", "sub/pool.yaml"} {
		write(t, dir+"/"+ignored, "nonsense: [")
	}
	cfg, ps := Load([]string{dir, dir + "/pool.yaml"}, testOptions())
	if cfg == nil || slices.ContainsFunc(ps, func(p Problem) bool { return p.Severity > Note }) {
		t.Fatal(Problems(ps))
	}
	want := []string{dir + "/endpoints.json", dir + "/picker.yml", dir + "/pool.yaml"}
	if !slices.Equal(cfg.Files, want) || !slices.Equal(cfg.Folders, []string{dir}) {
		t.Errorf("got %v in %v, want %v", cfg.Files, cfg.Folders, want)
	}
	if len(cfg.Pools) != 1 || len(cfg.Endpoints) != 1 || cfg.Pools[0].Picker != cfg.Pickers[0] {
		t.Errorf("got %s", dump(cfg))
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/big.yaml", "#"+strings.Repeat(" ", maxFile))
	write(t, dir+"/endpoints.yaml", "endpoints:\n"+strings.Repeat("# "+strings.Repeat("-", 2000)+"\n", maxEndpoints/2000))
	if err := os.Symlink("nowhere", dir+"/gone.yaml"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	empty := t.TempDir()
	status := Check(&b, []string{dir, dir + "/missing.yaml", empty}, testOptions())
	want := strings.Join([]string{
		dir + "/big.yaml: is larger than 4 MiB",
		dir + "/endpoints.yaml: is larger than 1 MiB",
		dir + "/gone.yaml: no such file or directory",
		dir + "/missing.yaml: no such file or directory",
		empty + ": warning: holds no *.yaml, *.yml or *.json file",
		"5 files, 1 document: 4 errors, 1 warning", "",
	}, "\n")
	if b.String() != want || status != 1 {
		t.Errorf("got %d\n%s\nwant\n%s", status, b.String(), want)
	}
	if cfg, ps := Load([]string{dir}, testOptions()); cfg != nil || !Failed(ps) {
		t.Errorf("got %v %v", cfg, ps)
	}
}

// What a YAML file can do to whoever reads it is bounded.
func TestHostile(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	merge := "m0: &m0 {a: 1}\n"
	for i := 1; i < 10; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
		merge += fmt.Sprintf("m%d: &m%d {<<: [%s*m%d], b%d: 1}\n", i, i, strings.Repeat(fmt.Sprintf("*m%d, ", i-1), 9), i-1, i)
	}
	deep := "&d0 1"
	for i := 1; i <= 11; i++ {
		deep += fmt.Sprintf(", &d%d %s*d%d%s", i, strings.Repeat("[", 10), i-1, strings.Repeat("]", 10))
	}
	for _, c := range []struct{ name, text, want string }{
		{"alias bomb", "kind: Pod\napiVersion: v1\n" + bomb, "holds more than 1048576 values"},
		{"merge bomb", "kind: Pod\napiVersion: v1\n" + merge, "holds more than 1048576 values"},
		{"cycle", "kind: Pod\napiVersion: v1\nspec: &s {a: *s}\n", "*s refers to itself"},
		{"merged cycle", "kind: Pod\napiVersion: v1\nspec: &s\n  <<: *s\n", "*s refers to itself"},
		{"deep by aliases", "[" + deep + "]", "nested more than 100 levels"},
		{"deep", "kind: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested more than 100 levels"},
		{"deeper", strings.Repeat("[", 1<<20), "exceeded max depth"},
		{"deep block", strings.Repeat("- ", 1<<19), "exceeded max depth"},
		{"odd key", "{[a]: b}", "a key must be a word"},
		{"odd merge", "<<: 1", "want an object to merge"},
		{"control", "a: \x01", "control characters"},
		{"latin1", "a: \xe4\xf6", "UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, ps := Text("x.yaml", c.text, testOptions())
			if cfg != nil || len(ps) != 1 || !strings.Contains(ps[0].Text, c.want) {
				t.Errorf("got %.300q, want %q", fmt.Sprint(ps), c.want)
			}
		})
	}
}

// A decision keeps in one byte which stage dropped an endpoint.
func TestStagesAreBounded(t *testing.T) {
	refs := strings.Repeat("{pluginRef: decode-filter}, ", maxStages+1)
	text := "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: decode-filter}, {type: queue-scorer}]\n" +
		"schedulingProfiles: [{name: default, plugins: [" + refs + "{pluginRef: queue-scorer}]}]\n"
	_, ps := Text("x.yaml", text, testOptions())
	if got, want := fmt.Sprint(ps), "schedulingProfiles[0]: has 201 filters, screeners included: want at most 200"; !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Lines are counted alike whatever ends them, and a byte order mark is not in the way.
func TestLineEnds(t *testing.T) {
	text := strings.Replace(pool, "number: 8000", "number: eight", 1) + "---\n" + strings.Replace(pool, "kind: InferencePool", "kind: InferencePoool", 1)
	want := []string{
		`x.yaml:4: spec.targetPorts[0].number: want a whole number, got "eight"`,
		`x.yaml:7: kind: unknown kind "InferencePoool": did you mean InferencePool?`,
	}
	for name, text := range map[string]string{
		"lf": text, "crlf": strings.ReplaceAll(text, "\n", "\r\n"), "bom": "\ufeff" + text, "no end": strings.TrimSuffix(text, "\n"),
	} {
		_, ps := Text("x.yaml", text, testOptions())
		if got := strings.Split(Problems(ps).Error(), "\n"); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// The same files give the same configuration and the same messages: no map's order decides.
func TestSame(t *testing.T) {
	bad, err := os.ReadFile("testdata/documents.txt")
	if err != nil {
		t.Fatal(err)
	}
	inputs := []string{"seeds", strings.ReplaceAll(string(bad), "----", "---")}
	for _, in := range inputs {
		var first string
		for i := range 8 {
			var b bytes.Buffer
			if in == "seeds" {
				Check(&b, []string{"testdata/seeds"}, testOptions())
			} else {
				_, ps := Text("x.yaml", in, testOptions())
				fmt.Fprint(&b, Problems(ps))
			}
			if i == 0 {
				first = b.String()
			} else if b.String() != first {
				t.Fatalf("got\n%s\nthen\n%s", first, b.String())
			}
		}
	}
}

// Parameters can be decoded again when the plugin is made, over its defaults.
func TestDecode(t *testing.T) {
	cfg, ps := Text("x.yaml", `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: prefix-cache-scorer, parameters: {matchLengthWeight: 0.5}}
`, testOptions())
	if cfg == nil {
		t.Fatal(Problems(ps))
	}
	p := cfg.Pickers[0].Plugins[0]
	v, err := testSet.New(p.Type, p.Decode)
	if want := (&prefixScorer{0.5, 8192, ""}); err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, %v, want %+v", v, err, want)
	}
	var wrong struct {
		MatchLengthWeight int `json:"matchLengthWeight"`
	}
	err = p.Decode(&wrong)
	if want := "x.yaml:4: plugins[0].parameters.matchLengthWeight: want a whole number, got 0.5"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := cfg.PickerFor("any", "any"); got != cfg.Pickers[0] {
		t.Errorf("got %v, want the only picker", got)
	}
	if err := (&Plugin{}).Decode(&wrong); err != nil {
		t.Error(err)
	}
}

// The default that decides without a configuration is the field's.
func TestDefault(t *testing.T) {
	cfg, _ := Text("x.yaml", "", testOptions())
	var b strings.Builder
	dumpPicker(&b, cfg.PickerFor("default", "x"))
	want := "profile default: queue-scorer*2 kv-cache-utilization-scorer*2 prefix-cache-scorer*3 max-score-picker"
	if !strings.Contains(b.String(), want) {
		t.Errorf("got %s, want %s", b.String(), want)
	}
}

func FuzzLoad(f *testing.F) {
	files, _ := filepath.Glob("testdata/seeds/*.yaml")
	texts, _ := filepath.Glob("testdata/*.txt")
	for _, name := range append(files, texts...) {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(data), "\n----\n") {
			f.Add([]byte(part))
		}
	}
	f.Add([]byte("a: &a\n  <<: *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := testOptions()
		cfg, ps := Text("x.yaml", string(data), o)
		if (cfg == nil) != Failed(ps) {
			t.Fatalf("configuration %v with %v", cfg, ps)
		}
		lines := 1 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r"))
		for _, p := range ps {
			if p.Line < 0 || p.Line > 2*lines || p.Text == "" || p.File != "x.yaml" {
				t.Fatalf("odd problem %+v", p)
			}
		}
		list, ps := ParseEndpoints(data, "x.yaml")
		if Failed(ps) && len(list.Entries)+len(list.Broken) > 0 {
			t.Fatalf("endpoints %v with %v", list, ps)
		}
		for _, e := range list.Entries {
			if a, err := netip.ParseAddr(e.Address); err == nil && a.String() != e.Address {
				t.Fatalf("address %s is not in its one spelling", e.Address)
			}
			if e.Name == "" || e.Address == "" || e.Port < 1 || e.Port > 65535 {
				t.Fatalf("odd entry %+v", e)
			}
		}
	})
}

// Whatever a list holds, what is taken from it can be dialled, and what is left out is accounted for.
func FuzzParseEndpoints(f *testing.F) {
	f.Add([]byte("endpoints:\n- {name: a, address: \"[FD00::1%eth0]\", port: \"8000\", labels: {metricsAddress: x.y, metricsPort: \"1\"}}\n- {name: b, address: 1.2.3, port: 0}\n"))
	f.Add([]byte(`{"endpoints": [{"name": "json", "namespace": "", "address": "10.0.0.1", "port": "8000"}]}`))
	f.Add([]byte("endpoints: [{name: a}, 1, null, {name: a, address: a, port: 1}]\n---\nendpoints:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, ps := ParseEndpoints(data, "x.yaml")
		if Failed(ps) && len(list.Entries)+len(list.Broken) > 0 {
			t.Fatalf("got %v with %v", list, ps)
		}
		skipped := 0
		for _, p := range ps {
			if p.Severity == Skipped {
				skipped++
			}
		}
		if len(list.Broken) > skipped {
			t.Fatalf("%d broken entries with %v", len(list.Broken), ps)
		}
		for _, e := range list.Entries {
			for _, a := range []string{e.HostPort(), e.Metrics} {
				host, port, err := net.SplitHostPort(a)
				if a == "" {
					continue
				}
				again, wrong := hostOf(host)
				if err != nil || wrong != nil || again != host || port == "0" || len(port) > 5 || strings.ContainsAny(host, " ,/[]\n") {
					t.Fatalf("%q: %v %v %q", a, err, wrong, again)
				}
			}
		}
	})
}
