// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway/extproc"
	"github.com/penstock-project/penstock/source/kube"
)

// clusterFlags say what to follow of an API server.
type clusterFlags struct {
	kubeconfig, pool, namespace, group, configMap string
	namespaces                                    []string
	allPools                                      bool
	selector                                      string
	elect                                         bool
	service                                       string // leads to whoever leads
	ports                                         []int
}

func (c *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&c.pool, "pool-name", "", "name of the InferencePool to pick for")
	fs.StringVar(&c.namespace, "pool-namespace", "", "namespace of the InferencePool (default $NAMESPACE, or default)")
	fs.StringVar(&c.group, "pool-group", "inference.networking.k8s.io", "API group of the InferencePool")
	fs.BoolVar(&c.allPools, "all-pools", false, "all InferencePools of --namespaces, instead of one")
	fs.StringSliceVar(&c.namespaces, "namespaces", nil, "namespaces of --all-pools; all when there are none")
	fs.StringVar(&c.configMap, "config-map", "", "NAMESPACE/NAME or NAMESPACE/NAME/KEY of a ConfigMap with the EndpointPickerConfig, which is followed when it changes")
	fs.BoolVar(&c.elect, "ha-enable-leader-election", false, "one of the gateways of the pool leads, by a Lease; the others stand by, warm, and are not ready until they lead")
	fs.StringVar(&c.service, "ha-service", "", "name of a Service without selector, beside the pool, that is to lead to whoever leads: its EndpointSlices are written by the leader, so that standbys may be ready for Kubernetes")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "file that says where the API server is (default $KUBECONFIG, the pod's service account, or ~/.kube/config)")
}

// check completes the flags.
func (c *clusterFlags) check() error {
	c.namespace = cmp.Or(c.namespace, os.Getenv("NAMESPACE"), "default")
	switch {
	case c.allPools && (c.pool != "" || c.selector != ""):
		return misused("--all-pools excludes --pool-name and --endpoint-selector")
	case !c.allPools && len(c.namespaces) > 0:
		return misused("--namespaces are those of --all-pools: a pool has --pool-namespace")
	case c.service != "" && !c.elect:
		return misused("--ha-service leads to whoever leads: it needs --ha-enable-leader-election")
	case c.configMap != "" && strings.Count(c.configMap, "/") != 1 && strings.Count(c.configMap, "/") != 2:
		return misused("--config-map %q: want NAMESPACE/NAME or NAMESPACE/NAME/KEY", c.configMap)
	}
	return nil
}

// cluster is what a gateway reads from an API server: objects become documents, beside those that flags name.
type cluster struct {
	*kube.Cluster
	options config.Options
	flags   []config.Document // configurations that the command line holds
	files   []string
	only    *config.Pool // the pool that is served though no object describes it; nil for all pools
	main    string       // the ConfigMap that must be there, as its object is called but for the key; empty for none
	again   func()       // reads all anew

	mu       sync.Mutex
	objects  []*kube.Object
	good     map[string]config.Document // the last texts of ConfigMaps in which nothing was wrong
	pools    []*config.Pool             // of the last reading
	problems []config.Problem
	unusable string // why the configuration in main was never in force
}

// newCluster prepares to follow what flags say. The configuration that it returns is without any object.
func newCluster(f *clusterFlags, o config.Options, flags []config.Document, files []string) (*cluster, *config.Config, error) {
	c := &cluster{options: o, flags: flags, files: files, good: map[string]config.Document{}, again: func() {}}
	if !f.allPools {
		c.only = &config.Pool{Namespace: f.namespace, Name: f.pool, PickerRef: f.pool + "-epp", TargetPorts: f.ports}
	}
	if f.configMap != "" {
		parts := strings.SplitN(f.configMap, "/", 3)
		c.main = "ConfigMap " + parts[0] + "/" + parts[1]
		c.unusable = c.main + " is not read yet"
	}
	cfg, err := loaded(c.load())
	return c, cfg, err
}

// connect finds the API server.
func (c *cluster) connect(f *clusterFlags, p *process) error {
	conn, err := kube.Connect(f.kubeconfig, agent())
	if err != nil {
		return err
	}
	o := kube.Options{
		Config: conn, Group: f.group, Namespaces: f.namespaces, PickerMaps: f.allPools, Log: p.log, Metrics: p.obs.Kube(),
		Endpoints: p.store.SetEndpoints, Objects: c.take, Speaks: func() bool { return p.election == nil || p.election.Leads() },
	}
	if !f.allPools {
		o.Pool = fleet.ID{Namespace: f.namespace, Name: f.pool}
	}
	if f.selector != "" {
		if o.Selector, err = kube.ParseSelector(f.selector); err != nil {
			return misused("--endpoint-selector: %v", err)
		}
		o.Ports = f.ports
	}
	if f.configMap != "" {
		parts := append(strings.SplitN(f.configMap, "/", 3), "")
		o.ConfigMap, o.ConfigKey = fleet.ID{Namespace: parts[0], Name: parts[1]}, parts[2]
	}
	if c.Cluster, err = kube.New(o); err != nil {
		return err
	}
	if p.auth {
		if err := p.authorize(f.kubeconfig); err != nil {
			return err
		}
	}
	if !f.elect {
		return nil
	}
	of := f.pool
	if of == "" { // several releases of one namespace may each serve many pools
		of = "all-pools"
		if name := os.Getenv("POD_NAME"); name != "" {
			of = deployment(name)
		}
	}
	lease := kube.LeaseName(f.namespace, of)
	host, err := os.Hostname()
	if host = cmp.Or(os.Getenv("POD_NAME"), host); host == "" {
		return fmt.Errorf("leader election needs a name for this picker: set POD_NAME (%w)", err)
	}
	p.stand = func(health net.Addr) (*kube.Election, error) {
		if f.service != "" {
			at, _, _ := net.SplitHostPort(kube.Reachable(conn, os.Getenv("POD_IP"), health))
			p.front = &kube.Front{
				Config: conn, Namespace: f.namespace, Service: f.service, Pod: host, Node: os.Getenv("NODE_NAME"), Log: p.log,
				Addresses: kube.Addresses(append(strings.Split(os.Getenv("POD_IPS"), ","), at)...),
				Leads:     func() bool { return p.notReady() == nil },
			}
			if len(p.front.Addresses) == 0 {
				return nil, errors.New("--ha-service leads to pods by their IP: set POD_IP to status.podIP")
			}
		}
		return kube.NewElection(kube.ElectionOptions{
			Config: conn, Namespace: f.namespace, Name: lease, Host: host, Address: kube.Reachable(conn, os.Getenv("POD_IP"), health), Log: p.log,
			Peer: func(address string) (kube.Peer, error) { return extproc.DialPeer(address) },
			Warm: func() bool { return p.cold() == nil },
			Told: func(leads bool) { p.obs.Kube().Leads(f.namespace+"/"+lease, leads) },
		})
	}
	return nil
}

// authorize has an API server say who may read the metrics port.
func (p *process) authorize(kubeconfig string) error {
	conn, err := kube.Connect(kubeconfig, agent())
	if err != nil {
		return err
	}
	access, err := kube.NewAccess(conn, p.obs.Kube(), p.log)
	if err == nil {
		p.allow = access.Allow
	}
	return err
}

// agent names us to an API server.
func agent() string {
	commit, ref := buildInfo()
	return "penstock/" + ref + " (" + commit + ")"
}

// take puts objects into force and says what became of them.
func (c *cluster) take(_ context.Context, list []*kube.Object) []kube.Verdict {
	c.mu.Lock()
	c.objects = list
	c.mu.Unlock()
	c.again()
	c.mu.Lock()
	defer c.mu.Unlock()
	verdicts := make([]kube.Verdict, 0, len(list))
	for _, o := range list {
		v := kube.Verdict{Object: o}
		for _, p := range c.problems {
			switch {
			case p.File != o.String() || strings.HasSuffix(p.Text, config.NotAmong): // there may be other pickers for it
			case p.Severity == config.Error:
				v.Errors = append(v.Errors, said(p))
			case p.Severity > config.Note:
				v.Warnings = append(v.Warnings, said(p))
			}
		}
		for _, p := range c.pools {
			if p.Namespace == o.Namespace && counts(p, o) {
				v.Pools = append(v.Pools, p.Name)
			}
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// said is a problem without the name of its object.
func said(p config.Problem) string {
	line := ""
	if p.Line > 0 {
		line = fmt.Sprintf("line %d: ", p.Line)
	}
	p.File, p.Line = "", 0
	return line + p.String()
}

// counts reports whether an object has a say in a pool.
func counts(p *config.Pool, o *kube.Object) bool {
	switch o.Kind {
	case "InferencePool":
		return p.Name == o.Name
	case "InferenceObjective":
		_, ok := p.Objectives[o.Name]
		return ok
	case "InferenceModelRewrite":
		return slices.ContainsFunc(p.Rewrites, func(r config.RewriteRule) bool { return r.Name == o.Name })
	case "ConfigMap":
		return p.Picker != nil && p.Picker.File == o.String()
	}
	return false
}

// load reads all that is known. A ConfigMap that is wrong keeps what it said while it was right.
func (c *cluster) load() (*config.Config, []config.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	docs, texts := c.documents()
	cfg, problems := config.Documents(slices.Concat(c.flags, docs), c.options, c.files...)
	broken := false
	for i := range docs {
		d := &docs[i]
		switch last, known := c.good[d.Name]; {
		case !texts[d.Name]:
		case !wrong(problems, d.Name):
			if cfg != nil {
				c.good[d.Name] = *d
			}
		case known && !bytes.Equal(last.Data, d.Data):
			*d, broken = last, true
		}
	}
	if broken {
		again, more := config.Documents(slices.Concat(c.flags, docs), c.options, c.files...)
		for _, p := range more {
			if !slices.Contains(problems, p) {
				problems = append(problems, p)
			}
		}
		cfg = again
	}
	c.problems = problems
	if cfg == nil {
		return nil, problems
	}
	if c.main != "" {
		c.judge(cfg)
	}
	if c.only != nil { // a pool that a file beside the configuration describes is for the data plane
		i := slices.IndexFunc(cfg.Pools, func(p *config.Pool) bool { return p.Namespace == c.only.Namespace && p.Name == c.only.Name })
		if i < 0 {
			p := *c.only // without an object nobody is its endpoint, and no objective is for it
			p.Picker, p.Objectives = cfg.PickerFor(p.Namespace, p.PickerRef), map[string]int{}
			cfg.Pools = []*config.Pool{&p}
		} else {
			cfg.Pools = []*config.Pool{cfg.Pools[i]}
		}
	}
	c.pools = cfg.Pools
	return cfg, problems
}

// documents are the objects as documents; texts are the names of those that are texts of ConfigMaps.
func (c *cluster) documents() (docs []config.Document, texts map[string]bool) {
	texts = map[string]bool{}
	found := false
	for _, o := range c.objects {
		d := config.Document{Name: o.String(), Data: o.Data, Namespace: o.Namespace}
		if o.Kind == "ConfigMap" {
			main := c.isMain(o)
			found = found || main
			if len(bytes.TrimSpace(o.Data)) == 0 && !main {
				continue // it is not about us
			}
			if len(bytes.TrimSpace(o.Data)) == 0 {
				d.Data = []byte("the ConfigMap has no text under this key")
			}
			if !main {
				d.Picker = o.Name
			}
			d.Lines, texts[d.Name] = true, true
		}
		docs = append(docs, d)
	}
	if c.main != "" && !found { // what it said last stays
		for name, d := range c.good {
			if strings.HasPrefix(name, c.main+" ") {
				docs, texts[name] = append(docs, d), true
			}
		}
	}
	return docs, texts
}

// isMain reports whether an object is the ConfigMap that must be there.
func (c *cluster) isMain(o *kube.Object) bool { return c.main == "ConfigMap "+o.Namespace+"/"+o.Name }

// judge says why the main ConfigMap does not decide yet; once it did, it keeps what it said.
func (c *cluster) judge(cfg *config.Config) {
	if slices.ContainsFunc(cfg.Pickers, func(p *config.Picker) bool { return strings.HasPrefix(p.File, c.main+" ") }) {
		c.unusable = ""
		return
	}
	if c.unusable == "" {
		return
	}
	c.unusable = "there is no " + c.main
	for _, o := range c.objects {
		if c.isMain(o) {
			c.unusable = fmt.Sprintf("%s holds no EndpointPickerConfig that can be used", o)
		}
	}
}

func wrong(problems []config.Problem, name string) bool {
	return slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Severity == config.Error && p.File == name })
}

// ready says what is not known yet, or nil.
func (c *cluster) ready() error {
	if err := c.Ready(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unusable != "" {
		return errors.New(c.unusable)
	}
	return nil
}

// inCluster runs a gateway for what an API server describes.
func inCluster(ctx context.Context, f *clusterFlags, s settings, o config.Options, flags []config.Document, files []string, stderr io.Writer) error {
	c, cfg, err := newCluster(f, o, flags, files)
	if err != nil {
		return err
	}
	p, err := newProcess(cfg, s, stderr)
	if err != nil {
		return err
	}
	if err := c.connect(f, p); err != nil {
		return err
	}
	p.cluster, p.files, p.reload = c, files, c.load
	return p.run(ctx, cfg)
}

// news are the problems that were not among those before.
func news(problems []config.Problem, before map[string]bool) (fresh []config.Problem, now map[string]bool) {
	now = map[string]bool{}
	for _, p := range problems {
		s := p.String()
		if now[s] = true; !before[s] {
			fresh = append(fresh, p)
		}
	}
	return fresh, now
}
