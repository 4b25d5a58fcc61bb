// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/source/kube"
)

const authHelp = "read the metrics port only with a bearer token whose user may, as the API server says (nonResourceURLs: /metrics, /debug/*); /healthz and /readyz are open"

// defaults are the settings that all gateways begin with.
func defaults() settings {
	return settings{lameDuck: lameDuck(), drain: 30 * time.Second, interval: 50 * time.Millisecond, stale: 2 * time.Second, pprof: true, tracing: true, logging: logging{verbosity: 2}}
}

// lameDuck is how long a gateway still lets requests in when it is told to end. In a Kubernetes pod those who send
// them are told at the same time as the pod itself, and know some seconds later.
func lameDuck() time.Duration {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return 5 * time.Second
	}
	return 0
}

// common adds the flags that every gateway has.
func (s *settings) common(fs *pflag.FlagSet) {
	fs.DurationVar(&s.interval, "refresh-metrics-interval", s.interval, "time between two looks at an endpoint's metrics; at least 50ms")
	fs.DurationVar(&s.stale, "metrics-staleness-threshold", s.stale, "age at which a signal counts as unknown")
	fs.DurationVar(&s.lameDuck, "lame-duck", s.lameDuck, "when told to end, how long requests are still let in while readiness is off (5s by default in a Kubernetes pod)")
	fs.DurationVar(&s.drain, "drain-timeout", s.drain, "how long open requests may take to finish when told to end")
	fs.BoolVar(&s.pprof, "enable-pprof", s.pprof, "serve /debug/pprof on the metrics address")
	fs.BoolVar(&s.tracing, "tracing", s.tracing, "send traces of sampled requests to the OpenTelemetry collector that the environment names; where it names none, nothing is traced")
	fs.IntVarP(&s.verbosity, "v", "v", s.verbosity, "log level: 1 warnings, 2 info, 4 debug (each decision step by step), 5 trace")
	fs.BoolVar(&s.secure, "secure-serving", s.secure, "TLS at the ext_proc door, with a self-signed certificate unless --cert-path")
	fs.BoolVar(&s.experimental, "allow-experimental-plugins", s.experimental, "accept plugins that are alpha, or for tests")
	fs.StringVar(&s.certPath, "cert-path", "", "folder with tls.crt and tls.key for the ext_proc door; followed when they change")
	s.tlsFlags(fs)
	fs.StringVar(&s.metricsCerts, "metrics-cert-dir", "", "folder with tls.crt and tls.key, followed when they change: the metrics port speaks HTTPS (default plain HTTP)")
	fs.StringVar(&s.metricsClients, "metrics-client-ca-file", "", "certificates, in PEM, of authorities, followed when they change: only clients with a certificate of theirs may speak with the metrics port; needs --metrics-cert-dir")
}

func (s *settings) check() error {
	if s.interval < 50*time.Millisecond {
		return misused("--refresh-metrics-interval %v: must be at least 50ms", s.interval)
	}
	if s.metricsClients != "" && s.metricsCerts == "" {
		return misused("--metrics-client-ca-file needs --metrics-cert-dir: clients show certificates only where the metrics port has one")
	}
	if s.drain < 0 {
		return misused("--drain-timeout %v: must not be below 0", s.drain)
	}
	if s.lameDuck < 0 {
		return misused("--lame-duck %v: must not be below 0", s.lameDuck)
	}
	if s.stale <= 0 {
		return misused("--metrics-staleness-threshold %v: must be above 0", s.stale)
	}
	return s.restrict(&tls.Config{})
}

func serve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := defaults()
	fs := flags("serve", "-f FILE|DIR… | --kube", "Runs the gateway from manifests, or from what an API server holds; both are followed when they change.", stdout)
	var paths []string
	fs.StringArrayVarP(&paths, "filename", "f", nil, "manifest or folder of manifests; may be given again")
	fs.StringVar(&s.http, "http", "", `address of the proxy (default spec.listeners.http or ":8080"; "off" for none)`)
	fs.StringVar(&s.extproc, "extproc", "", `address of the ext_proc door (default spec.listeners.extproc or ":9002"; "off" for none)`)
	fs.StringVar(&s.metrics, "metrics", "", `address of /metrics and /debug (default spec.listeners.metrics or ":9090"; "off" for none)`)
	fs.StringVar(&s.health, "health", "", "address of the gRPC health service (default none, or :9003 with --ha-enable-leader-election)")
	var c clusterFlags
	inCluster := fs.Bool("kube", false, "follow the InferencePools of an API server, and what belongs to them, beside the manifests")
	c.add(fs)
	s.common(fs)
	fs.BoolVar(&s.auth, "metrics-endpoint-auth", false, authHelp)
	if err := parse(fs, args); err != nil {
		return err
	}
	s.secure = s.secure || s.certPath != ""
	paths = append(paths, fs.Args()...)
	if err := s.check(); err != nil {
		return err
	}
	if c.elect && !*inCluster {
		return misused("--ha-enable-leader-election needs an API server: --kube")
	}
	if *inCluster {
		c.allPools = c.pool == ""
		if c.elect { // standbys ask there whether the leader is well
			s.health = cmp.Or(s.health, ":9003")
		}
		if err := c.check(); err != nil {
			return err
		}
		return serveCluster(ctx, &c, paths, s, stderr)
	}
	if s.auth {
		return misused("--metrics-endpoint-auth needs --kube: an API server says who may read")
	}
	if len(paths) == 0 {
		return misused("name the manifests to serve: -f FILE|DIR, or --kube")
	}
	return serveFrom(ctx, paths, s, stderr, nil)
}

// serveFrom serves what manifests describe; started is told when the addresses are open.
func serveFrom(ctx context.Context, paths []string, s settings, log io.Writer, started func(*listeners)) error {
	o := options("")
	o.Experimental = s.experimental
	load := func() (*config.Config, []config.Problem) {
		cfg, problems := config.Load(paths, o)
		if cfg != nil && len(cfg.Pools) == 0 {
			return nil, append(problems, config.Problem{Severity: config.Error, File: strings.Join(paths, ", "), Text: "no InferencePool: nothing to serve"})
		}
		return cfg, problems
	}
	cfg, err := loaded(load())
	if err != nil {
		return err
	}
	s.listeners(cfg.Penstock.Listeners)
	p, err := newProcess(cfg, s, log)
	if err != nil {
		return err
	}
	p.started, p.files, p.reload = started, paths, load
	return p.run(ctx, cfg)
}

// listeners completes the addresses: a flag counts more than the manifests.
func (s *settings) listeners(written api.Listeners) {
	for _, a := range []struct {
		flag       *string
		file, none string
	}{{&s.http, written.HTTP, ":8080"}, {&s.extproc, written.ExtProc, ":9002"}, {&s.metrics, written.Metrics, ":9090"}} {
		if *a.flag = cmp.Or(*a.flag, a.file, a.none); *a.flag == "off" {
			*a.flag = ""
		}
	}
}

// serveCluster serves what an API server describes, beside manifests.
func serveCluster(ctx context.Context, c *clusterFlags, paths []string, s settings, log io.Writer) error {
	o := options(c.namespace)
	o.Experimental = s.experimental
	cfg, problems := config.Documents(nil, o, paths...)
	if cfg == nil {
		return config.Problems(problems)
	}
	s.listeners(cfg.Penstock.Listeners)
	return inCluster(ctx, c, s, o, nil, paths, log)
}

// loaded turns problems into an error when they leave no configuration.
func loaded(cfg *config.Config, problems []config.Problem) (*config.Config, error) {
	if cfg == nil {
		return nil, config.Problems(problems)
	}
	return cfg, nil
}

func epp(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := defaults()
	s.secure, s.auth = true, true
	fs := flags("epp", "--pool-name NAME [flags]", "Runs an Endpoint Picker: the ext_proc door alone, with llm-d's flags. The pool is an InferencePool of an API server, unless\nthe configuration discovers endpoints by file.", stdout)
	var c clusterFlags
	c.add(fs)
	fs.StringVar(&c.selector, "endpoint-selector", "", "labels of the pods to pick from, instead of an InferencePool")
	fs.IntSliceVar(&c.ports, "endpoint-target-ports", nil, "ports on which the pods of --endpoint-selector serve, 1 to 8")
	configFile := fs.String("config-file", "", "EndpointPickerConfig to load; followed when it changes")
	configText := fs.String("config-text", "", "EndpointPickerConfig, as text")
	port := fs.Int("grpc-port", 9002, "port of the ext_proc door")
	health := fs.Int("grpc-health-port", 9003, "port of the gRPC health service")
	metrics := fs.Int("metrics-port", 9090, "port of /metrics and /debug")
	fs.BoolVar(&s.healthOnDoor, "health-checking", false, "serve health on the ext_proc port, too")
	fs.BoolVar(&s.scores, "emit-endpoint-scores", false, "tell Envoy the total of each candidate, in dynamic metadata envoy.lb, x-gateway-destination-endpoint-scores")
	fs.BoolVar(&s.allSubsets, "disable-endpoint-subset-filter", false, "ignore subset hints of the data plane")
	s.common(fs)
	fs.BoolVar(&s.auth, "metrics-endpoint-auth", s.auth, authHelp)
	fs.BoolVar(&s.streams, "enable-grpc-stream-metrics", false, "count the streams of the ext_proc door: llm_d_epp_extproc_streams_inflight and so on")
	s.sizeFlags(fs)
	s.logging.add(fs)
	unused := fieldFlags(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	given := 0
	for _, name := range []string{"config-file", "config-text", "config-map"} {
		if fs.Lookup(name).Value.String() != "" {
			given++
		}
	}
	switch {
	case fs.NArg() > 0:
		return misused("unexpected argument %q", fs.Arg(0))
	case given > 1:
		return misused("--config-file, --config-text and --config-map exclude each other")
	}
	if err := errors.Join(c.check(), c.picks()); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	s.extproc, s.health, s.metrics = ":"+strconv.Itoa(*port), ":"+strconv.Itoa(*health), ":"+strconv.Itoa(*metrics)
	o := options(c.namespace)
	o.Experimental, o.Refuse, o.Default = s.experimental, true, ""
	var texts []config.Document
	var files []string
	switch {
	case *configFile != "":
		files = []string{*configFile}
	case *configText != "":
		texts = []config.Document{{Name: "--config-text", Data: []byte(*configText), Needed: true, Lines: true}}
	}
	how, err := s.logging.options()
	if err != nil {
		return err
	}
	unused(observe.NewLogger(stderr, how))
	if !c.allPools && c.selector == "" {
		read := eppReader(*configFile, *configText, &config.Pool{Namespace: c.namespace, Name: c.pool, PickerRef: c.pool + "-epp"}, s.experimental)
		cfg, err := loaded(read())
		if err != nil {
			return err
		}
		if cfg.Pools[0].Picker.DiscoveryFile != nil {
			if c.elect {
				return misused("--ha-enable-leader-election needs an API server, and the configuration has its endpoints from a file")
			}
			return fromFile(ctx, cfg, files, read, s, c.kubeconfig, fs.Changed("metrics-endpoint-auth"), stderr)
		}
	}
	err = inCluster(ctx, &c, s, o, texts, files, stderr)
	if errors.Is(err, kube.ErrNoCluster) {
		return fmt.Errorf("the configuration has no endpoints, and %w. Endpoints come from an API server, or from a file (plugins: - {type: file-discovery, parameters: {path: …}}, dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}})", err)
	}
	return err
}

// fromFile runs a picker whose endpoints are in a file. It needs no API server; where authentication is asked for and
// there is one, that decides who may read the metrics port. read reads the configuration anew, when one of files has changed.
func fromFile(ctx context.Context, cfg *config.Config, files []string, read func() (*config.Config, []config.Problem), s settings, kubeconfig string, asked bool, stderr io.Writer) error {
	p, err := newProcess(cfg, s, stderr)
	if err != nil {
		return err
	}
	if s.auth && asked {
		conn, err := kube.Connect(kubeconfig, agent())
		if err == nil {
			err = p.admit(kube.NewAccess(conn, p.obs.Kube(), p.log))
		}
		switch {
		case errors.Is(err, kube.ErrNoCluster):
			p.log.Warn("--metrics-endpoint-auth has no effect: endpoints come from a file, and there is no API server to ask. Whoever reaches the metrics port may read it")
		case err != nil:
			return err
		}
	}
	if len(files) > 0 {
		p.files, p.reload = files, func() (*config.Config, []config.Problem) {
			cfg, problems := read()
			if cfg != nil && cfg.Pools[0].Picker.DiscoveryFile == nil {
				return nil, append(problems, config.Problem{Severity: config.Error, File: files[0], Text: "the endpoints are in no file any more: to have them from an API server, start anew"})
			}
			return cfg, problems
		}
	}
	return p.run(ctx, cfg)
}

// picks checks which endpoints are to be picked from.
func (c *clusterFlags) picks() error {
	switch {
	case c.allPools:
		return nil
	case c.pool == "" && c.selector == "":
		return misused("--pool-name is required, or --endpoint-selector, or --all-pools")
	case c.pool != "" && c.selector != "":
		return misused("--pool-name and --endpoint-selector exclude each other")
	case c.selector != "" && (len(c.ports) < 1 || len(c.ports) > 8):
		return misused("--endpoint-target-ports: want 1 to 8 ports with --endpoint-selector, got %d", len(c.ports))
	case c.selector == "" && len(c.ports) > 0:
		return misused("--endpoint-target-ports are those of --endpoint-selector: a pool has its own")
	case c.selector != "":
		c.pool = deployment(os.Getenv("POD_NAME"))
	}
	for _, p := range c.ports {
		if p < 1 || p > 65535 {
			return misused("--endpoint-target-ports: want ports from 1 to 65535, got %d", p)
		}
	}
	return nil
}

// deployment is the name of the deployment that a pod of that name is of; "endpoints" when the name tells of none.
func deployment(pod string) string {
	for range 2 {
		i := strings.LastIndexByte(pod, '-')
		if i <= 0 {
			return "endpoints"
		}
		pod = pod[:i]
	}
	return pod
}

// eppReader reads the configuration of a picker for one pool, the only one in what it returns; without
// a path and a text it is the field's default, whose place we take here.
func eppReader(path, text string, pool *config.Pool, experimental bool) func() (*config.Config, []config.Problem) {
	return func() (cfg *config.Config, problems []config.Problem) {
		bound := *pool
		o := options(pool.Namespace)
		o.Pool, o.Experimental, o.Refuse, o.Default = &bound, experimental, true, ""
		if path != "" {
			cfg, problems = config.Load([]string{path}, o)
		} else {
			cfg, problems = config.Text("--config-text", text, o)
		}
		if cfg != nil {
			cfg.Pools = []*config.Pool{&bound} // an InferencePool beside the configuration is for the data plane
		}
		return cfg, problems
	}
}

// eppConfig is what eppReader reads, or why it cannot be.
func eppConfig(path, text string, pool *config.Pool, experimental bool) (*config.Config, error) {
	return loaded(eppReader(path, text, pool, experimental)())
}

// localURL is the address of a listener as a person on this machine would type it.
func localURL(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
