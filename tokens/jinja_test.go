// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestJinja renders what e2e/tokens/jinja.py had Jinja render.
func TestJinja(t *testing.T) {
	data, err := os.ReadFile("testdata/jinja.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := parseJSON(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	golden := v.(*dict)
	context, _ := golden.get("context")
	for _, s := range listOf(golden, "snippets").items {
		pair := s.(*list).items
		got, err := renderWith(pair[0].(string), context.(*dict))
		want, ok := pair[1].(string)
		if (err == nil) != ok || ok && got != want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", pair[0], got, err, want)
		}
	}
}

func renderWith(src string, context *dict) (string, error) {
	tmpl, err := newTemplate(src)
	if err != nil {
		return "", err
	}
	vars := &scope{}
	for i, k := range context.keys {
		vars.set(k, context.vals[i])
	}
	var out strings.Builder
	err = tmpl.execute(&out, vars, time.Now)
	return out.String(), err
}

// TestJinjaIsBounded: whatever a template does, it ends, and soon.
func TestJinjaIsBounded(t *testing.T) {
	for src, want := range map[string]string{
		`{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}`: "steps",
		`{{ 'x' * 1000000000000 }}`: "too long",
		`{{ [1] * 1000000000000 }}`: "too long",
		`{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`:      "bytes",
		`{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`:      "bytes",
		`{% set x = 'y' * 1000000 %}{% for a in range(1000) %}{{ x }}{% endfor %}`:                              "writes",
		`{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`:                                                       "too deep",
		`{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`:                                               "too deep",
		`{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}`:                                                   "too long",
		`{{ 'x'.center(100000000000) }}`:                                                                        "too long",
		`{{ '%999999999d' % 1 }}`:                                                                               "too wide",
		`{{ 'x' | indent(100000000) }}`:                                                                         "too wide",
		`{{ 2 ** 100000 }}`:                                                                                     "64 bits",
		`{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}`: "too deep",
		"{{ " + strings.Repeat("(", 10000) + "1" + strings.Repeat(")", 10000) + " }}":                           "deep",
		"{{ " + strings.Repeat("-", 10000) + "1 }}":                                                             "deep",
		"{{ " + strings.Repeat("not ", 10000) + "1 }}":                                                          "deep",
		strings.Repeat("{% if 1 %}", 10000):                                                                     "deep",
		"{{ " + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + " }}":                                 "deep",
	} {
		_, err := renderWith(src, &dict{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %s", src, err, want)
		}
	}
}
