// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fromFileConfig writes a configuration whose endpoints are in a file, and returns the flags of a picker of it.
func fromFileConfig(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	endpoints, config := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{
		endpoints: "endpoints: []\n",
		config: "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- {type: file-discovery, parameters: {path: " + endpoints + "}}\n- type: random-picker\n" +
			"schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]\ndataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--pool-name", "p", "--config-file", config, "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--drain-timeout", "0s", "--lame-duck", "0s"}
}

// noCluster has no environment name an API server.
func noCluster(t *testing.T) {
	for _, name := range []string{"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
}

// ended runs a picker that is told to end at once, and returns its log.
func ended(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var log bytes.Buffer
	err := epp(ctx, args, io.Discard, &log)
	return log.String(), err
}

// Authentication needs an API server: without one the metrics port is open, which is a warning for whoever asked for it.
func TestEPPAuth(t *testing.T) {
	noCluster(t)
	args := fromFileConfig(t)
	const open = "--metrics-endpoint-auth has no effect"
	for _, x := range []struct {
		flag   string
		warned bool
	}{{"", false}, {"--metrics-endpoint-auth", true}, {"--metrics-endpoint-auth=false", false}} {
		given := args
		if x.flag != "" {
			given = append(given, x.flag)
		}
		log, err := ended(t, given...)
		if err != nil || strings.Contains(log, open) != x.warned {
			t.Errorf("%s: %v, %s", x.flag, err, log)
		}
	}
	if err := serve(t.Context(), []string{"-f", "x", "--metrics-endpoint-auth"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "needs --kube") {
		t.Errorf("serve without --kube: %v", err)
	}
}

// Where there is an API server, it says who may read the metrics port.
func TestEPPAuthAsks(t *testing.T) {
	noCluster(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no `+r.URL.Path+`"}`)
	}))
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: '"+api.URL+"'}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, auth := range []bool{false, true} {
		c := &clusterFlags{kubeconfig: kubeconfig, namespace: "default", pool: "pool"}
		cl, cfg, err := newCluster(c, options("default"), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := defaults()
		s.auth = auth
		p, err := newProcess(cfg, s, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.connect(c, p); err != nil {
			t.Fatal(err)
		}
		if p.allow == nil {
			if auth {
				t.Error("everybody may read")
			}
			continue
		}
		r := httptest.NewRequest("GET", "/metrics", nil)
		if status, _ := p.allow(r); status != 401 {
			t.Errorf("without a token: %d", status)
		}
		r.Header.Set("Authorization", "Bearer x")
		if status, text := p.allow(r); status != 500 || !strings.Contains(text, "may not create tokenreviews") {
			t.Errorf("without permission: %d %s", status, text)
		}
	}
}

// A flag with a value that it cannot have is a misuse, which says what would be right.
func TestEPPMisused(t *testing.T) {
	noCluster(t)
	args := fromFileConfig(t)
	for flag, want := range map[string]string{
		"--grpc-max-recv-msg-size=16MB":     "want a quantity",
		"--grpc-max-send-msg-size=-1":       "want 1 to 2Gi less 1",
		"--grpc-max-send-msg-size=0":        "want 1 to 2Gi less 1",
		"--metrics-client-ca-file=x":        "needs --metrics-cert-dir",
		"--metrics-endpoint-auth=maybe":     "invalid argument",
		"--tls-min-version=VersionTLS10":    "want VersionTLS12 or VersionTLS13",
		"--zap-encoder=xml":                 "want json or console",
		"--zap-log-level=loud":              "want debug, info, error, panic, or a whole number above 0",
		"--zap-log-level=0":                 "want debug, info, error, panic, or a whole number above 0",
		"-v=-3":                             "-v -3: want 0 or above",
		"--zap-stacktrace-level=debug":      "want info, error or panic",
		"--zap-time-encoding=noon":          "want one of epoch, millis, nano, iso8601, rfc3339, rfc3339nano",
		"--total-queued-requests-metric=x":  "is gone",
		"--refresh-metrics-interval=1ms":    "at least 50ms",
		"--metrics-staleness-threshold=0s":  "above 0",
		"--enable-cert-reload=maybe":        "invalid argument",
		"--tls-cipher-suites=TLS_NULL_NULL": "no cipher suite",
	} {
		var out bytes.Buffer
		if code := dispatch(t.Context(), append([]string{"epp", flag}, args...), io.Discard, &out); code != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit %d, %s; want %q", flag, code, &out, want)
		}
	}
}

// Time does not run backwards.
func TestEPPNegative(t *testing.T) {
	for _, flag := range []string{"--drain-timeout=-5s", "--lame-duck=-1s"} {
		var out bytes.Buffer
		if code := dispatch(t.Context(), []string{"epp", "--pool-name=p", flag}, io.Discard, &out); code != 2 || !strings.Contains(out.String(), "must not be below 0") {
			t.Errorf("%s: exit %d, %s", flag, code, &out)
		}
	}
}

// Flags of llm-d that have a say are heeded, and nothing is said of them.
func TestEPPFlags(t *testing.T) {
	noCluster(t)
	args := fromFileConfig(t)
	for flags, want := range map[string]string{
		"":                                 `"level":"INFO","msg":"listening"`,
		"--zap-encoder console":            `level=INFO msg=listening`,
		"--zap-devel":                      `level=INFO msg=listening`,
		"--zap-devel --zap-encoder json":   `"level":"INFO","msg":"listening"`,
		"--zap-time-encoding nano":         `{"time":1`,
		"--zap-log-level info -v 1":        `"level":"INFO","msg":"listening"`,
		"--zap-stacktrace-level info":      `"stacktrace":"goroutine`,
		"--grpc-max-recv-msg-size 16Mi":    `"msg":"listening"`,
		"--grpc-max-send-msg-size 4194304": `"msg":"listening"`,
		"--enable-cert-reload --enable-grpc-stream-metrics": `"msg":"listening"`,
		"--enable-cert-reload=false":                        `has no effect`,
	} {
		log, err := ended(t, append(strings.Fields(flags), args...)...)
		if len(log) > 2000 {
			log = log[:2000]
		}
		if err != nil || !strings.Contains(log, want) {
			t.Errorf("%s: %v, %s; want %s", flags, err, log, want)
		}
		if strings.Contains(log, "has no effect") != strings.Contains(want, "effect") {
			t.Errorf("%s: %s", flags, log)
		}
	}
	for _, level := range []string{"error", "panic", "1"} {
		if log, err := ended(t, append(args, "--zap-log-level", level)...); err != nil || log != "" {
			t.Errorf("--zap-log-level %s: %v, %s", level, err, log)
		}
	}
}

// A picker whose endpoints are in a file follows its configuration, and stays with the last good one.
func TestEPPReload(t *testing.T) {
	noCluster(t)
	args := fromFileConfig(t)
	file := args[slices.Index(args, "--config-file")+1]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- epp(ctx, args, io.Discard, &log) }()
	until(t, "the start", func() bool { return strings.Contains(log.String(), `"msg":"listening"`) })
	for _, step := range []struct{ text, want string }{
		{strings.ReplaceAll(string(good), "random-picker", "max-score-picker"), `"msg":"configuration reloaded"`},
		{string(good) + "no: such\n", `no: unknown field`},
		{strings.Replace(string(good), "dataLayer:", "# dataLayer:", 1), `in no file any more`},
	} {
		if err := os.WriteFile(file, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		until(t, step.want, func() bool { return strings.Contains(log.String(), step.want) })
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("%v: %s", err, log.String())
	}
}
