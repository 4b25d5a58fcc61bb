// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// watchesDrop breaks the picker's connections with the API server again and again while pods come and go, whose engines wait
// for longer than a new connection takes.
func (c *Cluster) watchesDrop(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a")
	patient := func(i int) string {
		name := fmt.Sprintf("b-%d", i)
		s.Apply(t, s.ns, strings.Replace(engine(name, ""), "preStop: {sleep: {seconds: 2}}", "preStop: {sleep: {seconds: 5}}", 1))
		return s.endpoint(name)
	}
	l := Traffic(t, s.http, 8, 8, nil)
	a := s.endpoint("a")
	s.serves(l, a, patient(0))
	for i := range 3 {
		if s.Drop(t, s.ns, "epp") == 0 {
			t.Error("no connection broke: this tries nothing, or the kernel cannot (CONFIG_INET_DIAG_DESTROY)")
		}
		next := patient(i + 1)
		s.Drop(t, s.ns, "epp")
		s.Kubectl(t, "delete", "pod", "-n", s.ns, fmt.Sprintf("b-%d", i))
		s.Drop(t, s.ns, "epp")
		s.objective("premium", 10+i)
		s.serves(l, a, next)
		s.priority("premium", 10+i)
	}
	s.measures("penstock_kube_list_difference", 0)
	s.whole(l)
}

// unreachable has nothing of what the picker sends come to the API server, for a minute in which pods come and go. It goes on
// with those that it knows; those that went meanwhile are passed over by their failures.
func (c *Cluster) unreachable(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a", "b")
	l := Traffic(t, s.http, 8, 8, nil)
	a, b := s.endpoint("a"), s.endpoint("b")
	s.serves(l, a, b)
	s.Cut(t, s.ns, "epp", true)
	began := time.Now()
	third := s.engine("c", "")
	for time.Since(began) < time.Minute {
		s.serves(l, a, b)
	}
	s.Cut(t, s.ns, "epp", false)
	s.serves(l, a, b, third)
	t.Logf("known %v after the API server could be reached again", time.Since(began.Add(time.Minute)).Round(100*time.Millisecond))
	s.whole(l)
}
