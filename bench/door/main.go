// SPDX-License-Identifier: Apache-2.0

// Door is the built-in proxy with the real core and nothing around it: what `penstock serve`
// spends on requests, without sources and configuration. It is measured against bench/floor.
//
//	door -listen 127.0.0.1:32000 -n 8 -port 31000 -pprof 127.0.0.1:32999
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/signal"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/proxy"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:32000", "address to listen on")
	n := flag.Int("n", 8, "endpoints on 127.0.0.1")
	port := flag.Int("port", 31000, "port of the first of them")
	model := flag.String("model", "tiny", "model that they serve")
	h2c := flag.Bool("h2c", false, "speak HTTP/2 without TLS to them")
	random := flag.Bool("random", false, "choose by chance instead of by queue, KV cache and prefix")
	profile := flag.String("pprof", "", "address of Go's profiles")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *profile != "" {
		go func() { log.Print(http.ListenAndServe(*profile, nil)) }()
	}
	id := fleet.ID{Namespace: "bench", Name: "pool"}
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: id, H2C: *h2c}})
	var endpoints []fleet.EndpointSpec
	for i := range *n {
		endpoints = append(endpoints, fleet.EndpointSpec{ID: fleet.ID{Namespace: "bench", Name: fmt.Sprintf("e%d", i)}, Address: fmt.Sprintf("127.0.0.1:%d", *port+i)})
	}
	store.SetEndpoints("bench", endpoints)
	for _, e := range store.Load().Pools[0].Endpoints {
		store.TellModels(e.ID, e.Load, []string{*model})
	}
	go tell(ctx, store)
	observer := observe.New(observe.Options{Store: store, Access: io.Discard})
	go func() { _ = observer.Run(ctx) }()
	gw := gateway.New(gateway.Options{Store: store, Observer: observer, Log: observe.NewLogger(os.Stderr, 2),
		Memory: request.NewMemory(1 << 30), MaxBody: 32 << 20, Stale: 2 * time.Second})
	gw.SetLanes(gateway.Lanes{id: {Gate: flow.NewLegacy(), Endpoints: 1, Profile: choice(*random)}})
	lis, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	if err := proxy.New(gw, proxy.Options{Drain: -1}).Run(ctx, lis); err != nil {
		log.Fatal(err)
	}
}

// choice is the default policy, or chance.
func choice(random bool) *sched.Profile {
	p := &sched.Profile{Name: "default"}
	if random {
		p.Picker = sched.Named[sched.Picker]{Name: "random-picker", Plugin: policy.Pickers["random-picker"]()}
		return p
	}
	p.Picker = sched.Named[sched.Picker]{Name: "max-score-picker", Plugin: policy.Pickers["max-score-picker"]()}
	p.Producers = []sched.Producer{policy.Producers["approx-prefix-cache-producer"]()}
	for _, s := range []struct {
		name   string
		weight float64
	}{{"queue-scorer", 2}, {"kv-cache-utilization-scorer", 2}, {"prefix-cache-scorer", 3}} {
		p.Scorers = append(p.Scorers, sched.Weighted{Name: s.name, Scorer: policy.Scorers[s.name](), Weight: s.weight})
	}
	return p
}

// tell keeps the endpoints' signals fresh, as a scraper would.
func tell(ctx context.Context, store *fleet.Store) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if ctx.Err() != nil {
			return
		}
		for _, e := range store.Load().Pools[0].Endpoints {
			zero := fleet.Signal{At: now}
			store.Tell(e.ID, e.Load, fleet.Reading{Waiting: zero, Running: zero, KVUsage: fleet.Signal{Value: 0.1, At: now}, BlockSize: 16, NumBlocks: 100000, Seen: e.Load.Sent()})
		}
	}
}
