// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/plugin"
)

// What follows renders docs/reference. It lives beside what it describes, and docs_test.go holds the two together.

const made = "Made from the code by `make golden`.\n"

// referencePlugins renders plugins.md.
func referencePlugins() (string, error) {
	var b bytes.Buffer
	b.WriteString("# Plugins\n\n" + made + "A plugin that is not active yet is accepted in a configuration, with a warning that names it.\n")
	byRole := map[plugin.Role][]plugin.Entry{}
	var roles []plugin.Role
	for _, e := range slices.Concat(plugin.Catalogue(), plugin.Own()) {
		if byRole[e.Roles[0]] == nil {
			roles = append(roles, e.Roles[0])
		}
		byRole[e.Roles[0]] = append(byRole[e.Roles[0]], e)
	}
	for _, r := range roles {
		fmt.Fprintf(&b, "\n## %s%s\n", strings.ToUpper(string(r[:1])), r[1:])
		for _, e := range byRole[r] {
			doc, fields, err := describe(e)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "\n### %s\n\n*%s*\n\n%s", e.Type, state(e), doc)
			table(&b, fields)
		}
	}
	return b.String(), nil
}

func table(b *bytes.Buffer, fields []field) {
	if len(fields) > 0 {
		b.WriteString("\n| field | type | default | |\n|---|---|---|---|\n")
	}
	for _, f := range fields {
		value := ""
		if f.Default != "" {
			value = "`" + f.Default + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, value, strings.ReplaceAll(f.Doc, "\n", " "))
	}
}

// referenceCommands renders commands.md.
func referenceCommands() (string, error) {
	var b bytes.Buffer
	b.WriteString("# Commands\n\n" + made)
	for _, c := range commands() {
		var help bytes.Buffer
		_ = c.run(context.Background(), []string{"--help"}, &help, io.Discard) // pflag.ErrHelp
		fmt.Fprintf(&b, "\n## penstock %s\n\n```\n%s```\n", c.name, help.String())
	}
	return b.String(), nil
}

// referencePenstock renders penstock.md.
func referencePenstock() (string, error) {
	var b bytes.Buffer
	b.WriteString("# The Penstock document\n\n" + made + "What is ours alone, `apiVersion: penstock.dev/v1alpha1`, `kind: Penstock`. One for a gateway; without one the defaults hold.\n")
	d := api.DefaultPenstock()
	for _, part := range []struct {
		path string
		v    any
	}{{"spec.listeners", d.Listeners}, {"spec.limits", d.Limits}, {"spec.trust", d.Trust}, {"spec.trust.header", api.TrustHeader{}}, {"spec.health", d.Health}} {
		doc, fields, err := documentation("api", reflect.TypeOf(part.v))
		if err != nil {
			return "", err
		}
		for i := range fields {
			v := reflect.ValueOf(part.v)
			for j := range v.NumField() {
				name, _, _ := strings.Cut(v.Type().Field(j).Tag.Get("json"), ",")
				if name == fields[i].Name && !v.Field(j).IsZero() {
					fields[i].Default = fmt.Sprint(v.Field(j).Interface())
				}
			}
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s", part.path, doc)
		table(&b, fields)
	}
	return b.String(), nil
}

// referenceMetrics renders metrics.md.
func referenceMetrics() (string, error) {
	var b bytes.Buffer
	b.WriteString("# Metrics\n\n" + made + "Names that begin with `llm_d_epp_` are the field's, with its labels and buckets; those that begin with `penstock_` are ours.\n\n| metric | labels | |\n|---|---|---|\n")
	for _, m := range observe.New(observe.Options{}).Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(m.Labels, ", "), m.Help)
	}
	return b.String(), nil
}
