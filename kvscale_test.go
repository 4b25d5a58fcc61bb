// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/source/kvevents"
)

// publishing is the environment variable that makes TestPublisherProcess publish for that many subscribers until its input ends: for
// each line, that a block is held which nobody held before.
const publishing = "PENSTOCK_TEST_PUBLISHES"

func TestPublisherProcess(t *testing.T) {
	subscribers, err := strconv.Atoi(os.Getenv(publishing))
	if err != nil {
		t.Skip("is a part of TestThousandPublishers")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &kvevents.Publisher{Topic: "kv@all@m"}
	go func() { _ = p.ServeEvents(l) }()
	fmt.Println(portOf(l.Addr()))
	in := bufio.NewScanner(os.Stdin)
	until(t, "subscribers", func() bool { return p.Subscribers() == subscribers })
	for n := uint64(0); in.Scan(); n++ {
		b := stored(1000 + 100*n)
		b.Events[0].LoraID = -1
		p.Send(n, kvevents.AppendRank(b.Events[0].Append(kvevents.AppendHead(nil, 1, 1), kvevents.Maps), 0))
	}
	p.Close()
}

// A thousand endpoints that publish cost three goroutines and a few kilobytes each, and nothing while they say nothing.
func TestThousandPublishers(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a thousand connections")
	}
	const n = 1000
	cmd := exec.Command(os.Args[0], "-test.run", "^TestPublisherProcess$")
	cmd.Env = append(os.Environ(), publishing+"="+strconv.Itoa(n))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	f, p := feedOf(t, blind)
	specs := make([]fleet.EndpointSpec, n)
	for i := range specs {
		specs[i] = fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("127.0.0.1:%d", 10000+i),
			Labels: map[string]string{eventsLabel: strings.TrimSpace(port)}}
	}
	p.store.SetEndpoints("test", specs)
	measure := func() (bytes int64, goroutines int, cpu time.Duration) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return int64(m.HeapInuse + m.StackInuse), runtime.NumGoroutine(), time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	bytes, goroutines, _ := measure()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.feeds.run(ctx) }()
	up := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for s := range f.sources {
			if s.Connected() {
				n++
			}
		}
		return n
	}
	until(t, "all to be connected", func() bool { return up() == n })
	said := 0
	say := func() {
		fmt.Fprintln(in)
		said++
		until(t, "all to have heard", func() bool {
			heard := 0
			for _, e := range p.store.Load().Pools[0].Endpoints {
				if k := f.producer.Mirror().Of(e.Load.Slot); k != nil && k.Counts().Stored == uint64(said) {
					heard++
				}
			}
			return heard == n
		})
	}
	say()
	bytes2, goroutines2, cpu := measure()
	idle, _ := time.ParseDuration(os.Getenv("PENSTOCK_TEST_IDLE")) // to measure what silence costs
	time.Sleep(idle)
	_, _, cpu2 := measure()
	for range 20 {
		say()
	}
	v := f.view()
	t.Logf("for each of %d endpoints: %.1f goroutines, %d bytes; %v of CPU in %v; %d blocks held by all in %d bytes", n,
		float64(goroutines2-goroutines)/n, (bytes2-bytes)/n, cpu2-cpu, idle, v.Blocks, v.Bytes)
	if g := goroutines2 - goroutines; g > 4*n {
		t.Errorf("%d goroutines", g)
	}
	if b := bytes2 - bytes; b > n*40<<10 {
		t.Errorf("%d bytes", b)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
