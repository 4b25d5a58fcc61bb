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
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sim/work"
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

// referenceFlowControl renders flow-control.md.
func referenceFlowControl() (string, error) {
	doc, fields, err := documentation("api", reflect.TypeFor[api.FlowControl]())
	if err != nil {
		return "", err
	}
	bandDoc, band, err := documentation("api", reflect.TypeFor[api.PriorityBand]())
	if err != nil {
		return "", err
	}
	defaults := map[string]string{
		"maxBytes": "0", "maxRequests": "0", "defaultRequestTTL": api.Duration(defaultTTL).String(), "noEndpointRequestTTL": api.Duration(defaultTTL).String(),
		"usageLimitPolicyPluginRef": defaultLimit, "saturationDetector": defaultDetector, "enableEviction": "false",
	}
	fields = slices.DeleteFunc(fields, func(f field) bool { return strings.Contains(f.Name, ".") })
	for i := range fields {
		fields[i].Default = defaults[fields[i].Name]
	}
	of := map[string]string{
		"maxBytes": "1e9", "maxRequests": fmt.Sprint(flow.DefaultBandRequests), "fairnessPolicyRef": defaultFairness, "orderingPolicyRef": defaultOrdering, "minShare": "0",
	}
	for i := range band {
		band[i].Default = of[band[i].Name]
	}
	var b bytes.Buffer
	b.WriteString("# flowControl of an EndpointPickerConfig\n\n" + made + "The same in all its versions. The policies that it names are declared under `plugins`; [plugins.md](plugins.md) has them, and\n[the guide](../guide/flow-control.md) says how they work together.\n\n" + doc)
	table(&b, fields)
	b.WriteString("\n## A band\n\nAn entry of `priorityBands`, and `defaultPriorityBand` and `defaultNegativePriorityBand` without their priority. ")
	b.WriteString(strings.TrimPrefix(bandDoc, "PriorityBand is all requests of one priority. "))
	table(&b, band)
	return b.String(), nil
}

// referenceMetrics renders metrics.md.
func referenceMetrics() (string, error) {
	var b bytes.Buffer
	b.WriteString("# Metrics\n\n" + made + "Names that begin with `llm_d_epp_` are the field's, with its labels and buckets; those that begin with `penstock_` are ours.\n\n" +
		fmt.Sprintf("What clients say is bounded for the life of the process: of %d models and as many tenants a metric tells by name (the models that endpoints serve always), in at most %d sets of labels, and %d more without the tenant; what comes later counts under `%s`. A name is cut after %d bytes.\n\n", observe.MaxValues, observe.MaxSets, observe.MaxValues, observe.Other, observe.MaxLabel) +
		"| metric | labels | |\n|---|---|---|\n")
	for _, m := range observe.New(observe.Options{Streams: true}).Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(m.Labels, ", "), m.Help)
	}
	return b.String(), nil
}

// referenceWorkloads renders workloads.md.
func referenceWorkloads() (string, error) {
	var b bytes.Buffer
	b.WriteString("# Workloads and faults\n\n" + made + "[The guide](../guide/workloads.md) says how to write one.\n")
	kinds := func(title string, list []work.Kind) {
		b.WriteString("\n## " + title + "\n")
		for _, k := range list {
			fmt.Fprintf(&b, "\n### %s\n\n%s\n", k.Name, k.Doc)
			var fields []field
			for _, p := range k.Params {
				fields = append(fields, field{Name: p.Name, Type: p.Range(), Default: p.Default, Doc: p.Doc})
			}
			table(&b, fields)
		}
	}
	b.WriteString("\n## Named workloads\n")
	for _, suite := range work.SuiteNames() {
		fmt.Fprintf(&b, "\n### The suite %s\n\nIt is there %s.\n\n", suite, work.Suites[suite].Doc)
		for _, n := range work.Catalogue() {
			if slices.Contains(work.Suites[suite].Workloads, n.Name) {
				fmt.Fprintf(&b, "- **%s**: %s\n  `%s`\n", n.Name, n.Doc, n.Spec)
			}
		}
	}
	kinds("Kinds of work", work.Kinds())
	kinds("Traces", []work.Kind{work.TraceKind()})
	kinds("Faults", work.FaultKinds())
	return b.String(), nil
}
