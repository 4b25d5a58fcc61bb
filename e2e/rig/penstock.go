// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const pool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool, namespace: default}
spec:
  targetPorts: [{number: 8000}]
  selector: {matchLabels: {app: pool}}
  endpointPickerRef: {name: picker, port: {number: 9002}}
`

const picker = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: %q, watchFile: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer: {discovery: {pluginRef: endpoints}}
`

// Gateway is a running `penstock serve` or `penstock epp`, and the folder of its manifests.
type Gateway struct {
	*Process
	Dir                   string
	HTTP, Picker, Metrics string // HTTP is Envoy's when the gateway is behind it
	arguments             []string
}

// Serve starts `penstock serve` from a folder of manifests, with the endpoints at addrs.
func Serve(t testing.TB, addrs ...string) *Gateway {
	t.Helper()
	g := &Gateway{Dir: t.TempDir(), HTTP: Addr(t), Picker: Addr(t), Metrics: Addr(t)}
	g.Write(t, "pool.yaml", pool)
	g.Write(t, "picker.yaml", g.PickerConfig())
	g.Endpoints(t, addrs...)
	g.arguments = []string{"serve", "-f", g.Dir, "--http", g.HTTP, "--extproc", g.Picker, "--metrics", g.Metrics}
	g.Restart(t)
	g.Listening(t, g.HTTP)
	return g
}

// EPP starts `penstock epp`, with TLS as it does by default, and Envoy in front of it, configured by
// deploy/envoy with more flags for render.sh.
func EPP(t testing.TB, render []string, addrs ...string) (*Gateway, *Process) {
	t.Helper()
	g := &Gateway{Dir: t.TempDir(), HTTP: Addr(t), Picker: Addr(t), Metrics: Addr(t)}
	g.Write(t, "picker.yaml", g.PickerConfig())
	g.Endpoints(t, addrs...)
	g.arguments = []string{"epp", "--pool-name", "pool", "--pool-namespace", "default",
		"--config-file", filepath.Join(g.Dir, "picker.yaml"), "--metrics-port", Port(g.Metrics),
		"--grpc-port", Port(g.Picker), "--grpc-health-port", Port(Addr(t))}
	for _, flag := range render {
		if flag == "--plaintext" {
			g.arguments = append(g.arguments, "--secure-serving=false")
		}
	}
	g.Restart(t)
	return g, Envoy(t, g, render...)
}

// Envoy starts Envoy with the shipped configuration, between clients at g.HTTP and the picker.
func Envoy(t testing.TB, g *Gateway, render ...string) *Process {
	t.Helper()
	program := filepath.Join(Tool(t, "install-envoy.sh"), "venv", "bin", "envoy")
	argv := append([]string{filepath.Join(Root(), "deploy", "envoy", "render.sh"),
		"--listen", g.HTTP, "--admin", Addr(t), "--picker", g.Picker}, render...)
	conf := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(conf, []byte(Run(t, nil, argv...)), 0o644); err != nil {
		t.Fatal(err)
	}
	return Start(t, "envoy", program, "-c", conf, "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id").
		Listening(t, g.HTTP)
}

// Restart starts the gateway, again when it has ended, at the same addresses.
func (g *Gateway) Restart(t testing.TB) {
	t.Helper()
	g.Process = Start(t, "penstock-"+g.arguments[0], append([]string{Penstock(t)}, g.arguments...)...)
	g.Listening(t, g.Picker).Listening(t, g.Metrics)
}

// PickerConfig is the EndpointPickerConfig that the gateway starts with: queue, KV cache, prefix.
func (g *Gateway) PickerConfig() string {
	return fmt.Sprintf(picker, filepath.Join(g.Dir, "endpoints.yaml"))
}

// Endpoints replaces the list of endpoints.
func (g *Gateway) Endpoints(t testing.TB, addrs ...string) {
	t.Helper()
	list := "endpoints:\n"
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		list += fmt.Sprintf("- {name: e%d, namespace: default, address: %q, port: %q, labels: {app: pool}}\n", i, host, port)
	}
	if len(addrs) == 0 {
		list = "endpoints: []\n"
	}
	g.Write(t, "endpoints.yaml", list)
}

// Write replaces one file of the gateway's folder in one step.
func (g *Gateway) Write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(g.Dir, name)
	next := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// Ready waits until n endpoints are known and alive.
func (g *Gateway) Ready(t testing.TB, n int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d ready endpoints", n), func() error {
		got, err := Metric(g.Metrics, "llm_d_epp_ready_endpoints")
		if err == nil && got != float64(n) {
			err = fmt.Errorf("llm_d_epp_ready_endpoints is %v", got)
		}
		return err
	})
}

// Metric reads the page of metrics at addr and returns the sum of the samples with that name.
func Metric(addr, name string) (float64, error) {
	page, err := Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	samples := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{.*\})? (\S+)`).FindAllStringSubmatch(page, -1)
	if samples == nil {
		return 0, fmt.Errorf("no %s on the page of %s", name, addr)
	}
	sum := 0.0
	for _, s := range samples {
		v, err := strconv.ParseFloat(s[1], 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// Sims starts n simulated engines that serve model, with more flags, and returns their addresses.
func Sims(t testing.TB, n int, model string, flags ...string) []string {
	t.Helper()
	var addrs []string
	var all []*Process
	for i := range n {
		addr := Addr(t)
		addrs = append(addrs, addr)
		all = append(all, Start(t, "engine"+strconv.Itoa(i), append([]string{
			Penstock(t), "sim", "engine", "--port", Port(addr), "--served-model-name", model}, flags...)...))
	}
	for i, p := range all {
		p.Listening(t, addrs[i])
	}
	return addrs
}

// Addrs returns the engines' addresses.
func Addrs(engines []*Engine) []string {
	var addrs []string
	for _, e := range engines {
		addrs = append(addrs, e.Addr)
	}
	return addrs
}

// FailOpen is the flag of render.sh that names the endpoints to use without a picker.
func FailOpen(addrs ...string) []string {
	return []string{"--fail-open", strings.Join(addrs, ",")}
}
