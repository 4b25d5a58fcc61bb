// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"testing"

	"github.com/penstock-project/penstock/config"
)

// What is polled, by what a dataLayer says. Sources are injected by their type, and not by their name.
func TestScrapePlan(t *testing.T) {
	const all = "metrics-data-source(core-metrics-extractor) models-data-source(models-data-extractor)"
	for _, c := range []struct{ name, plugins, dataLayer, want string }{
		{"nothing is said", "", "", all},
		{"an empty section", "", "{}", all},
		{"nothing is to be injected", "", "{injectDefaults: false}", ""},
		{"nothing but models", "[{type: models-data-source}, {type: models-data-extractor}]",
			"{injectDefaults: false, sources: [{pluginRef: models-data-source, extractors: [{pluginRef: models-data-extractor}]}]}", "models-data-source(models-data-extractor)"},
		{"a source under another name", "[{name: pages, type: metrics-data-source}, {name: engines, type: core-metrics-extractor}]",
			"{sources: [{pluginRef: pages, extractors: [{pluginRef: engines}]}]}", "pages(engines) models-data-source(models-data-extractor)"},
		{"a source that names no extractor", "[{name: pages, type: metrics-data-source}, {name: engines, type: core-metrics-extractor}]",
			"{sources: [{pluginRef: pages}]}", "pages(engines) models-data-source(models-data-extractor)"},
		{"a source that nothing reads", "[{type: metrics-data-source}]", "{injectDefaults: false, sources: [{pluginRef: metrics-data-source}]}", ""},
		{"plugins that are declared alone", "[{name: pages, type: metrics-data-source, parameters: {port: 9}}, {name: engines, type: core-metrics-extractor}]",
			"", "pages(engines) models-data-source(models-data-extractor)"},
		{"others beside", "[{type: dcgm-data-source}, {type: dcgm-extractor}, {name: far, type: multicluster-metrics-data-source}]",
			"{sources: [{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}, {pluginRef: far}]}",
			"dcgm-data-source(dcgm-extractor) far(multicluster-metrics-extractor) " + all},
		{"several of a type", "[{name: a, type: metrics-data-source}, {name: b, type: metrics-data-source, parameters: {port: 9}}, {name: x, type: core-metrics-extractor}]",
			"{sources: [{pluginRef: a, extractors: [{pluginRef: x}]}, {pluginRef: b, extractors: [{pluginRef: x}]}]}", "a(x) b(x) models-data-source(models-data-extractor)"},
		{"a misfit", "[{name: x, type: models-data-extractor}, {name: pages, type: metrics-data-source}]", "{sources: [{pluginRef: pages, extractors: [{pluginRef: x}]}]}",
			"!dataLayer.sources: x: reads lists of models, and pages brings metrics: list it under a models-data-source"},
		{"a file that is not there", "[{name: pages, type: metrics-data-source, parameters: {bearerTokenFile: /nowhere/token}}]", "",
			"!dataLayer.sources: pages: bearerTokenFile: open /nowhere/token: no such file or directory"},
	} {
		for _, version := range []string{"llm-d.ai/v1", "llm-d.ai/v1alpha1"} {
			t.Run(c.name+", "+version, func(t *testing.T) {
				text := "apiVersion: penstock.dev/v1alpha1\nkind: Penstock\nspec: {allowExperimentalPlugins: true}\n---\napiVersion: " + version +
					"\nkind: EndpointPickerConfig\nplugins: " + c.plugins + "\ndataLayer: " + c.dataLayer + "\n"
				cfg, problems := config.Text("x.yaml", text, options(""))
				if cfg == nil {
					t.Fatal(problems)
				}
				plan, err := scrapePlan(cfg.Pickers[0])
				got := ""
				if err != nil {
					got = "!" + err.Error()
				} else {
					got = fmt.Sprint(plan)
				}
				if got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	}
}
