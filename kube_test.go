// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/source/kube"
)

func poolObject() *kube.Object {
	return &kube.Object{Kind: "InferencePool", Namespace: "default", Name: "pool", Data: []byte(`{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool",` +
		`"metadata":{"namespace":"default","name":"pool"},"spec":{"selector":{"matchLabels":{"app":"x"}},"targetPorts":[{"number":8000}],"endpointPickerRef":{"name":"pick","port":{"number":9002}}}}`)}
}

func objectiveObject(name, spec string) *kube.Object {
	return &kube.Object{Kind: "InferenceObjective", Namespace: "default", Name: name, Data: []byte(`{"apiVersion":"llm-d.ai/v1","kind":"InferenceObjective",` +
		`"metadata":{"namespace":"default","name":"` + name + `"},"spec":` + spec + `}`)}
}

func textObject(text string) *kube.Object {
	return &kube.Object{Kind: "ConfigMap", Namespace: "default", Name: "conf", Key: "k", Data: []byte(text)}
}

const aPicker = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: random-picker
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
`

// A picker has its pool before any object tells of it, and after it is gone; objects say what became of them.
func TestInClusterObjects(t *testing.T) {
	f := &clusterFlags{namespace: "default", pool: "pool"}
	c, cfg, err := newCluster(f, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Pools) != 1 || cfg.Pools[0].Name != "pool" || cfg.Pools[0].Picker == nil {
		t.Fatalf("pools %v", cfg.Pools)
	}
	c.again = func() ([]string, error) { cfg, _ = c.load(); c.keep(); return nil, nil }
	verdicts := c.take(t.Context(), []*kube.Object{
		objectiveObject("good", `{"priority":7,"poolRefs":[{"name":"pool"}]}`), objectiveObject("slip", `{"priorty":7,"poolRefs":[{"name":"pool"}]}`), poolObject(),
	})
	if got := cfg.Pools[0].Objectives; len(cfg.Pools) != 1 || len(got) != 1 || got["good"] != 7 {
		t.Errorf("objectives %v", got)
	}
	if v := verdicts[0]; !slices.Equal(v.Pools, []string{"pool"}) || len(v.Errors) > 0 {
		t.Errorf("good: %+v", v)
	}
	if v := verdicts[1]; len(v.Pools) > 0 || len(v.Errors) != 1 || v.Errors[0] != "spec.priorty: unknown field: did you mean priority?" {
		t.Errorf("slip: %+v", v)
	}
	verdicts = c.take(t.Context(), []*kube.Object{objectiveObject("good", `{"priority":7,"poolRefs":[{"name":"pool"}]}`)})
	if len(cfg.Pools) != 1 || len(cfg.Pools[0].Objectives) > 0 || len(verdicts[0].Pools) > 0 {
		t.Errorf("without its object the pool has objectives %v", cfg.Pools[0].Objectives)
	}
}

// What is wrong with a rewrite is told of that rewrite, field by field; of two for one model the later is told so, and those that are wrong claim none.
func TestInClusterRewrites(t *testing.T) {
	rewrite := func(name, created, rules string) *kube.Object {
		return &kube.Object{Kind: "InferenceModelRewrite", Namespace: "default", Name: name, Data: []byte(`{"apiVersion":"llm-d.ai/v1","kind":"InferenceModelRewrite",` +
			`"metadata":{"namespace":"default","name":"` + name + `","creationTimestamp":"` + created + `"},"spec":{"poolRefs":[{"name":"pool"}],"rules":` + rules + `}}`)}
	}
	c, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.again = func() ([]string, error) { cfg, _ = c.load(); c.keep(); return nil, nil }
	const m = `[{"matches":[{"model":{"value":"m"}}],"targets":`
	verdicts := c.take(t.Context(), []*kube.Object{
		rewrite("good", "2026-01-01T00:00:00Z", m+`[{"modelRewrite":"a","weight":1},{"modelRewrite":"b","weight":3}]}]`),
		rewrite("later", "2026-01-02T00:00:00Z", m+`[{"modelRewrite":"c"}]}]`),
		rewrite("none", "2025-01-01T00:00:00Z", m+`[]}]`),
		rewrite("weight", "2025-01-01T00:00:00Z", m+`[{"modelRewrite":"a","weight":0},{"modelRewrite":"","weight":1000001}]}]`),
		poolObject(),
	})
	want := []string{
		"[pool] [] []",
		`[] [] [spec.rules[0]: never decides on requests for "m" to pool pool: an earlier rule, of good, does]`,
		"[] [spec.rules[0].targets: want at least one target] []",
		"[] [spec.rules[0].targets[0].weight: want 1 to 1000000, got 0 spec.rules[0].targets[1].modelRewrite: is missing spec.rules[0].targets[1].weight: want 1 to 1000000, got 1000001] [spec.rules[0]: never decides on requests for \"m\" to pool pool: an earlier rule, of none, does]",
	}
	for i, w := range want {
		if got := fmt.Sprint(verdicts[i].Pools, verdicts[i].Errors, verdicts[i].Warnings); got != w {
			t.Errorf("%s:\ngot  %s\nwant %s", verdicts[i].Name, got, w)
		}
	}
	if rules := cfg.Pools[0].Rewrites; len(rules) != 1 || len(rules[0].Targets) != 2 || rules[0].Targets[1].Weight != 3 {
		t.Errorf("rules %+v", rules)
	}
}

// A ConfigMap decides as it was while nothing was wrong with it; before, the picker is not ready.
func TestInClusterConfigMap(t *testing.T) {
	f := &clusterFlags{namespace: "default", pool: "pool", configMap: "default/conf"}
	c, cfg, err := newCluster(f, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := func(text string) *kube.Object { // the same ConfigMap, which has got another key
		o := textObject(text)
		o.Key = "other"
		return o
	}
	var problems []config.Problem
	c.again = func() ([]string, error) { cfg, problems = c.load(); c.keep(); return nil, nil }
	for _, step := range []struct {
		objects  []*kube.Object
		file     string // of the configuration that decides
		unusable bool
		problem  string
	}{
		{[]*kube.Object{poolObject()}, "", true, ""},
		{[]*kube.Object{textObject("kind: [\n"), poolObject()}, "", true, "ConfigMap default/conf k:"},
		{[]*kube.Object{textObject("# nothing\n"), poolObject()}, "", true, "ConfigMap default/conf k: holds no EndpointPickerConfig"},
		{[]*kube.Object{textObject(""), poolObject()}, "", true, "ConfigMap default/conf k: holds no EndpointPickerConfig: there is no text under this key"},
		{[]*kube.Object{textObject(aPicker), poolObject()}, "ConfigMap default/conf k", false, ""},
		{[]*kube.Object{textObject(""), poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf k: holds no EndpointPickerConfig: there is no text under this key"},
		{[]*kube.Object{textObject("# nothing\n"), poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf k: holds no EndpointPickerConfig"},
		{[]*kube.Object{textObject(aPicker + "no: such\n"), poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf k:6: no: unknown field"},
		{[]*kube.Object{elsewhere("kind: [\n"), poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf other:"},
		{[]*kube.Object{poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf: is gone: what it said last stays in force"},
		{[]*kube.Object{elsewhere(aPicker), poolObject()}, "ConfigMap default/conf other", false, ""},
	} {
		c.take(t.Context(), step.objects)
		if cfg == nil {
			t.Fatal(config.Problems(problems))
		}
		if got := cfg.Pools[0].Picker.File; got != step.file || (c.unusable() != "") != step.unusable {
			t.Errorf("%v: %q decides, %q", step.objects, got, c.unusable())
		}
		if step.problem != "" && !slices.ContainsFunc(problems, func(p config.Problem) bool { return strings.HasPrefix(p.String(), step.problem) }) {
			t.Errorf("no problem %q in %v", step.problem, config.Problems(problems))
		}
	}
}

// A text that reads well and cannot be put into force is refused as one that reads badly is: what else there is counts.
func TestInClusterRefused(t *testing.T) {
	c, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool", configMap: "default/conf"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	fits := false
	c.again = func() ([]string, error) {
		next, _ := c.load()
		if next.Pools[0].Picker.Name == "unfit" && !fits {
			return nil, errors.New("no such file")
		}
		cfg = next
		c.keep()
		return nil, nil
	}
	unfit := strings.Replace(aPicker, "plugins:", "metadata: {name: unfit}\nplugins:", 1)
	for _, step := range []struct {
		text, object, file, errors string
		unusable                   bool
	}{
		{unfit, "one", "", "[no such file]", true},
		{aPicker, "two", "ConfigMap default/conf k", "[]", false},
		{unfit, "three", "ConfigMap default/conf k", "[no such file]", false},
		{unfit, "four", "ConfigMap default/conf k", "[no such file]", false},
		{aPicker, "five", "ConfigMap default/conf k", "[]", false},
	} {
		verdicts := c.take(t.Context(), []*kube.Object{textObject(step.text), objectiveObject(step.object, `{"priority":7,"poolRefs":[{"name":"pool"}]}`), poolObject()})
		if got := fmt.Sprint(verdicts[0].Errors); got != step.errors || (c.unusable() != "") != step.unusable {
			t.Errorf("%s: errors %s, unusable %q", step.object, got, c.unusable())
		}
		if got := cfg.Pools[0]; got.Picker.File != step.file || got.Objectives[step.object] != 7 {
			t.Errorf("%s: %q decides, objectives %v", step.object, got.Picker.File, got.Objectives)
		}
	}
	c.take(t.Context(), []*kube.Object{textObject(unfit), poolObject()})
	if fits = true; !c.forgive() || c.forgive() {
		t.Error("it forgave nothing, or twice")
	}
	if c.force(); cfg.Pools[0].Picker.Name != "unfit" {
		t.Errorf("%q decides, when there is such a file", cfg.Pools[0].Picker.Name)
	}
}

// What a file says last stays while it is broken, empty, gone, or cannot be put into force, and nothing else is held up.
func TestInClusterBrokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "more.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "apiVersion: llm-d.ai/v1\nkind: InferenceObjective\nmetadata: {name: filed, namespace: default}\nspec: {priority: 1, poolRefs: [{name: pool}]}\n"
	write(good)
	c, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, []string{file})
	if err != nil {
		t.Fatal(err)
	}
	var problems []config.Problem
	unfit := 13
	c.again = func() ([]string, error) {
		next, now := c.load()
		if problems = now; next == nil || next.Pools[0].Objectives["filed"] == unfit {
			return nil, errors.New("no such thing")
		}
		cfg = next
		c.keep()
		return nil, nil
	}
	for i, step := range []struct {
		name  string
		do    func()
		filed int    // priority
		want  string // problem
	}{
		{"good", func() {}, 1, ""},
		{"broken", func() { write("kind: [\n") }, 1, "more.yaml:1: "},
		{"mended", func() { write(strings.Replace(good, "1,", "2,", 1)) }, 2, ""},
		{"emptied", func() { write("\n") }, 2, "more.yaml: a file is empty"},
		{"unfit", func() { write(strings.Replace(good, "1,", "13,", 1)) }, 2, "no such thing"},
		{"gone", func() { os.Remove(file) }, 2, "more.yaml: no such file"},
		{"unfit again", func() { write(strings.Replace(good, "1,", "13,", 1)) }, 2, "no such thing"},
		{"fit now", func() { unfit = 0; c.forgive() }, 13, ""},
	} {
		step.do()
		verdicts := c.take(t.Context(), []*kube.Object{objectiveObject(fmt.Sprint("o", i), `{"priority":7,"poolRefs":[{"name":"pool"}]}`), poolObject()})
		got := cfg.Pools[0].Objectives
		if got["filed"] != step.filed || got[fmt.Sprint("o", i)] != 7 || len(verdicts[0].Pools) != 1 {
			t.Errorf("%s: objectives %v, pools %v", step.name, got, verdicts[0].Pools)
		}
		if found := slices.ContainsFunc(problems, func(p config.Problem) bool {
			return p.Severity == config.Error && strings.Contains(p.String(), step.want)
		}); found != (step.want != "") {
			t.Errorf("%s: problems %v, want %q", step.name, config.Problems(problems), step.want)
		}
	}
}

// A folder counts as a whole: what is new in it, or gone from it, waits until all of it is right.
func TestInClusterBrokenFolder(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	filed := func(name string) string {
		return "apiVersion: llm-d.ai/v1\nkind: InferenceObjective\nmetadata: {name: " + name + ", namespace: default}\nspec: {priority: 1, poolRefs: [{name: pool}]}\n"
	}
	for _, first := range []bool{true, false} { // there is something at the start
		if first {
			file("a.yaml", filed("a"))
		}
		c, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, []string{folder})
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		c.again = func() ([]string, error) {
			next, _ := c.load()
			if _, unfit := next.Pools[0].Objectives["unfit"]; unfit {
				tries++
				return nil, errors.New("no such thing")
			}
			cfg = next
			c.keep()
			return nil, nil
		}
		for i, step := range []struct {
			do   func()
			want []string
		}{
			{func() { file("b.yaml", "kind: [\n") }, []string{"a"}},
			{func() { file("b.yaml", filed("b")) }, []string{"a", "b"}},
			{func() { file("c.yaml", filed("unfit")) }, []string{"a", "b"}},
			{func() { os.Remove(filepath.Join(folder, "b.yaml")) }, []string{"a", "b"}},
			{func() { os.Remove(filepath.Join(folder, "c.yaml")) }, []string{"a"}},
		} {
			step.do()
			object := fmt.Sprint("o", i)
			c.take(t.Context(), []*kube.Object{objectiveObject(object, `{"priority":7,"poolRefs":[{"name":"pool"}]}`), poolObject()})
			want := append([]string{object}, step.want...)
			if !first {
				want = slices.DeleteFunc(want, func(s string) bool { return s == "a" })
			}
			slices.Sort(want)
			if got := slices.Sorted(maps.Keys(cfg.Pools[0].Objectives)); !slices.Equal(got, want) {
				t.Errorf("%d: objectives %v, want %v", i, got, want)
			}
		}
		if tries != 2 {
			t.Errorf("what is unfit was tried %d times", tries)
		}
		os.Remove(filepath.Join(folder, "a.yaml"))
	}
}

// One text that cannot be put into force is no fault of another.
func TestInClusterBlame(t *testing.T) {
	c, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool", configMap: "default/conf"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := textObject(strings.Replace(aPicker, "plugins:", "metadata: {name: unfit}\nplugins:", 1))
	other.Name = "other"
	c.again = func() ([]string, error) {
		next, _ := c.load()
		for _, p := range next.Pickers {
			if p.File == other.String() {
				return nil, errors.Join(&unfit{p.File, errors.New("no such thing")})
			}
		}
		cfg = next
		c.keep()
		return nil, nil
	}
	verdicts := c.take(t.Context(), []*kube.Object{textObject(aPicker), other, poolObject()})
	if got := fmt.Sprint(verdicts[0].Errors, verdicts[1].Errors); got != "[] [no such thing]" || cfg.Pools[0].Picker.File != "ConfigMap default/conf k" {
		t.Errorf("errors %s; %q decides", got, cfg.Pools[0].Picker.File)
	}
}

// What could not be put into force says nothing of what is.
func TestInClusterNotInForce(t *testing.T) {
	c, _, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.again = func() ([]string, error) { c.load(); return nil, errors.New("x") }
	if v := c.take(t.Context(), []*kube.Object{objectiveObject("new", `{"priority":7,"poolRefs":[{"name":"pool"}]}`), poolObject()}); len(v[0].Pools) > 0 {
		t.Errorf("it counts for %v", v[0].Pools)
	}
	if !c.forgive() {
		t.Error("it is not to be tried again, though nothing that is new is to blame")
	}
}

// What changes nothing, such as a status, is not read again.
func TestInClusterSame(t *testing.T) {
	c, _, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	var fails error
	c.again = func() ([]string, error) {
		if reads++; fails == nil {
			c.load()
			c.keep()
		}
		return nil, fails
	}
	take := func(name string) {
		o := objectiveObject(name, `{"priority":7,"poolRefs":[{"name":"pool"}]}`)
		o.Status = map[string]any{"is": reads}
		if v := c.take(t.Context(), []*kube.Object{o, poolObject()}); v[0].Object != o || fails == nil && !slices.Equal(v[0].Pools, []string{"pool"}) {
			t.Errorf("got %+v", v[0])
		}
	}
	for _, step := range []struct {
		name  string
		fails error
		reads int
	}{{"a", nil, 1}, {"a", nil, 1}, {"b", nil, 2}, {"c", errors.New("x"), 3}, {"c", nil, 4}, {"c", nil, 4}} {
		fails = step.fails
		if take(step.name); reads != step.reads {
			t.Errorf("%v: read %d times", step, reads)
		}
	}
}

// A pool that is not here may be another picker's: the log need not know.
func TestInClusterElsewhere(t *testing.T) {
	c, _, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.objects = []*kube.Object{objectiveObject("both", `{"priority":7,"poolRefs":[{"name":"pool"},{"name":"theirs"}]}`), poolObject()}
	_, problems := c.load()
	if len(problems) != 1 || !problems[0].Elsewhere || problems[0].Severity != config.Note {
		t.Errorf("got %v", problems)
	}
}

// The labels of nodes are asked for where some plugin wants to know where endpoints stand.
func TestNearLabels(t *testing.T) {
	for _, c := range []struct{ plugins, profile, want string }{
		{"- type: random-picker", "", "[]"},
		{"- type: topology-affinity-scorer", "- pluginRef: topology-affinity-scorer", "[topology.kubernetes.io/rack topology.kubernetes.io/zone topology.kubernetes.io/region]"},
		{"- type: topology-affinity-scorer\n- type: topology-extractor\n  parameters: {rack: my/rack, zone: my/zone, region: my/region}", "- pluginRef: topology-affinity-scorer", "[my/rack my/zone my/region]"},
	} {
		o := options("default")
		o.Experimental = true
		text := "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: max-score-picker\n" + c.plugins + "\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: max-score-picker\n  " + c.profile + "\n"
		_, cfg, err := newCluster(&clusterFlags{namespace: "default", pool: "pool"}, o, []config.Document{{Name: "text", Data: []byte(text), Needed: true}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := newProcess(cfg, defaults(), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		got := "[]"
		p.near = func(labels []string) { got = fmt.Sprint(labels) }
		if err := p.apply(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.plugins, got, c.want)
		}
	}
}

func TestDeployment(t *testing.T) {
	for pod, want := range map[string]string{"my-epp-5d4f6-abcde": "my-epp", "epp": "endpoints", "": "endpoints", "a-b": "endpoints"} {
		if got := deployment(pod); got != want {
			t.Errorf("%q: got %q, want %q", pod, got, want)
		}
	}
}
