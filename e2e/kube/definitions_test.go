// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestDefinitions applies objects to the definitions of deploy/crds: what is right is taken and kept in either version, and
// what is wrong is refused with the reason.
func TestDefinitions(t *testing.T) {
	c := New(t)
	c.ours(t)
	ns := c.Namespace(t)
	object := func(version, kind, name, spec string) string {
		return fmt.Sprintf("apiVersion: llm-d.ai/%s\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", version, kind, name, spec)
	}
	read := func(version, plural, name string) map[string]any {
		t.Helper()
		var o struct{ Spec map[string]any }
		if err := json.Unmarshal([]byte(c.Kubectl(t, "get", plural+"."+version+".llm-d.ai", name, "-n", ns, "-o", "json")), &o); err != nil {
			t.Fatal(err)
		}
		return o.Spec
	}

	const full = "group: inference.networking.k8s.io, kind: InferencePool"
	rules := `rules: [{matches: [{model: {value: m}}], targets: [{modelRewrite: other, weight: 3}, {modelRewrite: third}]}]`
	var sixteen []string
	for i := range 16 {
		sixteen = append(sixteen, fmt.Sprintf("{name: p%d}", i))
	}
	right := []struct{ version, kind, spec string }{
		{"v1", "InferenceObjective", "{priority: 100, poolRefs: [{name: pool}]}"},
		{"v1alpha2", "InferenceObjective", "{priority: 10, poolRef: {name: pool}}"},
		{"v1", "InferenceObjective", "{poolRef: {name: pool}}"},
		{"v1alpha2", "InferenceObjective", "{priority: -10, poolRefs: [{name: a}, {" + full + ", name: b}], poolSelector: {matchLabels: {tier: gold}}}"},
		{"v1", "InferenceObjective", "{poolSelector: {matchExpressions: [{key: x, operator: Exists}]}}"},
		{"v1", "InferenceObjective", "{poolRefs: [" + strings.Join(sixteen, ", ") + "]}"},
		{"v1alpha2", "InferenceModelRewrite", "{poolRef: {name: pool}, " + rules + "}"},
		{"v1", "InferenceModelRewrite", "{poolRefs: [{name: a}, {name: b}], " + rules + "}"},
	}
	for i, x := range right {
		name := fmt.Sprintf("right-%d", i)
		c.Apply(t, ns, object(x.version, x.kind, name, x.spec))
		plural := strings.ToLower(x.kind) + "s"
		one, other := read("v1", plural, name), read("v1alpha2", plural, name)
		if !reflect.DeepEqual(one, other) || len(one) == 0 {
			t.Errorf("%s %s: v1 has %v, v1alpha2 %v", x.version, x.spec, one, other)
		}
		if n, all := strings.Count(fmt.Sprint(one), "kind:InferencePool"), strings.Count(strings.ReplaceAll(x.spec, full+", ", ""), "{name: "); n != all {
			t.Errorf("%s %s: %d of %d references came back whole: %v", x.version, x.spec, n, all, one)
		}
	}

	for _, x := range []struct{ version, kind, spec, want string }{
		{"v1", "InferenceObjective", "{priority: 1}", "names no pool: want poolRefs or poolSelector"},
		{"v1alpha2", "InferenceObjective", "{priority: 1}", "names no pool: want poolRefs or poolSelector"},
		{"v1", "InferenceObjective", "{poolRefs: []}", "spec.poolRefs in body should have at least 1 items"},
		{"v1", "InferenceObjective", "{poolRefs: [" + strings.Join(append(sixteen, "{name: last}"), ", ") + "]}", "spec.poolRefs: Too many: 17: must have at most 16 items"},
		{"v1", "InferenceObjective", "{poolRefs: [{name: a}, {name: a}]}", "Duplicate value"},
		{"v1", "InferenceObjective", "{poolRefs: [{}]}", "spec.poolRefs[0].name: Required value"},
		{"v1", "InferenceObjective", "{poolSelector: {}}", "is empty: want matchLabels or matchExpressions"},
		{"v1", "InferenceObjective", "{poolSelector: {matchLabels: {}}}", "is empty: want matchLabels or matchExpressions"},
		{"v1", "InferenceObjective", "{priority: 3000000000, poolRef: {name: a}}", "spec.priority"},
		{"v1", "InferenceObjective", "{priorty: 1, poolRef: {name: a}}", `unknown field "spec.priorty"`},
		{"v1", "InferenceModelRewrite", "{" + rules + "}", "names no pool: want poolRef"},
		{"v1alpha2", "InferenceModelRewrite", "{poolRef: {name: a}, rules: [{targets: []}]}", "spec.rules[0].targets"},
		{"v1alpha2", "InferenceModelRewrite", "{poolRef: {name: a}, rules: [{targets: [{modelRewrite: other, weight: 0}]}]}", "spec.rules[0].targets[0].weight"},
		{"v1alpha2", "InferenceModelRewrite", "{poolRef: {name: a}, rules: [{matches: [{model: {type: Prefix, value: m}}], targets: [{modelRewrite: other}]}]}", "spec.rules[0].matches[0].model.type"},
	} {
		_, err := c.kubectl(t.Context(), object(x.version, x.kind, "wrong", x.spec), "apply", "-n", ns, "-f", "-")
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %s:\ngot  %v\nwant %s", x.version, x.spec, err, x.want)
		}
	}

	table := c.Kubectl(t, "get", "inferenceobjectives", "-n", ns)
	for _, want := range []string{"NAME POOLS PRIORITY ACCEPTED AGE", "right-0 pool 100 Unknown", "right-1 pool 10 Unknown"} {
		if !strings.Contains(strings.Join(strings.Fields(table), " "), want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	// An edit in the other version leaves nothing behind, and a patch in one version loses nothing of the other's.
	c.Apply(t, ns, object("v1alpha2", "InferenceObjective", "turns", "{priority: 1, poolRef: {name: a}}"))
	c.Apply(t, ns, object("v1", "InferenceObjective", "turns", "{priority: 1, poolRefs: [{name: b}]}"))
	if got := fmt.Sprint(read("v1alpha2", "inferenceobjectives", "turns")); strings.Contains(got, "name:a") || !strings.Contains(got, "name:b") {
		t.Errorf("after an edit in v1: %s", got)
	}
	c.Kubectl(t, "patch", "inferenceobjectives.v1alpha2.llm-d.ai", "turns", "-n", ns, "--type=merge", "-p", `{"spec":{"priority":7}}`)
	if got := fmt.Sprint(read("v1", "inferenceobjectives", "turns")); !strings.Contains(got, "name:b") || !strings.Contains(got, "priority:7") {
		t.Errorf("after a patch in v1alpha2: %s", got)
	}
}
