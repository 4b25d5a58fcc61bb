// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
)

// TestFolded folds what v1alpha2 says into what v1 says.
func TestFolded(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"one", `{"poolRef":{"name":"a"}}`, `{"poolRefs":[{"group":"inference.networking.k8s.io","kind":"InferencePool","name":"a"}]}`},
		{"several", `{"poolRefs":[{"name":"a"},{"group":"g","kind":"K","name":"b"}]}`, `{"poolRefs":[{"group":"inference.networking.k8s.io","kind":"InferencePool","name":"a"},{"group":"g","kind":"K","name":"b"}]}`},
		{"both", `{"poolRef":{"name":"b"},"poolRefs":[{"name":"a"},{"name":"b"}]}`, `{"poolRefs":[{"group":"inference.networking.k8s.io","kind":"InferencePool","name":"b"},{"group":"inference.networking.k8s.io","kind":"InferencePool","name":"a"}]}`},
		{"selector", `{"priority":-1,"poolSelector":{"matchLabels":{"a":"b"}}}`, `{"priority":-1,"poolSelector":{"matchLabels":{"a":"b"}}}`},
		{"without a name", `{"poolRef":{"name":""}}`, `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s InferenceObjectiveSpec
			if err := json.Unmarshal([]byte(c.in), &s); err != nil {
				t.Fatal(err)
			}
			s.Normalize()
			got, _ := json.Marshal(s)
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			s.Normalize()
			if again, _ := json.Marshal(s); string(again) != string(got) {
				t.Errorf("normalized twice: %s", again)
			}
		})
	}
}

// TestFields holds the types against those that a configuration is read into: what an API server
// accepts must be known there, and the other way round.
func TestFields(t *testing.T) {
	for _, c := range []struct{ ours, read any }{
		{InferenceObjectiveSpec{}, api.InferenceObjectiveSpec{}},
		{InferenceModelRewriteSpec{}, api.InferenceModelRewriteSpec{}},
		{PoolReference{}, api.PoolRef{}},
		{RewriteRule{}, api.RewriteRule{}},
		{RewriteMatch{}, api.RewriteMatch{}},
		{ModelMatch{}, api.ModelMatch{}},
		{RewriteTarget{}, api.RewriteTarget{}},
	} {
		ours, read := names(c.ours), names(c.read)
		if !slices.Equal(ours, read) {
			t.Errorf("%T has %v, %T has %v", c.ours, ours, c.read, read)
		}
	}
}

// names are the JSON names of a struct's fields, sorted.
func names(v any) []string {
	var out []string
	for i := range reflect.TypeOf(v).NumField() {
		name, _, _ := strings.Cut(reflect.TypeOf(v).Field(i).Tag.Get("json"), ",")
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

type definition struct {
	Metadata struct{ Name string }
	Spec     struct {
		Conversion any
		Versions   []struct {
			Name            string
			Served, Storage bool
			Schema          any
			Subresources    map[string]any
		}
	}
}

// TestDefinitions holds the definitions to what lets one serve two versions without a webhook: the
// same schema in both, so that an API server drops no field of what was written in the other.
func TestDefinitions(t *testing.T) {
	for _, c := range []struct{ file, storage string }{
		{"llm-d.ai_inferenceobjectives.yaml", "v1"},
		{"llm-d.ai_inferencemodelrewrites.yaml", "v1alpha2"}, // the only one that llm-d has: its definition can come back
	} {
		text, err := os.ReadFile("../../deploy/crds/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		v := d.Spec.Versions
		if len(v) != 2 || v[0].Name != "v1" || v[1].Name != "v1alpha2" || d.Spec.Conversion != nil {
			t.Errorf("%s: want v1 and v1alpha2, and no conversion", c.file)
			continue
		}
		if !reflect.DeepEqual(v[0].Schema, v[1].Schema) {
			t.Errorf("%s: the schemas of its versions differ", c.file)
		}
		for _, v := range v {
			if _, ok := v.Subresources["status"]; !ok || !v.Served || v.Storage != (v.Name == c.storage) {
				t.Errorf("%s: %s: status subresource %v, served %v, stored %v", c.file, v.Name, ok, v.Served, v.Storage)
			}
		}
	}
}
