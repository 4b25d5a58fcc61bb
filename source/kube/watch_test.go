// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// asks counts requests.
func (s *server) asks(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[what]
}

// interrupt ends all streams; the server goes on.
func (s *server) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.left)
	s.left = make(chan struct{})
}

// A watch that breaks is taken up where it was; a bookmark says where that is when nothing happened to what is watched.
func TestBookmarks(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("a watch", func() bool { return s.asks("watch pods") > 0 })
	for range 3 { // what happens elsewhere is forgotten
		s.put(aPod, "other", "e", "u", "x", "10.1.0.9", "True")
	}
	lists := s.asks("list pods")
	s.with(func() { s.bookmark = true })
	w.until("that the bookmark was sent", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.bookmarked["pods"] == s.versions })
	s.with(func() { s.log = nil })
	s.interrupt()
	s.put(aPod, "a", "e1", "u1", "x", "10.1.0.2", "True")
	w.until("what happened after", w.endpoints("a", "e0-rank-0=10.1.0.1:8000", "e1-rank-0=10.1.0.2:8000"))
	if n := s.asks("list pods"); n != lists {
		t.Errorf("it listed %d times more", n-lists)
	}
}

// A watch that is too far behind ends with a list, and nobody is warned of it.
func TestExpired(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	w.until("the endpoint", w.endpoints("a", "e0-rank-0=10.1.0.1:8000"))
	w.until("a watch", func() bool { return s.asks("watch pods") > 0 })
	s.with(func() { s.mute = true })
	s.remove(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.put(aPod, "a", "e1", "u1", "x", "10.1.0.2", "True")
	s.with(func() { s.mute = false })
	s.drop()
	w.until("what is there", w.endpoints("a", "e1-rank-0=10.1.0.2:8000"))
	if got := w.log.of("level=WARN", "pods"); len(got) > 0 {
		t.Errorf("it warned %v", got)
	}
	for k := range w.failed {
		t.Errorf("it counted %s", k)
	}
}

// An API server that restarts under many pods is asked for one list of each resource, and no endpoint is lost meanwhile. What
// changed while it was away counts then.
func TestRestartUnderManyPods(t *testing.T) {
	const pods = 500
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	for i := range pods {
		s.put(aPod, "a", fmt.Sprint("e", i), fmt.Sprint("u", i), "x", fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250), "True")
	}
	o := single
	o.compareEvery, o.compareAgain = 50*time.Millisecond, 200*time.Millisecond
	w := follow(t, s, o)
	count := func(n int) func() bool { return func() bool { return len(w.sources[Source("a")]) == n } }
	w.until("all", count(pods))
	w.note(func() { w.fewest = pods })
	s.leave()
	w.until("failures", func() bool { return w.feed("pods").State == Away })
	s.put(aPod, "a", "new", "u", "x", "10.1.9.9", "True")
	s.remove(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.drop()
	s.mu.Lock()
	clear(s.asked)
	s.mu.Unlock()
	s.come(t)
	w.until("the new one", func() bool {
		l := w.sources[Source("a")]
		return len(l) == pods && strings.HasPrefix(l[pods-1], "new") && !strings.HasPrefix(l[0], "e0-")
	})
	w.until("that nothing differs", func() bool {
		w.compared = w.compared || w.differs == 0 && s.asks("list pods") > 1 // the comparison lists, too
		return w.compared && w.differs == 0
	})
	if w.fewest < pods {
		t.Errorf("for a time only %d were told", w.fewest)
	}
	if n := s.asks("list inferencepools"); n > 1 {
		t.Errorf("pools were listed %d times", n)
	}
	if got := w.log.of("level=ERROR"); len(got) > 0 {
		t.Errorf("it said %v", got)
	}
}

// A pod that is deleted and made again under its name is another, at another address or at the same; one whose readiness flaps
// is the one that it was.
func TestPodMadeAgain(t *testing.T) {
	s := newServer(t)
	s.put(aPool, "a", "p", "x")
	s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	w := follow(t, s, single)
	is := func(address, life string) func() bool {
		return func() bool { return len(w.specs) == 1 && w.specs[0].Address == address && w.specs[0].Life == life }
	}
	w.until("the endpoint", is("10.1.0.1:8000", "u0"))
	for range 2 {
		s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "False")
		w.until("none that is ready", func() bool { return len(w.specs) == 0 })
		s.put(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
		w.until("the same", is("10.1.0.1:8000", "u0"))
	}
	s.remove(aPod, "a", "e0", "u0", "x", "10.1.0.1", "True")
	s.put(aPod, "a", "e0", "u1", "x", "10.1.0.1", "True")
	w.until("another at its address", is("10.1.0.1:8000", "u1"))
	s.remove(aPod, "a", "e0", "u1", "x", "10.1.0.1", "True")
	s.put(aPod, "a", "e0", "u2", "x", "10.1.0.2", "True")
	w.until("another elsewhere", is("10.1.0.2:8000", "u2"))
	s.put(strings.Replace(aPod, "Running", "Failed", 1), "a", "e0", "u2", "x", "", "True") // evicted: no address, and no deletion
	w.until("none", func() bool { return len(w.specs) == 0 })
}
