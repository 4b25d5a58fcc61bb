// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"testing"
)

const aPool = `{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool","metadata":{"namespace":"a","name":"pool"},` +
	`"spec":{"selector":{"matchLabels":{"app":"x"}},"targetPorts":[{"number":8000}],"endpointPickerRef":{"name":"pick","port":{"number":9002}}}}`

func objective(name, spec string) Document {
	return Document{Name: "InferenceObjective a/" + name, Data: []byte(`{"apiVersion":"llm-d.ai/v1","kind":"InferenceObjective","metadata":{"namespace":"a","name":"` + name + `"},"spec":` + spec + `}`)}
}

// An object that is wrong is left out, with its problems under its name; the others count.
func TestDocumentsLeaveOutWhatIsWrong(t *testing.T) {
	docs := []Document{
		{Name: "InferencePool a/pool", Data: []byte(aPool)},
		objective("good", `{"priority":7,"poolRefs":[{"name":"pool"}]}`),
		objective("slip", `{"priorty":7,"poolRefs":[{"name":"pool"}]}`),
		objective("lost", `{"priority":1,"poolRefs":[{"name":"no-such-pool"}]}`),
	}
	cfg, problems := Documents(docs, Options{})
	if cfg == nil {
		t.Fatal(Problems(problems))
	}
	if got := cfg.Pools[0].Objectives; len(got) != 1 || got["good"] != 7 {
		t.Errorf("objectives %v", got)
	}
	want := []string{
		`InferenceObjective a/slip: spec.priorty: unknown field: did you mean priority?`,
		`InferenceObjective a/lost: spec: objective lost names no-such-pool, which is not among the pools here`,
	}
	for _, w := range want {
		if !slices.ContainsFunc(problems, func(p Problem) bool { return p.String() == w }) {
			t.Errorf("no problem %q in\n%v", w, Problems(problems))
		}
	}
}

// A configuration that is needed and wrong makes the whole unusable; its lines are told.
func TestDocumentsNeeded(t *testing.T) {
	pick := Document{Name: "ConfigMap a/pick", Needed: true, Lines: true, Namespace: "a", Picker: "pick",
		Data: []byte("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n- type: no-such-scorer\n")}
	docs := []Document{{Name: "InferencePool a/pool", Data: []byte(aPool)}, pick}
	cfg, problems := Documents(docs, Options{})
	if cfg != nil || !strings.HasPrefix(Problems(problems).Error(), "ConfigMap a/pick:5: plugins[1].type: ") {
		t.Errorf("got %v, %v", cfg, Problems(problems))
	}
	docs[1].Data = []byte("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: 1}]}]\n")
	if cfg, problems = Documents(docs, Options{}); cfg == nil {
		t.Fatal(Problems(problems))
	}
	if p := cfg.Pools[0].Picker; p.Name != "pick" || p.Namespace != "a" {
		t.Errorf("the picker is %s/%s", p.Namespace, p.Name)
	}
	other := strings.NewReplacer(`"name":"pool"`, `"name":"other"`, `"name":"pick"`, `"name":"none"`).Replace(aPool)
	cfg, problems = Documents(append(docs, Document{Name: "InferencePool a/other", Data: []byte(other)}), Options{})
	if cfg == nil || len(problems) > 0 {
		t.Fatal(Problems(problems))
	}
	for _, p := range cfg.Pools {
		if got := p.Picker.Name; (got == "pick") != (p.Name == "pool") {
			t.Errorf("%q decides for pool %s", got, p.Name)
		}
	}
	docs[1].Data = nil
	if cfg, problems = Documents(docs, Options{}); cfg != nil || Problems(problems).Error() != "ConfigMap a/pick: is empty" {
		t.Errorf("got %v, %v", cfg, Problems(problems))
	}
}
