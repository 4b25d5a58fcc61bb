// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a network in memory: who listens at an address is called with its connection.
type network struct {
	mu    sync.Mutex
	at    map[string]func(net.Conn)
	tries map[string][]time.Time
}

func (n *network) listen(address string, f func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at, n.tries = map[string]func(net.Conn){}, map[string][]time.Time{}
	}
	n.at[address] = f
}

func (n *network) dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tries[address] = append(n.tries[address], time.Now())
	f := n.at[address]
	if f == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	a, b := net.Pipe()
	go f(b)
	return a, nil
}

// diary is a sink that writes down.
type diary struct {
	mu    sync.Mutex
	lines []string
	hold  chan struct{} // when set, Batch waits for it
}

func (d *diary) add(s *Source, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, s.Name+" "+fmt.Sprintf(format, args...))
}

func (d *diary) Batch(s *Source, seq uint64, b *Batch) {
	if d.hold != nil {
		<-d.hold
	}
	var hashes []string
	for i := range b.Events {
		switch ev := &b.Events[i]; ev.Kind {
		case BlockStored:
			hashes = append(hashes, fmt.Sprint("+", ev.Hashes))
		case BlockRemoved:
			hashes = append(hashes, fmt.Sprint("-", ev.Hashes))
		default:
			hashes = append(hashes, "clear")
		}
	}
	rank := ""
	if s.Rank > 0 {
		rank = fmt.Sprintf(" rank=%d", s.Rank)
	}
	d.add(s, "%d %s%s", seq, strings.Join(hashes, " "), rank)
}
func (d *diary) Gap(s *Source, from, to uint64)   { d.add(s, "gap %d-%d", from, to) }
func (d *diary) Restarted(s *Source)              { d.add(s, "restarted") }
func (d *diary) Dropped(s *Source, reason Reason) { d.add(s, "dropped %s", reason) }
func (d *diary) flush() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := strings.Join(d.lines, "\n")
	d.lines = nil
	if text == "" {
		return "(nothing)\n"
	}
	return text + "\n"
}

// rig is engines a (10.0.0.1), b and so on, with us as subscriber.
type rig struct {
	t       *testing.T
	net     network
	store   *fleet.Store
	diary   diary
	engines map[string]*Publisher
}

const eventsPort, replayPort = "5557", "6557"

func hostOf(name string) string { return "10.0.0." + strconv.Itoa(int(name[0]-'a')+1) }

func (r *rig) members(names ...string) {
	var list []fleet.EndpointSpec
	for _, n := range names {
		list = append(list, fleet.EndpointSpec{ID: fleet.ID{Name: n}, Address: hostOf(n) + ":8000"})
	}
	r.store.SetEndpoints("test", list)
}

func (r *rig) up(name string, keep int) {
	p := &Publisher{Topic: "kv@" + name + "@m", Keep: keep}
	r.engines[name] = p
	r.net.listen(hostOf(name)+":"+eventsPort, p.Subscriber)
	r.net.listen(hostOf(name)+":"+replayPort, p.replays)
}

func (r *rig) down(name string) {
	r.net.listen(hostOf(name)+":"+eventsPort, nil)
	r.net.listen(hostOf(name)+":"+replayPort, nil)
	r.engines[name].Close()
}

func TestFollow(t *testing.T) {
	datadriven.Walk(t, "testdata/follow", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			r := &rig{t: t, store: fleet.NewStore(), engines: map[string]*Publisher{}}
			r.store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "pool"}}})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer func() {
				cancel()
				for _, p := range r.engines {
					p.Close()
				}
			}()
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				name := ""
				if len(d.CmdArgs) > 0 {
					name = d.CmdArgs[0].Key
				}
				switch d.Cmd {
				case "follow": // follow [replay] [buffer=N] engines…
					opt := Options{Topic: "kv@", Dial: r.net.dial}
					var names []string
					for _, a := range d.CmdArgs {
						switch a.Key {
						case "replay":
							opt.ReplayPort, _ = strconv.Atoi(replayPort)
						case "buffer":
							opt.Buffer, _ = strconv.Atoi(a.Vals[0])
						default:
							names = append(names, a.Key)
							r.up(a.Key, 100)
						}
					}
					r.members(names...)
					wg.Go(func() { _ = Follow(ctx, r.store, opt, &r.diary) })
				case "members":
					r.members(strings.Fields(d.Input)...)
				case "up":
					keep := 100
					d.MaybeScanArgs(t, "keep", &keep)
					r.up(name, keep)
				case "down":
					r.down(name)
				case "cut": // the connection breaks, the engine lives
					p := r.engines[name]
					p.mu.Lock()
					for c := range p.conns {
						c.Close()
					}
					p.mu.Unlock()
				case "lose": // published while nobody listens: only replays have it
					for line := range strings.Lines(d.Input) {
						seq, text, _ := strings.Cut(strings.TrimSpace(line), " ")
						n, _ := strconv.ParseUint(seq, 10, 64)
						p := r.engines[name]
						p.mu.Lock()
						p.buffer = append(p.buffer, published{n, encodeText(t, text)})
						if n := len(p.buffer) - p.Keep; n > 0 {
							p.buffer = p.buffer[n:]
						}
						p.mu.Unlock()
					}
				case "send":
					for line := range strings.Lines(d.Input) {
						seq, text, _ := strings.Cut(strings.TrimSpace(line), " ")
						n, _ := strconv.ParseUint(seq, 10, 64)
						r.engines[name].Send(n, encodeText(t, text))
					}
				case "parts": // hexadecimal or 'text'
					for line := range strings.Lines(d.Input) {
						var parts [][]byte
						for _, f := range strings.Fields(line) {
							var raw []byte
							if text, ok := strings.CutPrefix(f, "'"); ok {
								raw = []byte(text)
							} else if f != "-" {
								fmt.Sscanf(f, "%x", &raw)
							}
							parts = append(parts, raw)
						}
						r.engines[name].SendParts(parts...)
					}
				case "block":
					r.diary.hold = make(chan struct{})
				case "unblock":
					close(r.diary.hold)
				case "wait":
					dur, err := time.ParseDuration(name)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					time.Sleep(dur)
				default:
					d.Fatalf(t, "unknown command %s", d.Cmd)
				}
				synctest.Wait()
				return r.diary.flush()
			})
		})
	})
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fleet.NewStore()
		store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "pool"}}})
		r := &rig{store: store}
		r.net.listen("nowhere", nil)
		r.members("a")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- Follow(ctx, store, Options{Dial: r.net.dial}, &r.diary) }()
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.net.mu.Lock()
		tries := r.net.tries[hostOf("a")+":5557"]
		r.net.mu.Unlock()
		if len(tries) < 12 || len(tries) > 35 {
			t.Errorf("got %d tries in a minute", len(tries))
		}
		most := firstBackoff
		for i := 1; i < len(tries); i++ {
			if gap := tries[i].Sub(tries[i-1]); gap < most/2 || gap > most {
				t.Errorf("try %d came after %v, want %v to %v", i, gap, most/2, most)
			}
			most = min(2*most, 5*time.Second)
		}
		if got := r.diary.flush(); got != "(nothing)\n" {
			t.Errorf("told %s", got)
		}
	})
}

// A peer that died without a word is noticed by its silence.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		go func() {
			_, _ = shake(b, "PUB", 100)
			buf := make([]byte, 100)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
			}
		}()
		w, err := shake(a, "SUB", 100)
		if err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		go w.beat(t.Context())
		if _, err := w.read(); err == nil {
			t.Error("read something")
		}
		if d := time.Since(since); d < silentFor || d > silentFor+beatEvery {
			t.Errorf("noticed after %v, want %v", d, silentFor)
		}
		b.Close()
	})
}

func TestListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Options{Topic: "kv@"}, &d) }()
	var engines []*Publisher
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, topic := range []string{"kv@a@m", "kv@b@m", "other"} {
		p := &Publisher{Topic: topic}
		engines = append(engines, p)
		wg.Go(func() { p.Dial(l.Addr().String(), time.Millisecond, done) })
	}
	until(t, func() bool { return engines[0].Subscribers()+engines[1].Subscribers()+engines[2].Subscribers() == 3 })
	removed := func(n int, rank string) []byte {
		return encodeText(t, fmt.Sprintf("[1, [[BlockRemoved, [%d]]], %s]", n, rank))
	}
	want := func(line string) {
		t.Helper()
		until(t, func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.lines) > 0 && d.lines[len(d.lines)-1] == line
		})
	}
	engines[2].Send(0, removed(1, "0"))
	engines[0].Send(0, removed(2, "0"))
	want("a 0 -[2]")
	engines[0].Send(0, removed(3, "1"))
	want("a 0 -[3] rank=1")
	engines[1].Send(3, removed(4, "0"))
	want("b 3 -[4]")
	until(t, func() bool { return engines[0].Subscribers() == 1 })
	var gone net.Conn
	engines[0].mu.Lock()
	for c := range engines[0].conns { // as if it were another process with the same topic
		c.Close()
		gone = c
	}
	engines[0].mu.Unlock()
	until(t, func() bool { // it dials again at once, so that a moment without a subscriber need not be seen
		engines[0].mu.Lock()
		old := engines[0].conns[gone]
		engines[0].mu.Unlock()
		return !old && engines[0].Subscribers() == 1
	})
	engines[0].Send(0, removed(5, "0"))
	want("a 0 -[5]")
	close(done)
	for _, p := range engines {
		p.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wg.Wait()
	if got, want := d.flush(), "a 0 -[2]\na 0 -[3] rank=1\nb gap 0-2\nb 3 -[4]\na restarted\na 0 -[5]\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatal("waited in vain")
}

func TestRanks(t *testing.T) {
	ep := func(pod, addr string) *fleet.Endpoint {
		return &fleet.Endpoint{Pod: pod, Address: addr, AddrPort: netip.MustParseAddrPort(addr)}
	}
	got := ranksOf([]*fleet.Endpoint{ep("x", "10.0.0.1:8002"), ep("x", "10.0.0.1:8000"), ep("y", "10.0.0.2:8001"), ep("", "10.0.0.3:1"), ep("", "10.0.0.3:2"), ep("x", "10.0.0.1:8001")})
	if want := "[2 0 0 0 0 1]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
