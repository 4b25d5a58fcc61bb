// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"
	"testing"

	"github.com/penstock-project/penstock/fleet"
)

func rule(targets ...fleet.Target) *fleet.Rewrite { return &fleet.Rewrite{Targets: targets} }

func TestRule(t *testing.T) {
	exact, all := rule(), rule()
	p := &fleet.Pool{Rewrites: fleet.Rewrites{Exact: map[string]*fleet.Rewrite{"a": exact}, All: all}}
	for _, c := range []struct {
		name  string
		pool  *fleet.Pool
		model string
		want  *fleet.Rewrite
	}{
		{"exact before all", p, "a", exact},
		{"all", p, "b", all},
		{"all, when no model is named", p, "", all},
		{"no rules", &fleet.Pool{}, "a", nil},
		{"no pool", nil, "a", nil},
	} {
		if got := Rule(c.pool, c.model); got != c.want {
			t.Errorf("%s: got %p, want %p", c.name, got, c.want)
		}
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		name string
		rule *fleet.Rewrite
		want []string // by chance, from 0 on
	}{
		{"one", rule(fleet.Target{Model: "a"}), nil},
		{"by weight", rule(fleet.Target{Model: "a", Weight: 2}, fleet.Target{Model: "b", Weight: 1}), []string{"a", "a", "b"}},
		{"none without weight", rule(fleet.Target{Model: "a"}, fleet.Target{Model: "b", Weight: 2}, fleet.Target{Model: "c"}, fleet.Target{Model: "d", Weight: 1}), []string{"b", "b", "d"}},
		{"no weights", rule(fleet.Target{Model: "a"}, fleet.Target{Model: "b"}), []string{"a", "b"}},
	} {
		for at := range max(len(c.want), 1) {
			want := "a"
			got := Target(c.rule, func(n int) int {
				if n != len(c.want) {
					t.Errorf("%s: chance of %d, want %d", c.name, n, len(c.want))
				}
				want = c.want[at]
				return at
			})
			if got != want {
				t.Errorf("%s: got %s at %d, want %s", c.name, got, at, want)
			}
		}
	}
}

// ruled are a pool that serves m and has rules, one that serves n, and one with a rule for all.
func ruled() (p, q, r *fleet.Pool) {
	p, q, r = pool("p", []string{"m"}), pool("q", []string{"n"}), pool("r", []string{"o"})
	p.Rewrites.Exact = map[string]*fleet.Rewrite{"alias": rule(fleet.Target{Model: "m"}), "n": rule(fleet.Target{Model: "m"}), "lost": rule(fleet.Target{Model: "x"})}
	r.Rewrites.All = rule(fleet.Target{Model: "o"})
	return p, q, r
}

func TestPoolByRules(t *testing.T) {
	p, q, r := ruled()
	untold := pool("u", nil)
	for _, c := range []struct {
		name    string
		pools   []*fleet.Pool
		ask     Ask
		want    string
		unknown bool
	}{
		{"a rule for the model", []*fleet.Pool{q, p}, Ask{Model: "alias"}, "p", false},
		{"one pool, strict", []*fleet.Pool{p}, Ask{Model: "alias", Strict: true}, "p", false},
		{"who serves it comes first", []*fleet.Pool{p, q}, Ask{Model: "n"}, "q", false},
		{"a rule before the pool that has not told", []*fleet.Pool{untold, p}, Ask{Model: "alias"}, "p", false},
		{"a rule for all", []*fleet.Pool{p, q, r}, Ask{Model: "y", Strict: true}, "r", false},
		{"a rule for all after the pool that has not told", []*fleet.Pool{r, untold}, Ask{Model: "y"}, "u", false},
		{"rules left aside", []*fleet.Pool{p, q, r}, Ask{Model: "alias", Plain: true}, "", true},
		{"no rule", []*fleet.Pool{p, q}, Ask{Model: "y"}, "", true},
	} {
		got, unknown := Pool(&fleet.Snapshot{Pools: c.pools}, c.ask)
		name := ""
		if got != nil {
			name = got.Name
		}
		if name != c.want || unknown != c.unknown {
			t.Errorf("%s: got %q, unknown %v; want %q, %v", c.name, name, unknown, c.want, c.unknown)
		}
	}
}

func TestNames(t *testing.T) {
	p, q, r := ruled()
	if got, want := Names(&fleet.Snapshot{Pools: []*fleet.Pool{p, q, r}}), []string{"alias", "m", "n", "o"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	u := pool("u", nil)
	u.Rewrites = p.Rewrites
	if got := Names(&fleet.Snapshot{Pools: []*fleet.Pool{u}}); got != nil {
		t.Errorf("while nobody has told: got %v", got)
	}
}
