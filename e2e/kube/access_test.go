// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// metricsAccess asks for the metrics page with real tokens: of nobody, of one who may not, and of one who may; then while the
// API server is away, and without the permission to ask it. Requests are served whatever happens there.
func (c *Cluster) metricsAccess(t *testing.T) {
	s := c.site(t, []string{"epp"}, nil, "a")
	l := Traffic(t, s.http, 4, 8, nil)
	s.Apply(t, s.ns, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: scraper}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: stranger}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: late}\n")
	s.Kubectl(t, "create", "clusterrole", s.ns, "--verb=get", "--non-resource-url=/metrics")
	s.Kubectl(t, "create", "clusterrolebinding", s.ns, "--clusterrole="+s.ns, "--serviceaccount="+s.ns+":scraper", "--serviceaccount="+s.ns+":late")
	defer c.Kubectl(t, "delete", "clusterrole,clusterrolebinding", s.ns)
	token := func(name string) string { return s.Kubectl(t, "create", "token", "-n", s.ns, name) }
	scraper, stranger, late := token("scraper"), token("stranger"), token("late")
	is := func(path, token string, status int, texts ...string) {
		t.Helper()
		rig.Eventually(t, fmt.Sprintf("%s to answer %d", path, status), func() error {
			page, err := s.pageFor(s.pickers[0], path, token)
			var r Refusal
			if !errors.As(err, &r) {
				r = Refusal{http.StatusOK, page}
			}
			for _, text := range texts {
				if !strings.Contains(r.Text, text) {
					return fmt.Errorf("%q is missing in %.500s", text, r.Text)
				}
			}
			if r.Status != status {
				return fmt.Errorf("%d: %.500s", r.Status, r.Text)
			}
			return nil
		})
	}
	is("/metrics", "", http.StatusUnauthorized)
	is("/metrics", "not.a.token", http.StatusUnauthorized)
	is("/metrics", stranger, http.StatusForbidden, "system:serviceaccount:"+s.ns+":stranger")
	is("/metrics", scraper, http.StatusOK, "llm_d_epp_request_total")
	is("/debug/fleet", scraper, http.StatusForbidden)
	is("/healthz", "", http.StatusOK)

	s.Stop(t)
	is("/metrics", late, http.StatusServiceUnavailable)
	is("/metrics", scraper, http.StatusOK, "llm_d_epp_request_total") // was let in before
	s.Start(t)
	is("/metrics", late, http.StatusOK)

	s.Kubectl(t, "delete", "clusterrolebinding", "metrics")
	defer s.Kubectl(t, "create", "clusterrolebinding", "metrics", "--clusterrole=system:auth-delegator", "--group=system:serviceaccounts")
	again := token("scraper") // another one: nothing is remembered of it
	is("/metrics", again, http.StatusInternalServerError, "tokenreviews")
	all := l.Stop()
	t.Log(all)
	if len(all.Lost()) > 0 {
		t.Error("requests were lost that could have been served")
	}
}
