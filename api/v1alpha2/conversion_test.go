// SPDX-License-Identifier: Apache-2.0

package v1alpha2

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/penstock-project/penstock/api/v1"
)

const head = `"metadata":{"name":"o","labels":{"k":"v"}}`
const full = `"group":"inference.networking.k8s.io","kind":"InferencePool"`

// TestObjective converts to v1 and back.
func TestObjective(t *testing.T) {
	for _, c := range []struct{ name, alpha, v1, back string }{
		{"one pool", `{"priority":5,"poolRef":{"name":"a"}}`, `{"priority":5,"poolRefs":[{` + full + `,"name":"a"}]}`, `{"priority":5,"poolRef":{` + full + `,"name":"a"}}`},
		{"two pools", `{"poolRefs":[{"name":"a"},{"name":"b"}]}`, `{"poolRefs":[{` + full + `,"name":"a"},{` + full + `,"name":"b"}]}`, `{"poolRefs":[{` + full + `,"name":"a"},{` + full + `,"name":"b"}]}`},
		{"a pool and a selector", `{"poolRef":{"name":"a"},"poolSelector":{"matchLabels":{"x":"y"}}}`, `{"poolRefs":[{` + full + `,"name":"a"}],"poolSelector":{"matchLabels":{"x":"y"}}}`, `{"poolRefs":[{` + full + `,"name":"a"}],"poolSelector":{"matchLabels":{"x":"y"}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var alpha, back InferenceObjective
			read(t, `{"kind":"InferenceObjective","apiVersion":"llm-d.ai/v1alpha2",`+head+`,"spec":`+c.alpha+`}`, &alpha)
			before := text(t, alpha)
			stable := alpha.ToV1()
			same(t, text(t, stable), `{"kind":"InferenceObjective","apiVersion":"llm-d.ai/v1",`+head+`,"spec":`+c.v1+`}`)
			between := text(t, stable)
			back.FromV1(stable)
			same(t, text(t, back), `{"kind":"InferenceObjective","apiVersion":"llm-d.ai/v1alpha2",`+head+`,"spec":`+c.back+`}`)
			same(t, text(t, back.ToV1()), between)
			same(t, text(t, alpha), before) // neither changes what it converts
			same(t, text(t, stable), between)
		})
	}
}

// TestRewrite converts to v1 and back.
func TestRewrite(t *testing.T) {
	const rules = `"rules":[{"matches":[{"model":{"type":"Exact","value":"m"}}],"targets":[{"modelRewrite":"n","weight":3}]}]`
	for _, c := range []struct{ name, alpha, v1, back string }{
		{"one pool", `{"poolRef":{"name":"a"},` + rules + `}`, `{"poolRefs":[{` + full + `,"name":"a"}],` + rules + `}`, `{"poolRef":{` + full + `,"name":"a"},` + rules + `}`},
		{"two pools", `{"poolRef":{"name":"b"},"poolRefs":[{"name":"a"}],` + rules + `}`, `{"poolRefs":[{` + full + `,"name":"b"},{` + full + `,"name":"a"}],` + rules + `}`, `{"poolRefs":[{` + full + `,"name":"b"},{` + full + `,"name":"a"}],` + rules + `}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var alpha, back InferenceModelRewrite
			read(t, `{"kind":"InferenceModelRewrite","apiVersion":"llm-d.ai/v1alpha2",`+head+`,"spec":`+c.alpha+`}`, &alpha)
			stable := alpha.ToV1()
			same(t, text(t, stable), `{"kind":"InferenceModelRewrite","apiVersion":"llm-d.ai/v1",`+head+`,"spec":`+c.v1+`}`)
			back.FromV1(stable)
			same(t, text(t, back), `{"kind":"InferenceModelRewrite","apiVersion":"llm-d.ai/v1alpha2",`+head+`,"spec":`+c.back+`}`)
		})
	}
}

// TestScheme registers both versions in one scheme.
func TestScheme(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{AddToScheme, v1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, gv := range []schema.GroupVersion{v1.GroupVersion, GroupVersion} {
		for _, kind := range []string{"InferenceObjective", "InferenceModelRewrite"} {
			if o, err := s.New(gv.WithKind(kind)); err != nil || o == nil {
				t.Errorf("%s %s: %v", gv, kind, err)
			}
		}
	}
}

func read(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func same(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
