// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// streams is how many answers are open when a picker ends.
const streams = 200

// TestStandby ends the picker under concurrent streams, as a crash does and as a rolling update does, with a standby and
// without one, and counts what becomes of the requests. docs/guide/availability.md has its table.
func TestStandby(t *testing.T) {
	c := New(t)
	c.ours(t)
	for _, standby := range []bool{true, false} {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprintf("%v standby=%v", signal, standby), func(t *testing.T) { c.pickerEnds(t, signal, standby) })
		}
	}
	t.Run("hangs", c.leaderHangs)
}

// leaderHangs stops the leader's process under open streams until the standby leads, and lets it go on then: its streams end
// well, and it stands by.
func (c *Cluster) leaderHangs(t *testing.T) {
	s := c.site(t, []string{"epp-0", "epp-1"}, []string{"--health-checking", "--ha-enable-leader-election"})
	s.Apply(t, s.ns, strings.ReplaceAll(engine("a", "")+engine("b", ""), `--step-base, 25ms`, `--step-base, 100ms`))
	want := []string{s.endpoint("a"), s.endpoint("b")}
	leader, other := s.leader()
	s.envoy(s.door(leader), "--standby", s.door(other))
	s.answers()
	l := Traffic(t, s.http, streams/2, 30, nil)
	s.serves(l, want...)

	stopped := time.Now()
	s.Signal(t, s.ns, leader, syscall.SIGSTOP)
	later := Traffic(t, s.http, 20, 8, nil)
	rig.Eventually(t, "the standby to lead", func() error { return s.ready(other) })
	took := time.Since(stopped)
	s.Signal(t, s.ns, leader, syscall.SIGCONT)
	rig.Eventually(t, "the old leader to stand by", func() error {
		if s.ready(leader) == nil {
			return errors.New("it says that it is ready")
		}
		return nil
	})
	l.More(t, streams)
	later.More(t, 100)
	all, new := l.Stop(), later.Stop()
	t.Logf("the leader hung: the standby led after %v; those with a stream or a request there: %v", took.Round(10*time.Millisecond), all)
	t.Logf("those that came later: %v", new)
	if !strings.Contains(s.Logs(s.ns, other), "the leader's health service does not answer") {
		t.Error("the standby has waited for the lease to run out")
	}
}

func (c *Cluster) pickerEnds(t *testing.T, signal syscall.Signal, standby bool) {
	flags := []string{"--health-checking"}
	names := []string{"epp-0"}
	if standby {
		flags = append(flags, "--ha-enable-leader-election")
		names = append(names, "epp-1")
	}
	s := c.site(t, names, flags)
	// 10 tokens a second: an answer of 30 tokens takes three seconds.
	engines := strings.ReplaceAll(engine("a", "")+engine("b", "")+engine("c", ""), `--step-base, 25ms`, `--step-base, 100ms`)
	s.Apply(t, s.ns, engines)
	want := []string{s.endpoint("a"), s.endpoint("b"), s.endpoint("c")}
	leader, other := "epp-0", ""
	if standby {
		leader, other = s.leader()
		s.envoy(s.door(leader), "--standby", s.door(other))
		s.answers()
	}
	l := Traffic(t, s.http, streams, 30, nil)
	s.serves(l, want...)

	began := time.Now()
	ended := began
	if signal == syscall.SIGTERM {
		s.Kubectl(t, "delete", "pod", "-n", s.ns, leader, "--wait=false")
	} else {
		s.Crash(t, s.ns, leader)
		ended = time.Now() // what came before was in its hands
	}
	var took time.Duration
	switch {
	case standby:
		rig.Eventually(t, "the standby to lead", func() error { return s.ready(other) })
		took = time.Since(began)
		if signal == syscall.SIGKILL && !strings.Contains(s.Logs(s.ns, other), "the leader is gone: its health port was closed") {
			t.Error("the standby has waited for the lease to run out")
		}
	case signal == syscall.SIGTERM:
		s.Kubectl(t, "wait", "--for=delete", "pod/"+leader, "-n", s.ns, "--timeout=120s")
		s.Apply(t, s.ns, picker(leader, flags...)) // with another address
		l.Stop()
		t.Logf("without a standby, until it had ended: %v", l.Outcomes().Since(ended.Add(-4*time.Second)))
		return
	}
	l.More(t, 3*streams)
	all := l.Stop()
	before, after := 0, 0
	for _, o := range all.Lost() {
		if o.Start.Before(ended) {
			before++
		} else {
			after++
		}
	}
	delayed := 0
	for _, o := range all.Since(ended) {
		if o.First > time.Second {
			delayed++
		}
	}
	t.Logf("%v, standby %v: took over after %v; of %d open streams %d broke; of %d later requests %d were lost and %d waited more than 1 s, the longest %v; Envoy asked again %s times",
		signal, standby, took.Round(10*time.Millisecond), streams, before, len(all.Since(ended)), after, delayed, all.Since(ended).Longest().Round(10*time.Millisecond), s.retries())
	t.Log(all)
	if standby && after > 0 {
		t.Errorf("%d requests were lost that a standby could have served", after)
	}
	if standby && signal == syscall.SIGTERM && before > 0 {
		t.Errorf("%d streams broke although the picker was told to end", before)
	}
}

// leader waits until one of two pickers is ready and the other runs, and returns both.
func (s *site) leader() (leader, other string) {
	s.t.Helper()
	rig.Eventually(s.t, "one picker to lead and the other to stand by", func() error {
		a, b := s.ready(s.pickers[0]), s.ready(s.pickers[1])
		switch {
		case a == nil && b != nil:
			leader, other = s.pickers[0], s.pickers[1]
		case b == nil && a != nil:
			leader, other = s.pickers[1], s.pickers[0]
		default:
			return fmt.Errorf("%s: %w, %s: %w", s.pickers[0], a, s.pickers[1], b)
		}
		p := s.pod(s.ns, other)
		if p == nil {
			return errors.New("no pod " + other)
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(p.ip(), "9002"), time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return leader, other
}

// ready asks a picker whether it is, and returns why not.
func (s *site) ready(name string) error {
	p := s.pod(s.ns, name)
	if p == nil {
		return errors.New("no pod " + name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return Health(ctx, net.JoinHostPort(p.ip(), "9003"), "readiness")
}

// door is where a picker listens.
func (s *site) door(name string) string { return net.JoinHostPort(s.pod(s.ns, name).ip(), "9002") }
