// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"

	"github.com/penstock-project/penstock/fleet"
)

func pool(name string, models ...[]string) *fleet.Pool {
	p := &fleet.Pool{ID: fleet.ID{Name: name}}
	for _, m := range models {
		p.Endpoints = append(p.Endpoints, &fleet.Endpoint{Models: m})
	}
	return p
}

func TestPool(t *testing.T) {
	m, n := []string{"m", "m-lora"}, []string{"n"}
	for _, c := range []struct {
		name    string
		pools   []*fleet.Pool
		ask     Ask
		want    string
		unknown bool
	}{
		{"no pool", nil, Ask{Model: "m"}, "", false},
		{"one pool takes all", []*fleet.Pool{pool("a", m)}, Ask{Model: "x"}, "a", false},
		{"one pool, strict", []*fleet.Pool{pool("a", m)}, Ask{Model: "x", Strict: true}, "", true},
		{"one pool, strict, known", []*fleet.Pool{pool("a", m)}, Ask{Model: "m-lora", Strict: true}, "a", false},
		{"one pool, strict, not told yet", []*fleet.Pool{pool("a", m, nil)}, Ask{Model: "x", Strict: true}, "a", false},
		{"one empty pool, strict", []*fleet.Pool{pool("a")}, Ask{Model: "x", Strict: true}, "a", false},
		{"by model", []*fleet.Pool{pool("a", m), pool("b", n)}, Ask{Model: "n"}, "b", false},
		{"one endpoint of the pool is enough", []*fleet.Pool{pool("a", m), pool("b", nil, n)}, Ask{Model: "n"}, "b", false},
		{"nobody serves it", []*fleet.Pool{pool("a", m), pool("b", n)}, Ask{Model: "x"}, "", true},
		{"the pool that has not told may serve it", []*fleet.Pool{pool("a", m), pool("b", nil)}, Ask{Model: "x"}, "b", false},
		{"no model goes where endpoints are", []*fleet.Pool{pool("a"), pool("b", n)}, Ask{}, "b", false},
		{"no model and no endpoints", []*fleet.Pool{pool("a"), pool("b")}, Ask{}, "a", false},
	} {
		p, unknown := Pool(&fleet.Snapshot{Pools: c.pools}, c.ask)
		got := ""
		if p != nil {
			got = p.Name
		}
		if got != c.want || unknown != c.unknown {
			t.Errorf("%s: got %q, unknown %v; want %q, %v", c.name, got, unknown, c.want, c.unknown)
		}
	}
}

func TestServing(t *testing.T) {
	p := pool("a", []string{"base", "lora"}, []string{"base"}, nil)
	for model, want := range map[string]int{"base": 3, "lora": 2, "else": 3, "": 3} {
		keep := []bool{true, true, true}
		others, left := Serving(p.Endpoints, model, keep), 0
		for _, ok := range keep {
			if ok {
				left++
			}
		}
		if left != want || others != len(keep)-want {
			t.Errorf("%q: %d left and %d said to be dropped, want %d left of %d", model, left, others, want, len(keep))
		}
	}
}
