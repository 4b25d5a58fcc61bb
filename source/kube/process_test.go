// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/source/kube"
)

// picking is the environment variable that makes the test's own program the picker.
const picking = "PENSTOCK_TEST_PICKS"

func TestMain(m *testing.M) {
	if os.Getenv(picking) != "" {
		os.Exit(penstock.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// picker is a picker in a process of its own.
type picker struct {
	t    *testing.T
	page string // address of the metrics port

	mu  sync.Mutex
	log strings.Builder
}

func (p *picker) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *picker) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start runs a picker of pool a/p until the test ends.
func start(t *testing.T, s kube.Server, args ...string) *picker {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u"}]}`, s.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &picker{t: t}
	cmd := exec.Command(os.Args[0], append([]string{"epp", "--kubeconfig", config, "--pool-name", "p", "--pool-namespace", "a", "--lame-duck", "0s",
		"--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--metrics-endpoint-auth=false"}, args...)...)
	cmd.Env = append(os.Environ(), picking+"=1")
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the picker ended: %v", err)
		}
		if t.Failed() {
			t.Log(p.said())
		}
	})
	at := regexp.MustCompile(`"for":"metrics","address":"\S*?:(\d+)"`)
	p.until("the metrics port", func() bool {
		m := at.FindStringSubmatch(p.said())
		if m != nil {
			p.page = "http://127.0.0.1:" + m[1]
		}
		return m != nil
	})
	return p
}

func (p *picker) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("waited for %s", what)
		}
	}
}

func (p *picker) get(path string) (int, string) {
	r, err := http.Get(p.page + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// fleet is /debug/fleet.
func (p *picker) fleet() (v observe.FleetView) {
	_, text := p.get("/debug/fleet")
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.Kube == nil {
		p.t.Fatalf("%v: %.500s", err, text)
	}
	return v
}

// decides is the type of the plugin that the configuration in force has.
func (p *picker) decides() string {
	text, _ := json.Marshal(p.fleet().Config)
	for _, plugin := range []string{"random-picker", "queue-scorer", "kv-cache-utilization-scorer"} {
		if strings.Contains(string(text), `"type":"`+plugin+`"`) {
			return plugin
		}
	}
	return ""
}

const (
	aConfigMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"a","name":"conf","uid":"cm"},"data":{"mine.yaml":%q}}`
	aConfig    = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: %s}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: %s}]}]\n"
)

func config(plugin string) string { return fmt.Sprintf(aConfig, plugin, plugin) }

// A picker follows its ConfigMap: what is wrong is told where an operator looks, and what it said last stays, also when it is gone.
func TestConfigMapOfProcess(t *testing.T) {
	s := kube.NewServer(t)
	s.Put(kube.APool, "a", "p", "x")
	s.Put(kube.APod, "a", "e0", "u0", "x", "127.0.0.1", "True")
	p := start(t, s, "--config-map", "a/conf")
	p.until("that it is not ready without", func() bool {
		code, why := p.get("/readyz")
		return code == 503 && strings.Contains(why, "there is no ConfigMap a/conf")
	})
	state := func(want string, errors string) func() bool {
		return func() bool {
			maps := p.fleet().Kube.ConfigMaps
			return len(maps) == 1 && maps[0].Name == "conf" && maps[0].State == want && strings.Contains(strings.Join(maps[0].Errors, "\n"), errors)
		}
	}
	event := func(reason string) func() bool {
		return func() bool {
			return slices.ContainsFunc(s.Written(), func(w string) bool { return strings.HasPrefix(w, "event ConfigMap conf "+reason) })
		}
	}
	s.Put(aConfigMap, config("queue-scorer"))
	p.until("readiness", func() bool { code, _ := p.get("/readyz"); return code == 200 })
	p.until("the configuration", func() bool { return p.decides() == "queue-scorer" && state("in-force", "")() })
	s.Put(aConfigMap, config("kv-cache-utilization-scorer"))
	p.until("the next", func() bool { return p.decides() == "kv-cache-utilization-scorer" })
	_ = s.Written()
	s.Put(aConfigMap, config("random-picker")+"no: such\n")
	p.until("that it is refused", state("older-in-force", "line 5: no: unknown field"))
	p.until("an event", event("Invalid: line 5: no: unknown field"))
	if got := p.decides(); got != "kv-cache-utilization-scorer" {
		t.Errorf("%s decides", got)
	}
	if _, text := p.get("/metrics"); !strings.Contains(text, "penstock_config_errors 1\n") {
		t.Error("no metric tells of it")
	}
	s.Remove(aConfigMap, "")
	p.until("that it is gone", state("older-in-force", "there is no such ConfigMap"))
	if code, _ := p.get("/readyz"); code != 200 || p.decides() != "kv-cache-utilization-scorer" {
		t.Errorf("%d, %s decides", code, p.decides())
	}
	s.Put(aConfigMap, config("random-picker")+"no: such\n")
	p.until("that it is refused again", state("older-in-force", "line 5: no: unknown field"))
	s.Put(aConfigMap, config("random-picker"))
	p.until("the good one", func() bool { return p.decides() == "random-picker" && state("in-force", "")() })
	p.until("an event", event("Accepted"))
	feeds := p.fleet().Kube.Feeds
	i := slices.IndexFunc(feeds, func(f observe.FeedView) bool { return f.Resource == "configmaps" })
	if i < 0 || feeds[i].State != "synced" || feeds[i].Objects != 1 || feeds[i].Name != "conf" {
		t.Errorf("feeds %+v", feeds)
	}
	if _, text := p.get("/metrics"); !strings.Contains(text, `penstock_kube_feed_state{name="conf",namespace="a",resource="configmaps",state="synced",version="v1"} 1`) ||
		!strings.Contains(text, `penstock_kube_objects{name="",namespace="a",resource="pods"} 1`) || !strings.Contains(text, "penstock_config_errors 0\n") {
		t.Error("metrics lack what is followed")
	}
}
