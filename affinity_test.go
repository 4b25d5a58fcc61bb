// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

const experiments = "apiVersion: penstock.dev/v1alpha1\nkind: Penstock\nmetadata: {name: p}\nspec: {allowExperimentalPlugins: true}\n"

// An EndpointPickerConfig in which a session is named by what the answer's header told, or by a cookie.
const stickyManifest = experiments + `---
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: session-id-producer
  parameters: {cookieName: sid}
- type: session-affinity-filter
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: SessionID}]}
- type: destination-endpoint-served-verifier
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: session-affinity-filter
  - pluginRef: session-affinity-scorer
  - pluginRef: max-score-picker
`

func write(t *testing.T, dir, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "manifest.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSessionsStickThroughBothDoors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, stickyManifest)
	engines := []*engine{newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m")}
	urls, _, _ := doors(t, dir, engines...)
	served := func() (at int) {
		at = -1
		for i, e := range engines {
			if len(e.take()) > 0 {
				at = i
			}
		}
		return at
	}
	for door, url := range urls {
		t.Run(door, func(t *testing.T) {
			for n := range 4 {
				for _, session := range [][]string{nil, {"cookie", fmt.Sprintf("a=b; sid=%s%d", door, n)}} {
					r, _ := post(t, url, "/v1/chat/completions", chatBody("hello", ""), session...)
					home := served()
					if got, want := r.Header.Get("x-conformance-test-served-endpoint"), engines[home].Listener.Addr().String(); got != want {
						t.Errorf("the answer names %q, %s served", got, want)
					}
					if session == nil {
						session = []string{"x-session-token", r.Header.Get("x-session-token")}
					}
					for range 4 {
						r, text := post(t, url, "/v1/chat/completions", chatBody("hello", ""), session...)
						if at := served(); at != home || r.StatusCode != http.StatusOK || len(r.Header["X-Session-Token"]) != 1 {
							t.Errorf("%v: went to %d after %d, %d %s, token %q", session, at, home, r.StatusCode, text, r.Header["X-Session-Token"])
						}
					}
				}
			}
			if r, _ := post(t, url, "/v1/chat/completions", chatBody("hello", ""), "x-session-token", "ZGVmYXVsdC9nb25l"); r.StatusCode != http.StatusOK || served() < 0 {
				t.Errorf("a session of an endpoint that is gone: got %d", r.StatusCode)
			}
		})
	}
}

// The profile that a header names decides at the door whose callers are trusted; elsewhere the default does.
func TestProfilesByHeaderAtBothDoors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, experiments+`---
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: header-profile-handler
  parameters: {defaultProfile: all}
- {name: first, type: label-selector-filter, parameters: {matchExpressions: [{key: app, operator: Exists}]}}
- {name: none, type: by-label, parameters: {label: app, allowsNoLabel: true}}
- type: random-picker
schedulingProfiles:
- {name: all, plugins: [{pluginRef: first}, {pluginRef: random-picker}]}
- {name: nobody, plugins: [{pluginRef: none}, {pluginRef: random-picker}]}
`)
	e := newEngine(t, "m")
	urls, _, _ := doors(t, dir, e)
	for _, c := range []struct {
		door, profile string
		status        int
		says          string
	}{
		{"extproc", "", 200, ""}, {"extproc", "all", 200, ""}, {"extproc", "nobody", 429, ""},
		{"extproc", "other", 400, "want one of all, nobody"},
		{"proxy", "", 200, ""}, {"proxy", "nobody", 200, ""}, {"proxy", "other", 200, ""},
	} {
		r, text := post(t, urls[c.door], "/v1/chat/completions", chatBody("hello", ""), "EPP-Profile", c.profile)
		if r.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s, profile %q: got %d %s, want %d %s", c.door, c.profile, r.StatusCode, text, c.status, c.says)
		}
		e.take()
	}
}

// The labels that say where endpoints stand are those of the plugin that is named, or of the one there is, or the usual.
func TestPlansReadLabelsOfPlaces(t *testing.T) {
	plugins := func(text string) *sched.Plan {
		t.Helper()
		cfg, problems := config.Text("x.yaml", experiments+"---\napiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n"+text, options(""))
		if cfg == nil {
			t.Fatal(config.Problems(problems))
		}
		b, plan := &planner{built: map[string]any{}}, &sched.Plan{}
		if err := b.plan(cfg.Pickers[0], plan); err != nil {
			t.Fatal(err)
		}
		return plan
	}
	const scorer = "- type: topology-affinity-scorer\n  parameters: {topologyProducerName: %s}\n"
	extractors := "- {name: other, type: topology-extractor, parameters: {zone: other}}\n- {name: mine, type: topology-extractor, parameters: {zone: mine}}\n"
	for _, c := range []struct{ text, label string }{
		{fmt.Sprintf(scorer, `""`), "topology.kubernetes.io/zone"},
		{fmt.Sprintf(scorer, `""`) + extractors, "other"},
		{fmt.Sprintf(scorer, `""`) + extractors + "- type: topology-extractor\n  parameters: {zone: third}\n", "third"},
		{fmt.Sprintf(scorer, "mine") + extractors, "mine"},
	} {
		s := plugins(c.text).Profiles[0].Scorers[0].Plugin.(*policy.TopologyAffinityScorer)
		e := &fleet.Endpoint{Labels: map[string]string{c.label: "z"}}
		score := make([]float64, 1)
		s.Score(&sched.Cycle{Candidates: []*fleet.Endpoint{e}, Peer: e}, score)
		if score[0] != 0.05 {
			t.Errorf("%s: a shared %s scores %v, want 0.05", c.text, c.label, score[0])
		}
	}
}
