// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/bench"
	"github.com/penstock-project/penstock/sim/fit"
	"github.com/penstock-project/penstock/sim/kind"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/run"
	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/sim/work"
)

// TestRehearsal plays the same work twice: as sim run does, and as penstock bench does on the gateway as it is served, with
// its proxy, its scrapes and engines behind HTTP, on connections in memory. Bench, gateway and engines wait by a clock that
// goes on when all of them wait, so that nothing but what they do decides how long it takes: not this machine. What is left
// between the two is chance: metrics are not looked at in the very same moment, and from then on requests go elsewhere. So the
// means of a few seeds are compared. With the race detector a short piece is played, and wants all answered.
func TestRehearsal(t *testing.T) {
	const within = 0.08
	seeds, length := []uint64{7, 8, 9}, 150*time.Second
	if raceEnabled {
		seeds, length = seeds[:1], 15*time.Second
	}
	for _, c := range []struct {
		name, policy, work string
		rate               float64
	}{
		{"prefixes", "penstock-default", "groups?groups=6&prefix=800~0.5&own=500~0.5&output=30~0.5", 4.5},
		{"conversations", "llm-d-default", "chat?apps=3&system=300&first=300~0.8&question=100~0.8&turns=2-6&think=3s&output=20~0.5&before=10s", 6},
		{"a queue", "penstock-default+vtc", "tenants?tenants=3&skew=1&of=groups&groups=3&prefix=500&own=900~0.5&output=30~0.5", 4.8},
	} {
		t.Run(c.name, func(t *testing.T) {
			var real, virtual, wrong []report.Run
			for _, seed := range seeds {
				s := staged{policy: c.policy, work: c.work, rate: c.rate, kind: stagedKind(), seed: seed, length: length}
				r, v := s.real(t), s.virtual(t)
				border := 1 + 0.01*float64(v.Requests) // turns that begin a moment before or after the end
				if raceEnabled {
					border = 0.1 * float64(v.Requests) // of few seconds the last is more
				}
				if math.Abs(float64(r.Requests-v.Requests)) > border || r.Completed != r.Requests || v.Completed != v.Requests {
					t.Fatalf("%d of %d requests were answered, and %d of %d in virtual time; %v, %v", r.Completed, r.Requests, v.Completed, v.Requests, r.Errors, v.Errors)
				}
				// What it would say of a model that is wrong.
				s.kind.Config.Timing.PerPrefillToken = s.kind.Config.Timing.PerPrefillToken * 115 / 100
				real, virtual, wrong = append(real, r), append(virtual, v), append(wrong, s.virtual(t))
			}
			if raceEnabled {
				return
			}
			told, off := apart(real, virtual)
			t.Logf("\n%s", told)
			if off > within {
				t.Errorf("%.1f %% apart", 100*off)
			}
			if told, off = apart(real, wrong); off < within {
				t.Errorf("prompts that take 15 %% longer are not noticed:\n%s", told)
			}
		})
	}
}

// apart compares runs with others of the same seeds, and says how far their means are from one another at most.
func apart(real, virtual []report.Run) (told string, worst float64) {
	var b strings.Builder
	for _, q := range []struct {
		name string
		of   func(r *report.Run) float64
	}{
		{"TTFT mean", func(r *report.Run) float64 { return r.TTFT.Mean }},
		{"TTFT p50", func(r *report.Run) float64 { return r.TTFT.P50 }},
		{"TTFT p90", func(r *report.Run) float64 { return r.TTFT.P90 }},
		{"TPOT mean", func(r *report.Run) float64 { return r.TPOT.Mean }},
		{"TPOT p50", func(r *report.Run) float64 { return r.TPOT.P50 }},
		{"E2E p50", func(r *report.Run) float64 { return r.E2E.P50 }},
		{"E2E p90", func(r *report.Run) float64 { return r.E2E.P90 }},
		{"hit rate", func(r *report.Run) float64 { return r.HitRate }},
	} {
		var sums [2]float64
		for i := range real {
			sums[0] += q.of(&real[i]) / float64(len(real))
			sums[1] += q.of(&virtual[i]) / float64(len(real))
		}
		off := sums[0]/sums[1] - 1
		fmt.Fprintf(&b, "%-9s %8.4g by the gateway, %8.4g rehearsed: %+.2f %%\n", q.name, sums[0], sums[1], 100*off)
		worst = max(worst, math.Abs(off))
	}
	return b.String(), worst
}

// staged is work on three engines.
type staged struct {
	policy, work string
	rate         float64
	kind         kind.Kind
	seed         uint64
	length       time.Duration
}

const (
	stagedEngines = 3
	stagedWarmup  = 2 * time.Second
)

// stagedKind is an engine that does not take long and has little room.
func stagedKind() kind.Kind {
	k, _ := kind.Find("laptop")
	k.Config.NumBlocks, k.Config.MaxNumSeqs = 2100, 16
	timing := &k.Config.Timing
	timing.Base, timing.PerPrefillToken, timing.PerSeq, timing.PerKVToken = 20*time.Millisecond, 400*time.Microsecond, 500*time.Microsecond, 500*time.Nanosecond
	return k
}

// virtual is the work as sim run plays it.
func (s *staged) virtual(t *testing.T) report.Run {
	t.Helper()
	open, err := work.Parse(s.work)
	if err != nil {
		t.Fatal(err)
	}
	w, err := open(s.seed, s.rate)
	if err != nil {
		t.Fatal(err)
	}
	picker, err := pickerOf(s.policy)
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.Do(t.Context(), run.Setup{
		Policy: s.policy, Rate: s.rate, Lane: laneOf(picker), Work: w, Seed: s.seed, Warmup: stagedWarmup, Duration: stagedWarmup + s.length - 1,
		Fleet: slices.Repeat([]kind.Endpoint{{Kind: "test", Config: s.kind.Config}}, stagedEngines),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// real is the work as the gateway serves it, in a bubble.
func (s *staged) real(t *testing.T) (out report.Run) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		lines := network{}
		var specs []fleet.EndpointSpec
		for i := range stagedEngines {
			specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("engine-", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
			lines.engine(ctx, t, &running, specs[i].Address, s.kind)
		}
		p, err := policy.ByName(s.policy)
		if err != nil {
			t.Fatal(err)
		}
		pool := &config.Pool{Namespace: "default", Name: "pool", PickerRef: "pool-epp"}
		cfg, err := eppConfig("", p.Config(), pool, true)
		if err != nil {
			t.Fatal(err)
		}
		set := defaults()
		set.dial, set.quiet, set.verbosity = lines.dial, true, 1
		g, err := newProcess(cfg, set, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		g.doors.proxy.SetTrust(gateway.Trust{All: true}) // who says whose a request is
		g.store.SetEndpoints("test", specs)
		serving, leave := context.WithCancel(ctx)
		running.Go(func() {
			if err := g.serve(serving, cfg, &listeners{http: lines.listen("gateway:80")}, certificates{}); err != nil {
				t.Error(err)
			}
		})
		open, err := work.Parse(s.work)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // engines were looked at
		transport := load.NewTransport(4096, nil, false)
		transport.DialContext = lines.dial
		r, err := bench.Run(ctx, bench.Options{
			Targets: []bench.Target{{Name: "gateway", Client: load.Client{URL: "http://gateway:80", API: request.Completions, HTTP: &http.Client{Transport: transport}}}},
			Open:    open, Workload: s.work, Model: "m", Seed: s.seed, Rate: s.rate, Warmup: stagedWarmup, Duration: s.length, Nap: time.Sleep,
		})
		if err != nil {
			t.Error(err)
		} else {
			out = r.Runs[0]
		}
		transport.CloseIdleConnections()
		leave()
		stop()
		running.Wait()
	})
	return out
}

// TestFitOfAnEngine measures a simulated engine in a bubble, and wants its constants back, though answers be so short that they do not
// overlap.
func TestFitOfAnEngine(t *testing.T) {
	for _, answer := range []int{64, 4} {
		t.Run(fmt.Sprintf("answers of %d", answer), func(t *testing.T) { fitOfAnEngine(t, answer) })
	}
}

func fitOfAnEngine(t *testing.T, answer int) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		lines := network{}
		k := stagedKind()
		lines.engine(ctx, t, &running, "engine:80", k)
		transport := load.NewTransport(16, nil, false)
		transport.DialContext = lines.dial
		samples, err := fit.Measure(ctx, fit.Options{
			Client: load.Client{URL: "http://engine:80", API: request.Chat, HTTP: &http.Client{Transport: transport}},
			Model:  "m", Prompts: []int{64, 512, 1024, 2048}, Seqs: []int{1, 4, 12}, Answer: answer, Tries: 1, Budget: k.Config.MaxNumBatchedTokens, Extra: "{}",
		})
		if err != nil {
			t.Fatal(err)
		}
		transport.CloseIdleConnections()
		stop()
		running.Wait()
		got, want := fit.Solve(samples), k.Config.Timing
		for _, c := range []struct {
			name      string
			got, want time.Duration
		}{
			{"step", got.Timing.Base, want.Base}, {"prompt token", got.Timing.PerPrefillToken, want.PerPrefillToken},
			{"sequence", got.Timing.PerSeq, want.PerSeq}, {"token of context", got.Timing.PerKVToken, want.PerKVToken},
		} {
			if off := float64(c.got)/float64(c.want) - 1; math.Abs(off) > 0.02 {
				t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
			}
		}
	})
}

// network is one in memory: listeners by address.
type network map[string]*line

// engine serves an engine at an address until ctx ends.
func (n network) engine(ctx context.Context, t *testing.T, running *sync.WaitGroup, address string, k kind.Kind) {
	o := vllm.DefaultOptions()
	o.Models, o.Engine = []string{"m"}, k.Config
	e, err := vllm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	srv, l := &http.Server{Handler: e.Handler()}, n.listen(address)
	running.Go(func() { _ = e.Run(ctx) })
	running.Go(func() { _ = srv.Serve(l) })
	context.AfterFunc(ctx, func() { _ = srv.Close() })
}

func (n network) listen(address string) *line {
	l := &line{address: address, calls: make(chan net.Conn), closed: make(chan struct{})}
	n[address] = l
	return l
}

func (n network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	l := n[address]
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	select {
	case l.calls <- there:
		return here, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// line is a listener of a network.
type line struct {
	address string
	calls   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *line) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *line) Addr() net.Addr  { return l }
func (l *line) Network() string { return "memory" }
func (l *line) String() string  { return l.address }
