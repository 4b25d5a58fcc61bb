// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
)

// enginePage is what an engine without requests tells, among much else.
var enginePage = strings.Repeat("vllm:something_bucket{le=\"0.1\",model_name=\"m\"} 0\n", 100) +
	"vllm:num_requests_waiting{model_name=\"m\"} 0\nvllm:num_requests_running{model_name=\"m\"} 0\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0\n"

// answerPages is an idle engine, as far as it is scraped.
func answerPages(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReaderSize(c, 512)
	for {
		first, err := r.ReadString('\n')
		for line := first; err == nil && line != "\r\n"; {
			line, err = r.ReadString('\n')
		}
		if err != nil {
			return
		}
		body := enginePage
		if strings.Contains(first, "/v1/models") {
			body = `{"object":"list","data":[{"id":"m"}]}`
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			return
		}
	}
}

// churning are pods that are replaced, told one by one as an API server does, of a picker of several pools.
type churning struct {
	*process
	t           *testing.T
	pools, pods int
	first       int // the number of the first pod that is alive
}

func churn(t *testing.T, pools, pods int, f func(c *churning)) {
	if testing.Short() {
		t.Skip("counts what many pods leave behind")
	}
	synctest.Test(t, func(t *testing.T) {
		s := defaults()
		s.quiet, s.interval = true, time.Second
		s.dial = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go answerPages(theirs)
			return ours, nil
		}
		cfg, err := loaded(config.Documents(nil, options("default")))
		if err != nil {
			t.Fatal(err)
		}
		for i := range pools {
			name := fmt.Sprint("pool-", i)
			cfg.Pools = append(cfg.Pools, &config.Pool{Namespace: "default", Name: name, Picker: cfg.PickerFor("default", name), Objectives: map[string]int{}})
		}
		p, err := newProcess(cfg, s, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.serve(ctx, cfg, &listeners{}, certificates{}) }()
		f(&churning{process: p, t: t, pools: pools, pods: pods})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// tell says that exactly n pods are there, from the first on.
func (c *churning) tell(first, n int) {
	list := make([]fleet.EndpointSpec, 0, n)
	for i := first; i < first+n; i++ {
		list = append(list, fleet.EndpointSpec{
			ID: fleet.ID{Namespace: "default", Name: fmt.Sprintf("p%d-rank-0", i)}, Pod: fmt.Sprint("p", i), Life: fmt.Sprint(i),
			Address: fmt.Sprintf("10.%d.%d.%d:8000", i>>16&255, i>>8&255, i&255), Labels: map[string]string{"app": "x"},
			In: []string{fmt.Sprint("pool-", i%c.pools)},
		})
	}
	c.store.SetEndpoints("kube default", list)
}

// replace replaces all pods, some at a time, the new before the old.
func (c *churning) replace(step int) {
	for k := 0; k <= c.pods; k += step {
		c.tell(c.first, c.pods+k)
		time.Sleep(20 * time.Millisecond)
	}
	for k := 0; k <= c.pods; k += step {
		c.tell(c.first+k, 2*c.pods-k)
		time.Sleep(20 * time.Millisecond)
	}
	c.first += c.pods
}

// settled waits until all that the pods have to say is known, and counts the bytes that are in use.
func (c *churning) settled() int {
	c.t.Helper()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	known := 0
	for _, p := range c.store.Load().Pools {
		for _, e := range p.Endpoints {
			if !e.Waiting.At.IsZero() && len(e.Models) == 1 {
				known++
			}
		}
	}
	if known != c.pods {
		c.t.Fatalf("%d of %d pods are known", known, c.pods)
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Pods that are replaced leave nothing behind, however many they are: what is kept is for those that are there.
func TestChurn(t *testing.T) {
	for _, size := range []struct{ pools, pods, step, rounds int }{{1, 500, 20, 3}, {10, 200, 10, 3}, {1, 1000, 50, 2}} {
		t.Run(fmt.Sprintf("%d pools, %d pods", size.pools, size.pods), func(t *testing.T) {
			churn(t, size.pools, size.pods, func(c *churning) {
				none := c.settledNone()
				c.tell(0, c.pods)
				all := c.settled()
				for range size.rounds {
					c.replace(size.step)
				}
				after := c.settled()
				replaced := size.rounds * size.pods
				t.Logf("%d KiB without pods, %d with them (%d bytes each), %d after %d were replaced (%d bytes each)",
					none>>10, all>>10, (all-none)/c.pods, after>>10, replaced, (after-all)/replaced)
				if each := (all - none) / c.pods; each > 24<<10 {
					t.Errorf("a pod costs %d bytes", each)
				}
				if each := (after - all) / replaced; each > 2<<10 {
					t.Errorf("a pod that was replaced costs %d bytes", each)
				}
			})
		})
	}
}

// settledNone counts the bytes in use without any pod.
func (c *churning) settledNone() int {
	pods := c.pods
	defer func() { c.pods = pods }()
	c.pods = 0
	return c.settled()
}
