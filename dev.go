// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/bench"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/sim/work"
)

func dev(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := defaults()
	s.verbosity, s.quiet, s.showEndpoint, s.trustLoopback = 1, true, true, true
	fs := flags("dev", "[flags]", "Runs everything on this machine: a gateway with both doors, simulated engines, metrics.", stdout)
	engines := fs.Int("engines", 4, "simulated engines")
	model := fs.String("model", "penstock-sim", "name of the model they serve")
	fs.StringVar(&s.http, "listen", "localhost:8080", "address of the gateway's proxy")
	fs.StringVar(&s.extproc, "extproc", "localhost:0", "address of the ext_proc door; port 0 takes a free one")
	fs.StringVar(&s.metrics, "metrics", "localhost:0", "address of /metrics and /debug; port 0 takes a free one")
	rate := fs.Float64("load", 0, "requests a second of a built-in conversation workload; 0 for none")
	lasting := fs.Duration("for", 0, "end by itself after this time; 0 to run until interrupted")
	file := fs.String("config", "", "EndpointPickerConfig to decide with instead of the default")
	named := fs.String("policy", "", "decide as this policy does: "+strings.Join(policy.Names(), ", "))
	fs.IntVarP(&s.verbosity, "v", "v", s.verbosity, "log level: 1 warnings, 2 info, 4 debug (each decision step by step)")
	access := fs.Bool("access-log", false, "write a line for each request")
	if err := parse(fs, args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return misused("unexpected argument %q", fs.Arg(0))
	case *engines < 1 || *engines > 256:
		return misused("--engines %d: want 1 to 256", *engines)
	case s.http == "":
		return misused("--listen: want an address, such as localhost:8080")
	case *named != "" && *file != "":
		return misused("--policy and --config: want one of them")
	case *rate < 0:
		return misused("--load %g: must not be below 0", *rate)
	case *lasting < 0:
		return misused("--for %s: must not be below 0", *lasting)
	}
	s.quiet = !*access
	if *lasting > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, *lasting)
		defer stop()
	}
	text := ""
	if *file == "" {
		p, err := policy.ByName(cmp.Or(*named, policy.DefaultName))
		if err != nil {
			return misused("--policy: %v", err)
		}
		text = strings.Replace(p.Config(), "plugins:\n", "plugins:\n"+hearing, 1)
	}
	cfg, err := eppConfig(*file, text, &config.Pool{Namespace: "default", Name: "dev", PickerRef: "dev"}, true)
	if err != nil {
		return err
	}
	p, err := newProcess(cfg, s, stderr)
	if err != nil {
		return err
	}
	return p.dev(ctx, cfg, stdout, *engines, *model, *rate)
}

// Labels of simulated engines, which share an address: where each publishes its KV events, and takes requests for those that were
// missed.
const (
	eventsLabel  = "penstock.dev/kv-events-port"
	replaysLabel = "penstock.dev/kv-replays-port"
)

// hearing are the plugins that know what simulated engines hold.
const hearing = `- {type: token-producer, parameters: {simulated: true}}
- type: precise-prefix-cache-producer
  parameters: {kvEventsConfig: {podDiscoveryConfig: {portLabel: ` + eventsLabel + `, replayPortLabel: ` + replaysLabel + `}}}
`

// dev runs engines, the gateway in front of them, and the load. The engines end last.
func (p *process) dev(ctx context.Context, cfg *config.Config, stdout io.Writer, engines int, model string, rate float64) error {
	behind, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	fleetGroup, fleetCtx := errgroup.WithContext(behind)
	endpoints := make([]fleet.EndpointSpec, engines)
	for i := range engines {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		o := vllm.DefaultOptions()
		o.Models = []string{model}
		o.Events.Enabled, o.Events.Endpoint, o.Events.ReplayEndpoint = true, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
		o.Events.Topic = "kv@" + lis.Addr().String() + "@" + model
		e, err := vllm.New(o)
		if err != nil {
			return err
		}
		fleetGroup.Go(func() error { return e.Run(fleetCtx) })
		fleetGroup.Go(func() error { return serveHTTP(fleetCtx, lis, e.Handler()) })
		events, replays := e.EventAddrs()
		endpoints[i] = fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("engine-", i)}, Address: lis.Addr().String(),
			Labels: map[string]string{eventsLabel: portOf(events), replaysLabel: portOf(replays)}}
	}
	p.store.SetEndpoints("dev", endpoints)
	p.started = func(l *listeners) {
		p.greet(stdout, l, endpoints, model)
		if rate > 0 {
			fleetGroup.Go(func() error {
				return devLoad(ctx, "http://"+localURL(l.http.Addr().String()), model, rate, stdout)
			})
		}
	}
	err := p.run(ctx, cfg)
	end()
	if e := fleetGroup.Wait(); err == nil {
		err = e
	}
	return err
}

func portOf(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}

// devWork is what dev sends to itself: a few assistants with long instructions, and people who talk with them.
const devWork = "chat?apps=4&zipf=0&system=750&turns=2-8&first=30-180&question=30-180&output=48&think=8s&for=168h"

// devLoad sends it until the context ends, and writes every few seconds what came of it.
func devLoad(ctx context.Context, url, model string, rate float64, out io.Writer) error {
	open, err := work.Parse(devWork)
	if err != nil {
		return err
	}
	const most = 1024 // open at once
	transport := load.NewTransport(most, nil, false)
	defer transport.CloseIdleConnections()
	screen := &load.Screen{Out: out, Terminal: load.IsTerminal(out)}
	_, err = bench.Run(ctx, bench.Options{
		Targets: []bench.Target{{Name: "gateway", Client: load.Client{URL: url, API: request.Chat, HTTP: &http.Client{Transport: transport}}}},
		Open:    open, Workload: devWork, Model: model, Rate: rate, MaxOpen: most,
		Watch: func(ctx context.Context, p *bench.Progress) { screen.Run(ctx, p.Meter) },
	})
	if errors.Is(err, bench.ErrSilent) {
		return nil // it was said on the screen
	}
	return err
}

// greet says where everything is and what to try.
func (p *process) greet(w io.Writer, l *listeners, endpoints []fleet.EndpointSpec, model string) {
	url := "http://" + localURL(l.http.Addr().String())
	fmt.Fprintf(w, "gateway   %s/v1\n", url)
	if l.extproc != nil {
		fmt.Fprintf(w, "ext_proc  %s (plaintext gRPC, for Envoy)\n", localURL(l.extproc.Addr().String()))
	}
	if l.metrics != nil {
		m := localURL(l.metrics.Addr().String())
		fmt.Fprintf(w, "metrics   http://%s/metrics   fleet  http://%s/debug/fleet   caches  http://%s/debug/kvcache\n", m, m, m)
		fmt.Fprintf(w, "why       penstock explain --request last --server %s\n", m)
	}
	fmt.Fprintf(w, "engines   %d simulated, model %s, on %s to %s\n", len(endpoints), model, endpoints[0].Address, endpoints[len(endpoints)-1].Address)
	fmt.Fprintf(w, `
Try it; x-penstock-endpoint says who answered, and the same conversation goes to the same endpoint:

  curl -si %s/v1/chat/completions \
    --json '{"model":"%s","messages":[{"role":"user","content":"Hello"}],"max_tokens":20}'

  python3 -c 'from openai import OpenAI; c = OpenAI(base_url="%s/v1", api_key="none"); print(c.chat.completions.create(model="%s", max_tokens=20, messages=[{"role": "user", "content": "Hello"}]).choices[0].message.content)'

Ctrl-C ends it.
`, url, model, url, model)
}
