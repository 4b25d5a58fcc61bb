// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/fleet"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverOnly) != "" {
		servePages()
		return
	}
	goleak.VerifyTestMain(m)
}

// serverOnly tells this binary to be what [BenchmarkFleet] polls, whose cost is not ours.
const serverOnly = "SCRAPE_TEST_SERVER"

// servePages serves a page of 97 KB at all addresses of this machine until its standard input ends.
func servePages() {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	go cheapServer(l, vllmPage(70<<10))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// engines are peers in memory, by address.
type engines struct {
	mu    sync.Mutex
	start time.Time
	by    map[string]*engine
	open  int // connections
	dials int
}

// engine answers polls with what its fields say at the time.
type engine struct {
	page, models string
	status       int           // of the metrics page, 0 for 200
	hang         bool          // never answers
	takes        time.Duration // to answer
	refuse       bool
	asked        []time.Duration // when the page was asked for, from the start
	listed       []time.Duration // when the models were
	during       func()          // runs before the page is answered
}

func (s *engines) dial(_ context.Context, _, address string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.by[address]
	if e == nil || e.refuse {
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	s.open++
	s.dials++
	go s.serve(e, theirs)
	return ours, nil
}

func (s *engines) serve(e *engine, c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		s.open--
		s.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		s.mu.Lock()
		body, status := e.models, 200
		if req.URL.Path != "/v1/models" {
			e.asked = append(e.asked, time.Since(s.start))
			body, status = e.page, max(e.status, 200)
		} else {
			e.listed = append(e.listed, time.Since(s.start))
		}
		hang, takes, during := e.hang, e.takes, e.during
		s.mu.Unlock()
		if hang {
			_, _ = in.ReadByte() // until the other side gives up
			return
		}
		if during != nil {
			during()
		}
		if takes > 0 {
			<-time.After(takes)
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body); err != nil {
			return
		}
	}
}

func (s *engines) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

const (
	idle  = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
	names = `{"object":"list","data":[{"id":"m"}]}`
)

// rig is a store with n endpoints of one pool, and a Run that polls them.
type rig struct {
	*engines
	store  *fleet.Store
	specs  []fleet.EndpointSpec
	failed map[string]int
	e      []*engine
}

func start(t *testing.T, n int, opt Options) *rig {
	t.Helper()
	r := &rig{engines: &engines{start: time.Now(), by: map[string]*engine{}}, store: fleet.NewStore(), failed: map[string]int{}}
	for i := range n {
		addr := "10.0.0." + strconv.Itoa(i+1) + ":8000"
		e := &engine{page: idle, models: names}
		r.by[addr], r.e = e, append(r.e, e)
		r.specs = append(r.specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprintf("e%03d", i)}, Address: addr})
	}
	r.store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
	r.store.SetEndpoints("test", r.specs)
	opt.Dial = r.dial
	opt.Failed = func(source string, load *fleet.Load, cause string) {
		r.set(func() { r.failed[source+" "+cause]++ })
	}
	opt.Extracted = func(source, extractor string, load *fleet.Load, cause string) {
		r.set(func() { r.failed[extractor+" "+cause]++ })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		<-time.After(time.Nanosecond) // what a test says of engines at once counts from the first look
		ended <- Run(ctx, r.store, opt)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		pass(time.Second) // what was being answered ends
		r.set(func() {
			if r.open != 0 {
				t.Errorf("%d connections are left open", r.open)
			}
		})
	})
	return r
}

func (r *rig) endpoint(i int) *fleet.Endpoint { return r.store.Load().Pools[0].Endpoints[i] }

// pass lets time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestEndpointsAreSpreadOverTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 50, Options{Interval: 100 * time.Millisecond})
		pass(1100 * time.Millisecond)
		r.set(func() {
			var slots [10]int
			for i, e := range r.e {
				if n := len(e.asked); n < 10 || n > 12 {
					t.Errorf("endpoint %d was asked %d times in 1.1 s, want 11", i, n)
				}
				last := e.asked[len(e.asked)-1]
				slots[last%(100*time.Millisecond)/(10*time.Millisecond)]++
				for k := 2; k < len(e.asked); k++ {
					if d := e.asked[k] - e.asked[k-1]; d < 99*time.Millisecond || d > 101*time.Millisecond {
						t.Errorf("endpoint %d was asked again after %v, want 100 ms", i, d)
					}
				}
			}
			if most := slices.Max(slots[:]); most > 7 {
				t.Errorf("got %v polls in tenths of the interval, want about 5 in each", slots)
			}
		})
	})
}

func TestIntervalHasAMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 1, Options{Interval: time.Millisecond})
		pass(time.Second)
		r.set(func() {
			if n := len(r.e[0].asked); n < 19 || n > 21 {
				t.Errorf("got %d polls in a second, want 20", n)
			}
		})
	})
}

func TestReadingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 1, Options{})
		r.set(func() {
			r.e[0].page = "vllm:num_requests_waiting 4\nvllm:num_requests_running 5\nvllm:gpu_cache_usage_perc 0.5\n" +
				"vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n" +
				"vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"c\"} 1e9\n"
			r.e[0].takes = 20 * time.Millisecond
		})
		pass(200 * time.Millisecond)
		e := r.endpoint(0)
		if e.Waiting.Value != 4 || e.Running.Value != 5 || e.KVUsage.Value != 0.5 || e.BlockSize != 32 || e.NumBlocks != 100 || e.MaxAdapters != 2 ||
			!slices.Equal(e.Adapters, []string{"a", "b"}) || !slices.Equal(e.Queued, []string{"c"}) || e.Engine != "vllm" || e.KVName != "vllm:gpu_cache_usage_perc" {
			t.Errorf("got %+v", e.Reading)
		}
		r.set(func() {
			asked := r.start.Add(r.e[0].asked[len(r.e[0].asked)-1])
			before := r.start.Add(r.e[0].asked[len(r.e[0].asked)-2])
			if at := e.Waiting.At; !at.Equal(asked) && !at.Equal(before) {
				t.Errorf("the signal is of %v, want the time at which the page was asked for, %v", at, asked)
			}
		})
	})
}

// A request that is dispatched while the page is on its way cannot show in it.
func TestSeenIsTakenBeforeThePageIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 1, Options{Interval: time.Second})
		load := r.endpoint(0).Load
		load.Take(time.Now(), 1, 0)
		r.set(func() { r.e[0].during = func() { load.Take(time.Now(), 1, 0) } })
		pass(1500 * time.Millisecond)
		if seen, sent := r.endpoint(0).Seen, load.Sent(); seen != sent-1 && seen != sent-2 {
			t.Errorf("got %d seen of %d sent", seen, sent)
		}
		if n := r.endpoint(0).Unseen(time.Now(), 2*time.Second); n < 1 {
			t.Errorf("got %d unseen, want what was sent during the poll", n)
		}
	})
}

// One that hangs and one that refuses delay nobody, and are asked less and less, but at least once a second.
func TestFailingEndpointsBackOffAndDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 8, Options{Workers: 4})
		r.set(func() {
			for i := range 5 {
				r.e[i].hang = true
			}
			r.e[5].refuse = true
			r.e[6].status = 500
		})
		pass(10 * time.Second)
		r.set(func() {
			if n := len(r.e[7].asked); n < 195 || n > 201 {
				t.Errorf("the well one was asked %d times in 10 s, want 200", n)
			}
			for _, a := range [][]time.Duration{r.e[6].asked} {
				if len(a) < 9 || len(a) > 16 {
					t.Errorf("a failing one was asked %d times in 10 s, want about 14", len(a))
				}
				for k := 1; k < len(a); k++ {
					if d := a[k] - a[k-1]; d > 1600*time.Millisecond { // they may delay each other
						t.Errorf("got a gap of %v", d)
					}
				}
			}
			for _, cause := range []string{"timeout", "refused", "status-500"} {
				if r.failed["metrics-data-source "+cause] == 0 {
					t.Errorf("no poll failed for %q: %v", cause, r.failed)
				}
			}
		})
	})
}

// BL-18: a page that fails keeps the last values, which become stale by age, and heals with one scrape.
func TestOutageMakesSignalsStale(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*engine)
	}{
		{"status", func(e *engine) { e.status = 500 }},
		{"hangs", func(e *engine) { e.hang = true }},
		{"refuses", func(e *engine) { e.refuse, e.hang = true, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, 1, Options{})
				r.set(func() { r.e[0].page = "vllm:num_requests_waiting 7\n" })
				pass(time.Second)
				if e := r.endpoint(0); !e.Waiting.Fresh(time.Now(), 2*time.Second) || e.Waiting.Value != 7 || !e.KVUsage.At.IsZero() {
					t.Fatalf("got %+v before the outage", e.Reading)
				}
				r.set(func() { c.spoil(r.e[0]) })
				pass(10 * time.Second)
				if e := r.endpoint(0); e.Waiting.Fresh(time.Now(), 2*time.Second) || e.Waiting.Value != 7 {
					t.Errorf("got %+v in the outage, want the last value, stale", e.Waiting)
				}
				r.set(func() { *r.e[0] = engine{page: "vllm:num_requests_waiting 8\n", models: names} })
				pass(2200 * time.Millisecond) // a poll that hangs may have to end first
				if e := r.endpoint(0); !e.Waiting.Fresh(time.Now(), 100*time.Millisecond) || e.Waiting.Value != 8 {
					t.Errorf("got %+v after the outage", e.Waiting)
				}
			})
		})
	}
}

// BL-09: a page that says nothing makes the signals unknown at once, not zero.
func TestUselessPageMakesSignalsUnknown(t *testing.T) {
	for _, page := range []string{"", "<html><body>login</body></html>", "vllm:kv_cache_usage_perc 87\n"} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, 1, Options{})
			pass(time.Second)
			if !r.endpoint(0).Waiting.Fresh(time.Now(), time.Second) {
				t.Fatal("not known at first")
			}
			r.set(func() { r.e[0].page = page })
			pass(time.Second)
			if e := r.endpoint(0); !e.Waiting.At.IsZero() || !e.Running.At.IsZero() || !e.KVUsage.At.IsZero() {
				t.Errorf("%q: got %+v, want all absent", page, e.Reading)
			}
			r.set(func() {
				if r.failed[MetricsExtractor+" no-signals"]+r.failed[MetricsExtractor+" bad-value"] == 0 {
					t.Errorf("%q was not flagged: %v", page, r.failed)
				}
			})
		})
	}
}

func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 1, Options{})
		r.set(func() { r.e[0].models = "starting" })
		pass(time.Second)
		if m := r.endpoint(0).Models; m != nil {
			t.Errorf("got %v before the first list", m)
		}
		r.set(func() {
			if n := len(r.e[0].listed); n < 3 || n > 6 {
				t.Errorf("got %d looks in the first second, want a few", n)
			}
			r.e[0].models = `{"data":[{"id":"base"},{"id":"adapter","parent":"base"},{"id":""}]}`
		})
		pass(2 * time.Second)
		if m := r.endpoint(0).Models; !slices.Equal(m, []string{"base", "adapter"}) {
			t.Errorf("got %v", m)
		}
		var before int
		r.set(func() { before = len(r.e[0].listed); r.e[0].models = `{"data":[]}` })
		pass(10 * time.Second)
		if m := r.endpoint(0).Models; m == nil || len(m) != 0 {
			t.Errorf("got %v, want an empty list", m)
		}
		r.set(func() {
			if n := len(r.e[0].listed) - before; n != 5 {
				t.Errorf("got %d looks in 10 s, want 5", n)
			}
		})
	})
}

func TestModelsListIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 1, Options{})
		r.set(func() { r.e[0].models = `{"data":[{"id":"` + strings.Repeat("x", maxModels) + `"}]}` })
		pass(time.Second)
		r.set(func() {
			if r.failed["models-data-source too-large"] == 0 || r.endpoint(0).Models != nil {
				t.Errorf("got %v", r.failed)
			}
		})
	})
}

func TestMembershipIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 3, Options{})
		pass(500 * time.Millisecond)
		r.set(func() {
			if r.open != 6 {
				t.Errorf("got %d connections, want 2 for each endpoint", r.open)
			}
		})
		moved := slices.Clone(r.specs[:2])
		moved[1].Address = "10.0.0.3:8000" // a new incarnation
		r.store.SetEndpoints("test", moved)
		pass(20 * time.Millisecond)
		var first, third int
		r.set(func() {
			if r.open > 4 {
				t.Errorf("got %d connections, want those of the gone closed", r.open)
			}
			first, third = len(r.e[1].asked), len(r.e[2].asked)
		})
		pass(time.Second)
		r.set(func() {
			if len(r.e[1].asked) != first || len(r.e[2].asked) < third+19 {
				t.Errorf("the gone one was asked %d times, the new one %d times", len(r.e[1].asked)-first, len(r.e[2].asked)-third)
			}
		})
		if e := r.endpoint(1); !e.Waiting.Fresh(time.Now(), 100*time.Millisecond) {
			t.Errorf("the new incarnation is not known: %+v", e.Reading)
		}
	})
}

func TestScrapeAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, 2, Options{})
		r.specs[0].Scrape = r.specs[1].Address
		r.store.SetEndpoints("test", r.specs)
		pass(time.Second)
		var n int
		r.set(func() { n = len(r.e[0].asked); r.e[1].page = "vllm:num_requests_waiting 9\n" })
		pass(time.Second)
		r.set(func() {
			if len(r.e[0].asked) != n {
				t.Error("its own address was still asked")
			}
		})
		if v := r.endpoint(0).Waiting.Value; v != 9 {
			t.Errorf("got %v waiting, want what the other address says", v)
		}
	})
}

// 100 endpoints, asked every 50 ms over real sockets; the server is another process:
// go test -bench Fleet -benchtime 5s
func BenchmarkFleet(b *testing.B) {
	b.Run("default", func(b *testing.B) { benchmarkFleet(b, nil) })
	var x CoreMetricsExtractor
	x.EngineLabelKey, x.EngineConfigs = engineLabel, []EngineConfig{{Name: "vllm", QueuedRequestsSpec: Spec{Family: "vllm:num_requests_waiting"}}}
	for i, h := range []string{"vllm:num_preemptions_total", "vllm:generation_tokens_total", "vllm:num_requests_running"} {
		x.EngineConfigs[0].CustomMetrics = append(x.EngineConfigs[0].CustomMetrics, CustomMetric{AttributeKey: strconv.Itoa(i), MetricSpec: Spec{Family: h}})
	}
	p, err := NewPlan(Poll{Name: "m", Type: MetricsSource, Source: Sources[MetricsSource](), Extractors: []Named{{MetricsExtractor, MetricsExtractor, &x}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("custom", func(b *testing.B) { benchmarkFleet(b, p) })
}

func benchmarkFleet(b *testing.B, p *Plan) {
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), serverOnly+"=1")
	in, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = server.Wait() }()
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	id := fleet.ID{Name: "p"}
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: id}})
	var specs []fleet.EndpointSpec
	for i := range 100 {
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Name: strconv.Itoa(i)}, Address: fmt.Sprintf("127.0.0.%d:%s", i+1, strings.TrimSpace(port))})
	}
	store.SetEndpoints("bench", specs)
	plans := &Plans{}
	if p != nil {
		plans.Set(map[fleet.ID]*Plan{id: p})
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, store, Options{Plans: plans}) }()
	before, from := cpu(b), time.Now()
	for range b.N {
		<-time.After(100 * time.Millisecond)
	}
	b.ReportMetric((cpu(b)-before).Seconds()/time.Since(from).Seconds(), "cores")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
