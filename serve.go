// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/config"
)

// defaults are the settings that all gateways begin with.
func defaults() settings {
	return settings{lameDuck: lameDuck(), drain: 30 * time.Second, interval: 50 * time.Millisecond, stale: 2 * time.Second, pprof: true, verbosity: 2}
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
	fs.IntVarP(&s.verbosity, "v", "v", s.verbosity, "log level: 1 warnings, 2 info, 4 debug (each decision step by step), 5 trace")
	fs.BoolVar(&s.secure, "secure-serving", s.secure, "TLS at the ext_proc door, with a self-signed certificate unless --cert-path")
	fs.BoolVar(&s.experimental, "allow-experimental-plugins", s.experimental, "accept plugins that are alpha, or for tests")
	fs.StringVar(&s.certPath, "cert-path", "", "folder with tls.crt and tls.key for the ext_proc door; followed when they change")
}

func (s *settings) check() error {
	if s.interval < 50*time.Millisecond {
		return misused("--refresh-metrics-interval %v: must be at least 50ms", s.interval)
	}
	if s.stale <= 0 {
		return misused("--metrics-staleness-threshold %v: must be above 0", s.stale)
	}
	return nil
}

func serve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := defaults()
	fs := flags("serve", "-f FILE|DIR…", "Runs the gateway from manifests, which are followed when they change.", stdout)
	var paths []string
	fs.StringArrayVarP(&paths, "filename", "f", nil, "manifest or folder of manifests; may be given again")
	fs.StringVar(&s.http, "http", "", `address of the proxy (default spec.listeners.http or ":8080"; "off" for none)`)
	fs.StringVar(&s.extproc, "extproc", "", `address of the ext_proc door (default spec.listeners.extproc or ":9002"; "off" for none)`)
	fs.StringVar(&s.metrics, "metrics", "", `address of /metrics and /debug (default spec.listeners.metrics or ":9090"; "off" for none)`)
	fs.StringVar(&s.health, "health", "", "address of the gRPC health service (default none)")
	s.common(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	s.secure = s.secure || s.certPath != ""
	paths = append(paths, fs.Args()...)
	if len(paths) == 0 {
		return misused("name the manifests to serve: -f FILE|DIR")
	}
	if err := s.check(); err != nil {
		return err
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
	listeners := cfg.Penstock.Listeners
	for _, a := range []struct {
		flag       *string
		file, none string
	}{{&s.http, listeners.HTTP, ":8080"}, {&s.extproc, listeners.ExtProc, ":9002"}, {&s.metrics, listeners.Metrics, ":9090"}} {
		if *a.flag = cmp.Or(*a.flag, a.file, a.none); *a.flag == "off" {
			*a.flag = ""
		}
	}
	p, err := newProcess(cfg, s, log)
	if err != nil {
		return err
	}
	p.started, p.files, p.reload = started, paths, load
	return p.run(ctx, cfg)
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
	s.secure = true
	fs := flags("epp", "--pool-name NAME [flags]", "Runs an Endpoint Picker: the ext_proc door alone, with llm-d's flags.", stdout)
	pool := fs.String("pool-name", "", "name of the InferencePool to pick for")
	namespace := fs.String("pool-namespace", "default", "namespace of the InferencePool")
	configFile := fs.String("config-file", "", "EndpointPickerConfig to load")
	configText := fs.String("config-text", "", "EndpointPickerConfig, as text")
	port := fs.Int("grpc-port", 9002, "port of the ext_proc door")
	health := fs.Int("grpc-health-port", 9003, "port of the gRPC health service")
	metrics := fs.Int("metrics-port", 9090, "port of /metrics and /debug")
	fs.BoolVar(&s.healthOnDoor, "health-checking", false, "serve health on the ext_proc port, too")
	fs.BoolVar(&s.scores, "emit-endpoint-scores", false, "tell Envoy the total of each candidate, in dynamic metadata envoy.lb, x-gateway-destination-endpoint-scores")
	fs.BoolVar(&s.allSubsets, "disable-endpoint-subset-filter", false, "ignore subset hints of the data plane")
	s.common(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return misused("unexpected argument %q", fs.Arg(0))
	case *pool == "":
		return misused("--pool-name is required")
	case *configFile != "" && *configText != "":
		return misused("--config-file and --config-text exclude each other")
	}
	if err := s.check(); err != nil {
		return err
	}
	s.extproc, s.health, s.metrics = ":"+strconv.Itoa(*port), ":"+strconv.Itoa(*health), ":"+strconv.Itoa(*metrics)
	cfg, err := eppConfig(*configFile, *configText, &config.Pool{Namespace: *namespace, Name: *pool, PickerRef: *pool + "-epp"}, s.experimental)
	if err != nil {
		return err
	}
	if cfg.Pools[0].Picker.DiscoveryFile == nil {
		return fmt.Errorf("the configuration has no endpoints: file-discovery is the way to name them here (plugins: - {type: file-discovery, parameters: {path: …}}, dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}})")
	}
	p, err := newProcess(cfg, s, stderr)
	if err != nil {
		return err
	}
	return p.run(ctx, cfg)
}

// eppConfig loads the configuration of a picker for one pool, the only one in what it returns; without
// a path and a text it is the field's default, whose place we take here.
func eppConfig(path, text string, pool *config.Pool, experimental bool) (*config.Config, error) {
	o := options(pool.Namespace)
	o.Pool, o.Experimental, o.Refuse, o.Default = pool, experimental, true, ""
	read := func() (*config.Config, []config.Problem) { return config.Text("--config-text", text, o) }
	if path != "" {
		read = func() (*config.Config, []config.Problem) { return config.Load([]string{path}, o) }
	}
	cfg, err := loaded(read())
	if err != nil {
		return nil, err
	}
	cfg.Pools = []*config.Pool{pool} // an InferencePool beside the configuration is for the data plane
	return cfg, nil
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
