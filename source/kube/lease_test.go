// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var leaseResource = coordinationv1.SchemeGroupVersion.WithResource("leases").GroupResource()

// ballot is an API server with one lease.
type ballot struct {
	mu       sync.Mutex
	lease    *coordinationv1.Lease
	version  int
	requests int
	slow     time.Duration
	broken   error
	done     bool // what it was asked for is done, also when nobody waits for the answer any more
}

func (b *ballot) asked(ctx context.Context) error {
	b.mu.Lock()
	slow, broken := b.slow, b.broken
	b.requests++
	b.mu.Unlock()
	t := time.NewTimer(slow)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return broken
}

// unheard is a write whose answer nobody waits for any more. It is done all the same if it can be, where the server has got it.
// It is called with the lock held.
func (b *ballot) unheard(err error, can bool, l *coordinationv1.Lease) error {
	if b.done && can && errors.Is(err, context.Canceled) {
		b.keep(l)
	}
	return err
}

func (b *ballot) keep(l *coordinationv1.Lease) *coordinationv1.Lease {
	b.version++
	b.lease = l.DeepCopy()
	b.lease.ResourceVersion = fmt.Sprint(b.version)
	return b.lease.DeepCopy()
}

// voter is the ballot as one picker reaches it.
type voter struct {
	*ballot
	mu  sync.Mutex
	cut error // it does not reach it
}

func (v *voter) asked(ctx context.Context) error {
	v.mu.Lock()
	cut := v.cut
	v.mu.Unlock()
	if cut != nil {
		return cut
	}
	return v.ballot.asked(ctx)
}

func (v *voter) get(ctx context.Context) (*coordinationv1.Lease, error) {
	if err := v.asked(ctx); err != nil {
		return nil, err
	}
	v.ballot.mu.Lock()
	defer v.ballot.mu.Unlock()
	if v.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, "l")
	}
	return v.lease.DeepCopy(), nil
}

func (v *voter) create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	err := v.asked(ctx)
	v.ballot.mu.Lock()
	defer v.ballot.mu.Unlock()
	if err != nil {
		return nil, v.unheard(err, v.lease == nil, l)
	}
	if v.lease != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, "l")
	}
	return v.keep(l), nil
}

func (v *voter) update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	err := v.asked(ctx)
	v.ballot.mu.Lock()
	defer v.ballot.mu.Unlock()
	if err != nil {
		return nil, v.unheard(err, v.lease != nil && v.lease.ResourceVersion == l.ResourceVersion, l)
	}
	if v.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, "l")
	}
	if l.ResourceVersion != v.lease.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, "l", errors.New("changed"))
	}
	return v.keep(l), nil
}

// picker is one that stands for election.
type picker struct {
	*Election
	*voter
	address string
	stop    context.CancelFunc
	done    chan struct{}
	polls   sync.Mutex
	health  string // of its port: "ready", "busy", "hung"; empty when nobody listens
	cold    bool
}

func (p *picker) is(health string) {
	p.polls.Lock()
	defer p.polls.Unlock()
	p.health = health
}

func (p *picker) listens() string {
	p.polls.Lock()
	defer p.polls.Unlock()
	return p.health
}

// crash ends a picker as SIGKILL does: it says nothing to anybody. The port is then as health says.
func (p *picker) crash(health string) {
	p.voter.mu.Lock()
	p.cut = errors.New("killed")
	p.voter.mu.Unlock()
	p.is(health)
	p.stop()
	<-p.done
}

// leave ends a picker gracefully.
func (p *picker) leave() {
	p.is("busy")
	p.stop()
	<-p.done
}

// cluster is some pickers and an API server.
type electorate struct {
	t *testing.T
	*ballot

	book    sync.Mutex
	pickers map[string]*picker // by address
}

func (c *electorate) at(address string) *picker {
	c.book.Lock()
	defer c.book.Unlock()
	return c.pickers[address]
}

// all are the pickers that ever stood.
func (c *electorate) all() []*picker {
	c.book.Lock()
	defer c.book.Unlock()
	return slices.Collect(maps.Values(c.pickers))
}

// held tells who holds the lease, and how often it went to another.
func (b *ballot) held() (who string, transitions int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease == nil {
		return "", 0
	}
	return holder(b.lease), deref(b.lease.Spec.LeaseTransitions)
}

func elect(t *testing.T) *electorate {
	return &electorate{t: t, ballot: &ballot{}, pickers: map[string]*picker{}}
}

func (c *electorate) start(host, address string) *picker { return c.begin(host, address, false) }

func (c *electorate) begin(host, address string, cold bool) *picker {
	p := &picker{cold: cold, voter: &voter{ballot: c.ballot}, address: address, done: make(chan struct{})}
	p.is("ready")
	life := fmt.Sprint(len(c.all()), "-", time.Now().UnixNano())
	c.book.Lock()
	c.pickers[address] = p
	c.book.Unlock()
	p.Election = newElection(ElectionOptions{
		Namespace: "ns", Name: LeaseName("ns", "pool"), Host: host, Life: life, Address: address, Log: slog.New(slog.DiscardHandler),
		Warm: func() bool { p.polls.Lock(); defer p.polls.Unlock(); return !p.cold },
		Peer: func(address string) (Peer, error) { return &line{c: c, address: address}, nil },
	}, p.voter)
	p.dial = func(_ context.Context, address string) error {
		if p := c.at(address); p == nil || p.listens() == "" {
			return syscall.ECONNREFUSED
		}
		return nil
	}
	ctx, stop := context.WithCancel(c.t.Context())
	p.stop = stop
	go func() {
		defer close(p.done)
		_ = p.Run(ctx)
	}()
	return p
}

// line is a connection to the health port of a picker.
type line struct {
	c       *electorate
	address string
}

func (l *line) Ready(ctx context.Context) (bool, error) {
	p := l.c.at(l.address)
	switch p.listens() {
	case "ready":
		return p.Leads(), nil
	case "busy":
		return false, nil
	case "hung":
		<-ctx.Done()
		return false, ctx.Err()
	}
	return false, errors.New("unavailable")
}

func (l *line) Close() error { return nil }

// leader is the only one who leads, nil for nobody.
func (c *electorate) leader() *picker {
	var found *picker
	for _, p := range c.all() {
		if !p.Leads() {
			continue
		}
		if found != nil {
			c.t.Errorf("%s and %s lead", found.address, p.address)
		}
		found = p
	}
	return found
}

// until returns how long it took until p leads.
func until(p *picker) time.Duration {
	started := time.Now()
	for !p.Leads() {
		if time.Since(started) > 10*time.Minute {
			return -1
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(started)
}

func within(t *testing.T, what string, got, from, to time.Duration) {
	t.Helper()
	if got < from || got > to {
		t.Errorf("%s took %v, want %v to %v", what, got, from, to)
	}
}

// two starts two pickers, and lets them settle.
func two(t *testing.T) (c *electorate, leader, standby *picker) {
	c = elect(t)
	leader = c.start("a", "10.0.0.1:9003")
	synctest.Wait()
	standby = c.start("b", "10.0.0.2:9003")
	time.Sleep(10 * time.Second)
	if c.leader() != leader {
		t.Fatal("the first does not lead")
	}
	return c, leader, standby
}

func end(c *electorate) {
	for _, p := range c.all() {
		p.stop()
		<-p.done
	}
}

// TestElection follows the lead from one picker to another.
func TestElection(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"a crash is noticed by the health port", func(t *testing.T) {
			c, leader, standby := two(t)
			leader.crash("")
			within(t, "a crash", until(standby), 0, 250*time.Millisecond)
			end(c)
		}},
		{"a graceful stop hands over at once", func(t *testing.T) {
			c, leader, standby := two(t)
			go leader.leave()
			within(t, "a stop", until(standby), 0, 250*time.Millisecond)
			end(c)
		}},
		{"a leader that hangs, or whose node is lost, costs some seconds", func(t *testing.T) {
			c, leader, standby := two(t)
			leader.crash("hung")
			// The last renewal may be seen a turn late, and its end, too.
			within(t, "a lost node", until(standby), silentAfter, silentLease+2*leaseRetry+leaseAgain)
			end(c)
		}},
		{"a leader that was never reached costs the lease's duration", func(t *testing.T) {
			c := elect(t)
			leader := c.start("a", "10.0.0.1:9003")
			until(leader)
			leader.is("hung")
			standby := c.start("b", "10.0.0.2:9003")
			time.Sleep(10 * time.Second)
			leader.crash("hung")
			within(t, "a lost node", until(standby), 12*time.Second, 20*time.Second)
			end(c)
		}},
		{"a leader that renews keeps the lease, whatever its health says", func(t *testing.T) {
			c, leader, _ := two(t)
			leader.is("hung")
			time.Sleep(time.Minute)
			if c.leader() != leader {
				t.Error("it was deposed")
			}
			end(c)
		}},
		{"a slow API server deposes nobody, nor when the leader's health says nothing", func(t *testing.T) {
			c, leader, _ := two(t)
			leader.is("hung")
			c.slower(2 * time.Second)
			time.Sleep(time.Minute)
			if c.leader() != leader {
				t.Error("it was deposed")
			}
			end(c)
		}},
		{"a crash while the API server is away", func(t *testing.T) {
			c, leader, standby := two(t)
			c.fail(errors.New("connection refused"))
			time.Sleep(time.Minute)
			if c.leader() != leader {
				t.Error("the leader left when the API server did")
			}
			leader.crash("")
			within(t, "a crash", until(standby), aloneAfter, time.Second)
			time.Sleep(time.Minute)
			c.fail(nil)
			time.Sleep(3 * time.Second)
			if got, _ := c.held(); got != standby.identity() || c.leader() != standby {
				t.Errorf("%s holds the lease", got)
			}
			end(c)
		}},
		{"a crash while the API server is away, of one that is started again where it was", func(t *testing.T) {
			c, leader, standby := two(t)
			c.fail(errors.New("connection refused"))
			time.Sleep(time.Minute)
			leader.crash("")
			within(t, "a crash", until(standby), aloneAfter, time.Second)
			again := c.start("a", leader.address) // it answers, and does not know who leads
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				if c.leader() != standby {
					t.Fatal("nobody leads")
				}
			}
			c.fail(nil)
			time.Sleep(time.Minute)
			if c.leader() == nil {
				t.Errorf("of %s and %s none leads", standby.address, again.address)
			}
			end(c)
		}},
		{"an API server that comes back deposes nobody", func(t *testing.T) {
			c, leader, _ := two(t)
			for _, away := range []time.Duration{5 * time.Second, 16 * time.Second, time.Minute} {
				c.fail(errors.New("connection refused"))
				time.Sleep(away)
				c.fail(nil)
				for range 400 {
					time.Sleep(100 * time.Millisecond)
					if c.leader() != leader {
						t.Fatalf("another leads after %v", away)
					}
				}
			}
			if _, n := c.held(); n != 0 {
				t.Errorf("%d transitions", n)
			}
			end(c)
		}},
		{"an API server that is slow deposes nobody", func(t *testing.T) {
			c, leader, _ := two(t)
			c.slower(8 * time.Second)
			for range 1200 {
				time.Sleep(100 * time.Millisecond)
				if c.leader() != leader {
					t.Fatal("another leads")
				}
			}
			if _, n := c.held(); n != 0 {
				t.Errorf("%d transitions", n)
			}
			c.slower(0)
			end(c)
		}},
		{"a leader that is cut off is deposed, and sees it", func(t *testing.T) {
			c, leader, standby := two(t)
			leader.reach(errors.New("no route"))
			within(t, "being cut off", until(standby), 2*leaseDuration-4*time.Second, 2*leaseDuration+6*time.Second)
			leader.reach(nil)
			time.Sleep(3 * time.Second)
			if c.leader() != standby {
				t.Error("the old leader leads on")
			}
			end(c)
		}},
		{"an earlier life of the same host holds nothing", func(t *testing.T) {
			c := elect(t)
			p := c.start("a", "10.0.0.1:9003")
			within(t, "the first", until(p), 0, 10*time.Millisecond)
			p.crash("")
			p = c.start("a", "10.0.0.1:9003")
			within(t, "the second", until(p), 0, 10*time.Millisecond)
			end(c)
		}},
		{"an address that never answered proves nothing", func(t *testing.T) {
			c, leader, standby := two(t)
			leader.leave()
			within(t, "a stop", until(standby), 0, time.Second)
			standby.is("") // a policy that refuses connections
			third := c.start("c", "10.0.0.3:9003")
			time.Sleep(time.Minute)
			if c.leader() != standby || third.Leads() {
				t.Error("the lease was taken from a leader that renews it")
			}
			end(c)
		}},
		{"several stand by, one follows", func(t *testing.T) {
			c, leader, _ := two(t)
			for i := range 3 {
				c.start(fmt.Sprint("more", i), fmt.Sprint("10.0.1.", i, ":9003"))
			}
			time.Sleep(5 * time.Second)
			leader.crash("")
			time.Sleep(300 * time.Millisecond)
			if c.leader() == nil {
				t.Error("nobody leads")
			}
			time.Sleep(time.Minute)
			if _, n := c.held(); c.leader() == nil || n != 1 {
				t.Errorf("%d transitions", n)
			}
			end(c)
		}},
		{"a picker of llm-d holds its lease by renewals alone", func(t *testing.T) {
			c := elect(t)
			now := metav1.NowMicro()
			c.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "0"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ref("theirs_1"), LeaseDurationSeconds: ref(int32(15)), RenewTime: &now}}
			p := c.start("a", "10.0.0.1:9003")
			within(t, "the lease of one that is gone", until(p), 14*time.Second, 20*time.Second)
			end(c)
		}},
		{"one that is cold lets one that is warm go first", func(t *testing.T) {
			c, leader, standby := two(t)
			c.begin("c", "10.0.0.0:9003", true)
			time.Sleep(10 * time.Second)
			for range 20 {
				go leader.leave()
				within(t, "a stop", until(standby), 0, 250*time.Millisecond)
				leader, standby = standby, c.start("again", fmt.Sprint("10.0.2.", len(c.all()), ":9003"))
				time.Sleep(10 * time.Second)
			}
			end(c)
		}},
		{"one that is cold leads when nobody else does", func(t *testing.T) {
			c := elect(t)
			p := c.begin("a", "10.0.0.1:9003", true)
			within(t, "the lead", until(p), coldAfter, coldAfter+200*time.Millisecond)
			end(c)
		}},
		{"one that becomes warm leads at once", func(t *testing.T) {
			c := elect(t)
			p := c.begin("a", "10.0.0.1:9003", true)
			time.Sleep(time.Second)
			p.polls.Lock()
			p.cold = false
			p.polls.Unlock()
			within(t, "the lead", until(p), 0, 200*time.Millisecond)
			end(c)
		}},
		{"a lease that is deleted is made again", func(t *testing.T) {
			c, leader, _ := two(t)
			c.mu.Lock()
			c.lease = nil
			c.mu.Unlock()
			time.Sleep(5 * time.Second)
			if who, _ := c.held(); who == "" || c.leader() == nil {
				t.Errorf("%q holds the lease, %s led", who, leader.identity())
			}
			end(c)
		}},
		{"no permission", func(t *testing.T) {
			c := elect(t)
			c.fail(apierrors.NewForbidden(leaseResource, "l", errors.New("no")))
			p := c.start("a", "10.0.0.1:9003")
			time.Sleep(time.Minute)
			want := "standing by: may not get leases.coordination.k8s.io in namespace ns: grant get, create and update"
			if err := p.Ready(); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			c.fail(nil)
			within(t, "the permission", until(p), 0, 2100*time.Millisecond)
			end(c)
		}},
		{"a lease that was left long ago costs seconds, unless somebody answers for it", func(t *testing.T) {
			c, leader, _ := two(t)
			for _, p := range c.all() {
				p.crash("")
			}
			time.Sleep(time.Hour)
			late := c.start("c", "10.0.0.3:9003")
			within(t, "a lease of long ago", until(late), 2*time.Second, 5*time.Second)
			if !late.Settled() {
				t.Error("it leads, and nobody is known to")
			}
			end(c)
			_ = leader
		}},
		{"a leader cut off for an hour that answers keeps its lease as long as before", func(t *testing.T) {
			c := elect(t)
			leader := c.start("a", "10.0.0.1:9003")
			time.Sleep(10 * time.Second)
			leader.reach(errors.New("no route to host"))
			time.Sleep(time.Hour)
			standby := c.start("b", "10.0.0.2:9003")
			time.Sleep(5 * time.Second)
			if !standby.Settled() {
				t.Error("the leader answers, and nobody is known to lead")
			}
			within(t, "one that is cut off", until(standby), 20*time.Second, 35*time.Second)
			end(c)
		}},
		{"who stands by knows when somebody leads", func(t *testing.T) {
			c, leader, standby := two(t)
			if !leader.Settled() || !standby.Settled() {
				t.Error("one leads, and nobody is known to")
			}
			for _, p := range c.all() {
				p.crash("hung")
			}
			late := c.start("c", "10.0.0.3:9003")
			time.Sleep(5 * time.Second)
			if late.Settled() {
				t.Error("nobody leads, and somebody is known to")
			}
			within(t, "the lease", until(late), 5*time.Second, 15*time.Second)
			end(c)
		}},
		{"all leave, one while it takes the lease", func(t *testing.T) {
			for after := time.Duration(0); after < time.Second; after += 10 * time.Millisecond {
				c, leader, standby := two(t)
				c.slower(30 * time.Millisecond)
				c.mu.Lock()
				c.done = true
				c.mu.Unlock()
				go leader.leave()
				time.Sleep(after)
				standby.leave()
				<-leader.done
				if who, _ := c.held(); who != "" {
					t.Fatalf("the second left %v after the first, and %s still holds the lease", after, who)
				}
			}
		}},
		{"it is asked little", func(t *testing.T) {
			c, _, _ := two(t)
			c.mu.Lock()
			c.requests = 0
			c.mu.Unlock()
			time.Sleep(time.Minute)
			c.mu.Lock()
			n := c.requests
			c.mu.Unlock()
			if n > 62 {
				t.Errorf("%d requests in a minute of two pickers", n)
			}
			end(c)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { synctest.Test(t, c.run) })
	}
}

func (b *ballot) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

func (b *ballot) slower(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = d
}

func (v *voter) reach(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cut = err
}
