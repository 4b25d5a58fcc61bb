// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched/policy"
)

// TestNamedPolicies loads the configuration of each policy, as `penstock dev --policy` does, builds it, and wants it in
// the guide.
func TestNamedPolicies(t *testing.T) {
	guide, err := os.ReadFile("docs/guide/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	store := fleet.NewStore()
	s := &site{store: store, gw: gateway.New(gateway.Options{Store: store, Observer: observe.New(observe.Options{Store: store})})}
	for _, p := range policy.Named {
		cfg, problems := config.Text(p.Name, p.Config(), options(""))
		if cfg == nil || len(cfg.Pickers) != 1 {
			t.Errorf("%s does not load: %v\n%s", p.Name, config.Problems(problems), p.Config())
			continue
		}
		for _, q := range problems {
			if q.Severity != config.Note {
				t.Errorf("%s: %v", p.Name, q)
			}
		}
		l, err := s.buildLane(fleet.ID{Name: p.Name}, cfg.Pickers[0])
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		own, err := p.Profile()
		if err != nil {
			t.Error(err)
			continue
		}
		if got := l.Plan.Profiles[0]; len(got.Scorers) != len(own.Scorers) || len(got.Filters) != len(own.Filters) || got.Picker.Name != own.Picker.Name {
			t.Errorf("%s: its configuration and its profile differ", p.Name)
		}
		if needs := !strings.Contains(p.Doc, "needs no prefixes"); needs && len(l.Plan.Producers) == 0 {
			t.Errorf("%s: nobody tells the prefixes that it needs", p.Name)
		}
		if !bytes.Contains(guide, []byte("| `"+p.Name+"` |")) {
			t.Errorf("docs/guide/routing.md lacks %s", p.Name)
		}
	}
}
