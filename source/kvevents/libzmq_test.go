// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// python is an engine's side in another process, with libzmq itself.
type python struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// pythonOf wants the Python of scripts/install-zmq.sh in PENSTOCK_ZMQ_PYTHON, as `make e2e` gives it.
func pythonOf(t *testing.T) string {
	program := os.Getenv("PENSTOCK_ZMQ_PYTHON")
	if program == "" {
		t.Skip("PENSTOCK_ZMQ_PYTHON is not set")
	}
	return program
}

func newPython(t *testing.T) *python {
	cmd := exec.Command(pythonOf(t), "testdata/publisher.py")
	cmd.Stderr = os.Stderr
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
	p := &python{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

func (p *python) kill() {
	p.in.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *python) do(format string, args ...any) string {
	p.t.Helper()
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() {
		p.t.Fatal("the publisher ended")
	}
	return p.out.Text()
}

func (d *diary) wants(t *testing.T, lines ...string) {
	t.Helper()
	var got []string
	for range 10000 {
		d.mu.Lock()
		got = d.lines
		if len(got) >= len(lines) {
			d.lines = nil
			d.mu.Unlock()
			break
		}
		d.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestLibzmqFollow(t *testing.T) {
	for _, ping := range []int{0, 20} {
		t.Run(fmt.Sprint("ping=", ping), func(t *testing.T) {
			py := newPython(t)
			py.do("ping %d", ping)
			events, replays := freePort(t), freePort(t)
			py.do("bind %d %d", events, replays)
			py.do(`lose 0 [1, [["BlockStored", [1], null, [1, 2], 2]], 0]`)

			store := fleet.NewStore()
			store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "pool"}}})
			store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "e"}, Address: "127.0.0.1:8000"}})
			var d diary
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				_ = Follow(ctx, store, Options{Topic: "kv@", Port: events, ReplayPort: replays}, &d)
			})
			defer wg.Wait()
			defer cancel()
			d.wants(t, "127.0.0.1:8000 0 +[1]")
			if got := py.do("subscribed"); got != `b'\x01kv@'` {
				t.Errorf("libzmq understood %s", got)
			}
			if ping > 0 { // longer than libzmq waits for a PONG
				time.Sleep(10 * time.Duration(ping) * time.Millisecond)
			}
			py.do(`send 1 [2, [{"type": "BlockStored", "block_hashes": [18446744073709551615], "parent_block_hash": 1, "token_ids": [3, 4], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null}], 0]`)
			d.wants(t, "127.0.0.1:8000 1 +[18446744073709551615]")
			py.do(`lose 2 [3, [["BlockRemoved", [1]]], 0]`)
			py.do(`send 3 [4, [["AllBlocksCleared"]], 0]`)
			d.wants(t, "127.0.0.1:8000 2 -[1]", "127.0.0.1:8000 3 clear")
			long := strings.Repeat("7, ", 300_000) + "7"
			py.do(`send 4 [5, [["BlockStored", [5], null, [%s], 300001]], 0]`, long)
			d.wants(t, "127.0.0.1:8000 4 +[5]")
			py.kill()
			d.wants(t, "127.0.0.1:8000 restarted")
			py = newPython(t)
			py.do(`lose 0 [9, [["BlockStored", [9], null, [1, 2], 2]], 0]`)
			py.do("bind %d %d", events, replays)
			d.wants(t, "127.0.0.1:8000 0 +[9]")
		})
	}
}

func TestLibzmqListen(t *testing.T) {
	py := newPython(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = Serve(ctx, l, Options{Topic: "kv@"}, &d) })
	defer wg.Wait()
	defer cancel()
	for _, one := range []struct {
		seq  int
		want []string
	}{
		{5, []string{"engine gap 0-4", "engine 5 clear"}},
		{4, []string{"engine restarted", "engine gap 0-3", "engine 4 clear"}}, // another connection, an earlier number
	} {
		py.do("dial tcp://%s", l.Addr())
		py.do("subscribed")
		py.do(`send %d [1, [["AllBlocksCleared"]]]`, one.seq)
		d.wants(t, one.want...)
		py.do("close")
	}
}

// libzmq's own subscriber takes our publisher for an engine, dialled or dialling, with replays from the middle.
func TestLibzmqSubscribes(t *testing.T) {
	python := pythonOf(t)
	for _, mode := range []string{"dial", "bind"} {
		t.Run(mode, func(t *testing.T) {
			p := &Publisher{Topic: "kv@a@m", Keep: 2}
			var listeners []net.Listener
			for range 2 {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				listeners = append(listeners, l)
			}
			var wg sync.WaitGroup
			done := make(chan struct{})
			wg.Go(func() { _ = p.ServeEvents(listeners[0]) })
			wg.Go(func() { _ = p.ServeReplays(listeners[1]) })
			address := "tcp://" + listeners[0].Addr().String()
			if mode == "bind" {
				address = "tcp://127.0.0.1:*"
			}
			cmd := exec.Command(python, "testdata/subscriber.py", mode, address, "tcp://"+listeners[1].Addr().String())
			cmd.Stderr = os.Stderr
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				close(done)
				for _, l := range listeners {
					l.Close()
				}
				p.Close()
				wg.Wait()
			}()
			out := bufio.NewScanner(pipe)
			if mode == "bind" {
				if !out.Scan() {
					t.Fatal("no address")
				}
				address := strings.TrimPrefix(out.Text(), "tcp://")
				wg.Go(func() { p.Dial(address, 10*time.Millisecond, done) })
			}
			until(t, func() bool { return p.Subscribers() == 1 })
			b := Batch{Time: 2, Rank: 0, Events: []Event{{Kind: BlockRemoved, Hashes: []uint64{7}, Medium: "gpu"}}}
			for seq := range uint64(3) {
				b.Events[0].Hashes[0] = 7 + seq
				p.Send(seq, b.Append(nil, Maps))
			}
			body := `[2.0, [{"type": "BlockRemoved", "block_hashes": [%d], "medium": "GPU", "group_idx": 0}], 0]`
			for _, want := range []string{
				"kv@a@m 0 " + fmt.Sprintf(body, 7), "kv@a@m 1 " + fmt.Sprintf(body, 8), "kv@a@m 2 " + fmt.Sprintf(body, 9),
				"kv@a@m 1 " + fmt.Sprintf(body, 8), "kv@a@m 2 " + fmt.Sprintf(body, 9), " -1 -",
			} {
				if !out.Scan() || out.Text() != want {
					t.Fatalf("libzmq heard %q, want %q", out.Text(), want)
				}
			}
		})
	}
}
