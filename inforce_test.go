// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/fleet"
)

// TestWhyAtBothDoors asks each door for the decision, in a header and afterwards, and looks at what is in force.
func TestWhyAtBothDoors(t *testing.T) {
	dir := t.TempDir()
	own := "apiVersion: penstock.dev/v1alpha1\nkind: Penstock\nmetadata: {name: penstock}\nspec:\n  trust: {header: {name: x-proof, value: hush-hush}}\n"
	if err := os.WriteFile(filepath.Join(dir, "penstock.yaml"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	urls, metrics, _ := doors(t, dir, newEngine(t, "m"), newEngine(t, "m"))
	line := regexp.MustCompile(`^id=\S+; endpoint=default/e[01]; score=[\d.]+; margin=[\d.e-]+; over=default/e[01]; candidates=2; of=2; cached=\d+; retries=0$`)
	for door, url := range urls {
		r, text := post(t, url, "/v1/chat/completions", chatBody("m", ""), "x-penstock-decision", "1", "x-request-id", "why-"+door, "x-proof", "hush-hush")
		if got := r.Header.Get("x-penstock-decision"); r.StatusCode != 200 || !line.MatchString(got) {
			t.Errorf("%s: got %d, %q, %s", door, r.StatusCode, got, text)
		}
		r, _ = post(t, url, "/v1/chat/completions", chatBody("m", ""), "x-penstock-decision", "1")
		if got := r.Header.Get("x-penstock-decision"); r.StatusCode != 200 || got != "" {
			t.Errorf("%s: got %d, %q for a caller that is not trusted", door, r.StatusCode, got)
		}
		until(t, "the request to be remembered", func() bool {
			code, page := get(t, metrics+"/debug/decisions/why-"+door)
			return code == 200 && strings.Contains(page, `"door": "`+door+`"`) && strings.Contains(page, `"verdict": "picked"`)
		})
	}
	_, page := get(t, metrics+"/debug/fleet")
	for _, want := range []string{`"header": "x-proof"`, `"pool": "default/p"`, `"maxHitRate": 0.95`, `"firstEjection": "1s"`, `"bodyTimeout": "1m0s"`} {
		if !strings.Contains(page, want) {
			t.Errorf("/debug/fleet lacks %s", want)
		}
	}
	if strings.Contains(page, "hush") {
		t.Error("/debug/fleet tells the secret")
	}
	_, page = get(t, metrics+"/metrics")
	for _, want := range []string{`extension_point="Scorer",plugin_name="priced-miss-scorer",plugin_type="priced-miss-scorer"} 4`, `extension_point="Picker",plugin_name="max-score-picker",plugin_type="max-score-picker"} 4`} {
		if !strings.Contains(page, "llm_d_epp_plugin_duration_seconds_count{"+want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// The defaults stand in two rooms that do not know each other: of the document, and of the fleet without one.
func TestHealthHasOneDefault(t *testing.T) {
	if got, want := healthOf(api.DefaultPenstock().Health), fleet.DefaultHealth(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
