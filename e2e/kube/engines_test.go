// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// long is one stream of some seconds that goes on while the test changes its engine.
func (s *site) long(endpoint string) *Load {
	s.t.Helper()
	l := Once(s.t, s.http, 160, http.Header{"X-Subset": {endpoint}}) // 4 s
	rig.Eventually(s.t, "the stream to begin", func() error {
		if got, err := s.metric("penstock_endpoint_inflight_requests", fmt.Sprintf("endpoint=%q", s.ns+"/a-rank-0")); err != nil || got == 0 {
			return fmt.Errorf("%v in flight, %w", got, err)
		}
		return nil
	})
	return l
}

// streamsSurvive changes a pod while a stream to it is open: it is deleted with grace, fails, and is not ready for a moment.
// No new request comes to it, and the stream ends well.
func (c *Cluster) streamsSurvive(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a", "b")
	l := Traffic(t, s.http, 4, 8, nil)
	a, b := s.endpoint("a"), s.endpoint("b")
	s.serves(l, a, b)
	wait := func(what string, stream *Load) {
		t.Helper()
		stream.clients.Wait()
		all := stream.Outcomes()
		if len(all) != 1 || all[0].Err != nil || all[0].Endpoint != a || all[0].Events < 160 {
			t.Errorf("%s: the stream that was open: %+v", what, all)
		}
	}

	stream := s.long(a)
	for range 5 { // faster than anybody looks
		for _, ready := range []string{"False", "True"} {
			s.Kubectl(t, "patch", "pod", "-n", s.ns, "a", "--subresource=status", "--type=merge", "-p",
				`{"status":{"conditions":[{"type":"Ready","status":"`+ready+`"},{"type":"ContainersReady","status":"True"}]}}`)
		}
	}
	s.serves(l, a, b)
	wait("not ready for moments", stream)

	stream = s.long(a)
	s.Kubectl(t, "delete", "pod", "-n", s.ns, "a", "--wait=false")
	s.serves(l, b)
	wait("deleted with grace", stream)
	s.Kubectl(t, "wait", "--for=delete", "pod/a", "-n", s.ns, "--timeout=90s")

	a = s.engine("a", "")
	s.serves(l, a, b)
	stream = s.long(a)
	s.Kubectl(t, "patch", "pod", "-n", s.ns, "a", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Failed","podIP":null,"podIPs":null}}`)
	s.serves(l, b)
	wait("failed and without an address", stream)
	s.whole(l)
	for _, name := range []string{"penstock_inflight_drift", "penstock_kube_list_difference"} {
		s.measures(name, 0)
	}
}

// IPv6 has engines with addresses of both families, and subsets that name them in all the ways in which one may write them.
func (c *Cluster) ipv6(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "four")
	six := s.engine("six", `annotations: {test/family: IPv6}`)
	four := s.endpoint("four")
	if !strings.HasPrefix(six, "[fd00:244::") {
		t.Fatalf("the pod is at %s", six)
	}
	l := Traffic(t, s.http, 8, 8, nil)
	s.serves(l, four, six)
	s.whole(l)
	s.shows("/debug/fleet", `"address": "`+six+`"`)
	s.measures("llm_d_epp_ready_endpoints", 2)
	s.measures("penstock_endpoint_stale", 0) // both are scraped

	bare := strings.TrimSuffix(strings.TrimPrefix(six, "["), "]:8000")
	groups := strings.Split(strings.Replace(bare, "::", ":0:0:0:0:0:", 1), ":")
	for _, subset := range []string{six, bare, "[" + bare + "]", strings.ToUpper(strings.Join(groups, ":")), strings.ToUpper(bare), " " + six + " , 10.9.9.9:8000", "10.9.9.9, ," + bare} {
		for range 4 {
			o := stream(&http.Transport{DisableKeepAlives: true}, s.http, rig.Body("of a subset", true), http.Header{"X-Subset": {subset}})
			if o.Err != nil || o.Endpoint != six {
				t.Errorf("subset %q: answered by %s: %v", subset, o.Endpoint, o.Err)
			}
		}
	}
	if o := stream(&http.Transport{DisableKeepAlives: true}, s.http, rig.Body("of another subset", true), http.Header{"X-Subset": {strings.TrimSuffix(four, ":8000")}}); o.Err != nil || o.Endpoint != four {
		t.Errorf("subset of IPv4: %+v", o)
	}
	s.counted()

	// The same with the proxy that is built in.
	proxy := picker("proxy")
	i := strings.Index(proxy, "    args: ")
	j := i + strings.Index(proxy[i:], "\n")
	s.Apply(t, s.ns, proxy[:i]+`    command: [/penstock, serve]
    args: [--kube, --pool-name, pool, --pool-namespace, $(NAMESPACE), --extproc, "off"]`+strings.Replace(proxy[j:], "{grpc: {port: 9003, service: inference-extension}, periodSeconds: 2}", "{httpGet: {path: /readyz, port: 9090}, periodSeconds: 2}", 1))
	s.pickers, s.http = []string{"proxy"}, c.Addr(t, s.ns, "proxy")+":8080"
	s.answers()
	l = Traffic(t, s.http, 8, 8, nil)
	for _, name := range []string{"four-rank-0", "six-rank-0"} {
		rig.Eventually(t, name+" to serve", func() error {
			if n, err := s.metric("llm_d_epp_scheduler_attempts_total", fmt.Sprintf("endpoint_name=%q", name)); err != nil || n == 0 {
				return fmt.Errorf("%v attempts, %w", n, err)
			}
			return nil
		})
	}
	s.whole(l)
}
