// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestRelease installs the chart with helm into a cluster with Kubernetes' own controllers, and does to the release what an
// operator does, under load: what helm and kubectl wait for comes, and no request is lost that could have been served.
func TestRelease(t *testing.T) {
	c := New(t)
	c.ours(t)
	c.controllers(t)
	c.Kubectl(t, "delete", "clusterrolebinding", "metrics") // the chart brings its own
	t.Run("gateway", c.releaseBehindGateway)
	t.Run("proxy", c.releaseOfProxies)
	t.Run("life", c.releaseLife)
}

// controllers starts those of Kubernetes that a release meets.
func (c *Cluster) controllers(t *testing.T) {
	c.create(t, "/api/v1/nodes", object{"metadata": object{"name": "node-1"}}) // addresses of pods without a node are not believed
	bin := filepath.Join(rig.Tool(t, "install-kube-controllers.sh"), "kube-controller-manager")
	rig.Start(t, "kube-controller-manager", bin, "--kubeconfig="+filepath.Join(c.dir, "kubeconfig"), "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=200", "--kube-api-burst=400", "--v=1",
		"--controllers=deployment-controller,replicaset-controller,endpoints-controller,endpointslice-controller,endpointslice-mirroring-controller,garbage-collector-controller,disruption-controller")
}

// release is one of the chart, with engines.
type release struct {
	site
	values []string
}

// install has helm install the chart and wait until it is there, as an operator does.
func (c *Cluster) install(t *testing.T, values ...string) *release {
	t.Helper()
	r := &release{site{Cluster: c, t: t, ns: c.Namespace(t)}, append([]string{
		"router.modelServers.matchLabels.app=vllm", "router.epp.flags.refresh-metrics-interval=200ms", // two cores are few for more
		"router.epp.resources.requests.cpu=10m"}, values...)}
	r.Apply(t, r.ns, engine("a", "")+engine("b", ""))
	r.endpoint("a")
	r.endpoint("b")
	r.helm("install", "--wait", "--timeout=120s")
	return r
}

// helm installs or upgrades the release with its values, and more.
func (r *release) helm(do string, more ...string) {
	r.t.Helper()
	argv := []string{filepath.Join(rig.Tool(r.t, "install-helm.sh"), "helm"), "--kubeconfig=" + filepath.Join(r.dir, "kubeconfig"), "--namespace=" + r.ns, do, "pool"}
	if do != "uninstall" {
		argv = append(argv, filepath.Join(rig.Root(), "deploy", "charts", "penstock"))
		for _, v := range r.values {
			argv = append(argv, "--set="+v)
		}
	}
	rig.Run(r.t, []string{"HOME=" + r.dir}, append(argv, more...)...)
}

// get reads an object of the release's namespace with kubectl's JSONPath.
func (r *release) get(object, path string) string {
	out, err := r.kubectl(r.t.Context(), "", "get", "-n", r.ns, object, "-o", "jsonpath="+path)
	if err != nil {
		return err.Error()
	}
	return out
}

// until waits for what kubectl shows at a path.
func (r *release) until(object, path, want string) {
	r.t.Helper()
	rig.Eventually(r.t, object+" "+path+" to be "+want, func() error {
		if got := r.get(object, path); got != want {
			return errors.New("it is " + got)
		}
		return nil
	})
}

// lossless ends a load of which nothing may have been lost. Several pickers have served it, and those that have ended cannot be
// asked any more what they counted.
func (r *release) lossless(l *Load) {
	r.t.Helper()
	all := l.Stop()
	r.t.Log(all)
	if len(all.Lost()) > 0 {
		r.t.Error("requests were lost that could have been served")
	}
}

// rolledOut waits as an operator does.
func (r *release) rolledOut() {
	r.t.Helper()
	r.Kubectl(r.t, "rollout", "status", "-n", r.ns, "deployment/pool-epp", "--timeout=240s")
}

// front follows where a Service leads.
type front struct {
	mu    sync.Mutex
	addrs []string
	names []string // of its EndpointSlices
}

// slices waits until the names of the Service's EndpointSlices are as they should be.
func (f *front) slices(t *testing.T, what string, right func(names []string) bool) {
	t.Helper()
	rig.Eventually(t, what, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !right(f.names) {
			return fmt.Errorf("there are %v", f.names)
		}
		return nil
	})
}

// leads is where it leads now, in order.
func (f *front) leads() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.addrs)
}

// front follows a Service's EndpointSlices as data planes do: what is ready gets requests. told is called with each change.
func (r *release) front(service string, told func(addrs []string)) *front {
	type slice struct {
		Metadata  struct{ Name, ResourceVersion string }
		Endpoints []struct {
			Addresses  []string
			Conditions struct{ Ready *bool }
		}
	}
	f := &front{}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	path := "/apis/discovery.k8s.io/v1/namespaces/" + r.ns + "/endpointslices?labelSelector=kubernetes.io/service-name=" + service
	there := map[string]slice{}
	tell := func() {
		var addrs, names []string
		for name, s := range there {
			names = append(names, name)
			for _, e := range s.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					addrs = append(addrs, e.Addresses...)
				}
			}
		}
		slices.Sort(addrs)
		slices.Sort(names)
		f.mu.Lock()
		changed := !slices.Equal(f.addrs, addrs)
		f.addrs, f.names = addrs, names
		f.mu.Unlock()
		if changed {
			r.t.Logf("%s the service leads to %v, by %v", time.Now().Format("05.000"), addrs, names)
			told(addrs)
		}
	}
	work.Go(func() {
		for ; ctx.Err() == nil; wait(ctx, 100*time.Millisecond) {
			var list struct {
				Metadata struct{ ResourceVersion string }
				Items    []slice
			}
			if r.Do(ctx, "GET", path, nil, &list) != nil {
				continue
			}
			clear(there)
			for _, s := range list.Items {
				there[s.Metadata.Name] = s
			}
			tell()
			response, err := r.send(ctx, "GET", path+"&watch=1&resourceVersion="+list.Metadata.ResourceVersion, nil)
			if err != nil {
				continue
			}
			for events := json.NewDecoder(response.Body); ; {
				var e struct {
					Type   string
					Object slice
				}
				if events.Decode(&e) != nil || e.Type == "ERROR" {
					break
				}
				if there[e.Object.Metadata.Name] = e.Object; e.Type == "DELETED" {
					delete(there, e.Object.Metadata.Name)
				}
				tell()
			}
			response.Body.Close()
		}
	})
	r.t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	return f
}

// gateway starts Envoy with the shipped configuration, and tells it where a Service leads as a Gateway's controller does.
func (r *release) gateway(service string) *front {
	r.t.Helper()
	r.http, r.admin = rig.Addr(r.t), rig.Addr(r.t)
	dir := r.t.TempDir()
	var config map[string]any
	text := rig.Run(r.t, nil, filepath.Join(rig.Root(), "deploy", "envoy", "render.sh"), "--listen", r.http, "--admin", r.admin)
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		r.t.Fatal(err)
	}
	clusters := config["static_resources"].(map[string]any)["clusters"].([]any)
	i := slices.IndexFunc(clusters, func(c any) bool { return c.(map[string]any)["name"] == "picker" })
	picker := clusters[i].(map[string]any)
	delete(picker, "load_assignment")
	picker["type"] = "EDS"
	picker["eds_cluster_config"] = map[string]any{"service_name": "picker", "eds_config": map[string]any{
		"path_config_source": map[string]any{"path": filepath.Join(dir, "eds.json"), "watched_directory": map[string]any{"path": dir}}}}
	out, err := yaml.Marshal(config)
	if err != nil {
		r.t.Fatal(err)
	}
	conf := filepath.Join(r.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(conf, out, 0o644); err != nil {
		r.t.Fatal(err)
	}
	version := 0
	tell := func(addrs []string) {
		version++
		var endpoints []any
		for _, a := range addrs {
			endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": a, "port_value": 9002}}}})
		}
		b, _ := json.Marshal(map[string]any{"version_info": fmt.Sprint(version), "resources": []any{map[string]any{
			"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "picker", "endpoints": []any{map[string]any{"lb_endpoints": endpoints}}}}})
		next := filepath.Join(dir, "next")
		if err := errors.Join(os.WriteFile(next, b, 0o644), os.Rename(next, filepath.Join(dir, "eds.json"))); err != nil {
			r.t.Error(err)
		}
	}
	tell(nil)
	f := r.front(service, tell)
	program := filepath.Join(rig.Tool(r.t, "install-envoy.sh"), "venv", "bin", "envoy")
	rig.Start(r.t, "envoy", program, "-c", conf, "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id", "--service-node", "it", "--service-cluster", "it").Listening(r.t, r.http)
	return f
}

// virtual listens where a Service would, and leads each connection to where the Service does, as kube-proxy has it.
func (r *release) virtual(service, port string) *front {
	r.t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.http = lis.Addr().String()
	r.t.Cleanup(func() { lis.Close() })
	f := r.front(service, func([]string) {})
	go func() {
		for n := 0; ; n++ {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				addrs := f.leads()
				if len(addrs) == 0 {
					return
				}
				out, err := net.Dial("tcp", net.JoinHostPort(addrs[n%len(addrs)], port))
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					io.Copy(out, in)
					out.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(in, out)
			}()
		}
	}()
	return f
}

// leads waits until a Service leads to exactly one of the pickers, and returns that pod's name.
func (r *release) leads(f *front, not string) (leader string) {
	r.t.Helper()
	rig.Eventually(r.t, "the service to lead to one picker", func() error {
		addrs := f.leads()
		if len(addrs) != 1 {
			return fmt.Errorf("it leads to %v", addrs)
		}
		leader = r.get("pods", `{.items[?(@.status.podIP=="`+addrs[0]+`")].metadata.name}`)
		if leader == "" || leader == not {
			return errors.New("it leads to " + leader)
		}
		return nil
	})
	return leader
}

// releaseBehindGateway: two pickers behind a Gateway. Both are ready, so that helm and kubectl see the end of what they wait for, and
// requests go to the one that leads.
func (c *Cluster) releaseBehindGateway(t *testing.T) {
	r := c.install(t, "router.epp.replicas=2")
	f := r.gateway("pool-epp")
	r.until("deployment/pool-epp", "{.status.readyReplicas}", "2")
	r.until("pdb/pool-epp", "{.status.disruptionsAllowed}", "1")
	leader := r.leads(f, "")
	r.answers()
	l := Traffic(t, r.http, 8, 8, nil)
	l.More(t, 20)

	// What others do to the slice is put right. Until it is, a moment later, the Gateway knows nobody to ask.
	r.Kubectl(t, "delete", "endpointslice", "-n", r.ns, "pool-epp-leader")
	rig.Eventually(t, "the slice to be there again", func() error {
		if got := f.leads(); len(got) != 1 {
			return fmt.Errorf("it leads to %v", got)
		}
		return nil
	})
	r.Kubectl(t, "patch", "endpointslice", "-n", r.ns, "pool-epp-leader", "--type=json", "-p", `[{"op":"replace","path":"/endpoints/0/addresses/0","value":"10.244.99.99"}]`)
	r.leads(f, "")
	l.More(t, 20)
	t.Log("while others changed the slice: ", l.Stop())

	l = Traffic(t, r.http, 8, 8, nil)
	l.More(t, 20)
	for range 2 {
		began := time.Now()
		r.Kubectl(t, "rollout", "restart", "-n", r.ns, "deployment/pool-epp")
		r.rolledOut()
		t.Logf("rolled out after %v", time.Since(began).Round(100*time.Millisecond))
	}
	l.More(t, 40)
	r.until("deployment/pool-epp", "{.status.readyReplicas}", "2")
	leader = r.leads(f, leader)
	r.lossless(l)

	// A crash.
	l = Traffic(t, r.http, 8, 8, nil)
	l.More(t, 20)
	began := time.Now()
	r.Crash(t, r.ns, leader)
	other := r.leads(f, leader)
	took := time.Since(began)
	t.Logf("after a crash the service leads to the next after %v", took.Round(10*time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("it took %v: the lease has run out", took)
	}
	l.More(t, 40)
	late := l.Stop().Since(began)
	t.Log(late)
	if len(late.Lost()) > 0 {
		t.Errorf("%d requests that came after the crash were lost", len(late.Lost()))
	}
	// A graceful stop: it is handed over, and serves until then.
	l = Traffic(t, r.http, 8, 8, nil)
	l.More(t, 20)
	began = time.Now()
	r.Kubectl(t, "delete", "pod", "-n", r.ns, other, "--wait=false")
	r.leads(f, other)
	t.Logf("after SIGTERM the service leads to the next after %v", time.Since(began).Round(10*time.Millisecond))
	l.More(t, 40)
	r.rolledOut()
	r.lossless(l)

	// A permission that is missing is named, and the Service leads to the leader as soon as it is there.
	r.Kubectl(t, "delete", "rolebinding", "-n", r.ns, "pool-epp-leader")
	r.Kubectl(t, "delete", "endpointslice", "-n", r.ns, "pool-epp-leader")
	rig.Eventually(t, "the permission to be named", func() error {
		for name := range strings.FieldsSeq(r.get("pods", `{.items[*].metadata.name}`)) {
			if strings.Contains(r.Logs(r.ns, name), "may not list endpointslices.discovery.k8s.io in namespace "+r.ns) || strings.Contains(r.Logs(r.ns, name), "may not get services in namespace "+r.ns) {
				return nil
			}
		}
		return errors.New("nobody says it")
	})
	r.helm("upgrade")
	r.leads(f, "")
}

// releaseOfProxies: Penstock's own proxy with a standby. Clients reach the leader alone, by a Service.
func (c *Cluster) releaseOfProxies(t *testing.T) {
	r := c.install(t, "router.proxy.enabled=true", "router.epp.replicas=2", "router.epp.flags.ha-enable-leader-election=true")
	f := r.virtual("pool-epp", "8081")
	leader := r.leads(f, "")
	r.until("deployment/pool-epp", "{.status.readyReplicas}", "2")
	for name := range strings.FieldsSeq(r.get("pods", `{.items[*].metadata.name}`)) {
		if p := r.pod(r.ns, name); p != nil && p.picker() {
			if _, err := rig.Get("http://" + net.JoinHostPort(p.ip(), "9090") + "/readyz"); (err == nil) != (name == leader) {
				t.Errorf("/readyz of %s while %s leads: %v", name, leader, err)
			}
		}
	}
	r.answers()
	l := Traffic(t, r.http, 8, 8, nil)
	l.More(t, 40)
	r.Kubectl(t, "rollout", "restart", "-n", r.ns, "deployment/pool-epp")
	r.rolledOut()
	l.More(t, 40)
	r.lossless(l)
	r.leads(f, leader)
	r.Kubectl(t, "wait", "--for=delete", "pod/"+leader, "-n", r.ns, "--timeout=120s") // also where clients kept their connections
}

// releaseLife: from one picker to two and back, a new configuration, and away.
func (c *Cluster) releaseLife(t *testing.T) {
	r := c.install(t)
	f := r.gateway("pool-epp")
	first := r.leads(f, "")
	r.answers()
	l := Traffic(t, r.http, 8, 8, nil)
	l.More(t, 20)

	// A new configuration is in force without a restart; a new command line is a rollout.
	r.helm("upgrade", "--wait", "--timeout=240s", `--set-json=router.epp.pluginsConfig={"apiVersion":"llm-d.ai/v1","kind":"EndpointPickerConfig",`+
		`"plugins":[{"type":"queue-scorer"}],"schedulingProfiles":[{"name":"changed","plugins":[{"pluginRef":"queue-scorer"}]}]}`)
	rig.Eventually(t, "the configuration to be in force", func() error {
		page, err := r.page(first, "/debug/fleet")
		if err == nil && !strings.Contains(page, `"changed"`) {
			err = errors.New("it is not")
		}
		return err
	})
	if now := r.leads(f, ""); now != first {
		t.Errorf("%s has become %s for a new configuration", first, now)
	}
	l.More(t, 20)
	r.values = append(r.values, "router.epp.pluginsConfigFile=llm-d-plugins.yaml")
	r.helm("upgrade", "--wait", "--timeout=240s")
	r.rolledOut()
	r.leads(f, first)
	l.More(t, 20)

	// Two: the Service loses its selector, and leads somewhere all the time.
	r.values = append(r.values, "router.epp.replicas=2")
	r.helm("upgrade", "--wait", "--timeout=240s")
	r.rolledOut()
	r.until("service/pool-epp", "{.spec.selector}", "")
	r.leads(f, "")
	f.slices(t, "the slices of before to be gone", func(names []string) bool { return slices.Equal(names, []string{"pool-epp-leader"}) })
	l.More(t, 40)

	// And one again.
	r.values = append(r.values, "router.epp.replicas=1")
	r.helm("upgrade", "--wait", "--timeout=240s")
	r.rolledOut()
	f.slices(t, "the leader's slice to be gone", func(names []string) bool { return len(names) > 0 && !slices.Contains(names, "pool-epp-leader") })
	l.More(t, 40)
	r.leads(f, "")
	r.lossless(l)

	r.values = append(r.values, "router.epp.replicas=2")
	r.helm("upgrade", "--wait", "--timeout=240s")
	r.rolledOut()
	f.slices(t, "one to lead", func(names []string) bool { return slices.Equal(names, []string{"pool-epp-leader"}) })
	r.helm("uninstall", "--wait", "--timeout=240s")
	const kinds = "deployments,replicasets,services,endpointslices,endpoints,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,inferencepools,pods,leases"
	rig.Eventually(t, "nothing to be left", func() error {
		left := strings.Fields(r.Kubectl(t, "get", kinds, "-n", r.ns, "-o", "name"))
		left = slices.DeleteFunc(left, func(name string) bool {
			return slices.Contains([]string{"pod/a", "pod/b", "serviceaccount/default", "configmap/kube-root-ca.crt"}, name)
		})
		if want := []string{"lease.coordination.k8s.io/epp-" + r.ns + "-pool.llm-d.ai"}; !slices.Equal(left, want) {
			return fmt.Errorf("left is %v, want %v", left, want)
		}
		return nil
	})
}

// TestExamples applies every file of deploy/examples as their README says, to a cluster that has the kinds that they need, and
// runs what they describe: pods get ready, and pickers say what became of objectives.
func TestExamples(t *testing.T) {
	c := New(t)
	c.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", rig.Tool(t, "install-crds.sh"))
	c.ours(t)
	c.controllers(t)
	c.Kubectl(t, "delete", "clusterrolebinding", "metrics") // the chart brings its own
	r := &release{site: site{Cluster: c, t: t, ns: c.Namespace(t)}}
	examples := filepath.Join(rig.Root(), "deploy", "examples")
	helm := filepath.Join(rig.Tool(t, "install-helm.sh"), "helm")
	install := func(name string, more ...string) {
		rig.Run(t, []string{"HOME=" + c.dir}, append([]string{helm, "--kubeconfig=" + filepath.Join(c.dir, "kubeconfig"), "--namespace=" + r.ns, "install", name,
			filepath.Join(rig.Root(), "deploy", "charts", "penstock")}, more...)...)
	}
	values := filepath.Join(examples, "fleet", "values")
	install("qwen32b-pool", "-f="+filepath.Join(values, "base.values.yaml"), "-f="+filepath.Join(values, "fleet-flow-control.values.yaml"), "--set=provider.name=istio", "--set=httpRoute.create=false")
	folders, err := os.ReadDir(examples)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders {
		if f.IsDir() {
			t.Log(c.Kubectl(t, "apply", "-n", r.ns, "-f", filepath.Join(examples, f.Name())))
		}
	}
	for _, name := range []string{"qwen32b-pool-epp", "r1-pool-epp", "qwen3-32b-vllm", "deepseek-r1-vllm"} {
		c.Kubectl(t, "rollout", "status", "-n", r.ns, "deployment/"+name, "--timeout=240s")
	}
	for _, name := range []string{"premium-traffic", "standard-traffic", "best-effort-traffic"} {
		r.condition("inferenceobjective", name, "Accepted", "True")
	}
	// The pools of which the articles show no picker: one that is for all of them says what became of their objectives.
	r.Kubectl(t, "delete", "deployment", "-n", r.ns, "r1-pool-epp")
	install("everything", "--set=router.monitoring.prometheus.enabled=true", "--set=router.pools.all=true", "--set=router.pools.namespaces={"+r.ns+"}")
	c.Kubectl(t, "rollout", "status", "-n", r.ns, "deployment/everything-epp", "--timeout=240s")
	r.condition("inferenceobjective", "chat-critical", "Accepted", "True")
	for _, o := range []struct{ engine, picker, model string }{{"qwen3-32b-vllm", "qwen32b-pool-epp", "Qwen/Qwen3-32B"}, {"deepseek-r1-vllm", "everything-epp", "deepseek/DeepSeek-r1"}} {
		f := r.gateway(o.picker)
		r.leads(f, "")
		rig.Eventually(t, o.model+" to answer", func() error {
			body := strings.Replace(rig.Body("hello", true), `"model":"m"`, `"model":"`+o.model+`"`, 1)
			got := stream(&http.Transport{DisableKeepAlives: true}, r.http, body, http.Header{"X-Llm-D-Inference-Objective": {"premium-traffic"}})
			return got.Err
		})
	}
	// Prometheus' account reads metrics and nothing else.
	picker := r.get("pods", `{.items[?(@.metadata.labels.app\.kubernetes\.io/instance=="everything")].metadata.name}`)
	token := c.Kubectl(t, "create", "token", "-n", r.ns, "everything-epp-metrics-reader")
	for _, page := range []struct {
		path, token string
		want        int
	}{{"/metrics", token, 200}, {"/debug/fleet", token, 403}, {"/metrics", "", 401}, {"/readyz", "", 200}} {
		request, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+net.JoinHostPort(r.pod(r.ns, picker).ip(), "9090")+page.path, nil)
		if page.token != "" {
			request.Header.Set("Authorization", "Bearer "+page.token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != page.want {
			t.Errorf("%s of %s: %d, want %d", page.path, picker, response.StatusCode, page.want)
		}
	}
}
