// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Prometheus is a running Prometheus that scrapes a gateway every half second, with the alert rules that are shipped.
type Prometheus struct{ Addr string }

// Promtool is Prometheus' own checker of pages and rules.
func Promtool(t testing.TB) string {
	t.Helper()
	return filepath.Join(Tool(t, "install-prometheus.sh"), "usr", "bin", "promtool")
}

// Scrape starts a Prometheus that scrapes the metrics address of a gateway.
func Scrape(t testing.TB, target string) *Prometheus {
	t.Helper()
	return ScrapeJobs(t, fmt.Sprintf("- job_name: penstock\n  static_configs: [{targets: [%q]}]\n", target))
}

// ScrapeJobs starts a Prometheus with these scrape_configs.
func ScrapeJobs(t testing.TB, jobs string) *Prometheus {
	t.Helper()
	program := filepath.Join(Tool(t, "install-prometheus.sh"), "usr", "bin", "prometheus")
	dir := t.TempDir()
	conf := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n%s",
		filepath.Join(Root(), "deploy", "prometheus", "alerts.yaml"), jobs)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &Prometheus{Addr: Addr(t)}
	Start(t, "prometheus", program, "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.Addr,
		"--web.console.templates="+dir, "--web.console.libraries="+dir).Listening(t, p.Addr)
	return p
}

// Query evaluates an expression now. It gives the value of each series of the answer by the value of label; those
// without the label under "".
func (p *Prometheus) Query(expr, label string) (map[string]float64, error) {
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	out := map[string]float64{}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		out[r.Metric[label]] += v
	}
	return out, nil
}

// Becomes waits until the expression, which has one value, has this one.
func (p *Prometheus) Becomes(t testing.TB, expr string, want float64) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%s to be %v", expr, want), func() error {
		got, err := p.Query(expr, "none")
		if v, ok := got[""]; err == nil && (!ok || v != want) {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
}

// Failures gives, by job, why the last scrape of its target failed: empty if it did not. A target that was not scraped yet is
// not in it.
func (p *Prometheus) Failures() (map[string]string, error) {
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				Labels            map[string]string
				Health, LastError string
			}
		}
	}
	if err := p.get("/api/v1/targets", &answer); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, target := range answer.Data.ActiveTargets {
		if target.Health != "unknown" {
			out[target.Labels["job"]] = target.LastError
		}
	}
	return out, nil
}

// Rules lists the health of each rule by its name.
func (p *Prometheus) Rules() (map[string]string, error) {
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := p.get("/api/v1/rules", &answer); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			out[r.Name] = r.Health + r.LastError
		}
	}
	return out, nil
}

func (p *Prometheus) get(path string, v any) error {
	page, err := Get("http://" + p.Addr + path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(page), v)
}
