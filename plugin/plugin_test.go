// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

type threshold struct{ n int }

func (p *threshold) Validate() error {
	if p.n <= 0 {
		return errors.New("n: must be above 0")
	}
	return nil
}

func TestSet(t *testing.T) {
	s := Set[*threshold]{"b-scorer": func() *threshold { return &threshold{1} }, "a-scorer": func() *threshold { return &threshold{} }}
	if got := s.Names(); !slices.Equal(got, []string{"a-scorer", "b-scorer"}) {
		t.Errorf("got %v", got)
	}
	set := func(n int) func(any) error {
		return func(v any) error { v.(*threshold).n = n; return nil }
	}
	for _, c := range []struct {
		name   string
		decode func(any) error
		want   int
		err    string
	}{
		{"b-scorer", nil, 1, ""},
		{"b-scorer", set(5), 5, ""},
		{"b-scorer", set(0), 0, "n: must be above 0"},
		{"a-scorer", nil, 0, "n: must be above 0"},
		{"b-scorer", func(any) error { return errors.New("no") }, 0, "no"},
		{"b-scorrer", nil, 0, `unknown plugin type "b-scorrer": did you mean b-scorer?`},
		{"qqqqqqqqqqqq", nil, 0, `unknown plugin type "qqqqqqqqqqqq"`},
		{"", nil, 0, "no plugin type given"},
	} {
		v, err := s.New(c.name, c.decode)
		switch {
		case c.err == "" && (err != nil || v.n != c.want):
			t.Errorf("%s: got %v, %v, want %d", c.name, v, err, c.want)
		case c.err != "" && (err == nil || err.Error() != c.err || v != nil):
			t.Errorf("%s: got %v, %v, want %s", c.name, v, err, c.err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"weight", "pluginRef", "queue-scorer", "schedulingProfiles", "parameters"}
	for word, want := range map[string]string{
		"wieght": "weight", "wight": "weight", "Weight": "weight", "queue-scorrer": "queue-scorer", "pluginref": "pluginRef",
		"schedulingProfile": "schedulingProfiles", "params": "", "param": "parameters", "sched": "schedulingProfiles",
		"": "", "x": "", "zzz": "", strings.Repeat("w", 1000): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}

func TestCatalogue(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range slices.Concat(Catalogue(), Own()) {
		if seen[e.Type] {
			t.Errorf("%s is there twice", e.Type)
		}
		seen[e.Type] = true
		if len(e.Roles) == 0 || !e.Is(e.Roles[0]) {
			t.Errorf("%s has no role", e.Type)
		}
		if !strings.HasSuffix(e.Doc, ".") || strings.Count(e.Doc, ". ") > 0 {
			t.Errorf("%s: want one sentence, got %q", e.Type, e.Doc)
		}
		by, ok := Lookup(e.ReplacedBy)
		if deprecated := e.Stability == Deprecated; deprecated != ok || ok && by.Stability == Deprecated {
			t.Errorf("%s is %s, replaced by %q", e.Type, e.Stability, e.ReplacedBy)
		}
	}
	if types := Types(); !slices.IsSorted(types) || len(types) != len(seen) {
		t.Errorf("got %d types of %d, sorted %t", len(types), len(seen), slices.IsSorted(types))
	}
	if _, ok := Lookup("no-such-scorer"); ok {
		t.Error("found what is not there")
	}
}

// What one plugin reads another tells, and no plugin reads what comes to be of its own.
func TestData(t *testing.T) {
	var after func(typ string, seen []string)
	after = func(typ string, seen []string) {
		e, _ := Lookup(typ)
		for _, u := range e.Consumes {
			by, ok := Lookup(u.From)
			if !ok || !by.Tells(u.Data) || by.Stability == Deprecated {
				t.Errorf("%s reads %s of %q, which does not tell it", typ, u.Data, u.From)
			}
			for _, d := range Catalogue() {
				switch {
				case !d.Tells(u.Data):
				case slices.Contains(seen, d.Type):
					t.Errorf("%s reads %s of %s, which comes after it", typ, u.Data, d.Type)
				default:
					after(d.Type, append(seen, d.Type))
				}
			}
		}
	}
	for _, e := range slices.Concat(Catalogue(), Own()) {
		after(e.Type, []string{e.Type})
	}
}
