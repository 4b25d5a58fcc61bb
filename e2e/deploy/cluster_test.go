// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/e2e/rig"
)

// foreign are kinds whose definitions are in no Go module that can be had: they are rendered, and no API server saw them.
var foreign = []string{"HealthCheckPolicy", "GCPBackendPolicy", "PodMonitoring"}

// server starts an API server on this machine and returns the start of a command line of kubectl.
func server(t *testing.T) []string {
	t.Helper()
	bin, dir := rig.Tool(t, "install-kube.sh"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	client, peer, api := rig.Addr(t), rig.Addr(t), rig.Addr(t)
	rig.Start(t, "etcd", filepath.Join(bin, "etcd"), "--name=one", "--data-dir="+at("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://"+client, "--advertise-client-urls=http://"+client,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=one=http://"+peer).Listening(t, client)
	must(t, "", "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", at("accounts.key"))
	write("tokens", `admin,admin,admin,"system:masters"`+"\n")
	host, port, _ := strings.Cut(api, ":")
	rig.Start(t, "kube-apiserver", filepath.Join(bin, "kube-apiserver"), "--etcd-servers=http://"+client, "--bind-address="+host, "--secure-port="+port,
		"--advertise-address="+host, "--endpoint-reconciler-type=none", "--cert-dir="+at("certs"), "--token-auth-file="+at("tokens"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/16", "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://it", "--service-account-key-file="+at("accounts.key"), "--service-account-signing-key-file="+at("accounts.key")).Listening(t, api)
	write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: it, user: {token: admin}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
current-context: it
`, api))
	kubectl := []string{filepath.Join(bin, "kubectl"), "--kubeconfig=" + at("kubeconfig"), "--cache-dir=" + at("cache")}
	rig.Eventually(t, "the API server to serve", func() error {
		_, bad, err := command(t, "", append(slices.Clone(kubectl), "get", "--raw=/readyz")...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, bad)
		}
		return nil
	})
	return kubectl
}

// TestAPIServer shows all that we ship to a real API server, with the kinds of others known to it: it takes every object
// strictly, and finds no pod that the strictest of its security standards would not let in.
func TestAPIServer(t *testing.T) {
	kubectl := server(t)
	do := func(t *testing.T, stdin string, arguments ...string) (out, warnings string) {
		t.Helper()
		out, warnings, err := command(t, stdin, append(slices.Clone(kubectl), arguments...)...)
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, warnings)
		}
		return out, warnings
	}
	do(t, "", "apply", "--server-side", "-f", rig.Tool(t, "install-crds.sh"), "-f", root+"/deploy/crds")
	do(t, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=90s")
	for _, namespace := range []string{"llm-d-fleet", "one", "two", "ai-workloads", "penstock"} {
		do(t, "", "create", "namespace", namespace)
		do(t, "", "label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
	}
	try := func(t *testing.T, manifest string, arguments ...string) {
		t.Helper()
		var kept []string
		for _, o := range objects(t, manifest) {
			if slices.Contains(foreign, text(o["kind"])) {
				continue
			}
			b, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, string(b))
		}
		out, warnings := do(t, strings.Join(kept, "---\n"), append([]string{"apply", "--dry-run=server", "--validate=strict", "-f", "-"}, arguments...)...)
		if got := strings.Count(out, "(server dry run)"); got != len(kept) {
			t.Errorf("%d of %d objects were taken:\n%s", got, len(kept), out)
		}
		for _, w := range strings.Split(warnings, "\n") {
			if w != "" && !strings.Contains(w, "llm-d.ai/v1alpha2 InferenceObjective is deprecated") {
				t.Error(w)
			}
		}
	}
	for name, arguments := range shapes {
		t.Run(name, func(t *testing.T) { try(t, render(t, arguments...)) })
	}
	t.Run("examples", func(t *testing.T) {
		files, err := filepath.Glob(root + "/deploy/examples/*/*.yaml")
		if err != nil || len(files) < 9 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			try(t, string(b), "-n", "llm-d-fleet")
		}
	})
	for _, folder := range []string{"base", "standby", "example"} {
		t.Run("kustomize/"+folder, func(t *testing.T) {
			manifest, _ := do(t, "", "kustomize", filepath.Join(root, "deploy/kustomize", folder))
			if !strings.Contains(manifest, "kind: InferencePool") {
				t.Errorf("no pool in %s", manifest)
			}
			try(t, manifest)
		})
	}
}
