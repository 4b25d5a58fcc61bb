// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
)

func put(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// poolText is an InferencePool of app=NAME.
func poolText(name string, port int) string {
	return fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: %s}\nspec:\n  selector: {matchLabels: {app: %s}}\n"+
		"  targetPorts: [{number: %d}]\n  endpointPickerRef: {name: %[1]s-epp, port: {number: 9002}}\n", name, name, port)
}

// entry is a line of a list of endpoints, whose address nobody serves.
func entry(name, app string, port int) string {
	return fmt.Sprintf("- {name: %s, address: 127.0.0.1, port: %d, labels: {app: %s}}\n", name, port, app)
}

// found writes what a store knows: pool: name=port …
func found(s *fleet.Store) string {
	var pools []string
	for _, p := range s.Load().Pools {
		text := p.Name + ":"
		for _, e := range p.Endpoints {
			text += fmt.Sprintf(" %s=%d", e.Name, e.AddrPort.Port())
		}
		pools = append(pools, text)
	}
	return strings.Join(pools, "; ")
}

// following runs a gateway without doors that follows a folder.
func following(t *testing.T, dir string) (*process, *lockedBuffer) {
	t.Helper()
	load := func() (*config.Config, []config.Problem) { return config.Load([]string{dir}, options("")) }
	cfg, problems := load()
	if cfg == nil {
		t.Fatal(config.Problems(problems))
	}
	log := &lockedBuffer{}
	s := defaults()
	s.drain = 0
	p, err := newProcess(cfg, s, log)
	if err != nil {
		t.Fatal(err)
	}
	p.files, p.reload = []string{dir}, load
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, cfg) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return p, log
}

// What a reload changes, pools and endpoints of several files, is one publication.
func TestReloadIsOnePublication(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "pools.yaml", poolText("a", 1)+"---\n"+poolText("b", 1))
	put(t, dir, "one.yaml", "endpoints:\n"+entry("x", "a", 1)+entry("y", "b", 2))
	put(t, dir, "two.yaml", "endpoints:\n"+entry("z", "b", 3))
	load := func() *config.Config {
		cfg, problems := config.Load([]string{dir}, options(""))
		if cfg == nil {
			t.Fatal(config.Problems(problems))
		}
		return cfg
	}
	p, err := newProcess(load(), defaults(), &lockedBuffer{})
	if err != nil {
		t.Fatal(err)
	}
	before := p.store.Load()
	if got := found(p.store); got != "a: x=1; b: y=2 z=3" || before.Version != 1 {
		t.Errorf("at the start: got %q in %d publications", got, before.Version)
	}
	put(t, dir, "pools.yaml", poolText("c", 1)+"---\n"+poolText("b", 1))
	put(t, dir, "one.yaml", "endpoints:\n"+entry("x", "c", 1))
	put(t, dir, "three.yaml", "endpoints:\n"+entry("y", "b", 2))
	if err := os.Remove(filepath.Join(dir, "two.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := p.apply(t.Context(), load()); err != nil {
		t.Fatal(err)
	}
	after := p.store.Load()
	if got := found(p.store); got != "b: y=2; c: x=1" || after.Version != before.Version+1 {
		t.Errorf("got %q after %d publications", got, after.Version-before.Version)
	}
	if before.Pools[1].Endpoints[0].Load != after.Pools[0].Endpoints[0].Load {
		t.Error("an endpoint that moved from file to file is another")
	}
}

// A manifest that is emptied counts as being written; a wrong entry stays what it was; what is deleted goes.
func TestEndpointsInAFolder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "pool.yaml", poolText("p", 1))
	list := put(t, dir, "list.yaml", "endpoints:\n"+entry("a", "p", 1)+entry("b", "p", 2))
	p, log := following(t, dir)
	is := func(want string) {
		t.Helper()
		until(t, want, func() bool { return found(p.store) == want })
	}
	is("p: a=1 b=2")
	v := p.store.Load().Pools[0].Endpoints[0].Load
	put(t, dir, "list.yaml", "\n")
	until(t, "the empty file to be refused", func() bool { return strings.Contains(log.String(), "a file is empty") })
	is("p: a=1 b=2")
	put(t, dir, "list.yaml", "endpoints:\n"+entry("a", "p", 1)+"- {name: b, address: what is this, port: 2, labels: {app: p}}\n"+entry("c", "p", 3))
	is("p: a=1 b=2 c=3")
	if got := log.String(); !strings.Contains(got, "list.yaml:3: endpoints[1].address") || !strings.Contains(got, "stays as it was") {
		t.Error("want the wrong entry's place, and that it stays")
	}
	put(t, dir, "list.yaml", "endpoints:\n"+entry("a", "p", 1)+entry("c", "p", 3))
	is("p: a=1 c=3")
	if p.store.Load().Pools[0].Endpoints[0].Load != v {
		t.Error("a is another incarnation than at first")
	}
	put(t, dir, "list.yaml", "endpoints: []\n")
	is("p:")
	put(t, dir, "list.yaml", "endpoints:\n"+entry("a", "p", 1))
	is("p: a=1")
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	is("p:")
}

// Files that only a later configuration names are followed, too: lists of endpoints and secrets.
func TestFilesNamedLaterAreFollowed(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	picker := func(path string) string {
		return "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nmetadata: {name: p-epp}\nplugins:\n- {type: file-discovery, parameters: {path: " + path + "}}\n" +
			"dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n"
	}
	put(t, dir, "pool.yaml", poolText("p", 1))
	one := put(t, outside, "one.yaml", "endpoints:\n"+entry("a", "p", 1))
	put(t, dir, "picker.yaml", picker(one))
	p, log := following(t, dir)
	is := func(want string) {
		t.Helper()
		until(t, want, func() bool { return found(p.store) == want })
	}
	is("p: a=1")
	two := put(t, outside, "two.yaml", "endpoints:\n"+entry("b", "p", 2))
	put(t, dir, "picker.yaml", picker(two))
	is("p: b=2")
	put(t, outside, "two.yaml", "endpoints:\n"+entry("b", "p", 3))
	is("p: b=3")
	put(t, outside, "one.yaml", "endpoints:\n"+entry("a", "p", 9))

	secret := put(t, outside, "secret", "first")
	put(t, dir, "penstock.yaml", "apiVersion: penstock.dev/v1alpha1\nkind: Penstock\nmetadata: {name: x}\nspec: {trust: {header: {name: x-proof, file: "+secret+"}}}\n")
	is1 := func(want string) {
		t.Helper()
		until(t, "the secret "+want, func() bool { tr := p.doors.proxy.Trust(); return tr.Header == "x-proof" && tr.Secret == want })
	}
	is1("first")
	put(t, outside, "secret", "second")
	is1("second")
	if got := found(p.store); got != "p: b=3" {
		t.Errorf("got %q: a file that is named no more still counts", got)
	}
	if strings.Contains(log.String(), "level=ERROR") {
		t.Error("want no errors")
	}
}

// streamer is an engine whose answers begin and then wait for leave to end.
func streamer(t *testing.T, address string) (e *httptest.Server, leave chan struct{}) {
	t.Helper()
	leave = make(chan struct{})
	lis, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err)
	}
	e = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n")
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
		default:
			w.Header().Set("content-type", "text/event-stream")
			fmt.Fprint(w, "data: {\"begin\":1}\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-leave:
			case <-r.Context().Done():
				return
			}
			fmt.Fprint(w, "data: [DONE]\n\n")
		}
	}))
	_ = e.Listener.Close()
	e.Listener = lis
	e.Start()
	t.Cleanup(e.Close)
	return e, leave
}

// serving starts a gateway for a folder and gives the URLs of both doors, by name.
func serving(t *testing.T, dir string) (urls map[string]string, metrics string, log *lockedBuffer) {
	t.Helper()
	opened := make(chan *listeners, 1)
	s := defaults()
	s.http, s.extproc, s.metrics, s.verbosity = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", 1
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log = &lockedBuffer{}
	go func() { ended <- serveFrom(ctx, []string{dir}, s, log, func(l *listeners) { opened <- l }) }()
	var l *listeners
	select {
	case l = <-opened:
	case err := <-ended:
		t.Fatal(err, log.String())
	}
	envoy := newEnvoy(t, l.extproc.Addr().String())
	t.Cleanup(func() {
		envoy.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v: %s", err, log.String())
		}
	})
	return map[string]string{"proxy": "http://" + l.http.Addr().String(), "extproc": envoy.URL}, "http://" + l.metrics.Addr().String(), log
}

// A pod that is being deleted, or has failed, gets no new requests, and the stream that it serves runs to its
// end; one that was not ready for a moment is as it was. The counters end at zero each time.
func TestPodsThatLeave(t *testing.T) {
	dir := t.TempDir()
	e, leave := streamer(t, "127.0.0.1:0")
	port := e.Listener.Addr().(*net.TCPAddr).Port
	put(t, dir, "pool.yaml", poolText("p", port))
	pod := func(meta, status string) {
		t.Helper()
		next := filepath.Join(t.TempDir(), "pod.yaml") // replaced as a whole, as by kubectl get > file; mv
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: one, labels: {app: p}%s}\nstatus: {%s}\n", meta, status)
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(dir, "pod.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(is string) string {
		return `podIP: 127.0.0.1, hostIP: 127.0.0.2, phase: Running, conditions: [{type: Ready, status: "` + is + `"}]`
	}
	pod("", ready("True"))
	urls, metrics, log := serving(t, dir)
	has := func(what string) bool { _, page := get(t, metrics+"/metrics"); return strings.Contains(page, what) }
	until(t, "the pod", func() bool { return has(`llm_d_epp_ready_endpoints{name="p"} 1`) })
	open := func(door string) (rest func() string) {
		t.Helper()
		r, err := http.Post(urls[door]+"/v1/chat/completions", "application/json", strings.NewReader(string(chatBody("x", `,"stream":true`))))
		if err != nil {
			t.Fatal(err)
		}
		body := bufio.NewReader(r.Body)
		if line, err := body.ReadString('\n'); r.StatusCode != 200 || !strings.Contains(line, "begin") {
			t.Fatalf("got %d %q %v", r.StatusCode, line, err)
		}
		return func() string {
			defer r.Body.Close()
			var b strings.Builder
			_, err := body.WriteTo(&b)
			return strings.TrimSpace(fmt.Sprint(b.String(), err))
		}
	}
	for _, c := range []struct{ name, meta, status string }{
		{"deleted", `, deletionTimestamp: "2026-01-01T00:00:00Z"`, ready("True")},
		{"failed", "", `podIP: "", phase: Failed`},
		{"not ready", "", ready("False")},
	} {
		t.Run(c.name, func(t *testing.T) {
			rest := map[string]func() string{"proxy": open("proxy"), "extproc": open("extproc")}
			pod(c.meta, c.status)
			until(t, "the pod to be gone", func() bool { return has(`penstock_endpoints{pool="default/p"} 0`) })
			for door := range rest {
				if r, text := post(t, urls[door], "/v1/chat/completions", chatBody("x", "")); r.StatusCode != 503 {
					t.Errorf("%s: got %d %s", door, r.StatusCode, text)
				}
			}
			pod("", ready("True"))
			until(t, "the pod to be back", func() bool { return has(`penstock_endpoints{pool="default/p"} 1`) })
			again := open("proxy")
			for range 3 {
				leave <- struct{}{}
			}
			for door, f := range rest {
				if got := f(); got != "data: [DONE]\n\n<nil>" {
					t.Errorf("%s: the stream ended with %q", door, got)
				}
			}
			if got := again(); got != "data: [DONE]\n\n<nil>" {
				t.Errorf("the new stream ended with %q", got)
			}
			until(t, "counters to be zero", func() bool {
				_, page := get(t, metrics+"/metrics")
				return strings.Contains(page, `penstock_endpoint_inflight_requests{endpoint="default/one-rank-0",pool="default/p"} 0`) && strings.Contains(page, "penstock_inflight_drift 0\n")
			})
		})
	}
	if strings.Contains(log.String(), "level=ERROR") {
		t.Error(log.String())
	}
}

// An IPv6 endpoint in an odd spelling, and one by name, are scraped and reached by both doors, as ip:port.
func TestIPv6AndNames(t *testing.T) {
	for _, c := range []struct{ name, listen, written, address string }{
		{"IPv6", "[::1]:0", "0:0::0001", "[::1]:%d"},
		{"IPv6 in brackets", "[::1]:0", "'[0::1]'", "[::1]:%d"},
		{"a name", "127.0.0.1:0", "localhost", "127.0.0.1:%d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			e, leave := streamer(t, c.listen)
			close(leave)
			port := e.Listener.Addr().(*net.TCPAddr).Port
			put(t, dir, "pool.yaml", poolText("p", port))
			put(t, dir, "list.yaml", fmt.Sprintf("endpoints:\n- {name: a, address: %s, port: %d, labels: {app: p}}\n", c.written, port))
			urls, metrics, _ := serving(t, dir)
			until(t, "a scrape", func() bool {
				_, page := get(t, metrics+"/metrics")
				return strings.Contains(page, `llm_d_epp_ready_endpoints{name="p"} 1`)
			})
			for door, url := range urls {
				if r, text := post(t, url, "/v1/chat/completions", chatBody("x", "")); r.StatusCode != 200 || !strings.Contains(text, "DONE") {
					t.Errorf("%s: got %d %s", door, r.StatusCode, text)
				}
			}
			if _, page := get(t, metrics+"/debug/fleet"); !strings.Contains(page, fmt.Sprintf(c.address, port)) {
				t.Errorf("want %s in %s", fmt.Sprintf(c.address, port), page)
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

// What files say of endpoints beside their addresses gets to whoever asks for it.
func TestWhatIsSaidOfEndpoints(t *testing.T) {
	dir := t.TempDir()
	clusters := put(t, t.TempDir(), "clusters.yaml", "endpoints:\n"+
		"- {name: east, address: localhost, port: 443, labels: {app: p, metricsPort: \"9090\"}}\n"+
		"- {name: west, address: 10.0.0.2, port: 443, labels: {app: p, metricsAddress: metrics.west.example}}\n")
	put(t, dir, "all.yaml", poolText("p", 8000)+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: one, labels: {app: p}}\nstatus: {podIP: \"FD00::1\", hostIP: 10.1.0.1}\n"+
		"---\napiVersion: penstock.dev/v1alpha1\nkind: Penstock\nspec: {allowExperimentalPlugins: true}\n"+
		"---\napiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nmetadata: {name: p-epp}\nplugins:\n- {type: multicluster-file-discovery, parameters: {path: "+clusters+"}}\n"+
		"- {type: endpoint-notification-source}\ndataLayer: {sources: [{pluginRef: endpoint-notification-source}], discovery: {endpoints: {pluginRef: multicluster-file-discovery}}}\n")
	cfg, problems := config.Load([]string{dir}, options(""))
	if len(problems) > 0 {
		t.Fatal(config.Problems(problems))
	}
	p, err := newProcess(cfg, defaults(), &lockedBuffer{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range p.store.Load().Pools[0].Endpoints {
		got = append(got, fmt.Sprintf("%s %s scrape=%s host=%s pod=%s node=%s", e.Name, e.Address, e.Scrape, e.Host, e.Pod, e.NodeAddress))
	}
	want := []string{
		"east 127.0.0.1:443 scrape=127.0.0.1:9090 host=localhost pod= node=",
		"one-rank-0 [fd00::1]:8000 scrape=[fd00::1]:8000 host= pod=one node=10.1.0.1",
		"west 10.0.0.2:443 scrape=metrics.west.example:443 host= pod= node=",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// What is wrong with what was last read is on /debug/fleet and among the metrics, until it is right.
func TestProblemsAreShown(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "pool.yaml", poolText("p", 1))
	p, _ := following(t, dir)
	shows := func(problem string, errors int) {
		t.Helper()
		until(t, fmt.Sprintf("%q and %d errors", problem, errors), func() bool {
			metrics := httptest.NewRecorder()
			p.obs.Handler().ServeHTTP(metrics, httptest.NewRequest("GET", "/metrics", nil))
			all := strings.Join(p.inForce().(inForce).Problems, "\n")
			return strings.Contains(all, problem) && (errors > 0 || all == "") &&
				strings.Contains(metrics.Body.String(), fmt.Sprintf("\npenstock_config_errors %d\n", errors))
		})
	}
	shows("", 0)
	put(t, dir, "pool.yaml", strings.Replace(poolText("p", 1), "targetPorts", "targetPort", 1))
	shows("pool.yaml:6: spec.targetPort: ", 1)
	put(t, dir, "pool.yaml", "")
	shows("pool.yaml: a file is empty", 1)
	put(t, dir, "pool.yaml", poolText("p", 2))
	shows("", 0)
}
