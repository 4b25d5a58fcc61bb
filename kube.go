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
	"github.com/penstock-project/penstock/observe"
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

// defaultGroup is that of InferencePool.
const defaultGroup = "inference.networking.k8s.io"

func (c *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&c.pool, "pool-name", "", "name of the InferencePool to pick for")
	fs.StringVar(&c.namespace, "pool-namespace", "", "namespace of the InferencePool (default $NAMESPACE, or default)")
	fs.StringVar(&c.group, "pool-group", defaultGroup, "API group of the InferencePool; of --all-pools, the group before it counts where the API server has no other")
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
	}
	return nil
}

// named checks that an API server can have what flags name.
func (c *clusterFlags) named() error {
	for _, one := range [][2]string{{"--pool-name", c.pool}, {"--pool-namespace", c.namespace}, {"--ha-service", c.service}} {
		if err := kube.CheckName(one[1]); one[1] != "" && err != nil {
			return misused("%s %q: %v", one[0], one[1], err)
		}
	}
	for _, namespace := range c.namespaces {
		if err := kube.CheckName(namespace); err != nil {
			return misused("--namespaces: %q: %v", namespace, err)
		}
	}
	return nil
}

// cluster is what a gateway reads from an API server: objects become documents, beside those that flags name.
type cluster struct {
	*kube.Cluster
	options config.Options
	flags   []config.Document // configurations that the command line holds
	files   []string
	only    *config.Pool             // the pool that is served though no object describes it; nil for all pools
	main    kube.MapRef              // the ConfigMap that must be there; zero for none
	again   func() ([]string, error) // reads all anew and says which paths to watch; an error when what was read is not in force

	forcing  sync.Mutex // one has things put into force at a time; before mu
	mu       sync.Mutex
	objects  []*kube.Object
	told     bool                  // they are in force
	texts    map[fleet.ID]*mapText // by ConfigMap
	named    fileTexts
	pools    []*config.Pool // in force
	read     []*config.Pool // of the last reading
	problems []config.Problem
}

// newCluster prepares to follow what flags say. The configuration that it returns is without any object.
func newCluster(f *clusterFlags, o config.Options, flags []config.Document, files []string) (*cluster, *config.Config, error) {
	c := &cluster{options: o, flags: flags, files: files, again: func() ([]string, error) { return nil, nil }, texts: map[fleet.ID]*mapText{}}
	if !f.allPools {
		c.only = &config.Pool{Namespace: f.namespace, Name: f.pool, PickerRef: f.pool + "-epp", TargetPorts: f.ports}
	}
	var err error
	if c.main, err = kube.ParseMapRef(f.configMap); err != nil {
		return nil, nil, misused("--config-map %v", err)
	}
	cfg, err := loaded(c.load())
	if err == nil {
		c.keep() // it is in force before anything else is read
	}
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
		ConfigMap: c.main,
	}
	if !f.allPools {
		o.Pool = fleet.ID{Namespace: f.namespace, Name: f.pool}
	} else if f.group == defaultGroup {
		o.Group = "" // the one that there is
	}
	if f.selector != "" {
		if o.Selector, err = kube.ParseSelector(f.selector); err != nil {
			return misused("--endpoint-selector: %v", err)
		}
		o.Ports = f.ports
	}
	if c.Cluster, err = kube.New(o); err != nil {
		return err
	}
	p.obs.Kube().Watch(c.view)
	p.near = c.Topology
	p.tellNear()
	if p.auth {
		if err := p.admit(kube.NewAccess(conn, p.obs.Kube(), p.log)); err != nil {
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

// admit has an API server say who may read the metrics port.
func (p *process) admit(a *kube.Access, err error) error {
	if err == nil {
		p.allow = a.Allow
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
	c.forcing.Lock()
	defer c.forcing.Unlock()
	c.mu.Lock()
	same := c.told && slices.EqualFunc(c.objects, list, func(a, b *kube.Object) bool {
		return a.String() == b.String() && bytes.Equal(a.Data, b.Data) // a status, such as our own, changes nothing
	})
	c.objects = list
	c.mu.Unlock()
	if !same {
		c.force()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	verdicts := make([]kube.Verdict, 0, len(list))
	for _, o := range list {
		v := kube.Verdict{Object: o}
		for _, p := range c.problems {
			switch {
			case p.File != o.String() || p.Elsewhere:
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

// force puts the objects into force, with the texts of before where those of now cannot be, and says which paths to watch. It is
// called with forcing held.
func (c *cluster) force() []string {
	paths, err := c.again()
	for err != nil && c.refuse(err) {
		paths, err = c.again()
	}
	c.mu.Lock()
	c.told = err == nil
	c.mu.Unlock()
	return paths
}

// anew puts what files say now into force, and has what became of objects said anew.
func (c *cluster) anew() []string {
	c.forcing.Lock()
	paths := c.force()
	c.forcing.Unlock()
	c.Reconsider()
	return paths
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

// view is what we know of the API server.
func (c *cluster) view() observe.KubeView {
	v := observe.KubeView{Feeds: []observe.FeedView{}}
	for _, f := range c.Feeds() {
		v.Feeds = append(v.Feeds, observe.FeedView{
			Resource: f.Resource, Namespace: f.Namespace, Name: f.Name, Version: f.Version, State: string(f.State), Verb: f.Verb,
			Since: f.Since, Objects: f.Objects, Error: f.Error,
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.ConfigMaps = c.configMaps()
	return v
}

// ready says what is not known yet, or nil.
func (c *cluster) ready() error {
	if err := c.Ready(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := c.unusable(); why != "" {
		return errors.New(why)
	}
	return nil
}

// inCluster runs a gateway for what an API server describes.
func inCluster(ctx context.Context, f *clusterFlags, s settings, o config.Options, flags []config.Document, files []string, stderr io.Writer) error {
	if err := f.named(); err != nil {
		return err
	}
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
