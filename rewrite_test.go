// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const rewriteManifest = `apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: w}
spec:
  poolRef: {name: p}
  rules:
  - matches: [{model: {value: alias}}, {model: {value: 'other "alias'}}]
    targets: [{modelRewrite: m}]
  - matches: [{model: {value: lost}}]
    targets: [{modelRewrite: not-served}]
`

// A client that asks for an alias gets answers of that name, and the engine sees its own; no other byte
// changes in either direction.
func TestRewriteThroughBothDoors(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rewrite.yaml"), []byte(rewriteManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, "m")
	urls, metrics, log := doors(t, dir, e)
	for door, url := range urls {
		t.Run(door, func(t *testing.T) {
			for _, alias := range []string{`"alias"`, `"other \"alias"`, `"ali\u0061s"`} {
				for _, more := range []string{"", `,"metadata":{"model":"alias"},"x":[1.50,-0e1]`} {
					ask := func(model, stream string) []byte {
						return []byte(`{ "messages":[{"role":"user","content":"a \"model\":\"alias\" é"}],` + stream + ` "model" :` + model + more + "}\n")
					}
					r, text := post(t, url, "/v1/chat/completions", ask(alias, ""))
					sent := e.take()
					if len(sent) != 1 || string(sent[0].body) != string(ask(`"m"`, "")) {
						t.Fatalf("the engine got %s", sent)
					}
					want := `{"choices":[{"message":{"content":"\"model\":\"m\"","model":"m"}}],"model":` + canonical(t, alias) + `,"usage":{"prompt_tokens":7,"completion_tokens":1}}`
					if r.StatusCode != http.StatusOK || text != want || r.ContentLength >= 0 && r.ContentLength != int64(len(want)) {
						t.Errorf("got %d, length %d: %s, want %s", r.StatusCode, r.ContentLength, text, want)
					}
					_, text = post(t, url, "/v1/chat/completions", ask(alias, `"stream":true,`))
					if n := strings.Count(text, `"model":`+canonical(t, alias)); n != 5 || strings.Contains(text, `"model":"m"`) || !strings.HasSuffix(text, "data: [DONE]\n\n") {
						t.Errorf("got %d names in %s", n, text)
					}
					e.take()
				}
			}
			var zipped bytes.Buffer
			z := gzip.NewWriter(&zipped)
			_, _ = z.Write([]byte(`{"model":"alias"}`))
			_ = z.Close()
			_, text := post(t, url, "/v1/chat/completions", zipped.Bytes(), "content-encoding", "gzip")
			if sent := e.take(); len(sent) != 1 || string(sent[0].body) != `{"model":"m"}` || sent[0].header.Get("content-encoding") != "" || !strings.Contains(text, `"model":"alias"`) {
				t.Errorf("encoded: the engine got %s, the client %s", sent, text)
			}
			for _, body := range []string{`{"n":1}`, `{"model":{}}`, "--x\r\n\r\n\"model\":\"alias\"\r\n--x--"} {
				post(t, url, "/v1/chat/completions", []byte(body))
				if sent := e.take(); len(sent) != 1 || string(sent[0].body) != body {
					t.Errorf("the engine got %s, want %s", sent, body)
				}
			}
		})
	}
	if r, text := post(t, urls["proxy"], "/v1/chat/completions", []byte(`{"model":"lost"}`)); r.StatusCode != http.StatusNotFound || !strings.Contains(text, "lost") || strings.Contains(text, "not-served") {
		t.Errorf("a target that nobody serves: got %d %s", r.StatusCode, text)
	}
	if _, text := get(t, urls["proxy"]+"/v1/models"); !strings.Contains(text, `"id":"alias"`) || !strings.Contains(text, `"id":"m"`) || strings.Contains(text, "lost") {
		t.Errorf("models: got %s", text)
	}
	if status, _ := get(t, urls["proxy"]+"/v1/models/alias"); status != http.StatusOK {
		t.Errorf("the alias's page: got %d", status)
	}
	want := `llm_d_epp_request_total{fairness_id="default-flow",model_name="alias",priority="0",target_model_name="m"}`
	choices := `llm_d_epp_model_rewrite_decisions_total{model_name="alias",model_rewrite_name="w",target_model="m"}`
	until(t, "the metrics of both names", func() bool {
		_, page := get(t, metrics+"/metrics")
		return strings.Contains(page, want) && strings.Contains(page, choices)
	})
	if s := log.String(); strings.Contains(s, "panic") {
		t.Error(s)
	}
}

// canonical is a JSON string in the shortest form.
func canonical(t *testing.T, s string) string {
	t.Helper()
	var v string
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(v)
	return string(b)
}
