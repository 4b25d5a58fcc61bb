// SPDX-License-Identifier: Apache-2.0

// Package deploy tries what is in deploy/: the Helm chart with values for each of its shapes, the Kustomize base and the
// examples; rendered, read by the programs that they are for, and shown to an API server.
package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/e2e/rig"
)

var update = flag.Bool("update", false, "rewrite the files that tests compare with")

const (
	root  = "../.."
	chart = root + "/deploy/charts/penstock"
)

// command runs a program and returns what it printed; stdin may be empty.
func command(t testing.TB, stdin string, argv ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	err = cmd.Run()
	return out.String(), bad.String(), err
}

// must is command for what has to succeed.
func must(t testing.TB, stdin string, argv ...string) string {
	t.Helper()
	out, bad, err := command(t, stdin, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, bad)
	}
	return out
}

// helm is a command line. That the chart's envoy.yaml is a link it tells each time.
func helm(t testing.TB, arguments ...string) []string {
	return append([]string{filepath.Join(rig.Tool(t, "install-helm.sh"), "helm")}, arguments...)
}

// shapes are the releases that are tried: what an operator gives helm, beside the chart. The files are in testdata.
var shapes = map[string][]string{
	"default": {"--set=router.modelServers.matchLabels.app=vllm"},
	// llm-d's own command line, with its files.
	"seed": {"-f=" + root + "/deploy/examples/fleet/values/base.values.yaml", "-f=" + root + "/deploy/examples/fleet/values/fleet-flow-control.values.yaml",
		"--set=provider.name=istio", "--set=httpRoute.create=false", "--set=httpRoute.inferenceGatewayName=llm-d-inference-gateway"},
	"gke":          {"-f=testdata/gateway.values.yaml", "--set=provider.name=gke", "--set=router.monitoring.provider.name=gmp"},
	"istio":        {"-f=testdata/gateway.values.yaml", "--set=provider.name=istio"},
	"envoygateway": {"-f=testdata/gateway.values.yaml", "--set=provider.name=envoy"},
	"kgateway":     {"-f=testdata/gateway.values.yaml", "--set=provider.name=kgateway"},
	"agentgateway": {"-f=testdata/gateway.values.yaml", "--set=provider.name=agentgateway"},
	"alone":        {"-f=testdata/alone.values.yaml"},
	"sidecar":      {"-f=testdata/sidecar.values.yaml"},
	"service":      {"-f=testdata/sidecar.values.yaml", "--set=router.proxy.mode=service", "--set=router.epp.replicas=2"},
	"leader":       {"-f=testdata/alone.values.yaml", "--set=router.epp.flags.ha-enable-leader-election=true"},
	"sidecars":     {"-f=testdata/sidecar.values.yaml", "--set=router.epp.replicas=2"},
	"lone":         {"-f=testdata/gateway.values.yaml", "--set=router.epp.leaderService=false", "--set=router.monitoring.prometheus.auth.enabled=false"},
	"standby":      {"-f=testdata/standby.values.yaml"},
	"active":       {"-f=testdata/sidecar.values.yaml", "--set=router.epp.autoscaling.enabled=true"},
	"selector":     {"--set=router.modelServers.matchLabels.app=vllm", "--set=router.inferencePool.create=false", "--set=router.epp.replicas=3"},
	"pools":        {"--set=router.pools.all=true"},
	"namespaces":   {"--set=router.pools.all=true", "--set=router.pools.namespaces={one,two}"},
	"tokenizer":    {"-f=testdata/tokenizer.values.yaml"},
}

// render is what helm makes of a shape.
func render(t testing.TB, arguments ...string) string {
	t.Helper()
	return must(t, "", helm(t, append([]string{"template", "fleet-router", chart, "--namespace=llm-d-fleet"}, arguments...)...)...)
}

// object is a Kubernetes object, or a part of one.
type object = map[string]any

// objects reads YAML documents.
func objects(t testing.TB, text string) (list []object) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o != nil {
			list = append(list, o)
		}
	}
}

// at is the value at a path; nil when there is none.
func at(v any, path ...any) any {
	for _, step := range path {
		switch in := v.(type) {
		case object:
			key, _ := step.(string)
			v = in[key]
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func find(list []object, kind, name string) object {
	i := slices.IndexFunc(list, func(o object) bool { return o["kind"] == kind && at(o, "metadata", "name") == name })
	if i < 0 {
		return nil
	}
	return list[i]
}

// TestLint is helm's own opinion.
func TestLint(t *testing.T) {
	for name, arguments := range shapes {
		if out, bad, err := command(t, "", helm(t, append([]string{"lint", "--strict", "--quiet", chart}, arguments...)...)...); err != nil {
			t.Errorf("%s: %v\n%s%s", name, err, out, bad)
		}
	}
}

// TestGolden shows what some shapes come to; read the diff after -update.
func TestGolden(t *testing.T) {
	for _, name := range []string{"seed", "alone", "standby", "istio"} {
		golden(t, filepath.Join("testdata", name+".yaml"), render(t, shapes[name]...))
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got {
		t.Errorf("%s is not what the chart gives (%v); run go test ./deploy -update in e2e and read the diff", path, err)
	}
}

// TestRefusals: values that cannot mean what they say do not render, and the text says what would be right.
func TestRefusals(t *testing.T) {
	ok := "router.modelServers.matchLabels.app=vllm"
	for _, c := range []struct {
		set  []string
		want string
	}{
		{nil, "router.modelServers.matchLabels: is required"},
		{[]string{ok, "inferenceExtension.replicas=2"}, "inferenceExtension: has moved to router.epp"},
		{[]string{ok, "inferencePool.targetPortNumber=8000"}, "inferencePool: has moved to router.inferencePool"},
		{[]string{ok, "inferenceObjectives[0].name=x"}, "inferenceObjectives: has moved to router.inferenceObjectives"},
		{[]string{ok, "experimentalHttpRoute.enabled=true"}, "experimentalHttpRoute: has moved to httpRoute"},
		{[]string{ok, "router.eppp.replicas=2"}, "'eppp' not allowed"},
		{[]string{ok, "router.inferencePool.failureMode=Open"}, "must be one of 'FailOpen', 'FailClose', 'FailClosed'"},
		{[]string{ok, "provider.name=traefik"}, "must be one of 'none', 'istio'"},
		{[]string{ok, "router.proxy.proxyType=agentgateway"}, "must be one of '', 'penstock', 'envoy'"},
		{[]string{ok, "router.epp.pluginsConfigFile=mine.yaml"}, "there is no mine.yaml: write it under router.epp.pluginsCustomConfig"},
		{[]string{ok, "router.epp.pluginsConfig.kind=x", "router.epp.pluginsCustomConfig.default-plugins\\.yaml=y"}, "both say what is in default-plugins.yaml"},
		{[]string{ok, "router.pools.namespaces={a,b}"}, "router.pools.namespaces: are those of router.pools.all=true"},
		{[]string{ok, "router.proxy.priorityRouting.enabled=true"}, "router.proxy.priorityRouting: is for"},
		{[]string{ok, "router.epp.autoscaling.enabled=true", "router.epp.flags.ha-enable-leader-election=true"}, "router.epp.autoscaling: is for replicas that all serve"},
		{[]string{ok, "router.monitoring.tls.clientSecretName=a"}, "set router.monitoring.tls.secretName"},
		{[]string{ok, "router.epp.replicas=2", "router.extraServicePorts[0].name=a", "router.extraServicePorts[0].port=1", "router.extraServicePorts[0].targetPort=b"}, "targetPort b of port a is a name"},
		{[]string{ok, "router.proxy.enabled=true", "provider.name=istio"}, "either a Gateway is in front of the picker or a proxy"},
		{[]string{ok, "router.proxy.enabled=true", "httpRoute.create=true"}, "httpRoute.create: is for a Gateway"},
		{[]string{ok, "router.proxy.enabled=true", "router.inferencePool.create=false"}, "router.proxy.proxyType=penstock: finds engines by an InferencePool"},
		{[]string{ok, "httpRoute.create=true", "router.inferencePool.create=false"}, "httpRoute.create: leads to the pool of this release"},
		{[]string{"router.pools.all=true", "router.inferenceObjectives[0].name=a", "router.inferenceObjectives[0].priority=1"}, "router.inferenceObjectives: belong to the pool"},
		{[]string{ok, "router.modelServers.scaledObject.enabled=true"}, "scaleTargetRef.name: is required"},
		{[]string{ok, "router.tokenizer.enabled=true"}, "router.tokenizer.modelName: is required"},
		{[]string{ok, "router.latencyPredictor.enabled=true"}, "learns the speed of each endpoint itself"},
		{[]string{ok, "provider.gke.preferredBackends.enabled=true"}, "set router.epp.replicas=2"},
	} {
		arguments := []string{"template", "r", chart}
		for _, s := range c.set {
			arguments = append(arguments, "--set="+s)
		}
		if _, bad, err := command(t, "", helm(t, arguments...)...); err == nil || !strings.Contains(bad, c.want) {
			t.Errorf("%v: got %v %s, want %q", c.set, err, bad, c.want)
		}
	}
}

// TestNotes: what an operator is told next has no holes.
func TestNotes(t *testing.T) {
	for name, arguments := range shapes {
		out := must(t, "", helm(t, append([]string{"install", "fleet-router", chart, "--namespace=llm-d-fleet", "--dry-run=client"}, arguments...)...)...)
		_, notes, ok := strings.Cut(out, "NOTES:")
		if !ok || !strings.Contains(notes, "kubectl -n llm-d-fleet rollout status") || strings.Contains(notes, "<nil>") || strings.Contains(notes, "<no value>") {
			t.Errorf("%s: %s", name, notes)
		}
	}
}

var helpFlag = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([-\w]+)`)

// TestStandbys: where one leads, who is ready, where the Service leads, and what a rollout and a disruption may do go together.
func TestStandbys(t *testing.T) {
	for name, want := range map[string]struct {
		service   string // how requests come to a leader: by the "front" that it writes, its readiness ("lone"), Envoy's health checks, or "all" serve
		readiness string
	}{
		"default": {"all", "readiness"}, "alone": {"all", "readiness"}, "active": {"all", "readiness"},
		"istio": {"front", "warm"}, "selector": {"front", "warm"}, "leader": {"front", "warm"}, "sidecars": {"front", "warm"},
		"lone": {"lone", "readiness"}, "service": {"envoy", "warm"},
	} {
		list := objects(t, render(t, shapes[name]...))
		service, deployment := find(list, "Service", "fleet-router-epp"), find(list, "Deployment", "fleet-router-epp")
		container := at(deployment, "spec", "template", "spec", "containers", 0)
		args := fmt.Sprint(at(container, "args"))
		front := want.service == "front"
		for what, ok := range map[string]bool{
			"a leader is elected":        strings.Contains(args, "--ha-enable-leader-election=true") == (want.service != "all"),
			"the leader leads a Service": strings.Contains(args, "--ha-service=fleet-router-epp") == front,
			"the Service has a selector": (at(service, "spec", "selector") != nil) != front,
			"metrics of all are found":   (find(list, "Service", "fleet-router-epp-metrics") != nil) == front,
			"readiness":                  at(container, "readinessProbe", "grpc", "service") == want.readiness,
			"a disruption budget":        (find(list, "PodDisruptionBudget", "fleet-router-epp") != nil) == (want.service != "lone"),
			"none goes before another":   (at(deployment, "spec", "strategy", "rollingUpdate", "maxUnavailable") == 0) == (want.service != "lone"),
			"it may write slices":        !front || strings.Contains(fmt.Sprint(find(list, "Role", "fleet-router-epp-leader")), "endpointslices"),
			"it may ask about tokens":    (find(list, "ClusterRole", "llm-d-fleet-fleet-router-epp-metrics-auth") != nil) == (name != "lone"),
		} {
			if !ok {
				t.Errorf("%s: %s: not as it should be", name, what)
			}
		}
	}
}

// TestFlags: each flag on a command line is one of that command, and a file that it names is mounted.
func TestFlags(t *testing.T) {
	known := map[string]map[string]bool{}
	for _, name := range []string{"epp", "serve"} {
		known[name] = map[string]bool{}
		for _, m := range helpFlag.FindAllStringSubmatch(must(t, "", rig.Penstock(t), name, "--help"), -1) {
			known[name][m[1]] = true
		}
	}
	for name, arguments := range shapes {
		seen := 0
		for _, o := range objects(t, render(t, arguments...)) {
			containers, _ := at(o, "spec", "template", "spec", "containers").([]any)
			for _, c := range containers {
				if at(c, "command", 0) != "/penstock" {
					continue
				}
				seen++
				command := text(at(c, "command", 1))
				args, _ := at(c, "args").([]any)
				for _, a := range args {
					flag, _, _ := strings.Cut(strings.TrimPrefix(text(a), "--"), "=")
					if !known[command][flag] {
						t.Errorf("%s: penstock %s has no --%s", name, command, flag)
					}
				}
			}
		}
		if seen != 1 {
			t.Errorf("%s: %d containers of ours, want 1", name, seen)
		}
	}
}

// TestConfigurations: penstock reads what is in the picker's ConfigMap, and the file that the command line names is there.
func TestConfigurations(t *testing.T) {
	checked := map[string]bool{}
	for _, arguments := range shapes {
		list := objects(t, render(t, arguments...))
		data, _ := at(find(list, "ConfigMap", "fleet-router-epp"), "data").(object)
		for file, v := range data {
			if checked[text(v)] {
				continue
			}
			checked[text(v)] = true
			path := filepath.Join(t.TempDir(), file)
			if err := os.WriteFile(path, []byte(text(v)), 0o644); err != nil {
				t.Fatal(err)
			}
			must(t, "", rig.Penstock(t), "check", path)
		}
	}
}

// TestEnvoy: Envoy takes each configuration of ours, and but for addresses and its page of statistics it is the one in
// deploy/envoy, which other tests try.
func TestEnvoy(t *testing.T) {
	envoy := filepath.Join(rig.Tool(t, "install-envoy.sh"), "venv", "bin", "envoy")
	tls := t.TempDir()
	must(t, "", "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=ca", "-keyout", filepath.Join(tls, "ca.key"), "-out", filepath.Join(tls, "ca.crt"))
	for name, arguments := range shapes {
		config := text(at(find(objects(t, render(t, arguments...)), "ConfigMap", "fleet-router-proxy"), "data", "envoy.yaml"))
		if config == "" {
			continue
		}
		path := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(config, "/tls", tls)), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, bad, err := command(t, "", envoy, "--mode", "validate", "-c", path); err != nil {
			t.Errorf("%s: %v\n%s%s", name, err, out, bad)
		}
		if name != "sidecar" {
			continue
		}
		want := must(t, "", root+"/deploy/envoy/render.sh", "--listen", "0.0.0.0:8081", "--fail-open", "fleet-router-proxy-models.llm-d-fleet.svc.cluster.local:8000")
		if got, want := plain(t, config), plain(t, want); got != want {
			t.Errorf("the sidecar's configuration is not that of deploy/envoy; got\n%s\nwant\n%s", got, want)
		}
	}
}

// plain is a configuration of Envoy without comments, and without what the chart alone has.
func plain(t testing.TB, config string) string {
	o := objects(t, config)[0]
	for _, key := range []string{"listeners", "clusters"} {
		list := at(o, "static_resources", key).([]any)
		at(o, "static_resources").(object)[key] = slices.DeleteFunc(list, func(v any) bool { return at(v, "name") == "stats" })
	}
	delete(at(o, "static_resources", "listeners", 0, "address", "socket_address").(object), "ipv4_compat")
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestKustomize: the bases are what the chart gives, and kustomize takes them and the example over one.
func TestKustomize(t *testing.T) {
	for _, base := range []string{"base", "standby"} {
		folder := root + "/deploy/kustomize/" + base
		text := must(t, "", helm(t, "template", "pool", chart, "--namespace=penstock", "-f="+folder+"/values.yaml")...)
		text = regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by):.*\n|^# Source: .*\n`).ReplaceAllString(text, "")
		golden(t, folder+"/penstock.yaml", "# SPDX-License-Identifier: Apache-2.0\n# Made by TestKustomize of e2e/deploy: go test ./deploy -update in e2e.\n"+text)
	}
}
