// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// One connection cannot use up the publishers that are remembered, and those that are gone make room for others.
func TestPublishersAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Options{}, &d) }()
	done := make(chan struct{})
	var wg sync.WaitGroup
	greedy, honest := &Publisher{}, &Publisher{Topic: "kv@b@m"}
	for _, p := range []*Publisher{greedy, honest} {
		wg.Go(func() { p.Dial(l.Addr().String(), time.Millisecond, done) })
	}
	until(t, func() bool { return greedy.Subscribers() == 1 && honest.Subscribers() == 1 })
	payload := encodeText(t, "[1, [[BlockRemoved, [1]]], 0]")
	for i := range maxEach + 10 {
		greedy.SendParts(fmt.Appendf(nil, "kv@%d@m", i), binary.BigEndian.AppendUint64(nil, 0), payload)
	}
	refused := "unknown dropped " + string(TooMany)
	until(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.lines) == maxEach+10
	})
	if n := strings.Count(d.flush(), refused); n != 10 {
		t.Errorf("%d publishers of one connection were left out, want 10", n)
	}
	honest.Send(0, payload)
	until(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.lines) == 1
	})
	if got := d.flush(); got != "b 0 -[1]\n" {
		t.Errorf("got %q", got)
	}
	close(done)
	greedy.Close()
	honest.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wg.Wait()

	c := &central{opt: &Options{}, sources: map[named]*Source{}}
	alive := c.source([]byte("kv@alive@m"), 0, netip.Addr{})
	alive.connected.Store(true)
	for i := range 2 * maxSources {
		if c.source(fmt.Appendf(nil, "kv@%d@m", i), 0, netip.Addr{}) == nil {
			t.Fatalf("number %d finds no room, and all but one are gone", i)
		}
	}
	if len(c.sources) > maxSources || c.source([]byte("kv@alive@m"), 0, netip.Addr{}) != alive {
		t.Errorf("%d are remembered", len(c.sources))
	}
}

// Who follows knows its publishers before they say anything, and why one cannot be reached.
func TestPublishersAreTold(t *testing.T) {
	store := fleet.NewStore()
	store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Name: "p"}}})
	store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Name: "a"}, Address: "10.0.0.1:8000"}})
	var n network
	told := make(chan *Source, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, store, Options{Dial: n.dialled, Begun: func(s *Source) { told <- s }}, &diary{})
	}()
	s := <-told
	until(t, func() bool { return s.Failed() != nil && strings.Contains(s.Failed().Error(), "refused") })
	p := &Publisher{}
	n.listen("10.0.0.1:5557", p.Subscriber)
	until(t, func() bool { return s.Connected() && s.Failed() == nil })
	p.Close()
	until(t, func() bool { return s.Failed() != nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// dialled is dial of a network where nobody listened yet.
func (n *network) dialled(ctx context.Context, network, address string) (net.Conn, error) {
	n.listen("", nil)
	return n.dial(ctx, network, address)
}

// silent is a listener that nobody dials.
type silent struct {
	net.Listener
	closed chan struct{}
	once   sync.Once
}

func (l *silent) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l *silent) Close() error              { l.once.Do(func() { close(l.closed) }); return nil }

// slow is a context that has all that hang on it told one by one that it ended, each when the one before has done its part.
type slow struct {
	context.Context
	done chan struct{}
	told []func()
}

func (c *slow) Done() <-chan struct{} { return c.done }

func (c *slow) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// AfterFunc is what package context asks for of contexts that it does not know.
func (c *slow) AfterFunc(f func()) func() bool {
	c.told = append(c.told, f)
	return func() bool { return true }
}

// Who is told to end ends without an error, in whatever order that goes around.
func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := &slow{Context: context.Background(), done: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, &silent{closed: make(chan struct{})}, Options{}, &diary{}) }()
		synctest.Wait()
		close(ctx.done)
		for _, f := range ctx.told {
			f()
			synctest.Wait()
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
