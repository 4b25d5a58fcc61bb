// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

const rewrite = `apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: rewrite, namespace: default}
spec:
  poolRef: {name: pool}
  rules:
  - matches: [{model: {value: alias}}]
    targets: [{modelRewrite: m}]
`

// TestRewriteSDKs asks for an alias, which the list of models begins with: every SDK gets whole answers
// that say so, from engines that know their own name alone.
func TestRewriteSDKs(t *testing.T) {
	gateway := rig.Serve(t, rig.Sims(t, 2, "m")...)
	gateway.Write(t, "rewrite.yaml", rewrite)
	gateway.Ready(t, 2)
	rig.Eventually(t, "the alias to be listed", func() error { return listed(gateway.HTTP) })
	for _, client := range rig.Clients {
		t.Run(client.Language, func(t *testing.T) {
			turns := client.Chat(t, "http://"+gateway.HTTP, 2)
			rig.CheckTurns(t, turns, 2)
			named(t, turns)
		})
	}
	t.Run("anthropic", func(t *testing.T) { named(t, rig.Messages(t, "http://"+gateway.HTTP, "alias")) })
}

func listed(address string) error {
	_, err := rig.Get("http://" + address + "/v1/models/alias")
	return err
}

func named(t *testing.T, turns []rig.Turn) {
	t.Helper()
	for _, turn := range turns {
		if turn.Model != "alias" {
			t.Errorf("the answer says %q: %+v", turn.Model, turn)
		}
	}
}

// TestRewriteEnvoy does so behind Envoy, whose answers must have the right length.
func TestRewriteEnvoy(t *testing.T) {
	engines := rig.Engines(t, 1)
	gateway := rig.Serve(t, rig.Addrs(engines)...)
	gateway.Write(t, "rewrite.yaml", rewrite)
	gateway.Ready(t, 1)
	rig.Eventually(t, "the alias to be listed", func() error { return listed(gateway.HTTP) })
	gateway.HTTP = rig.Addr(t)
	rig.Envoy(t, gateway, "--plaintext")
	served(t, gateway, engines)
	for _, stream := range []bool{false, true} {
		body := strings.Replace(rig.Body("hello", stream), `"m"`, `"alias"`, 1)
		a := rig.Post(t, gateway.HTTP, strings.NewReader(body), nil)
		want := 1
		if stream {
			want = rig.Events
		}
		if a.Status != http.StatusOK || a.Broken != nil || strings.Count(a.Body, `"model":"alias"`) != want || strings.Contains(a.Body, `"model":"m"`) ||
			!stream && !json.Valid([]byte(a.Body)) {
			t.Errorf("stream %v: got %+v", stream, a)
		}
	}
	for _, s := range engines[0].Seen() {
		if want := len(rig.Body("hello", false)); s.Size > want+1 {
			t.Errorf("the engine got %d bytes, want %d", s.Size, want)
		}
	}
}
