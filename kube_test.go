// SPDX-License-Identifier: Apache-2.0

package penstock

import (
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
	c.again = func() { cfg, _ = c.load() }
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

// A ConfigMap decides as it was while nothing was wrong with it; before, the picker is not ready.
func TestInClusterConfigMap(t *testing.T) {
	f := &clusterFlags{namespace: "default", pool: "pool", configMap: "default/conf"}
	c, cfg, err := newCluster(f, options("default"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var problems []config.Problem
	c.again = func() { cfg, problems = c.load() }
	for _, step := range []struct {
		objects  []*kube.Object
		file     string // of the configuration that decides
		unusable bool
		problem  string
	}{
		{[]*kube.Object{poolObject()}, "", true, ""},
		{[]*kube.Object{textObject("kind: [\n"), poolObject()}, "", true, "ConfigMap default/conf k:"},
		{[]*kube.Object{textObject(aPicker), poolObject()}, "ConfigMap default/conf k", false, ""},
		{[]*kube.Object{textObject(aPicker + "no: such\n"), poolObject()}, "ConfigMap default/conf k", false, "ConfigMap default/conf k:6: no: unknown field"},
		{[]*kube.Object{poolObject()}, "ConfigMap default/conf k", false, ""},
	} {
		c.take(t.Context(), step.objects)
		if cfg == nil {
			t.Fatal(config.Problems(problems))
		}
		if got := cfg.Pools[0].Picker.File; got != step.file || (c.unusable != "") != step.unusable {
			t.Errorf("%v: %q decides, %q", step.objects, got, c.unusable)
		}
		if step.problem != "" && !slices.ContainsFunc(problems, func(p config.Problem) bool { return strings.HasPrefix(p.String(), step.problem) }) {
			t.Errorf("no problem %q in %v", step.problem, config.Problems(problems))
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
